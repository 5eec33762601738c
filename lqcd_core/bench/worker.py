"""A process that measures for the sweep: ``python -m lqcd_core.bench.worker``, one JSON line in, one out.

One process per backend and number of threads: libraries read their threads once, when they load, and a backend that dies
takes no other with it. ``{"do": "prepare", "case": {...}}``, ``{"do": "run", "seconds": s}``, ``{"do": "drop"}`` and
``{"do": "limits", "threads": n, "budget": s, "backends": [...]}``; the answer has ``ok`` and, if that is false, ``why``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import attrs

from ..errors import LQCDError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Environment variables by which libraries take their threads."""


class WorkerLost(LQCDError, RuntimeError):
    """A measuring process ended or a backend failed in it; the message is the reason."""


class Worker:
    """The other end: starts the process and talks to it.

    Parameters
    ----------
    threads
        What the libraries in the process may use.
    """

    def __init__(self, threads: int):
        self.threads = threads
        # Threads that wait for work must sleep: another worker is being timed meanwhile.
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)), "OMP_WAIT_POLICY": "passive"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lqcd_core.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def ask(self, **message) -> dict:
        """Send a message and wait for the answer.

        Raises
        ------
        WorkerLost
            If the process is gone, or says that it cannot.
        """
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            code = self._process.wait()
            how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"code {code}"
            raise WorkerLost(f"the measuring process ended with {how}{', perhaps out of memory' if code == -9 else ''}")
        answer = json.loads(line)
        if not answer["ok"]:
            raise WorkerLost(answer["why"])
        return answer

    def close(self) -> None:
        """End the process."""
        try:
            self._process.stdin.close()
            self._process.wait(timeout=5)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None


def serve(lines, answer) -> None:
    """Answer messages until there are no more."""
    from ..cli.screen import plain
    from . import machine
    from .case import Case, prepare

    prepared = None
    for line in lines:
        message = json.loads(line)
        try:
            if message["do"] == "prepare":
                prepared = None  # its memory goes before the next one's comes
                prepared = prepare(Case(**message["case"]))
                answer({"ok": True, "once": prepared.once, "facts": dict(prepared.facts)})
            elif message["do"] == "run":
                seconds, count = prepared.run(message["seconds"])
                answer({"ok": True, "seconds": seconds, "count": count})
            elif message["do"] == "drop":
                prepared = None
                answer({"ok": True})
            else:
                found = machine.measure(message["threads"], message["budget"], message["backends"])
                answer({"ok": True, "limits": plain(attrs.asdict(found))})
        except LQCDError as error:
            answer({"ok": False, "why": " ".join(str(error).split())})
        except MemoryError:
            answer({"ok": False, "why": "out of memory"})
        except Exception as error:  # a stranger's backend: its failure is its row's reason, and stops nobody else
            answer({"ok": False, "why": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})


def main() -> None:
    """Serve on the streams of this process; what libraries print goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends this process by closing the pipe
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    serve(sys.stdin, answer)


if __name__ == "__main__":
    main()


__all__ = ["THREAD_VARIABLES", "Worker", "WorkerLost", "main", "serve"]

"""Workers as processes of this host, started by ``spawn``; spinors stay in them, faces go through shared memory.

Messages are short: arrays of more than a few kilobytes go beside them, in shared segments that the executor makes and
removes, so that no write to a pipe can block on a worker that hangs. Who ends how:

* a worker that dies closes its pipes: the executor and its neighbours see it at once;
* one that hangs is found by the time-out, and killed;
* if the executor's process dies, every worker reads the end of its pipe and leaves, and Python's resource tracker
  removes the segments;
* Ctrl-C reaches the executor alone (workers ignore it): it stops the team and raises KeyboardInterrupt.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from lqcd_core.errors import BackendUnavailable

from .faces import SharedFaces
from .shard import Shard
from .team import CommandedTeam, Failed, WorkerError

SMALL = 4096
"""Bytes of arrays that still go inside a message: far below what a pipe holds."""
START = 120.0
"""Seconds that a worker may take to start and load the inner backend."""


class ProcessTeam(CommandedTeam):
    """See the module.

    Parameters
    ----------
    shards, timeout
        As for :class:`~.team.Team`.
    inner
        (name, options) of the inner backend; each worker loads its own.
    environments
        Variables set in each worker before it loads the inner backend.

    Raises
    ------
    BackendUnavailable
        If a worker cannot start, or cannot load the inner backend.
    """

    executor = "processes"

    def __init__(
        self, shards: int, timeout: float, inner: tuple[str, Mapping[str, Any]],
        environments: list[dict[str, str]] | None = None,
    ):  # fmt: skip
        super().__init__(shards, timeout)
        self.state = _State()
        self._finalizer = weakref.finalize(self, self.state.close)
        self.face_capacity = 0
        self.replies: dict[int, SharedMemory] = {}
        self.sent: list[SharedMemory] = []
        try:
            self._start(inner, environments or [{}] * shards)
        except BaseException:
            self.close()
            raise

    def _start(self, inner, environments) -> None:
        context, state = multiprocessing.get_context("spawn"), self.state
        rings = {(r, side): context.Pipe(duplex=False) for r in range(self.shards) for side in ("below", "above")}
        for rank in range(self.shards):
            before, after = (rank - 1) % self.shards, (rank + 1) % self.shards
            ours, theirs = context.Pipe()
            state.pipes.append(ours)
            outgoing = (rings[before, "above"][1], rings[after, "below"][1])
            incoming = (rings[rank, "below"][0], rings[rank, "above"][0])
            process = context.Process(
                target=serve, args=(theirs, rank, self.shards, inner, outgoing, incoming, 0.8 * self.timeout, environments[rank]),
                name=f"lqcd-shard-{rank}", daemon=True,
            )  # fmt: skip
            try:
                process.start()
            finally:
                theirs.close()  # only the worker holds that end now: its death ends the pipe
            state.processes.append(process)
        for receiver, sender in rings.values():
            receiver.close()
            sender.close()
        deadline = time.monotonic() + max(START, self.timeout)
        waiting, answers = set(range(self.shards)), {}
        while waiting:
            try:
                got = self._receive(waiting, max(0.0, deadline - time.monotonic()))
            except WorkerError as error:
                raise BackendUnavailable(f"cannot start its workers: {error} {_advice()}") from None
            if not got:
                raise BackendUnavailable(f"waited {max(START, self.timeout):g} s for its workers to start in vain.")
            answers.update(got)
            waiting -= got.keys()
        for rank in range(self.shards):
            if isinstance(answers[rank], Failed):
                raise BackendUnavailable(f"cannot load its inner backend: {answers[rank].error}")
        self.abilities = answers[0]
        for rank in range(1, self.shards):
            if answers[rank] != self.abilities:
                raise BackendUnavailable(f"rank {rank} says {answers[rank]}, but rank 0 says {self.abilities}.")

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [p.pid for p in self.state.processes]

    def name_of(self, rank: int) -> str:
        return f"rank {rank} (process {self.state.processes[rank].pid}) on {self.host}"

    # -- messages -----------------------------------------------------------------------------------------------------

    def _send(self, rank: int, message: tuple, reply_bytes: int) -> None:
        reply = None
        if reply_bytes > SMALL:
            self.replies[rank] = self.state.segment(reply_bytes)
            reply = self.replies[rank].name
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        raws = [b.raw() for b in buffers]
        sizes, name, inside = [r.nbytes for r in raws], None, []
        if sum(sizes) > SMALL:
            segment = self.state.segment(sum(sizes))
            self.sent.append(segment)
            name = segment.name
            _fill(segment, raws)
        else:
            inside = [bytes(r) for r in raws]
        try:
            self.state.pipes[rank].send((data, inside, name, sizes, reply))
        except OSError:
            raise WorkerError(self._died(rank)) from None

    def _receive(self, waiting: set[int], timeout: float) -> dict[int, Any]:
        state, answers = self.state, {}
        by_pipe = {state.pipes[rank]: rank for rank in waiting}
        by_sentinel = {state.processes[rank].sentinel: rank for rank in range(self.shards)}
        ready = wait([*by_pipe, *by_sentinel], timeout)
        for pipe in ready:
            if pipe in by_pipe:
                rank = by_pipe[pipe]
                try:
                    ok, value, sizes = pipe.recv()
                except (EOFError, OSError):
                    raise WorkerError(self._died(rank)) from None
                answers[rank] = self._opened(rank, value, sizes) if ok else value
        dead = [by_sentinel[s] for s in ready if s in by_sentinel]
        if dead and not answers:
            raise WorkerError(self._died(dead[0]))
        return answers

    def _opened(self, rank: int, data: bytes, sizes: list[int] | None) -> Any:
        if sizes is None:
            return pickle.loads(data)
        return pickle.loads(data, buffers=_cut(self.replies[rank], sizes))

    def _gather(self, command: str) -> dict[int, Any]:
        try:
            return super()._gather(command)
        finally:
            self.state.drop([*self.sent, *self.replies.values()])
            self.sent, self.replies = [], {}

    def _died(self, rank: int) -> str:
        process = self.state.processes[rank]
        process.join(1.0)
        code = process.exitcode
        if code is None:
            how = "closed its pipe"
        elif code < 0:
            how = f"was ended by signal {-code} ({signal.Signals(-code).name})"
        else:
            how = f"ended with exit code {code}"
        return f"{self.name_of(rank)} {how}."

    def reserve(self, face_bytes: int) -> None:
        if face_bytes <= self.face_capacity:
            return
        old, capacity = self.state.faces, -(-face_bytes // 4096) * 4096
        self.state.faces = [self.state.segment(4 * capacity) for _ in range(self.shards)]
        self.call("attach", [s.name for s in self.state.faces], capacity)
        self.state.drop(old)
        self.face_capacity = capacity

    def close(self) -> None:
        self._finalizer()


class _State:
    """What has to be ended and removed, apart from the team so that its finalizer holds no reference to it."""

    def __init__(self):
        self.owner = os.getpid()
        self.prefix = f"lqcd-{os.getpid()}-{secrets.token_hex(3)}"
        self.counter = itertools.count()
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        self.segments: dict[str, SharedMemory] = {}
        self.faces: list[SharedMemory] = []

    def segment(self, size: int) -> SharedMemory:
        """A new shared segment."""
        made = SharedMemory(f"{self.prefix}-{next(self.counter)}", create=True, size=size)
        self.segments[made.name] = made
        return made

    def drop(self, segments: list[SharedMemory]) -> None:
        """Remove segments."""
        for segment in segments:
            if self.segments.pop(segment.name, None) is None:
                continue
            segment.unlink()
            try:
                segment.close()
            except BufferError:  # an array cut out of it is alive: the memory goes with that, the name is gone now
                pass

    def close(self) -> None:
        """End the workers: asked first, then killed; remove every segment."""
        if os.getpid() != self.owner:
            return  # a fork of the executor owns nothing
        for pipe in self.pipes:
            try:
                pipe.send_bytes(b"")
            except OSError:
                pass
            pipe.close()
        deadline = time.monotonic() + 1.0
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()  # a stopped process does not hear SIGTERM
                process.join(10.0)
        self.drop(list(self.segments.values()))


def _advice() -> str:
    main = sys.modules.get("__main__")
    if getattr(main, "__spec__", None) is None and not hasattr(main, "__file__"):
        return ""
    return (
        'A script that starts processes is imported by each of them: put its work under `if __name__ == "__main__":`, '
        "or use executor='threads'."
    )


def _fill(segment: SharedMemory, raws) -> None:
    offset = 0
    for raw in raws:
        segment.buf[offset : offset + raw.nbytes] = raw
        offset += raw.nbytes


def _cut(segment: SharedMemory, sizes: list[int]) -> list[bytearray]:
    """Copies of the parts of a segment."""
    out, offset = [], 0
    for size in sizes:
        out.append(bytearray(segment.buf[offset : offset + size]))
        offset += size
    return out


# --------------------------------------------------------------------------------------------------------------------
# In the worker


class ProcessShard(Shard):
    """A shard whose faces go through shared memory."""

    def attach(self, names: list[str], capacity: int) -> None:
        """Use these segments for faces."""
        self.faces.attach(names, capacity)


def serve(pipe: Connection, rank: int, shards: int, inner, outgoing, incoming, timeout: float, environment) -> None:
    """Run a shard until the executor hangs up. The target of each process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment)
    faces = SharedFaces(rank, shards, outgoing, incoming, timeout)
    try:
        from lqcd_core.registry import REGISTRY

        shard = ProcessShard(REGISTRY.load(*inner).instance, faces)
        answer = shard.abilities()
    except BaseException as error:
        pipe.send((False, _failed(error), None))
        return
    pipe.send((True, pickle.dumps(answer), None))
    del answer
    while True:
        try:
            raw = pipe.recv_bytes()
        except (EOFError, OSError):
            break
        if not raw:
            break
        reply = None
        try:
            data, inside, name, sizes, reply = pickle.loads(raw)
            if name is not None:
                segment = SharedMemory(name)
                inside = _cut(segment, sizes)
                segment.close()
            else:
                inside = [bytearray(b) for b in inside]
            freed, command, arguments = pickle.loads(data, buffers=inside)
            del data, inside
            value = shard.run(freed, command, arguments)
            del arguments
            out = _answer(value, reply)
            del value
        except BaseException as error:
            out = (False, _failed(error), None)
        try:
            pipe.send(out)
        except OSError:
            break
    faces.close()


def _answer(value: Any, reply: str | None) -> tuple:
    if reply is None:
        return True, pickle.dumps(value, protocol=5), None
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raws = [b.raw() for b in buffers]
    segment = SharedMemory(reply)
    _fill(segment, raws)
    segment.close()
    return True, data, [r.nbytes for r in raws]


def _failed(error: BaseException) -> Failed:
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a stranger's error that cannot cross processes: its name and words can
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Failed(error, trace)

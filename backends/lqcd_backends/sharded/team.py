"""Teams of workers: every command goes to all ranks, and all answers are waited for.

A command that fails in one rank while the others go through with it (a wrong shape, a wrong scalar) is the caller's
error and is raised as it is. A failure that leaves the ranks out of step (a worker died, hung, or failed inside a
hopping term) ends the team: all workers are stopped and every later call on its handles says why.
"""

from __future__ import annotations

import abc
import itertools
import queue
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, NoReturn

import attrs

from lqcd_core.errors import BackendError

from .faces import FaceError, ThreadFaces
from .shard import Shard


class WorkerError(BackendError):
    """A worker died, hung, or fell out of step, and its team was stopped. The message names rank, host and reason."""


@attrs.frozen
class Each:
    """An argument that differs from rank to rank."""

    values: list
    """One value a rank."""


@attrs.frozen
class Failed:
    """A rank's answer when its command raised."""

    error: BaseException
    """What was raised."""
    trace: str = ""
    """Its traceback as text, where it crossed a process."""


class Team(abc.ABC):
    """Workers that do the same command at once: of one process that commands them, or ranks that each run the script.

    Parameters
    ----------
    shards
        Number of workers.
    timeout
        Seconds after which a worker that has not answered counts as hung.
    """

    executor = ""
    compares = False

    def __init__(self, shards: int, timeout: float):
        self.shards, self.timeout = shards, timeout
        self.host = socket.gethostname()
        self.freed: deque[int] = deque()
        self.numbers = itertools.count(1)
        self.lock = threading.RLock()
        self.stopped = ""
        self.abilities: dict[str, Any] = {}

    # -- for subclasses -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def close(self) -> None:
        """Stop the workers."""

    def name_of(self, rank: int) -> str:
        """A rank with where it runs, for messages."""
        return f"rank {rank} on {self.host}"

    def reserve(self, face_bytes: int) -> None:  # noqa: B027 (threads hand faces over and need no room)
        """Make room for faces of this size."""

    # -- commands -----------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def call(self, command: str, *arguments, reply_bytes: list[int] | None = None) -> list:
        """Run a command on every rank; the answers by rank.

        Raises
        ------
        WorkerError
            If the team is stopped, or had to be.
        """

    def _forgotten(self) -> list[int]:
        """Numbers of objects that nobody holds any more, each given once."""
        out = []
        while self.freed:
            out.append(self.freed.popleft())
        return out

    def _answers(self, command: str, answers: Mapping[int, Any]) -> list:
        """Answers by rank, if none of them is a failure."""
        failed = [rank for rank in range(self.shards) if isinstance(answers[rank], Failed)]
        if failed:
            self._raise(command, failed, answers)
        return [answers[rank] for rank in range(self.shards)]

    def _raise(self, command: str, failed: list[int], answers: dict[int, Any]) -> None:
        # A face that did not come is a consequence; the error to show is the one that came first.
        first = next((k for k in failed if not isinstance(answers[k].error, FaceError)), failed[0])
        answer = answers[first]
        if answer.trace:
            answer.error.__cause__ = RuntimeError(f"in {self.name_of(first)}:\n{answer.trace}")
        if command == "hop" or len(failed) < self.shards:
            reason = f"{self.name_of(first)} failed in {command!r}: {type(answer.error).__name__}: {answer.error}"
            self._stop(reason)
            raise WorkerError(reason) from answer.error
        raise answer.error

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self.close()

    def agree(self, what: str, facts: Mapping[str, Any]) -> None:  # noqa: B027
        """Make sure that every rank was given the same; nothing to do where one script gives to all."""

    def blame(self) -> str:
        """Which rank a NaN came from, as far as the ranks saw: a face with one was sent before any was received."""
        said = self.call("blame")
        made = [k for k, (finite, first) in enumerate(said) if first == "sent" or (not finite and first is None)]
        bad = made or [k for k, (finite, _) in enumerate(said) if not finite]
        return ", ".join(self.name_of(k) for k in bad)

    def stop_for_nan(self) -> NoReturn:
        """End the team for a NaN that nobody put in."""
        reason = f"{self.blame()} returned NaN, from finite numbers (an overflow, or a fault)."
        self._stop(reason)
        raise WorkerError(reason)

    def new(self) -> Remote:
        """A number for an object that a command will make on every rank."""
        return Remote(self, next(self.numbers))


class CommandedTeam(Team):
    """Workers that wait for commands of one process. Subclasses say how commands and answers travel."""

    @abc.abstractmethod
    def _send(self, rank: int, message: tuple, reply_bytes: int) -> None:
        """Give a rank a command; ``reply_bytes`` is the room its answer needs."""

    @abc.abstractmethod
    def _receive(self, waiting: set[int], timeout: float) -> dict[int, Any]:
        """Answers that arrived within the time, by rank; none means that time ran out. Raises WorkerError if one died."""

    def call(self, command: str, *arguments, reply_bytes: list[int] | None = None) -> list:
        with self.lock:
            if self.stopped:
                raise WorkerError(f"this team of workers was stopped: {self.stopped} Bind the operator again.")
            freed = self._forgotten()
            try:
                for rank in range(self.shards):
                    mine = tuple(a.values[rank] if isinstance(a, Each) else a for a in arguments)
                    self._send(rank, (freed, command, mine), reply_bytes[rank] if reply_bytes else 0)
                answers = self._gather(command)
            except BaseException as error:
                reason = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__} during {command!r}."
                self._stop(reason)
                raise
            return self._answers(command, answers)

    def _gather(self, command: str) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        waiting = set(range(self.shards))
        deadline = time.monotonic() + self.timeout
        while waiting:
            got = self._receive(waiting, max(0.0, deadline - time.monotonic()))
            if not got:
                raise WorkerError(self._silent(command, waiting, answers))
            answers.update(got)
            waiting -= got.keys()
            if any(isinstance(a, Failed) and isinstance(a.error, FaceError) for a in got.values()):
                # Somebody waited for a face in vain. Whoever is still silent after a moment is the reason.
                deadline = min(deadline, time.monotonic() + min(1.0, 0.1 * self.timeout))
        return answers

    def _silent(self, command: str, waiting: set[int], answers: dict[int, Any]) -> str:
        who = ", ".join(self.name_of(rank) for rank in sorted(waiting))
        said = "; ".join(f"rank {k}: {a.error}" for k, a in sorted(answers.items()) if isinstance(a, Failed))
        return (
            f"{who} gave no answer to {command!r} within the time-out of {self.timeout:g} s (option timeout)"
            f"{'; ' + said if said else ''}."
        )


class Remote:
    """An object that lives in the workers under a number; when this goes, it goes."""

    __slots__ = ("__weakref__", "number", "team")

    def __init__(self, team: Team, number: int):
        self.team, self.number = team, number

    def __del__(self):
        if self.number:  # an append to a deque is atomic: this may run in any thread at any time
            self.team.freed.append(self.number)


class ThreadTeam(CommandedTeam):
    """Workers as threads of this process, with one instance of the inner backend.

    A thread cannot be stopped from outside: one that hangs is left behind (as a daemon, so the program can end).
    """

    executor = "threads"

    def __init__(self, shards: int, timeout: float, backend: Any):
        super().__init__(shards, timeout)
        lines = {(r, side): queue.SimpleQueue() for r in range(shards) for side in ("below", "above")}
        self.inbox = [queue.SimpleQueue() for _ in range(shards)]
        self.outbox: queue.SimpleQueue = queue.SimpleQueue()
        threads = []
        for rank in range(shards):
            shard = Shard(backend, ThreadFaces(rank, shards, lines, 0.8 * timeout))
            thread = threading.Thread(
                target=_serve_thread, args=(rank, shard, self.inbox[rank], self.outbox),
                name=f"lqcd-shard-{rank}", daemon=True,
            )  # fmt: skip
            thread.start()
            threads.append(thread)
        self._finalizer = weakref.finalize(self, _end_threads, self.inbox, threads)
        self.abilities = self.call("abilities")[0]

    def _send(self, rank: int, message: tuple, reply_bytes: int) -> None:
        self.inbox[rank].put(message)

    def _receive(self, waiting: set[int], timeout: float) -> dict[int, Any]:
        try:
            return dict([self.outbox.get(timeout=timeout)])
        except queue.Empty:
            return {}

    def close(self) -> None:
        self._finalizer()

    def name_of(self, rank: int) -> str:
        return f"rank {rank} (thread) on {self.host}"


def _serve_thread(rank: int, shard: Shard, inbox: queue.SimpleQueue, outbox: queue.SimpleQueue) -> None:
    while (message := inbox.get()) is not None:
        try:
            answer = shard.run(*message)
        except BaseException as error:  # crosses to the caller's thread, whatever it is
            answer = Failed(error)
        outbox.put((rank, answer))
        del answer, message  # a thread that waits holds no handle


def _end_threads(inbox: list[queue.SimpleQueue], threads: list[threading.Thread]) -> None:
    for line in inbox:
        line.put(None)
    # At the end of the program a thread still inside a C++ library would abort it: wait a moment for the idle ones.
    deadline = time.monotonic() + 1.0
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))

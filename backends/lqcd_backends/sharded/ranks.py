"""One rank a process, all running the same script (SPMD): the executors for many hosts.

Every rank makes the same calls in the same order. A call works on the rank's own slab; calls whose answer all ranks
need (sums, results) gather one packet from each. With every packet travel the number of calls so far, a checksum of
what they were, and the count of errors: ranks that fell out of step are found at the next packet, not by wrong numbers.

How a failure ends all ranks: whoever notices leaves a notice, waits a moment for those of others, names the rank that
kept silent or said why, and cuts its connections, which wakes every rank that waits for it.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import sys
import weakref
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from lqcd_core import __version__

from .faces import FaceError
from .shard import Shard
from .team import Each, Failed, Team, WorkerError
from .transport import CAUSE, SEEN, Transport, TransportError

PACKET = 8192
"""Bytes of the first packet: enough for the sums of 12 columns over some 30 slices. Longer answers take a second one."""
HEADER = 4
"""Whole numbers before a packet's content: length, calls, their checksum, errors."""
ANSWERING = frozenset(
    {
        "abilities",
        "space",
        "hopping",
        "fused",
        "unpack",
        "convert",
        "inner",
        "axpy_norm2",
        "cg_update",
        "blame",
        "times",
        "facts",
    }
)
"""Commands whose answers every rank needs; the others cost no message, and a rank knows its own answer alone."""


class RankMismatch(WorkerError):
    """Two ranks were given different things. The message names both and both values."""


def launched() -> str | None:
    """The executor that fits what started this process: torchrun, mpirun, or None."""
    if all(k in os.environ for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return "torch.distributed"
    if any(k in os.environ for k in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")):
        return "mpi"
    return None


def world_size(executor: str) -> int:
    """Number of ranks, as the launcher says."""
    if executor == "torch.distributed":
        dist = getattr(sys.modules.get("torch"), "distributed", None)
        if dist is not None and dist.is_available() and dist.is_initialized():
            return dist.get_world_size()
        return int(os.environ.get("WORLD_SIZE", "1"))
    from .mpi import world_size as of_mpi

    return of_mpi()


class RankFaces:
    """Faces over a transport; see :class:`~.faces.Faces`."""

    def __init__(self, transport: Transport):
        self.transport, self.token = transport, None

    def post(self, down: np.ndarray, up: np.ndarray) -> None:
        try:
            self.token = self.transport.start_faces(down, up)
        except TransportError as error:
            raise FaceError(str(error)) from None

    def receive(self) -> tuple[np.ndarray, np.ndarray]:
        token, self.token = self.token, None
        try:
            return self.transport.finish_faces(token)
        except TransportError as error:
            raise FaceError(str(error)) from None

    def abort(self) -> None:
        """Nothing: the team cuts the connections."""


class RankShard(Shard):
    """A shard that can keep its slab to itself."""

    def slab(self, space: int, x: int) -> np.ndarray:
        """:meth:`unpack`, as a command that answers this rank alone."""
        return self.unpack(space, x)


class RankTeam(Team):
    """The ranks of a launch, seen from one of them.

    Parameters
    ----------
    executor
        ``torch.distributed`` or ``mpi``, for messages.
    transport
        The connection to the others.
    timeout
        Seconds within which every rank ends if one fails.
    backend
        The inner backend's instance of this rank.
    """

    compares = True

    def __init__(self, executor: str, transport: Transport, timeout: float, backend: Any):
        super().__init__(transport.size, timeout)
        self.executor, self.transport, self.rank = executor, transport, transport.rank
        self.shard = RankShard(backend, RankFaces(transport))
        self.calls, self.checksum, self.errors = 0, 0, 0
        self.recent: list[str] = []  # calls since the last packet
        self.last_error = ""
        self.names = [f"rank {k}" for k in range(self.shards)]
        self._finalizer = weakref.finalize(self, transport.close)
        self._finalizer.atexit = False
        self._at_exit = _leave_at_exit(self)
        self.names = [
            f"rank {k} (process {pid}) on {host}"
            for k, (host, pid) in enumerate(self.exchange("facts", (self.host, os.getpid())))
        ]
        self.agree("version of lqcd_core", {"lqcd_core": __version__})
        said = self.call("abilities")
        self.agree_values("what the inner backend offers", said)
        self.abilities = said[0]

    # -- commands -----------------------------------------------------------------------------------------------------

    def call(self, command: str, *arguments, reply_bytes: list[int] | None = None) -> list:
        with self.lock:
            self._alive()
            freed = self._forgotten()
            mine = tuple(a.values[self.rank] if isinstance(a, Each) else a for a in arguments)
            self._count(command, arguments)
            try:
                answer = self.shard.run(freed, command, mine)
            except FaceError as error:
                self._fail(SEEN, str(error), error)
            except Exception as error:
                if command == "hop":  # the neighbours are out of step now
                    self._fail(CAUSE, f"failed in 'hop': {type(error).__name__}: {error}", error)
                self.errors += 1
                self.last_error = f"{type(error).__name__} in {command!r}: {error}"
                if command not in ANSWERING:
                    raise
                answer = Failed(error)
            except BaseException as error:  # Ctrl-C: end the others, then ourselves
                self._stop_all(CAUSE, f"was interrupted ({type(error).__name__}) in {command!r}")
                raise
            if command not in ANSWERING:
                return [answer if rank == self.rank else None for rank in range(self.shards)]
            return self._answers(command, dict(enumerate(self.exchange(command, answer))))

    def agree(self, what: str, facts: Mapping[str, Any]) -> None:
        self.agree_values(what, self.exchange("facts", dict(facts)))

    def agree_values(self, what: str, said: list[Mapping[str, Any]]) -> None:
        """Raise :class:`RankMismatch` unless all ranks said the same of every key."""
        for k in range(1, self.shards):
            for key in {**said[0], **said[k]}:
                a, b = said[0].get(key), said[k].get(key)
                if a != b:
                    raise RankMismatch(
                        f"the ranks differ in {what}: {self.names[0]} has {key} = {a!r}, {self.names[k]} has {key} = "
                        f"{b!r}; every rank must be given the same."
                    )

    def _count(self, command: str, arguments: tuple) -> None:
        """Fold a command and its plain numbers into the checksum of calls. Object numbers count; fields do not."""
        words = [a for a in arguments if isinstance(a, (int, float, complex, str, list))]
        scalars = [a.tolist() for a in arguments if isinstance(a, np.ndarray) and a.size <= 1024]
        call = f"{command}{words + scalars}"
        self.recent.append(call)
        self.checksum = zlib.crc32(call.encode(), self.checksum)
        self.calls += 1

    # -- packets ------------------------------------------------------------------------------------------------------

    def exchange(self, command: str, value: Any) -> list:
        """What every rank has to say, by rank."""
        with self.lock:
            self._alive()
            data = pickle.dumps((command, value), protocol=5)
            try:
                heads, rows = self._gather_bytes(data)
            except TransportError as error:
                self._fail(SEEN, f"{error} in {command!r}", error)
            except BaseException as error:
                self._stop_all(CAUSE, f"was interrupted ({type(error).__name__}) in {command!r}")
                raise
            said = [pickle.loads(row) for row in rows]
            for k in range(self.shards):
                if said[k][0] == "leave" and command != "leave":
                    self._fail(SEEN, f"{self.names[k]} came to the end of its script", None, culprit=True)
                if command == "leave" and said[k][0] != "leave":  # they raise now, and answer no further question
                    self._fail(
                        SEEN, f"{self.names[k]} goes on with {said[k][0]!r} after this script's end", None, culprit=True
                    )
            steps = [tuple(head[1:]) for head in heads]
            if any(step != steps[0] for step in steps) or any(c != command for c, _ in said):
                self._out_of_step([c for c, _ in said])
            self.recent = []
            return [v for _, v in said]

    def _gather_bytes(self, data: bytes) -> tuple[np.ndarray, list[bytes]]:
        room, head = PACKET - 8 * HEADER, np.array([len(data), self.calls, self.checksum, self.errors], np.int64)
        packet = np.zeros(PACKET, np.uint8)
        packet[: 8 * HEADER] = head.view(np.uint8)
        packet[8 * HEADER :][: min(room, len(data))] = np.frombuffer(data[:room], np.uint8)
        got = self.transport.gather(packet)
        heads = got[:, : 8 * HEADER].copy().view(np.int64)
        longest = int(heads[:, 0].max())
        body = got[:, 8 * HEADER :]
        if longest > room:
            rest = np.zeros(longest - room, np.uint8)
            rest[: max(0, len(data) - room)] = np.frombuffer(data[room:], np.uint8)
            body = np.concatenate([body, self.transport.gather(rest)], axis=1)
        return heads, [body[k, : heads[k, 0]].tobytes() for k in range(self.shards)]

    def _out_of_step(self, commands: list[str]) -> None:
        """Every rank sees the same difference, so all tell what they did, and one message names two of them."""
        mine = {"calls": self.calls, "recent": self.recent, "error": self.last_error}
        try:
            _, rows = self._gather_bytes(pickle.dumps(mine))
        except TransportError as error:
            self._fail(SEEN, f"{error} after the ranks did different things", error)
        said = [pickle.loads(row) for row in rows]
        k = next((k for k in range(1, self.shards) if (commands[k], said[k]) != (commands[0], said[0])), 1)
        pair = itertools.zip_longest(said[0]["recent"], said[k]["recent"], fillvalue="nothing")
        did = next((p for p in pair if p[0] != p[1]), ("the same", "the same"))
        text = "; ".join(
            f"{self.names[r]} did {what[:300]} before {commands[r]!r}, its call {said[r]['calls']}"
            + (f", and had {said[r]['error']}" if said[r]["error"] else "")
            for r, what in zip((0, k), did, strict=True)
        )
        self._stop_all(SEEN, "")
        self.stopped = f"the ranks are out of step: {text}; every rank must make the same calls with the same numbers."
        raise RankMismatch(self.stopped)

    # -- failure ------------------------------------------------------------------------------------------------------

    def _alive(self) -> None:
        if self.stopped:
            raise WorkerError(f"this team of ranks was stopped: {self.stopped} Start the script again.")

    def _fail(self, kind: str, text: str, error: BaseException | None, culprit: bool = False) -> None:
        """Tell the others, hear them, stop, and raise."""
        if culprit:
            reason = text + "."
            self._stop_all(SEEN, text)
        else:
            self.transport.notify(kind, text)
            self.transport.close()  # wakes those who wait for us
            notices = self.transport.notices(min(1.5, 0.1 * self.timeout))
            notices[self.rank] = (kind, text)
            reason = self._reason(notices)
            self._stop_all(kind, text, told=True)
        self.stopped = reason
        raise WorkerError(reason) from error

    def _reason(self, notices: dict[int, tuple[str, str]]) -> str:
        causes = [f"{self.names[k]} {text}" for k, (kind, text) in sorted(notices.items()) if kind == CAUSE]
        if causes:
            return "; ".join(causes) + "."
        silent = [self.names[k] for k in range(self.shards) if k not in notices]
        seen = "; ".join(f"{self.names[k]} saw: {text}" for k, (_, text) in sorted(notices.items()))
        if silent:
            return f"{', '.join(silent)} died, hangs or is cut off (option timeout: {self.timeout:g} s); {seen}."
        return f"a connection between ranks was lost; {seen}."

    def _stop_all(self, kind: str, text: str, told: bool = False) -> None:
        if text and not told:
            self.transport.notify(kind, text)
        self.stopped = self.stopped or text or "it failed."
        self.close()

    def _stop(self, reason: str) -> None:
        self._stop_all(CAUSE, reason)
        self.stopped = reason

    def _leave(self) -> None:
        """At the end of the script: leave together. One that leaves alone is named by the others."""
        if self.stopped:
            return
        failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if failed is not None:
            self._stop(f"ended its script with {type(failed).__name__}: {failed}")
            return
        try:
            self.exchange("leave", None)
        except WorkerError as error:
            print(f"lqcd_core sharded: {error}", file=sys.stderr)
        self.close()

    def close(self) -> None:
        self.stopped = self.stopped or "close() was called."
        self._finalizer()
        atexit.unregister(self._at_exit)

    def name_of(self, rank: int) -> str:
        return self.names[rank]


def _leave_at_exit(team: RankTeam):
    """Register leaving without keeping the team alive."""
    reference = weakref.ref(team)

    def leave() -> None:
        alive = reference()
        if alive is not None:
            alive._leave()

    atexit.register(leave)
    return leave


def start(executor: str, timeout: float, backend: Any) -> RankTeam:
    """The team of this launch. Waits take 0.8 of the time-out, so that telling each other fits in the rest."""
    if executor == "torch.distributed":
        from .transport import TorchTransport

        return RankTeam(executor, TorchTransport(0.8 * timeout), timeout, backend)
    from .mpi import MPITransport

    return RankTeam(executor, MPITransport(0.8 * timeout), timeout, backend)

"""How faces travel between neighbours: by reference between threads, through shared memory between processes.

Slabs form a circle. Every rank posts two faces an application, ``down`` to the rank before and ``up`` to the rank
after, and receives ``below`` (the ``up`` of the rank before) and ``above`` (the ``down`` of the rank after).
"""

from __future__ import annotations

import queue
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Protocol

import numpy as np

from lqcd_core.errors import BackendError


class FaceError(BackendError):
    """A face did not come. The message names the rank that should have sent it."""


class Faces(Protocol):
    """The exchange of one rank."""

    def post(self, down: np.ndarray, up: np.ndarray) -> None:
        """Send both faces; returns at once."""

    def receive(self) -> tuple[np.ndarray, np.ndarray]:
        """(below, above), valid until the next but one post.

        Raises
        ------
        FaceError
            If a neighbour failed, or sent nothing within the time-out.
        """

    def abort(self) -> None:
        """Tell the neighbours that no face will come."""


class ThreadFaces:
    """Faces between threads: queues of arrays.

    Parameters
    ----------
    rank, shards
        Whose exchange this is.
    queues
        (receiver, side) -> queue; side is ``below`` or ``above``.
    timeout
        Seconds to wait for a face.
    """

    def __init__(self, rank: int, shards: int, queues: dict[tuple[int, str], queue.SimpleQueue], timeout: float):
        self.before, self.after = (rank - 1) % shards, (rank + 1) % shards
        self.outgoing = (queues[self.before, "above"], queues[self.after, "below"])
        self.incoming = ((queues[rank, "below"], self.before), (queues[rank, "above"], self.after))
        self.timeout = timeout

    def post(self, down: np.ndarray, up: np.ndarray) -> None:
        for line, face in zip(self.outgoing, (down, up), strict=True):
            line.put(face)

    def receive(self) -> tuple[np.ndarray, np.ndarray]:
        below, above = (self._get(*source) for source in self.incoming)
        return below, above

    def _get(self, line: queue.SimpleQueue, sender: int) -> np.ndarray:
        try:
            face = line.get(timeout=self.timeout)
        except queue.Empty:
            raise FaceError(f"no face from rank {sender} within {self.timeout:g} s") from None
        if face is None:
            raise FaceError(f"rank {sender} failed before it sent its face")
        return face

    def abort(self) -> None:
        for line in self.outgoing:
            line.put(None)


class SharedFaces:
    """Faces between processes: each rank writes into its own shared segment and rings a pipe.

    A segment holds two faces twice: what is read now and what is written next. A rank that writes its face of step k + 2
    has received the neighbour's of step k + 1, so the neighbour has finished reading step k: no lock is needed, and the
    pipe orders the memory.

    Parameters
    ----------
    rank, shards
        Whose exchange this is.
    outgoing
        Pipes that ring the rank before and the rank after.
    incoming
        Pipes rung by the rank before and the rank after.
    timeout
        Seconds to wait for a face.
    """

    def __init__(
        self, rank: int, shards: int, outgoing: tuple[Connection, Connection],
        incoming: tuple[Connection, Connection], timeout: float,
    ):  # fmt: skip
        self.rank, self.before, self.after = rank, (rank - 1) % shards, (rank + 1) % shards
        self.outgoing, self.incoming, self.timeout = outgoing, incoming, timeout
        self.segments: dict[int, SharedMemory] = {}
        self.capacity, self.step = 0, 0

    def attach(self, names: list[str], capacity: int) -> None:
        """Use these segments, one a rank, of four faces of ``capacity`` bytes each."""
        self.close()
        self.segments = {r: SharedMemory(names[r]) for r in {self.rank, self.before, self.after}}
        self.capacity = capacity

    def close(self) -> None:
        """Let go of the segments; whoever made them removes them."""
        for segment in self.segments.values():
            try:
                segment.close()
            except BufferError:  # an array of a face is still alive somewhere: it goes with its owner
                pass
        self.segments = {}

    def _place(self, rank: int, side: int, shape, dtype) -> np.ndarray:
        offset = (2 * (self.step % 2) + side) * self.capacity
        return np.ndarray(shape, dtype, buffer=self.segments[rank].buf, offset=offset)

    def post(self, down: np.ndarray, up: np.ndarray) -> None:
        for side, (line, face) in enumerate(zip(self.outgoing, (down, up), strict=True)):
            if face.nbytes > self.capacity:
                raise FaceError(f"a face of {face.nbytes} bytes does not fit the segment of {self.capacity}")
            self._place(self.rank, side, face.shape, face.dtype)[...] = face
            try:
                line.send((face.shape, face.dtype.str))
            except OSError:
                raise FaceError(f"rank {(self.before, self.after)[side]} is gone") from None

    def receive(self) -> tuple[np.ndarray, np.ndarray]:
        # What the rank before sends up is our below: its side 1; what the rank after sends down is its side 0.
        below = self._get(self.incoming[0], self.before, 1)
        above = self._get(self.incoming[1], self.after, 0)
        self.step += 1
        return below, above

    def _get(self, line: Connection, sender: int, side: int) -> np.ndarray:
        try:
            if not line.poll(self.timeout):
                raise FaceError(f"no face from rank {sender} within {self.timeout:g} s")
            said = line.recv()
        except (EOFError, OSError):
            raise FaceError(f"rank {sender} is gone") from None
        if said is None:
            raise FaceError(f"rank {sender} failed before it sent its face")
        return self._place(sender, side, *said)

    def abort(self) -> None:
        for line in self.outgoing:
            try:
                line.send(None)
            except OSError:
                pass

"""The transport over MPI (mpi4py), for clusters that schedule with it. The communicator is a copy of the world's.

MPI knows no time-out: every wait here polls, and gives up. A rank that failed cannot finalize MPI while others wait, so
at the end of its script, after the error was printed, it aborts the job; the launcher then ends all ranks.
"""

from __future__ import annotations

import atexit
import time
from typing import Any

import numpy as np

from lqcd_core.errors import BackendUnavailable

from .transport import TransportError, neighbours

NOTICE = 9
"""Tag of notices."""


def _mpi():
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            f"needs mpi4py and an MPI library for executor='mpi' (pip install mpi4py): {error}."
        ) from None
    return MPI


def world_size() -> int:
    """Ranks of this launch."""
    return _mpi().COMM_WORLD.Get_size()


class MPITransport:
    """See the module and :class:`~.transport.Transport`.

    Parameters
    ----------
    timeout
        Seconds that any wait may take.

    Raises
    ------
    BackendUnavailable
        If mpi4py or the MPI library is missing.
    """

    def __init__(self, timeout: float):
        self.MPI, self.timeout = _mpi(), timeout
        self.comm = self.MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.closed, self.failed = False, False
        self.sent: list[Any] = []
        self.told: dict[int, tuple[str, str]] = {}

    def start_faces(self, down: np.ndarray, up: np.ndarray) -> Any:
        before, after = neighbours(self.rank, self.size)
        down, up = (np.ascontiguousarray(face) for face in (down, up))
        below, above = np.empty_like(up), np.empty_like(down)
        byte = self.MPI.BYTE
        flat = [a.reshape(-1).view(np.uint8) for a in (above, below, down, up)]
        requests = [
            self.comm.Irecv([flat[0], byte], after, 0), self.comm.Irecv([flat[1], byte], before, 1),
            self.comm.Isend([flat[2], byte], before, 0), self.comm.Isend([flat[3], byte], after, 1),
        ]  # fmt: skip
        return requests, (after, before, before, after), flat, (below, above)

    def finish_faces(self, token: Any) -> tuple[np.ndarray, np.ndarray]:
        requests, peers, _flat, got = token
        self._wait(requests, "face", peers)
        return got

    def gather(self, packet: np.ndarray) -> np.ndarray:
        out = np.empty((self.size, packet.size), np.uint8)
        request = self.comm.Iallgather([packet, self.MPI.BYTE], [out, self.MPI.BYTE])
        self._wait([request], "packet", None)
        return out

    def _wait(self, requests: list, what: str, peers: tuple[int, ...] | None) -> None:
        end, pause = time.monotonic() + self.timeout, 0.0
        while not self.MPI.Request.Testall(requests):
            told = self._heard()
            if told:
                raise TransportError(f"no {what}: " + "; ".join(f"rank {k}: {text}" for k, (_, text) in told.items()))
            if time.monotonic() > end:
                late = ["every rank"]
                if peers is not None:
                    late = sorted({f"rank {k}" for k, r in zip(peers, requests, strict=True) if not r.Test()})
                raise TransportError(f"no {what} from {' and '.join(late)} within {self.timeout:g} s")
            time.sleep(pause)  # first only yields, so that a short wait stays short
            pause = min(1e-3, pause + 1e-6)

    # -- when something fails -----------------------------------------------------------------------------------------

    def notify(self, kind: str, text: str) -> None:
        self._must_abort()
        for rank in range(self.size):
            if rank != self.rank:  # never waited for: who does not listen must not hold us
                self.sent.append(self.comm.isend((self.rank, kind, text), rank, NOTICE))

    def notices(self, seconds: float) -> dict[int, tuple[str, str]]:
        end = time.monotonic() + seconds
        while len(self._heard()) < self.size - 1 and time.monotonic() < end:
            time.sleep(0.01)
        return dict(self._heard())

    def _heard(self) -> dict[int, tuple[str, str]]:
        while self.comm.iprobe(tag=NOTICE):
            rank, kind, text = self.comm.recv(tag=NOTICE)
            self.told[rank] = (kind, text)
        return self.told

    def _must_abort(self) -> None:
        if not self.failed:
            self.failed = True
            atexit.register(self.MPI.COMM_WORLD.Abort, 1)

    def close(self) -> None:
        self.closed = True

"""What ranks that run the same script need of each other, and how ``torch.distributed`` gives it.

A transport moves bytes: faces to both neighbours on the circle, and equal-sized packets from every rank to all. It
knows nothing of lattices. Its waits end: with what was asked for, or with :class:`TransportError` after ``timeout``.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from lqcd_core.errors import BackendError, BackendUnavailable

START = 120.0
"""Seconds that ranks may take to find each other."""
LATE = 5.0
"""Seconds that the end of a script waits for threads that hang in a connection."""
SEEN, CAUSE = "seen", "cause"
"""Kinds of notice: what a rank noticed of another, and what went wrong in itself."""


class TransportError(BackendError):
    """Another rank did not answer, or is gone."""


class Transport(Protocol):
    """The connection of one rank to all. ``rank`` counts from 0 to ``size`` - 1."""

    rank: int
    size: int

    def start_faces(self, down: np.ndarray, up: np.ndarray) -> Any:
        """Begin to send ``down`` to the rank before and ``up`` to the rank after; returns at once, with a token."""

    def finish_faces(self, token: Any) -> tuple[np.ndarray, np.ndarray]:
        """(below, above): the ``up`` of the rank before and the ``down`` of the rank after.

        Raises
        ------
        TransportError
            If one does not come in time; the message names the rank.
        """

    def gather(self, packet: np.ndarray) -> np.ndarray:
        """Bytes ``(n,)`` of every rank as ``(size, n)``, on every rank; n is equal on all."""

    def notify(self, kind: str, text: str) -> None:
        """Leave a notice for the others, by a way that does not need them to listen; failing is allowed."""

    def notices(self, seconds: float) -> dict[int, tuple[str, str]]:
        """Notices (kind, text) by rank; waits so long for those still missing."""

    def close(self) -> None:
        """Cut the connections, so that whoever waits for this rank learns it at once."""


def neighbours(rank: int, size: int) -> tuple[int, int]:
    """The ranks before and after on the circle."""
    return (rank - 1) % size, (rank + 1) % size


class TorchTransport:
    """Over ``torch.distributed``: the process group that is there, or gloo by the environment that ``torchrun`` sets.

    Parameters
    ----------
    timeout
        Seconds that any wait may take.

    Raises
    ------
    BackendUnavailable
        If torch is missing, or the ranks do not meet.
    """

    _numbers = itertools.count()

    def __init__(self, timeout: float):
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise BackendUnavailable(f"needs torch for executor='torch.distributed': {error}.") from None
        if not dist.is_available():
            raise BackendUnavailable("cannot use executor='torch.distributed': this torch was built without it.")
        self.torch, self.dist, self.timeout = torch, dist, timedelta(seconds=timeout)
        try:
            self.store = self._store(dist, max(START, timeout))
            # A group of its own: its time-out is ours, and closing it leaves the user's group alone.
            self.group = dist.new_group(timeout=self.timeout)
        except (RuntimeError, ValueError) as error:
            raise BackendUnavailable(f"could not meet the other ranks of torch.distributed: {_brief(error)}") from None
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.prefix = f"lqcd_sharded/{next(self._numbers)}"
        cuda = dist.get_backend(self.group) == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")

    @staticmethod
    def _store(dist, seconds: float):
        if dist.is_initialized():
            own = getattr(dist.distributed_c10d, "_get_default_store", None)
            return own() if own is not None else None
        missing = [k for k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if k not in os.environ]
        if missing:
            raise BackendUnavailable(
                f"cannot use executor='torch.distributed': {', '.join(missing)} missing from the environment; start "
                "the script by torchrun, or call torch.distributed.init_process_group first."
            )
        store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=seconds)))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))
        return store

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _tensor(self, array: np.ndarray):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self.torch.from_numpy(flat).to(self.device)

    def start_faces(self, down: np.ndarray, up: np.ndarray) -> Any:
        dist, before_after = self.dist, neighbours(self.rank, self.size)
        before, after = before_after
        sent = self._tensor(down), self._tensor(up)
        above, below = (self.torch.empty_like(t) for t in sent)
        # With two ranks both faces go to the same one. Tags tell them apart, or the order where there are no tags:
        # the down face is sent first and received first.
        operations = [
            dist.P2POp(dist.isend, sent[0], before, self.group, 0), dist.P2POp(dist.isend, sent[1], after, self.group, 1),
            dist.P2POp(dist.irecv, above, after, self.group, 0), dist.P2POp(dist.irecv, below, before, self.group, 1),
        ]  # fmt: skip
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise TransportError(
                f"faces could not be sent to rank {before} and rank {after}: {_brief(error)}"
            ) from None
        peers = [before, after, after, before] if len(works) == 4 else [after] * len(works)
        return works, peers, sent, (below, above), (up, down)

    def finish_faces(self, token: Any) -> tuple[np.ndarray, np.ndarray]:
        works, peers, _sent, got, like = token
        for k in (2, 3, 0, 1) if len(works) == 4 else range(len(works)):
            try:
                works[k].wait(self.timeout)
            except RuntimeError as error:
                raise TransportError(_why("face", peers[k], self.timeout.total_seconds(), error)) from None
        below, above = (t.cpu().numpy().view(face.dtype).reshape(face.shape) for t, face in zip(got, like, strict=True))
        return below, above

    def gather(self, packet: np.ndarray) -> np.ndarray:
        mine = self._tensor(packet)
        rows = [self.torch.empty_like(mine) for _ in range(self.size)]
        try:
            self.dist.all_gather(rows, mine, group=self.group)
        except RuntimeError as error:
            raise TransportError(_why("packet", None, self.timeout.total_seconds(), error)) from None
        return np.stack([row.cpu().numpy() for row in rows])

    # -- when something fails -----------------------------------------------------------------------------------------

    def notify(self, kind: str, text: str) -> None:
        if self.store is not None:
            _bounded(lambda: self.store.set(f"{self.prefix}/{self.rank}", f"{kind}:{text}"), 1.0)

    def notices(self, seconds: float) -> dict[int, tuple[str, str]]:
        out: dict[int, tuple[str, str]] = {}
        if self.store is None:
            return out

        def look() -> None:
            end = time.monotonic() + seconds
            while True:
                for rank in range(self.size):
                    key = f"{self.prefix}/{rank}"
                    if rank not in out and self.store.check([key]):
                        kind, _, text = self.store.get(key).decode().partition(":")
                        out[rank] = (kind, text)
                if len(out) == self.size or time.monotonic() > end:
                    return
                time.sleep(0.05)

        _bounded(look, seconds + 0.5)
        return dict(out)

    def close(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            _bounded(lambda: self.dist.destroy_process_group(group), 1.0)


def _bounded(function: Callable[[], Any], seconds: float) -> None:
    """Run it, but do not wait longer: a store behind a cut link answers late or never. Errors mean no answer."""

    def run() -> None:
        try:
            function()
        except Exception:  # the store, or who kept it, is gone: there is nobody to tell
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _LATE.append(thread)


_LATE: list[threading.Thread] = []
"""Threads inside torch that were not waited for."""


@atexit.register
def _wait_for_late() -> None:
    """Python ends a thread that comes back from C++ after its end by unwinding, on which C++ aborts: let them come back first."""
    end = time.monotonic() + LATE
    for thread in _LATE:
        thread.join(max(0.0, end - time.monotonic()))


def _why(what: str, rank: int | None, seconds: float, error: Exception) -> str:
    """What a failed wait means, from the words of torch."""
    who = "every rank" if rank is None else f"rank {rank}"
    text = str(error).lower()
    if "timed out" in text or "timeout" in text:
        return f"no {what} from {who} within {seconds:g} s"
    if "closed" in text or "reset" in text or "broken pipe" in text:
        return f"no {what} from {who}: a connection was closed"
    return f"no {what} from {who}: {_brief(error)}"


def _brief(error: Exception) -> str:
    """The last line of a message: torch puts files and frames before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]

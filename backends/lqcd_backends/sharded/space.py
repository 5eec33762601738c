"""Vectors of a sharded lattice: a handle is a number under which every worker holds its slab of the columns."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import attrs
import numpy as np

from lqcd_core.backend import Handle
from lqcd_core.errors import BackendError
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision
from lqcd_core.spaces import check_batch, exact_sum

from .team import Each, Remote, Team


class ShardedHandle:
    """A batch of spinors held by the workers. Consumed handles say so when used again."""

    __slots__ = ("columns", "remote", "tainted")

    def __init__(self, remote: Remote, columns: int, tainted: bool = False):
        self.remote, self.columns = remote, columns
        self.tainted = tainted  # a NaN was put in by the caller: one that comes out is no worker's fault

    def number(self, team: Team) -> int:
        """The number the workers know it by."""
        if self.remote.team is not team:
            raise BackendError("a handle of another team of workers was given; bind both operators with equal options.")
        if not self.remote.number:
            raise BackendError("a handle was used after an operation consumed it.")
        return self.remote.number

    def consume(self, team: Team) -> int:
        """The number, given up: the command that gets it takes the object."""
        number, self.remote.number = self.number(team), 0
        return number

    def __repr__(self) -> str:
        return f"<sharded handle of {self.columns} columns>"


class ShardedSpace:
    """See the module. Optional operations exist where the inner space has them.

    With exact reductions every norm and inner product is the correctly rounded sum of the time slices' own sums, which
    are the inner backend's: the bits do not depend on the number of shards. With fast ones each shard sends one number.
    """

    def __init__(
        self, team: Team, slabs: list[tuple[int, int]], geometry: LatticeGeometry, precision: Precision, n_rhs: int,
        parity, exact: bool,
    ):  # fmt: skip
        if parity is not FULL:
            geometry._need_parity()
        self.team, self.slabs, self.exact = team, slabs, exact
        self.geometry, self.precision, self.n_rhs, self.parity = geometry, precision, n_rhs, parity
        self.remote = team.new()
        pieces = [attrs.evolve(geometry, T=stop - start) for start, stop in slabs]
        said = team.call("space", self.remote.number, Each(pieces), precision, n_rhs, parity)[0]
        self.resizable = said["resizable"]
        if self.resizable:
            self.take, self.put = self._take, self._put
        if said["converts"]:
            self.convert_from = self._convert_from
        if exact:
            self.inner_slices = self._inner_slices

    # -- between host and workers -------------------------------------------------------------------------------------

    def pack(self, array) -> Handle:
        array = np.asarray(array)
        check_batch(self, array.shape)
        if self.team.compares:
            self.team.agree(
                "the spinors given", {"columns": len(array), "numbers": str(array.dtype), "checksum": _checksum(array)}
            )
        tainted = not _finite(array)
        return self._make("pack", len(array), tainted, Each([array[:, a:b] for a, b in self.slabs]))

    def unpack(self, handle: Handle) -> np.ndarray:
        shape = self.geometry.parity_shape(self.parity)
        slice_bytes = handle.columns * int(np.prod(shape[1:])) * self.precision.complex_dtype.itemsize
        sizes = [(b - a) * slice_bytes for a, b in self.slabs]
        parts = self.team.call("unpack", self.remote.number, handle.number(self.team), reply_bytes=sizes)
        return np.concatenate(parts, axis=1)

    # -- vectors ------------------------------------------------------------------------------------------------------

    def zeros(self) -> Handle:
        return self._make("zeros", self.n_rhs, False)

    def copy(self, x: Handle) -> Handle:
        return self._make("copy", x.columns, x.tainted, x.number(self.team))

    def gamma5(self, x: Handle) -> Handle:
        return self._make("gamma5", x.columns, x.tainted, x.number(self.team))

    def axpy(self, a, x: Handle, y: Handle) -> Handle:
        return self._make("axpy", x.columns, _tainted(a, x, y), _scalars(a), x.number(self.team), y.consume(self.team))

    def scale(self, a, x: Handle) -> Handle:
        return self._make("scale", x.columns, _tainted(a, x), _scalars(a), x.consume(self.team))

    def xpay(self, x: Handle, a, y: Handle) -> Handle:
        return self._make("xpay", x.columns, _tainted(a, x, y), x.number(self.team), _scalars(a), y.consume(self.team))

    def _take(self, x: Handle, columns: Sequence[int]) -> Handle:
        columns = [int(c) for c in columns]
        return self._make("take", len(columns), x.tainted, x.number(self.team), columns)

    def _put(self, x: Handle, columns: Sequence[int], part: Handle) -> Handle:
        columns = [int(c) for c in columns]
        # x is consumed last: a refused argument must not cost the caller its handle.
        part_number = part.number(self.team)
        return self._make("put", x.columns, x.tainted or part.tainted, x.consume(self.team), columns, part_number)

    def _convert_from(self, handle: Handle, source) -> Handle | None:
        same = isinstance(source, ShardedSpace) and source.team is self.team
        if not same or source.geometry != self.geometry or source.parity != self.parity:
            return None
        new = self.team.new()
        done = self.team.call("convert", self.remote.number, new.number, handle.number(self.team), source.remote.number)
        return ShardedHandle(new, handle.columns, handle.tainted) if all(done) else None

    def _make(self, command: str, columns: int, tainted: bool, *arguments) -> ShardedHandle:
        new = self.team.new()
        self.team.call(command, self.remote.number, new.number, *arguments)
        return ShardedHandle(new, columns, tainted)

    # -- reductions ---------------------------------------------------------------------------------------------------

    def inner(self, x: Handle, y: Handle) -> np.ndarray:
        return self._sum(self._parts(x, y))

    def norm2(self, x: Handle) -> np.ndarray:
        return self._sum(self._parts(x, x)).real.copy()

    def axpy_norm2(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        new, tainted = self.team.new(), _tainted(a, x, y)
        parts = self.team.call(
            "axpy_norm2", self.remote.number, self.exact, new.number, _scalars(a), x.number(self.team),
            y.consume(self.team),
        )  # fmt: skip
        return ShardedHandle(new, x.columns, tainted), self._sum(self._checked(parts, tainted)).real.copy()

    def cg_update(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        team, new_x, new_r, tainted = self.team, self.team.new(), self.team.new(), _tainted(a, p, ap, x, r)
        parts = team.call(
            "cg_update", self.remote.number, self.exact, new_x.number, new_r.number, _scalars(a), p.number(team),
            ap.number(team), x.consume(team), r.consume(team),
        )  # fmt: skip
        new = ShardedHandle(new_x, p.columns, tainted), ShardedHandle(new_r, p.columns, tainted)
        return *new, self._sum(self._checked(parts, tainted)).real.copy()

    def _inner_slices(self, x: Handle, y: Handle) -> np.ndarray:
        return np.concatenate(self._parts(x, y), axis=1)

    def _parts(self, x: Handle, y: Handle) -> list[np.ndarray]:
        parts = self.team.call("inner", self.remote.number, self.exact, x.number(self.team), y.number(self.team))
        return self._checked(parts, x.tainted or y.tainted)

    def _checked(self, parts: list[np.ndarray], tainted: bool) -> list[np.ndarray]:
        # Infinities pass: they are what overflow and divergence give on every backend, and the solver's to judge. So
        # does everything in half, whose 16 bits overflow early.
        if not tainted and self.precision.name != "half" and any(np.isnan(part).any() for part in parts):
            self.team.stop_for_nan()
        return parts

    def _sum(self, parts: list[np.ndarray]) -> np.ndarray:
        together = np.concatenate(parts, axis=1)
        return exact_sum(together) if self.exact else together.sum(axis=1).astype(np.complex128)


def _scalars(a):
    """A number or an array that another process can read."""
    return a if isinstance(a, (int, float, complex)) else np.asarray(a)


def _finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all())


def _checksum(array: np.ndarray) -> str:
    """CRC-32 of the bytes, time slice by time slice: a view of some columns is not copied whole."""
    out = 0
    for column in array:
        for part in column:
            out = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8), out)
    return f"{out:08x}"


def _tainted(a, *handles: ShardedHandle) -> bool:
    """Whether a result may hold a NaN that the caller put in."""
    return any(h.tainted for h in handles) or not _finite(np.asarray(a))

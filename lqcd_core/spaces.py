r"""Spaces the core brings: :class:`ArraySpace` for any array library, :class:`MaskedSpace` for parities on a backend
that has only the full lattice, and :class:`Vectors`, the complete set of vector operations that solvers see.

:class:`Vectors` is where the derived paths live: a backend's Space has seven operations, a solver uses more, and each
of those is the backend's own where it has one (``SupportsFusedBLAS``, ``SupportsSlices``, ...) and derived where not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .backend import Handle, SiteDiagonal, Space, SupportsColumns, SupportsConversion, SupportsFusedBLAS, SupportsSlices
from .errors import FieldShapeError, ParameterError
from .fields import from_storage, to_storage
from .geometry import FULL, LatticeGeometry
from .precision import Precision


def check_batch(space: Space, shape) -> None:
    """Raise :class:`FieldShapeError` unless ``shape`` is a batch that fits the space. For use in ``pack``."""
    want = space.geometry.parity_shape(space.parity)
    n = shape[0] if len(shape) == 7 else None
    fits = len(shape) == 7 and tuple(shape[1:]) == want and (n == space.n_rhs or (space.resizable and 1 <= n))
    if not fits:
        batch = "1 <= n" if space.resizable else f"n = {space.n_rhs}"
        raise FieldShapeError(
            f"cannot pack an array of shape {tuple(shape)}: this space holds (n, T, Z, Y, X, Ns, Nc) = "
            f"(n, {', '.join(map(str, want))}) with {batch}."
        )


class ArraySpace:
    """A ready Space over an array-API library: handles are site-last arrays ``(n, Ns, Nc, T, Z, Y, X)``.

    Site-last because the innermost axis is then long: colour algebra becomes a few long multiply-adds instead of
    many 3x3 products. ``half`` and ``bf16`` keep the same numbers as real pairs ``(n, Ns, Nc, T, Z, Y, X, 2)`` in
    16-bit storage; :meth:`load` and :meth:`store` convert, so an operator is written once in complex numbers.

    Parameters
    ----------
    xp
        Array-API namespace (numpy, array_api_strict, ...). 16-bit storage needs NumPy.
    geometry, precision, n_rhs, parity
        What the space holds.
    """

    resizable = True

    def __init__(self, xp: ModuleType, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL):
        if precision.is_split and xp is not np:
            raise ParameterError(f"ArraySpace stores {precision} with numpy only, not with {xp.__name__}.")
        if parity is not FULL:
            geometry._need_parity()
        self.xp, self.geometry, self.precision = xp, geometry, precision
        self.n_rhs, self.parity = n_rhs, parity
        self._dtype = getattr(xp, precision.complex_dtype.name)
        self._site = tuple(geometry.parity_shape(parity)[:4])

    # -- storage ------------------------------------------------------------------------------------------------------

    def load(self, handle: Handle) -> Any:
        """The complex array ``(n, Ns, Nc, T, Z, Y, X)`` that a handle stands for."""
        return from_storage(handle, self.precision)

    def store(self, array: Any) -> Handle:
        """The handle of a complex array, rounded to the storage."""
        return to_storage(array, self.precision) if self.precision.is_split else array

    # -- the seven ----------------------------------------------------------------------------------------------------

    def pack(self, array) -> Handle:
        array = np.asarray(array)
        check_batch(self, array.shape)
        site_last = np.ascontiguousarray(np.moveaxis(array, (5, 6), (1, 2)), dtype=self.precision.complex_dtype)
        if site_last is array or site_last.base is array or np.shares_memory(site_last, array):
            site_last = site_last.copy()
        return self.store(site_last if self.xp is np else self.xp.asarray(site_last))

    def unpack(self, handle: Handle) -> np.ndarray:
        array = np.asarray(self.load(handle))
        return np.ascontiguousarray(np.moveaxis(array, (1, 2), (5, 6)))

    def zeros(self) -> Handle:
        shape = (self.n_rhs, 4, self.geometry.nc, *self._site)
        if self.precision.is_split:
            return np.zeros((*shape, 2), self.precision.storage_dtype)
        return self.xp.zeros(shape, dtype=self._dtype)

    def axpy(self, a, x: Handle, y: Handle) -> Handle:
        if self.precision.is_split:
            return self.store(self.load(y) + self._scalar(a) * self.load(x))
        y += self._scalar(a) * x
        return y

    def inner(self, x: Handle, y: Handle) -> np.ndarray:
        return self._sum(self._slices(x, y))

    def norm2(self, x: Handle) -> np.ndarray:
        return self.inner(x, x).real.copy()

    def gamma5(self, x: Handle) -> Handle:
        full = self.load(x)
        out = self.xp.concat((full[:, :2, ...], -full[:, 2:, ...]), axis=1)
        return self.store(out)

    # -- optional -----------------------------------------------------------------------------------------------------

    def inner_slices(self, x: Handle, y: Handle) -> np.ndarray:
        return self._slices(x, y)

    def take(self, x: Handle, columns: Sequence[int]) -> Handle:
        return self.xp.take(x, self.xp.asarray(list(columns), dtype=self.xp.int64), axis=0)

    def put(self, x: Handle, columns: Sequence[int], part: Handle) -> Handle:
        for k, column in enumerate(columns):
            x[column, ...] = part[k, ...]
        return x

    def convert_from(self, handle: Handle, source: Space) -> Handle | None:
        if not isinstance(source, ArraySpace) or source.xp is not self.xp or source.parity != self.parity:
            return None
        wide = source.load(handle)
        return self.store(self.xp.astype(wide, self._dtype, copy=True))

    def copy(self, x: Handle) -> Handle:
        return self.xp.asarray(x, copy=True)

    def scale(self, a, x: Handle) -> Handle:
        if self.precision.is_split:
            return self.store(self._scalar(a) * self.load(x))
        x *= self._scalar(a)
        return x

    def site_diagonal(self, term: SiteDiagonal):
        """The function x -> A x for a backend's SupportsSiteDiagonal; blocks are kept site-last in working precision."""
        xp, nc = self.xp, self.geometry.nc
        twist, blocks = term.twist, None
        if term.blocks is not None:
            blocks = np.ascontiguousarray(np.moveaxis(np.asarray(term.full_blocks()), (4, 5, 6), (0, 1, 2)))
            blocks = xp.asarray(blocks.astype(self.precision.complex_dtype))
        else:
            signs = np.array([1, 1, -1, -1]).reshape(1, 4, 1, 1, 1, 1, 1)
            factor = xp.asarray((term.scalar + 1j * twist * signs).astype(self.precision.complex_dtype))

        def apply(x: Handle) -> Handle:
            full = self.load(x)
            if blocks is None:
                return self.store(factor * full)
            shape = full.shape
            v = xp.reshape(full, (shape[0], 2, 2 * nc, *shape[3:]))
            out = xp.zeros(v.shape, dtype=v.dtype)
            for i in range(2 * nc):
                for j in range(2 * nc):
                    out[:, :, i, ...] += blocks[:, i, j, ...] * v[:, :, j, ...]
            return self.store(xp.reshape(out, shape))

        return apply

    def _scalar(self, a):
        """A number, or one per column, as an array that broadcasts over a handle without changing its type."""
        a = np.asarray(a).astype(self.precision.complex_dtype)
        return self.xp.asarray(a.reshape(a.shape + (1,) * 6) if a.ndim else a)

    def _slices(self, x, y) -> np.ndarray:
        # Time slice by time slice in double: complex64 dot products over a whole lattice lose 3 to 5 digits.
        x, y = self.load(x), self.load(y)
        out = np.empty((x.shape[0], self._site[0]), np.complex128)
        wide = self.xp.complex128
        for t in range(self._site[0]):
            a, b = (self.xp.astype(v[:, :, :, t, ...], wide) for v in (x, y))
            out[:, t] = np.asarray(self.xp.sum(self.xp.conj(a) * b, axis=(1, 2, 3, 4, 5)))
        return out

    @staticmethod
    def _sum(slices: np.ndarray) -> np.ndarray:
        return exact_sum(slices)


def exact_sum(slices: np.ndarray) -> np.ndarray:
    """The correctly rounded sum over the last axis, real and imaginary parts apart (``math.fsum``).

    Independent of the order of the terms, so the number of slices a worker holds does not change the bits.
    """
    if not np.isfinite(slices).all():
        return slices.sum(axis=-1)  # fsum raises on inf - inf; NaN must pass through
    return np.array([complex(math.fsum(row.real), math.fsum(row.imag)) for row in slices])


def of_all_slices(space: Space, numbers: np.ndarray) -> np.ndarray:
    """Numbers ``(n, slices)``, one a column and time slice of a host batch, for all time slices of the lattice.

    They are all there, except on a space that takes and gives some time slices only, the others being another rank's: such
    a space has a method of this name that collects them. (It is an executor's view of its space, never a backend's.)
    """
    collect = getattr(space, "of_all_slices", None)
    return numbers if collect is None else collect(numbers)


class MaskedSpace:
    """One parity as vectors on the full lattice that are zero on the other parity.

    H maps such a vector exactly onto the other parity (zero times a link is zero), and A keeps it, so even-odd needs
    no operation that a backend would have to add: the mask is applied at pack and unpack alone. It costs twice the
    memory and the flops of a backend that has SupportsEvenOdd.
    """

    def __init__(self, full: Space, parity: int):
        self.full, self.parity = full, parity
        self.geometry, self.precision, self.n_rhs = full.geometry, full.precision, full.n_rhs
        self.resizable = full.resizable
        self.geometry._need_parity()
        self.zeros, self.axpy, self.inner = full.zeros, full.axpy, full.inner
        self.norm2, self.gamma5 = full.norm2, full.gamma5
        for name in (
            "take", "put", "copy", "scale", "xpay", "inner_slices", "axpy_norm2", "cg_update", "of_all_slices",
        ):  # fmt: skip
            if hasattr(full, name):
                setattr(self, name, getattr(full, name))

    def pack(self, array) -> Handle:
        array = np.asarray(array)
        check_batch(self, array.shape)
        halves = (array, None) if self.parity == 0 else (None, array)
        return self.full.pack(self.geometry.join_parity(*halves, lead=1))

    def unpack(self, handle: Handle) -> np.ndarray:
        return self.geometry.split_parity(self.full.unpack(handle), self.parity, lead=1)

    def convert_from(self, handle: Handle, source: Space) -> Handle | None:
        if isinstance(source, MaskedSpace) and isinstance(self.full, SupportsConversion):
            return self.full.convert_from(handle, source.full)
        return None


class Vectors:
    """The vector operations a solver uses, over any Space: the backend's own where it has them, else derived.

    All obey the rule of :mod:`lqcd_core.backend`: x is never changed, y is consumed. ``n`` is the number of columns
    that handles have here; :meth:`narrow` gives the same operations for fewer.
    """

    def __init__(self, space: Space, n: int | None = None):
        self.space, self.n = space, space.n_rhs if n is None else n
        self.precision, self.geometry = space.precision, space.geometry
        self.pack, self.unpack = space.pack, space.unpack
        self.axpy, self.gamma5 = space.axpy, space.gamma5
        self.inner, self.norm2 = space.inner, space.norm2
        if isinstance(space, SupportsSlices):
            self.inner, self.norm2 = self._exact_inner, self._exact_norm2
        if isinstance(space, SupportsFusedBLAS):
            self.axpy_norm2, self.cg_update = space.axpy_norm2, space.cg_update
        self.resizable = space.resizable and isinstance(space, SupportsColumns)
        if self.resizable:
            self.take, self.put = space.take, space.put

    def narrow(self, n: int) -> Vectors:
        """The same operations for handles of n columns (only on a resizable space)."""
        if n != self.n and not self.resizable:
            raise ParameterError(f"a static space holds exactly {self.n} columns; asked for {n}.")
        return Vectors(self.space, n)

    def _exact_inner(self, x, y) -> np.ndarray:
        return exact_sum(self.space.inner_slices(x, y))

    def _exact_norm2(self, x) -> np.ndarray:
        return exact_sum(self.space.inner_slices(x, x)).real.copy()

    def zeros(self) -> Handle:
        """A new handle of n zero columns."""
        z = self.space.zeros()
        return z if self.n == self.space.n_rhs else self._resize_zeros(z)

    def _resize_zeros(self, z: Handle) -> Handle:
        # Any column of zeros will do: n may be smaller or larger than the space was made for.
        return self.space.take(z, [0] * self.n)

    def copy(self, x: Handle) -> Handle:
        """A new handle equal to x."""
        own = getattr(self.space, "copy", None)
        if own is not None:
            return own(x)
        # zeros() has n_rhs columns; gamma5 squared is a copy for any number of them.
        return self.gamma5(self.gamma5(x)) if self.space.resizable else self.axpy(1.0, x, self.zeros())

    def scale(self, a, x: Handle) -> Handle:
        """a x; consumes x."""
        own = getattr(self.space, "scale", None)
        if own is not None:
            return own(a, x)
        return self.axpy(a, x, self.axpy(-1.0, x, self.copy(x)) if self.space.resizable else self.zeros())

    def xpay(self, x: Handle, a, y: Handle) -> Handle:
        """x + a y; consumes y."""
        own = getattr(self.space, "xpay", None)
        return own(x, a, y) if own is not None else self.axpy(a, y, self.copy(x))

    def axpy_norm2(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        """(y + a x, its norm2); consumes y."""
        y = self.axpy(a, x, y)
        return y, self.norm2(y)

    def cg_update(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        """(x + a p, r - a Ap, norm2 of the new r); consumes x and r."""
        x = self.axpy(a, p, x)
        r, rr = self.axpy_norm2(-np.asarray(a), ap, r)
        return x, r, rr

    def convert_from(self, handle: Handle, source: Vectors) -> Handle:
        """A new handle here of a handle of another space; through the host where the two know no shorter way."""
        if isinstance(self.space, SupportsConversion):
            direct = self.space.convert_from(handle, source.space)
            if direct is not None:
                return direct
        return self.pack(source.unpack(handle))

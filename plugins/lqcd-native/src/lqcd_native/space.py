"""Where the backend's spinors live: a layout of sites, lanes and columns, and the vector operations on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lqcd_core.backend import Handle, Space
from lqcd_core.errors import ParameterError
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision
from lqcd_core.spaces import check_batch

from . import _native


class NativeSpace:
    """Spinors of one lattice, precision and parity; handles of any number of columns.

    A handle owns one block of memory, so "y is consumed" is an update in place. Columns lie one behind the other (in
    groups where columns fill lanes), each a sequence of vector sites of 24 vectors: spin, colour, re and im.

    Parameters
    ----------
    geometry, precision, n_rhs, parity
        What the space holds.
    layout
        Layout of that lattice, type and parity.
    threads
        Threads of the vector operations, at least 1.
    """

    resizable = True

    def __init__(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int, parity, layout: Any, threads: int):
        self.geometry, self.precision, self.n_rhs, self.parity = geometry, precision, n_rhs, parity
        self.layout, self.threads = layout, threads
        self.algebra = algebra = _native.Algebra(layout, threads)
        self.unpack, self.copy, self.gamma5 = algebra.unpack, algebra.copy, algebra.gamma5
        self.inner, self.norm2, self.inner_slices = algebra.inner, algebra.norm2, algebra.inner_slices

    # The bound kernels above, as the protocol names them; defined here too, so that `isinstance` and readers find them.

    def pack(self, array) -> Handle:
        array = np.asarray(array)
        check_batch(self, array.shape)
        if array.dtype not in (np.complex64, np.complex128):
            array = array.astype(self.precision.complex_dtype)
        return self.algebra.pack(np.ascontiguousarray(array))

    def zeros(self) -> Handle:
        return self.algebra.zeros(self.n_rhs)

    def axpy(self, a, x: Handle, y: Handle) -> Handle:
        self.algebra.axpy(factors(a, x.n), x, y)
        return y

    def xpay(self, x: Handle, a, y: Handle) -> Handle:
        self.algebra.xpay(x, factors(a, x.n), y)
        return y

    def scale(self, a, x: Handle) -> Handle:
        self.algebra.scale(factors(a, x.n), x)
        return x

    def axpy_norm2(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        return y, self.algebra.axpy_norm2(factors(a, x.n), x, y)

    def cg_update(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        return x, r, self.algebra.cg_update(factors(a, p.n), p, ap, x, r)

    def norm2_slices(self, x: Handle) -> np.ndarray:
        return self.algebra.norm2_slices(x)

    def axpy_norm2_slices(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        return y, self.algebra.axpy_norm2_slices(factors(a, x.n), x, y)

    def cg_update_slices(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        return x, r, self.algebra.cg_update_slices(factors(a, p.n), p, ap, x, r)

    def take(self, x: Handle, columns: Sequence[int]) -> Handle:
        return self.algebra.take(x, [int(c) for c in columns])

    def put(self, x: Handle, columns: Sequence[int], part: Handle) -> Handle:
        self.algebra.put(x, [int(c) for c in columns], part)
        return x

    def convert_from(self, handle: Handle, source: Space) -> Handle | None:
        if not isinstance(source, NativeSpace) or source.geometry != self.geometry or source.parity != self.parity:
            return None
        return self.algebra.convert(handle)

    def __repr__(self) -> str:
        where = "full lattice" if self.parity is FULL else f"parity {self.parity}"
        return f"<{self.geometry} in {self.precision}, {where}, {self.layout.describe()}>"


def factors(a, n: int) -> np.ndarray:
    """A number, or one per column, as complex128 of shape (1,) or (n,).

    Raises
    ------
    ParameterError
        For any other shape.
    """
    a = np.asarray(a, np.complex128)
    if a.ndim == 0:
        return a.reshape(1)
    if a.shape != (n,):
        raise ParameterError(f"scalars have shape {a.shape}; a handle of {n} columns takes one number or shape ({n},).")
    return np.ascontiguousarray(a)

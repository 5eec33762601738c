"""Solves on host data: fields and batches through an operator's space, and plain arrays through a plain function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from ..arrays import from_numpy, is_complex, library_of, namespace, raw, to_numpy
from ..errors import FieldShapeError, FieldTypeError, ParameterError
from ..fields import ColorSpinorField
from ..geometry import FULL
from ..operators.linear import LinearOperator
from ..precision import as_precision
from ..spaces import of_all_slices
from .columns import RightHandSide, on_columns
from .solution import Progress, Solution, SolverInfo, first_columns, merge_infos

# --------------------------------------------------------------------------------------------------------------------
# Arrays of any library and shape


class ArrayVectors:
    """Vector operations on plain arrays, one right-hand side; nothing is changed in place, sums run in double."""

    n, resizable, geometry, parity = 1, False, None, FULL

    def __init__(self, like: Any):
        self.xp, self.like = namespace(like), like
        self.real = not is_complex(like)
        self.precision = as_precision(like.dtype)

    def narrow(self, n: int) -> ArrayVectors:
        if n != 1:
            raise ParameterError(f"a function of an array takes one right-hand side at a time, asked for {n}.")
        return self

    def _number(self, a):
        a = complex(np.ravel(a)[0])
        return a.real if self.real or a.imag == 0 else a

    def _wide(self, x):
        return as_dtype(x, "float64" if self.real else "complex128")

    def zeros(self):
        return self.xp.zeros_like(self.like)

    def copy(self, x):
        return x  # no operation writes into an array, so none needs a copy

    def scale(self, a, x):
        return x * self._number(a)

    def axpy(self, a, x, y):
        return y + x * self._number(a)

    def xpay(self, x, a, y):
        return x + y * self._number(a)

    def inner(self, x, y):
        x, y = self._wide(x), self._wide(y)
        return np.array([complex(self.xp.sum((x if self.real else self.xp.conj(x)) * y))])

    def norm2(self, x):
        return self.inner(x, x).real

    def axpy_norm2(self, a, x, y):
        y = self.axpy(a, x, y)
        return y, self.norm2(y)

    def cg_update(self, a, p, ap, x, r):
        x = self.axpy(a, p, x)
        r, rr = self.axpy_norm2(-np.asarray(a), ap, r)
        return x, r, rr

    def convert_from(self, handle, source):
        if self.xp is source.xp:
            return as_dtype(handle, str(self.like.dtype).rpartition(".")[2])
        return from_numpy(np.ascontiguousarray(to_numpy(handle)), self.xp.__name__)


def array_operator(function: Callable, like: Any, name: str = "the function") -> LinearOperator:
    """A function of an array as a :class:`LinearOperator`. Whether it is positive is the caller's word; CG watches."""
    vectors = ArrayVectors(like)

    def apply(x):
        y = function(x)
        y = y.detach() if hasattr(y, "detach") else y
        if tuple(getattr(y, "shape", ())) != tuple(like.shape) or library_of(y) != library_of(like):
            raise FieldShapeError(
                f"the operator must map an array to one of its shape and library; got {type(y).__name__} of shape "
                f"{tuple(getattr(y, 'shape', ()))} for {type(like).__name__} of shape {tuple(like.shape)}."
            )
        if vectors.real and is_complex(y):
            raise FieldTypeError("the operator gives complex numbers for a real source; make the source complex.")
        return y

    return LinearOperator(vectors=vectors, apply=apply, hermitian=True, positive=True, name=name)


def _checked_array(b, what: str):
    if not hasattr(b, "dtype") or not hasattr(b, "shape"):
        raise FieldTypeError(f"{what} must be an array, got {type(b).__name__}.")
    name = str(b.dtype).rpartition(".")[2]
    if name not in ("float64", "float32", "complex128", "complex64"):
        raise FieldTypeError(f"{what} must be float or complex (32 or 64 bits a real number), got {b.dtype}.")
    return b.detach() if hasattr(b, "detach") else b


def solve_arrays(solver, A, b, x0, callback) -> Solution:
    """A x = b for a function (or a square matrix) and one array."""
    field = b if hasattr(b, "geometry") else None
    b = _checked_array(raw(b), "the source")
    if not callable(A):
        if getattr(A, "shape", None) != (*b.shape, *b.shape) or len(b.shape) != 1:
            raise ParameterError(
                "A must be an operator, a function of an array, or a square matrix that fits the source of shape "
                f"{tuple(b.shape)}; got {type(A).__name__} of shape {getattr(A, 'shape', None)}."
            )
        matrix = A

        def A(x):
            return matrix @ x

    if field is not None:
        function, geometry = A, field.geometry

        def A(x):  # a function of fields or of arrays: what comes back is unwrapped
            return raw(function(x))

    largest = float(np.abs(to_numpy(b)).max(initial=0.0))
    # Norms are squared: 1e-200 would be taken for zero.
    unit = float(np.ldexp(1.0, -np.frexp(largest)[1])) if 0 < largest < np.inf and not 1e-100 < largest < 1e100 else 1.0
    b_scaled = b if unit == 1.0 else b * unit
    linear = array_operator(A, b_scaled)
    if x0 is not None:
        x0 = _checked_array(raw(x0), "x0")
        if tuple(x0.shape) != tuple(b.shape) or x0.dtype != b.dtype:
            raise FieldShapeError(
                f"x0 has shape {tuple(x0.shape)} and type {x0.dtype}, the source {tuple(b.shape)} and {b.dtype}."
            )
        x0 = x0 * unit
    inner_function = getattr(solver, "inner_operator", None)
    if callable(inner_function) and not isinstance(inner_function, LinearOperator):
        like = lower_array(b_scaled, as_precision(solver.precision))
        solver = attrs.evolve(solver, inner_operator=array_operator(inner_function, like, "the inner function"))
    x, info = solver.solve_handles(linear, b_scaled, x0, callback)
    xs = x if isinstance(x, list) else [x]
    xs = [v if unit == 1.0 else v * (1.0 / unit) for v in xs]
    if field is not None:
        xs = [ColorSpinorField(geometry, v, parity=field.parity) for v in xs]
    return Solution(xs if isinstance(x, list) else xs[0], info)


def as_dtype(array, name: str):
    """An array in the dtype of this name, by whichever way its library converts."""
    if isinstance(array, (np.ndarray, np.generic)):
        return np.asarray(array, dtype=name)  # arithmetic on 0-d arrays gives scalars, which np.astype refused in 2.0
    xp = namespace(array)
    dtype = getattr(xp, name)
    if hasattr(xp, "astype"):
        return xp.astype(array, dtype, copy=False)
    return array.to(dtype) if hasattr(array, "to") else array.astype(dtype)


def lower_array(array, precision):
    """An array of another precision, real or complex as before."""
    name = precision.complex_dtype.name if is_complex(array) else precision.real_dtype.name
    return as_dtype(array, name)


# --------------------------------------------------------------------------------------------------------------------
# Fields and batches through a space


@attrs.frozen(eq=False)
class HostBatch:
    """A host source as a NumPy batch, and the way back to its kind."""

    batch: np.ndarray
    """``(n, T, Z, Y, X, Ns, Nc)``, complex; the caller's memory where possible."""
    single: bool
    """True if there was no batch axis."""
    library: str
    """Array library of the source."""
    geometry: Any
    """Its lattice if it was a field, else None."""
    parity: int | None
    """Its parity."""

    @classmethod
    def of(cls, b, geometry, parity, precision, what="the source") -> HostBatch:
        """Checked against an operator's lattice, parity and precision.

        Raises
        ------
        FieldShapeError, FieldTypeError
            If it does not fit, or would be lowered in silence.
        """
        field = hasattr(b, "geometry") and hasattr(b, "precision")
        array = raw(b)
        if not hasattr(array, "dtype") or not hasattr(array, "shape"):
            raise FieldTypeError(f"{what} must be a field or an array, got {type(b).__name__}.")
        if field and b.geometry != geometry:
            raise FieldShapeError(f"{what} lives on {b.geometry}, the operator on {geometry}.")
        if field and b.parity != parity:
            names = {FULL: "the full lattice", 0: "even sites", 1: "odd sites"}
            raise FieldShapeError(f"{what} lives on {names[b.parity]}, the operator on {names[parity]}.")
        geometry.check_spinor(array.shape, parity)
        if "complex" not in str(array.dtype):
            raise FieldTypeError(f"{what} must be complex, got {array.dtype}.")
        given = b.precision if field else as_precision(array.dtype)
        if given.bytes_per_real > precision.bytes_per_real > 2:
            raise FieldTypeError(
                f"a {given} source would be lowered to {precision} in silence; bind with precision={given.name!r}, or "
                f"convert it with .to({precision.name!r})."
            )
        single = len(array.shape) == 6
        batch = to_numpy(array)
        return cls(
            batch[None] if single else batch, single, library_of(array), geometry if field else None, parity
        )  # fmt: skip

    def back(self, batch: np.ndarray):
        """A batch as the kind of the source."""
        out = batch[0] if self.single else batch
        if self.geometry is not None:
            return ColorSpinorField(self.geometry, out, parity=self.parity)
        return from_numpy(np.ascontiguousarray(out), self.library)


def host_units(space, batch: np.ndarray) -> np.ndarray:
    """A power of two per column that brings sources of unusual size to order 1 before they are packed; 1 for others."""
    precision = space.precision
    slices = np.array([[np.abs(part).max(initial=0.0) for part in column] for column in batch])
    largest = of_all_slices(space, slices).max(axis=1)
    usual = (1e-3, 1e3) if precision.bytes_per_real == 2 else (1e-10, 1e10)
    strange = (largest > 0) & np.isfinite(largest) & ~((largest > usual[0]) & (largest < usual[1]))
    return np.where(strange, np.ldexp(1.0, -np.frexp(np.where(strange, largest, 1.0))[1]), 1.0)


def scaled(batch: np.ndarray, units: np.ndarray) -> np.ndarray:
    """A batch times a number per column; the batch itself if they are all 1."""
    if (units == 1.0).all():
        return batch
    return (batch * units.reshape(-1, *(1,) * (batch.ndim - 1))).astype(batch.dtype)


def in_pieces(space, batch: np.ndarray, solve_piece, callback) -> tuple[np.ndarray, SolverInfo]:
    """``solve_piece(batch, start, callback) -> (x, info)`` over what the space can hold, static ones padded with zeros."""
    n, width = len(batch), space.n_rhs
    if space.resizable or n == width:
        return solve_piece(batch, slice(0, n), callback)
    xs, infos = [], []
    for begin in range(0, n, width):
        part = batch[begin : begin + width]
        used = len(part)
        if used < width:
            part = np.concatenate([part, np.zeros((width - used, *part.shape[1:]), part.dtype)])
        columns = tuple(range(begin, begin + used))
        tell = None if callback is None else _told(callback, columns, used)
        x, info = solve_piece(part, slice(begin, begin + used), tell)
        xs.append(x[:used])
        infos.append(first_columns(info, used))
    return np.concatenate(xs), merge_infos(infos)


def _told(callback, columns, used):
    def tell(progress: Progress):
        callback(attrs.evolve(progress, residuals=progress.residuals[:used], total=used, columns=columns))

    return tell


def solve_on_host(solver, A, b, x0, callback) -> Solution:
    """See :meth:`Solver.solve`."""
    linear = A if isinstance(A, LinearOperator) else getattr(A, "linear", None)
    if not isinstance(linear, LinearOperator):
        return solve_arrays(solver, A, b, x0, callback)
    if isinstance(linear.vectors, ArrayVectors):
        x, info = solver.solve_handles(linear, b, x0, callback)
        return Solution(x, info)
    solver.check(linear)
    space = linear.vectors.space
    host = HostBatch.of(b, space.geometry, space.parity, space.precision)
    start = None if x0 is None else HostBatch.of(x0, space.geometry, space.parity, space.precision, "x0")
    if start is not None and start.batch.shape != host.batch.shape:
        raise FieldShapeError(f"x0 has shape {start.batch.shape}, the source {host.batch.shape}.")

    def piece(batch, where, tell):
        units = host_units(space, batch)
        batch = scaled(batch, units)
        B = on_columns(linear, len(batch))
        v = B.vectors
        rhs = RightHandSide(v, lambda columns=None: v.pack(batch if columns is None else batch[columns]))
        first = None
        if start is not None:
            given = start.batch[where]
            if len(given) < len(batch):
                given = np.concatenate([given, np.zeros((len(batch) - len(given), *given.shape[1:]), given.dtype)])
            first = v.pack(scaled(given, units))
        x, info = solver.run(B, rhs, first, np.full(len(batch), solver.tol), tell)
        if isinstance(x, list):
            return np.stack([scaled(v.unpack(h), 1.0 / units) for h in x], axis=1), info
        return scaled(v.unpack(x), 1.0 / units), info

    x, info = in_pieces(space, host.batch, piece, callback)
    if getattr(solver, "shifts", None) is not None:
        return Solution([host.back(x[:, k]) for k in range(x.shape[1])], info)
    return Solution(host.back(x), info)

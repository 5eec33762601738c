"""Vectors of the NKI backend: buffers of device memory, and one launch for every operation.

Kernels are out of place and no buffer is ever written after it was made, so a copy is a second reference, and "consumed" means
that the buffer goes back to its pool. Sums leave the device as fixed-point partial sums whose fold on the host is exact: their
bits depend neither on tiles nor on cores.
"""

from __future__ import annotations

import numpy as np

from lqcd_core.backend import Handle
from lqcd_core.errors import FieldShapeError
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision
from lqcd_core.spaces import check_batch

from .compile_worker import array_type
from .exact import LARGEST, scale_for
from .limits import check_fits

SMALLEST = 32.0
"""Largest scaled product below which a sum is taken again: 53 bits of it are kept above."""
FLOOR = 2.0**-64
"""Scale with which products are looked at that overflowed with theirs."""


class NKISpace:
    """See the module.

    Parameters
    ----------
    backend
        Says where kernels come from and where they run.
    geometry, precision, n_rhs, parity
        What it holds. The number of columns is fixed: it is part of the compiled code.
    """

    resizable = False

    def __init__(self, backend, geometry: LatticeGeometry, precision: Precision, n_rhs: int, parity):
        if parity is not FULL:
            geometry._need_parity()
        self.backend = backend
        self.geometry, self.precision, self.n_rhs, self.parity = geometry, precision, n_rhs, parity
        self.layout = backend.catalogue.layout(geometry, precision, n_rhs, parity)
        self._scales: dict[str, np.ndarray] = {}
        self.vector = vector = backend.catalogue.vector(self.layout)
        check_fits(
            f"a vector on {geometry.shape} with {n_rhs} right-hand sides in {precision}",
            [vector],
            backend.device,
            vector.nbytes,
        )

    def pack(self, array) -> Handle:
        array = np.asarray(array)
        check_batch(self, array.shape)
        return self.backend.executor.place(np.ascontiguousarray(self.layout.pack(array)), "vector")

    def unpack(self, handle: Handle) -> np.ndarray:
        out = self.layout.unpack(self.backend.executor.fetch(handle, self.vector.shape, self.vector.dtype))
        return np.ascontiguousarray(out, np.complex64)

    def zeros(self) -> Handle:
        return self.backend.executor.place(np.zeros(self.vector.shape, array_type(self.vector.dtype)), "vector")

    def copy(self, x: Handle) -> Handle:
        """A new handle equal to x."""
        return x

    def axpy(self, a, x: Handle, y: Handle) -> Handle:
        return self._update("axpy", self._scalars(a), x=x, y=y)[0]

    def xpay(self, x: Handle, a, y: Handle) -> Handle:
        """x + a y; consumes y."""
        return self.axpy(a, y, x)  # out of place: which of the two is added to makes no difference

    def scale(self, a, x: Handle) -> Handle:
        """a x; consumes x."""
        a = self._scalars(a)
        return self.axpy(a, x, self.zeros()) if a.imag.any() else self._update("scale", a, x=x)[0]

    def gamma5(self, x: Handle) -> Handle:
        return self._update("scale", np.array(1.0), x=x, gamma5=True)[0]

    def inner(self, x: Handle, y: Handle) -> np.ndarray:
        known = self._known_overlap(x, y)
        if known is not None:
            return known
        return np.asarray(self._sum("inner", x=x, y=y), np.complex128)

    def norm2(self, x: Handle) -> np.ndarray:
        return np.asarray(self._sum("norm2", x=x), np.float64)

    def axpy_norm2(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        scale = self.scale_of("norm2")
        out, sums = self._update("axpy_norm2", self._scalars(a), scale, x=x, y=y)
        return out, self._checked("norm2", sums, scale, x=out)

    def cg_update(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        a = self._scalars(a)
        if a.imag.any():  # no solver has one; the kernel is for real numbers
            return self.axpy(a, p, x), *self.axpy_norm2(-a, ap, r)
        scale = self.scale_of("norm2")
        x, r, sums = self._update("cg_update", a, scale, p=p, q=ap, x=x, r=r)
        return x, r, self._checked("norm2", sums, scale, x=r)

    # -- said once ----------------------------------------------------------------------------------------------------

    def _update(self, what: str, a, scale=None, gamma5: bool = False, **vectors) -> tuple:
        spec, arrays = self.backend.catalogue.blas(what, self.layout, a, scale, gamma5)
        return self.backend.run(spec, {**vectors, **arrays})

    def scale_of(self, what: str) -> np.ndarray:
        """The scale of each column's products: that of the last sum of this kind, for sums change slowly in a solve."""
        return self._scales.get(what, np.ones(self.n_rhs))

    def _sum(self, what: str, **vectors) -> np.ndarray:
        scale = self.scale_of(what)
        return self._checked(what, self._update(what, None, scale, **vectors)[0], scale, **vectors)

    def _checked(self, what: str, sums: Handle, scale: np.ndarray, **vectors) -> np.ndarray:
        """The sums; taken once more where products lay outside the range of their scale, or far below it."""
        values, largest = self._folded(what, sums, scale)
        for _ in range(2):
            wanted = scale.copy()
            for k, top in enumerate(largest):
                if not np.isfinite(top):
                    wanted[k] = min(scale[k], FLOOR)  # the scale itself may have overflowed: see from far below
                elif top > 0 and not SMALLEST <= top * scale[k] <= LARGEST:
                    wanted[k] = scale_for(top)
            again = wanted != scale
            if not again.any():
                break
            scale = wanted
            new, found = self._folded(what, self._update(what, None, scale, **vectors)[0], scale)
            # The other columns keep the bits that they have by themselves.
            values, largest = np.where(again, new, values), np.where(again, found, largest)
        self._scales[what] = np.where(np.isfinite(largest), scale, 1.0)
        return values

    def _known_overlap(self, x: Handle, y: Handle) -> np.ndarray | None:
        """x^dagger y where the launch that made y = M^dagger M x summed it already, else None. It is real: M^dagger M is Hermitian."""
        if y.overlap is None or y.overlap[0] is not x:
            return None
        _, sums, scale, argument = y.overlap
        array = self.backend.executor.fetch(sums, argument.shape, argument.dtype)
        values, largest = self.backend.catalogue.fold(self.layout, array, scale)
        finite = np.isfinite(largest)
        self._scales["normal"] = np.array([scale_for(m) if f else 1.0 for m, f in zip(largest, finite)])
        fits = finite & ((largest == 0) | ((largest * scale >= SMALLEST) & (largest * scale <= LARGEST)))
        return values.astype(np.complex128) if fits.all() else None

    def _folded(self, what: str, sums: Handle, scale: np.ndarray):
        spec, _ = self.backend.catalogue.blas(what, self.layout, None, scale)
        array = self.backend.executor.fetch(sums, spec.outputs[0].shape, spec.outputs[0].dtype)
        return self.backend.catalogue.fold(self.layout, array, scale)

    def _scalars(self, a) -> np.ndarray:
        a = np.asarray(a, np.complex128)
        if a.ndim and a.shape != (self.n_rhs,):
            raise FieldShapeError(f"a scalar per column needs the shape ({self.n_rhs},) here, got {a.shape}.")
        return a


__all__ = ["NKISpace"]

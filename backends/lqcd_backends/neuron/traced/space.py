"""Vectors of the traced backend: real planes, right-hand sides first, in the precision's storage.

A handle is a tensor ``(n_rhs, 2, Ns, Nc, T, Z, Y, X)`` (X/2 on a parity) where the adapter keeps vectors: on the CPU for the
XLA package, whose graphs take and give CPU tensors, on the device for the native one. The number of columns is fixed.
Element operations are fp32; sums over sites are double on the host, of fp32 products summed over the 24 components of a
site (there is no double on the device).
"""

from __future__ import annotations

import numpy as np
import torch

from lqcd_core.backend import Handle
from lqcd_core.errors import FieldShapeError
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision
from lqcd_core.spaces import check_batch, exact_sum

from .graph import STORAGE


class TracedSpace:
    """See the module.

    Parameters
    ----------
    geometry, precision, n_rhs, parity
        What it holds.
    storage
        Type of a stored real, ``float32``, ``bfloat16`` or ``float16``.
    adapter
        Says where vectors live.
    """

    resizable = False

    def __init__(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int, parity, storage: str, adapter):
        if parity is not FULL:
            geometry._need_parity()
        self.geometry, self.precision, self.n_rhs, self.parity = geometry, precision, n_rhs, parity
        self.storage_name, self.storage, self.adapter = storage, STORAGE[storage], adapter
        self.sites = tuple(geometry.parity_shape(parity)[:4])
        self.shape = (n_rhs, 2, 4, geometry.nc, *self.sites)

    def pack(self, array) -> Handle:
        array = np.asarray(array)
        check_batch(self, array.shape)
        planes = np.empty(self.shape, np.float32)
        moved = np.moveaxis(array, (5, 6), (1, 2))
        planes[:, 0], planes[:, 1] = moved.real, moved.imag
        return self.adapter.to_device(torch.from_numpy(planes).to(self.storage))

    def unpack(self, handle: Handle) -> np.ndarray:
        planes = self.adapter.to_host(handle).to(torch.float32).numpy()
        out = np.empty((self.n_rhs, *self.sites, 4, self.geometry.nc), np.complex64)
        out.real, out.imag = (np.moveaxis(planes[:, k], (1, 2), (5, 6)) for k in range(2))
        return out

    def zeros(self) -> Handle:
        nought = self.adapter.to_device(torch.zeros(1, dtype=self.storage))  # one number travels, not a vector
        return nought.new_zeros(self.shape)

    def axpy(self, a, x: Handle, y: Handle) -> Handle:
        return self._add(self._product(a, x), y)

    def xpay(self, x: Handle, a, y: Handle) -> Handle:
        """x + a y; consumes y."""
        return self._add(self._product(a, y), x)

    def scale(self, a, x: Handle) -> Handle:
        """a x; consumes x."""
        return self._product(a, x).to(self.storage)

    def copy(self, x: Handle) -> Handle:
        """A new handle equal to x."""
        return x.clone()

    def gamma5(self, x: Handle) -> Handle:
        return torch.cat([x[:, :, :2], -x[:, :, 2:]], 2)

    def inner(self, x: Handle, y: Handle) -> np.ndarray:
        return exact_sum(self.inner_slices(x, y))

    def norm2(self, x: Handle) -> np.ndarray:
        return exact_sum(self.inner_slices(x, x)).real.copy()

    def inner_slices(self, x: Handle, y: Handle) -> np.ndarray:
        a, b = x.to(torch.float32), y.to(torch.float32)
        parts = [(a * b).sum((1, 2, 3))]
        if x is not y:
            parts.append((a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]).sum((1, 2)))
        sums = [self.adapter.to_host(p).to(torch.float64).sum((2, 3, 4)).numpy() for p in parts]
        out = np.zeros(sums[0].shape, np.complex128)
        out.real = sums[0]
        if len(sums) > 1:
            out.imag = sums[1]
        return out

    def convert_from(self, handle: Handle, source) -> Handle | None:
        if not isinstance(source, TracedSpace) or source.shape != self.shape or source.adapter is not self.adapter:
            return None
        out = handle.to(self.storage)
        return out.clone() if out is handle else out

    def _add(self, product: torch.Tensor, y: Handle) -> Handle:
        return (y.to(torch.float32) + product).to(self.storage)

    def _product(self, a, x: Handle) -> torch.Tensor:
        """a x in fp32, for one number or one per column."""
        a = np.asarray(a, np.complex128)
        if a.ndim and a.shape != (self.n_rhs,):
            raise FieldShapeError(f"a scalar per column needs the shape ({self.n_rhs},) here, got {a.shape}.")
        wide = x.to(torch.float32)
        if not a.imag.any():
            (re,) = self._scalars(a.real)
            return re * wide
        re, im = self._scalars(a.real, a.imag)
        r, i = wide[:, :1], wide[:, 1:]
        return torch.cat([re * r - im * i, re * i + im * r], 1)

    def _scalars(self, *parts: np.ndarray) -> list:
        """Each part as a factor of vectors: a number, or a column of one per right-hand side, in one transfer."""
        if not parts[0].ndim:
            return [float(np.float32(a)) for a in parts]
        columns = torch.from_numpy(np.stack(parts).astype(np.float32)).reshape(len(parts), -1, *[1] * 7)
        return list(self.adapter.to_device(columns))


__all__ = ["TracedSpace"]

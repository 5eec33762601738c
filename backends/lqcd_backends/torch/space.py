"""Vectors of the torch backend: spinors as real planes, sites last.

A handle is a tensor ``(n, 8, Nc, sites)``: plane 2 spin + (0 for the real part, 1 for the imaginary), sites in the order
t, z, y, x (x fastest), in the precision's storage. There is no complex type inside: torch has none of 16 bits that
multiplies, and long rows of real numbers are what its vector loops do best.

Vectors without gradients are updated in place; where autograd records one, every operation is out of place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from lqcd_core.backend import Handle
from lqcd_core.errors import FieldShapeError
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision
from lqcd_core.spaces import check_batch, exact_sum

STORAGE = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""torch's type of one stored real number."""
COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}
"""The complex type of an arithmetic."""

PIECE = 8192
"""Sites x columns of one piece of a reduction: its doubles stay in the caches."""


def records(*values) -> bool:
    """True if autograd would record an operation on these."""
    return torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)


def as_tensor(array, device) -> torch.Tensor:
    """A tensor of a NumPy array or tensor, on a device; read-only arrays are copied."""
    if isinstance(array, torch.Tensor):
        return array.resolve_conj().to(device)
    array = np.asarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)


class TorchSpace:
    """See the module. Fused updates (SupportsFusedBLAS) give the same bits as axpy and norm2."""

    resizable = True

    def __init__(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int, parity, device: torch.device):
        if parity is not FULL:
            geometry._need_parity()
        self.geometry, self.precision, self.n_rhs, self.parity = geometry, precision, n_rhs, parity
        self.device = device
        self.storage = STORAGE[precision.spinor_storage]
        self.real = STORAGE[precision.arithmetic]
        self.sites = tuple(geometry.parity_shape(parity)[:4])
        self.volume = int(np.prod(self.sites))

    # -- between host and backend -------------------------------------------------------------------------------------

    def pack(self, array) -> Handle:
        if not isinstance(array, torch.Tensor):
            array = np.asarray(array)
        check_batch(self, array.shape)
        n, nc = array.shape[0], self.geometry.nc
        if isinstance(array, torch.Tensor):
            pairs = torch.view_as_real(array.resolve_conj().to(self.device, COMPLEX[self.real]))
            planes = pairs.permute(0, 5, 7, 6, 1, 2, 3, 4).to(self.storage)
            return planes.clone(memory_format=torch.contiguous_format).reshape(n, 8, nc, self.volume)
        planes = np.empty((n, 4, 2, nc, *self.sites), self.precision.real_dtype)
        sites_last = np.moveaxis(array, (5, 6), (1, 2))
        planes[:, :, 0], planes[:, :, 1] = sites_last.real, sites_last.imag
        return torch.from_numpy(planes).reshape(n, 8, nc, self.volume).to(self.device, self.storage)

    def to_array(self, handle: Handle) -> torch.Tensor:
        """Canonical complex tensor ``(n, T, Z, Y, X, Ns, Nc)`` in the arithmetic's type, differentiable."""
        planes = handle.to(self.real).reshape(handle.shape[0], 4, 2, self.geometry.nc, *self.sites)
        return torch.view_as_complex(planes.permute(0, 4, 5, 6, 7, 1, 3, 2).contiguous())

    def unpack(self, handle: Handle) -> np.ndarray:
        return self.to_array(handle.detach()).cpu().numpy()

    # -- vectors ------------------------------------------------------------------------------------------------------

    def zeros(self) -> Handle:
        return torch.zeros(self.n_rhs, 8, self.geometry.nc, self.volume, dtype=self.storage, device=self.device)

    def copy(self, x: Handle) -> Handle:
        return x.clone()

    def axpy(self, a, x: Handle, y: Handle) -> Handle:
        re, im = self._scalar(a, x)
        if records(x, y, a):
            return (y.to(self.real) + _times(re, im, x.to(self.real))).to(self.storage)
        with torch.no_grad():
            if im is None and self.storage == self.real:
                return _add_real(re, x, y)
            for s in self._ranges(x.shape[0]):
                self._axpy_piece(re, im, x[..., s], y[..., s])
        return y

    def scale(self, a, x: Handle) -> Handle:
        """a x; consumes x."""
        re, im = self._scalar(a, x)
        if records(x, a) or im is not None or self.storage != self.real:
            return _times(re, im, x.to(self.real)).to(self.storage)
        with torch.no_grad():
            return x.mul_(re)

    def xpay(self, x: Handle, a, y: Handle) -> Handle:
        """x + a y; consumes y."""
        re, im = self._scalar(a, x)
        if records(x, y, a) or im is not None or self.storage != self.real:
            return (x.to(self.real) + _times(re, im, y.to(self.real))).to(self.storage)
        with torch.no_grad():
            if isinstance(re, torch.Tensor):
                return torch.addcmul(x, y, re, out=y)
            return torch.add(x, y, alpha=re, out=y)

    def gamma5(self, x: Handle) -> Handle:
        return torch.cat([x[:, :4], -x[:, 4:]], dim=1)

    # -- reductions ---------------------------------------------------------------------------------------------------

    def inner(self, x: Handle, y: Handle) -> np.ndarray:
        return exact_sum(self.inner_slices(x, y))

    def norm2(self, x: Handle) -> np.ndarray:
        return exact_sum(self.inner_slices(x, x)).real.copy()

    def inner_slices(self, x: Handle, y: Handle) -> np.ndarray:
        with torch.no_grad():
            sums = _SiteSums(self, x.shape[0], complex_product=x is not y)
            for s in self._ranges(x.shape[0]):
                sums.add(s, x[..., s], y[..., s])
            return sums.slices()

    def axpy_norm2(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        """(y + a x, its norm2) in one pass; consumes y."""
        if records(x, y, a):
            y = self.axpy(a, x, y)
            return y, self.norm2(y)
        re, im = self._scalar(a, x)
        with torch.no_grad():
            sums = _SiteSums(self, x.shape[0])
            for s in self._ranges(x.shape[0]):
                part = y[..., s]
                self._axpy_piece(re, im, x[..., s], part)
                sums.add(s, part, part)
        return y, exact_sum(sums.slices()).real.copy()

    def cg_update(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        """(x + a p, r - a Ap, norm2 of the new r) in one pass; consumes x and r."""
        if records(p, ap, x, r, a):
            r = self.axpy(-a if isinstance(a, torch.Tensor) else -np.asarray(a), ap, r)
            return self.axpy(a, p, x), r, self.norm2(r)
        re, im = self._scalar(a, x)
        minus_re, minus_im = -re, None if im is None else -im
        with torch.no_grad():
            sums = _SiteSums(self, x.shape[0])
            for s in self._ranges(x.shape[0]):
                self._axpy_piece(re, im, p[..., s], x[..., s])
                part = r[..., s]
                self._axpy_piece(minus_re, minus_im, ap[..., s], part)
                sums.add(s, part, part)
        return x, r, exact_sum(sums.slices()).real.copy()

    # -- columns and conversion ---------------------------------------------------------------------------------------

    def take(self, x: Handle, columns: Sequence[int]) -> Handle:
        return x.index_select(0, self._index(columns))

    def put(self, x: Handle, columns: Sequence[int], part: Handle) -> Handle:
        if records(x, part):
            return x.index_copy(0, self._index(columns), part)
        with torch.no_grad():
            return x.index_copy_(0, self._index(columns), part)

    def convert_from(self, handle: Handle, source) -> Handle | None:
        """A new handle of another torch space's handle, None if the space is foreign."""
        same = isinstance(source, TorchSpace) and (source.geometry, source.parity) == (self.geometry, self.parity)
        if not same:
            return None
        # By way of the arithmetic's type: the one rounding to 16 bits is then the same as pack's.
        return handle.to(self.device, self.real).to(self.storage, copy=True)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _index(self, columns: Sequence[int]) -> torch.Tensor:
        return torch.as_tensor([int(c) for c in columns], dtype=torch.int64, device=self.device)

    def _scalar(self, a, x: Handle):
        """(re, im) of one number or one per column, in the arithmetic's type; im is None for real scalars."""
        if isinstance(a, torch.Tensor):
            a = a.to(self.device)
            column = (-1, 1, 1, 1) if a.ndim else (1, 1, 1, 1)
            re, im = (a.real, a.imag) if a.is_complex() else (a, None)
            return re.to(self.real).reshape(column), None if im is None else im.to(self.real).reshape(column)
        a = np.asarray(a)
        if a.ndim and a.shape != (x.shape[0],):
            raise FieldShapeError(
                f"scalars of shape {a.shape} for {x.shape[0]} columns; give one number or one a column."
            )
        a = a.astype(self.precision.complex_dtype)
        parts = [a.real, a.imag if a.imag.any() else None]  # NaN counts as any
        if not a.ndim:
            return tuple(None if v is None else float(v) for v in parts)
        return tuple(
            None if v is None else torch.from_numpy(v.copy()).to(self.device).reshape(-1, 1, 1, 1) for v in parts
        )

    def _ranges(self, n: int) -> Iterator[slice]:
        """Site ranges that keep a piece in the cache (on a GPU, everything at once)."""
        width = max(64, PIECE // n) if self.device.type == "cpu" else self.volume
        for first in range(0, self.volume, width):
            yield slice(first, min(first + width, self.volume))

    def _axpy_piece(self, re, im, x, y) -> None:
        """y + a x in place on a range of sites, rounded once."""
        if self.storage == self.real:
            _add_real(re, x, y)
            if im is not None:
                _add_imaginary(im, x, y)
            return
        wide = y.to(self.real)
        x = x.to(self.real)
        _add_real(re, x, wide)
        if im is not None:
            _add_imaginary(im, x, wide)
        y.copy_(wide)


def _add_real(re, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y.addcmul_(x, re) if isinstance(re, torch.Tensor) else y.add_(x, alpha=re)


def _add_imaginary(im, x: torch.Tensor, y: torch.Tensor) -> None:
    """y + i im x in place: the real planes 0, 2, 4, 6 and the imaginary ones 1, 3, 5, 7 change places."""
    _add_real(-im, x[:, 1::2], y[:, 0::2])
    _add_real(im, x[:, 0::2], y[:, 1::2])


def _times(re, im, x: torch.Tensor) -> torch.Tensor:
    """a x, out of place."""
    if im is None:
        return re * x
    pairs = x.unflatten(1, (4, 2))
    turned = torch.stack([-pairs[:, :, 1], pairs[:, :, 0]], dim=2).flatten(1, 2)
    return re * x + im * turned


class _SiteSums:
    r"""Inner products in double with the same bits for any number of threads.

    .. math:: s(t) = \sum_{x\in t}\sum_{\rm planes} \bar x y

    Products and the sum over planes are elementwise operations on sites, whose order no thread changes; the sum over the
    sites of a time slice is NumPy's pairwise one. torch.sum splits its work by the number of threads and is not used.
    """

    def __init__(self, space: TorchSpace, n: int, complex_product: bool = False):
        self.space, self.n = space, n
        parts = 2 if complex_product else 1
        self.per_site = torch.empty((parts, n, space.volume), dtype=torch.float64, device=space.device)

    def add(self, s: slice, x: torch.Tensor, y: torch.Tensor) -> None:
        """The sites of one range."""
        a = x.double()
        b = a if y is x else y.double()
        self._fold(a * b, self.per_site[0, :, s])
        if len(self.per_site) == 2:
            self._fold(a[:, 0::2] * b[:, 1::2] - a[:, 1::2] * b[:, 0::2], self.per_site[1, :, s])

    @staticmethod
    def _fold(planes: torch.Tensor, out: torch.Tensor) -> None:
        """The sum over planes and colours, by halves."""
        v = planes.flatten(1, 2)
        while v.shape[1] > 2:
            half = v.shape[1] // 2
            v[:, :half].add_(v[:, -half:])
            v = v[:, : v.shape[1] - half]
        torch.add(v[:, 0], v[:, 1], out=out)

    def slices(self) -> np.ndarray:
        """Shape ``(n, T)``, complex128."""
        sums = self.per_site.cpu().numpy().reshape(len(self.per_site), self.n, self.space.sites[0], -1).sum(axis=-1)
        return sums[0] + 1j * sums[1] if len(sums) == 2 else sums[0].astype(np.complex128)

r"""The torch backend: real planes, sites last.

.. math:: H\psi(x) = \tfrac12\sum_\mu\left[(1-\gamma_\mu)U_\mu(x)\psi(x+\hat\mu)
          + (1+\gamma_\mu)U^\dagger_\mu(x-\hat\mu)\psi(x-\hat\mu)\right]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from lqcd_core.backend import Handle, Links, SiteDiagonal
from lqcd_core.errors import BackendUnavailable
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision
from lqcd_core.spaces import check_batch, exact_sum

from .hopping import HoppingKernel

_STORAGE = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}


class TorchSpace:
    """Spinors as real planes ``(n, 8, Nc, sites)``: plane 2 spin + (0 real, 1 imaginary), sites t, z, y, x fastest."""

    resizable = True

    def __init__(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int, parity, device: torch.device):
        if parity is not FULL:
            geometry._need_parity()
        self.geometry, self.precision, self.n_rhs, self.parity = geometry, precision, n_rhs, parity
        self.device = device
        self.storage = _STORAGE[precision.spinor_storage]
        self.real = _STORAGE[precision.arithmetic]
        self.sites = tuple(geometry.parity_shape(parity)[:4])
        self.volume = int(np.prod(self.sites))

    def pack(self, array) -> Handle:
        check_batch(self, array.shape)
        if isinstance(array, torch.Tensor):
            pairs = torch.view_as_real(array.resolve_conj().to(self.device, _COMPLEX[self.real]))
        else:
            pairs = torch.from_numpy(np.array(array, self.precision.complex_dtype, order="C").view(self.precision.real_dtype))
            pairs = pairs.reshape(*array.shape, 2).to(self.device)
        planes = pairs.permute(0, 5, 7, 6, 1, 2, 3, 4).reshape(array.shape[0], 8, self.geometry.nc, self.volume)
        return planes.to(self.storage).contiguous()

    def to_array(self, handle: Handle) -> torch.Tensor:
        """Canonical complex tensor ``(n, T, Z, Y, X, 4, Nc)``, differentiable."""
        planes = handle.to(self.real).reshape(handle.shape[0], 4, 2, self.geometry.nc, *self.sites)
        return torch.view_as_complex(planes.permute(0, 4, 5, 6, 7, 1, 3, 2).contiguous())

    def unpack(self, handle: Handle) -> np.ndarray:
        return self.to_array(handle.detach()).cpu().numpy()

    def zeros(self) -> Handle:
        return torch.zeros(self.n_rhs, 8, self.geometry.nc, self.volume, dtype=self.storage, device=self.device)

    def axpy(self, a, x: Handle, y: Handle) -> Handle:
        a = np.asarray(a, complex)
        a = torch.from_numpy(np.array(a.reshape(-1, 1, 1, 1, 1))).to(self.device)
        re, im = a.real.to(self.real), a.imag.to(self.real)
        xs = x.to(self.real).reshape(x.shape[0], 4, 2, self.geometry.nc, self.volume)
        turned = torch.stack([-xs[:, :, 1], xs[:, :, 0]], dim=2)
        return (y.to(self.real) + (re * xs + im * turned).reshape(y.shape)).to(self.storage)

    def gamma5(self, x: Handle) -> Handle:
        return torch.cat([x[:, :4], -x[:, 4:]], dim=1)

    def inner_slices(self, x: Handle, y: Handle) -> np.ndarray:
        n = x.shape[0]
        shape = (n, 4, 2, self.geometry.nc, self.sites[0], -1)
        a, b = (v.detach().double().cpu().numpy().reshape(shape) for v in (x, y))
        re = (a * b).sum(axis=(1, 2, 3, 5))
        im = (a[:, :, 0] * b[:, :, 1] - a[:, :, 1] * b[:, :, 0]).sum(axis=(1, 2, 4))
        return re + 1j * im

    def inner(self, x: Handle, y: Handle) -> np.ndarray:
        return exact_sum(self.inner_slices(x, y))

    def norm2(self, x: Handle) -> np.ndarray:
        return exact_sum(self.inner_slices(x, x)).real.copy()

    def take(self, x: Handle, columns: Sequence[int]) -> Handle:
        return x[list(columns)]

    def put(self, x: Handle, columns: Sequence[int], part: Handle) -> Handle:
        return x.index_copy(0, torch.as_tensor(list(columns), device=self.device), part)

    def convert_from(self, handle: Handle, source) -> Handle | None:
        if not isinstance(source, TorchSpace) or source.parity != self.parity:
            return None
        return handle.to(self.device, self.storage, copy=True)

    def copy(self, x: Handle) -> Handle:
        return x.clone()


class TorchBackend:
    """See the module."""

    def __init__(self, threads: int | None = None, device: str = "cpu", chunk: int | None = None):
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise BackendUnavailable(f"torch {torch.__version__} sees no CUDA device; use device='cpu'.")
        if threads is not None:
            torch.set_num_threads(threads)
        self.device, self.chunk = torch.device(device), chunk

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> TorchSpace:
        return TorchSpace(geometry, precision, n_rhs, parity, self.device)

    def hopping(self, links: Links, space: TorchSpace) -> Callable[[Handle], Handle]:
        planes = self._link_planes(links, space)
        return self._hop(space, planes, planes, None)

    def parity_hopping(self, links: Links, target: TorchSpace) -> Callable[[Handle], Handle]:
        planes = self._link_planes(links, target)
        g = target.geometry
        here, there = (_split(g, planes, p) for p in (target.parity, 1 - target.parity))
        t, z, y, _ = np.indices(target.sites)
        even_x = torch.from_numpy(((t + z + y + target.parity) % 2 == 0).reshape(-1)).to(self.device)
        return self._hop(target, here, there, even_x)

    def _link_planes(self, links: Links, space: TorchSpace) -> torch.Tensor:
        """Folded links times 1/2 as planes ``(4, 2, Nc, Nc, sites)``, rounded to the storage."""
        pairs = torch.view_as_real(fold(links, self.device))
        planes = 0.5 * pairs.permute(4, 7, 5, 6, 0, 1, 2, 3)
        return planes.to(_STORAGE[space.precision.link_storage]).reshape(*planes.shape[:4], -1).contiguous()

    def _hop(self, space: TorchSpace, here, there, even_x) -> Callable[[Handle], Handle]:
        kernel = HoppingKernel(here, there, space.sites, even_x, space.real, self.chunk)

        def hop(handle: Handle) -> Handle:
            with torch.no_grad():
                psi = handle.to(space.real)
                return kernel(psi, torch.empty_like(psi)).to(space.storage)

        return hop

    def site_diagonal(self, term: SiteDiagonal, space: TorchSpace) -> Callable[[Handle], Handle]:
        nc = space.geometry.nc
        signs = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64, device=space.device)
        factor = (complex(term.scalar) + 1j * term.twist * signs).to(_COMPLEX[space.real])[:, None]
        blocks = None if term.blocks is None else as_tensor(term.blocks, space.device).to(_COMPLEX[space.real])

        def apply(x: Handle) -> Handle:
            psi = space.to_array(x)
            out = factor * psi
            if blocks is not None:
                v = psi.reshape(*psi.shape[:-2], 2, 2 * nc, 1)
                out = out + (blocks @ v).reshape(psi.shape)
            return space.pack(out)

        return apply

    def describe(self) -> dict[str, str]:
        return {"torch": torch.__version__, "threads": str(torch.get_num_threads()), "device": str(self.device)}


def as_tensor(array, device) -> torch.Tensor:
    """A tensor of a NumPy array or tensor, on a device; read-only arrays are copied."""
    if isinstance(array, torch.Tensor):
        return array.resolve_conj().to(device)
    array = np.asarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)


def fold(links: Links, device) -> torch.Tensor:
    """c_mu phase_mu(x) U_mu(x), canonical order, differentiable."""
    u = as_tensor(links.array, device)
    parts = []
    for mu in range(4):
        v = u[..., mu, :, :]
        if links.coefficients[mu] != 1.0:
            v = v * float(links.coefficients[mu])
        if links.phases[mu] != 1:
            edge = torch.ones(u.shape[mu], dtype=u.dtype, device=device)
            edge[-1] = complex(links.phases[mu])
            v = v * edge.reshape([-1 if k == mu else 1 for k in range(4)] + [1, 1])
        parts.append(v)
    return torch.stack(parts, dim=4)


def _split(geometry: LatticeGeometry, planes: torch.Tensor, parity: int) -> torch.Tensor:
    """The sites of one parity of link planes ``(4, 2, Nc, Nc, sites)``."""
    pairs = planes.reshape(*planes.shape[:-1], *geometry.shape[:3], geometry.X // 2, 2)
    t, z, y = np.indices(geometry.shape[:3], sparse=True)
    odd = torch.from_numpy((t + z + y + parity) % 2 == 1)[..., None].to(planes.device)
    return torch.where(odd, pairs[..., 1], pairs[..., 0]).reshape(*planes.shape[:-1], -1)

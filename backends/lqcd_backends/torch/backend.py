r"""The torch backend: any torch >= 2.2, CPU or CUDA, differentiable.

.. math:: H\psi(x) = \tfrac12\sum_\mu\left[(1-\gamma_\mu)U_\mu(x)\psi(x+\hat\mu)
          + (1+\gamma_\mu)U^\dagger_\mu(x-\hat\mu)\psi(x-\hat\mu)\right],\qquad M = A - H

:mod:`.space` holds the vectors, :mod:`.hopping` the blocked kernel of H, :mod:`.site_term` that of A, :mod:`.gradient` the
derivatives. Gradients flow to spinors, links and blocks: all three may be torch tensors.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import numpy as np
import torch

from lqcd_core.backend import DiracTerms, Handle, Links, SiteDiagonal
from lqcd_core.errors import BackendUnavailable
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision

from .gradient import Hop, Linear
from .halo import SlabHop
from .heap import map_large_blocks
from .hopping import HoppingKernel
from .site_term import SiteTerm, differentiable
from .space import STORAGE, TorchSpace, as_tensor, records


class TorchBackend:
    """See the module.

    Parameters
    ----------
    threads
        Passed to ``torch.set_num_threads``: torch has one setting for the whole process, so this changes it for
        everybody. None (the default) never touches it.
    device
        ``cpu``, ``cuda`` or ``cuda:N``.
    chunk
        Sites x columns worked on at a time; None chooses. The bits do not depend on it.

    Raises
    ------
    BackendUnavailable
        If the device is not there.
    """

    def __init__(self, threads: int | None = None, device: str = "cpu", chunk: int | None = None):
        self.device, self.chunk = torch.device(device), chunk
        self.local = threading.local()
        map_large_blocks()
        self._packed: weakref.WeakKeyDictionary[Links, dict] = weakref.WeakKeyDictionary()
        if self.device.type == "cuda":
            self._need_cuda()
        if threads is not None:
            torch.set_num_threads(threads)

    def _need_cuda(self) -> None:
        if not torch.cuda.is_available():
            raise BackendUnavailable(f"torch {torch.__version__} sees no CUDA device; use device='cpu'.")
        found = torch.cuda.device_count()
        if (self.device.index or 0) >= found:
            raise BackendUnavailable(f"there is no device {str(self.device)!r}: torch sees {found} CUDA device(s).")

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> TorchSpace:
        return TorchSpace(geometry, precision, n_rhs, parity, self.device)

    # -- H ------------------------------------------------------------------------------------------------------------

    def hopping(self, links: Links, space: TorchSpace) -> Callable[[Handle], Handle]:
        planes = self._link_planes(links, space)
        kernel = self._kernel(space, planes, planes, None)
        return _hop(space, planes, planes, (kernel, kernel))

    def parity_hopping(self, links: Links, target: TorchSpace) -> Callable[[Handle], Handle]:
        here, there = self._split_links(links, target)
        return _hop(target, here, there, self._parity_kernels(target, here, there))

    def halo_hopping(self, links: Links, target: TorchSpace) -> SlabHop:
        """H on a slab of time slices; no gradients flow through faces."""
        if target.parity is FULL:
            planes = self._link_planes(links, target)
            return SlabHop(target, planes, planes, None, self.chunk, self.local)
        here, there = self._split_links(links, target)
        return SlabHop(target, here, there, self._even_x(target), self.chunk, self.local)

    def halo_fused(self, kind: str, terms: DiracTerms, space: TorchSpace) -> SlabHop | None:
        """M or M^dagger on a slab, A applied block by block inside H as in :meth:`fused`."""
        if kind not in ("M", "Mdag"):
            return None
        dagger = kind == "Mdag"
        a = SiteTerm(terms.diagonal.dagger() if dagger else terms.diagonal, space)
        planes = self._link_planes(terms.links, space)

        def start(columns: slice, first: int, block, out) -> None:
            a(block, out, first)

        return SlabHop(space, planes, planes, None, self.chunk, self.local, dagger, start)

    def _kernel(self, space: TorchSpace, here, there, even_x) -> HoppingKernel:
        return HoppingKernel(here.detach(), there.detach(), space.sites, even_x, space.real, self.chunk, self.local)

    def _parity_kernels(self, target: TorchSpace, here, there) -> tuple[HoppingKernel, HoppingKernel]:
        """(the hop that lands on the target, the hop back); they share the links."""
        even_x = self._even_x(target)
        return self._kernel(target, here, there, even_x), self._kernel(target, there, here, ~even_x)

    def _even_x(self, target: TorchSpace) -> torch.Tensor:
        """Mask of the target's sites whose x is even."""
        t, z, y, _ = np.indices(target.sites)
        return torch.from_numpy(((t + z + y + target.parity) % 2 == 0).reshape(-1)).to(self.device)

    def _split_links(self, links: Links, target: TorchSpace) -> tuple[torch.Tensor, torch.Tensor]:
        """Links on the target's parity and on the other."""
        g, storage = target.geometry, target.precision.link_storage

        def make(parity):
            return lambda: _split(g, self._link_planes(links, target), parity)

        return tuple(self._once(links, ("half", storage, p), make(p)) for p in (target.parity, 1 - target.parity))

    def _once(self, links: Links, key: tuple, make):
        """What was made of these links before, while they live; made anew where gradients of the links are recorded.

        M, its adjoint, the hops and the Schur complement all come here, so the links are packed once.
        """
        if records(links.array):
            return make()
        kept = self._packed.setdefault(links, {})
        if key not in kept:
            with torch.no_grad():
                kept[key] = make()
        return kept[key]

    def _link_planes(self, links: Links, space: TorchSpace) -> torch.Tensor:
        """Folded links times 1/2 as planes ``(4, 2, Nc, Nc, sites)``, rounded to the storage."""
        storage = space.precision.link_storage

        def make():
            pairs = torch.view_as_real(fold(links, self.device))
            planes = 0.5 * pairs.permute(4, 7, 5, 6, 0, 1, 2, 3)
            return planes.to(STORAGE[storage]).reshape(*planes.shape[:4], -1).contiguous()

        return self._once(links, ("full", storage), make)

    # -- A ------------------------------------------------------------------------------------------------------------

    def site_diagonal(self, term: SiteDiagonal, space: TorchSpace) -> Callable[[Handle], Handle]:
        if records(term.blocks):
            return differentiable(term, space)
        return _linear(space, *(SiteTerm(t, space).new for t in (term, term.dagger())))

    # -- M and its relatives ------------------------------------------------------------------------------------------

    def fused(self, kind: str, terms: DiracTerms, space: TorchSpace) -> Callable[[Handle], Handle] | None:
        """The operator with A applied block by block inside H; None where gradients of links or blocks are wanted."""
        if records(terms.links.array, terms.diagonal.blocks):
            return None
        base, _, suffix = kind.partition("_")
        if kind in ("M", "Mdag", "MdagM"):
            maps = self._maps(self._full_maps, terms, space)
            which = kind
        elif base == "schur":
            maps = self._maps(self._schur_maps, terms, space)
            which = {"": "M", "dag": "Mdag", "normal": "MdagM"}[suffix]
        else:
            return None
        m, m_dagger = maps
        if which == "M":
            return _linear(space, m, m_dagger)
        if which == "Mdag":
            return _linear(space, m_dagger, m)

        def normal(psi):
            return m_dagger(m(psi))

        return _linear(space, normal, normal)

    def _maps(self, make, terms: DiracTerms, space: TorchSpace):
        """(map, adjoint), shared by the kinds that are made of them."""
        key = (make.__name__, id(terms.diagonal), space.precision.name, space.parity, terms.form)
        # The diagonal is kept beside its maps: an id means something only while its owner lives.
        return self._once(terms.links, key, lambda: (make(terms, space), terms.diagonal))[0]

    def _full_maps(self, terms: DiracTerms, space: TorchSpace):
        planes = self._link_planes(terms.links, space)
        kernel = self._kernel(space, planes, planes, None)

        def make(a: SiteTerm, dagger: bool):
            def m(psi):
                return kernel(psi, dagger, lambda columns, first, block, out: a(block, out, first))

            return m

        m_term, m_dagger_term = SiteTerm(terms.diagonal, space), None
        if terms.diagonal.twist or not terms.diagonal.hermitian_blocks or np.imag(terms.diagonal.scalar):
            m_dagger_term = SiteTerm(terms.diagonal.dagger(), space)
        return make(m_term, False), make(m_dagger_term or m_term, True)

    def _schur_maps(self, terms: DiracTerms, space: TorchSpace):
        """A_p - H_pq A_q^-1 H_qp and its adjoint, or the symmetric form 1 - A_p^-1 H_pq A_q^-1 H_qp."""
        g, p = space.geometry, terms.parity
        onto_p, onto_q = self._parity_kernels(space, *self._split_links(terms.links, space))
        a_p, a_q = (terms.diagonal.on_parity(g, parity) for parity in (p, 1 - p))

        def make(dagger: bool):
            term_p, inverse_p, inverse_q = a_p, a_p.inverse(), a_q.inverse()
            if dagger:
                term_p, inverse_p, inverse_q = term_p.dagger(), inverse_p.dagger(), inverse_q.dagger()
            b_q = SiteTerm(inverse_q, space)

            def through_q(psi):
                return b_q.new(onto_q(psi, dagger, dtype=space.real))

            if terms.form == "asymmetric":
                a = SiteTerm(term_p, space)
                return lambda psi: _subtract_hop(onto_p, through_q(psi), dagger, a, psi)
            b_p = SiteTerm(inverse_p, space)
            if dagger:
                return lambda psi: _subtract_hop(onto_p, through_q(b_p.new(psi)), dagger, _copy, psi)
            return lambda psi: psi - b_p.new(onto_p(through_q(psi), dagger))

        return make(False), make(True)

    def describe(self) -> dict[str, str]:
        """Version, threads, device and instruction set."""
        facts = {"torch": torch.__version__, "threads": str(torch.get_num_threads()), "device": str(self.device)}
        if self.device.type == "cuda":
            facts["device_name"] = torch.cuda.get_device_name(self.device)
        else:
            facts["instruction_set"] = torch.backends.cpu.get_cpu_capability()
        return facts


def _hop(space: TorchSpace, here, there, kernels) -> Callable[[Handle], Handle]:
    kernel, mate = kernels
    if records(here, there):
        return lambda handle: Hop.apply(handle.to(space.real), here, there, kernels, False).to(space.storage)
    return _linear(space, kernel, lambda g: mate(g, dagger=True))


def _linear(space: TorchSpace, forward, adjoint) -> Callable[[Handle], Handle]:
    """A map of planes (of any storage) as a function of handles, with gradients where the handle has them."""

    def apply(handle: Handle) -> Handle:
        if records(handle):
            return Linear.apply(handle.to(space.real), forward, adjoint).to(space.storage)
        with torch.no_grad():
            return forward(handle).to(space.storage)

    return apply


def _subtract_hop(kernel: HoppingKernel, source, dagger: bool, term, psi) -> torch.Tensor:
    """term psi - H source, the term block by block, in the type of psi."""

    def start(columns: slice, first: int, block, out) -> None:
        term(psi[columns].narrow(3, first, out.shape[-1]).to(out.dtype), out, first)

    return kernel(source, dagger, start, psi.dtype)


def _copy(psi, out, first: int) -> None:
    out.copy_(psi)


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

r"""The reference backend: NumPy on site-last arrays.

.. math:: H\psi(x) = \tfrac12\sum_\mu\left[(1-\gamma_\mu)U_\mu(x)\psi(x+\hat\mu)
          + (1+\gamma_\mu)U^\dagger_\mu(x-\hat\mu)\psi(x-\hat\mu)\right]

In a chiral basis :math:`\gamma_\mu=\begin{pmatrix}0&B\\B^\dagger&0\end{pmatrix}`, so the half spinor
:math:`h=\psi_u\mp B\psi_l` holds everything: the lower half of :math:`(1\mp\gamma_\mu)\psi` is :math:`\mp B^\dagger h`.
Each direction projects to h (2 spins), multiplies by one 3x3 matrix, shifts, and reconstructs.

Work per site: 1320 flops for Nc = 3 (8 x 12 projection, 8 x 132 SU(3) x half spinor, 8 x 24 - 24 reconstruction). Every
array operation is a pass over memory, about 700 bytes per site and direction in complex128: memory binds, not flops.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from lqcd_core.backend import Handle, Links, SiteDiagonal
from lqcd_core.fields import from_storage, to_storage
from lqcd_core.gamma import GAMMA
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision
from lqcd_core.spaces import ArraySpace


def _rows(block: np.ndarray) -> list[tuple[int, complex]]:
    """The one non-zero (column, value) of each row of a 2x2 block of a gamma matrix."""
    return [(int(np.flatnonzero(row)[0]), complex(row[np.flatnonzero(row)[0]])) for row in block]


UPPER = [_rows(g[:2, 2:]) for g in GAMMA]  # B per direction
LOWER = [_rows(g[2:, :2]) for g in GAMMA]  # B^dagger


BLOCK_BYTES = 1 << 21
"""Columns go through together up to this size: temporaries stay small beside twelve columns, and near the cache."""


class Shift:
    """Neighbours along one direction on site-last arrays ``(..., T, Z, Y, X)``, full lattice or from parity to parity.

    On one parity the row (t, z, y) holds x = 2k + ((t+z+y+parity) mod 2) at k. Neighbours in t, z, y sit at the same
    k; the neighbour in +x sits at k where x is even and at k+1 where x is odd (and -x the other way round).
    """

    def __init__(self, geometry: LatticeGeometry, target):
        self.target = target
        if target is not FULL:
            t, z, y = np.indices(geometry.shape[:3], sparse=True)
            self.even_x = ((t + z + y + target) % 2 == 0)[..., None]

    def forward(self, mu: int, a: np.ndarray) -> np.ndarray:
        """a(x + mu) at the target's sites."""
        if self.target is FULL or mu != 3:
            return np.roll(a, -1, axis=mu - 4)
        return np.where(self.even_x, a, np.roll(a, -1, axis=-1))

    def backward(self, mu: int, a: np.ndarray) -> np.ndarray:
        """a(x - mu) at the target's sites."""
        if self.target is FULL or mu != 3:
            return np.roll(a, 1, axis=mu - 4)
        return np.where(self.even_x, np.roll(a, 1, axis=-1), a)


def color_multiply(u: np.ndarray, h: np.ndarray) -> np.ndarray:
    """U h with U ``(Nc, Nc, sites)`` and h ``(n, 2, Nc, sites)``: nine long multiply-adds."""
    nc = u.shape[0]
    out = np.empty_like(h)
    for a in range(nc):
        np.multiply(u[a, 0], h[:, :, 0], out=out[:, :, a])
        for b in range(1, nc):
            out[:, :, a] += u[a, b] * h[:, :, b]
    return out


def project(psi: np.ndarray, mu: int, sign: int) -> np.ndarray:
    """Half spinors ``(n, 2, Nc, ...)`` of (1 + sign gamma_mu) psi: its upper two spins."""
    return np.stack([psi[:, s] + sign * c * psi[:, 2 + p] for s, (p, c) in enumerate(UPPER[mu])], axis=1)


class NumpyBackend:
    """See the module. It takes no options."""

    def __init__(self):
        # Halves of the packed links per bind and precision: the hops to even and to odd share them.
        self._halves: weakref.WeakKeyDictionary[Links, dict] = weakref.WeakKeyDictionary()

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> ArraySpace:
        return ArraySpace(np, geometry, precision, n_rhs, parity)

    def hopping(self, links: Links, space: ArraySpace) -> Callable[[Handle], Handle]:
        u = self._pack_links(links, space)
        return self._hop(space, u, u, Shift(space.geometry, FULL))

    def parity_hopping(self, links: Links, target: ArraySpace) -> Callable[[Handle], Handle]:
        return self._hop(target, *self._link_halves(links, target), Shift(target.geometry, target.parity))

    def halo_hopping(self, links: Links, target: ArraySpace):
        from .halo import SlabHop

        if target.parity is FULL:
            u = self._pack_links(links, target)
            return SlabHop(target, u, u)
        return SlabHop(target, *self._link_halves(links, target))

    def _link_halves(self, links: Links, target: ArraySpace) -> tuple[np.ndarray, np.ndarray]:
        """Packed links on the target's parity and on the other."""
        kept = self._halves.setdefault(links, {})
        name = target.precision.name
        if name not in kept:
            u = self._pack_links(links, target)
            kept[name] = [target.geometry.split_parity(u, parity, lead=3) for parity in (0, 1)]
        return kept[name][target.parity], kept[name][1 - target.parity]

    def site_diagonal(self, term: SiteDiagonal, space: ArraySpace) -> Callable[[Handle], Handle]:
        return space.site_diagonal(term)

    def describe(self) -> dict[str, str]:
        return {"numpy": np.__version__, "threads": "1"}

    @staticmethod
    def _pack_links(links: Links, space: ArraySpace) -> np.ndarray:
        """Folded links ``(4, Nc, Nc, T, Z, Y, X)``, rounded to the precision's link storage."""
        folded = np.moveaxis(links.folded(), (4, 5, 6), (0, 1, 2))
        if space.precision.is_split:
            return _rounded(folded, space.precision)
        return np.ascontiguousarray(folded, dtype=space.precision.complex_dtype)

    @staticmethod
    def _hop(space: ArraySpace, here: np.ndarray, there: np.ndarray, shift: Shift) -> Callable[[Handle], Handle]:
        """H landing on the space's sites; ``here`` are links on those sites, ``there`` on the neighbours'."""
        half = space.precision.real_dtype.type(0.5)
        column = 4 * here[0].nbytes // here.shape[1]  # bytes of one spinor column
        together = max(1, BLOCK_BYTES // column)

        def add_hops(psi: np.ndarray, out: np.ndarray) -> None:
            for mu in range(4):
                for sign, links in ((-1, here[mu]), (+1, there[mu])):
                    h = project(psi, mu, sign)
                    if sign < 0:  # (1 - gamma) U(x) psi(x + mu)
                        h = color_multiply(links, shift.forward(mu, h))
                    else:  # (1 + gamma) U^dagger(x - mu) psi(x - mu): multiply there, then shift
                        h = shift.backward(mu, color_multiply(links.conj().swapaxes(0, 1), h))
                    out[:, :2] += h
                    for s, (p, c) in enumerate(LOWER[mu]):
                        out[:, 2 + s] += (sign * c) * h[:, p]

        def hop(handle: Handle) -> Handle:
            psi = space.load(handle)
            out = np.zeros_like(psi)
            for k in range(0, len(psi), together):
                add_hops(psi[k : k + together], out[k : k + together])
            out *= half
            return space.store(out)

        return hop


def _rounded(array: np.ndarray, precision: Precision) -> np.ndarray:
    return from_storage(to_storage(array, precision), precision)

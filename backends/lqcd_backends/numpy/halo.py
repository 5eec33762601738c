r"""The hopping term of a slab of time slices, with half-spinor faces in place of the neighbours in t.

.. math:: \text{to the slab before: } h = (1-\gamma_t)\psi(t_0),\qquad
          \text{to the slab after: } h = U_t^\dagger(t_1)(1+\gamma_t)\psi(t_1)

Each half spinor is 2 Nc complex numbers a site and column, half of what a whole spinor would be. Slices are computed
whole, in the order of the directions that the unsliced kernel has, so that cutting a lattice changes no bits: the
interior is every slice but the first and the last, the exterior is those two.
"""

from __future__ import annotations

import numpy as np

from lqcd_core.backend import Handle
from lqcd_core.geometry import FULL
from lqcd_core.spaces import ArraySpace

from .backend import BLOCK_BYTES, LOWER, Shift, color_multiply, project


class SlabHop:
    """See the module; a :class:`~lqcd_core.backend.HaloHop`.

    Parameters
    ----------
    space
        Where results live.
    here, there
        Folded links ``(4, Nc, Nc, T, Z, Y, X)`` on the sites that are written, and on those that are read.
    """

    def __init__(self, space: ArraySpace, here: np.ndarray, there: np.ndarray):
        self.space, self.here, self.there = space, here, there
        self.slices = space.geometry.T
        self.shift = Shift(space.geometry, space.parity)
        self.half = space.precision.real_dtype.type(0.5)

    def faces(self, x: Handle) -> tuple[np.ndarray, np.ndarray]:
        psi, last = self.space.load(x), self.slices - 1
        down = project(psi[:, :, :, 0], 0, -1)
        up = color_multiply(_adjoint(self.there[0][:, :, last]), project(psi[:, :, :, last], 0, +1))
        return np.ascontiguousarray(down), np.ascontiguousarray(up)

    def interior(self, x: Handle) -> np.ndarray:
        psi = self.space.load(x)
        out = np.zeros_like(psi)
        if self.slices > 2:
            self._add(psi, out, 1, self.slices - 1)
        return out

    def exterior(self, x: Handle, partial: np.ndarray, below: np.ndarray, above: np.ndarray) -> Handle:
        psi, last = self.space.load(x), self.slices - 1
        if last == 0:
            self._add(psi, partial, 0, 1, below, above)
        else:
            self._add(psi, partial, 0, 1, below=below)
            self._add(psi, partial, last, last + 1, above=above)
        partial *= self.half
        return self.space.store(partial)

    def _add(self, psi, out, a: int, b: int, below=None, above=None) -> None:
        """2 H psi on the slices a .. b-1, added to zeros, a few columns at a time."""
        column = 4 * self.here[0, 0, :, a:b].nbytes  # bytes of one spinor column of these slices
        together = max(1, BLOCK_BYTES // max(1, column))
        for k in range(0, len(psi), together):
            columns = slice(k, k + together)
            edges = [None if face is None else face[columns] for face in (below, above)]
            self._add_columns(psi[columns], out[columns], a, b, *edges)

    def _add_columns(self, psi, out, a: int, b: int, below, above) -> None:
        target = out[:, :, :, a:b]
        for mu in range(4):
            for sign in (-1, +1):
                if mu == 0:
                    h = self._ahead(psi, a, b, above) if sign < 0 else self._behind(psi, a, b, below)
                else:
                    h = project(psi[:, :, :, a:b], mu, sign)
                    if sign < 0:
                        h = color_multiply(self.here[mu][:, :, a:b], self._move(mu, h, a, b, forward=True))
                    else:
                        h = self._move(mu, color_multiply(_adjoint(self.there[mu][:, :, a:b]), h), a, b, forward=False)
                target[:, :2] += h
                for s, (p, c) in enumerate(LOWER[mu]):
                    target[:, 2 + s] += (sign * c) * h[:, p]

    def _ahead(self, psi, a: int, b: int, above) -> np.ndarray:
        """U_t(x) (1 - gamma_t) psi(x + t) as half spinors on the slices a .. b-1."""
        h = project(psi[:, :, :, a + 1 : b + 1], 0, -1)
        if b == self.slices:
            h = np.concatenate([h, above[:, :, :, None]], axis=3)
        return color_multiply(self.here[0][:, :, a:b], h)

    def _behind(self, psi, a: int, b: int, below) -> np.ndarray:
        """U_t^dagger(x - t) (1 + gamma_t) psi(x - t) as half spinors on the slices a .. b-1."""
        low = max(a - 1, 0)
        h = color_multiply(_adjoint(self.there[0][:, :, low : b - 1]), project(psi[:, :, :, low : b - 1], 0, +1))
        return np.concatenate([below[:, :, :, None], h], axis=3) if a == 0 else h

    def _move(self, mu: int, h, a: int, b: int, forward: bool) -> np.ndarray:
        """h(x + mu) or h(x - mu) for a direction in space, on the slices a .. b-1."""
        if self.space.parity is FULL or mu != 3:
            return np.roll(h, -1 if forward else 1, axis=mu - 4)
        even_x = self.shift.even_x[a:b]
        return np.where(even_x, h, np.roll(h, -1, axis=-1)) if forward else np.where(even_x, np.roll(h, 1, axis=-1), h)


def _adjoint(u: np.ndarray) -> np.ndarray:
    return u.conj().swapaxes(0, 1)

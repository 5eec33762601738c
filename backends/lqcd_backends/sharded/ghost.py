r"""The hopping term of a slab through an inner backend that has no ``SupportsHalo``: ghost slices, by way of the host.

The inner backend is bound to the slab with two more time slices, the neighbours' edges. Both sit side by side, between
the slab's end and its beginning around the periodic circle:

    first slab   t0 ... t1  above below        all others   above below  t0 ... t1

so that the last slice of the circle, where the inner backend folds the boundary phase in, is the lattice's own edge for
the first slab (the link of ``below`` crosses it) and for the last (the link of t1 does). Links go in as they are: a
phase multiplied in beforehand would break a backend that stores two rows of a link.

Every application takes each spinor to the host and back twice. That is the price of asking nothing of the inner backend.
"""

from __future__ import annotations

import attrs
import numpy as np

from lqcd_core.backend import Handle, Links, Space
from lqcd_core.geometry import FULL


def with_ghosts(slab: np.ndarray, below: np.ndarray, above: np.ndarray, first: bool, axis: int) -> np.ndarray:
    """A slab and the slices before and after it, in the order of the module."""
    below, above = np.expand_dims(below, axis), np.expand_dims(above, axis)
    return np.concatenate([slab, above, below] if first else [above, below, slab], axis=axis)


class GhostHop:
    """See the module; a :class:`~lqcd_core.backend.HaloHop` whose faces are whole time slices.

    Parameters
    ----------
    backend
        The inner backend.
    links
        Links of the slab with its ghosts.
    source, target
        Inner spaces of the slab: where arguments and results live.
    first
        True for the slab that begins at t = 0.
    """

    def __init__(self, backend, links: Links, source: Space, target: Space, first: bool):
        self.source, self.target, self.first = source, target, first
        make = [backend.space(links.geometry, s.precision, s.n_rhs, s.parity) for s in (source, target)]
        self.wide_source, self.wide_target = make if source is not target else (make[0], make[0])
        full = target.parity is FULL
        self.hop = backend.hopping(links, make[0]) if full else backend.parity_hopping(links, self.wide_target)
        t = target.geometry.T
        self.own = slice(0, t) if first else slice(2, t + 2)

    def faces(self, x: Handle) -> tuple[np.ndarray, np.ndarray]:
        psi = self.source.unpack(x)
        return psi[:, 0].copy(), psi[:, -1].copy()

    def interior(self, x: Handle) -> np.ndarray:
        return self.source.unpack(x)

    def exterior(self, x: Handle, partial: np.ndarray, below: np.ndarray, above: np.ndarray) -> Handle:
        wide = self.wide_source.pack(with_ghosts(partial, below, above, self.first, axis=1))
        return self.target.pack(self.wide_target.unpack(self.hop(wide))[:, self.own])


def ghost_links(links: Links, start: int, stop: int) -> Links:
    """The links of slices start .. stop-1 with both ghosts."""
    T, first = links.geometry.T, start == 0
    u = np.asarray(links.array)
    array = with_ghosts(u[start:stop], u[start - 1], u[stop % T], first, axis=0)
    edge = first or stop == T
    return Links(
        geometry=attrs.evolve(links.geometry, T=stop - start + 2),
        array=array,
        phases=(links.phases[0] if edge else 1, *links.phases[1:]),
        coefficients=links.coefficients,
        digest=f"{links.digest}[{start}:{stop}]+2",
    )


def slab_links(links: Links, start: int, stop: int) -> Links:
    """The links of slices start .. stop-1; the phase in t stays on the lattice's last slice alone."""
    last = stop == links.geometry.T
    return Links(
        geometry=attrs.evolve(links.geometry, T=stop - start),
        array=np.asarray(links.array)[start:stop],
        phases=(links.phases[0] if last else 1, *links.phases[1:]),
        coefficients=links.coefficients,
        digest=f"{links.digest}[{start}:{stop}]",
    )

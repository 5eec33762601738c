"""An operator as one rank sees it: what goes in and comes out of host memory is the rank's own time slices.

A solve does little with host arrays: it packs the source, takes its norm, and unpacks the solution. Here all three are of
the slab; the norm is completed by the other ranks' slices, in the order of the lattice, so its bits are those of one host.
Everything else (hops, sums) is that of the operator on all ranks, and so is the solution.
"""

from __future__ import annotations

import attrs
import numpy as np

from lqcd_core.backend import Handle
from lqcd_core.errors import ParameterError
from lqcd_core.operators.bound import BoundOperator
from lqcd_core.operators.even_odd import SchurOperator
from lqcd_core.spaces import MaskedSpace, Vectors, check_batch

from .ranks import RankTeam
from .space import ShardedSpace
from .team import Each


class SlabSpace:
    """A :class:`~.space.ShardedSpace` whose host arrays are the rank's slab; handles are those of the whole space.

    Parameters
    ----------
    whole
        The space of all ranks.
    """

    def __init__(self, whole: ShardedSpace):
        self.whole, self.team = whole, whole.team
        self.t_start, self.t_stop = whole.slabs[self.team.rank]
        self.geometry = attrs.evolve(whole.geometry, T=self.t_stop - self.t_start)
        # Protocols look at what an object has itself: everything but the host's side is the whole space's.
        for name in dir(whole):
            if not name.startswith("_") and name not in self.__dict__ and not hasattr(type(self), name):
                setattr(self, name, getattr(whole, name))

    def pack(self, array) -> Handle:
        """The slab's part of a batch, ``(n, t, Z, Y, X, Ns, Nc)``."""
        array = np.asarray(array)
        check_batch(self, array.shape)
        finite = self.team.exchange("finite", bool(np.isfinite(array).all()))
        mine = Each([array if rank == self.team.rank else None for rank in range(self.team.shards)])
        return self.whole._make("pack", len(array), not all(finite), mine)

    def unpack(self, handle: Handle) -> np.ndarray:
        """The slab's part of the columns."""
        return self.team.call("slab", self.whole.remote.number, handle.number(self.team))[self.team.rank]

    def convert_from(self, handle: Handle, source) -> Handle | None:
        """As of the whole space; None where it has no way that avoids the host."""
        convert = getattr(self.whole, "convert_from", None)
        return convert(handle, source.whole) if convert is not None and isinstance(source, SlabSpace) else None

    def of_all_slices(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers ``(n, t)`` of the slab's time slices, for all time slices of the lattice, ``(n, T)``."""
        return np.concatenate(self.team.exchange("slices", numbers), axis=1)


class SlabOperator(BoundOperator):
    """See the module; made by :func:`on_slab`. ``geometry`` is the slab's."""

    def __init__(self, whole: BoundOperator):
        self.__dict__.update({k: v for k, v in whole.__dict__.items() if k != "_rebound"})
        self.whole, self._schur = whole, {}
        self.space = SlabSpace(whole.space)
        self.vectors, self.geometry = Vectors(self.space), self.space.geometry

    def even_odd(self, parity: int = 0, form: str = "symmetric"):
        """The Schur complement, with the slab's part of host arrays."""
        key = (parity, form)
        if key not in self._schur:
            self._schur[key] = SlabSchur(self.whole.even_odd(parity, form), self)
        return self._schur[key]

    def rebind(self, **options) -> SlabOperator:
        """As :meth:`BoundOperator.rebind`; the backend must be one over ranks again."""
        return on_slab(self.whole.rebind(**options))


class SlabSchur:
    """A :class:`~lqcd_core.operators.even_odd.SchurOperator` whose host arrays are the rank's slab.

    Slabs begin on even time slices, so the parity of a site inside its slab is its parity on the lattice.
    """

    def __init__(self, whole: SchurOperator, bound: SlabOperator):
        self.whole, self.bound, self.geometry = whole, bound, bound.geometry
        self.parity, self.form, self.masked = whole.parity, whole.form, whole.masked
        self.apply, self.apply_dagger, self.apply_normal = whole.apply, whole.apply_dagger, whole.apply_normal
        self.prepare, self.reconstruct = whole.prepare, whole.reconstruct
        spaces = {k: MaskedSpace(bound.space, k) if self.masked else SlabSpace(whole.v[k].space) for k in (0, 1)}
        self.v = {k: Vectors(space) for k, space in spaces.items()}
        self.vectors = self.v[self.parity]

    linear, normal_linear, rebind = SchurOperator.linear, SchurOperator.normal_linear, SchurOperator.rebind
    split, join = SchurOperator.split, SchurOperator.join


def on_slab(M: BoundOperator) -> SlabOperator:
    """A bound operator whose host fields are the slab of the rank that asks.

    Parameters
    ----------
    M
        Bound by every rank to the same, with a backend over ranks.

    Returns
    -------
    SlabOperator
        ``space.t_start`` and ``space.t_stop`` say which slices. Every rank has to make the same calls on it.

    Raises
    ------
    ParameterError
        If M is not bound over ranks: then its host fields are whole.
    """
    if not isinstance(getattr(M.space, "team", None), RankTeam):
        raise ParameterError(
            f"backend {M.choice.name!r} is not over ranks here, so there is no slab of this process; use the operator itself."
        )
    return SlabOperator(M)

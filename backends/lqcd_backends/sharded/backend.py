r"""The sharded executor: one lattice as slabs of time slices, each worked on by an inner backend.

.. math:: H\psi(x) = \tfrac12\sum_\mu\left[(1-\gamma_\mu)U_\mu(x)\psi(x+\hat\mu)
          + (1+\gamma_\mu)U^\dagger_\mu(x-\hat\mu)\psi(x-\hat\mu)\right]

Only the t terms of a slab's first and last slice need a neighbour: they travel as faces (:mod:`.faces`) while the rest
is computed. Everything else is done slab by slab (:mod:`.shard`), by threads or by processes (:mod:`.team`).
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from lqcd_core.backend import DiracTerms, Handle, Links, SiteDiagonal, make_request
from lqcd_core.errors import BackendUnavailable, ParameterError
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.machine import usable_processors
from lqcd_core.precision import Precision
from lqcd_core.registry import REGISTRY

from . import ranks
from .ghost import ghost_links, slab_links
from .slabs import slabs
from .space import ShardedHandle, ShardedSpace
from .team import Each, Team, ThreadTeam


def sharded(
    inner=None, shards: int | None = None, executor: str = "auto", reductions: str = "exact", timeout: float = 300.0
):
    """The executor for these options; with one shard it is the inner backend itself.

    Parameters
    ----------
    inner
        A backend's name, or ``(name, options)``.
    shards
        Number of slabs; None takes the number of usable cores, or of ranks where ranks were launched.
    executor
        ``threads``, ``processes``, ``torch.distributed``, ``mpi``, or ``auto``: what torchrun or mpirun started, else
        threads.
    reductions
        ``exact`` or ``fast``.
    timeout
        Seconds after which a worker that does not answer counts as hung.

    Raises
    ------
    ParameterError
        If no inner backend is named, or it is an executor itself, or ``shards`` is not the number of ranks.
    BackendUnavailable
        If the inner backend cannot run here.
    """
    if inner is None:
        raise ParameterError(
            "backend 'sharded' needs the option inner=, the backend that works on each slab, for example "
            "use_backend('sharded', inner='numpy', shards=2)."
        )
    name, options = (inner, {}) if isinstance(inner, str) else inner
    record = REGISTRY.record(name)
    if record.wraps:
        raise ParameterError(f"backend 'sharded': inner={name!r} is an executor itself; name what it should run on.")
    if executor == "auto":
        executor = ranks.launched() or "threads"
    if executor in ("torch.distributed", "mpi"):
        size = ranks.world_size(executor)
        if shards not in (None, size):
            raise ParameterError(
                f"backend 'sharded': shards={shards} asked for, but {size} ranks were launched, and each has one slab; "
                f"leave shards out, or launch {shards} ranks."
            )
        shards = size
    shards = usable_processors() if shards is None else shards
    if shards == 1:
        return REGISTRY.load(name, options).instance
    return ShardedBackend(name, options, shards, executor, reductions == "exact", float(timeout))


class ShardedBackend:
    """See the module; made by :func:`sharded`. A team that was stopped is replaced at the next bind."""

    def __init__(
        self,
        inner: str,
        options: Mapping[str, Any],
        shards: int,
        executor: str,
        exact: bool,
        timeout: float,
        environments: list[dict[str, str]] | None = None,
    ):
        self.environments = environments  # of each worker process, where they differ
        self.inner, self.options, self.shards = inner, dict(options), shards
        self.executor, self.exact, self.timeout = executor, exact, timeout
        self.record = REGISTRY.record(inner)
        self._team: Team | None = None
        able = self.team.abilities
        # A protocol is there if its method is: only what the inner backend has.
        if able["even_odd"]:
            self.parity_hopping = self._parity_hopping
        if able["site_diagonal"]:
            self.site_diagonal = self._site_diagonal
        if able["fused_halo"]:
            self.fused = self._fused

    @property
    def team(self) -> Team:
        """The workers, started anew if they were stopped."""
        if self._team is None or self._team.stopped:
            self._links: weakref.WeakKeyDictionary[Links, Any] = weakref.WeakKeyDictionary()
            self._team = self._start()
        return self._team

    def _start(self) -> Team:
        if self.executor == "threads":
            return ThreadTeam(self.shards, self.timeout, REGISTRY.load(self.inner, self.options).instance)
        if self.executor in ("torch.distributed", "mpi"):
            return ranks.start(self.executor, self.timeout, REGISTRY.load(self.inner, self.options).instance)
        from .processes import ProcessTeam

        return ProcessTeam(self.shards, self.timeout, (self.inner, self.options), self.environments)

    def close(self) -> None:
        """Stop the workers; a later bind starts new ones."""
        if self._team is not None and not self._team.stopped:
            self._team._stop("close() was called.")

    # -- the two methods ----------------------------------------------------------------------------------------------

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> ShardedSpace:
        self.team.agree("the problem", {
            "inner": self.inner, "inner options": repr(sorted(self.options.items())), "lattice": str(geometry),
            "precision": str(precision), "right-hand sides": n_rhs, "parity": str(parity),
            "reductions": "exact" if self.exact else "fast",
        })  # fmt: skip
        pieces = slabs(geometry.T, self.shards)
        for extent in {stop - start for start, stop in pieces}:
            slab = attrs.evolve(geometry, T=extent)
            reason = self.record.why_not(make_request("wilson", precision, slab, n_rhs))
            if reason:
                raise BackendUnavailable(f"the inner backend {self.inner!r} {reason} (asked for a slab, {slab}).")
        return ShardedSpace(self.team, pieces, geometry, precision, n_rhs, parity, self.exact)

    def hopping(self, links: Links, space: ShardedSpace) -> Callable[[Handle], Handle]:
        return self._hop(links, space, space)

    def _parity_hopping(self, links: Links, target: ShardedSpace) -> Callable[[Handle], Handle]:
        source = self.space(target.geometry, target.precision, target.n_rhs, 1 - target.parity)
        return self._hop(links, source, target)

    def _hop(self, links: Links, source: ShardedSpace, target: ShardedSpace) -> Callable[[Handle], Handle]:
        team, remote = target.team, target.team.new()
        pieces, tainted = self._pieces(links, target)
        first = Each([rank == 0 for rank in range(self.shards)])
        sizes = team.call("hopping", remote.number, pieces.number, source.remote.number, target.remote.number, first)
        return self._exchanging(team, remote, max(sizes), tainted)

    @staticmethod
    def _exchanging(team: Team, remote, column: int, tainted: bool) -> Callable[[Handle], Handle]:
        """A function of handles whose workers exchange faces of so many bytes a column."""

        def hop(x: Handle) -> Handle:
            new = team.new()
            with team.lock:  # room for the faces must still be there when they are written
                team.reserve(column * x.columns)
                team.call("hop", new.number, remote.number, x.number(team))
            return ShardedHandle(new, x.columns, x.tainted or tainted)

        return hop

    def _pieces(self, links: Links, space: ShardedSpace):
        """The slabs' links in the workers, sent once for all that is bound to them; and whether they hold a NaN."""
        team = space.team
        kept = self._links.get(links)
        if kept is None or kept[0].team is not team:
            team.agree("the links", {
                "digest": links.digest, "boundary phases": str(links.phases), "coefficients": str(links.coefficients),
            })  # fmt: skip
            cut = slab_links if team.abilities["halo"] else ghost_links
            kept = team.new(), not np.isfinite(np.asarray(links.array)).all()
            team.call("links", kept[0].number, Each([cut(links, a, b) for a, b in space.slabs]))
            self._links[links] = kept
        return kept

    # -- optional -----------------------------------------------------------------------------------------------------

    def _site_diagonal(self, term: SiteDiagonal, space: ShardedSpace) -> Callable[[Handle], Handle]:
        team, remote = space.team, space.team.new()
        terms, tainted = _cut_term(term, space), not _finite_term(term)
        team.call("site_diagonal", remote.number, Each(terms), space.remote.number)

        def apply(x: Handle) -> Handle:
            new = team.new()
            team.call("apply", new.number, remote.number, x.number(team))
            return ShardedHandle(new, x.columns, x.tainted or tainted)

        return apply

    def _fused(self, kind: str, terms: DiracTerms, space: ShardedSpace) -> Callable[[Handle], Handle] | None:
        if kind not in ("M", "Mdag"):
            return None  # M^dagger M is their product, and the Schur complements are derived
        team, remote = space.team, space.team.new()
        (links, tainted), diagonal = self._pieces(terms.links, space), _cut_term(terms.diagonal, space)
        sizes = team.call("fused", remote.number, kind, links.number, Each(diagonal), space.remote.number)
        return (
            None
            if None in sizes
            else self._exchanging(team, remote, max(sizes), tainted or not _finite_term(terms.diagonal))
        )

    def describe(self) -> dict[str, str]:
        """Inner backend, shards and executor, and what the inner backend says."""
        facts = {
            "inner": self.inner, "shards": str(self.shards), "executor": self.executor,
            "reductions": "exact" if self.exact else "fast", "faces": "half spinors" if self.team.abilities["halo"] else "host",
        }  # fmt: skip
        return {**facts, **{f"inner_{k}": v for k, v in self.team.abilities["facts"].items()}}


def _cut_term(term: SiteDiagonal, space: ShardedSpace) -> list[SiteDiagonal]:
    """The site-diagonal term of every slab."""
    blocks = 0 if term.blocks is None or not space.team.compares else zlib.crc32(np.ascontiguousarray(term.blocks).data)
    space.team.agree(
        "the operator's parameters", {"scalar": term.scalar, "twist": term.twist, "checksum of blocks": blocks}
    )
    if term.blocks is None:
        return [term] * len(space.slabs)
    return [attrs.evolve(term, blocks=term.blocks[a:b]) for a, b in space.slabs]


def _finite_term(term: SiteDiagonal) -> bool:
    numbers = np.isfinite(term.scalar) and np.isfinite(term.twist)
    return bool(numbers and (term.blocks is None or np.isfinite(term.blocks).all()))

"""Budgets: what a graph will need of a NeuronCore against what there is, before anything is compiled.

The limits are the vendor's (5,000,000 instructions per compiled graph, 2 GiB for a graph with its constants, SBUF and HBM
by generation); the needs are estimates of the written cost model. A graph over the instruction or the constant budget
is split along t into slabs, as even as the extent allows.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Sequence

import attrs

from lqcd_core.errors import ParameterError

from .device import GENERATIONS

LOG = logging.getLogger("lqcd_backends.neuron")
"""Every decision is logged here at level INFO."""

INSTRUCTION_LIMIT = 5_000_000
"""Instructions per compiled graph."""
HLO_LIMIT = 2 << 30
"""Bytes of a graph with the constants baked into it."""
MICROCODE = 96 << 20
"""HBM that the runtime keeps per physical core, bytes."""


@attrs.frozen(kw_only=True)
class Need:
    """What the graphs of one operator need. Bytes, unless said otherwise."""

    instructions: int
    """Estimated instructions of the largest graph."""
    constants: int
    """Constants of the largest graph (0 unless links are baked)."""
    sbuf: int
    """Working set of the largest graph: weights and vectors. Above the core's SBUF it streams from HBM."""
    hbm: int
    """Weights of all graphs of the operator on one core, and the vectors of one call."""
    slabs: int
    """Slabs along t."""
    chained: bool
    """True if the whole operator is one graph, False if each stage is a launch of its own."""


@attrs.frozen(kw_only=True)
class Decision:
    """A need that was accepted, beside the limits."""

    need: Need
    """What was chosen."""
    instruction_limit: int
    """Instructions allowed."""
    sbuf_limit: int
    """SBUF of the core, or the threshold the user set."""
    hbm_limit: int
    """HBM of the core."""
    what: str
    """Operator and lattice, for the log."""

    def __str__(self) -> str:
        n = self.need
        form = "one graph" if n.chained else "a graph per stage"
        slabs = f"{n.slabs} slabs along t" if n.slabs > 1 else "no slabs"
        place = "fits SBUF" if n.sbuf <= self.sbuf_limit else "streams from HBM"
        return (
            f"{self.what}: {form}, {slabs}; about {n.instructions:,} of {self.instruction_limit:,} instructions, "
            f"{n.constants:,} of {HLO_LIMIT:,} B of constants, working set {n.sbuf:,} of {self.sbuf_limit:,} B of SBUF "
            f"({place}), HBM {n.hbm:,} of {self.hbm_limit:,} B"
        )


def cuts(extent: int) -> list[int]:
    """Numbers of slabs worth trying, ascending: each makes the thickest slab thinner than the one before it does."""
    return [k for k in range(1, extent + 1) if k == 1 or -(-extent // k) < -(-extent // (k - 1))]


def slabs_of(extent: int, count: int) -> list[tuple[int, int]]:
    """(first time slice, number of slices) of each of ``count`` slabs; the numbers differ by at most one.

    Raises
    ------
    ParameterError
        If there are more slabs than time slices.

    Examples
    --------
    >>> slabs_of(7, 3)
    [(0, 2), (2, 2), (4, 3)]
    """
    if not 1 <= count <= extent:
        raise ParameterError(f"slabs={count} cannot be cut from T={extent} time slices; use 1 to {extent}.")
    edges = [k * extent // count for k in range(count + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]


def decide(
    what: str, extent: int, stages: int, need: Callable[[int, bool], Need], *, instruction_limit: int = INSTRUCTION_LIMIT,
    sbuf_limit: int | None = None, split_above_sbuf: bool = False, hbm_limit: int | None = None, refused: Collection[tuple[int, bool]] = (),
    slabs: int | None = None,
) -> Decision:  # fmt: skip
    """The cheapest way to cut an operator that fits: one graph, a graph per stage, then more and more slabs.

    Parameters
    ----------
    what
        Operator and lattice, for messages.
    extent
        Time slices.
    stages
        Stages of the operator.
    need
        ``(slabs, chained) -> Need``.
    instruction_limit, sbuf_limit, hbm_limit
        Limits; None for the smallest generation's.
    split_above_sbuf
        Launch every stage by itself if the working set of one graph is above ``sbuf_limit``. Otherwise such a graph
        streams from HBM: a launch costs more than the traffic.
    refused
        Pairs (slabs, chained) of which the compiler said already that a graph is too large.
    slabs
        A number the user fixed.

    Raises
    ------
    ParameterError
        If nothing fits, with the numbers, or if there are more slabs than time slices.
    """
    smallest = GENERATIONS["gen2"]
    sbuf_limit, hbm_limit = sbuf_limit or smallest.sbuf, hbm_limit or smallest.hbm_bytes
    if slabs is not None:
        slabs_of(extent, slabs)
    choices = cuts(extent) if slabs is None else [slabs]
    tried: Need | None = None
    for k in choices:
        for chained in (True, False) if k == 1 else (False,):
            if (not chained and k == 1 and stages == 1) or (k, chained) in refused:
                continue
            tried = need(k, chained)
            if chained and stages > 1 and split_above_sbuf and tried.sbuf > sbuf_limit:
                continue
            if tried.instructions <= instruction_limit and tried.constants <= HLO_LIMIT:
                found = Decision(
                    need=tried, instruction_limit=instruction_limit, sbuf_limit=sbuf_limit, hbm_limit=hbm_limit, what=what
                )  # fmt: skip
                if tried.hbm + MICROCODE > hbm_limit:
                    raise ParameterError(
                        f"{what} needs about {tried.hbm:,} B of HBM and a core has {hbm_limit - MICROCODE:,}: use a 16-bit "
                        "precision, fewer right-hand sides per core, or formulation='half'."
                    )
                LOG.info("%s", found)
                return found
    if tried is None:
        raise ParameterError(
            f"the compiler refused {what} for its size in every cut: slabs along t tried {_listed(sorted({k for k, _ in refused}))}. "
            "Use fewer right-hand sides or formulation='half'."
        )
    raise ParameterError(
        f"{what} does not fit even in {tried.slabs} slabs along t: about {tried.instructions:,} instructions (limit "
        f"{instruction_limit:,}) and {tried.constants:,} B of constants (limit {HLO_LIMIT:,}) in a graph. Use "
        "formulation='half', gauge='resident', or fewer right-hand sides."
    )


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


__all__ = ["HLO_LIMIT", "INSTRUCTION_LIMIT", "Decision", "Need", "cuts", "decide", "slabs_of"]

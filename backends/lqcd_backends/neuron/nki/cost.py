"""What an application of the Wilson operator costs by the documented rules, for both kernels: nothing here was measured.

Rules: VectorE max(64, 2N) cycles for two tile inputs; TensorE max(columns, 64) cycles, x4 in float32, array tiles side by side;
DMA at the practical rate of sixteen queues or the core's share of HBM, whichever is less. A kernel takes as long as its busiest
engine. The tests hold these formulas against instructions counted one by one.

The kernel with the smaller predicted time per site and right-hand side is chosen; an option can force either.
"""

from __future__ import annotations

import math

import attrs

from lqcd_core.errors import ParameterError
from lqcd_core.geometry import FULL, LatticeGeometry

from ..budget import INSTRUCTION_LIMIT
from . import window
from .compile_worker import array_type
from .layout import SBUF_BYTES, VectorLayout, why_not
from .window import BANK

CLOCKS = {2: (1.12, 2.8, 1.4), 3: (0.96, 2.4, 1.2), 4: (1.2, 2.4, 1.2)}
"""GHz of VectorE, TensorE, ScalarE by generation."""
DMA_BYTES_PER_NS = {2: 272.0, 3: 362.0, 4: 528.0}
"""The smaller of sixteen practical DMA queues and the core's HBM share."""
FLOOR = 64
"""Cycles below which no instruction falls."""
KERNELS = {"vector": "A (Vector engine)", "tensor": "B (Tensor engine)"}
FLOPS = 1320
"""Per site and right-hand side: 8 x 12 + 8 x 132 + 8 x 24 - 24."""


@attrs.frozen
class Cost:
    """Predicted cost of M on one physical core."""

    formulation: str
    """vector or tensor."""
    cycles: dict[str, float]
    """Cycles per site (all right-hand sides) of ``vector``, ``tensor``, ``scalar``, each at its own clock."""
    dma_bytes: float
    """Bytes per site (all right-hand sides)."""
    ns: dict[str, float]
    """ns per site by engine, DMA included."""
    n_rhs: int
    """Right-hand sides."""
    walk: str = ""
    """Kernel B: the window of spinors in SBUF, or why there is none."""

    @property
    def bound(self) -> str:
        """The busiest engine."""
        return max(self.ns, key=self.ns.get)

    @property
    def time(self) -> float:
        """ns per site and right-hand side."""
        return max(self.ns.values()) / self.n_rhs


def predict(layout: VectorLayout) -> Cost:
    """The cost of M, a scalar diagonal, in this layout."""
    w, wl = (array_type(d).itemsize for d in (layout.dtype, layout.link_dtype))
    g, n = layout.generation, layout.n_rhs
    if layout.formulation == "vector":
        nt, nz, ny, rows = layout.block
        s, p = rows * layout.sites[3], nt * nz * ny
        # Elements of the two-input instructions of one tile: t and y have real gamma entries, z and x imaginary ones.
        real, imaginary = [6, 6], [3] * 4
        hops = [
            4 * [18] + 2 * [18] + 2 * [12] + gamma for gamma in (real, imaginary, real, imaginary) for _ in range(2)
        ]
        sums = [[12, *gamma] for gamma in (real, imaginary, real, imaginary) for _ in range(2)][1:]
        select = [12 / min(2, rows)] * (2 * min(2, rows)) if layout.parity is not FULL else []
        lengths = [m * s for group in (*hops, *sums, select, [24]) for m in group]
        vector = n * sum(max(FLOOR, 2 * m) for m in lengths) / (p * s)
        scalar = n * (24 * s + 24 * s + (24 * s if select else 0)) / (p * s)
        cycles = {"vector": vector, "tensor": 0.0, "scalar": scalar}
        dma = 144 * wl + 24 * w * n * (5 + 2 / rows + 1 + 2)
    else:
        v, sub = math.prod(layout.nodes), layout.slots[1]
        walk = layout.walk
        sites = max(1, walk.rows) * layout.inner[3]
        count = max(1, min(sites, BANK // n))
        cycles = {
            "tensor": 8 * max(n, FLOOR) * (4 if layout.dtype == "float32" else 1) / v,
            "vector": max(FLOOR, 2 * count * n) / (v * count),
            "scalar": 0.0 if walk.axis is None else max(FLOOR, sites * n) / (v * sites),  # into the window
        }  # fmt: skip
        dma = 8 * 24 * 24 * sub * wl + 24 * w * n * (walk.reads + 1)
    fv, ft, fs = CLOCKS[g]
    ns = {
        "vector": cycles["vector"] / fv, "tensor": cycles["tensor"] / ft, "scalar": cycles["scalar"] / fs,
        "dma": dma / DMA_BYTES_PER_NS[g],
    }  # fmt: skip
    walk = window.described(layout.demand, layout.walk, SBUF_BYTES[g]) if layout.formulation == "tensor" else ""
    return Cost(layout.formulation, cycles, dma, ns, n, walk)


VECTOR_INSTRUCTIONS = 1000
"""Kernel A has hardware loops over blocks and right-hand sides: its code grows with neither."""


def instructions(layout: VectorLayout, per_site: bool = False) -> int:
    """Instructions of the code of M, hardware loops counted once; M^dagger M in one launch has twice as many.

    ``per_site``: the diagonal has a block per site.
    """
    if layout.formulation == "vector":
        return VECTOR_INSTRUCTIONS
    return window.instructions(layout.demand, layout.walk, per_site)


def too_many_instructions(layout: VectorLayout) -> str | None:
    """None, or why the compiler would refuse the longest kernel of this layout: a clause with the numbers."""
    n = max(instructions(layout, True), instructions(layout) * (2 if layout.parity is FULL else 1))
    if n <= INSTRUCTION_LIMIT:
        return None
    return (
        f"about {n:,} instructions after unrolling are more than the {INSTRUCTION_LIMIT:,} of a compiled graph; use "
        "formulation='vector', whose code does not grow with the lattice, or cut the lattice over more cores"
    )


@attrs.frozen
class Choice:
    """Which kernel, and why."""

    formulation: str
    """vector or tensor."""
    costs: dict[str, Cost]
    """By formulation; one that does not fit is missing."""
    refused: dict[str, str]
    """Why a formulation is missing."""
    forced: bool
    """True if the user named it."""

    def __str__(self) -> str:
        lines = [
            f"kernel {KERNELS[self.formulation]}, {'as asked' if self.forced else 'the smaller predicted time'} (predictions, not measured):"
        ]
        for name, c in self.costs.items():
            gflops = FLOPS / c.time
            lines.append(
                f"  {KERNELS[name]}: {c.time:.1f} ns per site and right-hand side ({gflops:.0f} GFLOP/s per core), bound by {c.bound}; "
                f"{c.cycles['vector']:.1f} VectorE and {c.cycles['tensor']:.1f} TensorE cycles and {c.dma_bytes:.0f} B per site"
            )
            if c.walk:
                lines.append(f"    {c.walk}")
        lines += [f"  {KERNELS[name]}: {why}" for name, why in self.refused.items()]
        return "\n".join(lines)


def choose(
    geometry: LatticeGeometry, n_rhs: int = 1, dtype: str = "float32", link_dtype: str | None = None, generation: int = 3, parity=FULL,
    force: str | None = None,
) -> Choice:  # fmt: skip
    """The kernel for a lattice, batch and storage.

    Raises
    ------
    ParameterError
        If no kernel fits, or the forced one does not.

    Examples
    --------
    >>> g = LatticeGeometry(T=16, Z=16, Y=16, X=16)
    >>> choose(g, 1).formulation, choose(g, 12, "bfloat16").formulation
    ('vector', 'tensor')
    """
    if force not in (None, *KERNELS):
        raise ParameterError(f"no kernel {force!r}; there are {', '.join(KERNELS)}.")
    reason = why_not(geometry, n_rhs)
    if reason:
        raise ParameterError(f"backend 'neuron-nki' {reason}.")
    costs, refused = {}, {}
    for name in KERNELS:
        layout = VectorLayout(
            geometry=geometry, parity=parity, n_rhs=n_rhs, dtype=dtype, link_dtype=link_dtype or dtype, formulation=name, generation=generation
        )  # fmt: skip
        why = layout.why_not() or too_many_instructions(layout)
        if why:
            refused[name] = why
        else:
            costs[name] = predict(layout)
    if force in refused or not costs:
        raise ParameterError(
            f"kernel {force or 'of any kind'} cannot run here: {refused.get(force) or '; '.join(refused.values())}."
        )
    best = force or min(costs, key=lambda name: costs[name].time)
    return Choice(best, costs, refused, force is not None)


def crossover(geometry: LatticeGeometry, dtype: str = "float32", generation: int = 3, largest: int = 64) -> int | None:
    """The smallest number of right-hand sides at which kernel B is the faster one; None up to ``largest``."""
    for n in range(1, largest + 1):
        if choose(geometry, n, dtype, generation=generation).formulation == "tensor":
            return n
    return None

r"""The written cost model: element operations of a graph, by formulation, and what they cost on an engine.

Per site and right-hand side, c colours (c = 3 in brackets). Half-spinor form of H:

.. math:: \underbrace{32c}_{\text{project }(96)} + \underbrace{8\,(8c^2 + 8c^2-4c)}_{\text{products }(576+480)}
          + \underbrace{7\cdot 8c}_{\text{reconstruct }(168)} = 1320

Fused form: one product of K = 64c by 8c, :math:`512c^2` multiply-adds (4608). A site term of constants costs 8c (24) or, with a
twist, 24c (72); of blocks :math:`32c^2 + 32c^2 - 8c` (552). Subtracting costs 8c.

Rates are the vendor's documented rules, not measurements: an element operation with two inputs takes two cycles of 128
lanes; a product of K <= 128 rows takes max(n, 64) cycles, four times that in fp32.
"""

from __future__ import annotations

import math

import attrs

from ..device import GENERATIONS, Generation
from .graph import GraphSpec, Stage, Term

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one stored number."""
TILE = 128 * 512
"""Elements that one instruction of a vector engine handles: 128 partitions of 512 fp32."""
MATMUL_INSTRUCTIONS = 16
"""Instructions per site of the fused product: eight 24-row blocks, two instructions each."""


@attrs.frozen
class Counts:
    """Element counts per output site and right-hand side (weights: per site). The letters of the module text."""

    arithmetic: float = 0.0
    """Additions, subtractions, multiplications, sign changes."""
    macs: float = 0.0
    """Multiply-adds of matrix products."""
    moves: float = 0.0
    """Elements written by concatenations, selections and copies."""
    converts: float = 0.0
    """Elements converted between types, those of weights not counted."""
    weight_converts: float = 0.0
    """Elements of weights converted, per site."""

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(attrs.astuple(self), attrs.astuple(other))
        return Counts(*(a + b for a, b in pairs))


def count(spec: GraphSpec) -> Counts:
    """The model's counts for a graph."""
    c = spec.nc
    total = Counts(moves=8 * c)  # the last stack
    ghosts = 1 + 2 / spec.sites[0] if spec.ghost else 1
    if spec.storage_in != "float32":
        total += Counts(converts=8 * c * ghosts)
    if spec.two_vectors and spec.storage_centre != "float32":
        total += Counts(converts=8 * c)
    if spec.storage_out != "float32":
        total += Counts(converts=8 * c)
    for group in spec.chain:
        for stage in group:
            total += _stage(spec, stage)
    return total


def _stage(spec: GraphSpec, stage: Stage) -> Counts:
    c = spec.nc
    if not stage.hop:
        return _term(stage.centre, c)
    total = _half(spec, stage) if spec.formulation == "half" else _fused(spec, stage)
    if stage.after is not None:
        total += _term(stage.after, c)
    if stage.centre is not None:
        total += _term(stage.centre, c) + Counts(arithmetic=8 * c)
    return total


def _shifts(spec: GraphSpec, stage: Stage, ghosted: float) -> tuple[float, float]:
    """(copies of a vector that the eight shifts make, selections among them)."""
    moved = sum(2 for mu in range(4) if spec.sites[mu] > 1 and not (mu == 0 and spec.ghost))
    return moved, 2.0 if stage.parity is not None else 0.0


def _half(spec: GraphSpec, stage: Stage) -> Counts:
    c = spec.nc
    ghosts = (2 * (1 + 2 / spec.sites[0]) + 6) / 8 if spec.ghost else 1.0  # the two t hops project the ghosts too
    moved, selected = _shifts(spec, stage, ghosts)
    arithmetic = 32 * c * ghosts + 8 * (16 * c * c - 4 * c) + 7 * 8 * c
    moves = 8 * 8 * c * ghosts + (moved + selected) * 4 * c + 12 * c
    wide = 0.0 if spec.link_storage == "float32" else 16.0 * c * c
    return Counts(arithmetic=arithmetic, moves=moves, weight_converts=wide)


def _fused(spec: GraphSpec, stage: Stage) -> Counts:
    c = spec.nc
    ghosts = 1 + 2 / spec.sites[0] if spec.ghost else 1.0
    moved, selected = _shifts(spec, stage, ghosts)
    moves = 8 * c * ghosts + (moved + selected) * 8 * c + 64 * c
    arithmetic = 0.0
    if stage.dagger:  # gamma5 before and after
        arithmetic, moves = 4 * c * (1 + ghosts), moves + 8 * c * (1 + ghosts)
    wide = 0.0 if spec.link_storage == "float32" else 512.0 * c * c
    return Counts(arithmetic=arithmetic, macs=512 * c * c, moves=moves, weight_converts=wide)


def _term(term: Term, c: int) -> Counts:
    if term.is_one:
        return Counts()
    if term.kind == "blocks":
        return Counts(arithmetic=32 * c * c + 8 * c * (4 * c - 1))
    return Counts(arithmetic=8 * c if term.kind == "scale" else 24 * c)


def weight_bytes(spec: GraphSpec) -> int:
    """Bytes of all weights of a graph."""
    volume, c, total = math.prod(spec.sites), spec.nc, 0
    for name in spec.weights:
        if name.startswith("links"):
            reals = 16 * c * c if spec.formulation == "half" else 512 * c * c
            total += reals * BYTES[spec.link_storage] * volume
        elif name.startswith("even_x"):
            total += 4 * volume // spec.sites[3]
        elif name.startswith("blocks"):
            total += 16 * c * c * 4 * volume
    return total


def vector_bytes(spec: GraphSpec) -> int:
    """Bytes of all vectors that enter and leave."""
    out = 8 * spec.nc * spec.n_rhs * math.prod(spec.sites)
    widths = (BYTES[spec.storage_in], BYTES[spec.storage_centre])
    return sum(math.prod(s) * w for s, w in zip(spec.vector_shapes(), widths)) + out * BYTES[spec.storage_out]


def instructions(spec: GraphSpec) -> int:
    """Estimated instructions of the compiled graph.

    Elements are handled ``TILE`` at a time; a fused product costs ``MATMUL_INSTRUCTIONS`` per site and 64 right-hand
    sides, unrolled. The compiler's tiling is not documented, so this is an estimate from outside.
    """
    volume, n, c = math.prod(spec.sites), spec.n_rhs, count(spec)
    elements = (c.arithmetic + c.moves + c.converts) * n + c.weight_converts
    hops = sum(stage.hop for group in spec.chain for stage in group)
    matmul = MATMUL_INSTRUCTIONS * volume * hops * math.ceil(n / 512) if spec.formulation == "fused" else 0
    return math.ceil(elements * volume / TILE) + matmul


def seconds(spec: GraphSpec, generation: Generation) -> dict[str, float]:
    """Model time of one call by what limits it: ``vector``, ``tensor``, ``memory``; seconds, no launch or host cost."""
    volume, n, c = math.prod(spec.sites), spec.n_rhs, count(spec)
    vector = (2 * c.arithmetic * n + c.converts * n + c.weight_converts) * volume / 128 / (generation.vector_ghz * 1e9)
    tensor = 0.0
    if spec.formulation == "fused":
        slow = 1 if narrow_product(spec) else 4
        hops = sum(stage.hop for group in spec.chain for stage in group)
        # K = 8 x 8c rows go through the array 128 at a time.
        passes = math.ceil(64 * spec.nc / 128)
        tensor = hops * passes * max(n, 64) * slow * volume / (generation.tensor_ghz * 1e9)
    return {
        "vector": vector,
        "tensor": tensor,
        "memory": (weight_bytes(spec) + vector_bytes(spec)) / (generation.bandwidth * 1e9),
    }


def narrow_product(spec: GraphSpec) -> bool:
    """True if both factors of the fused product are stored in one 16-bit type: the array then runs at full rate."""
    return spec.link_storage == spec.storage_in and spec.link_storage != "float32"


def choose_formulation(specs: dict[str, GraphSpec], generation: Generation | None) -> tuple[str, dict[str, float]]:
    """(the formulation with the smaller model time, seconds of each)."""
    facts = generation or GENERATIONS["gen2"]
    times = {name: max(seconds(spec, facts).values()) for name, spec in specs.items()}
    return min(times, key=times.get), times


# --------------------------------------------------------------------------------------------------------------------
# Counting what a graph really does


def measure(exported, spec: GraphSpec) -> Counts:
    """The counts of an exported program (``torch.export.export``), node by node, per site and right-hand side."""
    per, volume = math.prod(spec.sites) * spec.n_rhs, math.prod(spec.sites)
    arithmetic = macs = moves = converts = weights = 0
    for node in exported.graph.nodes:
        if node.op != "call_function":
            continue
        name, out = node.target._schema.name.split("::")[1], node.meta["val"]
        if out is None:  # a check of metadata that torch.export writes down
            continue
        size = out.numel()
        if name in ("add", "sub", "mul", "neg"):
            arithmetic += size
        elif name == "bmm":
            macs += size * node.args[0].meta["val"].shape[-1]
        elif name in ("cat", "stack", "where", "clone"):
            moves += size
        elif name in ("to", "_to_copy") and node.args[0].meta["val"].dtype != out.dtype:
            if _has_rhs(node.args[0]):
                converts += size
            else:
                weights += size
    return Counts(arithmetic / per, macs / per, moves / per, converts / per, weights / volume)


def _has_rhs(node) -> bool:
    """True if a node depends on the vectors (placeholders of user inputs are named ``tensors_<k>``)."""
    seen, todo = set(), [node]
    while todo:
        n = todo.pop()
        if n.op == "placeholder" and n.name.startswith("tensors"):
            return True
        for parent in n.all_input_nodes:
            if parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return False


__all__ = ["BYTES", "Counts", "choose_formulation", "count", "instructions", "measure", "narrow_product", "seconds",
           "vector_bytes", "weight_bytes"]  # fmt: skip

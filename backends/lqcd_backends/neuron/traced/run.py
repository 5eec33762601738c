"""From a program to calls: cut it by the budget, load the graphs, run them in order with the halos in between.

Nothing is compiled before the first call (a compilation takes minutes, and a bind offers more operators than a solve
uses); :meth:`Executable.warm_up` compiles on purpose, and :meth:`Executable.report` says what that took.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable

import attrs
import torch

from lqcd_core.geometry import FULL

from ..budget import Decision, Need, decide, slabs_of
from ..device import NeuronDevice
from . import cost
from .adapters import Adapter, CompileOptions, GraphTooLarge, Loaded
from .graph import GraphSpec, Stage, time_axis
from .program import Program

LOG = logging.getLogger("lqcd_backends.neuron")


@attrs.frozen(kw_only=True)
class Settings:
    """How programs are compiled: the backend's options, as far as they matter here."""

    formulation: str
    """``half`` or ``fused``."""
    gauge: str
    """``resident``, ``baked`` or ``argument``."""
    links: str
    """Link storage."""
    storage: str
    """Vector storage."""
    n_rhs: int
    """Right-hand sides of the space."""
    compiler: CompileOptions
    """For the compiler."""
    slabs: int | None = None
    """Fixed number of slabs."""
    instruction_limit: int = 5_000_000
    """Per graph."""
    sram_threshold: int | None = None
    """Working set above which stages are launched one by one, bytes."""

    @property
    def n_compiled(self) -> int:
        """Right-hand sides of one graph: those of one core."""
        return -(-self.n_rhs // self.compiler.num_cores)


def specs_of(program: Program, settings: Settings, slabs: int, chained: bool) -> list[list[GraphSpec]]:
    """The graphs of a program, slab by slab, of each launch in order: the whole chain is one, or every stage is."""
    t, *rest = program.geometry.parity_shape(program.parity)[:4]
    thickness = [length for _, length in slabs_of(t, slabs)]
    common = {
        "nc": program.geometry.nc, "n_rhs": settings.n_compiled, "formulation": settings.formulation,
        "link_storage": settings.links, "as_arguments": settings.gauge == "argument",
    }  # fmt: skip
    if chained:
        whole = GraphSpec(chain=program.chain, sites=(t, *rest), weights=tuple(sorted(program.weights)),
                          storage_in=settings.storage, storage_out=settings.storage, **common)  # fmt: skip
        return [[whole]]
    out: list[list[GraphSpec]] = []
    for group in program.chain:
        entered = "float32" if out else settings.storage  # what passes between stages is not rounded
        for k, stage in enumerate(group):
            last = group is program.chain[-1] and k == len(group) - 1
            some = GraphSpec(
                chain=((stage,),), sites=(t, *rest), ghost=slabs > 1 and stage.hop,
                weights=tuple(sorted(_weights_of(stage))), storage_in="float32" if out else settings.storage,
                storage_centre=entered, storage_out=settings.storage if last else "float32", **common,
            )  # fmt: skip
            out.append([attrs.evolve(some, sites=(length, *rest)) for length in thickness])
    return out


def _weights_of(stage: Stage) -> set[str]:
    names = {t.name for t in (stage.after, stage.centre) if t is not None and t.name}
    if stage.hop:
        names |= {"links"} if stage.parity is FULL else {f"links{stage.parity}", f"even_x{stage.parity}"}
    return names


def need_of(program: Program, settings: Settings, slabs: int, chained: bool) -> Need:
    """What the graphs of a program need."""
    specs = [s for launch in specs_of(program, settings, slabs, chained) for s in launch]
    weights = [cost.weight_bytes(s) for s in specs]
    vectors = [cost.vector_bytes(s) for s in specs]
    return Need(
        instructions=max(cost.instructions(s) for s in specs),
        constants=max(weights) if settings.gauge == "baked" else 0,
        sbuf=max(w + v for w, v in zip(weights, vectors)),
        hbm=sum(weights) + max(vectors),
        slabs=slabs, chained=chained,
    )  # fmt: skip


class Executable:
    """A program as a function of handles.

    Parameters
    ----------
    make
        Makes the program; called once, at the first use.
    frozen
        Weights that exist already (links), by name: they were copied when the operator was bound.
    settings, adapter, device
        How and where.
    """

    def __init__(
        self, make: Callable[[], Program], frozen: Callable[[str], torch.Tensor | None], settings: Settings,
        adapter: Adapter, device: NeuronDevice,
    ):  # fmt: skip
        self._make, self._frozen = make, frozen
        self.settings, self.adapter, self.device = settings, adapter, device
        self.decision: Decision | None = None
        self._stages: list[list[Callable]] | None = None
        self._lock = threading.Lock()
        self._loaded: list[Loaded] = []
        self._seconds = 0.0
        self.program: Program | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._stages is None:
            self.warm_up()
        n = self.settings.n_rhs
        padded = self.settings.n_compiled * self.settings.compiler.num_cores
        if padded != n:
            x = torch.cat([x, x.new_zeros(padded - n, *x.shape[1:])])
        for group in self._stages:
            start = x
            for stage in group:
                x = stage(x, start)
        return x[:n] if padded != n else x

    def warm_up(self) -> None:
        """Compile (or read) and load now."""
        with self._lock:
            if self._stages is None:
                begin = time.perf_counter()
                self._load()
                self._seconds = time.perf_counter() - begin
                LOG.info("%s", self.report())

    def report(self) -> str:
        """What the first call took, and where it went."""
        if self.program is None:
            return "not compiled yet"
        there = sum(loaded.from_cache for loaded in self._loaded)
        return (
            f"{self.program.kind}: {len(self._loaded)} graph(s) loaded in {self._seconds:.2f} s, {there} of them from the "
            f"cache, {len(self._loaded) - there} compiled"
        )

    def _load(self) -> None:
        program = self._make()
        weights = {}
        for name, make in program.weights.items():
            found = self._frozen(name)
            weights[name] = make() if found is None else found
        refused: set[tuple[int, bool]] = set()
        while True:
            decision = self._decide(program, refused)
            try:
                stages = self._load_all(program, weights, decision)
                break
            except GraphTooLarge as error:
                # A chain is first taken apart; then the slabs get smaller.
                LOG.warning("the compiler refused a graph in %d slab(s): %s", decision.need.slabs, error)
                refused.add((decision.need.slabs, decision.need.chained))
        self.decision, self.program, self._stages = decision, program, stages

    def _decide(self, program: Program, refused: set[tuple[int, bool]]) -> Decision:
        s = self.settings
        stages = sum(map(len, program.chain))
        return decide(
            f"{program.kind} on {program.geometry.shape} ({s.formulation}, {s.gauge}, {s.n_compiled} right-hand sides)",
            program.geometry.T, stages, lambda slabs, chained: need_of(program, s, slabs, chained),
            instruction_limit=s.instruction_limit, split_above_sbuf=s.sram_threshold is not None,
            sbuf_limit=s.sram_threshold or (self.device.hardware.sbuf if self.device.hardware else None),
            hbm_limit=self.device.core_bytes, refused=refused, slabs=s.slabs,
        )  # fmt: skip

    def _load_all(self, program: Program, weights, decision: Decision) -> list[list[Callable]]:
        launches = iter(specs_of(program, self.settings, decision.need.slabs, decision.need.chained))
        self._loaded = []
        if decision.need.chained:
            return [[self._launch(next(launches), weights)]]
        return [[self._launch(next(launches), weights) for _ in group] for group in program.chain]

    def _launch(self, specs: list[GraphSpec], weights) -> Callable:
        """One stage (or the whole chain) as a function of (its vector, what entered the group), slab by slab."""
        slabs = slabs_of(sum(s.sites[0] for s in specs), len(specs))
        calls = [self._graph(spec, weights, first) for spec, (first, _) in zip(specs, slabs)]
        two, ghost = specs[0].two_vectors, specs[0].ghost
        if len(calls) == 1:
            call = calls[0]
            return (lambda x, start: call(x, start)) if two else (lambda x, start: call(x))

        def run(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
            out = []
            for call, (first, length) in zip(calls, slabs):
                source = _slab(x, first, length, ghost)
                out.append(call(source, start.narrow(4, first, length).contiguous()) if two else call(source))
            return torch.cat(out, 4)

        return run

    def _graph(self, spec: GraphSpec, weights, first: int) -> Callable:
        """The graph of the slab that begins at time slice ``first``, with its part of the weights."""
        mine = {}
        for name in spec.weights:
            whole = weights[name]
            axis = time_axis(name, whole, spec.formulation)
            if axis is not None:
                whole = whole.narrow(axis, first, spec.sites[0])
            mine[name] = whole.contiguous()
        digest = weights_digest(mine) if self.settings.gauge == "baked" else ""
        loaded = self.adapter.load(spec, mine, digest, self.settings.compiler)
        self._loaded.append(loaded)
        if not spec.as_arguments:
            return loaded.call
        given = tuple(self.adapter.to_device(mine[n]) for n in spec.weights)
        return lambda *vectors: loaded.call(*vectors, *given)


def _slab(x: torch.Tensor, first: int, length: int, ghost: bool) -> torch.Tensor:
    """Time slices of one slab, with the neighbouring ones at either end (the boundary phase is in the links)."""
    mine, total = x.narrow(4, first, length), x.shape[4]
    if not ghost:
        return mine.contiguous()
    before, after = (first - 1) % total, (first + length) % total
    return torch.cat([x.narrow(4, before, 1), mine, x.narrow(4, after, 1)], 4)


def weights_digest(weights: dict[str, torch.Tensor]) -> str:
    """blake2b of names, types, shapes and bytes."""
    h = hashlib.blake2b(digest_size=20)
    for name in sorted(weights):
        w = weights[name].clone(memory_format=torch.contiguous_format)  # one element may have any stride
        h.update(f"{name}{w.dtype}{tuple(w.shape)}".encode())
        h.update(w.view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


__all__ = ["Executable", "Settings", "need_of", "specs_of", "weights_digest"]

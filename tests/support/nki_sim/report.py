"""What a program costs by the documented rules. Predictions from counts; nothing here is a measurement."""

from collections import Counter

import attrs

from .chips import DMA_QUEUES


@attrs.define
class Dma:
    """One DMA transfer."""

    size: int
    """Bytes moved."""
    descriptors: int
    """Contiguous runs, each on both sides."""
    run: int
    """Bytes of one run."""
    hbm: int
    """Bytes read from or written to HBM."""
    hwdge: bool
    """Descriptors by the hardware block (600 ns on the issuing queue)."""
    slow: float
    """Factor on the time: 2 for dma_compute before gen4."""


class Tally:
    """Sums over the program."""

    def __init__(self):
        self.instructions, self.calls, self.ops, self.cycles, self.serial = (
            Counter(),
            Counter(),
            Counter(),
            Counter(),
            Counter(),
        )
        self.dma, self.loop_turns = Counter(), 0

    def add(self, node, times):
        self.instructions[node.engine] += node.isa_count * times
        self.calls[node.engine] += times
        self.ops[node.op] += times
        self.cycles[node.engine] += node.cycles * times
        self.serial[node.engine] += node.serial * times
        if node.dma:
            d = node.dma
            self.dma["transfers"] += times
            self.dma["bytes"] += d.size * times
            self.dma["hbm"] += d.hbm * times
            self.dma["descriptors"] += d.descriptors * times
            self.dma["small"] += (d.descriptors if d.run < 2048 else 0) * times
            # A descriptor below 256 B is bound by its overhead: it costs as if it moved 256.
            self.dma["cost"] += d.slow * max(d.run, 256) * d.descriptors * times
            self.dma["hwdge"] += times * d.hwdge


@attrs.frozen
class Report:
    """Counts and predicted cost of one core's program, from the documented rules alone."""

    target: str
    """As given."""
    generation: int
    """2, 3 or 4."""
    static_instructions: int
    """ISA instructions with hardware-loop bodies once: what the limit of 5,000,000 counts."""
    instructions: dict
    """ISA instructions executed, by engine (one nc_matmul is two)."""
    calls: dict
    """Instruction calls executed, by engine."""
    ops: dict
    """Calls executed, by name."""
    cycles: dict
    """Predicted busy cycles by engine, at that engine's clock; tensor-engine tiles side by side share their time."""
    serial_cycles: dict
    """As cycles, if tensor-engine tiles did not overlap."""
    clocks: dict
    """GHz by engine."""
    dma_transfers: int
    """dma_copy, dma_compute and dma_transpose calls."""
    dma_bytes: int
    """Bytes moved."""
    hbm_bytes: int
    """Bytes read from plus bytes written to HBM."""
    dma_descriptors: int
    """Contiguous runs."""
    dma_small_descriptors: int
    """Runs below the advised 2 KiB."""
    dma_ns: float
    """Transfer time over sixteen queues at the practical rate; runs below 256 B count as 256."""
    hbm_ns: float
    """HBM traffic at this core's share."""
    dma_start_ns: float
    """Fixed cost of the transfers, 2 us each, over sixteen queues; overlaps with transfers under way."""
    hwdge_ns: float
    """Issue time of hardware descriptor generation, 600 ns each."""
    loop_turns: int
    """Iterations of hardware loops; no cost is documented for them."""
    sbuf_peak_bytes: int
    """Largest live bytes per partition."""
    psum_peak_banks: int
    """Largest number of live PSUM banks."""

    def ns(self, engine: str) -> float:
        """Predicted busy time of ``tensor``, ``vector``, ``scalar``, ``gpsimd`` or ``dma`` in ns."""
        if engine == "dma":
            return max(self.dma_ns, self.hbm_ns)
        return self.cycles.get(engine, 0) / self.clocks[engine]

    def bound(self) -> tuple:
        """The busiest resource and its time in ns; on gen2 Vector and GpSimd take turns on SBUF, so their times add."""
        times = {e: self.ns(e) for e in ("tensor", "vector", "scalar", "gpsimd", "dma")}
        if self.generation == 2 and times["gpsimd"] > 0:
            times["vector+gpsimd"] = times.pop("vector") + times.pop("gpsimd")
        return max(times.items(), key=lambda pair: pair[1])


def make_report(trace, tally) -> Report:
    chip, dma = trace.chip, tally.dma
    return Report(
        target=trace.target, generation=chip.generation, static_instructions=trace.static_instructions(),
        instructions=dict(tally.instructions), calls=dict(tally.calls), ops=dict(tally.ops), cycles=dict(tally.cycles),
        serial_cycles=dict(tally.serial), clocks=dict(chip.clocks), dma_transfers=dma["transfers"], dma_bytes=dma["bytes"],
        hbm_bytes=dma["hbm"], dma_descriptors=dma["descriptors"], dma_small_descriptors=dma["small"],
        dma_ns=dma["cost"] / (DMA_QUEUES * chip.queue_rate), hbm_ns=dma["hbm"] / chip.hbm_rate, dma_start_ns=2000.0 * dma["transfers"] / DMA_QUEUES,
        hwdge_ns=600.0 * dma["hwdge"],
        loop_turns=tally.loop_turns, sbuf_peak_bytes=trace.memory["sbuf"], psum_peak_banks=trace.memory["psum"],
    )  # fmt: skip

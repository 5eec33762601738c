"""A kernel is traced once into a program: instructions and hardware loops. Running it is a second step over NumPy memory."""

import math
from contextvars import ContextVar

import attrs
import numpy as np

from . import chips, dtypes
from .errors import NkiValidationError, refuse, require
from .report import Tally, make_report
from .scalars import NkiScalar, VirtualRegister
from .tensors import NkiTensor, Storage

_CURRENT: ContextVar = ContextVar("nki_sim_trace", default=None)


def current() -> "Trace":
    """The trace of the kernel that is being built."""
    trace = _CURRENT.get()
    if trace is None:
        raise NkiValidationError(
            "nki: a language or isa call outside a kernel: found no trace, allowed inside an @nki.jit function while it is called"
        )
    return trace


class NkiInstruction:
    """One instruction of the program, and what an isa call returns."""

    __slots__ = ("cycles", "dma", "engine", "isa_count", "op", "position", "reads", "run", "serial", "writes")

    def __init__(self, op, engine, run, writes, reads, cycles, serial=None, isa_count=1, dma=None):
        self.op, self.engine, self.run, self.writes, self.reads = op, engine, run, writes, reads
        self.cycles, self.serial, self.isa_count, self.dma = (
            cycles,
            cycles if serial is None else serial,
            isa_count,
            dma,
        )
        self.position = -1

    def depends_on(self, *producers):
        for p in producers:
            require(
                isinstance(p, NkiInstruction),
                "NkiInstruction.depends_on",
                "producer",
                type(p).__name__,
                "NkiInstruction",
            )


@attrs.define(eq=False)
class Loop:
    """A hardware loop."""

    lower: object
    """int, NkiScalar or VirtualRegister."""
    upper: object
    """As lower; exclusive."""
    step: int
    """Positive."""
    index: object
    """The scalar or register that the body sees."""
    body: list
    """Instructions and loops."""
    locals: list
    """Storages allocated inside: lost when the loop turns."""
    start: int = 0
    """Position of the first instruction."""
    end: int = 0
    """Position after the last."""
    turns: int = 0
    """Iterations counted while running."""

    def trips(self):
        if isinstance(self.lower, int) and isinstance(self.upper, int):
            return max(0, -(-(self.upper - self.lower) // self.step))
        return None


@attrs.define(eq=False)
class While(Loop):
    """A loop that goes on while a register is not zero."""

    condition: object = None
    """Register that the body gives for the next turn."""

    def trips(self):
        return None


class Barrier:
    """core_barrier: both cores of a logical core meet."""


@attrs.define(eq=False)
class Environment:
    """What a running program remembers."""

    registers: dict
    """Values by VirtualRegister and by loop index."""
    accumulators: dict
    """float32 accumulators by engine, one per partition."""


class Trace:
    """Collects the program of one core."""

    def __init__(self, target, lnc=1, program_id=0):
        self.chip = chips.chip_of(target)
        self.target, self.lnc, self.program_id = target, lnc, program_id
        self.storages, self.blocks, self.loops = [], [[]], []
        self.position, self.references, self.register_work, self.registers = 0, [], 0, 0
        self.inputs, self.outputs, self.names = [], (), set()

    # -- building ---------------------------------------------------------------------------------------------------------
    def storage(self, shape, dtype, buffer, name, address=None, kind="local"):
        one = Storage(
            tuple(shape),
            dtype,
            buffer,
            name or f"{buffer}_{len(self.storages)}",
            loops=tuple(self.loops),
            kind=kind,
            address=address,
        )
        self.storages.append(one)
        if self.loops:
            self.loops[-1].locals.append(one)
        return one

    def emit(self, instruction):
        instruction.position = self.position
        self.position += 1
        self.blocks[-1].append(instruction)
        loops = tuple(self.loops)
        for t in instruction.writes:
            require(
                t._storage.kind != "constant",
                instruction.op,
                "destination",
                f"constant {t.name!r}",
                "a tensor of the kernel",
            )
            t._storage.written = True
        for t in (*instruction.writes, *instruction.reads):
            if not set(t._storage.loops) <= set(loops):
                refuse(
                    instruction.op,
                    f"scope of {t.name!r}",
                    "a tensor of a loop body used outside of it",
                    "tensors made in the loops around",
                )
            self.references.append((t._storage, instruction.position, loops))
            for scalar, _ in t._dynamic:
                if isinstance(scalar, NkiTensor):
                    self.references.append((scalar._storage, instruction.position, loops))
                elif isinstance(scalar, NkiScalar):
                    scalar.check_scope(instruction.op, loops)
        return instruction

    def count_register_work(self):
        """One scalar operation on a sequencer; counted with the loop it stands in."""
        self.emit(NkiInstruction("register", "sync", lambda env: None, (), (), 0))

    def loop(self, lower, upper, step, index, body_fun):
        for bound in (lower, upper):
            if isinstance(bound, NkiScalar):
                bound.check_scope("nl.fori_loop bound", self.loops)
        loop = Loop(lower, upper, step, index, [], [], start=self.position)
        if isinstance(index, NkiScalar):
            index.loops = frozenset((loop,))
        self.blocks[-1].append(loop)
        self.blocks.append(loop.body)
        self.loops.append(loop)
        try:
            require(
                body_fun(index) is None,
                "nl.fori_loop",
                "value returned by the body",
                "something",
                "None: carry state in SBUF or HBM",
            )
        finally:
            self.loops.pop()
            self.blocks.pop()
            loop.end = self.position

    def while_loop(self, init, body_fun):
        loop = While(init, None, 1, object(), [], [], start=self.position)
        self.blocks[-1].append(loop)
        self.blocks.append(loop.body)
        self.loops.append(loop)
        try:
            loop.condition = body_fun(init)
            require(
                isinstance(loop.condition, VirtualRegister),
                "nl.while_loop",
                "value returned by the body",
                type(loop.condition).__name__,
                "the VirtualRegister of the next condition",
            )
        finally:
            self.loops.pop()
            self.blocks.pop()
            loop.end = self.position

    # -- checking ---------------------------------------------------------------------------------------------------------
    def finish(self, outputs):
        outputs = () if outputs is None else outputs if isinstance(outputs, tuple) else (outputs,)
        for k, t in enumerate(outputs):
            where = f"output {k} of the kernel"
            require(isinstance(t, NkiTensor), where, "kind", type(t).__name__, "NkiTensor")
            require(t._storage.kind == "input" or t.buffer == "shared_hbm", where, "buffer", t.buffer, "shared_hbm")
            require(
                t.is_contiguous() and t.shape == t._storage.shape, where, "view", t.get_pattern(), "the whole tensor"
            )
            require(t._storage.written, where, "content", "never written", "a tensor that some instruction writes")
            require(not t._storage.loops, where, "place", "allocated inside a loop", "allocated before the loop")
        self.outputs = outputs
        returned = {id(t._storage) for t in outputs}
        for one in self.storages:
            if one.kind == "input" and one.written:
                require(
                    id(one) in returned,
                    f"input {one.name!r}",
                    "written input",
                    "not returned",
                    "inputs that are written are returned too (they alias)",
                )
        count = self.static_instructions()
        require(
            count <= chips.INSTRUCTION_LIMIT,
            "compiler",
            "instructions after unrolling",
            count,
            f"<= {chips.INSTRUCTION_LIMIT}; use nl.fori_loop",
        )
        self.memory = self._memory()
        return self

    def static_instructions(self):
        def count(block):
            return sum(count(n.body) if isinstance(n, Loop) else getattr(n, "isa_count", 0) for n in block)

        return count(self.blocks[0])

    def _memory(self):
        """Peak of live bytes per partition and of live PSUM banks; a tensor lives from its first to its last reference."""
        spans = {}
        for one, position, loops in self.references:
            if not one.on_chip:
                continue
            outside = [l for l in loops if l not in one.loops]
            a, b = (outside[0].start, outside[0].end) if outside else (position, position + 1)
            old = spans.get(id(one))
            spans[id(one)] = (one, min(a, old[1]), max(b, old[2])) if old else (one, a, b)
        peaks = {}
        for buffer, size, limit, unit in (
            ("sbuf", lambda s: s.row_bytes, self.chip.sbuf_bytes, "bytes per partition"),
            ("psum", lambda s: s.banks, chips.PSUM_BANKS, "banks of 2 KiB"),
        ):
            events = sorted(
                e
                for one, a, b in spans.values()
                if one.buffer == buffer
                for e in ((a, 1, size(one)), (b, 0, -size(one)))
            )
            live = peak = at = 0
            for position, _, change in events:
                live += change
                if live > peak:
                    peak, at = live, position
            peaks[buffer] = peak
            if peak > limit:
                held = sorted(
                    ((size(one), one.name) for one, a, b in spans.values() if one.buffer == buffer and a <= at < b),
                    reverse=True,
                )
                refuse(
                    "memory",
                    f"live {buffer.upper()} {unit}",
                    f"{peak}: " + ", ".join(f"{n} {s}" for s, n in held[:8]),
                    f"<= {limit} on gen{self.chip.generation}",
                )
        placed = [one for one, _, _ in spans.values() if one.address is not None]
        for i, one in enumerate(placed):
            for other in placed[:i]:
                same = (
                    one.buffer == other.buffer
                    and one.start < other.start + other.shape[0]
                    and other.start < one.start + one.shape[0]
                )
                if (
                    same
                    and one.address[1] < other.address[1] + other.row_bytes
                    and other.address[1] < one.address[1] + one.row_bytes
                ):
                    refuse(
                        "memory", f"addresses in {one.buffer}", f"{one.name!r} overlaps {other.name!r}", "ranges apart"
                    )
        return peaks

    # -- running ----------------------------------------------------------------------------------------------------------
    def prepare(self, shared=None):
        env = Environment({}, {})
        for one in self.storages:
            if one.kind != "input" and one.array is None:
                one.poison()
        return env

    def segments(self):
        """The program cut at its core barriers."""
        cut = [[]]
        for node in self.blocks[0]:
            if isinstance(node, Barrier):
                cut.append([])
            else:
                cut[-1].append(node)
        return cut

    def execute(self, block, env):
        for node in block:
            if type(node) is NkiInstruction:
                try:
                    node.run(env)
                except NkiValidationError as error:
                    raise NkiValidationError(f"instruction {node.position} ({node.op}): {error}") from None
            else:
                self._turn(node, env)

    def _enter(self, loop):
        loop.turns += 1
        if loop.turns > 1:
            for one in loop.locals:
                one.poison()

    def _turn(self, loop, env):
        if isinstance(loop, While):
            register = loop.lower
            while register.evaluate(env):
                self._enter(loop)
                self.execute(loop.body, env)
                register = loop.condition
            return
        lower, upper = (b if isinstance(b, int) else b.evaluate(env) for b in (loop.lower, loop.upper))
        for value in range(lower, upper, loop.step):
            env.registers[loop.index] = value
            self._enter(loop)
            self.execute(loop.body, env)

    def report(self, ran):
        """Counts of the whole program, loop bodies times their trip counts."""
        tally = Tally()

        def add(block, times):
            for node in block:
                if isinstance(node, Loop):
                    turns = node.trips()
                    if turns is None:
                        require(
                            ran, "report", "trip count of a loop", "known only while running", "a report after run()"
                        )
                        total = node.turns
                    else:
                        total = times * turns
                    tally.loop_turns += total
                    add(node.body, total)
                elif isinstance(node, NkiInstruction):
                    tally.add(node, times)

        add(self.blocks[0], 1)
        return make_report(self, tally)


def float_operand(tensor, env):
    return dtypes.to_float(tensor._array(env))


def elements(tensor):
    return math.prod(tensor.shape[1:])


def unmark(tensor, env):
    """A compute engine wrote this PSUM region: the tensor engine may no longer add to it."""
    if tensor.buffer == "psum":
        tensor._mask(env)[...] = 0


def put(tensor, env, value):
    """Store a result and note who wrote it."""
    dtypes.store(tensor._array(env), value)
    unmark(tensor, env)


def scalar_of(value):
    return np.float32(value)

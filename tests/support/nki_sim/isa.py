"""``nki.isa``: the instructions. Each checks its documented rules while it is traced and computes over NumPy memory when run.

Signatures are those of ``nki_signatures.json``; a test holds every one against it.
"""

import math
from enum import Enum

import numpy as np

from . import dtypes, operators
from .chips import PARTITIONS, PSUM_BANK_BYTES, QUADRANT, REGISTERS
from .errors import NkiValidationError, refuse, require
from .language import add, equal, maximum
from .program import Barrier, NkiInstruction, current, elements, float_operand, put, unmark
from .report import Dma
from .scalars import NkiScalar, VirtualRegister
from .tensors import NkiTensor, coalesce

__all__ = ["NkiInstruction", "NkiScalar", "NkiValidationError", "VirtualRegister"]


class engine(Enum):
    tensor, vector, scalar, gpsimd, dma, sync, unknown = 1, 5, 2, 3, 4, 6, 0


class reduce_cmd(Enum):
    idle, reset, reduce, reset_reduce, load_reduce = 0, 1, 2, 3, 4


class dge_mode(Enum):
    unknown, swdge, hwdge, none = 0, 1, 2, 3


class oob_mode(Enum):
    error, skip = 0, 1


class matmul_perf_mode(Enum):
    none, double_row = "none", "double_row"


class nc_version(Enum):
    gen2, gen3, gen4 = 2, 3, 4


class dma_engine(Enum):
    dma, gpsimd_dma = 1, 2


tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown
_engine, _reduce_cmd, _unset = engine, reduce_cmd, ...
FLOATS = ("float32", "bfloat16", "float16", "tfloat32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")
FLOOR = 64  # cycles below which no Vector, Scalar or Tensor instruction falls


# -- rules shared by instructions -----------------------------------------------------------------------------------------


def _tile(where, role, t, buffers=("sbuf", "psum"), destination=False):
    require(isinstance(t, NkiTensor), f"{where} {role}", "operand", type(t).__name__, "a tensor")
    require(t.buffer in buffers, f"{where} {role}", "buffer", t.buffer, buffers)
    require(
        t.dtype != "int64",
        f"{where} {role}",
        "dtype",
        "int64",
        "at most 32 bits; int64 is for scalar_load and scalar_store",
    )
    t._check_operand(where, role, destination)


def _same_shape(where, **tiles):
    shapes = {name: t.shape for name, t in tiles.items()}
    require(len(set(shapes.values())) == 1, where, "shapes", shapes, "equal shapes; broadcast with a stride of 0")


def _same_count(where, **tiles):
    counts = {name: (t.shape[0], elements(t)) for name, t in tiles.items()}
    require(len(set(counts.values())) == 1, where, "(partitions, elements per partition)", counts, "equal")


def _not_both_psum(where, **tiles):
    if all(isinstance(t, NkiTensor) and t.buffer == "psum" for t in tiles.values()):
        refuse(where, "buffers of " + " and ".join(tiles), "both in PSUM", "at least one in SBUF")


def _same_start(where, **tiles):
    """Two SBUF inputs of one instruction come from the same partitions: no page says that they may differ."""
    starts = {name: t._start for name, t in tiles.items() if t.buffer == "sbuf"}
    require(len(set(starts.values())) <= 1, where, "start partitions of two SBUF inputs", starts, "equal")


def _enum(where, role, value, kind):
    require(isinstance(value, kind), where, role, value, [f"{kind.__name__}.{m.name}" for m in kind])


def _pick(where, asked, allowed, default):
    """The engine that runs it; ``allowed`` maps engines to True or to the reason why not."""
    _enum(where, "engine", asked, engine)
    chosen = default if asked is engine.unknown else asked
    why = allowed.get(chosen, "not an engine of this instruction")
    if why is not True:
        refuse(where, "engine", f"{chosen.name} ({why})", [e.name for e, ok in allowed.items() if ok is True])
    return chosen.name


def _gpsimd(*tiles):
    return True if all(t.buffer == "sbuf" for t in tiles) else "GpSimd cannot touch PSUM"


def _arithmetic(where, role, op):
    require(operators.is_binary(op), where, role, operators.label(op), "an arithmetic operator of nki.language")
    if op._nki in ("abs_max", "abs_min"):
        require(current().chip.generation >= 4, where, role, operators.label(op), "gen4 only")
    return op._nki


def _column(where, role, value, partitions, dtypes_allowed=("float32",)):
    """A compile-time number or a [P, 1] tile."""
    if isinstance(value, NkiTensor):
        _tile(where, role, value)
        require(
            value.shape[0] == partitions and elements(value) == 1,
            f"{where} {role}",
            "shape",
            value.shape,
            (partitions, 1),
        )
        require(value.dtype in dtypes_allowed, f"{where} {role}", "dtype", value.dtype, dtypes_allowed)
        return True
    require(
        isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool),
        f"{where} {role}",
        "operand",
        type(value).__name__,
        "a number or a [P, 1] tile",
    )
    return False


def _column_value(value, env, ndim):
    if isinstance(value, NkiTensor):
        return float_operand(value, env).reshape((value.shape[0],) + (1,) * (ndim - 1))
    return np.float32(value)


def _half(*tiles):
    return 2 if any(t._slow() for t in tiles) else 1


def _vector_cycles(n, inputs, tiles, fast=None):
    """N cycles with one tile input, 2N with two; 16-bit modes of gen3 and later; half rate for wide innermost strides.

    ``fast`` is "copy" (tensor_copy, tensor_scalar) or "pair" (tensor_tensor).
    """
    rate = 1.0
    if current().chip.generation >= 3 and fast and all(dtypes.itemsize(t.dtype) == 2 for t in tiles):
        in_sbuf = all(t.buffer == "sbuf" for t in tiles)
        if fast == "pair":
            rate = 2.0 if in_sbuf else 1.0
        else:
            rate = 4.0 if in_sbuf and all(t._packed() for t in tiles) else 2.0
    return max(FLOOR, math.ceil(inputs * n * _half(*tiles) / rate))


def _scalar_cycles(n, tiles, doubled=False):
    fast = doubled and current().chip.generation >= 4 and all(dtypes.itemsize(t.dtype) == 2 for t in tiles)
    return max(FLOOR, math.ceil(n * _half(*tiles) / (2 if fast else 1)))


def _cycles(unit, n, inputs, tiles, fast=None):
    if unit == "scalar":
        return _scalar_cycles(n, tiles, fast == "copy")
    if unit == "gpsimd":
        return max(FLOOR, inputs * n)  # no rule is documented; an element per lane and cycle, as on VectorE
    return _vector_cycles(n, inputs, tiles, fast)


def _emit(op, unit, run, writes, reads, cycles, **more):
    return current().emit(
        NkiInstruction(
            op, unit, run, tuple(writes), tuple(t for t in reads if isinstance(t, NkiTensor)), cycles, **more
        )
    )


def _accumulate(env, unit, command, op, values, start=None):
    """The engine's accumulator registers after this instruction, float32, one per partition."""
    p = values.shape[0]
    held = env.accumulators.setdefault(unit, np.full(PARTITIONS, np.nan, np.float32))
    name = op._nki
    if command in (reduce_cmd.reset, reduce_cmd.reset_reduce):
        held[:p] = operators.IDENTITY[name]
    elif command is reduce_cmd.load_reduce:
        held[:p] = start
    if command in (reduce_cmd.reduce, reduce_cmd.reset_reduce, reduce_cmd.load_reduce):
        flat = values.reshape(p, -1)
        reduced = {
            "add": np.add,
            "subtract": np.add,
            "multiply": np.multiply,
            "maximum": np.maximum,
            "minimum": np.minimum,
        }[name].reduce(flat, axis=1, dtype=np.float32)
        held[:p] = {
            "add": np.add,
            "subtract": np.subtract,
            "multiply": np.multiply,
            "maximum": np.maximum,
            "minimum": np.minimum,
        }[name](held[:p], reduced)
    return held[:p]


def _result(where, res, partitions):
    if res is not None:
        _tile(where, "reduce_res", res, destination=True)
        require(
            res.shape[0] == partitions and elements(res) == 1,
            f"{where} reduce_res",
            "shape",
            res.shape,
            (partitions, 1),
        )


def _reduced(dst, res, unit, command, op):
    """What an instruction with a reduction writes, and how it stores a value: in ``dst``, its reduction in ``res`` if there is one.

    ``always``: the engine's registers take the reduction without a ``res`` too.
    """

    def store(env, value, always=False, start=None, negate=False):
        put(dst, env, value)
        if res is not None or always:
            total = _accumulate(env, unit, command, op, value, start)
            if res is not None:
                put(res, env, -total if negate else total)

    return [dst] + ([res] if res is not None else []), store


# -- questions ------------------------------------------------------------------------------------------------------------


def get_nc_version():
    return nc_version(current().chip.generation)


def get_nc_sub_version():
    return 0


# -- DMA ------------------------------------------------------------------------------------------------------------------


def _dma_side(where, role, t, destination=False):
    require(isinstance(t, NkiTensor), f"{where} {role}", "operand", type(t).__name__, "a tensor")
    require(t.buffer != "psum", f"{where} {role}", "buffer", "psum", "HBM or SBUF: DMA cannot touch PSUM")
    if destination:
        require(
            all(s != 0 for s, n in zip(t._strides, t.shape) if n > 1),
            f"{where} {role}",
            "stride of a destination",
            0,
            "nonzero",
        )
    if not t._dynamic and t._vector is None:
        t._check_bounds(f"{where} {role}")


def _run_bytes(t):
    """Bytes of one contiguous run; a run never leaves an SBUF partition."""
    pairs = list(zip(t._strides, t.shape))
    pairs = coalesce(pairs[1:] if t._on_chip or t._vector is not None else pairs)
    return (pairs[-1][1] if pairs and pairs[-1][0] == 1 else 1) * t._itemsize


def _dma_cost(sides, hwdge=False, slow=1.0):
    count = math.prod(sides[0].shape)
    size = count * max(t._itemsize for t in sides)
    per = min(_run_bytes(t) // t._itemsize for t in sides)
    hbm = sum(count * t._itemsize for t in sides if not t._on_chip)
    return Dma(size, -(-count // per), per * max(t._itemsize for t in sides), hbm, hwdge, slow)


def _gather_index(t, env, mode):
    """Flat element indices of an access with ``vector_offset`` and which of its rows are in bounds."""
    index, step = t._vector
    rows = index._array(env).reshape(-1).astype(np.int64)
    at = t._offset + rows.reshape((-1,) + (1,) * (t.ndim - 1)) * step
    for axis in range(1, t.ndim):
        at = at + (np.arange(t.shape[axis]) * t._strides[axis]).reshape(
            (1,) * axis + (-1,) + (1,) * (t.ndim - axis - 1)
        )
    total = math.prod(t._storage.shape) * dtypes.itemsize(t._storage.dtype) // t._itemsize
    good = np.all((at >= 0) & (at < total), axis=tuple(range(1, t.ndim))) if t.ndim > 1 else (at >= 0) & (at < total)
    if mode is oob_mode.error:
        require(
            bool(np.all(good)),
            "dma_copy",
            "indices (out of bounds, NRT status 1006)",
            rows[~good].tolist(),
            f"rows inside {t._storage.shape}",
        )
    return at, good


def dma_copy(
    dst, src, priority=None, oob_mode=oob_mode.error, dge_mode=dge_mode.unknown, engine=engine.unknown, name=None
):
    where, chip, modes = "dma_copy", current().chip, _DGE
    _dma_side(where, "dst", dst, destination=True)
    _dma_side(where, "src", src)
    _enum(where, "oob_mode", oob_mode, _OOB)
    _enum(where, "dge_mode", dge_mode, modes)
    _enum(where, "engine", engine, _engine)
    require(
        math.prod(dst.shape) == math.prod(src.shape),
        where,
        "elements of dst and src",
        (dst.shape, src.shape),
        "equal totals",
    )
    hwdge = dge_mode is modes.hwdge
    if priority is not None:
        require(
            chip.generation >= 4 and priority in (0, 1, 2, 3),
            where,
            "priority",
            f"{priority} on gen{chip.generation}",
            "0..3 on gen4, else None",
        )
        require(dge_mode is not modes.none, where, "priority with dge_mode", "none", "a DGE mode")
    if hwdge:
        require(chip.generation >= 3, where, "dge_mode", f"hwdge on gen{chip.generation}", "hwdge on gen3 and gen4")
        require(dst.dtype == src.dtype, where, "dtypes with hwdge", (src.dtype, dst.dtype), "equal")
    if engine is not _engine.unknown:
        require(
            hwdge and engine in (_engine.scalar, _engine.sync),
            where,
            "engine",
            engine.name,
            "scalar or sync, with hwdge",
        )
    if dst._dynamic or src._dynamic or dst._vector or src._vector:
        require(dge_mode is not modes.none, where, "dge_mode of a dynamic access", "none", "unknown, swdge or hwdge")
    if dst._vector or src._vector:
        require(chip.generation >= 3, where, "gather and scatter", f"gen{chip.generation}", "gen3 and gen4")
        require(not hwdge, where, "dge_mode with vector_offset", "hwdge", "swdge")
        require(not (dst._vector and src._vector), where, "vector_offset", "both sides", "one side")

    def run(env):
        if src._vector:
            at, good = _gather_index(src, env, oob_mode)
            values = src._storage.array.reshape(-1).view(dtypes.STORAGE[src.dtype])[
                np.where(good.reshape((-1,) + (1,) * (at.ndim - 1)), at, 0)
            ]
            out = dst._array(env)
            value = _cast(values, dst.dtype)
            out[...] = np.where(good.reshape((-1,) + (1,) * (at.ndim - 1)), value, out.reshape(value.shape)).reshape(
                out.shape
            )
        elif dst._vector:
            at, good = _gather_index(dst, env, oob_mode)
            flat = dst._storage.array.reshape(-1).view(dtypes.STORAGE[dst.dtype])
            value = _cast(src._array(env), dst.dtype).reshape(at.shape)
            flat[at[good]] = value[good]
        else:
            out = dst._array(env)
            value = src._array(env)
            if dst._storage is src._storage:
                value = value.copy()
            out[...] = _cast(value, dst.dtype).reshape(out.shape)

    reads = [src] + ([src._vector[0]] if src._vector else []) + ([dst._vector[0]] if dst._vector else [])
    return _emit(where, "dma", run, [dst], reads, 0, dma=_dma_cost([dst, src], hwdge))


def _cast(value, dtype):
    storage = dtypes.STORAGE[dtype]
    if value.dtype == storage:
        return value
    out = np.empty(value.shape, storage)
    dtypes.store(out, dtypes.to_float(value))
    return out


def dma_compute(dst, srcs, reduce_op, scales=None, unique_indices=True, oob_mode=oob_mode.error, name=None):
    where, chip = "dma_compute", current().chip
    require(
        isinstance(srcs, (list, tuple)) and 1 <= len(srcs) <= 16,
        where,
        "srcs",
        srcs if not isinstance(srcs, (list, tuple)) else len(srcs),
        "1..16 tensors",
    )
    _dma_side(where, "dst", dst, destination=True)
    for s in srcs:
        _dma_side(where, "srcs", s)
        require(
            s._vector is None and dst._vector is None,
            where,
            "indirect access",
            "vector_offset",
            "dma_copy in this stand-in",
        )
        require(math.prod(s.shape) == math.prod(dst.shape), where, "elements", (dst.shape, s.shape), "equal totals")
    require(reduce_op is add, where, "reduce_op", operators.label(reduce_op), "nl.add")
    require(
        scales is None or all(v == 1.0 for v in (scales if isinstance(scales, (list, tuple)) else [scales])),
        where,
        "scales",
        scales,
        "None or 1.0",
    )
    require(unique_indices is True, where, "unique_indices", unique_indices, "True")

    def run(env):
        total = sum((float_operand(s, env).reshape(dst.shape) for s in srcs), np.float32(0))
        dtypes.store(dst._array(env), total)

    sides = [dst, *srcs]
    d = _dma_cost(sides, slow=1.0 if chip.generation >= 4 else 2.0)
    d.size *= len(srcs)
    return _emit(where, "dma", run, [dst], srcs, 0, dma=d)


def dma_transpose(dst, src, axes=None, priority=None, dge_mode=dge_mode.unknown, oob_mode=oob_mode.error, name=None):
    where, chip = "dma_transpose", current().chip
    _dma_side(where, "dst", dst, destination=True)
    _dma_side(where, "src", src)
    require(dst.buffer == "sbuf", where, "dst buffer", dst.buffer, "sbuf")
    require(dst.dtype == src.dtype, where, "dtypes", (src.dtype, dst.dtype), "equal")
    require(
        axes in (None, (1, 0)) and src.ndim == 2,
        where,
        "axes",
        (axes, src.shape),
        "(1, 0) of a 2-D tensor in this stand-in",
    )
    require(dst.shape == src.shape[::-1], where, "dst shape", dst.shape, src.shape[::-1])
    require(src._vector is None, where, "indirect access", "vector_offset", "dma_copy in this stand-in")
    require(priority is None, where, "priority", priority, "None in this stand-in")
    size = dtypes.itemsize(src.dtype)
    if dge_mode is _DGE.hwdge:
        require(chip.generation >= 3, where, "dge_mode", f"hwdge on gen{chip.generation}", "gen3 and gen4")
        require(size == 2, where, "dtype with hwdge", src.dtype, "two-byte types")
        require(src.shape[0] == 16 and src.shape[1] <= 128, where, "src shape with hwdge", src.shape, "(16, <= 128)")
    else:
        require(size in (2, 4), where, "dtype", src.dtype, "two- or four-byte types")

    def run(env):
        dst._array(env)[...] = src._array(env).T.copy()

    return _emit(where, "dma", run, [dst], [src], 0, dma=_dma_cost([dst, src], dge_mode is _DGE.hwdge))


# -- Tensor engine --------------------------------------------------------------------------------------------------------

MATMUL_DTYPES = ("float8_e4m3", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32")


def _matmul_value(t, env):
    value = float_operand(t, env)
    return dtypes.tf32(value) if t.dtype == "tfloat32" else value


def nc_matmul(dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, is_transpose=False, accumulate=None, tile_position=(), tile_size=(), perf_mode=matmul_perf_mode.none, name=None):  # fmt: skip
    where, trace = "nc_matmul", current()
    gen = trace.chip.generation
    _tile(where, "stationary", stationary, ("sbuf",))
    _tile(where, "moving", moving, ("sbuf",))
    _tile(where, "dst", dst, ("psum",), destination=True)
    for role, t in (("stationary", stationary), ("moving", moving)):
        legal = MATMUL_DTYPES + (("float8_e4m3fn",) if gen >= 4 else ())
        require(t.dtype in legal, f"{where} {role}", "dtype", t.dtype, legal)
    wide = [t.dtype in ("float32", "tfloat32") for t in (stationary, moving)]
    require(
        wide[0] == wide[1],
        where,
        "dtypes of stationary and moving",
        (stationary.dtype, moving.dtype),
        "float32/tfloat32 pair only with float32/tfloat32",
    )
    require(
        {"float8_e4m3", "float8_e4m3fn"} != {stationary.dtype, moving.dtype},
        where,
        "dtypes",
        (stationary.dtype, moving.dtype),
        "one kind of float8_e4m3",
    )
    require(
        dst.dtype == "float32" or (gen >= 4 and dst.dtype == "bfloat16"),
        f"{where} dst",
        "dtype",
        f"{dst.dtype} on gen{gen}",
        "float32 (gen4: or bfloat16)",
    )
    require(perf_mode is matmul_perf_mode.none, where, "perf_mode", perf_mode, "none in this stand-in (fp8 only)")
    require(is_transpose is False, where, "is_transpose", is_transpose, "False in this stand-in; use nc_transpose")
    require(accumulate in (None, True, False), where, "accumulate", accumulate, "None, True, False")
    k, m, n = stationary.shape[0], elements(stationary), elements(moving)
    require(
        moving.shape[0] == k, where, "contraction (partitions of stationary and moving)", (k, moving.shape[0]), "equal"
    )
    require(
        bool(tile_position) == bool(tile_size),
        where,
        "tile_position and tile_size",
        (tile_position, tile_size),
        "both or neither",
    )
    rows, cols = tile_size or (128, 128)
    row, col = tile_position or (0, 0)
    for what, size in (("row size", rows), ("column size", cols)):
        require(
            size in trace.chip.array_tiles, where, f"tile_size {what}", f"{size} on gen{gen}", trace.chip.array_tiles
        )
    require(row % rows == 0 and 0 <= row < 128, where, "tile_position row", row, f"multiples of {rows} below 128")
    require(col % cols == 0 and 0 <= col < 128, where, "tile_position column", col, f"multiples of {cols} below 128")
    require(k <= rows, where, "contraction K", k, f"<= {rows}")
    require(m <= cols, where, "stationary free size M", m, f"<= {cols}")
    n_max = 512 if gen < 4 else 4096 if dst.dtype == "float32" else 8192
    require(1 <= n <= n_max, where, "moving free size N", n, f"<= {n_max} on gen{gen}")
    require((dst.shape[0], elements(dst)) == (m, n), where, "dst (M, N)", (dst.shape[0], elements(dst)), (m, n))
    for role, t in (("stationary", stationary), ("moving", moving)):
        require(t._start == row, f"{where} {role}", "start partition (the rows of the array tile)", t._start, row)
    require(dst._start == col, f"{where} dst", "start partition (the columns of the array tile)", dst._start, col)

    def one_bank(shift):
        first = (dst._storage.address or (0, 0))[1] + ((dst._offset + shift) % dst._row) * dst._itemsize
        last = first + sum(s * (c - 1) for s, c in zip(dst._strides[1:], dst.shape[1:])) * dst._itemsize
        fits = first // PSUM_BANK_BYTES == last // PSUM_BANK_BYTES
        require(fits, f"{where} dst", "bytes in a partition", (first, last), f"one PSUM bank of {PSUM_BANK_BYTES} B")

    if gen < 4 and not dst._dynamic:
        one_bank(0)
    if accumulate is None:
        outside = [l for l in trace.loops if l not in dst._storage.loops]
        require(
            not outside and not dst._dynamic,
            where,
            "accumulate=None",
            "a loop or a dynamic offset hides whether the address was written",
            "True or False, said explicitly",
        )
        seen = trace.__dict__.setdefault("matmul_seen", {}).setdefault(
            id(dst._storage), np.zeros(dst._storage.shape[0] * dst._storage.row_bytes, np.uint8)
        )
        mask = np.ndarray(
            dst.shape,
            np.uint8,
            buffer=seen,
            offset=dst._offset * dst._itemsize,
            strides=tuple(s * dst._itemsize for s in dst._strides),
        )
        require(
            bool(mask.all()) or not mask.any(),
            where,
            "accumulate=None",
            "part of dst was written by a matmul",
            "all or nothing",
        )
        add_to = bool(mask.all())
        mask[...] = 1
    else:
        add_to = accumulate

    def run(env):
        a = _matmul_value(stationary, env).reshape(k, m)
        b = _matmul_value(moving, env).reshape(k, n)
        if gen < 4 and dst._dynamic:
            one_bank(dst._shift(env))
        out, mask = dst._array(env), dst._mask(env)
        product = (a.T @ b).reshape(out.shape)
        if add_to:
            if gen < 4:
                require(
                    bool(mask.all()),
                    where,
                    "accumulate onto an address",
                    "not written last by a matmul",
                    "accumulate=False on the first matmul of a group",
                )
            product = dtypes.to_float(out) + product
        dtypes.store(out, product)
        mask[...] = 1

    slow = 4 if "float32" in (stationary.dtype, moving.dtype) else 1
    serial = max(n, FLOOR) * slow
    side_by_side = max(128 // rows, 128 // cols)  # tiles that run at once; the pages say up to 4
    return _emit(
        where,
        "tensor",
        run,
        [dst],
        [stationary, moving, *([dst] if add_to else [])],
        serial / side_by_side,
        serial=serial,
        isa_count=2,
    )


def nc_transpose(dst, data, engine=engine.unknown, name=None):
    where = "nc_transpose"
    _tile(where, "data", data)
    _tile(where, "dst", dst, destination=True)
    p, f = data.shape[0], elements(data)
    on_tensor = (data.buffer == "sbuf" and dst.buffer == "psum") or "needs SBUF to PSUM"
    on_vector = (p <= 32 and f <= 32) or f"({p}, {f}) exceeds 32x32"
    unit = _pick(
        where,
        engine,
        {_engine.tensor: on_tensor, _engine.vector: on_vector},
        _engine.vector if on_vector is True else _engine.tensor,
    )
    require(
        (dst.shape[0], elements(dst)) == (f, p),
        where,
        "dst (partitions, elements)",
        (dst.shape[0], elements(dst)),
        (f, p),
    )
    require(dst.dtype == data.dtype, where, "dtypes", (data.dtype, dst.dtype), "equal")

    def run(env):
        out = dst._array(env)
        out[...] = data._array(env).reshape(p, f).T.copy().reshape(out.shape)
        unmark(dst, env)

    cycles = max(p, FLOOR) * (4 if data.dtype == "float32" else 1) if unit == "tensor" else _vector_cycles(p, 1, [data])
    return _emit(where, unit, run, [dst], [data], cycles, isa_count=2 if unit == "tensor" else 1)


# -- Vector, Scalar and GpSimd engines --------------------------------------------------------------------------------------


def memset(dst, value, engine=engine.unknown, name=None):
    where = "memset"
    _tile(where, "dst", dst, destination=True)
    require(dst.ndim <= 5, where, "rank", dst.ndim, "<= 5")
    unit = _pick(where, engine, {_engine.vector: True, _engine.gpsimd: _gpsimd(dst)}, _engine.vector)
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if dtypes.is_integer(dst.dtype):
        require(whole, where, f"value for {dst.dtype}", value, "an int literal")
        info = np.iinfo(dtypes.STORAGE[dst.dtype])
        require(info.min <= value <= info.max, where, f"value for {dst.dtype}", value, (info.min, info.max))
    else:
        require(isinstance(value, (float, np.floating)), where, f"value for {dst.dtype}", value, "a float literal")

    def run(env):
        dst._array(env)[...] = value
        unmark(dst, env)

    return _emit(where, unit, run, [dst], [], _cycles(unit, elements(dst), 1, [dst]))


def tensor_copy(dst, src, engine=engine.unknown, name=None):
    where, gen = "tensor_copy", current().chip.generation
    _tile(where, "dst", dst, destination=True)
    _tile(where, "src", src)
    _same_count(where, dst=dst, src=src)
    unit = _pick(where, engine, {
        _engine.vector: True, _engine.gpsimd: _gpsimd(dst, src),
        _engine.scalar: gen >= 3 or "gen2: use activation(op=nl.copy)",
    }, _engine.vector)  # fmt: skip

    def run(env):
        value = src._array(env)
        if src.dtype == dst.dtype:
            out = dst._array(env)
            out[...] = (value.copy() if src._storage is dst._storage else value).reshape(out.shape)
            unmark(dst, env)
        else:
            put(dst, env, dtypes.to_float(value))

    return _emit(where, unit, run, [dst], [src], _cycles(unit, elements(dst), 1, [dst, src], "copy"))


def tensor_copy_predicated(dst, src, predicate, reverse_pred=False, name=None):
    where = "tensor_copy_predicated"
    _tile(where, "dst", dst, destination=True)
    _tile(where, "predicate", predicate)
    require(
        predicate.dtype in ("uint8", "uint16", "uint32"),
        where,
        "predicate dtype",
        predicate.dtype,
        "uint8, uint16, uint32",
    )
    _same_count(where, dst=dst, predicate=predicate)
    if isinstance(src, NkiTensor):
        _tile(where, "src", src)
        _same_count(where, dst=dst, src=src)
        require(src.dtype == dst.dtype, where, "dtypes", (src.dtype, dst.dtype), "equal")
        _not_both_psum(where, src=src, predicate=predicate)
    else:
        _column(where, "src", src, dst.shape[0])

    def run(env):
        out = dst._array(env)
        chosen = predicate._array(env).reshape(out.shape) != 0
        value = (
            src._array(env).reshape(out.shape).copy()
            if isinstance(src, NkiTensor)
            else np.full(out.shape, src).astype(out.dtype)
        )
        np.copyto(out, value, where=~chosen if reverse_pred else chosen)
        unmark(dst, env)

    return _emit(where, "vector", run, [dst], [src, predicate, dst], _vector_cycles(elements(dst), 2, [dst, predicate]))


def _bit_operands(where, dst, *tiles):
    for t in (dst, *tiles):
        require(dtypes.is_integer(t.dtype), where, "dtype with a bit operator", t.dtype, "integers")
    require(
        len({t.dtype for t in (dst, *tiles)}) == 1,
        where,
        "dtypes with a bit operator",
        [t.dtype for t in (dst, *tiles)],
        "equal",
    )


def tensor_tensor(dst, data1, data2, op, engine=engine.unknown, name=None):
    where = "tensor_tensor"
    _tile(where, "dst", dst, destination=True)
    _tile(where, "data1", data1)
    _tile(where, "data2", data2)
    _same_shape(where, dst=dst, data1=data1, data2=data2)
    _not_both_psum(where, data1=data1, data2=data2)
    _same_start(where, data1=data1, data2=data2)
    bits = operators.is_bits(op)
    if bits:
        _bit_operands(where, dst, data1, data2)
    else:
        _arithmetic(where, "op", op)
    whole = all(t.dtype in ("int32", "uint32") for t in (dst, data1, data2))
    power = getattr(op, "_nki", "") == "power"
    slow_lane = power or whole
    unit = _pick(where, engine, {
        _engine.vector: "nl.power runs on GpSimd" if power else True,
        _engine.gpsimd: _gpsimd(dst, data1, data2) if slow_lane and not bits else "only nl.power and all-int32/uint32 operands",
    }, _engine.gpsimd if power else _engine.vector)  # fmt: skip
    exact = unit == "gpsimd" and whole

    def run(env):
        if bits:
            out = dst._array(env)
            out[...] = operators.bits(op._nki)(data1._array(env), data2._array(env))
            unmark(dst, env)
        elif exact:
            a, b = (t._array(env).astype(np.int64) for t in (data1, data2))
            out = dst._array(env)
            out[...] = operators._BINARY[op._nki](a, b).astype(out.dtype)  # modulo 2^32
        else:
            put(dst, env, operators.binary(op._nki)(float_operand(data1, env), float_operand(data2, env)))

    return _emit(where, unit, run, [dst], [data1, data2], _cycles(unit, elements(dst), 2, [dst, data1, data2], "pair"))


def tensor_scalar(
    dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False, engine=engine.unknown, name=None
):
    where, gen = "tensor_scalar", current().chip.generation
    _tile(where, "dst", dst, destination=True)
    _tile(where, "data", data)
    _same_shape(where, dst=dst, data=data)
    require((op1 is None) == (operand1 is None), where, "op1 and operand1", (op1, operand1), "both or neither")
    steps = [(op0, operand0, reverse0)] + ([(op1, operand1, reverse1)] if op1 is not None else [])
    bits = operators.is_bits(op0)
    for i, (op, operand, _) in enumerate(steps):
        require(
            operators.is_bits(op) == bits, where, f"op{i}", operators.label(op), "both bit operators or both arithmetic"
        )
        if bits:
            require(
                isinstance(operand, (int, np.integer)),
                where,
                f"operand{i} of a bit operator",
                type(operand).__name__,
                "int",
            )
        else:
            _arithmetic(where, f"op{i}", op)
            _column(where, f"operand{i}", operand, data.shape[0])
            require(op._nki != "power", where, f"op{i}", "nl.power", "tensor_tensor on GpSimd")
    if bits:
        _bit_operands(where, dst, data)
    names = tuple(op._nki for op, _, _ in steps)
    scalar_ok = (
        "gen3 and later"
        if gen < 3
        else True
        if names in (("multiply", "add"), ("multiply",), ("add",))
        else "multiply + add, multiply, add only"
    )
    unit = _pick(
        where, engine, {_engine.vector: True, _engine.scalar: scalar_ok, _engine.gpsimd: "rsqrt only"}, _engine.vector
    )

    def run(env):
        if bits:
            value = data._array(env)
            for op, operand, reverse in steps:
                other = value.dtype.type(operand)
                value = operators.bits(op._nki)(other, value) if reverse else operators.bits(op._nki)(value, other)
            dst._array(env)[...] = value
            unmark(dst, env)
            return
        value = float_operand(data, env)
        for op, operand, reverse in steps:
            other, function = _column_value(operand, env, data.ndim), operators.binary(op._nki)
            value = function(other, value) if reverse else function(value, other)
        put(dst, env, value)

    return _emit(
        where, unit, run, [dst], [data, operand0, operand1], _cycles(unit, elements(dst), 1, [dst, data], "copy")
    )


def scalar_tensor_tensor(dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, reduce_cmd=reduce_cmd.reset_reduce, reduce_op=..., reduce_res=None, name=None):  # fmt: skip
    where = "scalar_tensor_tensor"
    _tile(where, "dst", dst, destination=True)
    _tile(where, "data", data)
    _tile(where, "operand1", operand1)
    _same_shape(where, dst=dst, data=data, operand1=operand1)
    _not_both_psum(where, data=data, operand1=operand1)
    _same_start(where, data=data, operand1=operand1)
    _arithmetic(where, "op0", op0)
    _arithmetic(where, "op1", op1)
    _column(where, "operand0", operand0, data.shape[0])
    _enum(where, "reduce_cmd", reduce_cmd, _reduce_cmd)
    _result(where, reduce_res, data.shape[0])
    if reduce_res is not None:
        require(
            getattr(reduce_op, "_nki", None) in operators.IDENTITY,
            where,
            "reduce_op",
            operators.label(reduce_op),
            sorted(operators.IDENTITY),
        )
        require(
            reduce_cmd is not _reduce_cmd.load_reduce,
            where,
            "reduce_cmd",
            "load_reduce",
            "idle, reset, reduce, reset_reduce",
        )
    elif reduce_op is not ...:
        refuse(where, "reduce_op without reduce_res", operators.label(reduce_op), "reduce_res as well")

    writes, store = _reduced(dst, reduce_res, "vector", reduce_cmd, reduce_op)

    def run(env):
        a, b = float_operand(data, env), _column_value(operand0, env, data.ndim)
        f0, f1 = operators.binary(op0._nki), operators.binary(op1._nki)
        value = f0(b, a) if reverse0 else f0(a, b)
        c = float_operand(operand1, env)
        value = f1(c, value) if reverse1 else f1(value, c)
        store(env, value)

    return _emit(
        where,
        "vector",
        run,
        writes,
        [data, operand0, operand1],
        _vector_cycles(elements(dst), 2, [dst, data, operand1]),
    )


def tensor_scalar_reduce(dst, data, op0, operand0, reduce_op, reduce_res=None, reverse0=False, reduce_cmd=reduce_cmd.reset_reduce, reduce_init=None, reduce_res_negate=False, name=None):  # fmt: skip
    where = "tensor_scalar_reduce"
    _tile(where, "dst", dst, destination=True)
    _tile(where, "data", data)
    _same_shape(where, dst=dst, data=data)
    require(data.ndim <= 4, where, "rank", data.ndim, "<= 4")
    _arithmetic(where, "op0", op0)
    _column(where, "operand0", operand0, data.shape[0])
    require(
        getattr(reduce_op, "_nki", None) in ("add", "multiply", "maximum", "minimum"),
        where,
        "reduce_op",
        operators.label(reduce_op),
        "add, multiply, maximum, minimum",
    )
    _enum(where, "reduce_cmd", reduce_cmd, _reduce_cmd)
    require(
        (reduce_init is not None) == (reduce_cmd is _reduce_cmd.load_reduce),
        where,
        "reduce_init",
        reduce_init,
        "a number with load_reduce, else None",
    )
    _result(where, reduce_res, data.shape[0])

    writes, store = _reduced(dst, reduce_res, "vector", reduce_cmd, reduce_op)

    def run(env):
        a, b, f = float_operand(data, env), _column_value(operand0, env, data.ndim), operators.binary(op0._nki)
        value = f(b, a) if reverse0 else f(a, b)
        store(env, value, always=True, start=reduce_init, negate=reduce_res_negate)

    return _emit(where, "vector", run, writes, [data, operand0], _vector_cycles(elements(dst), 1, [dst, data]))


def tensor_scalar_cumulative(dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reduce_cmd.reset_reduce, name=None):
    where = "tensor_scalar_cumulative"
    _tile(where, "dst", dst, destination=True)
    _tile(where, "src", src)
    _same_shape(where, dst=dst, src=src)
    _arithmetic(where, "op0", op0)
    require(
        getattr(op1, "_nki", None) in operators.IDENTITY, where, "op1", operators.label(op1), sorted(operators.IDENTITY)
    )
    for t in (dst, src):
        require(t.dtype not in ("int32", "uint32"), where, "dtype", t.dtype, "no 32-bit integers")
    _column(where, "imm0", imm0, src.shape[0])
    require(
        reduce_cmd in (_reduce_cmd.reset_reduce, _reduce_cmd.load_reduce),
        where,
        "reduce_cmd",
        reduce_cmd,
        "reset_reduce or load_reduce in this stand-in",
    )
    require(
        (imm1 is not None) == (reduce_cmd is _reduce_cmd.load_reduce),
        where,
        "imm1",
        imm1,
        "given with load_reduce, else None",
    )
    if imm1 is not None:
        _column(where, "imm1", imm1, src.shape[0])

    def run(env):
        p = src.shape[0]
        value = operators.binary(op0._nki)(float_operand(src, env), _column_value(imm0, env, src.ndim)).reshape(p, -1)
        start = operators.IDENTITY[op1._nki] if imm1 is None else _column_value(imm1, env, 1)
        put(dst, env, _scan(value, start, operators.binary(op1._nki)))

    return _emit(where, "vector", run, [dst], [src, imm0, imm1], _vector_cycles(elements(dst), 1, [dst, src]))


def _scan(value, start, step):
    held, out = np.broadcast_to(np.asarray(start, np.float32), value.shape[:1]), np.empty_like(value)
    for i in range(value.shape[1]):
        held = out[:, i] = step(value[:, i], held)
    return out


def tensor_tensor_scan(dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False, name=None):
    where = "tensor_tensor_scan"
    _tile(where, "dst", dst, destination=True)
    _tile(where, "data0", data0)
    _tile(where, "data1", data1)
    _same_shape(where, dst=dst, data0=data0, data1=data1)
    _not_both_psum(where, data0=data0, data1=data1)
    _same_start(where, data0=data0, data1=data1)
    _arithmetic(where, "op0", op0)
    _arithmetic(where, "op1", op1)
    _column(where, "initial", initial, data0.shape[0], FLOATS)

    def run(env):
        # result[i] = (data0[i] op0 result[i-1]) op1 data1[i]
        p = data0.shape[0]
        a, b = float_operand(data0, env).reshape(p, -1), float_operand(data1, env).reshape(p, -1)
        held = np.broadcast_to(np.asarray(_column_value(initial, env, 1), np.float32), (p,))
        f0, f1, out = operators.binary(op0._nki), operators.binary(op1._nki), np.empty_like(a)
        for i in range(a.shape[1]):
            first = f0(held, a[:, i]) if reverse0 else f0(a[:, i], held)
            held = out[:, i] = f1(b[:, i], first) if reverse1 else f1(first, b[:, i])
        put(dst, env, out)

    return _emit(
        where, "vector", run, [dst], [data0, data1, initial], _vector_cycles(elements(dst), 2, [dst, data0, data1])
    )


def tensor_reduce(dst, op, data, axis, negate=False, keepdims=False, name=None):
    where = "tensor_reduce"
    _tile(where, "data", data)
    _tile(where, "dst", dst, destination=True)
    axes = tuple(sorted(a % data.ndim for a in (axis if isinstance(axis, (tuple, list)) else (axis,))))
    require(
        axes and axes == tuple(range(data.ndim - len(axes), data.ndim)) and axes[0] > 0,
        where,
        "axis",
        axis,
        "the last free axes; never axis 0",
    )
    require(getattr(op, "_nki", None) in operators.REDUCTIONS, where, "op", operators.label(op), operators.REDUCTIONS)
    bits = operators.is_bits(op)
    if bits:
        _bit_operands(where, dst, data)
    kept = data.shape[: axes[0]]
    shapes = [kept + (1,) * len(axes)] if keepdims else [kept, (*kept, 1)] if len(kept) == 1 else [kept]
    require(dst.shape in shapes, where, "dst shape", dst.shape, shapes)

    def run(env):
        value = data._array(env).reshape((*kept, -1))
        if bits:
            dst._array(env)[...] = getattr(np, op._nki).reduce(value, axis=-1).reshape(dst.shape)
            unmark(dst, env)
            return
        value = dtypes.to_float(value)
        if op._nki == "subtract":
            total = value[..., 0] - value[..., 1:].sum(-1, dtype=np.float32)
        elif op._nki.startswith("logical"):
            total = operators._BINARY[op._nki].reduce(value != 0, axis=-1).astype(np.float32)
        else:
            total = operators._BINARY[op._nki].reduce(value, axis=-1)
        put(dst, env, -total if negate else total)

    return _emit(where, "vector", run, [dst], [data], _vector_cycles(elements(data), 1, [data]))


def tensor_partition_reduce(dst, op, data, name=None):
    where = "tensor_partition_reduce"
    _tile(where, "data", data, ("sbuf",))
    _tile(where, "dst", dst, ("sbuf",), destination=True)
    require(data.ndim <= 5, where, "rank", data.ndim, "<= 5")
    legal = ("add", "maximum", "bitwise_or", "bitwise_and", "bitwise_xor")
    require(getattr(op, "_nki", None) in legal, where, "op", operators.label(op), legal)
    require(dst.shape == (1, *data.shape[1:]), where, "dst shape", dst.shape, (1, *data.shape[1:]))
    if operators.is_bits(op):
        _bit_operands(where, dst, data)

    def run(env):
        if operators.is_bits(op):
            dst._array(env)[...] = getattr(np, op._nki).reduce(data._array(env), axis=0, keepdims=True)
        else:
            put(dst, env, operators._BINARY[op._nki].reduce(float_operand(data, env), axis=0, keepdims=True))

    return _emit(where, "gpsimd", run, [dst], [data], max(FLOOR, elements(data)))


def reciprocal(dst, data, name=None):
    where = "reciprocal"
    _tile(where, "dst", dst, destination=True)
    _tile(where, "data", data)
    _same_shape(where, dst=dst, data=data)
    return _emit(
        where,
        "vector",
        lambda env: put(dst, env, np.float32(1) / float_operand(data, env)),
        [dst],
        [data],
        8 * _vector_cycles(elements(dst), 1, [dst, data]),
    )


def activation(
    dst,
    op,
    data,
    bias=None,
    scale=1.0,
    reduce_op=None,
    reduce_res=None,
    reduce_cmd=reduce_cmd.idle,
    engine=engine.scalar,
    name=None,
):
    where, gen = "activation", current().chip.generation
    _tile(where, "dst", dst, destination=True)
    _tile(where, "data", data)
    _same_shape(where, dst=dst, data=data)
    require(operators.is_activation(op), where, "op", operators.label(op), "an activation of the stand-in")
    with_sum = reduce_op is not None or reduce_res is not None
    unit = _pick(where, engine, {
        _engine.scalar: True,
        _engine.gpsimd: (gen >= 4 or "gen4 only") if not with_sum else "no accumulator on GpSimd",
    }, _engine.scalar)  # fmt: skip
    _column(where, "scale", scale, data.shape[0])
    if bias is not None:
        tile = _column(where, "bias", bias, data.shape[0], _BIAS)
        require(tile or gen >= 3, where, "bias", f"a number on gen{gen}", "a [P, 1] tile on gen2")
    _enum(where, "reduce_cmd", reduce_cmd, _reduce_cmd)
    if with_sum:
        require(
            reduce_op is add and reduce_res is not None,
            where,
            "reduce_op and reduce_res",
            (operators.label(reduce_op), reduce_res),
            "nl.add with a [P, 1] tile",
        )
        require(
            reduce_cmd is not _reduce_cmd.load_reduce, where, "reduce_cmd", "load_reduce", "reset, reduce, reset_reduce"
        )
    _result(where, reduce_res, data.shape[0])
    function = operators.unary(op._nki)
    limits = operators.RANGES.get(op._nki)

    writes, store = _reduced(dst, reduce_res, unit, reduce_cmd, reduce_op)

    def run(env):
        x = float_operand(data, env)
        if not (isinstance(scale, float) and scale == 1.0):
            x = x * _column_value(scale, env, data.ndim)
        if bias is not None:
            x = x + _column_value(bias, env, data.ndim)
        if limits or op._nki == "reciprocal":
            low, high = limits or operators.RECIPROCAL
            size = np.abs(x) if op._nki == "reciprocal" else x
            bad = size[(size < np.float32(low)) | (size > np.float32(high))]
            require(bad.size == 0, where, f"argument of nl.{op._nki}", bad[:3].tolist(), (low, high))
        value = function(x)
        store(env, value)

    return _emit(where, unit, run, writes, [data, bias, scale], _cycles(unit, elements(dst), 1, [dst, data]))


def activation_reduce(dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None):
    return activation(dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd.reset_reduce)


def _affine(where, pattern, partitions, free, offset, channel_multiplier):
    require(
        1 <= len(pattern) <= 4 and all(len(p) == 2 for p in pattern),
        where,
        "pattern",
        pattern,
        "1..4 [step, num] pairs",
    )
    require(
        math.prod(n for _, n in pattern) == free,
        where,
        "elements of the pattern",
        math.prod(n for _, n in pattern),
        free,
    )
    value = np.zeros((1,) * len(pattern), np.int64)
    for axis, (step, num) in enumerate(pattern):
        value = value + (np.arange(num) * step).reshape((-1,) + (1,) * (len(pattern) - axis - 1))
    rows = offset + channel_multiplier * np.arange(partitions, dtype=np.int64)
    return rows[:, None] + value.reshape(1, -1)


def iota(dst, pattern, offset=0, channel_multiplier=0, name=None):
    where = "iota"
    _tile(where, "dst", dst, ("sbuf",), destination=True)
    require(
        isinstance(offset, int) and isinstance(channel_multiplier, int),
        where,
        "offset and channel_multiplier",
        (offset, channel_multiplier),
        "Python integers",
    )
    value = _affine(where, pattern, dst.shape[0], elements(dst), offset, channel_multiplier)
    require(
        -(1 << 31) <= value.min() and value.max() < 1 << 31,
        where,
        "values",
        (int(value.min()), int(value.max())),
        "int32",
    )

    def run(env):
        out = dst._array(env)
        if out.dtype.kind in "iu":
            info = np.iinfo(out.dtype)
            out[...] = np.clip(value, info.min, info.max).reshape(out.shape)
        else:
            dtypes.store(out, value.astype(np.float32))

    return _emit(where, "gpsimd", run, [dst], [], max(FLOOR, elements(dst)))


def affine_select(dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=equal, offset=0, name=None):
    where = "affine_select"
    _tile(where, "dst", dst, ("sbuf",), destination=True)
    _tile(where, "on_true_tile", on_true_tile, ("sbuf",))
    _same_shape(where, dst=dst, on_true_tile=on_true_tile)
    legal = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
    require(getattr(cmp_op, "_nki", None) in legal, where, "cmp_op", operators.label(cmp_op), legal)
    _column(where, "on_false_value", on_false_value, dst.shape[0])
    require(not isinstance(on_false_value, NkiTensor), where, "on_false_value", "a tile", "a number")
    value = _affine(where, pattern, dst.shape[0], elements(dst), offset, channel_multiplier)

    def run(env):
        keep = operators._BINARY[cmp_op._nki](value, 0)  # the affine value against zero
        data = float_operand(on_true_tile, env)
        put(dst, env, np.where(keep.reshape(data.shape), data, np.float32(on_false_value)))

    return _emit(where, "gpsimd", run, [dst], [on_true_tile], max(FLOOR, elements(dst)))


def select_reduce(
    dst,
    predicate,
    on_true,
    on_false,
    reduce_res=None,
    reduce_cmd=reduce_cmd.idle,
    reduce_op=maximum,
    reverse_pred=False,
    name=None,
):
    where = "select_reduce"
    _tile(where, "dst", dst, destination=True)
    _tile(where, "predicate", predicate)
    _tile(where, "on_true", on_true)
    _same_shape(where, dst=dst, predicate=predicate, on_true=on_true)
    _not_both_psum(where, on_true=on_true, predicate=predicate)
    require(
        predicate.dtype in ("int8", "uint8", "int16", "uint16"),
        where,
        "predicate dtype",
        predicate.dtype,
        "8- and 16-bit integers",
    )
    require(
        on_true.dtype not in ("tfloat32", "int32", "uint32"),
        where,
        "on_true dtype",
        on_true.dtype,
        "any but tfloat32, int32, uint32",
    )
    require(reduce_op is maximum, where, "reduce_op", operators.label(reduce_op), "nl.maximum")
    _column(where, "on_false", on_false, dst.shape[0])
    _enum(where, "reduce_cmd", reduce_cmd, _reduce_cmd)
    _result(where, reduce_res, dst.shape[0])

    writes, store = _reduced(dst, reduce_res, "vector", reduce_cmd, reduce_op)

    def run(env):
        chosen = (predicate._array(env) != 0) ^ bool(reverse_pred)
        value = np.where(chosen, float_operand(on_true, env), _column_value(on_false, env, dst.ndim))
        store(env, value)

    return _emit(
        where,
        "vector",
        run,
        writes,
        [predicate, on_true, on_false],
        _vector_cycles(elements(dst), 2, [dst, predicate, on_true]),
    )


def nc_stream_shuffle(dst, src, shuffle_mask, name=None):
    where = "nc_stream_shuffle"
    _tile(where, "dst", dst, destination=True)
    _tile(where, "src", src)
    _same_count(where, dst=dst, src=src)
    require(dst.dtype == src.dtype, where, "dtypes", (src.dtype, dst.dtype), "equal")
    require(
        len(shuffle_mask) == QUADRANT and all(0 <= v < QUADRANT or v == 255 for v in shuffle_mask),
        where,
        "shuffle_mask",
        shuffle_mask,
        "32 of 0..31, or 255 to leave",
    )
    p = src.shape[0]

    def run(env):
        value, out = src._array(env).reshape(p, -1).copy(), dst._array(env)
        flat = out.reshape(p, -1).copy()
        for i in range(p):
            q, lane = divmod(i, QUADRANT)
            if shuffle_mask[lane] != 255:
                source = q * QUADRANT + shuffle_mask[lane]
                require(source < p, where, "source partition", source, f"< {p}")
                flat[i] = value[source]
        out[...] = flat.reshape(out.shape)
        unmark(dst, env)

    return _emit(where, "vector", run, [dst], [src, dst], _vector_cycles(elements(dst), 1, [dst, src]))


def nc_n_gather(dst, data, indices, name=None):
    where = "nc_n_gather"
    _tile(where, "dst", dst, ("sbuf",), destination=True)
    _tile(where, "data", data, ("sbuf",))
    _tile(where, "indices", indices, ("sbuf",))
    _same_count(where, dst=dst, indices=indices)
    require(data.shape[0] == dst.shape[0], where, "partitions", (data.shape[0], dst.shape[0]), "equal")
    require(dst.dtype == data.dtype, where, "dtypes", (data.dtype, dst.dtype), "equal")
    require(indices.dtype == "uint32", where, "indices dtype", indices.dtype, "uint32")

    def run(env):
        p = data.shape[0]
        at = indices._array(env).reshape(p, -1).astype(np.int64)
        n = elements(data)
        require(bool((at < n).all()), where, "indices", int(at.max()), f"< {n}")
        out = dst._array(env)
        out[...] = np.take_along_axis(data._array(env).reshape(p, -1), at, 1).reshape(out.shape)

    groups = -(-elements(dst) // 512)
    return _emit(where, "gpsimd", run, [dst], [data, indices], max(FLOOR, elements(dst)), isa_count=groups)


# -- registers and scalars --------------------------------------------------------------------------------------------------


def register_alloc(x=None):
    trace = current()
    trace.registers += 1
    require(
        trace.registers <= REGISTERS, "register_alloc", "registers of a sequencer", trace.registers, f"<= {REGISTERS}"
    )
    register = VirtualRegister()
    if x is not None:
        register_move(register, x)
    return register


def _one_element(where, t, allowed):
    require(
        isinstance(t, NkiTensor) and math.prod(t.shape) == 1 and t.buffer != "psum",
        where,
        "tensor",
        t,
        "one element in HBM or SBUF",
    )
    require(t.dtype in allowed, where, "dtype", t.dtype, allowed)


def _register(where, r):
    require(isinstance(r, VirtualRegister), where, "register", type(r).__name__, "VirtualRegister")


def _sequencer(op, run, writes=(), reads=()):
    _emit(op, "sync", run, writes, reads, 0)


def register_move(dst, src):
    _register("register_move dst", dst)
    require(
        isinstance(src, (int, VirtualRegister)), "register_move", "src", type(src).__name__, "int or VirtualRegister"
    )

    def run(env):
        env.registers[dst] = src if isinstance(src, int) else src.evaluate(env)

    _sequencer("register_move", run)


def register_load(dst, src):
    _register("register_load dst", dst)
    _one_element("register_load", src, ("int32", "uint32"))

    def run(env):
        env.registers[dst] = int(src._array(env).reshape(()))

    _sequencer("register_load", run, reads=[src])


def register_store(dst, src):
    _one_element("register_store", dst, ("int32", "uint32"))
    _register("register_store src", src)
    _sequencer("register_store", lambda env: dst._array(env).fill(src.evaluate(env)), writes=[dst])


def scalar_load(src):
    _one_element("scalar_load", src, ("int32", "int64"))
    key = object()

    def run(env):
        env.registers[key] = int(src._array(env).reshape(()))

    _sequencer("scalar_load", run, reads=[src])
    return NkiScalar(lambda env: env.registers[key], src.dtype, current().loops)


def scalar_store(dst, src):
    _one_element("scalar_store", dst, ("int32", "int64"))
    require(
        isinstance(src, NkiScalar) and src.dtype == dst.dtype,
        "scalar_store",
        "src",
        getattr(src, "dtype", type(src).__name__),
        f"NkiScalar of {dst.dtype}",
    )
    src.check_scope("scalar_store", current().loops)
    _sequencer("scalar_store", lambda env: dst._array(env).fill(src.evaluate(env)), writes=[dst])


# -- two cores of a logical core --------------------------------------------------------------------------------------------


def core_barrier(data, cores, engine=engine.gpsimd, name=None):
    where, trace = "core_barrier", current()
    require(trace.chip.generation >= 3, where, "generation", trace.chip.generation, "gen3 and gen4")
    require(
        isinstance(data, NkiTensor) and data.buffer == "shared_hbm",
        where,
        "data",
        getattr(data, "buffer", type(data).__name__),
        "a shared_hbm tensor",
    )
    require(tuple(cores) == (0, 1), where, "cores", cores, (0, 1))
    require(trace.lnc == 2, where, "LNC", trace.lnc, "2: one core has nobody to wait for in this stand-in")
    require(not trace.loops, where, "place", "inside fori_loop", "outside loops in this stand-in")
    trace.blocks[-1].append(Barrier())


_DGE, _OOB = dge_mode, oob_mode
_BIAS = tuple(n for n in dtypes.STORAGE if n not in ("tfloat32", "int64"))

"""``nki.language``: memory, loops, data types and operators."""

import math

import numpy as np

from . import dtypes, operators
from .chips import PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS, PSUM_BYTES
from .errors import refuse, require
from .program import current
from .scalars import NkiScalar, VirtualRegister
from .tensors import NkiTensor

bool_, int8, int16, int32, uint8, uint16, uint32 = "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"
int64 = "int64"  # scalar_load and scalar_store only
float16, bfloat16, tfloat32, float32 = "float16", "bfloat16", "tfloat32", "float32"
float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu = (
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
)
float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4 = "float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4"


class MemoryRegion(str):
    """A memory; compare with ``==``."""


sbuf, psum, private_hbm, shared_hbm = (MemoryRegion(n) for n in ("sbuf", "psum", "private_hbm", "shared_hbm"))
hbm = private_hbm


class _TileSize:
    """Limits of a tile; those of SBUF depend on the target of the kernel being traced."""

    pmax, psum_bank_fmax, psum_fmax, psum_bank_fmax_bytes, psum_num_banks = (
        PARTITIONS,
        512,
        512,
        PSUM_BANK_BYTES,
        PSUM_BANKS,
    )
    gemm_stationary_fmax, gemm_moving_fmax, bn_stats_fmax, psum_min_align, sbuf_min_align = 128, 512, 512, 4, 1

    @property
    def sbuf_fmax_bytes(self):
        return current().chip.sbuf_bytes

    @property
    def sbuf_fmax(self):
        return self.sbuf_fmax_bytes // 4

    @property
    def sbuf_size_bytes(self):
        return PARTITIONS * {2: 192, 3: 224, 4: 256}[current().chip.generation] * 1024


tile_size = _TileSize()


def ndarray(shape, dtype, buffer=sbuf, name="", address=None):
    where, trace = "nl.ndarray", current()
    require(
        isinstance(shape, (tuple, list))
        and len(shape) > 0
        and all(isinstance(n, (int, np.integer)) and n > 0 for n in shape),
        where,
        "shape",
        shape,
        "positive Python integers",
    )
    shape = tuple(int(n) for n in shape)
    require(isinstance(dtype, str), where, "dtype", dtype, "a dtype of nki.language")
    dtype = dtypes.name_of(dtype, where)
    require(
        isinstance(buffer, MemoryRegion), where, "buffer", buffer, "nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm"
    )
    if buffer in (sbuf, psum):
        require(len(shape) >= 2, where, "rank of an on-chip tensor", len(shape), ">= 2: partitions and a free axis")
        require(shape[0] <= PARTITIONS, where, "partitions (axis 0)", shape[0], f"<= {PARTITIONS}")
        limit = trace.chip.sbuf_bytes if buffer == sbuf else PSUM_BYTES
        size = math.prod(shape[1:]) * dtypes.itemsize(dtype)
        require(
            size <= limit, where, f"bytes per partition in {buffer}", size, f"<= {limit} on gen{trace.chip.generation}"
        )
    start = 0
    if address is not None:
        if buffer in (sbuf, psum):
            require(
                isinstance(address, tuple) and len(address) == 2, where, "address", address, "(partition, free byte)"
            )
            start = address[0]
            n = shape[0]
            legal = (0,) if n > 64 else (0, 64) if n > 32 else (0, 32, 64, 96)
            require(start in legal, where, f"start partition of {n} partitions", start, legal)
            require(
                0 <= address[1] and address[1] + size <= limit,
                where,
                f"address in {buffer}",
                address,
                f"free bytes inside 0..{limit}",
            )
            if buffer == psum:
                require(
                    address[1] % PSUM_BANK_BYTES == 0,
                    where,
                    "PSUM address",
                    address[1],
                    f"a multiple of {PSUM_BANK_BYTES}: tiles start on a bank",
                )
        else:
            require(isinstance(address, tuple) and len(address) == 1, where, "address", address, "(free,)")
    storage = trace.storage(shape, dtype, str(buffer), name, address)
    storage.start = start
    return NkiTensor(shape, dtype, storage)


def _filled(shape, value, dtype, buffer, name):
    from . import isa

    out = ndarray(shape, dtype, buffer, name)
    if out._on_chip:
        isa.memset(out, int(value) if dtypes.is_integer(dtype) else float(value))
    else:
        refuse("nl.full", "buffer", str(buffer), "sbuf or psum in this stand-in; fill HBM by dma_copy from SBUF")
    return out


def zeros(shape, dtype, buffer=sbuf, name=""):
    return _filled(shape, 0, dtype, buffer, name)


def ones(shape, dtype, buffer=sbuf, name=""):
    return _filled(shape, 1, dtype, buffer, name)


def full(shape, fill_value, dtype, buffer=sbuf, name=""):
    return _filled(shape, fill_value, dtype, buffer, name)


def _buffer_of(x, buffer):
    return (
        {"sbuf": sbuf, "psum": psum, "private_hbm": private_hbm, "shared_hbm": shared_hbm}[x.buffer]
        if buffer is None
        else buffer
    )


def empty_like(x, dtype=None, buffer=None, name=""):
    return ndarray(x.shape, dtype or x.dtype, _buffer_of(x, buffer), name)


def zeros_like(x, dtype=None, buffer=None, name=""):
    return _filled(x.shape, 0, dtype or x.dtype, _buffer_of(x, buffer), name)


def shared_constant(constant):
    array = np.load(constant) if isinstance(constant, str) else np.asarray(constant)
    dtype = dtypes.name_of(array.dtype, "nl.shared_constant")
    storage = current().storage(array.shape, dtype, "shared_hbm", "", kind="constant")
    storage.initial = array.copy()
    return NkiTensor(array.shape, dtype, storage)


def shared_identity_matrix(n, dtype=uint8, dst=None):
    from . import isa

    constant = shared_constant(np.eye(n).astype(dtypes.STORAGE[dtypes.name_of(dtype)]))
    out = ndarray((n, n), dtype, sbuf) if dst is None else dst
    isa.dma_copy(out, constant)
    return out


def load(src, dtype=None):
    from . import isa

    out = ndarray(src.shape, dtype or src.dtype, sbuf)
    isa.dma_copy(out, src)
    return out


def store(dst, value):
    from . import isa

    isa.dma_copy(dst, value)


def ds(start, size):
    require(
        isinstance(start, (int, np.integer)),
        "nl.ds",
        "start",
        type(start).__name__,
        "int; .ap(scalar_offset=) for device values",
    )
    return slice(start, start + size)


def _unrolled(start, stop=None, step=1):
    for v in (start, stop, step):
        require(
            v is None or isinstance(v, (int, np.integer)),
            "nl.*_range",
            "bound",
            type(v).__name__,
            "int; nl.fori_loop for device values",
        )
    return range(start) if stop is None else range(start, stop, step)


def affine_range(start, stop=None, step=1):
    return _unrolled(start, stop, step)


def sequential_range(start, stop=None, step=1):
    return _unrolled(start, stop, step)


def static_range(start, stop=None, step=1):
    return _unrolled(start, stop, step)


def fori_loop(lower, upper, body_fun, step=1):
    where = "nl.fori_loop"
    require(isinstance(step, int) and step > 0, where, "step", step, "a positive compile-time int")
    for what, bound in (("lower", lower), ("upper", upper)):
        require(
            isinstance(bound, (int, NkiScalar, VirtualRegister)) and not isinstance(bound, bool),
            where,
            what,
            type(bound).__name__,
            "int, NkiScalar, VirtualRegister",
        )
        if isinstance(bound, int):
            require(-(1 << 31) <= bound < 1 << 31, where, what, bound, "32-bit")
        else:
            require(bound.dtype == "int32", where, what, bound.dtype, "32-bit")
    trace = current()
    if isinstance(lower, VirtualRegister) or isinstance(upper, VirtualRegister):
        index = VirtualRegister(frozen=True)
    else:
        index = NkiScalar(None)
        index.evaluate = lambda env: env.registers[index]
    trace.loop(lower, upper, step, index, body_fun)


def while_loop(init, body_fun):
    require(isinstance(init, VirtualRegister), "nl.while_loop", "init", type(init).__name__, "VirtualRegister")
    current().while_loop(init, body_fun)


def program_id(axis=0):
    require(axis == 0, "nl.program_id", "axis", axis, 0)
    return current().program_id


def num_programs(axes=0):
    require(axes == 0, "nl.num_programs", "axes", axes, 0)
    return current().lnc


def program_ndim():
    return 1


def _tile_binary(name, doc):
    def function(x, y, dtype=None):
        from . import isa

        if not isinstance(x, NkiTensor) and not isinstance(y, NkiTensor):
            refuse(f"nl.{name}", "operands", (type(x).__name__, type(y).__name__), "tiles, or a tile and a number")
        tile = x if isinstance(x, NkiTensor) else y
        out = ndarray(tile.shape, dtype or tile.dtype, sbuf)
        if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
            isa.tensor_tensor(out, x, y, function)
        else:
            isa.tensor_scalar(out, tile, function, y if tile is x else x, reverse0=tile is y)
        return out

    function.__name__ = function.__qualname__ = function._nki = name
    function.__doc__ = doc
    return function


def _tile_unary(name, doc):
    def function(x, dtype=None):
        from . import isa

        out = ndarray(x.shape, dtype or x.dtype, sbuf)
        if name == "reciprocal":
            isa.reciprocal(out, x)
        else:
            isa.activation(out, function, x)
        return out

    function.__name__ = function.__qualname__ = function._nki = name
    function.__doc__ = doc
    return function


for _name in (*operators._BINARY, *operators._BITS):
    globals()[_name] = _tile_binary(_name, f"Operator {_name}, and the same on tiles.")
for _name in operators._UNARY:
    globals()[_name] = _tile_unary(_name, f"Operator {_name}, and the same on tiles.")

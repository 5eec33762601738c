"""Every documented constraint has a kernel that breaks it; the error names the constraint, what was found, what is allowed."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import nki_sim
from nki_sim import NkiValidationError
from nki_sim import isa as nisa
from nki_sim import language as nl

X = np.ones((128, 64), np.float32)
GEN = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}


def sb(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def ps(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.psum)


def hbm(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def refused(body, said, target="trn2", run=False, **options):
    """``body(x)`` inside a kernel must be refused with a message that has all of ``said`` in it."""
    said = (said,) if isinstance(said, str) else said

    def kernel(x):
        body(x)

    with pytest.raises(NkiValidationError) as caught:
        (nki_sim.run if run else nki_sim.trace)(kernel, {"x": X}, target=target, **options)
    message = str(caught.value)
    assert all(s in message for s in said), message
    assert "found" in message and "allowed" in message, message


def admitted(body, target="trn2", run=False):
    def kernel(x):
        body(x)

    (nki_sim.run if run else nki_sim.trace)(kernel, {"x": X}, target=target)


def copy(dst, src):
    nisa.tensor_copy(dst=dst, src=src)


# -- shapes, partitions, access patterns --------------------------------------------------------------------------------------

SHAPES = {
    "129 partitions": (lambda x: sb(129, 4), ("partitions", "129", "128")),
    "one axis on chip": (lambda x: sb(128), "rank of an on-chip tensor"),
    "a size of zero": (lambda x: sb(4, 0), "shape"),
    "a dtype that NumPy has": (lambda x: nl.ndarray((2, 2), np.float32), "dtype"),
    "float64": (lambda x: nl.ndarray((2, 2), "float64"), ("no float64", "float64")),
    "complex": (lambda x: nl.ndarray((2, 2), "complex64"), "no complex"),
    "buffer as a string": (lambda x: nl.ndarray((2, 2), nl.float32, buffer="sbuf"), "buffer"),
    "start partition 8": (lambda x: copy(sb(32, 4), sb(128, 4)[8:40]), ("start partition of 32", "8", "(0, 32, 64, 96)")),
    "start partition 32 of 33": (lambda x: copy(sb(33, 4), sb(128, 4)[32:65]), ("start partition of 33", "32", "(0, 64)")),
    "start partition 32 of 65": (lambda x: copy(sb(65, 4), sb(128, 4)[32:97]), ("start partition of 65", "(0,)")),
    "a partition step": (lambda x: sb(128, 4)[0:64:2], ("partition step", "2", "consecutive")),
    "a partition stride": (lambda x: sb(128, 4).ap([[8, 64], [1, 4]]), ("partition stride", "8", "4")),
    "an integer partition": (lambda x: sb(128, 4)[3], ("on-chip tensor", "partition axis")),
    "permuted partitions": (lambda x: sb(8, 4).permute((1, 0)), "axis 0 stays first"),
    "out of bounds": (lambda x: sb(128, 4)[:, 2:5], ("bounds on an axis of 4", "(2, 5)")),
    "a pattern out of bounds": (lambda x: sb(128, 4).ap([[4, 128], [1, 5]]), "bounds"),
    "a pattern across partitions": (lambda x: sb(128, 4).ap([[4, 64], [1, 5]]), ("free range of one partition", "0..3")),
    "five free axes": (
        lambda x: copy(sb(2, 32), sb(2, 3, 3, 3, 3, 3)[:, 0:2, 0:2, 0:2, 0:2, 0:2]), ("free axes", "5", "up to 4")
    ),
    "a free stride above int16": (lambda x: copy(sb(2, 2, dtype=nl.int8), sb(2, 80000, dtype=nl.int8).ap([[80000, 2], [40000, 2]])), ("free stride", "40000", "int16")),
    "a broadcast destination": (lambda x: copy(sb(2, 1).broadcast(1, 3), sb(2, 3)), ("stride of a destination", "0")),
    "a slice assigned": (lambda x: sb(2, 2).__setitem__(slice(0, 1), 3), "assignment"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_access_patterns(name):
    refused(*SHAPES[name])


def test_a_free_size_above_uint16_is_refused():
    refused(lambda x: nisa.memset(sb(2, 70000, dtype=nl.int8), 1), ("free size", "70000", "65535"))


@pytest.mark.parametrize(
    "n, start, good", [(32, 96, True), (33, 64, True), (64, 64, True), (128, 0, True), (24, 32, True), (24, 16, False)]
)
def test_start_partitions(n, start, good):
    def body(x):
        copy(sb(n, 4), sb(128, 4)[start : start + n])

    admitted(body) if good else refused(body, "start partition")


def test_dma_may_start_anywhere():
    admitted(lambda x: nisa.dma_copy(dst=sb(128, 64)[24:48], src=x[3:27]))


# -- memory ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation, size", [("gen2", 180_224), ("gen3", 212_984), ("gen4", 245_752)])
def test_one_tensor_fits_a_partition(generation, size):
    admitted(lambda x: nisa.memset(sb(1, size // 4), 0.0), GEN[generation])
    refused(lambda x: sb(1, size + 1, dtype=nl.int8), ("bytes per partition in sbuf", str(size)), GEN[generation])


def test_live_sbuf_is_counted():
    def held(x, n):
        tiles = [sb(128, 10_000) for _ in range(n)]
        for t in tiles:
            nisa.memset(t, 0.0)
        for t in tiles:
            nisa.memset(t, 0.0)

    admitted(lambda x: held(x, 5))
    refused(lambda x: held(x, 6), ("live SBUF", "240000", "212984", "gen3"))
    admitted(lambda x: held(x, 6), "trn3")


def test_memory_is_free_again_after_the_last_use():
    def body(x):
        for _ in range(20):
            nisa.memset(sb(128, 10_000), 0.0)

    admitted(body)


def test_a_tensor_from_outside_lives_through_the_loop():
    def body(x):
        outer = [sb(128, 10_000) for _ in range(4)]

        def inner(i):
            for t in outer:
                nisa.memset(t, 0.0)
                nisa.memset(sb(128, 10_000), 0.0)
                nisa.memset(sb(128, 10_000), 0.0)

        nl.fori_loop(0, 2, inner)

    admitted(body)

    def more(x):
        body_tiles = [sb(128, 10_000) for _ in range(5)]

        def inner(i):
            for t in body_tiles:
                nisa.memset(t, 0.0)
                nisa.memset(sb(128, 10_000), 0.0)

        nl.fori_loop(0, 2, inner)

    refused(more, "live SBUF")


def test_eight_psum_banks():
    def held(n):
        def body(x):
            tiles = [ps(128, 512) for _ in range(n)]
            for t in tiles * 2:
                nisa.memset(t, 0.0)

        return body

    admitted(held(8))
    refused(held(9), ("live PSUM banks", "9", "8"))


def test_psum_tensor_size_and_address():
    refused(lambda x: ps(128, 4097), ("bytes per partition in psum", "16388", "16384"))
    refused(lambda x: nl.ndarray((8, 8), nl.float32, buffer=nl.psum, address=(0, 100)), ("PSUM address", "2048"))
    refused(lambda x: nl.ndarray((40, 8), nl.float32, buffer=nl.sbuf, address=(32, 0)), "start partition of 40")
    refused(lambda x: nl.ndarray((40, 8), nl.float32, buffer=nl.sbuf, address=(0, 212_980)), "address in sbuf")

    def overlap(x):
        a = nl.ndarray((8, 8), nl.float32, buffer=nl.sbuf, address=(0, 0))
        b = nl.ndarray((8, 8), nl.float32, buffer=nl.sbuf, address=(0, 16))
        nisa.memset(a, 0.0)
        nisa.memset(b, 0.0)

    refused(overlap, ("addresses in sbuf", "overlaps"))


# -- tensor engine ----------------------------------------------------------------------------------------------------------------


def matmul(k=32, m=32, n=64, s=nl.float32, v=nl.float32, d=nl.float32, **more):
    def body(x):
        nisa.nc_matmul(ps(m, n, dtype=d), sb(k, m, dtype=s), sb(k, n, dtype=v), **more)

    return body


MATMUL = {
    "M above 128": (lambda x: nisa.nc_matmul(ps(128, 8), sb(32, 130), sb(32, 8)), ("free size M", "130", "128")),
    "N above 512 (gen3)": (matmul(n=520), ("free size N", "520", "512")),
    "K differs": (lambda x: nisa.nc_matmul(ps(8, 8), sb(32, 8), sb(24, 8)), "contraction"),
    "dst shape": (lambda x: nisa.nc_matmul(ps(8, 9), sb(32, 8), sb(32, 8)), "(M, N)"),
    "dst in SBUF": (lambda x: nisa.nc_matmul(sb(8, 8), sb(32, 8), sb(32, 8)), ("dst", "buffer", "psum")),
    "moving in PSUM": (lambda x: nisa.nc_matmul(ps(8, 8), sb(32, 8), ps(32, 8)), ("moving", "buffer", "sbuf")),
    "stationary in HBM": (lambda x: nisa.nc_matmul(ps(64, 64), x, sb(128, 64)), ("stationary", "buffer")),
    "fp32 with bf16": (matmul(s=nl.bfloat16), ("float32/tfloat32 pair only", "bfloat16")),
    "integers": (matmul(s=nl.int8, v=nl.int8), ("dtype", "int8")),
    "dst bf16 (gen3)": (matmul(d=nl.bfloat16), ("dtype", "bfloat16 on gen3")),
    "tile size 16": (matmul(k=16, m=16, tile_position=(0, 0), tile_size=(16, 16)), ("tile_size", "16")),
    "tile position": (matmul(tile_position=(16, 0), tile_size=(32, 32)), ("tile_position row", "16")),
    "position without size": (matmul(tile_position=(32, 0)), "both or neither"),
    "K above the rows": (matmul(k=40, tile_position=(0, 0), tile_size=(32, 32)), ("contraction K", "40", "32")),
    "operand off the rows": (matmul(tile_position=(32, 0), tile_size=(32, 32)), ("rows of the array tile", "32")),
    "result off the columns": (
        lambda x: nisa.nc_matmul(ps(32, 8), sb(32, 32), sb(32, 8), tile_position=(0, 32), tile_size=(32, 32)), ("columns of the array tile", "32")
    ),
    "two banks": (
        lambda x: nisa.nc_matmul(ps(8, 1024)[:, 256:768], sb(32, 8), sb(32, 512)), ("one PSUM bank", "2048")
    ),
    "part of dst seen": (
        lambda x: [nisa.nc_matmul(t, sb(32, 8), sb(32, n)) for p in [ps(8, 16)] for t, n in ((p[:, 0:8], 8), (p, 16))], "all or nothing"
    ),
    "perf_mode": (matmul(perf_mode=nisa.matmul_perf_mode.double_row), "perf_mode"),
    "float8_e4m3fn (gen3)": (matmul(s=nl.float8_e4m3fn, v=nl.float8_e4m3fn), ("dtype", "float8_e4m3fn")),
}  # fmt: skip


@pytest.mark.parametrize("name", MATMUL)
def test_matmul(name):
    refused(*MATMUL[name])


def test_matmul_by_generation():
    tile = matmul(tile_position=(0, 0), tile_size=(32, 32))
    refused(tile, ("tile_size", "32 on gen2", "(64, 128)"), "trn1")
    admitted(tile, "trn2")
    admitted(matmul(k=48, m=48, tile_position=(0, 0), tile_size=(64, 64)), "trn1")
    admitted(matmul(n=1024), "trn3")
    admitted(matmul(d=nl.bfloat16), "trn3")
    refused(lambda x: nisa.nc_matmul(ps(8, 8), sb(32, 8), sb(32, 4100)), ("free size N", "4096"), "trn3")


def test_accumulating_needs_a_matmul_before():
    def onto(write):
        def body(x):
            a, b, p = nl.ones((32, 8), nl.float32), nl.ones((32, 8), nl.float32), ps(8, 8)
            write(p, a, b)
            nisa.nc_matmul(p, a, b, accumulate=True)

        return body

    said = ("accumulate onto an address", "not written last by a matmul")
    refused(onto(lambda p, a, b: None), said, run=True)
    refused(onto(lambda p, a, b: nisa.memset(p, 0.0)), said, run=True)
    refused(onto(lambda p, a, b: nisa.nc_matmul(p[:, 0:4], a, b[:, 0:4], accumulate=False)), said, run=True)
    admitted(onto(lambda p, a, b: nisa.nc_matmul(p, a, b, accumulate=False)), run=True)
    admitted(onto(lambda p, a, b: nisa.memset(p, 0.0)), "trn3", run=True)


def test_inferred_accumulation_is_refused_in_a_loop():
    def body(x):
        p = ps(8, 8)
        nl.fori_loop(0, 3, lambda i: nisa.nc_matmul(p, sb(32, 8), sb(32, 8)) and None)

    refused(body, ("accumulate=None", "True or False"))


def test_a_dynamic_result_must_stay_in_its_bank():
    def body(x):
        p, a, b = ps(8, 1024), nl.ones((32, 8), nl.float32), nl.ones((32, 64), nl.float32)
        nl.fori_loop(
            0,
            20,
            lambda i: (
                nisa.nc_matmul(p.ap([[1024, 8], [1, 64]], scalar_offset=i * 48, indirect_dim=1), a, b, accumulate=False)
                and None
            ),
        )

    refused(body, "one PSUM bank", run=True)


# -- engines and generations ----------------------------------------------------------------------------------------------------------

ENGINES = {
    "gpsimd on PSUM": ("trn2", lambda x: nisa.tensor_copy(ps(8, 8), sb(8, 8), engine=nisa.engine.gpsimd), "GpSimd cannot touch PSUM"),
    "iota into PSUM": ("trn2", lambda x: nisa.iota(ps(8, 8, dtype=nl.int32), [[1, 8]]), ("buffer", "psum")),
    "copy on tensor": ("trn2", lambda x: nisa.tensor_copy(sb(8, 8), sb(8, 8), engine=nisa.engine.tensor), "not an engine of this instruction"),
    "scalar copy on gen2": ("trn1", lambda x: nisa.tensor_copy(sb(8, 8), sb(8, 8), engine=nisa.engine.scalar), "activation(op=nl.copy)"),
    "scalar tensor_scalar on gen2": (
        "inf2", lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 8), nl.add, 1.0, engine=nisa.engine.scalar), "gen3 and later"
    ),
    "scalar subtract": (
        "trn2", lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 8), nl.subtract, 1.0, engine=nisa.engine.scalar), "multiply + add"
    ),
    "float on gpsimd": (
        "trn2", lambda x: nisa.tensor_tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.add, engine=nisa.engine.gpsimd), "only nl.power"
    ),
    "power on vector": (
        "trn2", lambda x: nisa.tensor_tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.power, engine=nisa.engine.vector), "runs on GpSimd"
    ),
    "abs_max on gen3": ("trn2", lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 8), nl.abs_max, 0.0), "gen4 only"),
    "bias as a number on gen2": ("trn1", lambda x: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), bias=1.0), ("bias", "gen2")),
    "activation on gpsimd": (
        "trn2", lambda x: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), engine=nisa.engine.gpsimd), "gen4 only"
    ),
    "engine as a number": ("trn2", lambda x: nisa.tensor_copy(sb(8, 8), sb(8, 8), engine=5), "engine.vector"),
    "barrier on gen2": ("trn1", lambda x: nisa.core_barrier(x, (0, 1)), ("generation", "2")),
    "a big vector transpose": ("trn2", lambda x: nisa.nc_transpose(sb(40, 8), sb(8, 40), engine=nisa.engine.vector), "exceeds 32x32"),
    "a tensor transpose into SBUF": (
        "trn2", lambda x: nisa.nc_transpose(sb(40, 8), sb(8, 40), engine=nisa.engine.tensor), "SBUF to PSUM"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_engines_and_generations(name):
    target, body, said = ENGINES[name]
    refused(body, said, target)


def test_targets_and_logical_cores():
    refused(lambda x: None, ("target", "h100"), "h100")
    refused(lambda x: None, ("LNC", "2", "gen2"), "trn1", lnc=2)


OPERANDS = {
    "two inputs in PSUM": (lambda x: nisa.tensor_tensor(sb(8, 8), ps(8, 8), ps(8, 8), nl.add), "both in PSUM"),
    "stt inputs in PSUM": (lambda x: nisa.scalar_tensor_tensor(sb(8, 8), ps(8, 8), nl.multiply, 1.0, nl.add, ps(8, 8)), "both in PSUM"),
    "shapes": (lambda x: nisa.tensor_tensor(sb(8, 8), sb(8, 8), sb(8, 4), nl.add), ("shapes", "(8, 4)")),
    "input partitions": (lambda x: nisa.tensor_tensor(sb(32, 8), sb(128, 8)[0:32], sb(128, 8)[32:64], nl.add), "start partitions of two SBUF inputs"),
    "HBM operand": (lambda x: nisa.tensor_copy(sb(128, 64), x), ("buffer", "shared_hbm")),
    "bf16 column": (lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 8), nl.add, sb(8, 1, dtype=nl.bfloat16)), ("dtype", "bfloat16", "float32")),
    "column shape": (lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 8), nl.add, sb(8, 2)), ("shape", "(8, 1)")),
    "a list as operand": (lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 8), nl.add, [1.0]), "operand"),
    "op1 without operand1": (lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 8), nl.add, 1.0, op1=nl.add), "both or neither"),
    "bits of floats": (lambda x: nisa.tensor_tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.bitwise_and), "integers"),
    "bits and arithmetic": (
        lambda x: nisa.tensor_scalar(sb(8, 8, dtype=nl.int32), sb(8, 8, dtype=nl.int32), nl.bitwise_and, 1, op1=nl.add, operand1=1.0), "both bit operators"
    ),
    "numpy operator": (lambda x: nisa.tensor_tensor(sb(8, 8), sb(8, 8), sb(8, 8), np.add), "arithmetic operator"),
    "unknown activation": (lambda x: nisa.activation(sb(8, 8), nl.add, sb(8, 8)), "activation"),
    "sum with maximum": (
        lambda x: nisa.activation(sb(8, 8), nl.copy, sb(8, 8), reduce_op=nl.maximum, reduce_res=sb(8, 1)), ("reduce_op", "nl.maximum", "nl.add")
    ),
    "reduce_op without a place": (
        lambda x: nisa.scalar_tensor_tensor(sb(8, 8), sb(8, 8), nl.multiply, 1.0, nl.add, sb(8, 8), reduce_op=nl.add), "reduce_res as well"
    ),
    "reduction of partitions": (lambda x: nisa.tensor_reduce(sb(1, 8), nl.add, sb(8, 8), axis=0), "never axis 0"),
    "reduction of a middle axis": (lambda x: nisa.tensor_reduce(sb(8, 4), nl.add, sb(8, 3, 4), axis=1), "last free axes"),
    "memset of an int by a float": (lambda x: nisa.memset(sb(8, 8, dtype=nl.int32), 0.0), "an int literal"),
    "memset of a float by an int": (lambda x: nisa.memset(sb(8, 8), 0), "a float literal"),
    "memset out of range": (lambda x: nisa.memset(sb(8, 8, dtype=nl.uint8), 256), "(0, 255)"),
    "predicate dtype": (lambda x: nisa.tensor_copy_predicated(sb(8, 8), sb(8, 8), sb(8, 8)), "predicate dtype"),
    "predicated cast": (lambda x: nisa.tensor_copy_predicated(sb(8, 8), sb(8, 8, dtype=nl.float16), sb(8, 8, dtype=nl.uint8)), "dtypes"),
    "select dtype": (lambda x: nisa.select_reduce(sb(8, 8), sb(8, 8), sb(8, 8), 0.0), "predicate dtype"),
    "iota size": (lambda x: nisa.iota(sb(8, 8, dtype=nl.int32), [[1, 9]]), "elements of the pattern"),
    "iota range": (lambda x: nisa.iota(sb(8, 8, dtype=nl.int32), [[1 << 30, 8]]), "int32"),
    "shuffle mask": (lambda x: nisa.nc_stream_shuffle(sb(32, 8), sb(32, 8), [0] * 16), "shuffle_mask"),
    "gather index": (lambda x: nisa.nc_n_gather(sb(8, 8), sb(8, 8), sb(8, 8, dtype=nl.int32)), "uint32"),
    "transpose dtype": (lambda x: nisa.nc_transpose(ps(8, 8, dtype=nl.bfloat16), sb(8, 8)), "dtypes"),
    "64-bit tile": (lambda x: nisa.tensor_copy(sb(8, 8), sb(8, 8, dtype=nl.int64)), "int64"),
    "cumulative 32-bit": (
        lambda x: nisa.tensor_scalar_cumulative(sb(8, 8, dtype=nl.int32), sb(8, 8), nl.add, nl.add, 0.0), "no 32-bit integers"
    ),
    "partition reduce op": (lambda x: nisa.tensor_partition_reduce(sb(1, 8), nl.multiply, sb(8, 8)), "op"),
    "not a tensor": (lambda x: nisa.tensor_copy(sb(128, 64), X), ("operand", "ndarray")),
    "fill of HBM": (lambda x: nl.zeros((4, 4), nl.float32, buffer=nl.shared_hbm), "buffer"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_and_dtypes(name):
    refused(*OPERANDS[name])


@pytest.mark.parametrize(
    "op, value", [("sin", 3.2), ("log", 0.0), ("sqrt", -1.0), ("rsqrt", 0.0), ("reciprocal", 0.0), ("arctan", 2.0)]
)
def test_an_activation_outside_its_range(op, value):
    refused(
        lambda x: nisa.activation(sb(8, 8), getattr(nl, op), nl.full((8, 8), value, nl.float32)),
        f"argument of nl.{op}",
        run=True,
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda x: nisa.tensor_copy(sb(2, 2), source=x),
        lambda x: nisa.dma_copy(sb(2, 2), x, mask=1),
        lambda x: nl.ndarray((2, 2), nl.int8, lazy=1),
    ],
)
def test_an_unknown_keyword_is_an_error(call):
    with pytest.raises(TypeError, match="unexpected keyword"):
        nki_sim.trace(call, {"x": X})


# -- DMA --------------------------------------------------------------------------------------------------------------------------------

DMA = {
    "PSUM": ("trn2", lambda x: nisa.dma_copy(ps(128, 64), x), "cannot touch PSUM"),
    "totals": ("trn2", lambda x: nisa.dma_copy(sb(128, 63), x), "equal totals"),
    "hwdge on gen2": ("trn1", lambda x: nisa.dma_copy(sb(128, 64), x, dge_mode=nisa.dge_mode.hwdge), ("dge_mode", "gen2")),
    "hwdge cast": ("trn2", lambda x: nisa.dma_copy(sb(128, 64, dtype=nl.bfloat16), x, dge_mode=nisa.dge_mode.hwdge), "dtypes with hwdge"),
    "priority on gen3": ("trn2", lambda x: nisa.dma_copy(sb(128, 64), x, priority=1), ("priority", "gen4")),
    "priority 4": ("trn3", lambda x: nisa.dma_copy(sb(128, 64), x, priority=4), ("priority", "0..3")),
    "engine without hwdge": ("trn2", lambda x: nisa.dma_copy(sb(128, 64), x, engine=nisa.engine.sync), "with hwdge"),
    "engine vector": (
        "trn2", lambda x: nisa.dma_copy(sb(128, 64), x, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.vector), "scalar or sync"
    ),
    "dge_mode as a number": ("trn2", lambda x: nisa.dma_copy(sb(128, 64), x, dge_mode=2), "dge_mode.hwdge"),
    "dynamic without DGE": (
        "trn2",
        lambda x: nl.fori_loop(0, 2, lambda i: nisa.dma_copy(sb(1, 64), x.ap([[64, 1], [1, 64]], scalar_offset=i), dge_mode=nisa.dge_mode.none) and None),
        "dge_mode of a dynamic access",
    ),
    "gather on gen2": (
        "trn1", lambda x: nisa.dma_copy(sb(4, 64), x.ap([[64, 4], [1, 64]], vector_offset=sb(4, 1, dtype=nl.uint32))), "gather and scatter"
    ),
    "gather by hwdge": (
        "trn2",
        lambda x: nisa.dma_copy(sb(4, 64), x.ap([[64, 4], [1, 64]], vector_offset=sb(4, 1, dtype=nl.uint32)), dge_mode=nisa.dge_mode.hwdge),
        "vector_offset",
    ),
    "gather in SBUF": ("trn2", lambda x: sb(128, 64).ap([[64, 4], [1, 64]], vector_offset=sb(4, 1, dtype=nl.uint32)), "free axis"),
    "gather index shape": ("trn2", lambda x: x.ap([[64, 4], [1, 64]], vector_offset=sb(5, 1, dtype=nl.uint32)), "shape of vector_offset"),
    "gather index dtype": ("trn2", lambda x: x.ap([[64, 4], [1, 64]], vector_offset=sb(4, 1)), "dtype of vector_offset"),
    "both offsets": (
        "trn2", lambda x: x.ap([[64, 4], [1, 64]], vector_offset=sb(4, 1, dtype=nl.uint32), scalar_offset=sb(1, 1, dtype=nl.int32)), "one of them"
    ),
    "17 sources": ("trn2", lambda x: nisa.dma_compute(hbm(128, 64), [x] * 17, nl.add), ("srcs", "17", "16")),
    "compute multiply": ("trn2", lambda x: nisa.dma_compute(hbm(128, 64), [x, x], nl.multiply), "reduce_op"),
    "compute scales": ("trn2", lambda x: nisa.dma_compute(hbm(128, 64), [x, x], nl.add, scales=[2.0, 1.0]), "scales"),
    "transpose into HBM": ("trn2", lambda x: nisa.dma_transpose(hbm(64, 128), x), "dst buffer"),
    "transpose by hwdge": (
        "trn2", lambda x: nisa.dma_transpose(sb(64, 128, dtype=nl.float32), x, dge_mode=nisa.dge_mode.hwdge), "two-byte"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DMA)
def test_dma(name):
    target, body, said = DMA[name]
    refused(body, said, target)


def f16(*shape):
    return sb(*shape, dtype=nl.float16)


def i32(*shape):
    return sb(*shape, dtype=nl.int32)


def u8(*shape):
    return sb(*shape, dtype=nl.uint8)


MORE = {
    "dma: an array": (lambda x: nisa.dma_copy(sb(128, 512), X), ("operand", "ndarray")),
    "dma: oob_mode": (lambda x: nisa.dma_copy(sb(128, 64), x, oob_mode=1), "oob_mode.skip"),
    "dma: engine": (lambda x: nisa.dma_copy(sb(128, 64), x, engine=6), "engine.sync"),
    "dma: repeated destination": (lambda x: nisa.dma_copy(sb(128, 1).broadcast(1, 64), x), "stride of a destination"),
    "dma: gather to scatter": (
        lambda x: nisa.dma_copy(*[x.ap([[64, 4], [1, 64]], vector_offset=sb(4, 1, dtype=nl.uint32)) for _ in range(2)]), "one side"
    ),
    "dma_compute: indices": (lambda x: nisa.dma_compute(hbm(128, 64), [x, x], nl.add, unique_indices=False), "unique_indices"),
    "dma_compute: totals": (lambda x: nisa.dma_compute(hbm(128, 63), [x, x], nl.add), "equal totals"),
    "dma_compute: gather": (
        lambda x: nisa.dma_compute(sb(4, 64), [x.ap([[64, 4], [1, 64]], vector_offset=sb(4, 1, dtype=nl.uint32))], nl.add), "indirect"
    ),
    "dma_transpose: cast": (lambda x: nisa.dma_transpose(f16(64, 128), x), "dtypes"),
    "dma_transpose: axes": (lambda x: nisa.dma_transpose(sb(64, 128), x, axes=(0, 1)), "axes"),
    "dma_transpose: shape": (lambda x: nisa.dma_transpose(sb(64, 120), x), "dst shape"),
    "dma_transpose: priority": (lambda x: nisa.dma_transpose(sb(64, 128), x, priority=1), "priority"),
    "dma_transpose: one byte": (lambda x: nisa.dma_transpose(u8(64, 32), u8(32, 64)), "two- or four-byte"),
    "dma_transpose: hwdge shape": (
        lambda x: nisa.dma_transpose(f16(64, 32), f16(32, 64), dge_mode=nisa.dge_mode.hwdge), "(16, <= 128)"
    ),
    "dma_transpose: gather": (
        lambda x: nisa.dma_transpose(sb(64, 4), x.ap([[64, 4], [1, 64]], vector_offset=sb(4, 1, dtype=nl.uint32))), "indirect"
    ),
    "nc_matmul: is_transpose": (matmul(is_transpose=True), "is_transpose"),
    "nc_matmul: accumulate": (matmul(accumulate=2), "accumulate"),
    "nc_matmul: column": (matmul(tile_position=(0, 16), tile_size=(32, 32)), "tile_position column"),
    "nc_matmul: M above the columns": (matmul(m=40, tile_position=(0, 0), tile_size=(32, 32)), "free size M"),
    "nc_transpose: shape": (lambda x: nisa.nc_transpose(sb(8, 9), sb(8, 8)), "dst (partitions, elements)"),
    "nc_transpose: width": (lambda x: nisa.nc_transpose(ps(8, 8), sb(8, 130)), "(130, 8)"),
    "memset: rank": (lambda x: nisa.memset(sb(2, 1, 1, 1, 1, 2), 0.0), "rank"),
    "tensor_copy: counts": (lambda x: nisa.tensor_copy(sb(8, 8), sb(8, 9)), "elements per partition"),
    "predicated: counts": (lambda x: nisa.tensor_copy_predicated(sb(8, 8), sb(8, 8), u8(8, 9)), "elements per partition"),
    "predicated: source": (lambda x: nisa.tensor_copy_predicated(sb(8, 8), sb(8, 9), u8(8, 8)), "elements per partition"),
    "predicated: PSUM": (lambda x: nisa.tensor_copy_predicated(sb(8, 8), ps(8, 8), ps(8, 8, dtype=nl.uint8)), "both in PSUM"),
    "predicated: a list": (lambda x: nisa.tensor_copy_predicated(sb(8, 8), [1], u8(8, 8)), "operand"),
    "tensor_tensor: bits of two types": (lambda x: nisa.tensor_tensor(i32(8, 8), i32(8, 8), u8(8, 8), nl.bitwise_or), "equal"),
    "tensor_scalar: shapes": (lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 4), nl.add, 1.0), "shapes"),
    "tensor_scalar: float bits": (lambda x: nisa.tensor_scalar(i32(8, 8), i32(8, 8), nl.bitwise_and, 1.5), "bit operator"),
    "tensor_scalar: bits of floats": (lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 8), nl.bitwise_and, 1), "integers"),
    "tensor_scalar: power": (lambda x: nisa.tensor_scalar(sb(8, 8), sb(8, 8), nl.power, 2.0), "tensor_tensor on GpSimd"),
    "stt: shapes": (lambda x: nisa.scalar_tensor_tensor(sb(8, 8), sb(8, 8), nl.add, 1.0, nl.add, sb(8, 4)), "shapes"),
    "stt: partitions": (
        lambda x: nisa.scalar_tensor_tensor(sb(32, 8), sb(64, 8)[32:64], nl.add, 1.0, nl.add, sb(32, 8)), "start partitions of two"
    ),
    "stt: op0": (lambda x: nisa.scalar_tensor_tensor(sb(8, 8), sb(8, 8), nl.exp, 1.0, nl.add, sb(8, 8)), "op0"),
    "stt: op1": (lambda x: nisa.scalar_tensor_tensor(sb(8, 8), sb(8, 8), nl.add, 1.0, nl.exp, sb(8, 8)), "op1"),
    "stt: column": (lambda x: nisa.scalar_tensor_tensor(sb(8, 8), sb(8, 8), nl.add, sb(8, 2), nl.add, sb(8, 8)), "operand0"),
    "stt: command": (
        lambda x: nisa.scalar_tensor_tensor(sb(8, 8), sb(8, 8), nl.add, 1.0, nl.add, sb(8, 8), reduce_cmd=3), "reduce_cmd.reset_reduce"
    ),
    "stt: result": (
        lambda x: nisa.scalar_tensor_tensor(sb(8, 8), sb(8, 8), nl.add, 1.0, nl.add, sb(8, 8), reduce_op=nl.add, reduce_res=sb(8, 2)), "(8, 1)"
    ),
    "stt: reduction": (
        lambda x: nisa.scalar_tensor_tensor(sb(8, 8), sb(8, 8), nl.add, 1.0, nl.add, sb(8, 8), reduce_op=nl.less, reduce_res=sb(8, 1)), "reduce_op"
    ),
    "stt: load_reduce": (
        lambda x: nisa.scalar_tensor_tensor(
            sb(8, 8), sb(8, 8), nl.add, 1.0, nl.add, sb(8, 8), reduce_op=nl.add, reduce_res=sb(8, 1), reduce_cmd=nisa.reduce_cmd.load_reduce
        ), "load_reduce"
    ),
    "tsr: shapes": (lambda x: nisa.tensor_scalar_reduce(sb(8, 8), sb(8, 4), nl.add, 1.0, nl.add), "shapes"),
    "tsr: rank": (lambda x: nisa.tensor_scalar_reduce(sb(2, 2, 2, 2, 2), sb(2, 2, 2, 2, 2), nl.add, 1.0, nl.add), "rank"),
    "tsr: op": (lambda x: nisa.tensor_scalar_reduce(sb(8, 8), sb(8, 8), nl.exp, 1.0, nl.add), "op0"),
    "tsr: operand": (lambda x: nisa.tensor_scalar_reduce(sb(8, 8), sb(8, 8), nl.add, sb(8, 2), nl.add), "operand0"),
    "tsr: reduction": (lambda x: nisa.tensor_scalar_reduce(sb(8, 8), sb(8, 8), nl.add, 1.0, nl.subtract), "reduce_op"),
    "tsr: init": (lambda x: nisa.tensor_scalar_reduce(sb(8, 8), sb(8, 8), nl.add, 1.0, nl.add, reduce_init=0.0), "reduce_init"),
    "tsr: command": (lambda x: nisa.tensor_scalar_reduce(sb(8, 8), sb(8, 8), nl.add, 1.0, nl.add, reduce_cmd=3), "reduce_cmd"),
    "tsr: result": (lambda x: nisa.tensor_scalar_reduce(sb(8, 8), sb(8, 8), nl.add, 1.0, nl.add, reduce_res=sb(4, 1)), "(8, 1)"),
    "cumulative: shapes": (lambda x: nisa.tensor_scalar_cumulative(sb(8, 8), sb(8, 4), nl.add, nl.add, 0.0), "shapes"),
    "cumulative: op0": (lambda x: nisa.tensor_scalar_cumulative(sb(8, 8), sb(8, 8), nl.exp, nl.add, 0.0), "op0"),
    "cumulative: op1": (lambda x: nisa.tensor_scalar_cumulative(sb(8, 8), sb(8, 8), nl.add, nl.less, 0.0), "op1"),
    "cumulative: imm0": (lambda x: nisa.tensor_scalar_cumulative(sb(8, 8), sb(8, 8), nl.add, nl.add, sb(8, 2)), "imm0"),
    "cumulative: imm1": (lambda x: nisa.tensor_scalar_cumulative(sb(8, 8), sb(8, 8), nl.add, nl.add, 0.0, 1.0), "imm1"),
    "cumulative: imm1 tile": (
        lambda x: nisa.tensor_scalar_cumulative(sb(8, 8), sb(8, 8), nl.add, nl.add, 0.0, sb(8, 2), nisa.reduce_cmd.load_reduce), "imm1"
    ),
    "cumulative: command": (
        lambda x: nisa.tensor_scalar_cumulative(sb(8, 8), sb(8, 8), nl.add, nl.add, 0.0, None, nisa.reduce_cmd.idle), "reduce_cmd"
    ),
    "scan: shapes": (lambda x: nisa.tensor_tensor_scan(sb(8, 8), sb(8, 8), sb(8, 4), 0.0, nl.add, nl.add), "shapes"),
    "scan: PSUM": (lambda x: nisa.tensor_tensor_scan(sb(8, 8), ps(8, 8), ps(8, 8), 0.0, nl.add, nl.add), "both in PSUM"),
    "scan: partitions": (
        lambda x: nisa.tensor_tensor_scan(sb(32, 8), sb(64, 8)[32:64], sb(32, 8), 0.0, nl.add, nl.add), "start partitions of two"
    ),
    "scan: op0": (lambda x: nisa.tensor_tensor_scan(sb(8, 8), sb(8, 8), sb(8, 8), 0.0, nl.exp, nl.add), "op0"),
    "scan: op1": (lambda x: nisa.tensor_tensor_scan(sb(8, 8), sb(8, 8), sb(8, 8), 0.0, nl.add, nl.exp), "op1"),
    "scan: initial": (lambda x: nisa.tensor_tensor_scan(sb(8, 8), sb(8, 8), sb(8, 8), sb(8, 2), nl.add, nl.add), "initial"),
    "tensor_reduce: op": (lambda x: nisa.tensor_reduce(sb(8, 1), nl.less, sb(8, 8), axis=1), "op"),
    "tensor_reduce: bits": (lambda x: nisa.tensor_reduce(sb(8, 1), nl.bitwise_or, sb(8, 8), axis=1), "integers"),
    "tensor_reduce: shape": (lambda x: nisa.tensor_reduce(sb(8, 2), nl.add, sb(8, 8), axis=1), "dst shape"),
    "partition_reduce: rank": (lambda x: nisa.tensor_partition_reduce(sb(1, 1, 1, 1, 1, 2), nl.add, sb(2, 1, 1, 1, 1, 2)), "rank"),
    "partition_reduce: shape": (lambda x: nisa.tensor_partition_reduce(sb(1, 7), nl.add, sb(8, 8)), "dst shape"),
    "partition_reduce: bits": (lambda x: nisa.tensor_partition_reduce(sb(1, 8), nl.bitwise_or, sb(8, 8)), "integers"),
    "reciprocal: shapes": (lambda x: nisa.reciprocal(sb(8, 8), sb(8, 4)), "shapes"),
    "activation: shapes": (lambda x: nisa.activation(sb(8, 8), nl.exp, sb(8, 4)), "shapes"),
    "activation: scale": (lambda x: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), scale=f16(8, 1)), "scale"),
    "activation: bias": (lambda x: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), bias=sb(8, 1, dtype=nl.tfloat32)), "bias"),
    "activation: command": (lambda x: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), reduce_cmd=3), "reduce_cmd"),
    "activation: result": (
        lambda x: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), reduce_op=nl.add, reduce_res=sb(4, 1), reduce_cmd=nisa.reduce_cmd.reset), "(8, 1)"
    ),
    "activation: load_reduce": (
        lambda x: nisa.activation(sb(8, 8), nl.exp, sb(8, 8), reduce_op=nl.add, reduce_res=sb(8, 1), reduce_cmd=nisa.reduce_cmd.load_reduce),
        "load_reduce",
    ),
    "iota: pattern": (lambda x: nisa.iota(i32(8, 8), [[1, 2], [1, 2], [1, 2], [1, 1], [1, 1]]), "1..4"),
    "iota: offset": (lambda x: nisa.iota(i32(8, 8), [[1, 8]], offset=0.5), "Python integers"),
    "affine_select: shapes": (lambda x: nisa.affine_select(sb(8, 8), [[1, 8]], 1, sb(8, 4), 0.0), "shapes"),
    "affine_select: comparison": (lambda x: nisa.affine_select(sb(8, 8), [[1, 8]], 1, sb(8, 8), 0.0, cmp_op=nl.add), "cmp_op"),
    "affine_select: tile": (lambda x: nisa.affine_select(sb(8, 8), [[1, 8]], 1, sb(8, 8), sb(8, 1)), "on_false_value"),
    "affine_select: list": (lambda x: nisa.affine_select(sb(8, 8), [[1, 8]], 1, sb(8, 8), [0.0]), "on_false_value"),
    "select: shapes": (lambda x: nisa.select_reduce(sb(8, 8), u8(8, 8), sb(8, 4), 0.0), "shapes"),
    "select: PSUM": (lambda x: nisa.select_reduce(sb(8, 8), ps(8, 8, dtype=nl.uint8), ps(8, 8), 0.0), "both in PSUM"),
    "select: on_true": (lambda x: nisa.select_reduce(sb(8, 8), u8(8, 8), i32(8, 8), 0.0), "on_true dtype"),
    "select: on_false": (lambda x: nisa.select_reduce(sb(8, 8), u8(8, 8), sb(8, 8), [0.0]), "on_false"),
    "select: reduction": (lambda x: nisa.select_reduce(sb(8, 8), u8(8, 8), sb(8, 8), 0.0, reduce_op=nl.add), "nl.maximum"),
    "select: command": (lambda x: nisa.select_reduce(sb(8, 8), u8(8, 8), sb(8, 8), 0.0, reduce_cmd=3), "reduce_cmd"),
    "select: result": (lambda x: nisa.select_reduce(sb(8, 8), u8(8, 8), sb(8, 8), 0.0, sb(4, 1)), "(8, 1)"),
    "shuffle: counts": (lambda x: nisa.nc_stream_shuffle(sb(32, 8), sb(32, 9), list(range(32))), "elements per partition"),
    "shuffle: cast": (lambda x: nisa.nc_stream_shuffle(sb(32, 8), f16(32, 8), list(range(32))), "dtypes"),
    "gather: counts": (lambda x: nisa.nc_n_gather(sb(8, 8), sb(8, 8), sb(8, 9, dtype=nl.uint32)), "elements per partition"),
    "gather: partitions": (lambda x: nisa.nc_n_gather(sb(8, 8), sb(16, 8), sb(8, 8, dtype=nl.uint32)), "partitions"),
    "gather: cast": (lambda x: nisa.nc_n_gather(sb(8, 8), f16(8, 8), sb(8, 8, dtype=nl.uint32)), "dtypes"),
    "register_move: target": (lambda x: nisa.register_move(3, 4), "VirtualRegister"),
    "register_move: source": (lambda x: nisa.register_move(nisa.register_alloc(), 1.5), "VirtualRegister"),
    "register_load: target": (lambda x: nisa.register_load(3, i32(1, 1)), "VirtualRegister"),
    "register_load: dtype": (lambda x: nisa.register_load(nisa.register_alloc(), sb(1, 1)), "dtype"),
    "register_store: dtype": (lambda x: nisa.register_store(sb(1, 1), nisa.register_alloc(1)), "dtype"),
    "register_store: source": (lambda x: nisa.register_store(i32(1, 1), 3), "VirtualRegister"),
    "scalar_store: dtype": (lambda x: nisa.scalar_store(sb(1, 1), nisa.scalar_load(i32(1, 1))), "dtype"),
    "scalar_store: width": (lambda x: nisa.scalar_store(sb(1, 1, dtype=nl.int64), nisa.scalar_load(i32(1, 1))), "NkiScalar of int64"),
    "views: bad axis": (lambda x: x.slice(2, 0, 1), "an axis of"),
    "views: two ellipses": (lambda x: x[..., ...], "ellipses"),
    "views: too many": (lambda x: x[0, 0, 0], "number of indices"),
    "views: index": (lambda x: x[200], "0..127"),
    "views: float index": (lambda x: x[0.5], "int"),
    "views: float slice": (lambda x: x[0.5:1], "Python integers"),
    "views: backwards": (lambda x: x[::-1], "step"),
    "views: permute": (lambda x: x.permute((0, 0)), "a permutation"),
    "views: broadcast": (lambda x: x.broadcast(1, 3), "extent"),
    "views: squeeze": (lambda x: x.squeeze_dim(1), "extent"),
    "views: expand": (lambda x: x.expand_dim(5), "dim"),
    "views: expand partitions": (lambda x: sb(4, 4).expand_dim(0), "partition axis"),
    "views: reshape_dim": (lambda x: x.reshape_dim(1, (3, 5)), "a product of 64"),
    "views: flatten order": (lambda x: x.flatten_dims(1, 0), "start_dim <= end_dim"),
    "views: flatten": (lambda x: x[:, 0:32].flatten_dims(0, 1), "walk memory as one"),
    "views: reshape size": (lambda x: x.reshape((3, 5)), "8192 elements"),
    "views: reshape partitions": (lambda x: sb(4, 8).reshape((8, 4)), "partitions"),
    "views: reshape strided": (lambda x: x[:, 0:32].reshape((4096,)), "walks memory as one"),
    "views: rearrange": (lambda x: x.rearrange(("a", "b"), ("a", "c")), "dst_pattern"),
    "views: rearrange sizes": (lambda x: x.rearrange(("a", ("b", "c")), ("a", "b", "c"), {"b": 5}), "sizes"),
    "views: rearrange axes": (lambda x: x.rearrange(("a",), ("a",)), "src_pattern"),
    "views: bits of a strided axis": (lambda x: sb(4, 8)[:, ::2].view(nl.int8), "last stride"),
    "views: odd bytes": (lambda x: u8(4, 6).view(nl.float32), "a multiple of 4"),
    "views: unaligned": (lambda x: u8(4, 16)[:, 2:10].view(nl.float32), "alignment"),
    "ap: entry": (lambda x: x.ap([[64, 128, 1], [1, 64]]), "pattern entry"),
    "ap: indirect_dim": (lambda x: x.ap([[64, 1], [1, 64]], scalar_offset=i32(1, 1), indirect_dim=2), "indirect_dim"),
    "ap: gather on axis 1": (
        lambda x: x.ap([[64, 4], [1, 1]], vector_offset=sb(4, 1, dtype=nl.uint32), indirect_dim=1), "indirect_dim with vector_offset"
    ),
    "ap: index in PSUM": (lambda x: x.ap([[64, 4], [1, 64]], vector_offset=ps(4, 1, dtype=nl.uint32)), "index tile in SBUF"),
    "ap: offset tensor": (lambda x: x.ap([[64, 1], [1, 64]], scalar_offset=i32(2, 1)), "1x1"),
    "ap: offset dtype": (lambda x: x.ap([[64, 1], [1, 64]], scalar_offset=sb(1, 1)), "dtype of scalar_offset"),
    "ap: offset number": (lambda x: x.ap([[64, 1], [1, 64]], scalar_offset=3), "NkiScalar"),
    "ap: cast start": (lambda x: u8(4, 16)[:, 2:10].ap([[4, 4], [1, 1]], dtype=nl.float32), "element size"),
    "address": (lambda x: nl.ndarray((8, 8), nl.float32, buffer=nl.sbuf, address=3), "(partition, free byte)"),
    "address in HBM": (lambda x: nl.ndarray((8, 8), nl.float32, buffer=nl.shared_hbm, address=(0, 0)), "(free,)"),
    "program_id": (lambda x: nl.program_id(1), "axis"),
    "num_programs": (lambda x: nl.num_programs(1), "axes"),
    "loop bound": (lambda x: nl.fori_loop(0, 1 << 40, lambda i: None), "32-bit"),
    "numbers": (lambda x: nl.add(1.0, 2.0), "operands"),
    "depends_on": (lambda x: nisa.memset(sb(2, 2), 0.0).depends_on(3), "producer"),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_every_other_rule(name):
    refused(*MORE[name])


BARRIERS = {
    "cores": (lambda x: nisa.core_barrier(x, (0, 2)), "cores"),
    "memory": (lambda x: nisa.core_barrier(sb(2, 2), (0, 1)), "shared_hbm"),
    "loop": (lambda x: nl.fori_loop(0, 2, lambda i: nisa.core_barrier(x, (0, 1))), "outside loops"),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_barriers(name):
    refused(*BARRIERS[name], lnc=2)


def test_float8_kinds_do_not_mix():
    refused(matmul(s=nl.float8_e4m3, v=nl.float8_e4m3fn), "one kind of float8_e4m3", "trn3")


def test_hwdge_transpose_needs_gen3():
    refused(lambda x: nisa.dma_transpose(f16(64, 16), f16(16, 64), dge_mode=nisa.dge_mode.hwdge), "gen2", "trn1")
    admitted(lambda x: nisa.dma_transpose(f16(64, 16), f16(16, 64), dge_mode=nisa.dge_mode.hwdge))


def test_priority_needs_descriptor_generation():
    refused(
        lambda x: nisa.dma_copy(sb(128, 64), x, priority=1, dge_mode=nisa.dge_mode.none),
        "priority with dge_mode",
        "trn3",
    )
    admitted(lambda x: nisa.dma_copy(sb(128, 64), x, priority=1), "trn3")


def test_indices_at_run_time():
    def pick(x):
        at = sb(4, 2, dtype=nl.uint32)
        nisa.memset(at, 9)
        nisa.nc_n_gather(sb(4, 2), nl.zeros((4, 8), nl.float32), at)

    refused(pick, ("indices", "9", "< 8"), run=True)
    refused(
        lambda x: nisa.nc_stream_shuffle(sb(8, 2), nl.zeros((8, 2), nl.float32), [31] * 32),
        "source partition",
        run=True,
    )


def test_a_32_bit_offset_does_not_reach_beyond_4_gib():
    """The address is refused before it is used, so a view of 8 GiB costs nothing here."""
    storage = nki_sim.tensors.Storage((1 << 31,), "float32", "shared_hbm", "big")
    big, env = nki_sim.NkiTensor((1 << 31,), "float32", storage), None
    for dtype, good in (("int32", False), ("int64", True)):
        at = big.ap([[1, 1]], scalar_offset=nki_sim.isa.NkiScalar(lambda e: 1 << 30, dtype))
        if good:
            assert at._shift(env) == 1 << 30
        else:
            with pytest.raises(NkiValidationError, match="32-bit scalar_offset"):
                at._shift(env)


def test_a_dynamic_access_out_of_bounds_is_found_at_run_time():
    def body(x):
        nl.fori_loop(
            126,
            129,
            lambda i: nisa.dma_copy(sb(1, 64), x.ap([[64, 1], [1, 64]], scalar_offset=i, indirect_dim=0)) and None,
        )

    refused(body, ("out of bounds", "1006"), run=True)


def gather(mode):
    def body(x):
        index = sb(4, 1, dtype=nl.int32)
        nisa.iota(index, [[1, 1]], offset=126, channel_multiplier=1)
        nisa.dma_copy(sb(4, 64), x.ap([[64, 4], [1, 64]], vector_offset=index), oob_mode=mode)

    return body


def test_a_gather_out_of_bounds_stops_or_skips():
    refused(gather(nisa.oob_mode.error), ("out of bounds", "128"), run=True)
    admitted(gather(nisa.oob_mode.skip), run=True)


# -- the language -----------------------------------------------------------------------------------------------------------------------------


def in_loop(use):
    return lambda x: nl.fori_loop(0, 4, lambda i: use(x, i))


STEERING = {
    "if tensor": lambda x: 1 if x else 2,
    "float of a tensor": lambda x: float(x),
    "tensor as index": lambda x: [1, 2][x],
    "for over a tensor": lambda x: list(x),
    "numpy on a tensor": lambda x: np.asarray(x),
    "tensor plus tensor": lambda x: x + x,
    "if scalar": in_loop(lambda x, i: i and None),
    "scalar compared": in_loop(lambda x, i: i < 3 and None),
    "scalar equal": in_loop(lambda x, i: i == 3 and None),
    "range of a scalar": in_loop(lambda x, i: list(range(i)) and None),
    "division": in_loop(lambda x, i: i // 2 and None),
    "modulo": in_loop(lambda x, i: i % 2 and None),
}


@pytest.mark.parametrize("name", STEERING)
def test_device_values_do_not_steer_python(name):
    refused(STEERING[name], "data-dependent Python control flow")


LANGUAGE = {
    "a dynamic slice": (in_loop(lambda x, i: x[i] and None), ".ap(pattern, scalar_offset="),
    "a dynamic slice bound": (in_loop(lambda x, i: x[i:] and None), "dynamic index"),
    "ds of a scalar": (in_loop(lambda x, i: nl.ds(i, 4) and None), "nl.ds"),
    "range of a scalar": (in_loop(lambda x, i: nl.affine_range(i) and None), "fori_loop"),
    "a dynamic partition": (
        in_loop(lambda x, i: sb(128, 4).ap([[4, 1], [1, 4]], scalar_offset=i) and None),
        "start partitions are static",
    ),
    "dynamic on a view": (
        in_loop(lambda x, i: x[:, 0:32].ap([[64, 1], [1, 32]], scalar_offset=i) and None),
        "contiguous",
    ),
    "ap of ap": (
        in_loop(lambda x, i: x.ap([[64, 2], [1, 64]], scalar_offset=i).ap([[64, 1], [1, 64]]) and None),
        "nested access",
    ),
    "scalars of two widths": (
        lambda x: nisa.scalar_load(sb(1, 1, dtype=nl.int32)) + nisa.scalar_load(sb(1, 1, dtype=nl.int64)),
        "the same dtype",
    ),
    "int64 bound": (lambda x: nl.fori_loop(0, nisa.scalar_load(sb(1, 1, dtype=nl.int64)), lambda i: None), "32-bit"),
    "int64 on chip": (
        lambda x: sb(8, 8).ap(
            [[8, 8], [1, 1]], scalar_offset=nisa.scalar_load(sb(1, 1, dtype=nl.int64)), indirect_dim=1
        ),
        "int32",
    ),
    "unsigned scalar": (lambda x: nisa.scalar_load(sb(1, 1, dtype=nl.uint32)), "dtype"),
    "two elements": (lambda x: nisa.scalar_load(sb(1, 2, dtype=nl.int32)), "one element"),
    "while without a register": (lambda x: nl.while_loop(3, lambda c: c), "VirtualRegister"),
    "while without a next condition": (
        lambda x: nl.while_loop(nisa.register_alloc(1), lambda c: None),
        "next condition",
    ),
    "step": (lambda x: nl.fori_loop(0, 4, lambda i: None, step=0), "step"),
    "value of a body": (lambda x: nl.fori_loop(0, 4, lambda i: 5), "carry state"),
    "float bound": (lambda x: nl.fori_loop(0, 4.0, lambda i: None), "upper"),
    "65 registers": (lambda x: [nisa.register_alloc() for _ in range(65)], ("registers", "65", "64")),
    "register arithmetic": (lambda x: nisa.register_alloc(1) + 1, "control flow"),
    "packed dtype": (lambda x: sb(8, 8, dtype=nl.float8_e5m2_x4), "packed"),
    "not a barrier of two": (lambda x: nisa.core_barrier(x, (0, 1)), "LNC"),
}


@pytest.mark.parametrize("name", LANGUAGE)
def test_language(name):
    refused(*LANGUAGE[name])


def leaking(make, use):
    """A loop body puts something aside; it is used after the loop."""

    def body(x):
        aside = []
        nl.fori_loop(0, 2, lambda i: aside.append(make(x, i)))
        use(x, aside[0])

    return body


SCOPES = {
    "the index": (lambda x, i: i, lambda x, i: nisa.dma_copy(sb(1, 64), x.ap([[64, 1], [1, 64]], scalar_offset=i)), "scope of an NkiScalar"),
    "a sum with the index": (
        lambda x, i: i + 1, lambda x, i: nisa.dma_copy(sb(1, 64), x.ap([[64, 1], [1, 64]], scalar_offset=2 * i)), "scope of an NkiScalar"
    ),
    "a bound": (lambda x, i: i, lambda x, i: nl.fori_loop(0, i, lambda j: None), "scope of an NkiScalar"),
    "a stored scalar": (lambda x, i: i, lambda x, i: nisa.scalar_store(sb(1, 1, dtype=nl.int32), i), "scope of an NkiScalar"),
    "a tensor": (lambda x, i: sb(4, 4), lambda x, t: nisa.memset(t, 0.0), "a tensor of a loop body"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCOPES)
def test_values_of_a_loop_body_end_with_it(name):
    make, use, said = SCOPES[name]
    refused(leaking(make, use), said)


def test_an_inner_loop_sees_the_outer_one():
    def body(x):
        def outer(i):
            t = sb(1, 64)
            nl.fori_loop(0, i, lambda j: nisa.dma_copy(t, x.ap([[64, 1], [1, 64]], scalar_offset=i + j)) and None)

        nl.fori_loop(0, 3, outer)

    admitted(body, run=True)


def returning(make):
    def kernel(x):
        return make(x)

    return lambda: nki_sim.trace(kernel, {"x": X})


def written(t):
    nisa.dma_copy(t, sb(*t.shape))
    return t


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda x: written(nl.ndarray((4, 4), nl.float32, buffer=nl.private_hbm)), "shared_hbm"),
        (lambda x: sb(4, 4), "shared_hbm"),
        (lambda x: hbm(4, 4), "never written"),
        (lambda x: written(hbm(4, 4))[0:2], "the whole tensor"),
        (lambda x: 3, "NkiTensor"),
        (lambda x: [nisa.dma_copy(x, sb(128, 64)), None][1], "written input"),
        (lambda x: written(nl.shared_constant(np.ones((4, 4), np.float32))), "destination"),
    ],
)
def test_results(make, said):
    with pytest.raises(NkiValidationError, match=said):
        returning(make)()


def test_instructions_after_unrolling_are_limited(monkeypatch):
    def body(x):
        t = sb(8, 8)
        for _ in nl.affine_range(20):
            nl.fori_loop(0, 1000, lambda i: nisa.memset(t, 0.0) and None)

    monkeypatch.setattr(nki_sim.program.chips, "INSTRUCTION_LIMIT", 20)
    admitted(body)  # a hardware loop counts once
    monkeypatch.setattr(nki_sim.program.chips, "INSTRUCTION_LIMIT", 19)
    refused(body, ("instructions after unrolling", "20", "fori_loop"))


def test_the_limit_is_five_million():
    assert nki_sim.program.chips.INSTRUCTION_LIMIT == 5_000_000


def test_kernel_signatures_and_arguments():
    nki = nki_sim.nki
    with pytest.raises(NkiValidationError, match="bare"):
        nki.jit(lambda x, *, a=1: None)
    with pytest.raises(NkiValidationError, match="platform_target"):
        nki.jit(lambda x: None, platform_target="trn1")
    with pytest.raises(NkiValidationError, match="a tuple"):
        nki_sim.trace(lambda x, shape: None, {"x": X}, {"shape": [1, 2]})
    with pytest.raises(NkiValidationError, match="arguments"):
        nki_sim.trace(lambda x: None, {"x": X}, {"y": 1})
    with pytest.raises(NkiValidationError, match="no float64"):
        nki_sim.trace(lambda x: None, {"x": X.astype(np.float64)})
    with pytest.raises(NkiValidationError, match="no complex"):
        nki_sim.trace(lambda x: None, {"x": X.astype(np.complex64)})
    with pytest.raises(NkiValidationError, match="outside a kernel"):
        nl.ndarray((2, 2), nl.float32)


def test_an_input_of_another_shape_or_dtype_is_refused():
    program = nki_sim.trace(lambda x: None, {"x": X})
    for wrong in (X[:4], X.astype(ml_dtypes.bfloat16)):
        with pytest.raises(NkiValidationError, match="shape and dtype"):
            program.execute({"x": wrong})


def test_arguments_are_counted():
    def kernel(x, y):
        pass

    with pytest.raises(NkiValidationError, match="number of arrays"):
        nki_sim.trace(kernel, [X, X, X])
    with pytest.raises(NkiValidationError, match=r"missing.*'y'"):
        nki_sim.trace(kernel, [X])
    with pytest.raises(NkiValidationError, match="input 'y'"):
        nki_sim.trace(kernel, [X, X]).execute({"x": X})


def test_inputs_are_left_alone_and_a_returned_input_is_an_alias():
    def kernel(x):
        t = sb(128, 64)
        nisa.memset(t, 5.0)
        nisa.dma_copy(x, t)
        return x

    program, before = nki_sim.trace(kernel, {"x": X}), X.copy()
    assert program.outputs == (("x", (128, 64), "float32", "x"),)
    assert (program.execute({"x": X}).outputs[0] == 5).all()
    np.testing.assert_array_equal(X, before)


def test_memory_of_a_loop_body_is_lost_when_it_turns():
    def kernel(x):
        out, first = hbm(4, 8), nl.ones((1, 8), nl.float32)

        def body(i):
            t = sb(1, 8)
            nisa.dma_copy(out.ap([[8, 1], [1, 8]], scalar_offset=i), t)
            nisa.tensor_copy(t, first)

        nl.fori_loop(0, 4, body)
        return out

    assert np.isnan(nki_sim.run(kernel, {"x": X}).outputs[0]).all()


def test_compiled_but_not_executed_without_a_device(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setenv("NKI_ARTIFACTS_DIR", str(tmp_path / "out"))
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    nki_sim.COMPILED.append(lambda *a: seen.append(a))
    try:
        with pytest.raises(RuntimeError, match="no NeuronCore"):
            nki_sim.nki.jit(lambda x, a=2: None)(X, a=3)
    finally:
        nki_sim.COMPILED.pop()
    ((_, arrays, constants, target, lnc, folder),) = seen
    assert list(arrays) == ["x"] and constants == {"a": 3} and (target, lnc) == ("trn1", 1) and folder.endswith("out")

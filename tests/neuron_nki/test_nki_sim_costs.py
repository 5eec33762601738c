"""Counts and predicted cycles against the documented cost rules; memory, loops and two cores."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import nki_sim
from nki_sim import isa as nisa
from nki_sim import language as nl

X = np.ones((128, 512), np.float32)


def sb(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def ps(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.psum)


def report(body, target="trn2", lnc=1, array=X):
    def kernel(x):
        body(x)

    return nki_sim.trace(kernel, {"x": array}, target=target, lnc=lnc).reports()[0]


# -- Vector, Scalar, GpSimd -------------------------------------------------------------------------------------------------

CYCLES = {
    "one input": ("trn2", "vector", 512, lambda: nisa.tensor_scalar(sb(8, 512), sb(8, 512), nl.add, 1.0)),
    "two operators cost one": (
        "trn2", "vector", 512, lambda: nisa.tensor_scalar(sb(8, 512), sb(8, 512), nl.add, 1.0, op1=nl.multiply, operand1=2.0)
    ),
    "two inputs": ("trn2", "vector", 1024, lambda: nisa.tensor_tensor(sb(8, 512), sb(8, 512), sb(8, 512), nl.add)),
    "multiply-add": (
        "trn1", "vector", 1024, lambda: nisa.scalar_tensor_tensor(sb(8, 512), sb(8, 512), nl.multiply, sb(8, 1), nl.add, sb(8, 512))
    ),
    "floor": ("trn2", "vector", 64, lambda: nisa.tensor_tensor(sb(8, 8), sb(8, 8), sb(8, 8), nl.add)),
    "16-bit copy, contiguous": ("trn2", "vector", 128, lambda: nisa.tensor_copy(sb(8, 512, dtype=nl.bfloat16), sb(8, 512, dtype=nl.bfloat16))),
    "16-bit copy, strided": (
        "trn2", "vector", 256, lambda: nisa.tensor_copy(sb(8, 512, dtype=nl.bfloat16), sb(8, 1024, dtype=nl.bfloat16)[:, ::2])
    ),
    "16-bit copy out of PSUM": ("trn2", "vector", 256, lambda: nisa.tensor_copy(sb(8, 512, dtype=nl.bfloat16), ps(8, 512, dtype=nl.bfloat16))),
    "16-bit copy on gen2": ("trn1", "vector", 512, lambda: nisa.tensor_copy(sb(8, 512, dtype=nl.bfloat16), sb(8, 512, dtype=nl.bfloat16))),
    "16-bit pair": (
        "trn3", "vector", 512,
        lambda: nisa.tensor_tensor(sb(8, 512, dtype=nl.float16), sb(8, 512, dtype=nl.float16), sb(8, 512, dtype=nl.bfloat16), nl.add),
    ),
    "16-bit pair on gen2": (
        "inf2", "vector", 1024,
        lambda: nisa.tensor_tensor(sb(8, 512, dtype=nl.float16), sb(8, 512, dtype=nl.float16), sb(8, 512, dtype=nl.float16), nl.add),
    ),
    "innermost stride above 16 bytes": ("trn2", "vector", 512, lambda: nisa.tensor_copy(sb(8, 256), sb(8, 256 * 5)[:, ::5])),
    "innermost stride of 16 bytes": ("trn2", "vector", 256, lambda: nisa.tensor_copy(sb(8, 256), sb(8, 256 * 4)[:, ::4])),
    "reduce counts its input": ("trn2", "vector", 512, lambda: nisa.tensor_reduce(sb(8, 1), nl.add, sb(8, 512), axis=1)),
    "reciprocal": ("trn2", "vector", 8 * 512, lambda: nisa.reciprocal(sb(8, 512), sb(8, 512))),
    "activation": ("trn2", "scalar", 512, lambda: nisa.activation(sb(8, 512), nl.exp, sb(8, 512))),
    "activation floor": ("trn2", "scalar", 64, lambda: nisa.activation(sb(8, 3), nl.exp, sb(8, 3))),
    "16-bit scalar copy on gen4": (
        "trn3", "scalar", 256, lambda: nisa.tensor_copy(sb(8, 512, dtype=nl.bfloat16), sb(8, 512, dtype=nl.bfloat16), engine=nisa.engine.scalar)
    ),
    "fp32 matmul": ("trn2", "tensor", 4 * 512, lambda: nisa.nc_matmul(ps(8, 512), sb(8, 8), sb(8, 512))),
    "16-bit matmul": (
        "trn2", "tensor", 512, lambda: nisa.nc_matmul(ps(8, 512), sb(8, 8, dtype=nl.float16), sb(8, 512, dtype=nl.bfloat16))
    ),
    "tf32 matmul": (
        "trn2", "tensor", 512, lambda: nisa.nc_matmul(ps(8, 512), sb(8, 8, dtype=nl.tfloat32), sb(8, 512, dtype=nl.tfloat32))
    ),
    "small matmul": ("trn2", "tensor", 64, lambda: nisa.nc_matmul(ps(8, 8), sb(8, 8, dtype=nl.float16), sb(8, 8, dtype=nl.float16))),
    "four tiles at a time": (
        "trn2", "tensor", 16,
        lambda: nisa.nc_matmul(ps(8, 12), sb(8, 8, dtype=nl.float16), sb(8, 12, dtype=nl.float16), tile_position=(0, 0), tile_size=(32, 32)),
    ),
    "two tiles at a time": (
        "trn1", "tensor", 32,
        lambda: nisa.nc_matmul(ps(8, 12), sb(8, 8, dtype=nl.float16), sb(8, 12, dtype=nl.float16), tile_position=(0, 0), tile_size=(64, 64)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CYCLES)
def test_cycles(name):
    target, engine, cycles, body = CYCLES[name]
    got = report(lambda x: body(), target)
    assert got.cycles[engine] == cycles
    assert sum(v for e, v in got.cycles.items() if e != engine) == 0
    assert got.ns(engine) == pytest.approx(cycles / {"trn1": {"tensor": 2.8, "vector": 1.12}, "inf2": {"vector": 1.12}, "trn2": {"tensor": 2.4, "vector": 0.96, "scalar": 1.2}, "trn3": {"vector": 1.2, "scalar": 1.2}}[target][engine])  # fmt: skip


def test_a_matmul_is_two_instructions_and_overlap_is_apart():
    got = report(lambda x: CYCLES["four tiles at a time"][3]())
    assert got.instructions["tensor"] == 2 and got.calls["tensor"] == 1 and got.static_instructions == 2
    assert got.serial_cycles["tensor"] == 64


# -- loops --------------------------------------------------------------------------------------------------------------------


def test_a_hardware_loop_counts_once_and_costs_every_turn():
    def body(x):
        t = sb(8, 512)

        def outer(i):
            nisa.memset(t, 0.0)
            nl.fori_loop(0, 10, lambda j: nisa.memset(t, 0.0) and None, step=3)

        nl.fori_loop(2, 7, outer)

    got = report(body)
    assert got.static_instructions == 2
    assert got.calls["vector"] == 5 * (1 + 4) and got.cycles["vector"] == 25 * 512 and got.loop_turns == 5 + 20


def test_a_python_loop_is_unrolled():
    def body(x):
        t = sb(8, 512)
        for _ in nl.sequential_range(9):
            nisa.memset(t, 0.0)

    assert report(body).static_instructions == 9


def test_a_loop_of_unknown_length_is_counted_while_it_runs():
    def kernel(n):
        t, tile = sb(8, 8), sb(1, 1, dtype=nl.int32)
        nisa.dma_copy(tile, n)
        register = nisa.register_alloc()
        nisa.register_load(register, tile)
        nl.fori_loop(0, register, lambda i: nisa.memset(t, 0.0) and None)

    n = np.array([[6]], np.int32)
    program = nki_sim.trace(kernel, {"n": n})
    with pytest.raises(nki_sim.NkiValidationError, match="known only while running"):
        program.reports()
    assert program.execute({"n": n}).report.ops["memset"] == 6
    assert program.execute({"n": n}).report.ops["memset"] == 6


def test_a_trace_of_a_large_volume_needs_no_data():
    def kernel(x):
        t = sb(128, 1024)

        def body(i):
            nisa.dma_copy(t, x.ap([[1024, 128], [1, 1024]], scalar_offset=i * 128, indirect_dim=0))
            nisa.tensor_scalar(t, t, nl.multiply, 2.0)

        nl.fori_loop(0, 1 << 20, body)

    got = nki_sim.trace(kernel, {"x": ((1 << 27, 1024), "float32")}).reports()[0]
    assert got.calls["vector"] == 1 << 20 and got.dma_bytes == 1 << 39


# -- DMA ------------------------------------------------------------------------------------------------------------------------


def test_dma_bytes_and_descriptors():
    got = report(lambda x: nisa.dma_copy(sb(128, 512), x))
    size = 128 * 512 * 4
    assert (got.dma_transfers, got.dma_bytes, got.hbm_bytes, got.dma_descriptors, got.dma_small_descriptors) == (
        1,
        size,
        size,
        128,
        0,
    )
    assert got.dma_ns == pytest.approx(size / (16 * 23)) and got.hbm_ns == pytest.approx(size / 362)
    assert got.dma_start_ns == 125.0 and got.bound() == ("dma", got.hbm_ns)


def test_short_runs_cost_as_256_bytes():
    got = report(lambda x: nisa.dma_copy(sb(128, 32), x[:, 0:32]), "trn1")
    assert got.dma_descriptors == got.dma_small_descriptors == 128
    assert got.dma_ns == pytest.approx(128 * 256 / (16 * 17))
    got = report(lambda x: nisa.dma_copy(sb(128, 32), x[:, 0:512:16]), "trn1")
    assert got.dma_descriptors == 128 * 32 and got.dma_ns == pytest.approx(128 * 32 * 256 / (16 * 17))


def test_hbm_to_hbm_counts_both_sides_and_whole_runs():
    def body(x):
        nisa.dma_copy(nl.ndarray((128, 512), nl.float32, buffer=nl.private_hbm), x)

    got = report(body)
    assert got.hbm_bytes == 2 * got.dma_bytes and got.dma_descriptors == 1


def test_a_cast_moves_the_wider_side_and_counts_hbm_as_stored():
    got = report(lambda x: nisa.dma_copy(sb(128, 512, dtype=nl.bfloat16), x))
    assert got.dma_bytes == got.hbm_bytes == 128 * 512 * 4


def test_hardware_descriptors_cost_600_ns():
    got = report(lambda x: nisa.dma_copy(sb(128, 512), x, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync))
    assert got.hwdge_ns == 600.0


def test_dma_compute_is_half_as_fast_before_gen4():
    def body(x):
        nisa.dma_compute(nl.ndarray((128, 512), nl.float32, buffer=nl.private_hbm), [x, x], nl.add)

    old, new = report(body, "trn2"), report(body, "trn3")
    assert old.dma_ns * 23 == pytest.approx(2 * new.dma_ns * 33)


# -- memory -----------------------------------------------------------------------------------------------------------------------


def test_peak_memory():
    def body(x):
        a, p = sb(128, 100), ps(128, 512)
        nisa.memset(a, 0.0)
        b = sb(128, 50, dtype=nl.bfloat16)
        nisa.memset(b, 0.0)
        nisa.tensor_copy(a[:, 0:50], b)
        nisa.memset(p, 0.0)
        nisa.memset(ps(8, 8), 0.0)
        nisa.memset(p, 0.0)

    got = report(body)
    assert got.sbuf_peak_bytes == 500 and got.psum_peak_banks == 2


def test_gen2_adds_vector_and_gpsimd():
    def body(x):
        t = sb(8, 512)
        nisa.memset(t, 0.0)
        nisa.memset(t, 0.0, engine=nisa.engine.gpsimd)

    assert report(body, "trn1").bound()[0] == "vector+gpsimd"
    assert report(body, "trn2").bound()[0] == "vector"


# -- two cores of a logical core -------------------------------------------------------------------------------------------------


def test_two_cores_share_hbm_between_barriers():
    """Each core writes its half, both wait, each adds the other's half to its own."""

    def kernel(x):
        core = nl.program_id(0)
        assert nl.num_programs(0) == 2
        half, out = (
            nl.ndarray((2, 64, 16), nl.float32, buffer=nl.shared_hbm),
            nl.ndarray((2, 64, 16), nl.float32, buffer=nl.shared_hbm),
        )
        mine, theirs = sb(64, 16), sb(64, 16)
        nisa.dma_copy(mine, x[64 * core : 64 * core + 64])
        nisa.dma_copy(half[core], mine)
        nisa.core_barrier(half, (0, 1))
        nisa.dma_copy(theirs, half[1 - core])
        nisa.tensor_scalar(theirs, theirs, nl.multiply, 10.0)
        nisa.tensor_tensor(mine, mine, theirs, nl.add)
        nisa.dma_copy(out[core], mine)
        return out

    x = np.random.default_rng(0).standard_normal((128, 16)).astype(np.float32)
    result = nki_sim.run(kernel, [x], target="trn2", lnc=2)
    a, b = x[:64], x[64:]
    np.testing.assert_allclose(result.outputs[0], [a + 10 * b, b + 10 * a], rtol=1e-6)
    assert len(result.reports) == 2 and result.reports[1].dma_transfers == 4


def test_cores_that_differ_in_shared_tensors_or_barriers_are_refused():
    def shared(x):
        nl.ndarray((2 + nl.program_id(0), 4), nl.float32, buffer=nl.shared_hbm)

    def barrier(x):
        if nl.program_id(0) == 0:
            nisa.core_barrier(x, (0, 1))

    for kernel, said in ((shared, "shared_hbm tensors"), (barrier, "core_barrier calls")):
        with pytest.raises(nki_sim.NkiValidationError, match=said):
            nki_sim.trace(kernel, [X], lnc=2)


def test_a_program_runs_again_from_uninitialised_memory():
    def kernel(x):
        out, t = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm), sb(128, 512)
        nisa.dma_copy(t[:, 0:8], x[:, 0:8])
        nisa.dma_copy(out, t)
        return out

    program = nki_sim.trace(kernel, [X])
    for _ in range(2):
        got = program.execute({"x": X}).outputs[0]
        assert (got[:, :8] == 1).all() and np.isnan(got[:, 8:]).all()

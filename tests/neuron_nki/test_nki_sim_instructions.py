"""Every instruction against a plain NumPy formula, under the stand-in and, where it is installed, under the official simulator."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import nki_sim

RNG = np.random.default_rng(5)
BF16, FP16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)


@pytest.fixture(params=["stand-in", pytest.param("official", marks=pytest.mark.nki_wheel)])
def nki(request, monkeypatch):
    """The stand-in, or the official package under its own simulator."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    if request.param == "stand-in":
        return nki_sim.nki
    if not nki_sim.real_wheel():
        pytest.skip("the official nki wheel is not installed here")
    import nki
    import nki.isa
    import nki.language

    return nki


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(np.float32).astype(dtype)


def simulate(nki, body, *arrays, out=None, dtype=None):
    """Load the arrays, ``body(nl, nisa, *tiles)`` gives the tile of the result, store it."""
    nl, nisa = nki.language, nki.isa

    def run(tensors):
        tiles = []
        for t in tensors:
            tile = nl.ndarray(t.shape, t.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=t)
            tiles.append(tile)
        result = body(nl, nisa, *tiles)
        stored = nl.ndarray(result.shape, result.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=stored, src=result)
        return stored

    if len(arrays) == 1:
        kernel = lambda a: run((a,))  # noqa: E731
    elif len(arrays) == 2:
        kernel = lambda a, b: run((a, b))  # noqa: E731
    else:
        kernel = lambda a, b, c: run((a, b, c))  # noqa: E731
    return np.asarray(nki.simulate(nki.jit(kernel))(*arrays))


def f32(x):
    return np.asarray(x, np.float32)


def close(got, wanted, epsilon=1e-6):
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(f32(got), f32(wanted), rtol=epsilon, atol=epsilon)


A, B, COL = normal(96, 4, 10), normal(96, 4, 10), normal(96, 1)


# -- copies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [np.float32, FP16, BF16, np.int32])
@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16", "int16"])
def test_dma_copy_casts_through_float32(nki, source, target):
    x = (normal(40, 12) * 100).astype(source)

    def body(nl, nisa, a):
        out = nl.ndarray(a.shape, getattr(nl, target), buffer=nl.sbuf)
        nisa.dma_copy(dst=out, src=a)
        return out

    wanted = np.rint(f32(x)).astype(np.int16) if target == "int16" else f32(x).astype(nki_sim.dtypes.STORAGE[target])
    got = simulate(nki, body, x)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(f32(got), f32(wanted))


@pytest.mark.parametrize("unit", ["vector", "scalar", "gpsimd", "unknown"])
def test_tensor_copy_keeps_bits_and_casts(nki, unit):
    def body(nl, nisa, a):
        same = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=same, src=a, engine=getattr(nisa.engine, unit))
        out = nl.ndarray(a.shape, nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=same, engine=getattr(nisa.engine, unit))
        return out

    got = simulate(nki, body, A)
    np.testing.assert_array_equal(f32(got), f32(A.astype(BF16)))


def test_tensor_copy_moves_a_quadrant(nki):
    def body(nl, nisa, a):
        out = nl.zeros((128, 10), nl.float32)
        nisa.tensor_copy(dst=out[96:128], src=a[32:64])
        return out

    x = normal(128, 10)
    wanted = np.zeros_like(x)
    wanted[96:] = x[32:64]
    close(simulate(nki, body, x), wanted)


def test_memset_and_uninitialised_memory(nki):
    def body(nl, nisa, a):
        out = nl.ndarray(a.shape, nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=out[:, 0:3], value=2.5)
        return out

    got = simulate(nki, body, normal(8, 5))
    assert (got[:, :3] == 2.5).all() and np.isnan(got[:, 3:]).all()


def test_integer_memory_starts_at_four(nki):
    got = simulate(nki, lambda nl, nisa, a: nl.ndarray(a.shape, nl.int32, buffer=nl.sbuf), normal(8, 5))
    assert (got == 4).all()


def test_tensor_copy_predicated(nki):
    mask = (A[:, 0] > 0).astype(np.uint8)

    def body(nl, nisa, a, m):
        out = nl.zeros(a.shape, a.dtype)
        nisa.tensor_copy_predicated(dst=out, src=a, predicate=m)
        return out

    close(simulate(nki, body, A[:, 0].copy(), mask), np.where(mask, A[:, 0], 0))


def test_dma_compute_sums(nki):
    def body(nl, nisa, a, b):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.dma_compute(dst=out, srcs=(a, b, a), reduce_op=nl.add)
        return out

    close(simulate(nki, body, A, B), 2 * A + B)


def test_dma_transpose(nki):
    x = normal(16, 40, dtype=BF16)

    def body(nl, nisa, a):
        out = nl.ndarray((40, 16), a.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(dst=out, src=a)
        return out

    close(simulate(nki, body, x), f32(x).T)


@pytest.mark.parametrize("direction", ["gather", "scatter"])
def test_dma_gathers_and_scatters_rows(nki, direction):
    nl, nisa = nki.language, nki.isa
    x, rows = normal(50, 6), np.array([[7], [0], [49], [3]], np.uint32)

    def kernel(x, rows):
        index = nl.ndarray((4, 1), nl.uint32, buffer=nl.sbuf)
        nisa.dma_copy(dst=index, src=rows)
        tile = nl.ndarray((4, 6), nl.float32, buffer=nl.sbuf)
        if direction == "gather":
            out = nl.ndarray((4, 6), nl.float32, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=tile, src=x.ap([[6, 4], [1, 6]], vector_offset=index, indirect_dim=0))
            nisa.dma_copy(dst=out, src=tile)
        else:
            out = nl.ndarray((50, 6), nl.float32, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=out, src=x)
            nisa.memset(dst=tile, value=1.0)
            nisa.dma_copy(dst=out.ap([[6, 4], [1, 6]], vector_offset=index, indirect_dim=0), src=tile)
        return out

    got = np.asarray(nki.simulate(nki.jit(kernel))(x, rows))
    wanted = x.copy()
    wanted[rows[:, 0]] = 1
    close(got, x[rows[:, 0]] if direction == "gather" else wanted)


# -- element-wise -----------------------------------------------------------------------------------------------------------

ARITHMETIC = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal, "less": np.less,
    "less_equal": np.less_equal, "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}  # fmt: skip


@pytest.mark.parametrize("op", ARITHMETIC)
def test_tensor_tensor(nki, op):
    b = np.where(B > 0.5, A, B) * (B > -0.5)  # with equal and with vanishing elements

    def body(nl, nisa, a, c):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out, data1=a, data2=c, op=getattr(nl, op))
        return out

    close(simulate(nki, body, A, b), f32(ARITHMETIC[op](A, b)))


def test_tensor_tensor_of_bfloat16_rounds_once(nki):
    a, b = A.astype(BF16), B.astype(BF16)

    def body(nl, nisa, x, y):
        out = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out, data1=x, data2=y, op=nl.multiply)
        return out

    np.testing.assert_array_equal(f32(simulate(nki, body, a, b)), f32((f32(a) * f32(b)).astype(BF16)))


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
def test_tensor_tensor_on_bits(nki, op):
    a = RNG.integers(0, 1 << 20, (64, 9)).astype(np.int32)
    b = RNG.integers(0, 8, (64, 9)).astype(np.int32)

    def body(nl, nisa, x, y):
        out = nl.ndarray(x.shape, nl.int32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out, data1=x, data2=y, op=getattr(nl, op))
        return out

    np.testing.assert_array_equal(simulate(nki, body, a, b), getattr(np, op)(a, b))


def test_integers_are_exact_on_gpsimd_and_float32_on_vector(nki):
    a = RNG.integers(1 << 25, 1 << 28, (32, 16)).astype(np.int32)
    b = RNG.integers(1, 7, (32, 16)).astype(np.int32)

    def body(unit):
        def inner(nl, nisa, x, y):
            out = nl.ndarray(x.shape, nl.int32, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=out, data1=x, data2=y, op=nl.add, engine=getattr(nisa.engine, unit))
            return out

        return inner

    np.testing.assert_array_equal(simulate(nki, body("gpsimd"), a, b), a + b)
    wanted = np.rint(f32(a) + f32(b)).astype(np.int64)
    np.testing.assert_array_equal(simulate(nki, body("vector"), a, b), wanted)
    assert (wanted != a + b).any()


def test_power_runs_on_gpsimd(nki):
    def body(nl, nisa, a, b):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=out, data1=a, data2=b, op=nl.power, engine=nisa.engine.gpsimd)
        return out

    close(simulate(nki, body, np.abs(A), B), np.abs(A) ** B, 1e-4)


@pytest.mark.parametrize("reverse0, reverse1", [(False, False), (True, False), (False, True), (True, True)])
def test_tensor_scalar_with_a_number_and_a_column(nki, reverse0, reverse1):
    def body(nl, nisa, a, c):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=out,
            data=a,
            op0=nl.subtract,
            operand0=c,
            reverse0=reverse0,
            op1=nl.subtract,
            operand1=1.5,
            reverse1=reverse1,
        )
        return out

    first = COL[:, :, None] - A if reverse0 else A - COL[:, :, None]
    close(simulate(nki, body, A, COL), 1.5 - first if reverse1 else first - 1.5)


def test_tensor_scalar_on_the_scalar_engine(nki):
    def body(nl, nisa, a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=out, data=a, op0=nl.multiply, operand0=3.0, op1=nl.add, operand1=-1.0, engine=nisa.engine.scalar
        )
        return out

    close(simulate(nki, body, A), 3 * A - 1)


def test_tensor_scalar_on_bits(nki):
    a = RNG.integers(0, 1 << 30, (32, 16)).astype(np.int32)

    def body(nl, nisa, x):
        out = nl.ndarray(x.shape, nl.int32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=out, data=x, op0=nl.right_shift, operand0=16, op1=nl.bitwise_and, operand1=0xFF)
        return out

    np.testing.assert_array_equal(simulate(nki, body, a), (a >> 16) & 0xFF)


@pytest.mark.parametrize("reverse1", [False, True])
def test_scalar_tensor_tensor(nki, reverse1):
    def body(nl, nisa, a, c, b):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=out, data=a, op0=nl.multiply, operand0=c, op1=nl.subtract, operand1=b, reverse1=reverse1
        )
        return out

    wanted = A * COL[:, :, None] - B
    close(simulate(nki, body, A, COL, B), -wanted if reverse1 else wanted)


def test_scalar_tensor_tensor_with_a_fused_sum(nki):
    def body(nl, nisa, a, b):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        total = nl.ndarray((96, 1), nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=out,
            data=a,
            op0=nl.multiply,
            operand0=2.0,
            op1=nl.multiply,
            operand1=b,
            reduce_op=nl.add,
            reduce_res=total,
        )
        return total

    close(simulate(nki, body, A, B), (2 * A * B).sum((1, 2))[:, None], 1e-5)


def test_a_sum_goes_on_over_instructions(nki):
    def body(nl, nisa, a, b):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        total = nl.ndarray((96, 1), nl.float32, buffer=nl.sbuf)
        for data, command in ((a, nisa.reduce_cmd.reset_reduce), (b, nisa.reduce_cmd.reduce)):
            nisa.scalar_tensor_tensor(
                dst=out,
                data=data,
                op0=nl.multiply,
                operand0=1.0,
                op1=nl.multiply,
                operand1=data,
                reduce_cmd=command,
                reduce_op=nl.add,
                reduce_res=total,
            )
        return total

    close(simulate(nki, body, A, B), (A**2 + B**2).sum((1, 2))[:, None], 1e-5)


def test_tensor_scalar_reduce(nki):
    def body(nl, nisa, a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        top = nl.ndarray((96, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(dst=out, data=a, op0=nl.add, operand0=1.0, reduce_op=nl.maximum, reduce_res=top)
        return top

    close(simulate(nki, body, A), (A + 1).max((1, 2))[:, None])


def test_tensor_scalar_cumulative(nki):
    def body(nl, nisa, a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar_cumulative(dst=out, src=a, op0=nl.multiply, op1=nl.add, imm0=2.0)
        return out

    close(simulate(nki, body, A[:, 0].copy()), np.cumsum(2 * A[:, 0], 1), 1e-5)


def test_tensor_tensor_scan(nki):
    def body(nl, nisa, a, b, c):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor_scan(dst=out, data0=a, data1=b, initial=c, op0=nl.multiply, op1=nl.add)
        return out

    a, b, wanted, held = A[:, 0].copy(), B[:, 0].copy(), np.empty((96, 10), np.float32), COL[:, 0]
    for i in range(10):
        held = wanted[:, i] = a[:, i] * held + b[:, i]
    close(simulate(nki, body, a, b, COL), wanted, 1e-5)


@pytest.mark.parametrize("axis, keepdims", [((1, 2), False), (2, True), ((2,), False)])
@pytest.mark.parametrize("op", ["add", "maximum", "minimum", "multiply"])
def test_tensor_reduce(nki, axis, keepdims, op):
    wanted = {"add": np.sum, "maximum": np.max, "minimum": np.min, "multiply": np.prod}[op](
        A, axis=axis, keepdims=keepdims
    )
    shape = wanted.shape if wanted.ndim > 1 else (96, 1)

    def body(nl, nisa, a):
        out = nl.ndarray(shape, a.dtype, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=out, op=getattr(nl, op), data=a, axis=axis, keepdims=keepdims)
        return out

    close(simulate(nki, body, A), wanted.reshape(shape), 1e-5)


def test_tensor_partition_reduce(nki):
    def body(nl, nisa, a):
        out = nl.ndarray((1, 4, 10), a.dtype, buffer=nl.sbuf)
        nisa.tensor_partition_reduce(dst=out, op=nl.add, data=a)
        return out

    close(simulate(nki, body, A), A.sum(0, keepdims=True), 1e-5)


def test_reciprocal(nki):
    def body(nl, nisa, a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.reciprocal(dst=out, data=a)
        return out

    close(simulate(nki, body, np.abs(A) + 1), 1 / (np.abs(A) + 1))


@pytest.mark.parametrize(
    "op", ["copy", "square", "exp", "sqrt", "rsqrt", "abs", "tanh", "sigmoid", "relu", "sign", "log", "sin"]
)
def test_activation(nki, op):
    x = np.abs(A) / 4 + 0.1
    formula = {
        "copy": lambda v: v,
        "rsqrt": lambda v: v**-0.5,
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "relu": lambda v: np.maximum(v, 0),
    }

    def body(nl, nisa, a, c):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.activation(dst=out, op=getattr(nl, op), data=a, bias=c, scale=0.5)
        return out

    c = np.abs(COL) / 4 + 0.1
    close(simulate(nki, body, x, c), formula.get(op, getattr(np, op, None))(0.5 * x + c[:, :, None]), 1e-5)


def test_activation_reduce_sums(nki):
    def body(nl, nisa, a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        total = nl.ndarray((96, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=out, op=nl.square, data=a, reduce_op=nl.add, reduce_res=total)
        return total

    close(simulate(nki, body, A), (A**2).sum((1, 2))[:, None], 1e-5)


def test_select_reduce(nki):
    mask = (B > 0).astype(np.uint8)

    def body(nl, nisa, m, a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.select_reduce(dst=out, predicate=m, on_true=a, on_false=-7.0)
        return out

    close(simulate(nki, body, mask, A), np.where(mask, A, -7))


# -- partitions, indices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint16"])
def test_iota(nki, dtype):
    def body(nl, nisa, a):
        out = nl.ndarray((20, 3, 5), getattr(nl, dtype), buffer=nl.sbuf)
        nisa.iota(dst=out, pattern=[[100, 3], [2, 5]], offset=7, channel_multiplier=1000)
        return out

    p, i, j = np.ogrid[:20, :3, :5]
    np.testing.assert_array_equal(simulate(nki, body, normal(4, 4)), 7 + 1000 * p + 100 * i + 2 * j)


def test_affine_select_makes_a_triangle(nki):
    def body(nl, nisa, a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.affine_select(
            dst=out,
            pattern=[[-1, 12]],
            channel_multiplier=1,
            on_true_tile=a,
            on_false_value=0.0,
            cmp_op=nl.greater_equal,
        )
        return out

    x = normal(12, 12)
    close(simulate(nki, body, x), np.tril(x))


def test_stream_shuffle_permutes_each_quadrant(nki):
    order = [int(v) for v in RNG.permutation(32)]
    x = normal(64, 6)

    def body(nl, nisa, a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.sbuf)
        nisa.nc_stream_shuffle(dst=out, src=a, shuffle_mask=order)
        return out

    close(simulate(nki, body, x), np.concatenate([x[:32][order], x[32:][order]]))


def test_n_gather_picks_within_a_partition(nki):
    at = RNG.integers(0, 10, (96, 7)).astype(np.uint32)

    def body(nl, nisa, a, i):
        out = nl.ndarray(i.shape, a.dtype, buffer=nl.sbuf)
        nisa.nc_n_gather(dst=out, data=a, indices=i)
        return out

    x = A[:, 0].copy()
    close(simulate(nki, body, x, at), np.take_along_axis(x, at.astype(int), 1))


@pytest.mark.parametrize("unit", ["tensor", "vector"])
def test_nc_transpose(nki, unit):
    x = normal(24, 30)

    def body(nl, nisa, a):
        mid = nl.ndarray((30, 24), a.dtype, buffer=nl.psum if unit == "tensor" else nl.sbuf)
        nisa.nc_transpose(dst=mid, data=a, engine=getattr(nisa.engine, unit))
        out = nl.ndarray((30, 24), a.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=mid)
        return out

    close(simulate(nki, body, x), x.T)


# -- tensor engine --------------------------------------------------------------------------------------------------------------


def evacuate(nl, nisa, tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("dtype", [np.float32, BF16, FP16])
def test_nc_matmul(nki, dtype):
    s, m = normal(100, 24, dtype=dtype), normal(100, 3, 20, dtype=dtype)

    def body(nl, nisa, a, b):
        out = nl.ndarray((24, 3, 20), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=out, stationary=a, moving=b)
        return evacuate(nl, nisa, out)

    close(simulate(nki, body, s, m), np.einsum("km,kxn->mxn", f32(s), f32(m)), 2e-5)


@pytest.mark.parametrize("explicit", [True, False])
def test_nc_matmul_accumulates(nki, explicit):
    s, m = normal(64, 24), normal(64, 40)

    def body(nl, nisa, a, b):
        out = nl.ndarray((24, 40), nl.float32, buffer=nl.psum)
        for k in range(3):
            nisa.nc_matmul(dst=out, stationary=a, moving=b, accumulate=k > 0 if explicit else None)
        return evacuate(nl, nisa, out)

    close(simulate(nki, body, s, m), 3 * s.T @ m, 5e-5)


def test_nc_matmul_without_accumulate_overwrites(nki):
    s, m = normal(64, 24), normal(64, 40)

    def body(nl, nisa, a, b):
        out = nl.ndarray((24, 40), nl.float32, buffer=nl.psum)
        for _ in range(2):
            nisa.nc_matmul(dst=out, stationary=a, moving=b, accumulate=False)
        return evacuate(nl, nisa, out)

    close(simulate(nki, body, s, m), s.T @ m, 2e-5)


@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("column", range(4))
def test_nc_matmul_in_a_32_by_32_tile(nki, row, column):
    """Rows of the tile are partitions of the operands, its columns partitions of the result."""
    s, m = normal(128, 24), normal(128, 12)
    k = slice(32 * row, 32 * row + 24)

    def body(nl, nisa, a, b):
        out = nl.ndarray((128, 12), nl.float32, buffer=nl.psum)
        nisa.memset(dst=out, value=0.0)
        place = out[32 * column : 32 * column + 24]
        nisa.nc_matmul(
            dst=place,
            stationary=a[k],
            moving=b[k],
            accumulate=False,
            tile_position=(32 * row, 32 * column),
            tile_size=(32, 32),
        )
        return evacuate(nl, nisa, out)

    wanted = np.zeros((128, 12), np.float32)
    wanted[32 * column : 32 * column + 24] = s[k].T @ m[k]
    close(simulate(nki, body, s, m), wanted, 2e-5)


def test_tfloat32_keeps_ten_bits(nki):
    s, m = normal(32, 16), normal(32, 16)

    def body(nl, nisa, a, b):
        narrow = []
        for t in (a, b):
            tile = nl.ndarray(t.shape, nl.tfloat32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=t)
            narrow.append(tile)
        out = nl.ndarray((16, 16), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=out, stationary=narrow[0], moving=narrow[1])
        return evacuate(nl, nisa, out)

    got, exact = simulate(nki, body, s, m), s.T @ m
    error = np.abs(got - exact).max() / np.abs(exact).max()
    assert 1e-6 < error < 2e-3


def test_idle_rows_poison_a_product(nki):
    s, m = normal(24, 8), normal(24, 8)

    def body(nl, nisa, a, b):
        wide = []
        for t in (a, b):
            tile = nl.ndarray((32, 8), nl.float32, buffer=nl.sbuf)  # rows 24..31 are never written
            nisa.dma_copy(dst=tile[0:24], src=t)
            wide.append(tile)
        out = nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=out, stationary=wide[0], moving=wide[1])
        return evacuate(nl, nisa, out)

    assert np.isnan(simulate(nki, body, s, m)).all()


# -- loops, registers, scalars ------------------------------------------------------------------------------------------------------


def test_fori_loop_with_dynamic_offsets(nki):
    nl, nisa = nki.language, nki.isa
    x = normal(7, 16, 12)

    def kernel(x):
        out = nl.ndarray((7, 16, 12), nl.float32, buffer=nl.shared_hbm)

        def body(i):
            tile = nl.ndarray((16, 12), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x.ap([[12, 16], [1, 12]], scalar_offset=i, indirect_dim=0))
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
            nisa.dma_copy(dst=out.ap([[12, 16], [1, 12]], scalar_offset=6 - i, indirect_dim=0), src=tile)

        nl.fori_loop(0, 7, body)
        return out

    close(np.asarray(nki.simulate(nki.jit(kernel))(x)), 2 * x[::-1])


def test_a_dynamic_offset_on_chip(nki):
    nl, nisa = nki.language, nki.isa
    x = normal(16, 5, 4)

    def kernel(x):
        out = nl.ndarray((16, 4), nl.float32, buffer=nl.shared_hbm)
        tile, total = nl.ndarray((16, 5, 4), nl.float32, buffer=nl.sbuf), nl.zeros((16, 4), nl.float32)
        nisa.dma_copy(dst=tile, src=x)

        def body(i):
            nisa.tensor_tensor(
                dst=total, data1=total, data2=tile.ap([[20, 16], [1, 4]], scalar_offset=i, indirect_dim=1), op=nl.add
            )

        nl.fori_loop(1, 5, body, step=2)
        nisa.dma_copy(dst=out, src=total)
        return out

    close(np.asarray(nki.simulate(nki.jit(kernel))(x)), x[:, 1] + x[:, 3])


def test_scalars_wrap_and_store(nki):
    nl, nisa = nki.language, nki.isa

    def kernel(x):
        out = nl.ndarray((1, 2), nl.int32, buffer=nl.shared_hbm)
        tile, result = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf), nl.ndarray((1, 2), nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        i = nisa.scalar_load(tile)
        nisa.scalar_store(result[:, 0:1], 3 - i * 2)
        nisa.scalar_store(result[:, 1:2], i * 100000)
        nisa.dma_copy(dst=out, src=result)
        return out

    got = np.asarray(nki.simulate(nki.jit(kernel))(np.array([[100000]], np.int32)))
    assert got.tolist() == [[3 - 200000, 1410065408]]


def test_a_register_bounds_a_loop(nki):
    nl, nisa = nki.language, nki.isa

    def kernel(n):
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        tile, count = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf), nl.zeros((1, 1), nl.int32)
        nisa.dma_copy(dst=tile, src=n)
        register = nisa.register_alloc()
        nisa.register_load(register, tile)

        def body(i):
            nisa.tensor_scalar(dst=count, data=count, op0=nl.add, operand0=1.0)

        nl.fori_loop(0, register, body)
        nisa.dma_copy(dst=out, src=count)
        return out

    assert int(np.asarray(nki.simulate(nki.jit(kernel))(np.array([[9]], np.int32)))[0, 0]) == 9


def test_a_register_ends_a_loop(nki):
    nl, nisa = nki.language, nki.isa

    def kernel(n):
        out = nl.ndarray((1, 2), nl.int32, buffer=nl.shared_hbm)
        left, count = nl.ndarray((1, 2), nl.int32, buffer=nl.sbuf), nl.zeros((1, 1), nl.int32)
        nisa.dma_copy(dst=left[:, 0:1], src=n)
        register = nisa.register_alloc()
        nisa.register_load(register, left[:, 0:1])

        def body(_):
            nisa.tensor_scalar(dst=left[:, 0:1], data=left[:, 0:1], op0=nl.subtract, operand0=2.0)
            nisa.tensor_scalar(dst=count, data=count, op0=nl.add, operand0=1.0)
            nisa.register_load(register, left[:, 0:1])
            return register

        nl.while_loop(register, body)
        nisa.tensor_copy(dst=left[:, 1:2], src=count)
        nisa.dma_copy(dst=out, src=left)
        return out

    assert np.asarray(nki.simulate(nki.jit(kernel))(np.array([[8]], np.int32))).tolist() == [[0, 4]]


def test_registers_move_and_store(nki):
    nl, nisa = nki.language, nki.isa

    def kernel(x):
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        tile = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
        a, b = nisa.register_alloc(41), nisa.register_alloc()
        nisa.register_move(b, a)
        nisa.register_store(tile, b)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert int(np.asarray(nki.simulate(nki.jit(kernel))(np.zeros((1, 1), np.int32)))[0, 0]) == 41


# -- views ----------------------------------------------------------------------------------------------------------------------

VIEWS = {
    "slice": (lambda t: t[32:64, 1:4, ::2], lambda x: x[32:64, 1:4, ::2]),
    "integer": (lambda t: t[:, 2], lambda x: x[:, 2]),
    "permute": (lambda t: t.permute((0, 2, 1)), lambda x: x.transpose(0, 2, 1)),
    "broadcast": (lambda t: t.expand_dim(2).broadcast(2, 3), lambda x: np.repeat(x[:, :, None], 3, 2)),
    "reshape": (lambda t: t.reshape((16, 30)), lambda x: x.reshape(16, 30)),
    "reshape_dim": (lambda t: t.reshape_dim(2, (2, 3)), lambda x: x.reshape(16, 5, 2, 3)),
    "flatten": (lambda t: t.flatten_dims(1, 2), lambda x: x.reshape(16, 30)),
    "squeeze": (lambda t: t.slice(1, 3, 4).squeeze_dim(1), lambda x: x[:, 3]),
    "select": (lambda t: t.select(2, 4), lambda x: x[:, :, 4]),
    "ap": (lambda t: t.ap([[30, 16], [1, 6], [6, 4]], offset=6), lambda x: x[:, 1:5].transpose(0, 2, 1)),
    "reverse": (lambda t: t.ap([[30, 16], [-1, 30]], offset=29), lambda x: x.reshape(16, 30)[:, ::-1]),
    "rearrange": (
        lambda t: t.rearrange(("p", "a", ("b", "c")), ("p", "c", "a", "b"), {"b": 2}),
        lambda x: x.reshape(16, 5, 2, 3).transpose(0, 3, 1, 2),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_reads_what_numpy_reads(nki, name):
    take, formula = VIEWS[name]
    x = normal(96 if name == "slice" else 16, 5, 6)

    def body(nl, nisa, a):
        view = take(a)
        out = nl.ndarray(view.shape, a.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=view)
        return out

    np.testing.assert_array_equal(simulate(nki, body, x), formula(x))


def test_view_reinterprets_bits(nki):
    x = normal(8, 6)

    def body(nl, nisa, a):
        view = a.view(nl.uint16)
        out = nl.ndarray(view.shape, nl.uint16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=view)
        return out

    np.testing.assert_array_equal(simulate(nki, body, x), x.view(np.uint16))


def test_constants_and_identity(nki):
    table = normal(6, 6)

    def body(nl, nisa, a):
        tile, out = nl.ndarray((6, 6), nl.float32, buffer=nl.sbuf), nl.ndarray((6, 6), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=nl.shared_constant(table))
        one = nl.ndarray((6, 6), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=one, src=nl.shared_identity_matrix(6, nl.uint8))
        nisa.tensor_tensor(dst=out, data1=tile, data2=one, op=nl.multiply)
        return out

    close(simulate(nki, body, normal(2, 2)), np.diag(np.diag(table)))

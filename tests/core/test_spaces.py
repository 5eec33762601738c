"""ArraySpace over two array libraries, masked parities, exact sums, and the derived vector operations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lqcd_core import EVEN, ODD, LatticeGeometry
from lqcd_core.errors import FieldShapeError, GeometryError, ParameterError
from lqcd_core.precision import as_precision
from lqcd_core.spaces import ArraySpace, MaskedSpace, Vectors, exact_sum
from lqcd_core.testing.loopback import Crossings, FullLoopbackSpace, LoopbackSpace

G = LatticeGeometry(T=4, Z=2, Y=2, X=2)
DOUBLE = as_precision("double")


def spinors(seed=1, n=3, shape=G.spinor_shape):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, *shape)) + 1j * rng.normal(size=(n, *shape))


class Bare:
    """A resizable space with the seven operations, take and put, and nothing else."""

    resizable = True

    def __init__(self):
        inner = ArraySpace(np, G, DOUBLE, 3)
        self.geometry, self.precision, self.n_rhs, self.parity = G, DOUBLE, 3, None
        for name in ("pack", "unpack", "zeros", "axpy", "inner", "norm2", "gamma5", "take", "put"):
            setattr(self, name, getattr(inner, name))


def strict_space():
    return ArraySpace(pytest.importorskip("array_api_strict"), G, DOUBLE, 3)


SPACES = {
    "numpy": lambda: ArraySpace(np, G, DOUBLE, 3), "strict": strict_space, "bare": Bare,
    "loopback": lambda: LoopbackSpace(G, DOUBLE, 3, None, Crossings()),
    "loopback-full": lambda: FullLoopbackSpace(G, DOUBLE, 3, None, Crossings()),
}  # fmt: skip


@pytest.fixture(params=SPACES)
def vectors(request):
    return Vectors(SPACES[request.param]())


A = np.array([1.5, -2.0, 0.25j])
COLUMNS = A.reshape(3, *(1,) * 6)


def test_every_vector_operation_equals_host_arithmetic(vectors):
    v, x, y, p, q = vectors, spinors(1), spinors(2), spinors(3), spinors(4)

    def host(handle):
        return v.unpack(handle)

    hx = v.pack(x)
    assert np.allclose(host(v.axpy(A, hx, v.pack(y))), y + COLUMNS * x, atol=1e-14)
    assert np.allclose(host(v.copy(hx)), x, atol=0)
    assert np.allclose(host(v.scale(A, v.pack(y))), COLUMNS * y, atol=1e-14)
    assert np.allclose(host(v.scale(0.0, v.pack(y))), 0, atol=0)
    assert np.allclose(host(v.xpay(hx, A, v.pack(y))), x + COLUMNS * y, atol=1e-14)
    new, norm2 = v.axpy_norm2(A, hx, v.pack(y))
    assert np.allclose(norm2, v.norm2(new), rtol=1e-14)
    new_x, new_r, rr = v.cg_update(A, v.pack(p), v.pack(q), v.pack(x), v.pack(y))
    assert np.allclose(host(new_x), x + COLUMNS * p, atol=1e-14)
    assert np.allclose(host(new_r), y - COLUMNS * q, atol=1e-14) and np.allclose(rr, v.norm2(new_r), rtol=1e-14)
    assert np.array_equal(host(hx), x)


def test_a_copy_is_new(vectors):
    v, x = vectors, spinors()
    hx = v.pack(x)
    v.axpy(1.0, hx, v.copy(hx))
    assert np.array_equal(v.unpack(hx), x)


def test_operations_on_fewer_columns(vectors):
    if not vectors.resizable:
        with pytest.raises(ParameterError, match="exactly 3 columns"):
            vectors.narrow(2)
        return
    v, x = vectors.narrow(2), spinors()
    part = vectors.take(vectors.pack(x), [2, 0])
    assert v.unpack(v.zeros()).shape[0] == 2
    assert np.array_equal(v.unpack(v.copy(part)), x[[2, 0]])
    assert np.allclose(v.unpack(v.scale(2.0, v.copy(part))), 2 * x[[2, 0]])
    assert np.allclose(v.unpack(v.xpay(part, 1j, v.copy(part))), (1 + 1j) * x[[2, 0]])
    back = vectors.put(vectors.zeros(), [2, 0], part)
    assert np.array_equal(vectors.unpack(back), x * np.array([1, 0, 1]).reshape(3, *(1,) * 6))


def test_more_columns_than_the_space_was_made_for():
    v = Vectors(ArraySpace(np, G, DOUBLE, 1)).narrow(3)
    assert v.unpack(v.zeros()).shape[0] == 3


@pytest.mark.parametrize("parity", [EVEN, ODD])
def test_a_masked_space_holds_one_parity(parity):
    space = MaskedSpace(ArraySpace(np, G, DOUBLE, 3), parity)
    half = G.split_parity(spinors(), parity, lead=1)
    handle = space.pack(half)
    assert np.array_equal(space.unpack(handle), half)
    assert not space.full.unpack(handle)[:, G.site_parity != parity].any()
    assert np.allclose(space.norm2(handle), (np.abs(half) ** 2).sum(axis=(1, 2, 3, 4, 5, 6)), rtol=1e-13)
    with pytest.raises(FieldShapeError):
        space.pack(spinors())


def test_a_masked_space_needs_even_extents():
    odd = LatticeGeometry(T=3, Z=2, Y=2, X=2)
    with pytest.raises(GeometryError, match="T=3 is odd"):
        MaskedSpace(ArraySpace(np, odd, DOUBLE, 1), EVEN)
    with pytest.raises(GeometryError):
        ArraySpace(np, odd, DOUBLE, 1, EVEN)


@pytest.mark.parametrize("target", ["double", "single", "half", "bf16"])
@pytest.mark.parametrize("source", ["double", "single", "half", "bf16"])
def test_conversion_inside_equals_conversion_by_the_host(source, target):
    here, there = (Vectors(ArraySpace(np, G, as_precision(p), 3)) for p in (target, source))
    x = there.pack(spinors())
    direct, by_host = here.convert_from(x, there), here.pack(there.unpack(x))
    assert np.array_equal(here.unpack(direct), here.unpack(by_host))


def test_conversion_between_backends_goes_by_the_host():
    crossings = Crossings()
    there = Vectors(LoopbackSpace(G, DOUBLE, 3, None, crossings))
    here = Vectors(ArraySpace(np, G, as_precision("single"), 3))
    x = there.pack(spinors())
    got = here.unpack(here.convert_from(x, there))
    assert np.array_equal(got, spinors().astype(np.complex64)) and crossings.unpack == 1


def test_sixteen_bit_storage_needs_numpy():
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(ParameterError, match="numpy only"):
        ArraySpace(strict, G, as_precision("half"))


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=30), st.randoms())
def test_exact_sum_is_correctly_rounded_in_any_order(terms, random):
    z = np.array([terms], complex) * (1 + 0.5j)
    shuffled = z.copy()
    order = list(range(len(terms)))
    random.shuffle(order)
    shuffled[0] = z[0, order]
    total = exact_sum(z)
    assert total == exact_sum(shuffled) and total.real[0] == math.fsum(z[0].real)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_exact_sum_lets_nan_and_infinity_through(bad):
    assert not np.isfinite(exact_sum(np.array([[1.0 + 0j, bad], [1, 2]])))[0]
    assert exact_sum(np.array([[1.0 + 0j, bad], [1, 2]]))[1] == 3

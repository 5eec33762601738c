"""Vector updates in both layouts, and reductions whose bits depend on nothing but the numbers."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lqcd_backends.neuron.nki import blas_specs as bs
from lqcd_backends.neuron.nki import kernel_specs as ks
from lqcd_backends.neuron.nki.exact import NUMBERS, fold, scale_for
from nki_lattice import SIGNS, complex_normal, error, fields, launch, layout_of, reference, term

from lqcd_core.errors import ParameterError
from lqcd_core.precision import PRECISIONS

A = np.array([0.3 + 0.2j, -1 + 0.1j, 2j])
COLUMN = (slice(None), *[None] * 6)
SHAPE = (4, 2, 6, 4)
both = pytest.mark.parametrize("formulation", ("vector", "tensor"))


def two(formulation, dtype="float32", seed=1):
    links, _ = fields(SHAPE)
    rng = np.random.default_rng(seed)
    lay = layout_of(links, formulation, 3, dtype=dtype)
    packed = [lay.pack(complex_normal(rng, 3, *SHAPE, 4, 3)) for _ in range(2)]
    return lay, packed, [lay.unpack(v).astype(complex) for v in packed]


def run(spec, lnc=1, **values):
    return launch(spec, values, lnc=lnc).outputs


@both
@pytest.mark.parametrize("precision", ("single", "bf16", "half"))
def test_updates(formulation, precision):
    p = PRECISIONS[precision]
    lay, (X, Y), (x, y) = two(formulation, p.spinor_storage)
    off = lambda out, want: error(lay.unpack(out), want)  # noqa: E731
    complex_a, real_a = bs.pack_coefficients(lay, A), bs.pack_coefficients(lay, A.real)
    assert (
        off(run(bs.blas(lay, "axpy", real=False), x=X, y=Y, coefficients=complex_a)[0], y + A[COLUMN] * x) < p.tolerance
    )
    assert off(run(bs.blas(lay, "axpy"), x=X, y=Y, coefficients=real_a)[0], y + A.real[COLUMN] * x) < p.tolerance
    assert (
        off(run(bs.blas(lay, "axpy"), x=Y, y=X, coefficients=real_a)[0], x + A.real[COLUMN] * y) < p.tolerance
    )  # xpay
    assert off(run(bs.blas(lay, "scale"), x=X, coefficients=real_a)[0], A.real[COLUMN] * x) < p.tolerance
    flipped = run(bs.blas(lay, "scale", gamma5=True), x=X, coefficients=bs.pack_coefficients(lay, 1.0, gamma5=True))[0]
    assert np.array_equal(lay.unpack(flipped), (SIGNS * x).astype(np.complex64))


@both
def test_cg_update_in_one_launch(formulation):
    lay, (X, Y), (x, y) = two(formulation)
    scale = scale_for(1e3)
    got = run(
        bs.blas(lay, "cg_update"),
        p=X,
        q=Y,
        x=Y,
        r=X,
        coefficients=bs.pack_coefficients(lay, A.real),
        scale=bs.pack_scale(lay, scale),
    )
    assert error(lay.unpack(got[0]), y + A.real[COLUMN] * x) < PRECISIONS["single"].tolerance
    assert error(lay.unpack(got[1]), x - A.real[COLUMN] * y) < PRECISIONS["single"].tolerance
    norm, _ = bs.fold_sums(lay, got[2], scale)
    stored = lay.unpack(got[1]).astype(complex).reshape(3, -1)
    # Rounding of single products only, and those average out.
    assert np.allclose(norm, (abs(stored) ** 2).sum(1), rtol=1e-7)


@both
def test_a_cg_iteration_is_three_launches(formulation):
    """The operator with p^dagger q, the update with the norm, the direction: CG on M^dagger M converges and is true."""
    shape = (4, 2, 2, 2)
    links, psi = fields(shape, 2)
    diagonal = term("scalar", shape)
    lay = layout_of(links, formulation, 2)
    fixed = {"links": lay.pack_links(links), "scalars": lay.pack_scalars(diagonal.scalar)}
    scale = scale_for(1e4)
    powers = bs.pack_scale(lay, scale)
    operator, update, direction = ks.normal(lay, inner=True), bs.blas(lay, "cg_update"), bs.blas(lay, "axpy")
    r = p = lay.pack(psi)
    x = np.zeros_like(r)
    rr = (abs(psi.reshape(2, -1)) ** 2).sum(1)
    start = rr
    for _ in range(10):
        q, sums = run(operator, psi=p, scale=powers, **fixed)
        pq, _ = bs.fold_sums(lay, sums, scale)
        a = rr / pq
        x, r, sums = run(update, p=p, q=q, x=x, r=r, coefficients=bs.pack_coefficients(lay, a), scale=powers)
        new, _ = bs.fold_sums(lay, sums, scale)
        (p,) = run(direction, x=p, y=r, coefficients=bs.pack_coefficients(lay, new / rr))
        rr = new
    assert (rr < 1e-3 * start).all()
    h, a = reference(links, lay.unpack(x).astype(complex), diagonal)
    h, a = reference(links, a - h, diagonal, dagger=True)
    assert abs(error(a - h, psi) / np.sqrt(rr.sum() / start.sum()) - 1) < 1e-3


@both
@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
def test_inner_products_have_the_same_bits_for_every_tiling(formulation, dtype):
    lay, (X, Y), (x, y) = two(formulation, dtype)
    scale = scale_for(200.0)
    values = {"x": X, "y": Y, "scale": bs.pack_scale(lay, scale)}
    seen = []
    for tile in (48, 200, 2048):
        spec = bs.blas(lay, "inner", tile_reals=tile)
        seen.append(bs.fold_sums(lay, run(spec, **values)[0], scale)[0])
    assert all(np.array_equal(seen[0], s) for s in seen)
    want = (x.conj() * y).reshape(3, -1).sum(1)
    lost = 2e-6 if dtype == "float32" else 1e-13  # 16-bit products are exact in float32
    assert (abs(seen[0] - want) <= lost * abs(want)).all()


def test_layouts_agree_to_the_last_bit():
    """The two formulations hold the same reals in another order, on other partitions and in other tiles."""
    scale, out = scale_for(200.0), []
    for formulation in ("vector", "tensor"):
        lay, (X, Y), _ = two(formulation)
        out.append(
            bs.fold_sums(lay, run(bs.blas(lay, "inner"), x=X, y=Y, scale=bs.pack_scale(lay, scale))[0], scale)[0]
        )
    assert np.array_equal(*out)


def parts(array, cut):
    """The sites cut into equal boxes, as cores or ranks hold them."""
    pieces = [array]
    for axis, n in enumerate(cut, start=1):
        pieces = [q for piece in pieces for q in np.split(piece, n, axis=axis)]
    return pieces


@both
@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_sites_shared_by_several_cores_give_the_bits_of_one(formulation, dtype):
    """Limb sums of each part come from a kernel of its own; the fold of all is that of the undivided lattice."""
    shape, scale = (4, 4, 2, 4), scale_for(200.0)
    rng = np.random.default_rng(11)
    x, y = (complex_normal(rng, 2, *shape, 4, 3) for _ in range(2))

    def limbs(x, y):
        lay = layout_of(fields(x.shape[1:5])[0], formulation, 2, dtype=dtype)
        values = {"x": lay.pack(x), "y": lay.pack(y), "scale": bs.pack_scale(lay, scale)}
        return lay, run(bs.blas(lay, "inner"), **values)[0]

    def folded(cut, order=1):
        """(re, im) of each column from limb sums that arrive in this order."""
        columns = [[[], []], [[], []]]
        for a, b in list(zip(parts(x, cut), parts(y, cut), strict=True))[::order]:
            _, sums = limbs(a, b)
            for kind in range(2):
                for k in range(2):
                    part = sums[kind, 0, ..., k] if formulation == "tensor" else np.moveaxis(sums[kind, k], -2, -1)
                    columns[kind][k].append(part.reshape(-1, NUMBERS))
        return np.array([[fold(np.concatenate(c), scale)[0] for c in kind] for kind in columns])

    one = folded((1, 1, 1, 1))
    lay, sums = limbs(x, y)
    whole = bs.fold_sums(lay, sums, scale)[0]
    assert np.array_equal(one, [whole.real, whole.imag]) and np.isfinite(one).all()
    for cut in ((2, 1, 1, 1), (4, 2, 1, 1), (1, 1, 2, 2)):
        for order in (1, -1):
            assert np.array_equal(folded(cut, order), one), (cut, order)
    if dtype == "float32":  # ordinary sums of the same products do depend on the cut: the test would see it
        product = (x.astype(np.complex64).real * y.astype(np.complex64).real).astype(np.float32)
        plain = {
            sum(q.sum(dtype=np.float32) for q in parts(product, c)) for c in ((1, 1, 1, 1), (4, 2, 1, 1), (1, 1, 2, 2))
        }
        assert len(plain) > 1


@both
def test_cancellation_is_exact(formulation):
    """Large terms that cancel leave the small one whole: plain float32 sums lose it."""
    lay, _, _ = two(formulation)
    x = np.zeros((3, *SHAPE, 4, 3), complex)
    y = np.ones_like(x)
    x[:, 0, 0, 0, 0], x[:, -1, -1, -1, -1], x[:, 1, 1, 1, 1, 0, 0] = 2.0**20, -(2.0**20), 2.0**-12
    scale = scale_for(2.0**20)
    got, largest = bs.fold_sums(
        lay, run(bs.blas(lay, "inner"), x=lay.pack(x), y=lay.pack(y), scale=bs.pack_scale(lay, scale))[0], scale
    )
    assert (got == 2.0**-12).all() and (largest == 2.0**20).all()


@both
def test_a_product_out_of_range_is_marked_and_says_its_size(formulation):
    lay, (X, _), (x, _) = two(formulation)
    X = lay.pack(1e4 * x)
    got, largest = bs.fold_sums(lay, run(bs.blas(lay, "norm2"), x=X, scale=bs.pack_scale(lay, 1.0))[0], 1.0)
    assert np.isnan(got).all()
    scale = np.array([scale_for(v) for v in largest])
    got, _ = bs.fold_sums(lay, run(bs.blas(lay, "norm2"), x=X, scale=bs.pack_scale(lay, scale))[0], scale)
    assert np.allclose(got, 1e8 * (abs(x.reshape(3, -1)) ** 2).sum(1), rtol=1e-6)
    bad = X.copy()
    bad.reshape(-1)[5] = np.nan
    got, _ = bs.fold_sums(lay, run(bs.blas(lay, "norm2"), x=bad, scale=bs.pack_scale(lay, scale))[0], scale)
    assert np.isnan(got).any()


def test_scales_are_powers_of_two_that_fit():
    for largest in (1e-30, 0.3, 1.0, 32768.0, 1e20):
        s = scale_for(largest)
        assert (math.log2(s).is_integer() and 2.0**13 <= s * largest <= 2.0**15) or s == 2.0**110
    assert scale_for(0.0) == scale_for(math.inf) == 1.0


def test_unknown_operation():
    lay, _, _ = two("vector")
    with pytest.raises(ParameterError, match="no vector kernel 'axpby'"):
        bs.blas(lay, "axpby")

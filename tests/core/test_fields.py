"""Laws of the host fields: what they store, what they refuse, and that nothing changes type in silence."""

import subprocess
import sys

import numpy as np
import pytest

from lqcd_core import gauge as gg
from lqcd_core.errors import (
    FieldShapeError,
    FieldTypeError,
    GeometryError,
    LQCDError,
    NonUnitaryLinksError,
    ParameterError,
)
from lqcd_core.fields import ColorSpinorField, GaugeField, Propagator, random_gauge_rotation
from lqcd_core.gamma import GAMMA, basis_rotation
from lqcd_core.geometry import EVEN, ODD, LatticeGeometry
from lqcd_core.precision import PRECISIONS, as_precision

GEOMETRY = LatticeGeometry(T=4, Z=2, Y=4, X=6)
HOST_PRECISIONS = ("double", "single", "half", "bf16")
RELATIVE_ROUNDING = {"double": 0.0, "single": 2.0**-24, "half": 2.0**-11, "bf16": 2.0**-8}


# -- geometry ---------------------------------------------------------------------------------------------------------


def test_geometry_shapes():
    g = LatticeGeometry(T=8, Z=4, Y=3, X=2, nc=2)
    assert (g.volume, g.spatial_volume) == (192, 24)
    assert g.gauge_shape == (8, 4, 3, 2, 4, 2, 2) and g.spinor_shape == (8, 4, 3, 2, 4, 2)
    assert g == LatticeGeometry.from_shape((8, 4, 3, 2), nc=2) and hash(g) == hash(
        LatticeGeometry.from_shape((8, 4, 3, 2), 2)
    )


@pytest.mark.parametrize(
    "bad", [dict(T=0), dict(X=-2), dict(Z=2.0), dict(Y=True), dict(nc=1), dict(nc=3.0), dict(T="4")]
)
def test_wrong_extents_are_refused(bad):
    with pytest.raises(GeometryError):
        LatticeGeometry(**{**dict(T=4, Z=4, Y=4, X=4), **bad})
    with pytest.raises(GeometryError, match="four extents"):
        LatticeGeometry.from_shape((4, 4, 4))


@pytest.mark.parametrize("lead", [0, 1])
def test_parity_split_and_join_are_inverse(lead):
    shape = (3,) * lead + GEOMETRY.spinor_shape
    a = np.random.default_rng(1).normal(size=shape)
    even, odd = (GEOMETRY.split_parity(a, p, lead) for p in (EVEN, ODD))
    assert even.shape == (3,) * lead + GEOMETRY.parity_shape(EVEN)
    np.testing.assert_array_equal(GEOMETRY.join_parity(even, odd, lead), a)
    only_even = GEOMETRY.join_parity(even, None, lead)
    mask = (GEOMETRY.site_parity == 0)[..., None, None]
    np.testing.assert_array_equal(only_even, a * mask)


def test_parity_halves_hold_the_sites_of_that_parity():
    coordinates = np.stack(np.indices(GEOMETRY.shape), axis=-1)
    for parity in (EVEN, ODD):
        half = GEOMETRY.split_parity(coordinates, parity)
        assert (half.sum(-1) % 2 == parity).all()
        assert (np.diff(half[..., 3], axis=3) == 2).all()  # x ascends along a row
    np.testing.assert_array_equal(GEOMETRY.site_parity, coordinates.sum(-1) % 2)


def test_join_parity_keeps_the_wider_type():
    even = np.ones(GEOMETRY.parity_shape(EVEN), np.complex64)
    odd = np.full(GEOMETRY.parity_shape(ODD), 1 / 3, np.complex128)
    out = GEOMETRY.join_parity(even, odd)
    np.testing.assert_array_equal(GEOMETRY.split_parity(out, ODD), odd)


def test_odd_extents_have_no_parity():
    g = LatticeGeometry(T=4, Z=3, Y=4, X=4)
    assert "Z=3" in g.why_no_parity() and GEOMETRY.why_no_parity() is None
    with pytest.raises(GeometryError, match="Z=3"):
        g.split_parity(np.zeros(g.spinor_shape), EVEN)
    with pytest.raises(GeometryError, match="Z=3"):
        ColorSpinorField(g, np.zeros((4, 3, 4, 2, 4, 3), complex), parity=EVEN)


# -- storage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOST_PRECISIONS)
def test_storage_is_what_the_precision_says(name):
    psi = ColorSpinorField.gaussian(GEOMETRY, seed=1, precision=name)
    exact = ColorSpinorField.gaussian(GEOMETRY, seed=1).array
    p = PRECISIONS[name]
    assert psi.precision == p and psi.shape == GEOMETRY.spinor_shape
    assert psi.nbytes == GEOMETRY.volume * 12 * 2 * p.bytes_per_real
    assert psi.array.dtype == p.complex_dtype
    assert psi.storage.shape == (*psi.shape, 2) if p.is_split else psi.shape
    for part in ("real", "imag"):
        a, b = getattr(psi.array, part), getattr(exact, part)
        tiny = 1e-6 if name == "half" else 0  # subnormal numbers of fp16
        assert (np.abs(a - b) <= RELATIVE_ROUNDING[name] * (1 + 1e-6) * np.abs(b) + tiny).all()


def test_bf16_is_bfloat16():
    import ml_dtypes

    psi = ColorSpinorField.gaussian(GEOMETRY, seed=1, precision="bf16")
    assert psi.storage.dtype == ml_dtypes.bfloat16
    # 8 bits of significand, the exponents of float32: 1e30 survives (fp16 would overflow), 1 + 2^-9 does not
    a = np.zeros(GEOMETRY.spinor_shape, np.complex64)
    a[0, 0, 0, 0, 0] = [1e30, 1 + 2**-9, 1 + 2**-7 + 1e30j]
    stored = ColorSpinorField(GEOMETRY, a, "bf16").array[0, 0, 0, 0, 0]
    assert stored[0].real == pytest.approx(1e30, rel=2**-8)
    assert stored[1] == 1 and stored[2].real == 1 + 2**-7
    # the low 16 bits of each float32 are zero: that is what bfloat16 means
    assert (psi.array.view(np.uint32) & 0xFFFF == 0).all()


@pytest.mark.parametrize("name, step", [("half", 2.0**-10), ("bf16", 2.0**-7)])
def test_rounding_is_to_nearest_even_and_symmetric(name, step):
    a = np.zeros(GEOMETRY.spinor_shape, complex)
    a[0, 0, 0, 0, 0] = [1 + step / 2, 1 + 3 * step / 2, -(1 + step / 2)]
    stored = ColorSpinorField(GEOMETRY, a, name).array[0, 0, 0, 0, 0]
    np.testing.assert_array_equal(stored, [1, 1 + 2 * step, -1])
    psi = ColorSpinorField.gaussian(GEOMETRY, seed=2)
    np.testing.assert_array_equal((-psi).to(name).array, -(psi.to(name).array))


def test_fixed16_is_no_host_field():
    with pytest.raises(ParameterError, match="half"):
        ColorSpinorField.zeros(GEOMETRY).to("fixed16")


@pytest.mark.parametrize("source", HOST_PRECISIONS)
@pytest.mark.parametrize("target", HOST_PRECISIONS)
def test_conversions_keep_what_fits(source, target):
    u = GaugeField.random(GEOMETRY, seed=1, precision=source)
    v = u.to(target)
    assert v.precision.name == target and v.shape == u.shape
    again = v.to(source)
    limit = 2 * max(RELATIVE_ROUNDING[source], RELATIVE_ROUNDING[target])
    assert np.abs(again.array - u.array).max() <= limit + 1e-6 * (source != target)
    if source == target:
        np.testing.assert_array_equal(again.array, u.array)


def test_to_takes_names_and_dtypes():
    u = GaugeField.cold(GEOMETRY)
    for argument in ("single", np.complex64, np.dtype("complex64"), np.float32, np.dtype(">c8"), PRECISIONS["single"]):
        assert u.to(argument).precision.name == "single"
        assert u.to(dtype=argument).precision.name == "single"
    for call in (lambda: u.to(), lambda: u.to("single", dtype=np.complex64)):
        with pytest.raises(ParameterError, match="one of"):
            call()
    with pytest.raises(ParameterError, match="did you mean 'double'"):
        u.to("duble")
    with pytest.raises(ParameterError):
        as_precision(np.int32)


def test_torch_tensor_shares_memory():
    torch = pytest.importorskip("torch")
    u = GaugeField.random(GEOMETRY, seed=1)
    assert u.tensor.dtype == torch.complex128 and tuple(u.tensor.shape) == u.shape
    u.tensor[0, 0, 0, 0, 0, 0, 0] = 7
    assert u.array[0, 0, 0, 0, 0, 0, 0] == 7
    assert u.to(dtype=torch.complex64).array.dtype == np.complex64
    assert u.to(dtype=torch.bfloat16).precision.name == "bf16"
    psi = ColorSpinorField.gaussian(GEOMETRY, seed=1, precision="single")
    psi.array[0, 0, 0, 0, 0, 0] = 3
    assert psi.tensor[0, 0, 0, 0, 0, 0] == 3
    half = psi.to("half")
    assert half.tensor.dtype == torch.complex64
    # a lazily conjugated tensor that wants a gradient is taken at its value
    t = torch.tensor(psi.array, requires_grad=True).conj()
    np.testing.assert_array_equal(ColorSpinorField(GEOMETRY, t).array, psi.array.conj())


def test_fields_work_without_importing_torch():
    code = (
        "import sys; from lqcd_core.fields import GaugeField; from lqcd_core.geometry import LatticeGeometry as L\n"
        "from lqcd_core.gauge import plaquette, clover_term, heatbath_sweep\n"
        "U = GaugeField.random(L(T=2, Z=2, Y=2, X=2), seed=1); plaquette(U), clover_term(U, 1.0), U.to('single')\n"
        "heatbath_sweep(U, 6.0, 1, 0)\n"
        "heavy = {'torch', 'h5py', 'matplotlib', 'scipy', 'click', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "float64", "float32", "bool", "object"])
def test_what_is_not_complex_is_refused(dtype):
    with pytest.raises(FieldTypeError, match="must be complex"):
        ColorSpinorField(GEOMETRY, np.zeros(GEOMETRY.spinor_shape, dtype))
    with pytest.raises(FieldTypeError, match="must be complex"):
        GaugeField(GEOMETRY, np.zeros(GEOMETRY.gauge_shape, dtype))
    with pytest.raises(FieldTypeError):
        Propagator(GEOMETRY, np.zeros((*GEOMETRY.shape, 4, 4, 3, 3), dtype))


@pytest.mark.parametrize(
    "shape",
    [
        (4, 2, 4, 6, 3, 4),
        (4, 2, 4, 6, 12),
        (6, 4, 2, 4, 4, 3),
        (1, 1, 1, 1, 4, 3),
        (4, 3),
        (),
        (2, 1, 4, 2, 4, 6, 4, 3),
    ],
)
def test_wrong_spinor_shapes_are_refused_and_never_broadcast(shape):
    with pytest.raises(FieldShapeError, match="needs"):
        ColorSpinorField(GEOMETRY, np.zeros(shape, complex))


def test_an_empty_batch_is_refused():
    with pytest.raises(FieldShapeError, match="empty batch"):
        ColorSpinorField(GEOMETRY, np.zeros((0, *GEOMETRY.spinor_shape), complex))
    for make in (ColorSpinorField.zeros, lambda g, n_rhs: ColorSpinorField.gaussian(g, 1, n_rhs)):
        for bad in (0, -1, 1.5, True):
            with pytest.raises(ParameterError, match="n_rhs"):
                make(GEOMETRY, n_rhs=bad)


@pytest.mark.parametrize(
    "shape", [(4, 2, 4, 6, 4, 2, 2), (4, 2, 4, 6, 3, 3), (6, 4, 2, 4, 4, 3, 3), (4, 4, 2, 4, 6, 3, 3)]
)
def test_wrong_link_shapes_are_refused(shape):
    with pytest.raises(FieldShapeError, match="needs"):
        GaugeField(GEOMETRY, np.zeros(shape, complex))


def test_wrong_parities_are_refused():
    with pytest.raises(ParameterError, match="parity"):
        ColorSpinorField(GEOMETRY, np.zeros(GEOMETRY.parity_shape(EVEN), complex), parity=2)
    with pytest.raises(FieldShapeError):
        ColorSpinorField(GEOMETRY, np.zeros(GEOMETRY.spinor_shape, complex), parity=EVEN)


def test_point_source_outside_is_refused():
    for bad in (dict(t=4), dict(x=-1), dict(spin=4), dict(color=3), dict(t=0.5)):
        with pytest.raises(ParameterError, match=next(iter(bad))):
            ColorSpinorField.point_source(GEOMETRY, **bad)


# -- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nc", [2, 3, 4])
def test_random_links_are_in_su_n(nc):
    g = LatticeGeometry(T=2, Z=3, Y=2, X=3, nc=nc)
    u = GaugeField.random(g, seed=1)
    assert u.unitarity() < 1e-13
    np.testing.assert_allclose(np.linalg.det(u.array), 1, atol=1e-13)
    u.check_unitary()
    assert u.origin["seed"] == 1


@pytest.mark.parametrize("nc", [2, 3, 4])
def test_unitarize_reaches_su_n_and_is_the_nearest(nc):
    g = LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=nc)
    u = GaugeField.random(g, seed=1)
    noise = np.random.default_rng(1).normal(size=(2, *g.gauge_shape)) * 0.05
    rough = GaugeField(g, u.array + noise[0] + 1j * noise[1])
    assert rough.unitarity() > 0.05
    smooth = rough.unitarize()
    assert smooth.unitarity() < 1e-13
    np.testing.assert_allclose(np.linalg.det(smooth.array), 1, atol=1e-13)
    np.testing.assert_allclose(u.unitarize().array, u.array, atol=1e-13)
    np.testing.assert_allclose(smooth.unitarize().array, smooth.array, atol=1e-13)
    # a phase times SU(N) loses the phase; a positive factor is forgotten
    np.testing.assert_allclose(GaugeField(g, 1.7 * np.exp(0.2j) * u.array).unitarize().array, u.array, atol=1e-13)
    # up to the phase it is the polar factor: V^dagger rough is a positive matrix times exp(i phi)
    m = smooth.array.conj().swapaxes(-1, -2) @ rough.array
    phase = np.exp(-1j * np.angle(np.linalg.det(m)) / nc)[..., None, None]
    m = m * phase
    np.testing.assert_allclose(m, m.conj().swapaxes(-1, -2), atol=1e-12)
    # and it is gauge covariant
    rotation = random_gauge_rotation(g, 3)
    turned = rough.gauge_transform(rotation).unitarize()
    np.testing.assert_allclose(turned.array, smooth.gauge_transform(rotation).array, atol=1e-12)


def test_determinant_counts_as_much_as_unitarity():
    # a random phase makes a U(3) field: unitary, but not SU(3)
    u = GaugeField.random(GEOMETRY, seed=1)
    off = GaugeField(GEOMETRY, u.array * np.exp(0.01j))
    assert off.unitarity() == pytest.approx(2 * np.sin(0.015), rel=1e-6)
    with pytest.raises(NonUnitaryLinksError, match="unitarize"):
        off.check_unitary()
    off.check_unitary(tolerance=0.1)


def test_damaged_links_are_found():
    a = GaugeField.random(GEOMETRY, seed=1).array.copy()
    a[1, 1, 1, 1, 1, 1, 1] = np.nan
    damaged = GaugeField(GEOMETRY, a)
    assert np.isnan(damaged.unitarity())
    with pytest.raises(NonUnitaryLinksError, match="1 links are not finite"):
        damaged.check_unitary()
    with pytest.raises(NonUnitaryLinksError, match="not finite"):
        damaged.unitarize()
    with pytest.raises(NonUnitaryLinksError, match="singular"):
        GaugeField(GEOMETRY, np.zeros(GEOMETRY.gauge_shape, complex)).unitarize()


@pytest.mark.parametrize("name", HOST_PRECISIONS)
def test_default_unitarity_tolerance_fits_the_storage(name):
    GaugeField.random(GEOMETRY, seed=1, precision=name).check_unitary()


def test_gauge_transformation_is_a_group_action():
    u = GaugeField.random(GEOMETRY, seed=1)
    g, h = random_gauge_rotation(GEOMETRY, 2), random_gauge_rotation(GEOMETRY, 3)
    both = u.gauge_transform(h).gauge_transform(g)
    np.testing.assert_allclose(u.gauge_transform(g @ h).array, both.array, atol=1e-13)
    back = u.gauge_transform(g).gauge_transform(g.conj().swapaxes(-1, -2))
    np.testing.assert_allclose(back.array, u.array, atol=1e-13)
    assert gg.plaquette(u.gauge_transform(g)) == pytest.approx(gg.plaquette(u), abs=1e-14)
    with pytest.raises(FieldShapeError):
        u.gauge_transform(g[:2])


def test_spinor_gauge_transformation_is_covariant_with_the_links():
    # psi^dagger(x) U_mu(x) psi(x + mu) is invariant
    u, psi, g = (
        GaugeField.random(GEOMETRY, 1),
        ColorSpinorField.gaussian(GEOMETRY, 2),
        random_gauge_rotation(GEOMETRY, 3),
    )

    def bilinear(u, psi, mu):
        return np.einsum("...sa,...ab,...sb->...", psi.array.conj(), u.array[..., mu, :, :], np.roll(psi.array, -1, mu))

    for mu in range(4):
        turned = bilinear(u.gauge_transform(g), psi.gauge_transform(g), mu)
        np.testing.assert_allclose(turned, bilinear(u, psi, mu), atol=1e-12)
    assert psi.gauge_transform(g).norm2() == pytest.approx(psi.norm2(), rel=1e-13)


@pytest.mark.parametrize("x", [2, 6])
def test_gauge_transformation_of_a_field_on_one_parity(x):
    geometry = LatticeGeometry(T=4, Z=2, Y=4, X=x)  # X = 2 leaves one site a row, which would broadcast
    psi, g = ColorSpinorField.gaussian(geometry, 2, n_rhs=2), random_gauge_rotation(geometry, 3)
    for parity in (EVEN, ODD):
        half = ColorSpinorField(geometry, geometry.split_parity(psi.array, parity, lead=1), parity=parity)
        want = geometry.split_parity(psi.gauge_transform(g).array, parity, lead=1)
        np.testing.assert_allclose(half.gauge_transform(g).array, want, atol=1e-14)


def test_copies_and_conversions_share_nothing():
    u = GaugeField.random(GEOMETRY, seed=1)
    copy = u.copy()
    copy.array[...] = 0
    copy.origin["seed"] = 2
    assert np.abs(u.array).max() > 0 and u.origin["seed"] == 1
    assert u.digest() == GaugeField.random(GEOMETRY, seed=1).digest() != copy.digest()
    assert GaugeField.random(GEOMETRY, 1, precision="bf16").digest() != u.digest()


# -- spinors ----------------------------------------------------------------------------------------------------------


def test_point_source_is_one_at_one_place():
    s = ColorSpinorField.point_source(GEOMETRY, t=1, z=1, y=2, x=5, spin=2, color=1)
    assert s.array[1, 1, 2, 5, 2, 1] == 1 and np.count_nonzero(s.array) == 1 and s.norm2() == 1.0


@pytest.mark.parametrize("precision", ["double", "single"])
def test_gaussian_components_have_unit_mean_square(precision):
    psi = ColorSpinorField.gaussian(LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=3, precision=precision)
    n = psi.array.size
    assert abs(psi.norm2() / n - 1) < 4 / np.sqrt(n)
    for part in (psi.array.real, psi.array.imag):
        assert abs(part.var() - 0.5) < 4 * 0.5 * np.sqrt(2 / n)
        assert abs(part.mean()) < 4 * np.sqrt(0.5 / n)
    assert abs(np.mean(psi.array**2)) < 4 * np.sqrt(2 / n)  # real and imaginary parts independent
    # real double numbers, not floats in a wide coat
    wide = ColorSpinorField.gaussian(GEOMETRY, seed=3).array
    assert (wide != wide.astype(np.complex64)).mean() > 0.9


def test_gaussian_columns_do_not_depend_on_the_batch():
    one = ColorSpinorField.gaussian(GEOMETRY, seed=3)
    four = ColorSpinorField.gaussian(GEOMETRY, seed=3, n_rhs=4)
    two = ColorSpinorField.gaussian(GEOMETRY, seed=3, n_rhs=2)
    np.testing.assert_array_equal(four.array[0], one.array)
    np.testing.assert_array_equal(four.array[:2], two.array)
    overlap = four.array[0].ravel().conj() @ four.array[1].ravel() / one.array.size
    assert abs(overlap) < 4 / np.sqrt(one.array.size)


@pytest.mark.parametrize("name", HOST_PRECISIONS)
def test_arithmetic_keeps_the_precision(name):
    a, b = (ColorSpinorField.gaussian(GEOMETRY, seed=s, precision=name) for s in (1, 2))
    scalars = (2, 2.0, np.float64(2.0), np.float32(2.0), 2 + 0j, np.complex128(2))
    results = [a + b, a - b, -a, a / 2.0, a / np.float64(2), *(s * a for s in scalars), *(a * s for s in scalars)]
    for r in results:
        assert isinstance(r, ColorSpinorField) and r.precision.name == name and r.array.dtype == a.array.dtype
    for r in results[5:]:
        np.testing.assert_array_equal(r.array, 2 * a.array)  # a factor of two is exact
    np.testing.assert_array_equal((a - a).array, 0)
    np.testing.assert_array_equal((a / 2).array, ColorSpinorField(GEOMETRY, 0.5 * a.array, name).array)


def test_arithmetic_is_that_of_arrays():
    a, b = (ColorSpinorField.gaussian(GEOMETRY, seed=s) for s in (1, 2))
    np.testing.assert_array_equal((a + (1 - 2j) * b).array, a.array + (1 - 2j) * b.array)
    before = a.array.copy()
    a + b, a * 3, -a
    np.testing.assert_array_equal(a.array, before)


def test_mismatched_fields_do_not_mix():
    a = ColorSpinorField.gaussian(GEOMETRY, 1)
    batch = ColorSpinorField.gaussian(GEOMETRY, 1, n_rhs=1)
    elsewhere = ColorSpinorField.gaussian(LatticeGeometry(T=6, Z=4, Y=2, X=4), 1)
    even, odd = (ColorSpinorField(GEOMETRY, GEOMETRY.split_parity(a.array, p), parity=p) for p in (EVEN, ODD))
    for x, y in ((a, batch), (a, elsewhere), (even, odd), (a, even)):
        for op in (lambda x, y: x + y, lambda x, y: x - y):
            with pytest.raises(FieldShapeError):
                op(x, y)
    for x, y in ((a, elsewhere), (even, odd), (a, even)):
        with pytest.raises(FieldShapeError):
            x.inner(y)
    with pytest.raises(FieldTypeError, match="convert"):
        a + a.to("single")
    for bad in (lambda: a + 1, lambda: a * np.ones(3), lambda: np.ones(3) * a, lambda: a * a, lambda: a + a.array):
        with pytest.raises(TypeError):
            bad()


def test_what_is_no_field_is_refused_with_its_name():
    a = ColorSpinorField.gaussian(GEOMETRY, 1)
    for bad in (
        lambda: a.array + a,
        lambda: a.array - a,
        lambda: sum([a, a]),
        lambda: a.inner([1]),
        lambda: a.inner(a.array),
    ):
        with pytest.raises(FieldTypeError, match=r"ndarray|int|list"):
            bad()
    for make in (
        lambda g: GaugeField.cold(g), lambda g: GaugeField.random(g, 1), lambda g: GaugeField(g, a.array),
        lambda g: ColorSpinorField.zeros(g), lambda g: ColorSpinorField.gaussian(g, 1),
        lambda g: ColorSpinorField.point_source(g), lambda g: ColorSpinorField(g, a.array),
    ):  # fmt: skip
        with pytest.raises(GeometryError, match="LatticeGeometry"):
            make((4, 4, 4, 4))


def test_inner_products():
    a, b = (ColorSpinorField.gaussian(GEOMETRY, s, n_rhs=3) for s in (1, 2))
    want = [np.vdot(x, y) for x, y in zip(a.array, b.array)]
    np.testing.assert_allclose(a.inner(b), want, rtol=1e-13)
    np.testing.assert_allclose(b.inner(a), np.conj(want), rtol=1e-13)
    np.testing.assert_allclose(a.norm2(), [np.vdot(x, x).real for x in a.array], rtol=1e-13)
    one = ColorSpinorField(GEOMETRY, a.array[0])
    assert type(one.inner(one)) is complex and type(one.norm2()) is float and type(one.norm()) is float
    assert one.norm() == pytest.approx(np.linalg.norm(one.array), rel=1e-13)


def test_norms_of_single_fields_are_summed_in_double():
    g = LatticeGeometry(T=8, Z=8, Y=8, X=8)
    value = np.float32(0.1)
    psi = ColorSpinorField(g, np.full(g.spinor_shape, value, np.complex64))
    assert psi.norm2() == pytest.approx(g.volume * 12 * float(value) ** 2, rel=1e-13)


# -- propagators ------------------------------------------------------------------------------------------------------


def random_propagator():
    columns = ColorSpinorField.gaussian(GEOMETRY, 1, n_rhs=12).array
    return columns, Propagator.from_columns(GEOMETRY, columns)


def test_propagator_columns_round_trip():
    columns, s = random_propagator()
    np.testing.assert_array_equal(s.columns(), columns)
    # column = source spin * Nc + source colour
    np.testing.assert_array_equal(s.array[:, :, :, :, :, 2, :, 1], columns[2 * 3 + 1])
    for bad in (columns[:11], columns[None], columns[..., :2]):
        with pytest.raises(FieldShapeError):
            Propagator.from_columns(GEOMETRY, bad)
    with pytest.raises(FieldShapeError, match="propagator"):
        Propagator(GEOMETRY, s.array[:2])


@pytest.mark.parametrize("basis", ["chiral", "ukqcd", "dirac-pauli"])
def test_propagator_basis_rotation(basis):
    _, s = random_propagator()
    r = s.to_basis(basis)
    assert r.basis == basis
    np.testing.assert_allclose(r.to_basis("degrand-rossi").array, s.array, atol=1e-13)
    # spin traces with gamma matrices of the same basis do not change
    rotation = basis_rotation("degrand-rossi", basis)
    for g in GAMMA:
        want = np.einsum("ij,...jiab->...ab", g, s.array)
        found = np.einsum("ij,...jiab->...ab", rotation @ g @ rotation.conj().T, r.array)
        np.testing.assert_allclose(found, want, atol=1e-12)
    with pytest.raises(LQCDError, match="unknown"):
        s.to_basis("weyl")

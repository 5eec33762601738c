"""lqcd-neuron's surface: what its users call works here, and what it got wrong is a law here.

Laws that belong to one module (solvers, files, gauge) are tested there at length; those that cut across stand here.
"""

import math
from itertools import product

import numpy as np
import pytest

import lqcd_core as lqcd
from lqcd_core import errors
from lqcd_core.core import ColorSpinorField, GaugeField, LatticeGeometry
from lqcd_core.dirac import CloverWilsonDirac, TwistedMassDirac, WilsonDirac
from lqcd_core.gamma import GAMMA
from lqcd_core.observables import plaquette, polyakov_loop, topological_charge, wilson_action
from lqcd_core.precision import PRECISIONS
from lqcd_core.solvers import BiCGStab, ConjugateGradient

TOL = PRECISIONS["double"].tolerance
G = LatticeGeometry(T=4, Z=2, Y=2, X=4)


def relative(a, b):
    return float(np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b)))


@pytest.fixture(scope="module")
def U():
    return GaugeField.random(G, seed=42)


@pytest.fixture(scope="module")
def psi():
    return ColorSpinorField.gaussian(G, seed=7)


def su2_block(angle):
    """exp(i angle sigma_3) in the first two colours."""
    return np.diag([np.exp(1j * angle), np.exp(-1j * angle), 1.0])


# -- the surface ------------------------------------------------------------------------------------------------------


def test_the_script_of_the_ancestor_runs_with_the_import_changed():
    torch = pytest.importorskip("torch")
    geom = LatticeGeometry(T=4, Z=4, Y=4, X=4)
    U = GaugeField.random(geom, seed=42)
    assert U.tensor.dtype == torch.complex128 and tuple(U.tensor.shape) == geom.gauge_shape
    assert plaquette(U) == pytest.approx(float(plaquette(U.tensor)), rel=1e-13)
    assert wilson_action(U, beta=6.0) == pytest.approx(6.0 * 6 * geom.volume * (1 - plaquette(U)), rel=1e-12)
    assert isinstance(polyakov_loop(U), complex) and isinstance(topological_charge(U), float)
    b = ColorSpinorField.point_source(geom, t=0, z=0, y=0, x=0, spin=0, color=0)
    D = WilsonDirac(mass=0.5)
    rhs = D.dagger(b.tensor, U.tensor)
    x, info = ConjugateGradient(tol=1e-8, maxiter=500, verbose=True).solve(lambda v: D.normal(v, U.tensor), rhs)
    assert info.converged and isinstance(x, torch.Tensor)
    residual = float((D.normal(x, U.tensor) - rhs).norm() / rhs.norm())
    assert residual <= 1e-8 and info.final_residual == pytest.approx(residual, rel=1e-3)
    y, info = BiCGStab(tol=1e-8, maxiter=500).solve(lambda v: D.normal(v, U.tensor), rhs)
    assert info.converged and float((y - x).norm() / x.norm()) < 1e-6
    clover = CloverWilsonDirac(mass=0.1, csw=1.0)
    clover.set_gauge(U.tensor)
    assert torch.equal(clover(b.tensor), clover(b.tensor, U.tensor))


def test_tensor_is_a_view_that_shares_memory(U):
    torch = pytest.importorskip("torch")
    copy = U.copy()
    copy.tensor[0, 0, 0, 0, 0] = 2 * torch.eye(3, dtype=torch.complex128)
    assert np.array_equal(copy.array[0, 0, 0, 0, 0], 2 * np.eye(3))


def test_to_takes_a_precision_or_a_dtype_of_either_library(U):
    torch = pytest.importorskip("torch")
    for same in (U.to(dtype=torch.complex64), U.to(dtype=np.complex64), U.to("single")):
        assert same.array.dtype == np.complex64 and same.precision.name == "single"


@pytest.mark.parametrize("operator", [WilsonDirac(mass=0.1), CloverWilsonDirac(mass=0.1, csw=1.0)])
@pytest.mark.parametrize("call", ["__call__", "dagger", "normal"])
def test_the_spinor_decides_what_comes_back(operator, call, U, psi):
    """Field, NumPy array or torch tensor, in the spinor's precision, whatever the links are."""
    torch = pytest.importorskip("torch")
    apply = getattr(operator, call)
    want = apply(psi, U).array
    for spinor, kind in ((psi, ColorSpinorField), (psi.array, np.ndarray), (psi.tensor, torch.Tensor)):
        for links in (U, U.array, U.tensor):
            got = apply(spinor, links)
            assert type(got) is kind
            assert relative(np.asarray(got), want) < 2 * TOL
    assert apply(psi.to("single"), U).precision.name == "single"
    assert apply(psi, U.to("single")).precision.name == "double"


@pytest.mark.parametrize("wrong", [None, [[1.0]], "links"])
def test_what_is_no_array_is_refused_and_the_order_is_said(wrong, U, psi):
    with pytest.raises(errors.FieldTypeError, match="order"):
        WilsonDirac(mass=0.1)(wrong, U)
    with pytest.raises(errors.FieldShapeError):
        WilsonDirac(mass=0.1)(U, psi)
    with pytest.raises(errors.ParameterError, match="set_gauge"):
        WilsonDirac(mass=0.1)(psi)
    for observable in (plaquette, polyakov_loop, topological_charge):
        with pytest.raises(errors.FieldTypeError):
            observable(wrong)
        with pytest.raises(errors.FieldShapeError):
            observable(psi)


def test_dagger_and_normal_are_what_they_say(U, psi):
    phi = ColorSpinorField.gaussian(G, seed=8)
    for D in (WilsonDirac(mass=0.1), CloverWilsonDirac(mass=0.1, csw=1.0), TwistedMassDirac(mass=0.1, mu=0.3)):
        assert phi.inner(D(psi, U)) == pytest.approx(D.dagger(phi, U).inner(psi), rel=1e-12)
        assert relative(D.normal(psi, U).array, D.dagger(D(psi, U), U).array) < TOL


# -- what the ancestor gets wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("nc", [2, 3, 4])
def test_random_links_and_unitarized_links_have_determinant_one(nc):
    geometry = LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=nc)
    U = GaugeField.random(geometry, seed=1)
    assert np.abs(np.linalg.det(U.array) - 1).max() < 1e-13
    noise = np.random.default_rng(0).normal(size=(*geometry.gauge_shape, 2)) @ np.array([1, 1j])
    V = GaugeField(geometry, U.array * np.exp(0.3j) + 0.05 * noise).unitarize()
    assert np.abs(np.linalg.det(V.array) - 1).max() < 1e-13 and V.unitarity() < 1e-13


def test_bf16_is_bfloat16_and_every_operator_runs_in_it(U, psi):
    import ml_dtypes

    links, spinor = U.to("bf16"), psi.to("bf16")
    assert links.storage.dtype == ml_dtypes.bfloat16 and links.storage.dtype != np.float16
    # 1 + 2^-8 is between two bfloat16 numbers and exact in fp16; 1e38 overflows in fp16
    stored = ColorSpinorField(G, np.full(G.spinor_shape, (1 + 2**-8) + 1e38j), "bf16").array
    assert np.all(stored.real == 1.0) and np.all(np.isfinite(stored.imag))
    for D in (WilsonDirac(mass=0.1), CloverWilsonDirac(mass=0.1, csw=1.0), TwistedMassDirac(mass=0.1, mu=0.3)):
        exact = D.bind(links.array.astype(complex), check_links=False)(spinor.array.astype(complex))
        assert relative(D(spinor, links).array, exact) < PRECISIONS["bf16"].tolerance
        assert relative(D.normal(spinor, links).array, D.normal(psi, U).array) < 10 * PRECISIONS["bf16"].tolerance


def test_field_strength_and_charge_are_gauge_covariant(U):
    g = lqcd.random_gauge_rotation(G, seed=3)
    V = U.gauge_transform(g)
    assert topological_charge(V) == pytest.approx(topological_charge(U), abs=1e-12)
    f, h = (lqcd.gauge.field_strength(W, "x", "t") for W in (U, V))
    assert relative(h, g @ f @ g.conj().swapaxes(-1, -2)) < TOL


def instanton_like(geometry):
    """Constant field strength in the (x, t) and (y, z) planes, colour direction sigma_3: Q = 2 exactly.

    With phase angles F_xt = 2 pi / (X T) and F_yz = 2 pi / (Y Z) in the Cartan direction diag(1, -1, 0) the continuum
    charge is (1 / 4 pi^2) * tr(tau^2) * F_xt * F_yz * V = 2.
    """
    links = np.zeros(geometry.gauge_shape, complex)
    links[...] = np.eye(3)
    T, Z, Y, X = geometry.shape
    for mu_axis, nu_axis, extent_mu, extent_nu in ((3, 0, X, T), (2, 1, Y, Z)):  # (x, t) and (y, z)
        omega = 2 * math.pi / (extent_mu * extent_nu)
        for site in product(*map(range, geometry.shape)):
            links[(*site, nu_axis)] = su2_block(omega * site[mu_axis])
            if site[mu_axis] == extent_mu - 1:  # the twist that closes the torus
                links[(*site, mu_axis)] = su2_block(-omega * extent_mu * site[nu_axis])
    return GaugeField(geometry, links)


def test_constant_field_configuration_has_charge_two():
    geometry = LatticeGeometry(T=6, Z=6, Y=6, X=6)
    U = instanton_like(geometry)
    omega = 2 * math.pi / 36
    for plane in (("x", "t"), ("y", "z")):  # F is known exactly: i sin(omega) tau_3 at every site
        f = lqcd.gauge.field_strength(U, *plane)
        assert np.abs(f - 1j * math.sin(omega) * np.diag([1, -1, 0])).max() < 1e-13
    exact = 2 * (math.sin(omega) / omega) ** 2
    # eps_{xtyz} = +1 (an even permutation of xyzt)
    assert topological_charge(U) == pytest.approx(exact, rel=1e-12)
    assert exact == pytest.approx(2.0, abs=0.03)


def test_clover_term_on_the_constant_field_has_its_exact_size():
    """There M_clover - M_wilson = -(csw / 2) sum_{mu<nu} gamma_mu gamma_nu F exactly, F = i sin(omega) tau_3."""
    geometry = LatticeGeometry(T=6, Z=6, Y=6, X=6)
    U, csw = instanton_like(geometry), 1.7
    psi = ColorSpinorField.gaussian(geometry, seed=5)
    tau = 1j * math.sin(2 * math.pi / 36) * np.diag([1.0, -1.0, 0.0])
    t, z, y, x = GAMMA
    spin = x @ t + y @ z
    want = -(csw / 2) * np.einsum("ij,ab,...jb->...ia", spin, tau, psi.array)
    got = CloverWilsonDirac(mass=0.1, csw=csw)(psi, U).array - WilsonDirac(mass=0.1)(psi, U).array
    assert relative(got, want) < 1e-12


def test_clover_without_csw_is_wilson_with_the_mass(U, psi):
    for mass in (0.1, -0.3):
        assert relative(CloverWilsonDirac(mass=mass, csw=0.0)(psi, U).array, WilsonDirac(mass=mass)(psi, U).array) < TOL
    heavier = CloverWilsonDirac(mass=0.6, csw=1.0)(psi, U).array - CloverWilsonDirac(mass=0.1, csw=1.0)(psi, U).array
    assert relative(heavier, 0.5 * psi.array) < 10 * TOL


def test_clover_called_with_another_gauge_field_uses_that_field_alone(U, psi):
    V = GaugeField.random(G, seed=43)
    D = CloverWilsonDirac(mass=0.1, csw=1.0).set_gauge(U)
    fresh = CloverWilsonDirac(mass=0.1, csw=1.0).bind(V)(psi)
    assert relative(D(psi, V).array, fresh.array) < TOL
    assert relative(D(psi).array, CloverWilsonDirac(mass=0.1, csw=1.0).bind(U)(psi).array) < TOL


def test_links_changed_in_place_are_never_mixed_with_an_old_bind(psi):
    W = GaugeField.random(G, seed=44)
    D = CloverWilsonDirac(mass=0.1, csw=1.0).set_gauge(W)
    before = D(psi).array
    M = D.bind(W)
    W.storage[...] = GaugeField.random(G, seed=45).storage
    after = D(psi).array
    assert relative(after, CloverWilsonDirac(mass=0.1, csw=1.0)(psi, GaugeField.random(G, seed=45)).array) < TOL
    assert relative(after, before) > 0.1
    with pytest.raises(errors.StaleGaugeError, match="bind"):
        M.rebind(precision="single")


@pytest.mark.parametrize("extents", [(3, 2, 2, 2), (2, 3, 2, 2), (2, 2, 5, 2), (2, 2, 2, 3)])
def test_odd_extents_refuse_even_odd_and_the_full_operator_works(extents):
    geometry = LatticeGeometry.from_shape(extents)
    U, psi = GaugeField.random(geometry, seed=1), ColorSpinorField.gaussian(geometry, seed=2)
    M = WilsonDirac(mass=0.1).bind(U)
    assert psi.inner(M.dagger(M(psi))).real == pytest.approx(M(psi).norm2(), rel=1e-12)
    with pytest.raises(errors.GeometryError, match="odd"):
        M.even_odd()
    with pytest.raises(errors.GeometryError, match="odd"):
        ColorSpinorField(geometry, np.zeros((1, 1, 1, 1, 4, 3), complex), parity=0)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1, 4, 3),  # would broadcast over sites
        (4, 2, 2, 4, 1, 3),  # over spin
        (4, 2, 2, 4, 4, 1),  # over colour
        (4, 3),
        (4, 2, 2, 4, 4, 2),  # another Nc
        (0, 4, 2, 2, 4, 4, 3),  # an empty batch
        (2, 1, 4, 2, 2, 4, 4, 3),
    ],
)
def test_wrong_shapes_are_refused_and_never_broadcast(shape, U):
    array = np.ones(shape, complex)
    with pytest.raises(errors.FieldShapeError):
        WilsonDirac(mass=0.1)(array, U.array)
    with pytest.raises(errors.FieldShapeError):
        ColorSpinorField(G, array)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 4, 3, 3), (4, 2, 2, 4, 3, 3), (4, 2, 2, 4, 1, 3, 3), (4, 2, 2, 4, 4, 3, 2)]
)
def test_links_of_wrong_shape_are_refused(shape, psi):
    with pytest.raises(errors.FieldShapeError):
        WilsonDirac(mass=0.1)(psi.array, np.ones(shape, complex))
    with pytest.raises(errors.FieldShapeError):
        GaugeField(G, np.ones(shape, complex))


def test_reported_residual_is_the_true_one(U, psi):
    D = WilsonDirac(mass=0.3)
    b = D.dagger(psi, U).to("single")
    links = U.to("single")
    M = D.bind(links)
    x, info = ConjugateGradient(tol=2e-5, maxiter=500).solve(M.normal_linear, b)
    true = (M.normal(x) - b).norm() / b.norm()
    assert info.converged and true <= 2e-5
    assert info.final_residual == pytest.approx(true, rel=0.05)


def test_exact_guess_and_tiny_sources_converge(U, psi):
    M = WilsonDirac(mass=0.3).bind(U)
    b = M.normal(psi)
    x, info = ConjugateGradient(tol=1e-10).solve(M.normal_linear, b, x0=psi)
    assert info.converged and info.iterations == 0
    x, info = ConjugateGradient(tol=1e-10).solve(M.normal_linear, b * 1e-30)
    assert info.converged and relative(x.array * 1e30, psi.array) < 1e-8


def test_bicgstab_solves_a_multiple_of_the_identity(psi):
    x, info = BiCGStab(tol=1e-10, maxiter=10).solve(lambda v: 2 * v, psi.array)
    assert info.converged and relative(x, psi.array / 2) < 1e-10


def test_not_a_number_stops_a_solve_at_once(U, psi):
    bad = psi.array.copy()
    bad[0, 0, 0, 0, 0, 0] = np.nan
    _, info = ConjugateGradient(tol=1e-8, maxiter=10_000).solve(WilsonDirac(mass=0.3).bind(U).normal_linear, bad)
    assert not info.converged and info.iterations < 3


def test_time_is_antiperiodic_by_default():
    """A constant spinor on the unit field: eigenvalue m if periodic; on the edges of time the hop changes sign."""
    geometry, mass = LatticeGeometry(T=4, Z=2, Y=2, X=2), 0.1
    U = GaugeField.cold(geometry)
    one = ColorSpinorField(geometry, np.ones(geometry.spinor_shape, complex))
    periodic = WilsonDirac(mass=mass, boundary="periodic")(one, U).array
    assert np.abs(periodic - mass).max() < 1e-14
    out = WilsonDirac(mass=mass)(one, U).array
    assert np.abs(out[1:-1] - mass).max() < 1e-14
    spin = np.ones(4)
    last = mass + (spin - GAMMA[0] @ spin)  # -1/2 (1 - gamma_t) * (-1 - 1)
    first = mass + (spin + GAMMA[0] @ spin)
    assert np.abs(out[-1] - last[:, None]).max() < 1e-14 and np.abs(out[0] - first[:, None]).max() < 1e-14


def test_gaussian_has_unit_variance_per_component_and_double_numbers():
    geometry = LatticeGeometry(T=8, Z=8, Y=8, X=8)
    a = ColorSpinorField.gaussian(geometry, seed=7).array
    n = a.size  # 49152: the mean of |psi|^2 has error 1 / sqrt(n)
    assert np.mean(np.abs(a) ** 2) == pytest.approx(1.0, abs=5 / math.sqrt(n))
    assert np.var(a.real) == pytest.approx(0.5, abs=5 * 0.5 * math.sqrt(2 / n))
    assert np.mean(a.real * a.imag) == pytest.approx(0.0, abs=5 * 0.5 / math.sqrt(n))
    assert np.mean(a.astype(np.complex64) == a) < 0.01  # not single-precision numbers in a double field


def test_plaquette_reaches_both_ends_of_its_range():
    """[-1/2, 1] for SU(3): every plaquette can be the centre element z = exp(2 pi i / 3)."""
    geometry, z = LatticeGeometry(T=3, Z=3, Y=3, X=3), np.exp(2j * math.pi / 3)
    assert plaquette(GaugeField.cold(geometry)) == 1.0
    # U_nu = z^(sum of coordinates before nu); extents that are multiples of 3 close it around the torus
    links = GaugeField.cold(geometry).array.copy()
    coordinates = np.indices(geometry.shape)
    for nu in range(4):
        power = coordinates[:nu].sum(axis=0) if nu else np.zeros(geometry.shape, int)
        links[..., nu, :, :] *= (z**power)[..., None, None]
    U = GaugeField(geometry, links)
    U.check_unitary()
    assert plaquette(U) == pytest.approx(-0.5, abs=1e-14)
    mean = np.mean([plaquette(GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=2), seed=s)) for s in range(40)])
    assert abs(mean) < 5 / math.sqrt(40 * 96 * 18)  # Haar: <P> = 0, so half of all seeds lie below zero


def test_kappa_and_mass_agree_and_neither_has_a_default():
    assert WilsonDirac(kappa=0.125).mass == 0.0
    assert WilsonDirac(mass=0.1).kappa == pytest.approx(1 / 8.2, rel=1e-15)
    for operator, more in ((WilsonDirac, {}), (CloverWilsonDirac, {"csw": 1.0}), (TwistedMassDirac, {"mu": 0.1})):
        with pytest.raises(errors.ParameterError, match="neither"):
            operator(**more)
        with pytest.raises(errors.ParameterError, match="both"):
            operator(mass=0.1, kappa=0.125, **more)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.1", None, True, 1j])
def test_masses_that_are_no_real_numbers_are_refused(value):
    with pytest.raises(errors.ParameterError):
        WilsonDirac(mass=value)


@pytest.mark.parametrize("extents", [(0, 2, 2, 2), (2, -1, 2, 2), (2, 2, 2.5, 2), (2, 2, 2, True)])
def test_lattices_without_sites_are_refused(extents):
    with pytest.raises(errors.GeometryError):
        LatticeGeometry.from_shape(extents)


@pytest.mark.parametrize("dtype", [int, float, bool, object])
def test_spinors_and_links_must_be_complex(dtype, U):
    array = np.ones(G.spinor_shape, dtype)
    with pytest.raises(errors.FieldTypeError, match="complex"):
        ColorSpinorField(G, array)
    with pytest.raises(errors.LQCDError):
        WilsonDirac(mass=0.1)(array, U.array)


# -- moving spinors over ----------------------------------------------------------------------------------------------


def test_spin_rotation_of_the_migration_page_turns_the_old_operator_into_ours(U, psi):
    """The old operator, written out: periodic, with the x, y, z, t matrices on the axes t, z, y, x."""
    old = GAMMA[::-1]
    rotation = (GAMMA[3] - GAMMA[0]) @ (GAMMA[2] - GAMMA[1]) / 2
    mass, links, spinor = 0.1, U.array, psi.array

    def old_operator(v):
        out = (4 + mass) * v
        for mu in range(4):
            u = links[..., mu, :, :]
            ahead = np.einsum("...ab,...sb->...sa", u, np.roll(v, -1, axis=mu))
            behind = np.roll(np.einsum("...ba,...sb->...sa", u.conj(), v), 1, axis=mu)
            out = out - 0.5 * np.einsum("ij,...ja->...ia", np.eye(4) - old[mu], ahead)
            out = out - 0.5 * np.einsum("ij,...ja->...ia", np.eye(4) + old[mu], behind)
        return out

    rotate = lambda v: np.einsum("ij,...ja->...ia", rotation, v)  # noqa: E731
    ours = WilsonDirac(mass=mass, boundary="periodic")(rotate(spinor), links)
    assert relative(ours, rotate(old_operator(spinor))) < TOL
    # and without the rotation the two differ: the page is needed
    assert relative(WilsonDirac(mass=mass, boundary="periodic")(spinor, links), old_operator(spinor)) > 0.1

"""Loops, staples and field strength against products of links walked one by one in plain Python, and their laws."""

import itertools
import sys

import numpy as np
import pytest

from lqcd_core import gauge as gg
from lqcd_core.errors import FieldShapeError, FieldTypeError, LQCDError, ParameterError
from lqcd_core.fields import GaugeField, random_gauge_rotation
from lqcd_core.gamma import GAMMA
from lqcd_core.geometry import DIRECTIONS, LatticeGeometry

UNEQUAL = LatticeGeometry(T=2, Z=3, Y=4, X=5)
PLANES = list(itertools.combinations(range(4), 2))
NAMES = {frozenset(("t", "x")): "xt", frozenset(("t", "y")): "yt", frozenset(("t", "z")): "zt",
         frozenset(("x", "y")): "xy", frozenset(("x", "z")): "xz", frozenset(("y", "z")): "yz"}  # fmt: skip
F, B = +1, -1


def walk(u, site, steps):
    """Product of links from ``site`` along steps (direction, +1 or -1): the definition, with no shift or roll."""
    shape = u.shape[:4]
    x = list(site)
    m = np.eye(u.shape[-1], dtype=complex)
    for mu, sign in steps:
        if sign == F:
            m = m @ u[(*x, mu)]
            x[mu] = (x[mu] + 1) % shape[mu]
        else:
            x[mu] = (x[mu] - 1) % shape[mu]
            m = m @ u[(*x, mu)].conj().T
    return m


def sites(u):
    return itertools.product(*map(range, u.shape[:4]))


def mean_trace(u, paths):
    """Mean over sites and paths of tr / Nc."""
    return np.mean([np.trace(walk(u, x, p)) for x in sites(u) for p in paths]) / u.shape[-1]


def box(mu, m, nu, n):
    return [(mu, F)] * m + [(nu, F)] * n + [(mu, B)] * m + [(nu, B)] * n


@pytest.fixture(scope="module")
def field():
    return GaugeField.random(UNEQUAL, seed=11)


@pytest.fixture(scope="module")
def smooth():
    """Links near one: the quark side of the world, where small terms of F matter."""
    geometry = LatticeGeometry(T=4, Z=4, Y=4, X=4)
    u = GaugeField.random(geometry, seed=5).array
    return GaugeField(geometry, np.eye(3) + 0.1 * u).unitarize()


def test_plaquettes_are_the_walked_ones(field):
    u = field.array
    planes = gg.plaquettes(field)
    for mu, nu in PLANES:
        name = NAMES[frozenset((DIRECTIONS[mu], DIRECTIONS[nu]))]
        assert planes[name] == pytest.approx(mean_trace(u, [box(mu, 1, nu, 1)]).real, abs=1e-14)
    assert gg.plaquette(field) == pytest.approx(np.mean(list(planes.values())), abs=1e-15)
    assert gg.plaquette_ss(field) == pytest.approx((planes["xy"] + planes["xz"] + planes["yz"]) / 3, abs=1e-15)
    assert gg.plaquette_st(field) == pytest.approx((planes["xt"] + planes["yt"] + planes["zt"]) / 3, abs=1e-15)


def test_rectangle_is_the_walked_one(field):
    paths = [box(mu, 2, nu, 1) for mu in range(4) for nu in range(4) if mu != nu]
    assert gg.rectangle(field) == pytest.approx(mean_trace(field.array, paths).real, abs=1e-14)


@pytest.mark.parametrize("r, t", [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_wilson_loop_is_the_walked_one(field, r, t):
    paths = [box(i, r, 0, t) for i in (1, 2, 3)]
    assert gg.wilson_loop(field, r, t) == pytest.approx(mean_trace(field.array, paths).real, abs=1e-14)


def test_wilson_loops_at_once_are_those_one_by_one(field):
    sizes = [(1, 1), (2, 3), (3, 1)]
    assert gg.wilson_loops(field, sizes) == {s: gg.wilson_loop(field, *s) for s in sizes}
    assert gg.wilson_loop(field, 1, 1) == pytest.approx(gg.plaquette_st(field), abs=1e-15)


@pytest.mark.parametrize("mu", range(4))
def test_polyakov_loop_is_the_walked_one(field, mu):
    length = UNEQUAL.shape[mu]
    want = mean_trace(field.array, [[(mu, F)] * length])  # every starting point gives the same trace
    assert gg.polyakov_loop(field, mu) == pytest.approx(want, abs=1e-14)
    assert gg.polyakov_loop(field, DIRECTIONS[mu]) == gg.polyakov_loop(field, mu)


def test_polyakov_loop_feels_the_centre(field):
    u = field.array.copy()
    u[-1, ..., 0, :, :] *= np.exp(2j * np.pi / 3)
    turned = GaugeField(UNEQUAL, u)
    assert gg.polyakov_loop(turned) == pytest.approx(np.exp(2j * np.pi / 3) * gg.polyakov_loop(field), abs=1e-14)
    assert gg.plaquette(turned) == pytest.approx(gg.plaquette(field), abs=1e-14)


def test_link_trace_and_action(field):
    u = field.array
    assert gg.link_trace(field) == pytest.approx(np.trace(u, axis1=-2, axis2=-1).real.mean() / 3, abs=1e-14)
    want = 5.7 * 6 * UNEQUAL.volume * (1 - gg.plaquette(field))
    assert gg.wilson_action(field, 5.7) == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize("mu", range(4))
def test_staple_is_the_walked_one(field, mu):
    u, found = field.array, gg.staple(field, DIRECTIONS[mu])
    for x in sites(u):
        y = list(x)
        y[mu] = (y[mu] + 1) % UNEQUAL.shape[mu]
        want = sum(walk(u, y, [(nu, s), (mu, B), (nu, -s)]) for nu in range(4) if nu != mu for s in (F, B))
        np.testing.assert_allclose(found[x], want, atol=1e-13)


def test_staples_close_to_the_action(field):
    a = gg.staples(field)
    closed = np.einsum("...ij,...ji->...", field.array, a).real.sum()
    assert closed == pytest.approx(4 * 6 * UNEQUAL.volume * 3 * gg.plaquette(field), abs=1e-10)


@pytest.mark.parametrize("mu, nu", list(itertools.permutations(range(4), 2)))
def test_clover_leaves_are_the_walked_ones(field, mu, nu):
    u, q, f = field.array, gg.clover_leaf_sum(field, mu, nu), gg.field_strength(field, mu, nu)
    leaves = [
        [(mu, F), (nu, F), (mu, B), (nu, B)],
        [(nu, F), (mu, B), (nu, B), (mu, F)],
        [(mu, B), (nu, B), (mu, F), (nu, F)],
        [(nu, B), (mu, F), (nu, F), (mu, B)],
    ]
    for x in list(sites(u))[::7]:
        want = sum(walk(u, x, leaf) for leaf in leaves)
        np.testing.assert_allclose(q[x], want, atol=1e-13)
        np.testing.assert_allclose(f[x], (want - want.conj().T) / 8, atol=1e-13)
    np.testing.assert_allclose(gg.clover_leaf_sum(field, nu, mu), q.conj().swapaxes(-1, -2), atol=1e-13)


def test_field_strength_keeps_its_trace_unless_told(field):
    f = gg.field_strength(field, "x", "y")
    g = gg.field_strength(field, "x", "y", traceless=True)
    trace = np.einsum("...ii->...", f)
    assert np.abs(trace).max() > 1e-3
    assert np.abs(np.einsum("...ii->...", g)).max() < 1e-14
    np.testing.assert_allclose(f - g, trace[..., None, None] * np.eye(3) / 3, atol=1e-14)


def test_clover_term_is_the_sum_of_gammas_times_field_strength(field):
    c_r, c_t = 0.7, 0.4
    blocks = gg.clover_term(field, c_r, c_t)
    t, z, y, x = range(4)
    want = np.zeros((*UNEQUAL.shape, 4, 3, 4, 3), complex)
    for mu, nu, c in [(x, y, c_r), (x, z, c_r), (y, z, c_r), (x, t, c_t), (y, t, c_t), (z, t, c_t)]:
        f = gg.field_strength(field, mu, nu)
        want -= c * np.einsum("sr,...ab->...sarb", GAMMA[mu] @ GAMMA[nu], f)
    want = want.reshape(*UNEQUAL.shape, 2, 6, 2, 6)
    assert np.abs(want[..., 0, :, 1, :]).max() == 0 and np.abs(want[..., 1, :, 0, :]).max() == 0
    for c in range(2):
        np.testing.assert_allclose(blocks[..., c, :, :], want[..., c, :, c, :], atol=1e-13)
    np.testing.assert_allclose(blocks, blocks.conj().swapaxes(-1, -2), atol=1e-14)


def test_clover_term_is_traceless_and_linear_and_does_not_hold_the_mass(field):
    a, b = gg.clover_term(field, 1.0, 0.0), gg.clover_term(field, 0.0, 1.0)
    np.testing.assert_allclose(gg.clover_term(field, 0.3, -2.0), 0.3 * a - 2.0 * b, atol=1e-13)
    assert np.abs(np.einsum("...ii->...", gg.clover_term(field, 0.5))).max() < 1e-13
    assert np.abs(gg.clover_term(field, 0.0)).max() == 0


def test_clover_term_by_slabs_is_the_whole(monkeypatch):
    u = GaugeField.random(LatticeGeometry(T=5, Z=2, Y=2, X=2), seed=3)
    whole = gg.clover_term(u, 0.6, 0.5)
    module = sys.modules["lqcd_core.gauge.field_strength"]  # the function of that name hides the module
    slice_bytes = 8 * 4 * 9 * 16
    for slices in (1, 2, 3):
        monkeypatch.setattr(module, "_SLAB_BYTES", slices * slice_bytes)
        np.testing.assert_array_equal(gg.clover_term(u, 0.6, 0.5), whole)


def test_clover_coefficients():
    assert gg.clover_coefficients(1.2) == (0.6, 0.6)
    assert gg.clover_coefficients(0.91, 1.07, xi0=2.464) == (0.91 / (2 * 2.464), 1.07 / 2)
    for bad in [dict(csw_r=np.nan), dict(csw_r=1.0, csw_t=np.inf), dict(csw_r=1.0, xi0=0.0)]:
        with pytest.raises(ParameterError):
            gg.clover_coefficients(**bad)


SCALARS = {
    "plaquette": gg.plaquette,
    "rectangle": gg.rectangle,
    "action": lambda u: gg.wilson_action(u, 1.0),
    "polyakov": gg.polyakov_loop,
    "polyakov x": lambda u: gg.polyakov_loop(u, "x"),
    "wilson loop": lambda u: gg.wilson_loop(u, 2, 2),
    "energy clover": gg.energy_density,
    "energy plaquette": lambda u: gg.energy_density(u, "plaquette"),
    "charge": gg.topological_charge,
}


@pytest.mark.parametrize("nc", [2, 3, 4])
@pytest.mark.parametrize("name", SCALARS)
def test_observables_are_gauge_invariant(name, nc):
    geometry = LatticeGeometry(T=2, Z=3, Y=4, X=2, nc=nc)
    u = GaugeField.random(geometry, seed=2)
    turned = u.gauge_transform(random_gauge_rotation(geometry, seed=9))
    value = SCALARS[name](u)
    assert abs(value) > 1e-6  # else the law would be empty
    assert SCALARS[name](turned) == pytest.approx(value, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("nc", [2, 3, 4])
def test_staple_field_strength_and_clover_are_gauge_covariant(nc):
    geometry = LatticeGeometry(T=2, Z=3, Y=4, X=2, nc=nc)
    u = GaugeField.random(geometry, seed=2)
    g = random_gauge_rotation(geometry, seed=9)
    g_dag = g.conj().swapaxes(-1, -2)
    turned = u.gauge_transform(g)
    for mu, nu in PLANES:
        want = g @ gg.field_strength(u, mu, nu) @ g_dag
        np.testing.assert_allclose(gg.field_strength(turned, mu, nu), want, atol=1e-13)
    for mu in range(4):
        want = np.roll(g, -1, mu) @ gg.staple(u, mu) @ g_dag
        np.testing.assert_allclose(gg.staple(turned, mu), want, atol=1e-13)
    blocks = gg.clover_term(u, 0.5).reshape(*geometry.shape, 2, 2, nc, 2, nc)
    want = np.einsum("...ab,...csbrd,...ed->...csare", g, blocks, g.conj()).reshape(*geometry.shape, 2, 2 * nc, 2 * nc)
    np.testing.assert_allclose(gg.clover_term(turned, 0.5), want, atol=1e-13)


def test_translation_and_unit_field():
    cold = GaugeField.cold(UNEQUAL)
    assert gg.plaquette(cold) == gg.rectangle(cold) == gg.wilson_loop(cold, 2, 3) == gg.link_trace(cold) == 1.0
    assert gg.polyakov_loop(cold) == 1.0 and gg.wilson_action(cold, 6.0) == 0.0
    assert gg.energy_density(cold) == gg.energy_density(cold, "plaquette") == gg.topological_charge(cold) == 0.0
    u = GaugeField.random(UNEQUAL, seed=4)
    moved = GaugeField(UNEQUAL, np.roll(u.array, (1, 2, 1, 3), axis=(0, 1, 2, 3)))
    for f in SCALARS.values():
        assert f(moved) == pytest.approx(f(u), rel=1e-12)


def test_energy_definitions(smooth):
    plaq = gg.energy_density(smooth, "plaquette")
    assert plaq == pytest.approx(2 * 6 * 3 * (1 - gg.plaquette(smooth)), rel=1e-12)
    want = -sum(
        np.einsum("...ij,...ji->...", f, f).real.sum()
        for f in (gg.field_strength(smooth, mu, nu, traceless=True) for mu, nu in PLANES)
    )
    assert gg.energy_density(smooth) == pytest.approx(want / 256, rel=1e-12)
    with pytest.raises(ParameterError, match="'clover' or 'plaquette'"):
        gg.energy_density(smooth, "wilson")


def test_charge_density_sums_to_the_charge_and_is_gauge_invariant(smooth):
    q = gg.topological_charge_density(smooth)
    assert q.shape == (4, 4, 4, 4) and q.dtype == float
    assert q.sum() == pytest.approx(gg.topological_charge(smooth), rel=1e-12)
    turned = smooth.gauge_transform(random_gauge_rotation(smooth.geometry, seed=1))
    np.testing.assert_allclose(gg.topological_charge_density(turned), q, atol=1e-15)


@pytest.mark.parametrize("mu", range(4))
def test_reflection_changes_the_sign_of_the_charge_only(smooth, mu):
    # x_mu -> -x_mu: U'_mu(x) = U_mu(-x - mu)^dagger, U'_nu(x) = U_nu(-x)
    a = np.flip(smooth.array, mu)
    u = np.roll(a, 1, mu).copy()
    u[..., mu, :, :] = a[..., mu, :, :].conj().swapaxes(-1, -2)
    mirror = GaugeField(smooth.geometry, u)
    assert gg.topological_charge(mirror) == pytest.approx(-gg.topological_charge(smooth), rel=1e-11)
    assert gg.plaquette(mirror) == pytest.approx(gg.plaquette(smooth), rel=1e-13)
    assert gg.energy_density(mirror) == pytest.approx(gg.energy_density(smooth), rel=1e-12)


def test_plaquette_reaches_minus_one_half():
    # a centre flux exp(2 pi i / 3) through every xy plaquette; [0, 1] is not the range of an SU(3) plaquette
    geometry = LatticeGeometry(T=2, Z=2, Y=2, X=3)
    u = GaugeField.cold(geometry).array.copy()
    u[..., 2, :, :] *= np.exp(2j * np.pi * np.arange(3) / 3)[:, None, None]
    assert gg.plaquettes(GaugeField(geometry, u))["xy"] == pytest.approx(-0.5, abs=1e-15)


@pytest.mark.parametrize("precision, tolerance", [("single", 1e-6), ("half", 2e-3), ("bf16", 2e-2)])
def test_lower_precisions(field, precision, tolerance):
    low = field.to(precision)
    for f in SCALARS.values():
        value = f(low)
        assert type(value) in (float, complex)
        assert abs(value - f(field)) < tolerance * max(1, abs(f(field)))
    assert gg.clover_term(low, 0.5).dtype == np.complex128


def test_single_precision_sums_over_sites_in_double():
    # 0.1 is rounded in single; its trace over two colours is exact there, so only the sum over sites can lose digits
    geometry = LatticeGeometry(T=8, Z=8, Y=8, X=8, nc=2)
    u = np.full(geometry.gauge_shape, np.complex64(0.1)) * np.eye(2, dtype=np.complex64)
    assert gg.link_trace(u) == pytest.approx(float(np.float32(0.1)), rel=1e-14)


def test_arguments_are_left_alone_and_raw_arrays_are_taken(field):
    before = field.array.copy()
    for f in SCALARS.values():
        assert f(field) == f(field.array)
    gg.clover_term(field, 0.5), gg.staples(field)
    np.testing.assert_array_equal(field.array, before)


@pytest.mark.parametrize(
    "bad, error",
    [
        (np.ones((2, 2, 2, 2, 4, 3, 2), complex), FieldShapeError),
        (np.ones((2, 2, 2, 2, 3, 3, 3), complex), FieldShapeError),
        (np.ones((2, 2, 2, 4, 3, 3), complex), FieldShapeError),
        (np.ones((2, 2, 2, 0, 4, 3, 3), complex), FieldShapeError),
        (np.ones((2, 2, 2, 2, 4, 3, 3)), FieldTypeError),
        ("links", FieldTypeError),
    ],
)
def test_what_is_no_link_array_is_refused(bad, error):
    for f in (gg.plaquette, gg.polyakov_loop, gg.topological_charge, lambda u: gg.clover_term(u, 1.0)):
        with pytest.raises(error):
            f(bad)


def test_wrong_parameters_are_refused(field):
    calls = [
        lambda: gg.polyakov_loop(field, "w"),
        lambda: gg.polyakov_loop(field, 4),
        lambda: gg.polyakov_loop(field, -1),
        lambda: gg.staple(field, True),
        lambda: gg.field_strength(field, 1, "z"),
        lambda: gg.wilson_loop(field, 0, 1),
        lambda: gg.wilson_loop(field, 1, 1.5),
        lambda: gg.wilson_action(field, np.nan),
        lambda: gg.clover_term(field, np.inf),
    ]
    for call in calls:
        with pytest.raises(LQCDError):
            call()


# -- constant field: F and Q known exactly ----------------------------------------------------------------------------


def constant_field(geometry, n_one, n_other, one=(3, 2), other=(1, 0)):
    r"""Constant flux of diag(1, -1, 0, ...) with n quanta through two tori, xy and zt by default: then Q = 2 n n'."""
    u = GaugeField.cold(geometry).array.copy()
    generator = np.zeros(geometry.nc)
    generator[:2] = 1, -1
    index = np.indices(geometry.shape)
    for (a, b), n in ((one, n_one), (other, n_other)):
        la, lb = geometry.shape[a], geometry.shape[b]
        phi = 2 * np.pi * n / (la * lb)
        angle_b = phi * index[a]
        angle_a = np.where(index[a] == la - 1, -phi * la * index[b], 0.0)
        for mu, angle in ((a, angle_a), (b, angle_b)):
            u[..., mu, :, :] *= np.exp(1j * angle[..., None] * generator)[..., None, :]
    return GaugeField(geometry, u), generator


@pytest.mark.parametrize("nc", [2, 3])
@pytest.mark.parametrize("n_xy, n_zt", [(1, 1), (1, -1), (2, 1)])
def test_constant_field_has_the_exact_field_strength_and_charge(nc, n_xy, n_zt):
    geometry = LatticeGeometry(T=6, Z=4, Y=5, X=3, nc=nc)
    u, generator = constant_field(geometry, n_xy, n_zt)
    assert u.unitarity() < 1e-13
    phi_xy, phi_zt = 2 * np.pi * n_xy / 15, 2 * np.pi * n_zt / 24
    # Q_{mu nu} = 4 exp(i phi lambda), so F = i sin(phi) lambda
    for (mu, nu), phi in ((("x", "y"), phi_xy), (("z", "t"), phi_zt)):
        want = np.broadcast_to(np.diag(1j * np.sin(phi * generator)), (*geometry.shape, nc, nc))
        np.testing.assert_allclose(gg.field_strength(u, mu, nu), want, atol=1e-13)
    for mu, nu in (("x", "z"), ("x", "t"), ("y", "z"), ("y", "t")):
        assert np.abs(gg.field_strength(u, mu, nu)).max() < 1e-13
    sines = 2 * geometry.volume * np.sin(phi_xy) * np.sin(phi_zt) / (4 * np.pi**2)
    assert gg.topological_charge(u) == pytest.approx(sines, rel=1e-12)
    assert gg.energy_density(u) == pytest.approx(2 * (np.sin(phi_xy) ** 2 + np.sin(phi_zt) ** 2), rel=1e-12)
    planes = gg.plaquettes(u)
    assert planes["xy"] == pytest.approx((nc - 2 + 2 * np.cos(phi_xy)) / nc, rel=1e-13)
    assert planes["xt"] == pytest.approx(1, rel=1e-13)


@pytest.mark.parametrize(
    "one, other, sign", [("xy", "zt", 1), ("xz", "yt", -1), ("xt", "yz", 1), ("zx", "yt", 1), ("yx", "zt", -1)]
)
def test_each_pair_of_planes_has_the_sign_of_epsilon_xyzt(one, other, sign):
    geometry = LatticeGeometry(T=6, Z=4, Y=5, X=3)
    planes = [tuple(DIRECTIONS.index(d) for d in name) for name in (one, other)]
    u, _ = constant_field(geometry, 1, 1, *planes)
    sines = [np.sin(2 * np.pi / (geometry.shape[a] * geometry.shape[b])) for a, b in planes]
    want = sign * 2 * geometry.volume * sines[0] * sines[1] / (4 * np.pi**2)
    assert gg.topological_charge(u) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    "axes, sign", [((1, 0, 2, 3), -1), ((1, 2, 0, 3), 1), ((3, 2, 1, 0), 1), ((0, 2, 3, 1), 1), ((0, 1, 3, 2), -1)]
)
def test_charge_of_permuted_axes_has_the_sign_of_the_permutation(smooth, axes, sign):
    u = np.transpose(smooth.array, (*axes, 4, 5, 6))[..., list(axes), :, :]
    turned = GaugeField(smooth.geometry, u)
    assert gg.topological_charge(turned) == pytest.approx(sign * gg.topological_charge(smooth), rel=1e-10)
    assert gg.energy_density(turned) == pytest.approx(gg.energy_density(smooth), rel=1e-12)


def test_charge_of_the_constant_field_tends_to_two():
    charges = [gg.topological_charge(constant_field(LatticeGeometry(T=n, Z=n, Y=n, X=n), 1, 1)[0]) for n in (4, 8)]
    errors = [2 - q for q in charges]
    assert 0 < errors[1] < errors[0]
    # sin(phi)^2 = phi^2 (1 - phi^2 / 3) with phi = 2 pi / n^2: the error falls as n^-4
    assert errors[1] == pytest.approx(2 * (2 * np.pi / 64) ** 2 / 3, rel=0.01)
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.05)


# -- torch ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("name", SCALARS)
def test_torch_gives_the_same_numbers(torch, field, name):
    value = SCALARS[name](field.tensor)
    assert isinstance(value, torch.Tensor) and value.shape == ()
    assert value.item() == pytest.approx(SCALARS[name](field), rel=1e-13)


def test_torch_gives_the_same_matrices(torch, field):
    for f in (
        gg.staples,
        lambda u: gg.field_strength(u, "x", "t", traceless=True),
        lambda u: gg.clover_term(u, 0.5, 0.3),
        gg.topological_charge_density,
    ):
        np.testing.assert_allclose(f(field.tensor).numpy(), f(field), atol=1e-13)


@pytest.mark.parametrize("name", SCALARS)
def test_torch_gradients_agree_with_finite_differences(torch, name):
    # U(s) = exp(s X) U with one anti-Hermitian traceless X per link; d/ds by autograd and by central differences
    geometry = LatticeGeometry(T=2, Z=2, Y=2, X=3)
    u = GaugeField.random(geometry, seed=8).tensor
    rng = np.random.default_rng(0)
    a = rng.normal(size=geometry.gauge_shape) + 1j * rng.normal(size=geometry.gauge_shape)
    x = a - a.conj().swapaxes(-1, -2)
    x = torch.tensor(x - np.einsum("...ii->...", x)[..., None, None] * np.eye(3) / 3)

    def along(s):
        value = SCALARS[name](torch.linalg.matrix_exp(s * x) @ u)
        return value.real if value.is_complex() else value

    s = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(along(s), s)
    h = 1e-4
    with torch.no_grad():
        want = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    assert abs(slope.item()) > 1e-6
    assert slope.item() == pytest.approx(want.item(), rel=1e-7, abs=1e-9)


def test_torch_gradient_flows_through_the_clover_term(torch, field):
    u = field.tensor.clone().requires_grad_()
    weights = torch.tensor(np.random.default_rng(1).normal(size=(*UNEQUAL.shape, 2, 6, 6)))
    (gradient,) = torch.autograd.grad((gg.clover_term(u, 0.5).real * weights).sum(), u)
    e = torch.zeros_like(field.tensor)
    e[1, 2, 3, 4, 0, 0, 1] = 1.0
    h = 1e-5
    f = lambda v: (gg.clover_term(v, 0.5).real * weights).sum().item()  # noqa: E731
    want = (f(field.tensor + h * e) - f(field.tensor - h * e)) / (2 * h)
    assert gradient[1, 2, 3, 4, 0, 0, 1].real.item() == pytest.approx(want, rel=1e-6)


def test_torch_keeps_single_precision_matrices_and_sums_in_double(torch, field):
    u = field.tensor.to(torch.complex64)
    assert gg.staples(u).dtype == gg.clover_term(u, 0.5).dtype == torch.complex64
    assert gg.plaquette(u).dtype == torch.float64

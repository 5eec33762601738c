"""Operators against dense matrices built by loops, their identities, their parameters, and D(psi, U) on host fields."""

import math

import numpy as np
import pytest

from lqcd_core import (
    BiCGStab,
    CloverWilsonDirac,
    ColorSpinorField,
    GaugeField,
    LatticeGeometry,
    TwistedMassDirac,
    WilsonDirac,
    prefer_backends,
    random_gauge_rotation,
    solve,
    use_backend,
)  # fmt: skip
from lqcd_core.backend import SiteDiagonal
from lqcd_core.errors import (
    FieldShapeError,
    FieldTypeError,
    GeometryError,
    NonUnitaryLinksError,
    ParameterError,
    StaleGaugeError,
)  # fmt: skip
from lqcd_core.gamma import GAMMA, GAMMA5
from lqcd_core.operators.definition import boundary_phases
from lqcd_core.testing import reference

PHASES = (-1, np.exp(0.4j), 1, 1j)
G5 = np.array([1, 1, -1, -1], np.int8)[:, None]
DEFINITIONS = {
    "wilson": (WilsonDirac(mass=0.1, boundary=PHASES), dict(mass=0.1, phases=PHASES)),
    "wilson-anisotropic": (
        WilsonDirac(kappa=0.12, boundary=PHASES, xi0=2.4, nu=0.95),
        dict(mass=1 / 0.24 - 4, phases=PHASES, xi0=2.4, nu=0.95),
    ),
    "clover": (
        CloverWilsonDirac(mass=-0.2, csw=1.7, boundary=PHASES),
        dict(mass=-0.2, phases=PHASES, csw_r=1.7, csw_t=1.7),
    ),
    "clover-anisotropic": (
        CloverWilsonDirac(mass=0.3, csw_r=0.91, csw_t=1.07, boundary=PHASES, xi0=2.4, nu=0.95),
        dict(mass=0.3, phases=PHASES, csw_r=0.91, csw_t=1.07, xi0=2.4, nu=0.95),
    ),
    "twisted": (TwistedMassDirac(mass=0.1, mu=0.3, boundary=PHASES), dict(mass=0.1, mu=0.3, phases=PHASES)),
    "twisted-clover": (
        TwistedMassDirac(mass=0.1, mu=0.3, csw=1.2, boundary=PHASES),
        dict(mass=0.1, mu=0.3, phases=PHASES, csw_r=1.2, csw_t=1.2),
    ),
}
G = LatticeGeometry(T=2, Z=1, Y=3, X=2)  # extents 1, 2 and odd
GE = LatticeGeometry(T=4, Z=2, Y=2, X=2)
U, UE = GaugeField.random(G, seed=1), GaugeField.random(GE, seed=3)
PSI, PSIE = ColorSpinorField.gaussian(G, seed=2), ColorSpinorField.gaussian(GE, seed=4)


@pytest.fixture(autouse=True)
def numpy_serves():
    with use_backend("numpy"):
        yield


def matrix_of(function, geometry):
    return reference.dense(function, geometry.shape, geometry.nc)


# -- dense matrices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_whole_matrix_equals_explicit_loops(name):
    definition, explicit = DEFINITIONS[name]
    m = definition.bind(U)
    ours = matrix_of(m, G)
    loops = matrix_of(lambda v: reference.dirac(U.array, v, **explicit), G)
    assert np.abs(ours - loops).max() < 1e-14
    assert np.abs(matrix_of(m.dagger, G) - loops.conj().T).max() < 1e-14
    assert np.abs(matrix_of(m.normal, G) - loops.conj().T @ loops).max() < 1e-13
    g5 = np.kron(np.eye(G.volume), np.kron(GAMMA5, np.eye(3)))
    assert np.abs(matrix_of(m.gamma5, G) - g5 @ loops).max() < 1e-14
    if "twisted" not in name:
        assert np.abs(g5 @ loops - (g5 @ loops).conj().T).max() < 1e-14


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("form", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_schur_complement_equals_its_block_matrices(name, form, parity):
    g = LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=2)
    u = GaugeField.random(g, seed=5)
    definition, explicit = DEFINITIONS[name]
    m = matrix_of(lambda v: reference.dirac(u.array, v, **explicit), g)
    on = np.repeat(g.site_parity.reshape(-1) == parity, 8)
    pp, pq, qp, qq = m[np.ix_(on, on)], m[np.ix_(on, ~on)], m[np.ix_(~on, on)], m[np.ix_(~on, ~on)]
    want = pp - pq @ np.linalg.inv(qq) @ qp
    if form == "symmetric":
        want = np.linalg.inv(pp) @ want
    s = definition.bind(u, n_rhs=1).even_odd(parity, form)
    psi = np.random.default_rng(1).normal(size=(3, *g.spinor_shape)) + 0j
    x_p, x_q = s.split(psi)
    half = psi.reshape(3, -1)[:, on]

    def close(handle, vectors):
        half_lattice = s.vectors.unpack(handle)
        full = g.join_parity(*((None, half_lattice) if parity else (half_lattice, None)), lead=1)
        assert np.abs(full.reshape(3, -1)[:, on] - vectors).max() < 1e-13

    close(s.apply(x_p), half @ want.T)
    close(s.apply_dagger(x_p), half @ want.conj())
    close(s.apply_normal(x_p), half @ (want.conj().T @ want).T)
    bhat = half - psi.reshape(3, -1)[:, ~on] @ (pq @ np.linalg.inv(qq)).T
    close(s.prepare(x_p, x_q), bhat @ np.linalg.inv(pp).T if form == "symmetric" else bhat)


# -- identities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.3, -0.05])
@pytest.mark.parametrize("csw", [0.0, 1.3])
def test_twisted_dagger_is_gamma5_m_of_minus_mu_gamma5(mu, csw):
    plus, minus = (TwistedMassDirac(mass=0.1, mu=s * mu, csw=csw, boundary=PHASES).bind(U) for s in (1, -1))
    assert np.abs(plus.dagger(PSI.array) - G5 * minus(G5 * PSI.array)).max() < 1e-13


def test_twist_zero_is_wilson_and_csw_zero_is_wilson():
    wilson = WilsonDirac(mass=0.1)(PSI, U).array
    assert np.array_equal(TwistedMassDirac(mass=0.1, mu=0.0)(PSI, U).array, wilson)
    assert np.abs(CloverWilsonDirac(mass=0.1, csw=0.0)(PSI, U).array - wilson).max() < 1e-14


def test_hop_onto_even_plus_hop_onto_odd_is_the_hop():
    m = WilsonDirac(mass=0.1).bind(UE)
    s = m.even_odd(0)
    x_e, x_o = s.split(PSIE.batch)
    joined = s.join(s.hop[0](x_o), s.hop[1](x_e))
    assert np.abs(joined[0] - m.hop(PSIE).array).max() < 1e-14


def test_the_mass_shifts_the_diagonal_and_nothing_else():
    a, b = (WilsonDirac(mass=m)(PSI, U).array for m in (0.1, 0.6))
    assert np.abs(b - a - 0.5 * PSI.array).max() < 1e-13


def test_a_constant_spinor_on_the_unit_field_has_eigenvalue_mass_when_periodic():
    psi = np.ones(G.spinor_shape, complex)
    assert np.abs(WilsonDirac(mass=0.25, boundary="periodic")(psi, GaugeField.cold(G).array) - 0.25 * psi).max() < 1e-14


def test_the_default_is_antiperiodic_in_time():
    explicit = WilsonDirac(mass=0.1, boundary=(-1, 1, 1, 1))(PSIE, UE).array
    assert np.array_equal(WilsonDirac(mass=0.1)(PSIE, UE).array, explicit)
    periodic = WilsonDirac(mass=0.1, boundary="periodic")(PSIE, UE).array
    changed = np.abs(periodic - explicit).max(axis=(1, 2, 3, 4, 5)) > 1e-12
    assert changed.tolist() == [True, False, False, True]  # only hops across the edge


def test_a_theta_phase_is_a_gauge_equivalent_of_links_with_the_phase_spread_out():
    theta = 0.7
    spread = UE.array.copy()
    spread[..., 3, :, :] *= np.exp(1j * theta / 2)  # X = 2
    a = WilsonDirac(mass=0.1, boundary={"x": np.exp(1j * theta)}).bind(UE)
    b = WilsonDirac(mass=0.1, boundary="periodic").bind(spread, check_links=False)
    twist = np.exp(1j * theta * np.arange(2) / 2)[:, None, None]
    # psi_b(x) = e^{-i theta x / L} psi_a(x)
    assert np.abs(a(PSIE.array) - twist * b(PSIE.array / twist)).max() < 1e-13


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_operator_is_gauge_covariant(name):
    g = random_gauge_rotation(GE, seed=9)

    def rotate(v):
        return np.einsum("tzyxab,tzyxsb->tzyxsa", g, v)

    definition, _ = DEFINITIONS[name]
    want = rotate(definition(PSIE, UE).array)
    got = definition(rotate(PSIE.array), UE.gauge_transform(g))
    assert np.linalg.norm(got - want) < 1e-14 * np.linalg.norm(want)


def test_a_site_term_times_its_inverse_is_one():
    rng = np.random.default_rng(1)
    b = rng.normal(size=(*GE.shape, 2, 6, 6)) + 1j * rng.normal(size=(*GE.shape, 2, 6, 6))
    for term in (
        SiteDiagonal(scalar=4.1, twist=0.3), SiteDiagonal(scalar=4.1, blocks=0.1 * (b + b.conj().swapaxes(-1, -2))),
        SiteDiagonal(scalar=4.1, twist=0.3, blocks=0.1 * (b + b.conj().swapaxes(-1, -2))),
    ):  # fmt: skip
        inverse = term.inverse()
        if term.blocks is None:
            product = (term.scalar + 1j * term.twist) * (inverse.scalar + 1j * inverse.twist)
            assert abs(product - 1) < 1e-15
            continue
        assert np.abs(term.full_blocks() @ inverse.full_blocks() - np.eye(6)).max() < 1e-13
        dagger = inverse.dagger().full_blocks()
        assert np.abs(dagger - inverse.full_blocks().conj().swapaxes(-1, -2)).max() < 1e-13


def test_gamma_matrices_are_those_of_the_reference():
    assert np.array_equal(GAMMA, np.stack(reference.GAMMAS))


# -- parameters --------------------------------------------------------------------------------------------------------


def test_mass_and_kappa_are_one_number():
    assert WilsonDirac(kappa=0.125).mass == 0.0
    assert WilsonDirac(mass=0.1).kappa == 1 / 8.2
    assert math.isclose(CloverWilsonDirac(kappa=0.13, csw=1).mass, 1 / 0.26 - 4)
    assert math.isclose(WilsonDirac(kappa=1 / 8.2).mass, 0.1)


@pytest.mark.parametrize("kind", [WilsonDirac, CloverWilsonDirac, TwistedMassDirac])
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (dict(mass=0.1, kappa=0.1), "got both"), (dict(), "got neither"), (dict(mass=math.nan), "finite"),
        (dict(mass=math.inf), "finite"), (dict(kappa=math.nan), "finite"), (dict(kappa=0.0), "mass infinite"),
        (dict(kappa=1e-320), "mass infinite"),
        (dict(mass=-4), "kappa infinite"), (dict(mass="0.1"), "real number"), (dict(mass=True), "real number"),
        (dict(mass=0.1 + 0j), "real number"), (dict(mass=0.1, xi0=0), "positive"), (dict(mass=0.1, nu=-1), "positive"),
        (dict(mass=0.1, xi0=math.nan), "finite"), (dict(mass=0.1, boundary=(1, 1, 1)), "four phases"),
        (dict(mass=0.1, boundary=(2, 1, 1, 1)), "modulus 1"), (dict(mass=0.1, boundary={"w": -1}), "no direction"),
        (dict(mass=0.1, boundary="antiperiodc"), "did you mean 'antiperiodic'"), (dict(mass=0.1, boundary=-1), "four phases"),
        (dict(mass=0.1, boundary=(math.nan, 1, 1, 1)), "modulus 1"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_parameters_are_refused(kind, wrong, says):
    more = {CloverWilsonDirac: {"csw": 1.0}, TwistedMassDirac: {"mu": 0.1}}.get(kind, {})
    with pytest.raises(ParameterError, match=says):
        kind(**more, **wrong)


@pytest.mark.parametrize(
    "wrong", [dict(), dict(csw=math.nan), dict(csw=1, csw_r=2), dict(csw_r=1), dict(csw="1")], ids=str
)
def test_the_clover_coefficient_is_never_zero_by_accident(wrong):
    with pytest.raises(ParameterError, match="csw"):
        CloverWilsonDirac(mass=0.1, **wrong)


def test_phases_may_be_named_listed_or_mapped():
    assert (
        boundary_phases("antiperiodic") == boundary_phases({"t": -1}) == boundary_phases([-1, 1, 1, 1]) == (-1, 1, 1, 1)
    )
    assert boundary_phases(np.array([-1.0, 1, 1, 1])) == (-1, 1, 1, 1)


# -- binding -----------------------------------------------------------------------------------------------------------


def test_links_off_the_group_are_refused_by_default_and_accepted_on_request():
    bad = U.array.copy()
    bad[0, 0, 0, 0, 0] *= 1.1
    with pytest.raises(NonUnitaryLinksError, match="off SU"):
        WilsonDirac(mass=0.1).bind(GaugeField(G, bad))
    with pytest.raises(NonUnitaryLinksError, match="off SU"):
        WilsonDirac(mass=0.1).bind(bad)
    got = WilsonDirac(mass=0.1).bind(bad, check_links=False)(PSI.array)
    assert np.abs(got - reference.dirac(bad, PSI.batch, 0.1)[0]).max() < 1e-14
    bad[0, 0, 0, 0, 0, 0, 0] = np.nan
    with pytest.raises(NonUnitaryLinksError, match="not finite"):
        WilsonDirac(mass=0.1).bind(bad)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"], ids=repr)
def test_n_rhs_is_a_whole_number_of_at_least_one(wrong):
    with pytest.raises(ParameterError, match="n_rhs"):
        WilsonDirac(mass=0.1).bind(U, n_rhs=wrong)


def test_links_must_be_complex_and_have_their_shape():
    with pytest.raises(FieldTypeError, match="complex"):
        WilsonDirac(mass=0.1).bind(np.ones(G.gauge_shape))
    with pytest.raises(FieldShapeError, match=r"\(T, Z, Y, X, 4, Nc, Nc\)"):
        WilsonDirac(mass=0.1).bind(U.array[..., 0, :, :])


def test_even_odd_is_refused_on_an_odd_extent_and_the_full_operator_works():
    m = WilsonDirac(mass=0.1).bind(U)
    assert np.isfinite(m(PSI).array).all()
    with pytest.raises(GeometryError, match=r"Z=1, Y=3 is odd"):
        m.even_odd()
    for wrong in (dict(parity=2), dict(form="asymetric")):
        with pytest.raises(ParameterError):
            WilsonDirac(mass=0.1).bind(UE).even_odd(**wrong)


def test_a_changed_field_never_meets_an_old_bind():
    u = GaugeField(GE, UE.array.copy())
    m = WilsonDirac(mass=0.1).bind(u)
    before = m(PSIE).array
    u.array[...] = np.eye(3)
    assert np.array_equal(m(PSIE).array, before)  # the packed copy is the operator's own
    with pytest.raises(StaleGaugeError, match="changed after bind"):
        m.rebind(precision="single")
    with pytest.raises(StaleGaugeError, match="changed after bind"):
        m.even_odd()


def test_rebind_carries_definition_links_and_choice():
    m = CloverWilsonDirac(mass=0.1, csw=1.0).bind(UE, n_rhs=3)
    low = m.rebind(precision="single")
    assert (low.definition, low.links, low.n_rhs, low.choice.name) == (m.definition, m.links, 3, "numpy")
    want = m(PSIE).array
    assert np.linalg.norm(low(PSIE.to("single")).array - want) < 6e-6 * np.linalg.norm(want)
    assert m.normal_linear.rebind(precision="single").vectors.precision.name == "single"
    assert m.even_odd(1, "asymmetric").linear.rebind(n_rhs=1).owner.form == "asymmetric"


def test_provenance_is_plain_data():
    facts = CloverWilsonDirac(mass=0.1, csw=1.0, boundary=PHASES).bind(U).provenance()
    assert facts["operator"]["csw_t"] == 1.0 and facts["operator"]["boundary"] == PHASES
    assert facts["backend"] == "numpy" and facts["normalisation"] == "mass" and len(facts["links_digest"]) == 32


# -- D(psi, U) ---------------------------------------------------------------------------------------------------------


def test_a_field_gives_a_field_and_an_array_an_array():
    D = WilsonDirac(mass=0.1)
    field, array = D(PSI, U), D(PSI.array, U.array)
    assert isinstance(field, ColorSpinorField) and type(array) is np.ndarray
    assert np.array_equal(field.array, array)
    assert np.array_equal(D.dagger(PSI, U).array, D.dagger(PSI.array, U))
    assert np.array_equal(D.normal(PSI, U).array, D.dagger(D(PSI, U), U).array)


@pytest.mark.parametrize("precision", ["double", "single", "half", "bf16"])
def test_the_spinor_decides_the_precision(precision):
    psi = PSI.to(precision)
    out = WilsonDirac(mass=0.1)(psi, U)
    want = reference.dirac(U.array, psi.batch, 0.1)[0]
    assert np.linalg.norm(out.array - want) <= psi.precision.tolerance * np.linalg.norm(want)
    assert out.array.dtype == psi.precision.complex_dtype


def test_set_gauge_is_remembered_and_named_links_go_first():
    D = WilsonDirac(mass=0.1)
    with pytest.raises(ParameterError, match="needs links"):
        D(PSI)
    other = GaugeField.random(G, seed=8)
    assert D.set_gauge(U) is D
    assert np.array_equal(D(PSI).array, D(PSI, U).array)
    assert not np.array_equal(D(PSI, other).array, D(PSI).array)
    assert WilsonDirac(mass=0.1) == D  # links are no parameter


@pytest.mark.parametrize(
    "definition", [WilsonDirac(mass=0.1), CloverWilsonDirac(mass=0.1, csw=1.0)], ids=lambda d: d.name
)
def test_links_changed_in_place_are_seen(definition):
    u = GaugeField(G, U.array.copy())
    definition(PSI, u)
    u.array[...] = GaugeField.random(G, seed=8).array
    fresh = type(definition)(**{"mass": 0.1, **({"csw": 1.0} if definition.name == "clover" else {})})
    assert np.array_equal(definition(PSI, u).array, fresh(PSI, u).array)


def test_repeated_calls_bind_once(monkeypatch):
    D, calls, bind = WilsonDirac(mass=0.1), [], WilsonDirac.bind

    def counted(self, *args, **kwargs):
        calls.append(args)
        return bind(self, *args, **kwargs)

    monkeypatch.setattr(WilsonDirac, "bind", counted)
    for _ in range(3):
        D(PSI, U)
    assert len(calls) == 1


def test_an_operator_serves_a_batch_of_any_size():
    psi = ColorSpinorField.gaussian(G, seed=6, n_rhs=5)
    m = WilsonDirac(mass=0.1).bind(U, n_rhs=2)
    batch = m(psi).array
    for k in range(5):
        assert np.abs(batch[k] - m(psi.array[k])).max() < 1e-14


def test_a_static_backend_gets_padded_pieces(loopback):
    psi = ColorSpinorField.gaussian(G, seed=6, n_rhs=5)
    m = WilsonDirac(mass=0.1).bind(U, n_rhs=2, backend="loopback")
    want = WilsonDirac(mass=0.1).bind(U)(psi).array
    assert m(psi).array.shape == want.shape and np.abs(m(psi).array - want).max() < 1e-13


MISTAKES = [
    ("integer spinor", lambda: (np.ones(G.spinor_shape, int), U.array), FieldTypeError, "complex"),
    ("real spinor", lambda: (np.ones(G.spinor_shape), U.array), FieldTypeError, "complex"),
    ("spinor of another lattice", lambda: (PSIE, U), FieldShapeError, "4x2x2x2"),
    ("array of another lattice", lambda: (PSIE.array, U.array), FieldShapeError, "spinor has shape"),
    ("lattice transposed", lambda: (np.swapaxes(PSI.array, 0, 2), U.array), FieldShapeError, "spinor has shape"),
    ("Nc", lambda: (PSI.array[..., :2], U.array), FieldShapeError, "spinor has shape"),
    ("broadcastable extent", lambda: (PSI.array[:1], U.array), FieldShapeError, "spinor has shape"),
    ("broadcastable colour", lambda: (PSI.array[..., :1], U.array), FieldShapeError, "spinor has shape"),
    ("three spins", lambda: (PSI.array[..., :3, :], U.array), FieldShapeError, "spinor has shape"),
    ("two batch axes", lambda: (PSI.array[None, None], U.array), FieldShapeError, "spinor has shape"),
    ("empty batch", lambda: (PSI.array[None][:0], U.array), FieldShapeError, "empty batch"),
    ("arguments exchanged", lambda: (U.array, PSI.array), FieldShapeError, "links"),
    ("a list", lambda: ([1, 2], U.array), FieldTypeError, r"D\(psi, U\)"),
    ("real links", lambda: (PSI, U.array.real), FieldTypeError, "links must be complex"),
    ("links of objects", lambda: (PSI, U.array.astype(object)), FieldTypeError, "links must be complex"),
    ("a field on one parity", lambda: (
        ColorSpinorField(GE, GE.split_parity(PSIE.array, 0), parity=0), UE), FieldShapeError, "even_odd"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "says"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistakes_are_errors_and_never_broadcast(make, error, says):
    psi, u = make()
    with pytest.raises(error, match=says):
        WilsonDirac(mass=0.1)(psi, u)


@pytest.mark.parametrize("wrong", [[1, 2], None, 3, "psi"], ids=str)
def test_a_bound_operator_says_what_is_no_spinor(wrong):
    m = WilsonDirac(mass=0.1).bind(U)
    for use in (m, m.dagger, lambda b: solve(m, b, BiCGStab(tol=1e-8))):
        with pytest.raises(FieldTypeError, match="a field or an array"):
            use(wrong)


def test_precision_is_never_lowered_in_silence():
    m = WilsonDirac(mass=0.1).bind(U, precision="single")
    with pytest.raises(FieldTypeError, match="lowered to single in silence"):
        m(PSI)
    assert m(PSI.to("single")).precision.name == "single"


def test_nan_in_a_spinor_reaches_the_result():
    psi = PSI.array.copy()
    psi[0, 0, 0, 0, 0, 0] = np.nan
    assert np.isnan(WilsonDirac(mass=0.1)(psi, U.array)).any()


def test_the_choice_of_backend_is_part_of_what_is_kept(loopback):
    D = WilsonDirac(mass=0.1)
    with use_backend(None), prefer_backends("loopback"):
        D(PSI, U)
    D(PSI, U)
    assert {bound.choice.name for bound in D.__dict__["_kept"].kept.values()} == {"loopback", "numpy"}

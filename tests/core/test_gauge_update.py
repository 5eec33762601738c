"""Heatbath and overrelaxation: exact distributions, conserved action, and streams that do not depend on the order."""

import sys

import numpy as np
import pytest

from lqcd_core import gauge as gg
from lqcd_core.errors import GeometryError, LQCDError, NonUnitaryLinksError, ParameterError
from lqcd_core.fields import GaugeField, haar, random_gauge_rotation
from lqcd_core.gauge.update import (
    CheckerboardLinks,
    _propose_creutz,
    _propose_kennedy_pendleton,
    _sample_su2,
    heatbath_links,
    overrelax_links,
    subgroups,
)
from lqcd_core.geometry import LatticeGeometry

SMALL = LatticeGeometry(T=4, Z=2, Y=4, X=6)
stats = pytest.importorskip("scipy.stats")


def haar_site_last(nc, seed, n):
    return np.ascontiguousarray(np.moveaxis(haar(nc, seed, "gauge", range(n), 1)[:, 0], 0, 2))


def random_staples(nc, n, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return scale * (rng.normal(size=(nc, nc, n)) + 1j * rng.normal(size=(nc, nc, n)))


def re_tr(a, b):
    return np.einsum("ijn,jin->n", a, b).real


def su2_cdf(alpha):
    """Distribution function of x0 with density sqrt(1 - x0^2) exp(alpha x0), by quadrature in x0 = cos(theta)."""
    theta = np.linspace(0, np.pi, 200001)
    density = np.sin(theta) ** 2 * np.exp(alpha * (np.cos(theta) - 1))
    total = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return lambda x: 1 - np.interp(np.arccos(np.clip(x, -1, 1)), theta, total / total[-1])


# -- SU(2) ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 1e-9, 0.1, 1.0, 1.69, 1.71, 4.0, 12.0, 300.0])
def test_su2_samples_have_the_exact_distribution(alpha):
    n = 20000
    x = _sample_su2(np.full(n, alpha), seed=3, draw=1 << 20, first_site=0)
    np.testing.assert_allclose(np.einsum("in,in->n", x, x), 1, atol=1e-14)
    assert stats.kstest(x[0], su2_cdf(alpha)).pvalue > 1e-3
    direction = x[1:] / np.sqrt(1 - x[0] ** 2)
    for component in direction:  # uniform on the sphere: each component is uniform in [-1, 1] (Archimedes)
        assert stats.kstest(component, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.mean(direction[i] * direction[j])) < 4 / 3 / np.sqrt(n)
    assert abs(np.corrcoef(x[0], np.abs(direction[0]))[0, 1]) < 4 / np.sqrt(n)


@pytest.mark.parametrize("alpha", [0.7, 3.0])
def test_both_proposals_give_one_distribution(alpha):
    u = np.random.default_rng(5).random((4, 60000))
    samples = []
    for propose in (_propose_creutz, _propose_kennedy_pendleton):
        delta, accepted = propose(np.full(u.shape[1], alpha), u)
        samples.append(1 - delta[accepted])
        assert stats.kstest(samples[-1], su2_cdf(alpha)).pvalue > 1e-3


def test_mixed_alphas_are_sampled_site_by_site():
    alpha = np.tile([0.5, 5.0], 4000)
    x = _sample_su2(alpha, seed=4, draw=0, first_site=10)
    for a in (0.5, 5.0):
        assert stats.kstest(x[0, alpha == a], su2_cdf(a)).pvalue > 1e-3


def test_a_site_draws_the_same_whatever_its_neighbours():
    alpha = np.linspace(0, 9, 500)
    whole = _sample_su2(alpha, seed=4, draw=77, first_site=100)
    part = _sample_su2(alpha[123:321], seed=4, draw=77, first_site=223)
    np.testing.assert_allclose(part, whole[:, 123:321], rtol=0, atol=1e-15)


# -- one link ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nc, beta", [(2, 1.2), (3, 1.5), (4, 1.5), (3, -1.0)])
def test_heatbath_leaves_the_one_link_distribution_invariant(nc, beta):
    # Haar links, each with the weight it has in the target. After an update drawn from the right kernel the weighted
    # mean of any function is what it was; the staple is a fixed complex matrix, so nothing is symmetric by accident.
    n = 60000
    u = haar_site_last(nc, 21, n)
    a = np.repeat(random_staples(nc, 1, seed=2, scale=0.6), n, axis=2)
    weight = np.exp(beta / nc * re_tr(u, a))
    weight /= weight.mean()
    new = u.copy()
    heatbath_links(new, a, beta, seed=8, counter=3)
    for k in range(4):
        b = np.repeat(random_staples(nc, 1, seed=50 + k), n, axis=2)
        for f in (lambda v: re_tr(v, b), lambda v: re_tr(v, b) ** 2, lambda v: re_tr(v, a) ** 3):  # noqa: B023
            change = weight * (f(new) - f(u))
            assert abs(change.mean()) < 4 * change.std() / np.sqrt(n)
    # and it does move: plain Haar links are not invariant
    drift = re_tr(new, a) - re_tr(u, a)
    assert abs(drift.mean()) > 10 * drift.std() / np.sqrt(n)


def test_heatbath_forgets_the_start_for_su2():
    # SU(2) is its own subgroup: the new link depends on the staple and the numbers drawn, not on the old link
    a = random_staples(2, 300)
    cold, hot = np.repeat(np.eye(2, dtype=complex)[..., None], 300, axis=2), haar_site_last(2, 1, 300)
    heatbath_links(cold, a, 2.0, seed=1, counter=0)
    heatbath_links(hot, a, 2.0, seed=1, counter=0)
    np.testing.assert_allclose(cold, hot, atol=1e-13)


@pytest.mark.parametrize("nc", [2, 3, 4, 5])
def test_updates_stay_in_the_group(nc):
    n = 50
    u = haar_site_last(nc, 5, n)
    a = random_staples(nc, n)
    heatbath_links(u, a, 6.0, seed=1, counter=0)
    overrelax_links(u, a)
    m = np.moveaxis(u, 2, 0)
    np.testing.assert_allclose(m @ m.conj().swapaxes(-1, -2), np.broadcast_to(np.eye(nc), m.shape), atol=1e-13)
    np.testing.assert_allclose(np.linalg.det(m), 1, atol=1e-13)
    assert len(subgroups(nc)) == nc * (nc - 1) // 2


@pytest.mark.parametrize("nc", [2, 3, 4])
def test_overrelaxation_conserves_each_link_action_and_moves(nc):
    n = 200
    u = haar_site_last(nc, 5, n)
    a = random_staples(nc, n)
    new = u.copy()
    overrelax_links(new, a)
    np.testing.assert_allclose(re_tr(new, a), re_tr(u, a), rtol=0, atol=1e-12)
    assert np.abs(new - u).max(axis=(0, 1)).min() > 1e-2
    if nc == 2:  # a reflection: twice is the identity
        overrelax_links(new, a)
        np.testing.assert_allclose(new, u, atol=1e-12)


def test_a_vanishing_staple_gives_haar():
    n = 20000
    u = np.repeat(np.eye(3, dtype=complex)[..., None], n, axis=2)
    zero = np.zeros_like(u)
    overrelax_links(u, zero)
    assert np.isfinite(u).all()
    for counter in range(6):  # the three subgroups mix to Haar within a few sweeps
        heatbath_links(u, zero, 6.0, seed=2, counter=counter)
    t = np.einsum("iin->n", u)
    assert abs(np.mean(np.abs(t) ** 2) - 1) < 4 * np.std(np.abs(t) ** 2) / np.sqrt(n)
    assert abs(np.mean(t)) < 4 / np.sqrt(n)


# -- the lattice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nc", [2, 3])
def test_checkerboard_layout_round_trip_staples_and_plaquette(nc):
    geometry = LatticeGeometry(T=4, Z=2, Y=4, X=6, nc=nc)
    u = GaugeField.random(geometry, seed=1)
    work = CheckerboardLinks(u)
    np.testing.assert_array_equal(work.field().array, u.array)
    assert work.plaquette() == pytest.approx(gg.plaquette(u), abs=1e-15)
    for mu in range(4):
        want = gg.staple(u, mu)
        for parity in (0, 1):
            found = np.moveaxis(work.staple(mu, parity, slice(3, 70)), 2, 0)
            half = geometry.split_parity(want, parity).reshape(-1, nc, nc)[3:70]
            np.testing.assert_allclose(found, half, atol=1e-13)


@pytest.mark.parametrize("nc", [2, 3, 4])
def test_overrelaxation_sweep_conserves_the_action(nc):
    u = GaugeField.random(LatticeGeometry(T=4, Z=2, Y=4, X=2, nc=nc), seed=1)
    new = gg.overrelaxation_sweep(u, sweeps=3)
    assert gg.wilson_action(new, 1.0) == pytest.approx(gg.wilson_action(u, 1.0), rel=1e-13)
    assert np.abs(new.array - u.array).max() > 0.1
    assert new.unitarity() < 1e-13


def test_sweeps_do_not_depend_on_blocking(monkeypatch):
    u = GaugeField.random(SMALL, seed=1)
    one = gg.overrelaxation_sweep(gg.heatbath_sweep(u, 5.7, seed=3, sweep=4))
    monkeypatch.setattr(sys.modules["lqcd_core.gauge.update"], "_BLOCK", 7)
    other = gg.overrelaxation_sweep(gg.heatbath_sweep(u, 5.7, seed=3, sweep=4))
    np.testing.assert_allclose(other.array, one.array, rtol=0, atol=1e-12)


def test_heatbath_sweep_is_reproducible_and_its_sweeps_differ():
    u = GaugeField.random(SMALL, seed=1)
    before = u.digest()
    a = gg.heatbath_sweep(u, 5.7, seed=3, sweep=4)
    assert a.digest() == gg.heatbath_sweep(u, 5.7, seed=3, sweep=4).digest()
    assert a.digest() != gg.heatbath_sweep(u, 5.7, seed=3, sweep=5).digest()
    assert a.digest() != gg.heatbath_sweep(u, 5.7, seed=4, sweep=4).digest()
    assert u.digest() == before
    assert a.unitarity() < 1e-13
    assert gg.heatbath_sweep(u.to("single"), 5.7, seed=3, sweep=4).precision.name == "single"


def test_sweeps_do_not_pass_on_what_was_known_of_the_old_field():
    u = GaugeField.random(SMALL, seed=1)
    u.origin = {"kind": "file", "checksum": "abc"}
    new = gg.overrelaxation_sweep(gg.heatbath_sweep(u, 6.0, 1, 0))
    assert "checksum" not in new.origin and new.origin["from"] == u.origin == {"kind": "file", "checksum": "abc"}


def test_overrelaxation_commutes_with_gauge_transformations_for_su2():
    # g = V^dagger^2 turns with the gauge field, so for Nc = 2 the update is covariant
    geometry = LatticeGeometry(T=2, Z=4, Y=2, X=4, nc=2)
    u, g = GaugeField.random(geometry, seed=1), random_gauge_rotation(geometry, seed=2)
    a = gg.overrelaxation_sweep(u).gauge_transform(g)
    b = gg.overrelaxation_sweep(u.gauge_transform(g))
    np.testing.assert_allclose(a.array, b.array, atol=1e-11)


def test_very_strong_and_very_weak_coupling():
    work = CheckerboardLinks(GaugeField.cold(SMALL))
    for sweep in range(30):
        work.heatbath(3000.0, 1, sweep)
        work.overrelax()
    # 8 x 3 (V - 1) Gaussian modes of action 1/2 each: beta (1 - P) = 2 to leading order
    assert 3000 * (1 - work.plaquette()) == pytest.approx(2, rel=0.1)
    for sweep in range(5):
        work.heatbath(0.0, 2, sweep)
    assert abs(work.plaquette()) < 4 * np.sqrt(1 / 18 / (6 * SMALL.volume))  # <(Re tr)^2> / 9 = 1/18 per plaquette


@pytest.mark.parametrize("odd", [dict(T=3), dict(X=5), dict(Y=1)])
def test_odd_extents_are_refused(odd):
    geometry = LatticeGeometry(**{**dict(T=4, Z=4, Y=4, X=4), **odd})
    u = GaugeField.cold(geometry)
    (name,) = odd
    calls = [
        lambda: gg.heatbath_sweep(u, 6.0, 1, 0),
        lambda: gg.overrelaxation_sweep(u),
        lambda: gg.generate(geometry, 6.0, 1, thermalization=1, separation=1, configurations=1),
    ]
    for call in calls:
        with pytest.raises(GeometryError, match=f"{name}={odd[name]}"):
            call()


def test_wrong_arguments_are_refused():
    u = GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2))
    for call in (
        lambda: gg.heatbath_sweep(u, np.nan, 1, 0),
        lambda: gg.heatbath_sweep(u, "6", 1, 0),
        lambda: gg.heatbath_sweep(u, 6.0, -1, 0),
        lambda: gg.heatbath_sweep(u, 6.0, 1, -1),
        lambda: gg.heatbath_sweep(u, 6.0, 1, 1.5),
        lambda: gg.overrelaxation_sweep(u, 0),
    ):
        with pytest.raises(LQCDError):
            call()
    damaged = u.array.copy()
    damaged[0, 0, 0, 0, 1, 1, 2] = np.nan
    with pytest.raises(NonUnitaryLinksError, match="not finite"):
        gg.heatbath_sweep(GaugeField(u.geometry, damaged), 6.0, 1, 0)


# -- autocorrelation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("a", [0.0, 0.5, 0.9])
def test_autocorrelation_of_a_markov_chain(a):
    # x_{k+1} = a x_k + noise has rho(k) = a^k and tau = (1 + a) / (2 (1 - a))
    noise = np.random.default_rng(1).normal(size=40000)
    x = np.empty_like(noise)
    x[0] = noise[0] / np.sqrt(1 - a * a)
    for k in range(1, len(x)):
        x[k] = a * x[k - 1] + noise[k]
    found = gg.integrated_autocorrelation(x)
    assert abs(found.time - (1 + a) / (2 * (1 - a))) < 3 * found.error
    assert found.error < 0.2 * found.time
    assert abs(found.mean) < 4 * found.mean_error
    assert found.mean_error == pytest.approx(x.std() * np.sqrt(2 * found.time / len(x)), rel=1e-6)


@pytest.mark.parametrize("series", [[1, 2, 3], np.ones(10), [1, 2, np.nan, 3, 4], np.ones((4, 4)), np.full(100, 0.1)])
def test_autocorrelation_refuses(series):
    with pytest.raises(ParameterError):
        gg.integrated_autocorrelation(series)

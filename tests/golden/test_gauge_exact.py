"""Gauge numbers known exactly or printed by other codes: one-link integrals, expansions, and their plaquettes."""

import numpy as np
import pytest

from lqcd_core import gauge as gg
from lqcd_core.fields import GaugeField
from lqcd_core.gauge.update import CheckerboardLinks, heatbath_links
from lqcd_core.geometry import LatticeGeometry

BETAS = (0.5, 1, 2, 3, 5.7, 6, 9)
# <Re tr U> / 3 with weight exp(beta/3 Re tr U) on SU(3), and I_2(beta) / I_1(beta) for SU(2)
ONE_LINK = {
    3: (0.0289316728, 0.0601265548, 0.1286277853, 0.2030750500, 0.4027166073, 0.4225317396, 0.5803755665),
    2: (0.1237179283, 0.2401937239, 0.4331274267, 0.5679236493, 0.7511359471, 0.7627260757, 0.8385719741),
}


def su3_integral(beta, functions, n=96):
    """Means over SU(3) with weight exp(beta/3 Re tr U): Weyl's formula on a grid of eigenphases (spectrally exact)."""
    phase = 2 * np.pi * np.arange(n) / n
    a, b = np.meshgrid(phase, phase, indexing="ij")
    z = np.exp(1j * np.stack([a, b, -a - b]))
    haar = np.abs((z[0] - z[1]) * (z[1] - z[2]) * (z[2] - z[0])) ** 2
    trace = z.sum(0)
    weight = haar * np.exp(beta / 3 * trace.real)
    return [float((weight * f(trace)).sum() / weight.sum()) for f in functions]


@pytest.mark.parametrize("beta, value", list(zip(BETAS, ONE_LINK[3])))
def test_the_integral_used_below_gives_the_golden_numbers(beta, value):
    assert su3_integral(beta, [lambda t: t.real / 3])[0] == pytest.approx(value, abs=2e-10)


@pytest.mark.parametrize("nc", [2, 3])
@pytest.mark.parametrize("k", range(len(BETAS)))
def test_one_link_heatbath(nc, k):
    beta, n = BETAS[k], 4000
    u = np.repeat(np.eye(nc, dtype=complex)[..., None], n, axis=2)
    staple = u.copy()  # A = 1
    functions = [lambda t: t.real / nc, lambda t: np.abs(t) ** 2, lambda t: t.real**2, lambda t: (t**3).real]
    sums = np.zeros((len(functions), n))
    updates = 0
    for counter in range(36):
        heatbath_links(u, staple, beta, seed=17, counter=counter)
        if counter >= 6:
            t = np.einsum("iin->n", u)
            sums += [f(t) for f in functions]
            updates += 1
    means = sums / updates  # per chain; chains are independent, so their scatter holds the autocorrelation
    found, error = means.mean(1), means.std(1) / np.sqrt(n)
    assert abs(found[0] - ONE_LINK[nc][k]) < 3 * error[0]
    assert error[0] < 1.5e-3
    if nc == 3:
        want = su3_integral(beta, functions)
        assert (np.abs(found - want) < 3.5 * error).all()


def mean_plaquette(geometry, beta, seed, thermalization, sweeps, overrelaxation=1):
    work = CheckerboardLinks(GaugeField.cold(geometry))
    series = []
    for sweep in range(thermalization + sweeps):
        work.heatbath(beta, seed, sweep)
        for _ in range(overrelaxation):
            work.overrelax()
        if sweep >= thermalization:
            series.append(work.plaquette())
    found = gg.integrated_autocorrelation(series)
    return found.mean, found.mean_error


@pytest.mark.parametrize("nc, beta", [(3, 0.5), (3, 1.0), (2, 0.5)])
def test_strong_coupling(nc, beta):
    # P = u + 4 u^5 + ..., u the one-plaquette mean: four cubes stand on a plaquette
    p, error = mean_plaquette(LatticeGeometry(T=4, Z=4, Y=4, X=4, nc=nc), beta, 5, 20, 120)
    assert error < 2e-3
    one_plaquette = ONE_LINK[nc][BETAS.index(beta)]
    assert abs(p - (one_plaquette + 4 * one_plaquette**5)) < 3 * error


def test_weak_coupling():
    # 1 - P = g^2/3 + 0.0339109931 g^4 + 0.0137063 g^6, g^2 = 6 / beta (Alles, Feo and Panagopoulos, hep-lat/9801003).
    # On a periodic L^4 the 24 (V - 1) Gaussian modes have action 1/2 each and the 32 constant modes, whose action is
    # quartic, 1/4 each: 6 V beta (1 - P) = 12 (V - 1) + 8, so the first term is multiplied by 1 - 1/(3 V).
    beta, geometry = 60.0, LatticeGeometry(T=4, Z=4, Y=4, X=4)
    p, error = mean_plaquette(geometry, beta, 6, 40, 200)
    g2 = 6 / beta
    want = g2 / 3 * (1 - 1 / (3 * geometry.volume)) + 0.0339109931 * g2**2 + 0.0137063 * g2**3
    assert error < 8e-5
    assert abs(1 - p - want) < 3 * error


def test_plaquette_at_beta_3_36():
    # SIMULATeQCD's heatbath (beta = 6 / g^2), 8^3 x 4
    p, error = mean_plaquette(LatticeGeometry(T=4, Z=8, Y=8, X=8), 3.36, 7, 15, 60)
    assert error < 5e-4
    assert abs(p - 0.23439) < 3 * np.hypot(error, 0.00018)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # six minutes on an idle core
def test_plaquette_at_beta_6():
    # 16^4, P = 0.593678(24)
    p, error = mean_plaquette(LatticeGeometry(T=16, Z=16, Y=16, X=16), 6.0, 8, 60, 140, overrelaxation=3)
    assert error < 1e-4
    assert abs(p - 0.593678) < 3 * np.hypot(error, 0.000024)


# -- fields of other codes --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weak_field(test_data):
    return GaugeField.read(test_data / "pyquda" / "weak_field.lime")


def test_chroma_plaquettes_and_polyakov_loops_of_the_weak_field(weak_field):
    # printed by Chroma in single precision
    planes = dict(xy=0.994703591180344, xz=0.994926821130017, yz=0.994764904802044,
                  xt=0.994693187065423, yt=0.99485390773043, zt=0.994881552488854)  # fmt: skip
    found = gg.plaquettes(weak_field)
    assert set(found) == set(planes)
    for name, value in planes.items():
        assert found[name] == pytest.approx(value, abs=3e-7)
    loops = dict(x=0.966585880 - 0.001320887j, y=0.966365776 - 0.001234990j, z=0.967146148 - 0.001123099j,
                 t=0.87876950 - 0.00991386j)  # fmt: skip
    for direction, value in loops.items():
        assert gg.polyakov_loop(weak_field, direction) == pytest.approx(value, abs=3e-7)


def test_grid_clover_term(test_data):
    # Grid: (M_clover - M_wilson) psi at csw = 1 on the generated 8^4 field, directions x, y, z, t in the file
    folder = test_data / "grid_8888"

    def load(name, tail):
        return np.fromfile(folder / f"8x8x8x8.{name}.bin", complex).reshape(8, 8, 8, 8, *tail)

    u = load("U", (4, 3, 3))[..., ::-1, :, :]
    assert gg.plaquette(u) == pytest.approx(3.0173464200463056e-04, abs=1e-15)
    psi, m, m_clover = (load(name, (4, 3)) for name in ("psi", "M", "Mclover_csw1"))
    blocks = gg.clover_term(u, *gg.clover_coefficients(csw_r=1.0))
    found = np.einsum("...cij,...cj->...ci", blocks, psi.reshape(8, 8, 8, 8, 2, 6)).reshape(psi.shape)
    np.testing.assert_allclose(found, m_clover - m, rtol=0, atol=1e-13)

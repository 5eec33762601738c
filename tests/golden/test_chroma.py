"""Chroma's numbers on weak_field.lime (a 4^3 x 8 configuration of PyQUDA's tests; boundary antiperiodic in t).

Section A: norms per time slice of anisotropic Wilson and clover propagators of Chroma's regression tests. Source: a point at
the origin, Gaussian smeared with w = 2, n = 5, unnormalised. Those files are of the single-precision era: 1e-6.
Section B: double-precision clover propagators made with Chroma for lalibe; our M gives back their source.
"""

import numpy as np
import pytest

import lqcd_core as lqcd
from lqcd_core import CloverWilsonDirac, GaugeField, WilsonDirac

WILSON = [
    0.749881669999327, 0.127559084732057, 0.0488181675046557, 0.0261707085282163,
    0.0205313421547321, 0.0261869827813914, 0.0488589470882021, 0.127618665495695,
]  # fmt: skip
CLOVER = [
    0.588734367199896, 0.0440054663488397, 0.0154934281038289, 0.00913658310242971,
    0.00757904288702887, 0.00913718577511021, 0.015501454298906, 0.0440099963469373,
]  # fmt: skip
ANISOTROPY = dict(xi0=2.464, nu=0.95)
RUNS = {
    "wilson": (WilsonDirac(kappa=0.135, **ANISOTROPY), WILSON),
    "clover": (CloverWilsonDirac(kappa=0.115, csw_r=0.91, csw_t=1.07, **ANISOTROPY), CLOVER),
}


@pytest.fixture(scope="module")
def weak_field(test_data):
    return GaugeField.read(test_data / "pyquda" / "weak_field.lime")


@pytest.fixture(scope="module")
def source(weak_field):
    return lqcd.smeared_source(lqcd.point_source(weak_field.geometry), weak_field, width=2.0, steps=5)


def test_the_smeared_source_has_chromas_norm(source):
    columns = source.columns()  # all twelve
    assert float((np.abs(columns) ** 2).sum()) == pytest.approx(6.63399911108962, rel=1e-12)


@pytest.mark.parametrize("run", RUNS)
def test_norms_per_time_slice_of_anisotropic_propagators(weak_field, source, run):
    operator, want = RUNS[run]
    M = operator.bind(weak_field, backend="numpy", n_rhs=12)
    S = lqcd.propagator(M, source, lqcd.ConjugateGradient(tol=1e-9, maxiter=1000))
    got = (np.abs(S.array) ** 2).reshape(weak_field.geometry.T, -1).sum(axis=1)
    assert got == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(("dataset", "mass"), [("PS_up_4", 0.1), ("PS_dn_4", 0.2)])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_stored_clover_propagators_give_back_their_source(test_data, weak_field, backend, dataset, mass):
    h5py = pytest.importorskip("h5py")
    with h5py.File(test_data / "lalibe" / "test_propagator_t4.h5") as file:
        stored = file[f"sh_sig2p0_n5/{dataset}"][()]  # nested array types: np.array(dataset) would fail
    g = weak_field.geometry
    S = stored.reshape(*g.shape, 4, 4, 3, 3)  # sink spin, source spin, sink colour, source colour
    columns = np.ascontiguousarray(S.transpose(5, 7, 0, 1, 2, 3, 4, 6)).reshape(12, *g.spinor_shape)
    point = lqcd.smeared_source(lqcd.point_source(g, t=4), weak_field, width=2.0, steps=5).columns()
    M = CloverWilsonDirac(mass=mass, csw=1.17).bind(weak_field, backend=backend, n_rhs=12)
    assert np.linalg.norm(M(columns) - point) < 1e-11 * np.linalg.norm(point)

"""Propagators: every column solves its source, whatever the batch; what they say of themselves is true."""

import json

import numpy as np
import pytest

from lqcd_core import (
    CloverWilsonDirac,
    ColorSpinorField,
    GaugeField,
    LatticeGeometry,
    Propagator,
    WilsonDirac,
    random_gauge_rotation,
)
from lqcd_core.errors import FieldShapeError, NotConvergedError, ParameterError, ToleranceError
from lqcd_core.hadrons import noise_source, point_source, wall_source
from lqcd_core.hadrons.propagator import propagator
from lqcd_core.solvers import BiCGStab, ConjugateGradient, MixedPrecision
from lqcd_core.testing.loopback import register_loopback

pytestmark = pytest.mark.filterwarnings("error")

G = LatticeGeometry(T=4, Z=2, Y=2, X=2)
S = BiCGStab(tol=1e-10)


@pytest.fixture(scope="module")
def M():
    return WilsonDirac(mass=0.4).bind(GaugeField.random(G, seed=1), backend="numpy", n_rhs=12)


@pytest.fixture(scope="module")
def prop(M):
    return propagator(M, point_source(G, t=1, x=1), S)


def test_every_column_solves_its_source(M, prop):
    source = point_source(G, t=1, x=1)
    assert isinstance(prop, Propagator) and prop.array.dtype == np.complex128
    for k, (x, b) in enumerate(zip(prop.columns(), source.columns())):
        assert np.linalg.norm(M(x) - b) <= 1e-10 * np.linalg.norm(b), k
        spin, color = divmod(k, 3)
        assert np.array_equal(prop.array[..., :, spin, :, color], x)


def test_gamma5_hermiticity_between_two_points(M):
    """S(x, y) = gamma5 S(y, x)^dagger gamma5."""
    a, b = (0, 0, 0, 0), (2, 1, 0, 1)
    there = propagator(M, point_source(G, *a), S).array[b]
    back = propagator(M, point_source(G, *b), S).array[a]
    g5 = np.diag([1, 1, -1, -1])
    expected = np.einsum("ij,kjba,kl->ilab", g5, back.conj(), g5)
    assert np.abs(there - expected).max() < 1e-10 < 1e-6 * np.abs(there).max()  # |source| = 1, residual 1e-10


def test_a_propagator_is_gauge_covariant():
    U = GaugeField.random(G, seed=1)
    g = random_gauge_rotation(G, seed=2)
    D = CloverWilsonDirac(mass=0.5, csw=1.0)
    s, t = (
        propagator(D.bind(u, backend="numpy", n_rhs=12), point_source(G), S).array for u in (U, U.gauge_transform(g))
    )
    rotated = np.einsum("tzyxab,tzyxijbc,dc->tzyxijad", g, s, g[0, 0, 0, 0].conj())
    assert np.abs(t - rotated).max() < 1e-9 * np.abs(t).max()


@pytest.mark.parametrize("batch", [1, 5, 12, 100])
@pytest.mark.parametrize("solver", [S, ConjugateGradient(tol=1e-10), MixedPrecision(inner=BiCGStab(tol=1e-10))])
def test_no_bit_depends_on_the_batch(M, batch, solver):
    whole = propagator(M, point_source(G), solver)
    parts = propagator(M, point_source(G), solver, batch=batch)
    assert np.array_equal(whole.array, parts.array)
    for key in ("column_iterations", "column_residuals", "column_reasons"):
        assert whole.provenance["solve"][key] == parts.provenance["solve"][key]


def test_a_subset_is_a_batch_of_spinors_in_the_order_asked_for(M, prop):
    some = propagator(M, point_source(G, t=1, x=1), S, columns=[7, 2])
    assert isinstance(some, ColorSpinorField) and some.n_rhs == 2
    assert np.array_equal(some.array, prop.columns()[[7, 2]])
    one = propagator(M, point_source(G, t=1, x=1), S, columns=np.int64(3))
    assert np.array_equal(one.array[0], prop.columns()[3])
    noise = propagator(M, noise_source(G, 1, "z4", dilution=("spin",)), S)
    assert isinstance(noise, ColorSpinorField) and noise.n_rhs == 4


def test_it_says_how_it_was_made(M, prop):
    data = json.loads(json.dumps({"source": prop.source, "made": prop.provenance}, default=str))
    made = data["made"]
    assert data["source"]["kind"] == "point" and data["source"]["position"] == [1, 0, 0, 1]
    assert made["operator"]["mass"] == 0.4 and made["backend"] == "numpy" and made["links_digest"] == M.links.digest
    assert made["solver"] == {**S.parameters()} and made["precision"] == "double"
    assert made["preconditioning"] == {"even_odd": True, "form": "symmetric", "parity": 0}
    solve = made["solve"]
    assert solve["converged"] and len(solve["column_residuals"]) == 12 and max(solve["column_residuals"]) <= 1e-10
    assert made["version"] and made["numpy"] == np.__version__
    full = propagator(M, point_source(G), S, even_odd=False)
    assert full.provenance["preconditioning"] == {"even_odd": False}


def test_static_backends_pad(M):
    with register_loopback():
        L = WilsonDirac(mass=0.4).bind(GaugeField.random(G, seed=1), backend="loopback", n_rhs=5)
        found = propagator(L, point_source(G), S)
    expected = propagator(M, point_source(G), S)
    assert np.abs(found.array - expected.array).max() < 1e-9
    assert len(found.provenance["solve"]["column_reasons"]) == 12


def test_progress_names_the_columns(M):
    seen = []
    propagator(M, wall_source(G, t=0), S, columns=[3, 0, 9], batch=2, callback=seen.append)
    assert [p.columns for p in seen if p.iteration == 1] == [(3, 0), (9,)]
    assert {p.total for p in seen} == {1, 2}


def test_single_precision_makes_a_single_propagator():
    U = GaugeField.random(G, seed=1, precision="single")
    low = WilsonDirac(mass=0.4).bind(U, backend="numpy", n_rhs=12)
    assert propagator(low, point_source(G), BiCGStab(tol=1e-5)).array.dtype == np.complex64
    with pytest.raises(ToleranceError):
        propagator(low, point_source(G), BiCGStab(tol=1e-9))


def test_failure_raises_or_is_recorded(M):
    with pytest.raises(NotConvergedError):
        propagator(M, point_source(G), BiCGStab(tol=1e-10, maxiter=2))
    left = propagator(M, point_source(G), BiCGStab(tol=1e-10, maxiter=2), raise_on_failure=False)
    assert left.provenance["solve"]["converged"] is False
    assert set(left.provenance["solve"]["column_reasons"]) == {"maximum_iterations"}


@pytest.mark.parametrize("columns", [[], [12], [-1], [0, 0], [1.5], [True]])
def test_wrong_columns_are_refused(M, columns):
    with pytest.raises(ParameterError, match="column"):
        propagator(M, point_source(G), S, columns=columns)


def test_other_wrong_requests_are_refused(M):
    for wrong in (ColorSpinorField.gaussian(G, 1), np.zeros(G.spinor_shape, complex), None):
        with pytest.raises(ParameterError, match="Source"):
            propagator(M, wrong, S)
    with pytest.raises(ParameterError, match="bound operator"):
        propagator(WilsonDirac(mass=0.1), point_source(G), S)
    with pytest.raises(FieldShapeError, match="lives on"):
        propagator(M, point_source(LatticeGeometry(T=2, Z=2, Y=2, X=2)), S)
    for batch in (0, -1, 1.5, True):
        with pytest.raises(ParameterError, match="batch"):
            propagator(M, point_source(G), S, batch=batch)

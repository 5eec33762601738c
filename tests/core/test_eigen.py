"""Extremal eigenvalues: against dense diagonalisation, exact free values, and their own true residuals."""

import numpy as np
import pytest

from lqcd_core import CloverWilsonDirac, GaugeField, LatticeGeometry, TwistedMassDirac, WilsonDirac, errors
from lqcd_core.operators.linear import LinearOperator
from lqcd_core.params import EigParam
from lqcd_core.solvers.eigen import lanczos, spectral_bounds

G = LatticeGeometry(T=2, Z=2, Y=2, X=2)


def dense(apply, shape):
    n = int(np.prod(shape))
    return apply(np.eye(n, dtype=complex).reshape(n, *shape)).reshape(n, n).T


@pytest.fixture(scope="module")
def U():
    return GaugeField.random(G, seed=3)


@pytest.mark.parametrize(
    "definition", [WilsonDirac(mass=0.1), CloverWilsonDirac(mass=0.1, csw=1.2), TwistedMassDirac(mass=0.1, mu=0.3)]
)
def test_lanczos_finds_the_dense_eigenvalues_of_both_ends(definition, U):
    M = definition.bind(U, backend="numpy")
    exact = np.linalg.eigvalsh((lambda m: m.conj().T @ m)(dense(M, G.spinor_shape)))
    for which, want in (("smallest", exact[:3]), ("largest", exact[::-1][:3])):
        found = lanczos(M, 3, which, tol=1e-10)
        assert found.converged
        assert found.values == pytest.approx(want, rel=1e-12)
        assert (found.residuals <= 1e-10 * found.scale).all()


def test_residuals_are_true_and_vectors_orthonormal(U):
    M = WilsonDirac(mass=0.1).bind(U, backend="numpy")
    found = lanczos(M, 3, "smallest", tol=1e-8)
    v = M.vectors
    x = np.concatenate([v.unpack(h) for h in found.vectors])
    flat = x.reshape(3, -1)
    assert np.abs(flat.conj() @ flat.T - np.eye(3)).max() < 1e-10
    r = np.linalg.norm((M.normal(x) - found.values[:, None, None, None, None, None, None] * x).reshape(3, -1), axis=1)
    assert found.residuals == pytest.approx(r, rel=1e-3, abs=1e-13)


def test_schur_complement_on_one_parity(U):
    M = CloverWilsonDirac(mass=0.1, csw=1.2).bind(U, backend="numpy")
    S = M.even_odd(1, "asymmetric")
    v = S.vectors
    shape = G.parity_shape(1)
    m = dense(lambda b: v.unpack(S.apply_normal(v.pack(b))), shape)
    exact = np.linalg.eigvalsh(m)
    bounds = spectral_bounds(S, tol=1e-10)
    assert (bounds.smallest, bounds.largest) == pytest.approx((exact[0], exact[-1]), rel=1e-12)
    assert bounds.condition_number == pytest.approx(exact[-1] / exact[0], rel=1e-11)


def test_free_periodic_operator_has_its_exact_bounds():
    """U = 1: M^dagger M = (m + sum (1 - cos p))^2 + sum sin^2 p; on 2^4 p = 0 or pi, so m^2 and (m + 8)^2."""
    M = WilsonDirac(mass=0.5, boundary="periodic").bind(GaugeField.cold(G), backend="numpy")
    bounds = spectral_bounds(M, tol=1e-10)
    assert (bounds.smallest, bounds.largest) == pytest.approx((0.25, 72.25), rel=1e-12)


def test_a_multiple_of_the_identity_ends_after_one_vector(U):
    """The Krylov space is one-dimensional: found exactly, not divided by zero."""
    v = WilsonDirac(mass=0.1).bind(U, backend="numpy").vectors
    A = LinearOperator(vectors=v, apply=lambda x: v.scale(2.0, v.copy(x)), hermitian=True)
    found = lanczos(A, 1)
    assert found.values == pytest.approx([2.0], rel=1e-14) and found.converged and found.applications == 2


def test_batch_of_the_bind_does_not_matter(U):
    one = spectral_bounds(WilsonDirac(mass=0.1).bind(U, backend="numpy"), tol=1e-3)
    four = spectral_bounds(WilsonDirac(mass=0.1).bind(U, backend="numpy", n_rhs=4), tol=1e-3)
    assert four == one


@pytest.mark.parametrize(("precision", "tol"), [("single", 1e-5), ("half", 2e-3), ("bf16", 2e-2)])
def test_lower_precisions_reach_what_they_are_allowed_to_be_asked_for(precision, tol, U):
    M = WilsonDirac(mass=0.1).bind(U, backend="numpy")
    exact = np.linalg.eigvalsh((lambda m: m.conj().T @ m)(dense(M, G.spinor_shape)))
    low = spectral_bounds(M.rebind(precision=precision), tol=tol, maxiter=20)
    assert (low.smallest, low.largest) == pytest.approx((exact[0], exact[-1]), abs=tol * exact[-1])


def test_too_few_restarts_are_said(U):
    M = WilsonDirac(mass=0.1).bind(U, backend="numpy")
    found = lanczos(M, 2, "smallest", n_kr=6, tol=1e-10, maxiter=1)
    assert not found.converged and found.residuals.max() > 1e-10 * found.scale
    with pytest.raises(errors.NotConvergedError, match="smallest") as caught:
        spectral_bounds(M, n_kr=6, tol=1e-10, maxiter=1)
    assert caught.value.solution.restarts == 0


def test_what_cannot_work_is_refused(U):
    M = WilsonDirac(mass=0.1).bind(U, backend="numpy")
    with pytest.raises(errors.ParameterError, match="Hermitian"):
        lanczos(M.linear)
    with pytest.raises(errors.ParameterError, match="bind"):
        lanczos(WilsonDirac(mass=0.1))
    with pytest.raises(errors.ToleranceError, match="single"):
        lanczos(M.rebind(precision="single"), tol=1e-9)
    for bad in (
        dict(n_ev=0),
        dict(n_ev=5, n_kr=6),
        dict(which="middle"),
        dict(tol=0.0),
        dict(tol=float("nan")),
        dict(maxiter=0),
    ):
        with pytest.raises(errors.ParameterError):
            lanczos(M, **bad)


def test_eig_param_is_used(U):
    M = WilsonDirac(mass=0.1).bind(U, backend="numpy")
    p = EigParam(n_ev=2, n_kr=24, which="largest", tol=1e-8)
    assert (p.solve(M).values == lanczos(M, 2, "largest", n_kr=24, tol=1e-8).values).all()
    with pytest.raises(errors.ParameterError, match="n_kr"):
        EigParam(n_ev=16, n_kr=17)

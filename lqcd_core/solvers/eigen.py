r"""Extremal eigenvalues of a Hermitian operator by thick-restart Lanczos, over any Space.

With :math:`V_m` orthonormal and :math:`AV_m=V_mT_m+\beta_mv_{m+1}e_m^T`, the eigenpairs :math:`T_my=\theta y` give

.. math:: x=V_my,\qquad \|Ax-\theta x\|=\beta_m|y_m|.

When V is full, the wanted vectors x and :math:`v_{m+1}` are kept and the recurrence goes on from them [1]_. Every new
vector is orthogonalised against all of V, so T is found as :math:`V^\dagger AV` and no ghost eigenvalues appear.
What is reported is not :math:`\beta_m|y_m|` but the true residual, recomputed from x. For a Hermitian A there is an
eigenvalue within that residual of :math:`\theta`.

.. [1] K. Wu and H. Simon, SIAM J. Matrix Anal. Appl. 22 (2000) 602.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from ..backend import Handle
from ..errors import NotConvergedError, ParameterError, ToleranceError
from ..fields import ColorSpinorField
from ..geometry import FULL
from ..spaces import Vectors

ENDS = ("smallest", "largest")
"""The two ends of the spectrum."""


@attrs.frozen(eq=False)
class Eigenpairs:
    """Eigenvalues of one end of a spectrum, with the true residuals of their vectors."""

    values: np.ndarray
    """Eigenvalues, the extremal one first, real float64, in units of the operator; shape ``(n_ev,)``."""
    residuals: np.ndarray
    """|A x - theta x| for |x| = 1, recomputed, same units, at least 0; some eigenvalue of A is this close to theta."""
    vectors: tuple[Handle, ...] = attrs.field(repr=False)
    """Handles of the normalised eigenvectors, in the space of the operator."""
    converged: bool
    """True if every residual is at most tol times the largest |theta| met."""
    restarts: int
    """Restarts done, at least 0."""
    applications: int
    """Applications of A, those of the residuals included."""
    scale: float
    """The largest |theta| met, what the tolerance is relative to."""


@attrs.frozen
class SpectralBounds:
    """The two ends of the spectrum of a Hermitian operator."""

    smallest: float
    """Smallest eigenvalue."""
    largest: float
    """Largest eigenvalue."""
    smallest_residual: float
    """True residual of the smallest: an eigenvalue lies this close to it."""
    largest_residual: float
    """True residual of the largest."""

    @property
    def condition_number(self) -> float:
        """largest / smallest of a positive operator; infinite if the smallest is not above its own residual."""
        return self.largest / self.smallest if self.smallest > self.smallest_residual else float("inf")


def lanczos(
    operator,
    n_ev: int = 1,
    which: str = "smallest",
    *,
    n_kr: int | None = None,
    tol: float = 1e-6,
    maxiter: int = 500,
    seed: int = 0,
) -> Eigenpairs:
    r"""Eigenvalues of a Hermitian operator at one end of its spectrum.

    Parameters
    ----------
    operator
        A bound operator or Schur complement (its M^dagger M is taken), or a Hermitian
        :class:`~lqcd_core.operators.linear.LinearOperator`.
    n_ev
        Eigenpairs wanted, at least 1.
    which
        ``smallest`` or ``largest`` (algebraically).
    n_kr
        Vectors kept, at least n_ev + 2; default max(2 n_ev + 16, 32). Memory is n_kr + n_ev vectors.
    tol
        Stop when every wanted residual is at most tol times the largest :math:`|\theta|` met.
    maxiter
        Restarts allowed, at least 1.
    seed
        Of the Gaussian start vector.

    Raises
    ------
    ParameterError
        If the operator is not known to be Hermitian, or a parameter is out of range.
    ToleranceError
        If tol lies below what the operator's precision can reach.

    Examples
    --------
    >>> U = GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2))
    >>> found = lanczos(WilsonDirac(mass=0.5, boundary="periodic").bind(U, backend="numpy"))
    >>> round(float(found.values[0]), 10)
    0.25
    """
    a = _hermitian(operator)
    v = _one_column(a.vectors)
    _whole("n_ev", n_ev, 1)
    n_kr = max(2 * n_ev + 16, 32) if n_kr is None else n_kr
    _whole("n_kr", n_kr, n_ev + 2)
    _whole("maxiter", maxiter, 1)
    if which not in ENDS:
        raise ParameterError(f"which must be 'smallest' or 'largest', got {which!r}.")
    if not (np.isfinite(tol) and tol > 0):
        raise ParameterError(f"tol must be a positive number, got {tol!r}.")
    # M^dagger M is two applications, and 16-bit storage rounds the eigenvector itself as well
    limit = v.precision.tolerance * (4 if v.precision.is_split else 1)
    if tol < limit:
        raise ToleranceError(
            f"tol={tol:.3g} cannot be reached in {v.precision} precision (limit {limit:.3g}); bind the operator in a higher "
            "one or ask for less."
        )
    n_sites = int(np.prod(v.geometry.parity_shape(v.space.parity)))
    n_kr = min(n_kr, n_sites)  # a space of that dimension holds no more independent vectors
    if n_ev > n_kr:
        raise ParameterError(f"n_ev={n_ev} exceeds the dimension {n_sites} of the space.")

    basis: list[Handle] = [_start(v, seed)]
    t = np.zeros((n_kr, n_kr), complex)
    scale, applications, kept = 0.0, 0, 0
    for restart in range(maxiter):
        beta, tail = 0.0, None
        while True:  # extend V to n_kr vectors
            j = len(basis) - 1
            w = a.apply(basis[j])
            applications += 1
            before = _norm(v, w)
            # T is tridiagonal but for the first row after a restart: once against its entries, once against all of V
            for i in (*(range(j + 1) if j == kept else range(max(j - 1, 0), j + 1)), *range(j + 1)):
                h = complex(v.inner(basis[i], w)[0])
                w = v.axpy(-h, basis[i], w)
                t[i, j] += h
            t[j, : j + 1] = t[: j + 1, j].conj()
            t[j, j] = t[j, j].real
            beta = _norm(v, w)
            if beta <= v.precision.epsilon * max(before, scale):  # V spans an invariant subspace: T is exact
                beta, tail = 0.0, None
                break
            tail = v.scale(1.0 / beta, w)
            if len(basis) == n_kr:
                break
            basis.append(tail)
        m = len(basis)
        theta, y = np.linalg.eigh(t[:m, :m])
        scale = max(scale, float(np.abs(theta).max()))
        order = np.argsort(theta) if which == "smallest" else np.argsort(-theta)
        wanted = order[: min(n_ev, m)]
        estimate = beta * np.abs(y[m - 1, wanted])
        exhausted = tail is None
        if exhausted or estimate.max() <= tol * scale or restart == maxiter - 1:
            vectors = [_normalised(v, _combine(v, basis, y[:, k])) for k in wanted]
            residuals = np.empty(len(vectors))
            values = np.empty(len(vectors))
            for k, x in enumerate(vectors):
                ax = a.apply(x)
                applications += 1
                values[k] = v.inner(x, ax)[0].real
                residuals[k] = _norm(v, v.axpy(-values[k], x, ax))
            converged = len(values) == n_ev and bool((residuals <= tol * scale).all())
            if converged or exhausted or restart == maxiter - 1:
                return Eigenpairs(values, residuals, tuple(vectors), converged, restart, applications, scale)
        keep = order[: min(n_ev + (n_kr - n_ev) // 2, n_kr - 1)]
        basis = [*(_combine(v, basis, y[:, k]) for k in keep), tail]
        kept = len(keep)
        t[:] = 0
        t[range(len(keep)), range(len(keep))] = theta[keep]
    raise AssertionError("unreachable: the last restart returns")


def spectral_bounds(
    operator, *, n_kr: int = 64, tol: float = 1e-6, maxiter: int = 500, seed: int = 0
) -> SpectralBounds:
    r"""The smallest and the largest eigenvalue of a Hermitian operator (of M^dagger M for a bound one).

    Raises
    ------
    NotConvergedError
        If one end did not reach the tolerance in ``maxiter`` restarts; ``.solution`` holds what was found.
    ParameterError, ToleranceError
        See :func:`lanczos`.

    Examples
    --------
    The free operator at p = 0 has M = m:

    >>> U = GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2))
    >>> b = spectral_bounds(WilsonDirac(mass=0.5, boundary="periodic").bind(U, backend="numpy"))
    >>> round(b.smallest, 8), round(b.largest, 8)
    (0.25, 72.25)
    """
    ends = {}
    for which in ENDS:
        found = lanczos(operator, 1, which, n_kr=n_kr, tol=tol, maxiter=maxiter, seed=seed)
        if not found.converged:
            raise NotConvergedError(
                f"the {which} eigenvalue did not converge in {found.restarts} restarts of {n_kr} vectors: residual "
                f"{found.residuals[0]:.3g} where {tol * found.scale:.3g} was asked; raise n_kr, maxiter or tol.",
                found,
            )
        ends[which] = found
    low, high = ends["smallest"], ends["largest"]
    return SpectralBounds(
        float(low.values[0]), float(high.values[0]), float(low.residuals[0]), float(high.residuals[0])
    )


# -- steps -------------------------------------------------------------------------------------------------------------


def _hermitian(operator) -> Any:
    linear = getattr(operator, "normal_linear", operator)
    if not hasattr(linear, "vectors") or not hasattr(linear, "apply"):
        raise ParameterError(
            f"eigenvalues need a bound operator or a LinearOperator, got {type(operator).__name__}; bind it: D.bind(U)."
        )
    if not linear.hermitian:
        raise ParameterError(f"{linear.name} is not known to be Hermitian; pass {linear.name}.normal.")
    return linear


def _one_column(vectors: Vectors) -> Vectors:
    if vectors.n == 1:
        return vectors
    return vectors.narrow(1)  # says itself why a static space cannot


def _whole(name: str, value, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ParameterError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def _start(v: Vectors, seed: int) -> Handle:
    geometry, parity = v.geometry, v.space.parity
    noise = ColorSpinorField.gaussian(geometry, seed=seed, n_rhs=1).array
    if parity is not FULL:
        noise = geometry.split_parity(noise, parity, lead=1)
    return _normalised(v, v.pack(noise))


def _norm(v: Vectors, x: Handle) -> float:
    return float(np.sqrt(v.norm2(x)[0]))


def _normalised(v: Vectors, x: Handle) -> Handle:
    return v.scale(1.0 / _norm(v, x), x)


def _combine(v: Vectors, basis: list[Handle], coefficients: np.ndarray) -> Handle:
    out = v.zeros()
    for c, x in zip(coefficients, basis):
        out = v.axpy(complex(c), x, out)
    return out


__all__ = ["ENDS", "Eigenpairs", "SpectralBounds", "lanczos", "spectral_bounds"]

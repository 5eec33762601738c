r"""Effective masses, lattice units. NaN stands where a kind is not defined; nothing raises for noisy data.

With :math:`u=t-T/2`, T the extent:

* ``log``: :math:`m(t)=\ln\frac{C(t)}{C(t+1)}`, a single exponential; t = 0..T-2.
* ``cosh``: m solves :math:`\frac{C(t)}{C(t+1)}=\frac{\cosh(m\,u)}{\cosh(m(u+1))}`, :math:`C\propto e^{-mt}+e^{-m(T-t)}`; t = 0..T-2.
* ``sinh``: the same with sinh, :math:`C\propto e^{-mt}-e^{-m(T-t)}`.
* ``acosh``: :math:`m(t)=\mathrm{arcosh}\frac{C(t+1)+C(t-1)}{2C(t)}`, good for both; t = 1..T-2.

Entry t of the result belongs to the t of these formulas. ``cosh`` is not defined at t = (T-1)/2 of an odd T, where both
sides are 1 for every m.
"""

from __future__ import annotations

import numpy as np

from ..errors import FieldShapeError, FieldTypeError, ParameterError, nearest
from .statistics import Estimate, jackknife

KINDS = ("log", "cosh", "sinh", "acosh")
"""Kinds of effective mass."""


def effective_mass(correlator, kind: str) -> np.ndarray:
    r"""Effective mass of one correlator, or of each of many.

    Parameters
    ----------
    correlator
        Real, ``(..., T)``, t = 0 first.
    kind
        ``log``, ``cosh``, ``sinh`` or ``acosh`` (see the head of this module).

    Returns
    -------
    numpy.ndarray
        Shape of the correlator, lattice units, at least 0 except for ``log``; NaN where not defined.

    Raises
    ------
    ParameterError
        For an unknown kind.
    FieldTypeError
        For complex numbers: take ``.real``, knowing that the imaginary part is noise.
    FieldShapeError
        If T is below 3.

    Examples
    --------
    >>> t = np.arange(8)
    >>> C = np.exp(-0.5 * t) + np.exp(-0.5 * (8 - t))
    >>> [round(float(m), 12) for m in effective_mass(C, "cosh")[:4]]
    [0.5, 0.5, 0.5, 0.5]
    """
    C = np.asarray(correlator)
    if kind not in KINDS:
        raise ParameterError(f"effective mass {kind!r} is unknown; {nearest(str(kind), KINDS)}")
    if C.dtype.kind not in "fiu":
        raise FieldTypeError(f"an effective mass needs a real correlator, got {C.dtype}; take C.real.")
    if C.ndim == 0 or C.shape[-1] < 3:
        raise FieldShapeError(f"an effective mass needs a correlator (..., T) with T at least 3, got shape {C.shape}.")
    C = C.astype(float)
    out = np.full(C.shape, np.nan)
    T = C.shape[-1]
    with np.errstate(all="ignore"):  # undefined points become NaN, that is the contract
        if kind == "acosh":
            ratio = (C[..., 2:] + C[..., :-2]) / (2 * C[..., 1:-1])
            out[..., 1:-1] = np.where(ratio >= 1, np.arccosh(ratio), np.nan)
            return out
        ratio = C[..., :-1] / C[..., 1:]
        if kind == "log":
            out[..., :-1] = np.where((ratio > 0) & np.isfinite(ratio), np.log(ratio), np.nan)
            return out
        out[..., :-1] = _solve_periodic(ratio, np.arange(T - 1) - T / 2, -1.0 if kind == "sinh" else 1.0)
    return out


def effective_mass_jackknife(correlators, kind: str, bin_size: int = 1) -> Estimate:
    r"""Effective mass of the ensemble mean, with its jackknife error.

    Parameters
    ----------
    correlators
        Real, ``(configurations, ..., T)``.
    kind
        As for :func:`effective_mass`.
    bin_size
        Configurations per bin.

    Returns
    -------
    Estimate
        ``value`` and ``error`` of shape ``(..., T)``; the error is NaN where any jackknife mean has no solution.

    Raises
    ------
    ParameterError, FieldTypeError, FieldShapeError
        As :func:`effective_mass` and :func:`~lqcd_core.hadrons.statistics.jackknife`.
    """
    C = np.asarray(correlators)
    if C.ndim < 2:
        raise FieldShapeError(f"an ensemble of correlators is (configurations, ..., T), got shape {C.shape}.")
    return jackknife(C, lambda mean: effective_mass(mean, kind), bin_size)


def _solve_periodic(ratio: np.ndarray, u: np.ndarray, sign: float) -> np.ndarray:
    r"""m with :math:`f(m|u|)/f(m|u+1|)=r`, f = cosh (sign +1) or sinh (sign -1); NaN where there is none."""
    near, far = np.minimum(abs(u), abs(u + 1)), np.maximum(abs(u), abs(u + 1))
    # Of the two points the one farther from the middle holds the larger correlator: turn every ratio that way round.
    r = np.where(abs(u) >= abs(u + 1), ratio, 1 / ratio)
    if sign < 0:
        r = np.where(u * (u + 1) < 0, np.nan, r)  # across the middle sinh changes sign: both points say the same
    near, far, log_r = np.broadcast_to(near, r.shape), np.broadcast_to(far, r.shape), np.log(r)
    # g(m) = ln f(m far) - ln f(m near) - ln r grows with m. For cosh m - ln 2 <= g + ln r <= m, for sinh g + ln r >= m.
    gap = np.where(far > near, far - near, np.nan)

    def g(m):
        out = m * gap + np.log1p(sign * np.exp(-2 * m * far)) - np.log1p(sign * np.exp(-2 * m * near))
        return out - log_r

    low = np.maximum(log_r, 0) / gap if sign > 0 else np.zeros_like(r)
    high = (log_r + np.log(2)) / gap if sign > 0 else log_r / gap
    least = 0.0 if sign > 0 else np.log(far / near)
    ok = np.isfinite(log_r) & np.isfinite(gap) & (log_r >= least)
    if sign < 0:
        ok &= near > 0
    for _ in range(64):  # bisection to the last bit: monotonic, so it cannot fail
        middle = 0.5 * (low + high)
        below = g(middle) < 0
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(ok, 0.5 * (low + high), np.nan)


__all__ = ["KINDS", "effective_mass", "effective_mass_jackknife"]

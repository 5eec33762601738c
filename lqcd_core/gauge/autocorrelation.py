r"""Integrated autocorrelation time of a Monte Carlo series."""

from __future__ import annotations

import attrs
import numpy as np

from ..errors import ParameterError


@attrs.frozen
class Autocorrelation:
    """Integrated autocorrelation time and the mean with the error it implies."""

    time: float
    """tau_int in steps of the series; 1/2 for independent values."""
    error: float
    """Standard error of ``time``, same units."""
    window: int
    """W, the lag at which the sum was cut."""
    mean: float
    """Mean of the series."""
    mean_error: float
    """Standard error of the mean, sigma sqrt(2 tau_int / N)."""


def integrated_autocorrelation(series, s: float = 1.5) -> Autocorrelation:
    r"""Integrated autocorrelation time with an automatic window.

    .. math:: \tau = \frac12+\sum_{k=1}^{W}\frac{\Gamma(k)}{\Gamma(0)},\qquad
              \delta\tau = \tau\sqrt{\frac{2(2W+1)}{N}}

    W is the first lag at which :math:`e^{-W/\tau_W}-\tau_W/\sqrt{WN}<0`, where :math:`\tau_W` is S over
    :math:`\ln[(2\tau+1)/(2\tau-1)]` [1]_; the error is that of Madras and Sokal [2]_.

    Parameters
    ----------
    series
        Real values in Monte Carlo order, at least 4.
    s
        S of the window, the assumed ratio of exponential to integrated time; 1 to 2.

    Raises
    ------
    ParameterError
        If the series is too short, not finite, or does not vary.

    References
    ----------
    .. [1] U. Wolff, Comput. Phys. Commun. 156 (2004) 143, arXiv:hep-lat/0306017.
    .. [2] N. Madras and A. D. Sokal, J. Stat. Phys. 50 (1988) 109.

    Examples
    --------
    >>> noise = np.random.default_rng(1).normal(size=10000)
    >>> a = integrated_autocorrelation(noise)
    >>> abs(a.time - 0.5) < 0.05 and abs(a.mean) < 4 * a.mean_error
    True
    """
    x = np.asarray(series, dtype=float)
    if x.ndim != 1 or len(x) < 4:
        raise ParameterError(f"an autocorrelation needs one series of at least 4 values, got shape {x.shape}.")
    if not np.isfinite(x).all():
        raise ParameterError("the series holds values that are not finite.")
    n, mean = len(x), float(x.mean())
    d = x - mean
    # Gamma(k) for all lags by FFT, padded so that nothing wraps around
    power = np.abs(np.fft.rfft(d, 2 * n)) ** 2
    gamma = np.fft.irfft(power)[:n] / np.arange(n, 0, -1)
    if gamma[0] <= (1e-15 * abs(mean)) ** 2:
        raise ParameterError("the series does not vary; it has no autocorrelation time.")
    rho = gamma / gamma[0]
    tau, window = 0.5, 0
    for w in range(1, n // 2 + 1):
        tau, window = tau + float(rho[w]), w
        tau_w = s / np.log((2 * tau + 1) / (2 * tau - 1)) if tau > 0.5 else 1e-15
        if np.exp(-w / tau_w) - tau_w / np.sqrt(w * n) < 0:
            break
    # rho is short by the square of the mean's own error, 2 tau / n at every lag (Wolff, eq. 49)
    tau *= 1 + (2 * window + 1) / n
    return Autocorrelation(
        time=tau,
        error=float(tau * np.sqrt(2 * (2 * window + 1) / n)),
        window=window,
        mean=mean,
        mean_error=float(np.sqrt(max(tau, 0.0) * 2 * gamma[0] / n)),
    )


__all__ = ["Autocorrelation", "integrated_autocorrelation"]

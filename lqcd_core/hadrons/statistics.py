r"""Errors from an ensemble: binning, jackknife, bootstrap, covariance. The ensemble axis is always the first.

.. math:: \bar x_{(k)}=\frac1{N-1}\sum_{i\ne k}x_i,\qquad
          \sigma_J^2=\frac{N-1}N\sum_k\bigl|f(\bar x_{(k)})-\overline{f(\bar x_{(\cdot)})}\bigr|^2

For f = identity this is the standard error of the mean exactly. Binning first makes neighbouring, correlated
configurations into one sample.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from .. import random as rng
from ..errors import FieldShapeError, ParameterError


@attrs.frozen(eq=False)
class Estimate:
    """A value with its error, in the units of what was estimated."""

    value: np.ndarray
    """f of the mean over the whole ensemble; NaN where f is not defined."""
    error: np.ndarray
    """One standard deviation of ``value``, at least 0; NaN where f is not defined on every resampled mean."""
    samples: np.ndarray
    """f of every resampled mean, the resampling axis first."""
    method: str
    """``jackknife`` or ``bootstrap``."""
    bin_size: int
    """Configurations per bin, at least 1."""


def bin_samples(samples, bin_size: int) -> np.ndarray:
    """Means over consecutive bins along the first axis; configurations left over at the end are not used.

    Raises
    ------
    ParameterError
        If the bin size is no whole number of at least 1, or larger than the ensemble.

    Examples
    --------
    >>> [float(v) for v in bin_samples([1.0, 3.0, 5.0, 7.0, 100.0], 2)]
    [2.0, 6.0]
    """
    x = _ensemble(samples)
    if isinstance(bin_size, bool) or not isinstance(bin_size, (int, np.integer)) or bin_size < 1:
        raise ParameterError(f"bin size must be a whole number of at least 1, got {bin_size!r}.")
    bins = len(x) // bin_size
    if bins < 1:
        raise ParameterError(f"a bin of {bin_size} does not fit into an ensemble of {len(x)}.")
    return x[: bins * bin_size].reshape(bins, bin_size, *x.shape[1:]).mean(axis=1)


def jackknife_means(samples, bin_size: int = 1) -> np.ndarray:
    """The N leave-one-out means, ensemble axis first.

    Raises
    ------
    ParameterError
        If fewer than two bins are left.
    """
    x = bin_samples(samples, bin_size)
    if len(x) < 2:
        raise ParameterError(
            f"a jackknife error needs at least two bins; {len(np.asarray(samples))} configurations in bins of {bin_size} "
            f"make {len(x)}."
        )
    return (x.sum(axis=0) - x) / (len(x) - 1)


def jackknife(samples, function: Callable | None = None, bin_size: int = 1) -> Estimate:
    r"""Jackknife of f(mean); the value is f of the full mean, without bias correction.

    Parameters
    ----------
    samples
        Numbers or arrays, ensemble axis first.
    function
        f: array of the shape of one sample -> array; the identity if None.
    bin_size
        Configurations per bin.

    Returns
    -------
    Estimate

    Raises
    ------
    ParameterError
        For fewer than two bins.

    Examples
    --------
    >>> e = jackknife([1.0, 2.0, 3.0, 4.0])
    >>> float(e.value), round(float(e.error), 12) == round((5 / 3 / 4) ** 0.5, 12)
    (2.5, True)
    """
    f = function if function is not None else lambda m: m
    means = jackknife_means(samples, bin_size)
    replicas = np.stack([np.asarray(f(m)) for m in means])
    n = len(replicas)
    spread = np.abs(replicas - replicas.mean(axis=0)) ** 2
    # The mean of the leave-one-out means is the mean of the bins.
    return Estimate(
        np.asarray(f(means.mean(axis=0))),
        np.sqrt((n - 1) / n * spread.sum(axis=0)),
        replicas,
        "jackknife",
        int(bin_size),
    )


def bootstrap(samples, function: Callable | None = None, *, draws: int, seed: int, bin_size: int = 1) -> Estimate:
    r"""Bootstrap of f(mean): the spread of f over ensembles drawn with replacement, which depend on the seed only.

    Raises
    ------
    ParameterError
        For fewer than two bins or two draws.
    """
    f = function if function is not None else lambda m: m
    x = bin_samples(samples, bin_size)
    if len(x) < 2 or isinstance(draws, bool) or not isinstance(draws, (int, np.integer)) or draws < 2:
        raise ParameterError(f"a bootstrap needs at least two bins and two draws, got {len(x)} and {draws!r}.")
    picks = (rng.uniform(seed, "jackknife", draws, len(x)) * len(x)).astype(np.int64)
    replicas = np.stack([np.asarray(f(x[p].mean(axis=0))) for p in picks])
    spread = np.abs(replicas - replicas.mean(axis=0)) ** 2
    error = np.sqrt(spread.sum(axis=0) / (draws - 1))
    return Estimate(np.asarray(f(x.mean(axis=0))), error, replicas, "bootstrap", int(bin_size))


def covariance(samples, bin_size: int = 1) -> np.ndarray:
    r"""Covariance matrix of the *mean* of real vectors, :math:`\frac1{N(N-1)}\sum_k(x_k-\bar x)_i(x_k-\bar x)_j`.

    Parameters
    ----------
    samples
        Real, ``(ensemble, n)``; for instance correlators ``(configurations, T)``.
    bin_size
        Configurations per bin.

    Returns
    -------
    numpy.ndarray
        ``(n, n)``. Its diagonal is the square of the jackknife error of the mean. Its rank is below the number of bins.

    Raises
    ------
    ParameterError, FieldShapeError
        For fewer than two bins, complex numbers, or samples that are no vectors.
    """
    x = bin_samples(samples, bin_size)
    if x.ndim != 2:
        raise FieldShapeError(f"a covariance needs samples (ensemble, n), got shape {x.shape}.")
    if np.iscomplexobj(x):
        raise ParameterError("a covariance needs real samples; take .real of the correlators.")
    if len(x) < 2:
        raise ParameterError(f"a covariance needs at least two bins, got {len(x)}.")
    d = x - x.mean(axis=0)
    return d.T @ d / (len(x) * (len(x) - 1))


def _ensemble(samples) -> np.ndarray:
    x = np.asarray(samples)
    if x.ndim == 0 or len(x) == 0:
        raise FieldShapeError(f"an ensemble has its samples on the first axis, got an array of shape {x.shape}.")
    if x.dtype.kind not in "fciu":
        raise ParameterError(f"an ensemble holds numbers, got {x.dtype}.")
    return x.astype(np.result_type(x.dtype, np.float64))


__all__ = ["Estimate", "bin_samples", "bootstrap", "covariance", "jackknife", "jackknife_means"]

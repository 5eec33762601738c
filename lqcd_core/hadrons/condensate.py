r"""The quark condensate by stochastic sources, reported as the positive trace.

.. math:: \Sigma=\frac1V\mathrm{Tr}\,M^{-1}\approx\frac1V\,\frac1N\sum_{k=1}^N\sum_b\eta_{kb}^\dagger M^{-1}\eta_{kb},\qquad
          \langle\eta_i\eta_j^*\rangle=\delta_{ij}

One flavour, trace over sites, spins and colours, mass normalisation of M, lattice units; no division by Nc, Ns or the
number of flavours, no subtraction of the free or of the divergent part. The chiral condensate is
:math:`\langle\bar\psi\psi\rangle=-\Sigma`. A code that works in kappa normalisation quotes a trace larger by
:math:`1/(2\kappa)`; one that averages over colour divides by Nc: convert before comparing.

For M of Wilson type the trace is real by gamma5-Hermiticity, and the real part is what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from ..arrays import raw, to_numpy
from ..errors import FieldShapeError, NotConvergedError, ParameterError
from ..geometry import LatticeGeometry
from .sources import noise_source
from .statistics import jackknife


@attrs.frozen(eq=False)
class Condensate:
    """The estimate and what it was made of."""

    value: float
    """Mean over noise of (1/V) Tr S, positive for heavy quarks, lattice units."""
    error: float
    """Standard error of ``value`` over the noise samples of this configuration, at least 0; NaN for one sample."""
    samples: np.ndarray
    """(1/V) eta^dagger S eta of each noise sample, real, ``(n_noise,)``."""
    parameters: dict
    """Noise, seed, dilution: what reproduces the samples."""


def quark_condensate(
    solve: Callable,
    geometry: LatticeGeometry,
    *,
    seed: int,
    n_noise: int,
    noise: str = "z4",
    dilution: Sequence[str] = (),
    batch: int = 12,
) -> Condensate:
    r""":math:`\frac1V\mathrm{Tr}\,M^{-1}` by noise.

    Parameters
    ----------
    solve
        Maps a batch of columns ``(n, T, Z, Y, X, Ns, Nc)`` to the solutions of M x = b, of the same shape (an array, a
        field, ``(x, info)``, or a solution with ``.x``); or an object with such a method ``.solve``.
    geometry
        The lattice.
    seed
        In [0, 2^64).
    n_noise
        Number of noise samples, at least 1; two give an error.
    noise
        ``z2``, ``z4`` (the default: smaller variance than Gaussian) or ``gaussian``.
    dilution
        Any of ``time``, ``spin``, ``color``: more solves per sample, less variance.
    batch
        Largest number of columns solved together.

    Returns
    -------
    Condensate

    Raises
    ------
    ParameterError
        If n_noise or batch is below 1, or the noise or dilution is unknown.
    FieldShapeError
        If ``solve`` gives back another shape.
    NotConvergedError
        If a solution says that it did not converge.

    Examples
    --------
    M = 4 + m, infinitely heavy: the trace is 12 / (4 + m) exactly, for any Z_N noise.

    >>> g = LatticeGeometry(T=2, Z=2, Y=2, X=2)
    >>> c = quark_condensate(lambda b: b / 4.5, g, seed=1, n_noise=2)
    >>> round(c.value, 12) == round(12 / 4.5, 12), round(c.error, 12)
    (True, 0.0)
    """
    for name, value in (("n_noise", n_noise), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ParameterError(f"{name} must be a whole number of at least 1, got {value!r}.")
    solver = solve.solve if hasattr(solve, "solve") else solve
    samples = np.zeros(n_noise)
    for k in range(n_noise):
        source = noise_source(geometry, seed, noise, dilution=dilution, sample=k)
        for start in range(0, len(source), batch):
            eta = source.columns(range(start, min(start + batch, len(source))))
            x = _solution(solver(eta))
            if x.shape != eta.shape:
                raise FieldShapeError(
                    f"solve gave shape {x.shape} for columns of shape {eta.shape}; they must be equal."
                )
            samples[k] += np.vdot(eta, x.astype(complex, copy=False)).real
    samples /= geometry.volume
    error = float(jackknife(samples).error) if n_noise > 1 else float("nan")
    parameters = {
        "noise": noise, "seed": int(seed), "n_noise": int(n_noise), "dilution": list(dilution),
        "normalization": "(1/V) Tr S, one flavour, mass normalisation",
    }  # fmt: skip
    return Condensate(float(samples.mean()), error, samples, parameters)


def _solution(found) -> np.ndarray:
    """The array in what a solve gave back: an array, a field, ``(x, info)``, or a record with ``.x`` and ``.info``."""
    x, info = found if isinstance(found, tuple) else (getattr(found, "x", found), getattr(found, "info", None))
    if not getattr(info, "converged", True):
        raise NotConvergedError(
            f"a solve for the condensate did not converge ({getattr(info, 'reason', 'no reason given')}); its trace would be "
            "wrong by an unknown amount. Loosen tol or raise maxiter.",
            solution=found,
        )
    return to_numpy(raw(x))


__all__ = ["Condensate", "quark_condensate"]

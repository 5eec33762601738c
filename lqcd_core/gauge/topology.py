r"""Topological charge from the clover field strength.

The sign follows eps_{xyzt} = +1, as MILC, QUDA and Chroma have it; openQCD's eps_{txyz} = +1 gives the opposite sign.
"""

from __future__ import annotations

from math import pi
from typing import Any

from .field_strength import _strength
from .links import PLANES, LinkArray, links_of

_PAIRS = (("xy", "zt", 1.0), ("xz", "yt", -1.0), ("xt", "yz", 1.0))  # the three pairs of planes and eps


def _density(u: LinkArray) -> Any:
    # (1/32 pi^2) eps F F has 24 terms in 3 kinds of 8. F is anti-Hermitian: tr F F' = -tr F F'^dagger, which takes up
    # the minus sign that the formula has in terms of anti-Hermitian fields.
    total = 0.0
    for one, other, sign in _PAIRS:
        f = _strength(u, *PLANES[one], traceless=True)
        g = _strength(u, *PLANES[other], traceless=True)
        total = total + (sign / (4 * pi**2)) * u.xp.einsum("...ij,...ij->...", f, g.conj()).real
    return total


def topological_charge_density(gauge: Any) -> Any:
    """q(x) of :func:`topological_charge`, real, shape ``(T, Z, Y, X)``, lattice units."""
    return _density(links_of(gauge))


def topological_charge(gauge: Any) -> Any:
    r"""Topological charge, clover definition.

    .. math:: Q = \sum_x q(x),\qquad q(x) = -\frac{1}{32\pi^2}\sum_{\mu\nu\rho\sigma}\epsilon_{\mu\nu\rho\sigma}\,
              \mathrm{tr}\,F_{\mu\nu}(x)F_{\rho\sigma}(x),\qquad \epsilon_{xyzt}=+1

    with the anti-Hermitian F of :func:`~lqcd_core.gauge.field_strength`, its trace removed (the minus sign is absent
    when F is written Hermitian). Q approaches a whole number only on smooth fields: smear or flow first.

    Parameters
    ----------
    gauge
        Links, shape ``(T, Z, Y, X, 4, Nc, Nc)``.

    Returns
    -------
    float
        Q, dimensionless, accumulated in double; a 0-d tensor for torch input.

    References
    ----------
    .. [1] P. Di Vecchia et al., Nucl. Phys. B 192 (1981) 392.

    Examples
    --------
    >>> from lqcd_core.fields import GaugeField
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> topological_charge(GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2)))
    0.0
    """
    u = links_of(gauge)
    return u.scalar(u.site_sum(_density(u)))


__all__ = ["topological_charge", "topological_charge_density"]

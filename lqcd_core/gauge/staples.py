r"""Staples: what multiplies a link in the sum of the plaquettes that contain it."""

from __future__ import annotations

from typing import Any

from .links import dagger, direction_index, links_of


def staple(gauge: Any, direction: int | str) -> Any:
    r"""Sum of the six staples of every link of one direction.

    .. math:: A_\mu(x) = \sum_{\nu\ne\mu}\left[
              U_\nu(x+\hat\mu)U_\mu^\dagger(x+\hat\nu)U_\nu^\dagger(x) +
              U_\nu^\dagger(x+\hat\mu-\hat\nu)U_\mu^\dagger(x-\hat\nu)U_\nu(x-\hat\nu)\right]

    It runs from x + mu back to x, so the plaquettes that contain the link sum to Re tr U_mu(x) A_mu(x), and
    :math:`\sum_\mu\sum_x \mathrm{Re}\,\mathrm{tr}\,U_\mu A_\mu = 4\sum_P\mathrm{Re}\,\mathrm{tr}\,U_P`. Smearing and
    flow use its dagger, the path that runs beside the link.

    Parameters
    ----------
    gauge
        Links, shape ``(T, Z, Y, X, 4, Nc, Nc)``.
    direction
        ``"t"``, ``"z"``, ``"y"``, ``"x"`` or 0..3 in that order.

    Returns
    -------
    array
        Shape ``(T, Z, Y, X, Nc, Nc)``, the library and type of the links, dimensionless.

    Examples
    --------
    >>> from lqcd_core.fields import GaugeField
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> float(staple(GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2)), "t")[0, 0, 0, 0, 1, 1].real)
    6.0
    """
    mu = direction_index(direction)
    u = links_of(gauge)
    kernel = u.kernel("staple")
    if kernel is not None:
        return kernel(u.array, mu).astype(u.array.dtype, copy=False)
    total = 0.0
    u_mu = u.link(mu)
    for nu in range(4):
        if nu == mu:
            continue
        u_nu = u.link(nu)
        across = u.shift(u_nu, mu, 1)
        up = across @ dagger(u_nu @ u.shift(u_mu, nu, 1))
        down = dagger(u_mu @ across) @ u_nu  # at the lower corner, then moved up
        total = total + up + u.shift(down, nu, -1)
    return total


def staples(gauge: Any) -> Any:
    """:func:`staple` of all four directions, shape ``(T, Z, Y, X, 4, Nc, Nc)`` like the links."""
    return links_of(gauge).xp.stack([staple(gauge, mu) for mu in range(4)], 4)


__all__ = ["staple", "staples"]

r"""Closed loops of links: plaquettes, rectangles, Wilson and Polyakov loops, and the Wilson action.

Every trace is divided by Nc, so that all of them are 1 on the unit field. Functions take a
:class:`~lqcd_core.fields.GaugeField` or a raw array ``(T, Z, Y, X, 4, Nc, Nc)``; see :mod:`lqcd_core.gauge.links` for
what comes back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ParameterError
from .links import PLANES, SPATIAL_PLANES, TEMPORAL_PLANES, LinkArray, direction_index, links_of


def plane_sum(u: LinkArray, mu: int, nu: int) -> Any:
    """Sum over sites of Re tr P_{mu nu} / Nc."""
    a = u.link(mu) @ u.shift(u.link(nu), mu, 1)
    b = u.link(nu) @ u.shift(u.link(mu), nu, 1)
    return u.real_trace_sum(a, b) / u.nc


def plane_sums(u: LinkArray, names=tuple(PLANES)) -> dict[str, Any]:
    """:func:`plane_sum` of planes by name, from the backend where one offers it."""
    kernel = u.kernel("plaquettes")
    if kernel is None:
        return {name: plane_sum(u, *PLANES[name]) for name in names}
    found = dict(zip(PLANES, kernel(u.array) / u.nc))
    return {name: found[name] for name in names}


def _mean_plaquette(gauge: Any, names) -> Any:
    u = links_of(gauge)
    return u.scalar(sum(plane_sums(u, names).values()) / (len(names) * u.volume))


def plaquette(gauge: Any) -> Any:
    r"""Average plaquette, normalised to 1 on the unit field.

    .. math:: P = \frac{1}{6 V N_c} \sum_x \sum_{\mu<\nu}
              \mathrm{Re}\,\mathrm{tr}\, U_\mu(x) U_\nu(x+\hat\mu) U_\mu^\dagger(x+\hat\nu) U_\nu^\dagger(x)

    Parameters
    ----------
    gauge
        Links, shape ``(T, Z, Y, X, 4, Nc, Nc)``, direction order t, z, y, x, dimensionless.

    Returns
    -------
    float
        P, dimensionless; lies in [-1/2, 1] for SU(3), [-1, 1] for even Nc, [-cos(pi/Nc), 1] for odd Nc. Accumulated in
        double whatever the field's precision. A 0-d tensor for torch input.

    Raises
    ------
    FieldShapeError, FieldTypeError
        If the argument is no link array.

    References
    ----------
    .. [1] K. G. Wilson, Phys. Rev. D 10 (1974) 2445.

    Examples
    --------
    >>> from lqcd_core.fields import GaugeField
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> plaquette(GaugeField.cold(LatticeGeometry(T=4, Z=4, Y=4, X=4)))
    1.0
    """
    return _mean_plaquette(gauge, tuple(PLANES))


def plaquette_ss(gauge: Any) -> Any:
    """Average over the three spatial planes xy, xz, yz; see :func:`plaquette`."""
    return _mean_plaquette(gauge, SPATIAL_PLANES)


def plaquette_st(gauge: Any) -> Any:
    """Average over the three temporal planes xt, yt, zt; see :func:`plaquette`."""
    return _mean_plaquette(gauge, TEMPORAL_PLANES)


def plaquettes(gauge: Any) -> dict[str, Any]:
    """Average of each plane: ``{"xy", "xz", "yz", "xt", "yt", "zt"}`` to Re tr P / Nc (dimensionless).

    Examples
    --------
    >>> from lqcd_core.fields import GaugeField
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> plaquettes(GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2)))["zt"]
    1.0
    """
    u = links_of(gauge)
    return {name: u.scalar(total / u.volume) for name, total in plane_sums(u).items()}


def rectangle(gauge: Any) -> Any:
    r"""Average 2 x 1 rectangle over the twelve orientations, 1 on the unit field.

    .. math:: R = \frac{1}{12 V N_c}\sum_x\sum_{\mu\ne\nu}\mathrm{Re}\,\mathrm{tr}\,
              U_\mu(x)U_\mu(x+\hat\mu)\,U_\nu(x+2\hat\mu)\,
              U_\mu^\dagger(x+\hat\mu+\hat\nu)U_\mu^\dagger(x+\hat\nu)\,U_\nu^\dagger(x)

    Returns
    -------
    float
        Dimensionless, accumulated in double; a 0-d tensor for torch input.
    """
    u = links_of(gauge)
    total = 0.0
    for mu in range(4):
        two = u.link(mu) @ u.shift(u.link(mu), mu, 1)
        for nu in range(4):
            if nu != mu:
                a = two @ u.shift(u.link(nu), mu, 2)
                b = u.link(nu) @ u.shift(two, nu, 1)
                total = total + u.real_trace_sum(a, b)
    return u.scalar(total / (12 * u.volume * u.nc))


def wilson_action(gauge: Any, beta: float) -> Any:
    r"""Wilson's plaquette action, extensive and dimensionless.

    .. math:: S = \beta\sum_P\left(1-\frac{1}{N_c}\mathrm{Re}\,\mathrm{tr}\,U_P\right),\qquad \beta = 2N_c/g^2

    Parameters
    ----------
    gauge
        Links, shape ``(T, Z, Y, X, 4, Nc, Nc)``.
    beta
        Coupling, dimensionless; any finite number.

    Raises
    ------
    ParameterError
        If beta is not finite.
    """
    if not np.isfinite(beta):
        raise ParameterError(f"beta must be finite, got {beta!r}.")
    u = links_of(gauge)
    traces = sum(plane_sums(u).values())
    return u.scalar(beta * (6 * u.volume - traces))


def link_trace(gauge: Any) -> Any:
    r"""Mean :math:`\mathrm{Re}\,\mathrm{tr}\,U_\mu(x)/N_c` over sites and directions; what a NERSC header stores."""
    u = links_of(gauge)
    return u.scalar(u.site_sum(u.trace(u.array).real) / (4 * u.volume * u.nc))


def polyakov_loop(gauge: Any, direction: int | str = "t") -> Any:
    r"""Polyakov loop that winds in one direction, averaged over the sites perpendicular to it.

    .. math:: L_\mu = \frac{L_\mu}{V N_c}\sum_{x_\perp}\mathrm{tr}\prod_{k=0}^{L_\mu-1}U_\mu(x_\perp+k\hat\mu)

    Parameters
    ----------
    gauge
        Links, shape ``(T, Z, Y, X, 4, Nc, Nc)``.
    direction
        ``"t"``, ``"z"``, ``"y"``, ``"x"`` or 0..3 in that order.

    Returns
    -------
    complex
        Dimensionless, 1 on the unit field; a 0-d complex tensor for torch input. No boundary phase is applied.
    """
    mu = direction_index(direction)
    u = links_of(gauge)
    length = u.array.shape[mu]
    slices = [u.link(mu)[(slice(None),) * mu + (k,)] for k in range(length)]
    line = slices[0]
    for s in slices[1:]:
        line = line @ s
    return u.scalar(u.site_sum(u.trace(line)) * (length / (u.volume * u.nc)))


def wilson_loop(gauge: Any, r: int, t: int) -> Any:
    r"""Planar Wilson loop of spatial extent r and temporal extent t, averaged over the three spatial directions.

    .. math:: W(r,t) = \frac{1}{3VN_c}\sum_x\sum_{i}\mathrm{Re}\,\mathrm{tr}\,
              L_i^{(r)}(x)\,L_t^{(t)}(x+r\hat\imath)\,L_i^{(r)\dagger}(x+t\hat t)\,L_t^{(t)\dagger}(x)

    with :math:`L_\mu^{(n)}(x)` the product of n links from x along mu.

    Parameters
    ----------
    gauge
        Links, shape ``(T, Z, Y, X, 4, Nc, Nc)``.
    r, t
        Extents, lattice units, at least 1. Loops longer than the lattice wind around it.

    Examples
    --------
    >>> from lqcd_core.fields import GaugeField
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> wilson_loop(GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2)), 2, 1)
    1.0
    """
    return wilson_loops(gauge, [(r, t)])[(r, t)]


def wilson_loops(gauge: Any, sizes) -> dict[tuple[int, int], Any]:
    """Several :func:`wilson_loop` values from one set of straight lines, ``{(r, t): W}``."""
    sizes = [tuple(s) for s in sizes]
    for size in sizes:
        for n in size:
            if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
                raise ParameterError(f"a Wilson loop needs whole extents of at least 1, got {size}.")
    u = links_of(gauge)
    total: dict[tuple[int, int], Any] = {}
    r_max = max(r for r, _ in sizes)
    times = dict.fromkeys(sorted({t for _, t in sizes}))
    line = None
    for t in range(1, max(times) + 1):
        line = u.link(0) if line is None else line @ u.shift(u.link(0), 0, t - 1)
        if t in times:
            times[t] = line
    for i in (1, 2, 3):
        line = None
        for r in range(1, r_max + 1):
            line = u.link(i) if line is None else line @ u.shift(u.link(i), i, r - 1)
            for size in sizes:
                if size[0] == r:
                    up = times[size[1]]
                    a = line @ u.shift(up, i, r)
                    b = up @ u.shift(line, 0, size[1])
                    total[size] = total.get(size, 0.0) + u.real_trace_sum(a, b)
    return {size: u.scalar(total[size] / (3 * u.volume * u.nc)) for size in sizes}


__all__ = [
    "link_trace",
    "plaquette",
    "plaquette_ss",
    "plaquette_st",
    "plaquettes",
    "polyakov_loop",
    "rectangle",
    "wilson_action",
    "wilson_loop",
    "wilson_loops",
]

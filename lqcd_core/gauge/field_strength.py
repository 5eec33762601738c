r"""The clover-leaf field strength, the clover term of the fermion matrix, and the energy density.

.. math:: F_{\mu\nu}(x) = \tfrac18\left[Q_{\mu\nu}(x)-Q_{\mu\nu}^\dagger(x)\right]

Q is the sum of the four plaquettes that start and end at x, each run counterclockwise in the (mu, nu) plane. F is
anti-Hermitian and approaches the continuum :math:`a^2 F_{\mu\nu}` with :math:`U = e^{aA}`. Its trace is kept by
default: the clover term of every code keeps it, the energy density and the topological charge remove it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ParameterError
from ..gamma import GAMMA
from .links import PLANES, SPATIAL_PLANES, LinkArray, dagger, links_of, plane_indices
from .loops import plane_sums

_SLAB_BYTES = 1 << 25  # links of one slab of time slices: the temporaries of a plane then stay below some 200 MB


def _leaf_sum(u: LinkArray, mu: int, nu: int) -> Any:
    # P = A B^dagger is the plaquette whose lower left corner is y. The other three leaves are the same plaquette run
    # from its other corners, so each is computed at y and moved to the corner x it starts from.
    u_mu, u_nu = u.link(mu), u.link(nu)
    c = u.shift(u_nu, mu, 1)
    d = u.shift(u_mu, nu, 1)
    a = u_mu @ c
    b_dag = dagger(u_nu @ d)
    at_y = a @ b_dag
    at_y_mu = c @ (b_dag @ u_mu)
    at_y_nu = (dagger(u_nu) @ a) @ dagger(d)
    at_y_mu_nu = b_dag @ a
    # x = y + mu + nu: move the two sums that share a direction together
    return at_y + u.shift(at_y_mu + u.shift(at_y_mu_nu, nu, -1), mu, -1) + u.shift(at_y_nu, nu, -1)


def clover_leaf_sum(gauge: Any, mu: int | str, nu: int | str) -> Any:
    r"""Q_{mu nu}(x): the four leaves, all from x to x, counterclockwise in the (mu, nu) plane.

    .. math:: Q_{\mu\nu}(x) =\;& U_\mu(x)U_\nu(x+\hat\mu)U_\mu^\dagger(x+\hat\nu)U_\nu^\dagger(x) \\
              +\;& U_\nu(x)U_\mu^\dagger(x-\hat\mu+\hat\nu)U_\nu^\dagger(x-\hat\mu)U_\mu(x-\hat\mu) \\
              +\;& U_\mu^\dagger(x-\hat\mu)U_\nu^\dagger(x-\hat\mu-\hat\nu)U_\mu(x-\hat\mu-\hat\nu)U_\nu(x-\hat\nu) \\
              +\;& U_\nu^\dagger(x-\hat\nu)U_\mu(x-\hat\nu)U_\nu(x+\hat\mu-\hat\nu)U_\mu^\dagger(x)

    Returns
    -------
    array
        Shape ``(T, Z, Y, X, Nc, Nc)``, dimensionless; 4 on the unit field. :math:`Q_{\nu\mu}=Q_{\mu\nu}^\dagger`.
    """
    return _leaf_sum(links_of(gauge), *plane_indices(mu, nu))


def _strength(u: LinkArray, mu: int, nu: int, traceless: bool) -> Any:
    q = _leaf_sum(u, mu, nu)
    f = (q - dagger(q)) / 8
    if traceless:
        place = {} if u.xp is np else {"device": f.device}
        f = f - (u.trace(f) / u.nc)[..., None, None] * u.xp.eye(u.nc, dtype=f.dtype, **place)
    return f


def field_strength(gauge: Any, mu: int | str, nu: int | str, traceless: bool = False) -> Any:
    r"""Anti-Hermitian clover field strength, :math:`F_{\mu\nu} = (Q_{\mu\nu}-Q_{\mu\nu}^\dagger)/8`.

    Parameters
    ----------
    gauge
        Links, shape ``(T, Z, Y, X, 4, Nc, Nc)``.
    mu, nu
        Two different directions: ``"t"``, ``"z"``, ``"y"``, ``"x"`` or 0..3 in that order.
    traceless
        Remove tr F / Nc (zero for SU(2), of order a^6 for SU(3)).

    Returns
    -------
    array
        Shape ``(T, Z, Y, X, Nc, Nc)``, lattice units (a^2 F).

    Examples
    --------
    >>> from lqcd_core.fields import GaugeField
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> U = GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=2), seed=1)
    >>> f = field_strength(U, "x", "t")
    >>> bool(abs(f + f.conj().swapaxes(-1, -2)).max() < 1e-15)
    True
    """
    return _strength(links_of(gauge), *plane_indices(mu, nu), traceless)


def clover_coefficients(csw_r: float, csw_t: float | None = None, xi0: float = 1.0) -> tuple[float, float]:
    r"""The pair (c_r, c_t) of :func:`clover_term`: :math:`c_r = c_{sw,r}/(2\xi_0)`, :math:`c_t = c_{sw,t}/2`.

    Parameters
    ----------
    csw_r, csw_t
        Clover coefficients of the spatial and temporal planes, dimensionless; csw_t defaults to csw_r.
    xi0
        Bare anisotropy, positive; 1 on an isotropic lattice.

    Raises
    ------
    ParameterError
        If a number is not finite, or xi0 is not positive.

    Examples
    --------
    >>> clover_coefficients(1.5)
    (0.75, 0.75)
    """
    csw_t = csw_r if csw_t is None else csw_t
    if not (np.isfinite(csw_r) and np.isfinite(csw_t)):
        raise ParameterError(f"csw must be finite, got csw_r={csw_r!r}, csw_t={csw_t!r}.")
    if not (np.isfinite(xi0) and xi0 > 0):
        raise ParameterError(f"xi0 (anisotropy) must be positive, got {xi0!r}.")
    return csw_r / (2 * xi0), csw_t / 2


def clover_term(gauge: Any, c_r: float, c_t: float | None = None) -> Any:
    r"""The clover term as Hermitian chiral blocks, without the mass.

    .. math:: C(x) = -c_r\sum_{ij\in\{xy,xz,yz\}}\gamma_i\gamma_j F_{ij}(x)
                     -c_t\sum_{i\in\{x,y,z\}}\gamma_i\gamma_t F_{it}(x)

    so that M_clover = M_wilson + C. On an isotropic lattice c_r = c_t = csw / 2; in general see
    :func:`clover_coefficients`. The trace of F is kept.

    Parameters
    ----------
    gauge
        Links, shape ``(T, Z, Y, X, 4, Nc, Nc)``, without fermion boundary phases (they cancel in F).
    c_r, c_t
        Coefficients of the spatial and temporal planes, dimensionless; c_t defaults to c_r.

    Returns
    -------
    array
        Shape ``(T, Z, Y, X, 2, 2Nc, 2Nc)``: block c acts on spins (2c, 2c+1), row i = Nc * (spin mod 2) + colour.
        complex128 for a GaugeField or NumPy array whatever its precision; a torch tensor keeps its type and gradient.

    References
    ----------
    .. [1] B. Sheikholeslami and R. Wohlert, Nucl. Phys. B 259 (1985) 572.

    Examples
    --------
    >>> from lqcd_core.fields import GaugeField
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> U = GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=2), seed=1)
    >>> blocks = clover_term(U, 0.5)
    >>> blocks.shape, bool(abs(blocks - blocks.conj().swapaxes(-1, -2)).max() < 1e-14)
    ((2, 2, 2, 2, 2, 6, 6), True)
    """
    c_t = c_r if c_t is None else c_t
    if not (np.isfinite(c_r) and np.isfinite(c_t)):
        raise ParameterError(f"clover coefficients must be finite, got c_r={c_r!r}, c_t={c_t!r}.")
    u = links_of(gauge)
    if u.xp is not np:
        return _clover_blocks(u, c_r, c_t)
    kernel = u.kernel("clover")
    if kernel is not None:
        return kernel(u.array, c_r, c_t)
    # A slab of time slices with one ghost slice on either side: the shifts wrap wrongly only in the ghosts.
    extent = u.array.shape[0]
    slice_bytes = u.volume // extent * 4 * u.nc**2 * 16
    slab = max(1, _SLAB_BYTES // slice_bytes)
    if slab >= extent:
        return _clover_blocks(LinkArray(u.array.astype(np.complex128, copy=False), np), c_r, c_t)
    out = np.empty((*u.array.shape[:4], 2, 2 * u.nc, 2 * u.nc), np.complex128)
    for t0 in range(0, extent, slab):
        t1 = min(t0 + slab, extent)
        ghosted = np.take(u.array, range(t0 - 1, t1 + 1), axis=0, mode="wrap").astype(np.complex128, copy=False)
        out[t0:t1] = _clover_blocks(LinkArray(ghosted, np), c_r, c_t)[1:-1]
    return out


def _clover_blocks(u: LinkArray, c_r: float, c_t: float) -> Any:
    # gamma_mu gamma_nu is block diagonal, two entries per block and plane: eight Nc x Nc matrices per site in all.
    entries: list[list[list[Any]]] = [[[0.0, 0.0], [0.0, 0.0]] for _ in range(2)]
    for name, (mu, nu) in PLANES.items():
        f = _strength(u, mu, nu, traceless=False)
        spin = -(c_r if name in SPATIAL_PLANES else c_t) * (GAMMA[mu] @ GAMMA[nu])
        for c in range(2):
            for s in range(2):
                for r in range(2):
                    value = complex(spin[2 * c + s, 2 * c + r])
                    if (
                        GAMMA[mu][2 * c + s] @ GAMMA[nu][:, 2 * c + r]
                    ):  # where the spin matrix has an entry, even at c = 0
                        entries[c][s][r] = entries[c][s][r] + value * f
    if u.xp is np:
        out = np.empty((*u.array.shape[:4], 2, 2, u.nc, 2, u.nc), u.array.dtype)
        for c in range(2):
            for s in range(2):
                for r in range(2):
                    out[..., c, s, :, r, :] = entries[c][s][r]
    else:
        rows = [[u.xp.stack(entries[c][s], -2) for s in range(2)] for c in range(2)]  # (..., Nc, 2, Nc)
        out = u.xp.stack([u.xp.stack(r, -4) for r in rows], -5)
    return out.reshape(*u.array.shape[:4], 2, 2 * u.nc, 2 * u.nc)


def energy_density(gauge: Any, definition: str = "clover") -> Any:
    r"""Action density E averaged over sites, lattice units (a^4 E).

    .. math:: E_\text{clover} = -\frac1V\sum_x\sum_{\mu<\nu}\mathrm{tr}\,F_{\mu\nu}^2
              \quad(\mathrm{tr}F\text{ removed}),\qquad
              E_\text{plaquette} = \frac2V\sum_P\mathrm{Re}\,\mathrm{tr}(1-U_P)

    Both equal :math:`\tfrac14F^a_{\mu\nu}F^a_{\mu\nu}` in the continuum.

    Parameters
    ----------
    gauge
        Links, shape ``(T, Z, Y, X, 4, Nc, Nc)``.
    definition
        ``"clover"`` or ``"plaquette"``.

    Raises
    ------
    ParameterError
        If the definition is unknown.

    References
    ----------
    .. [1] M. Luescher, JHEP 08 (2010) 071, arXiv:1006.4518.
    """
    u = links_of(gauge)
    if definition == "plaquette":
        traces = sum(plane_sums(u).values())
        return u.scalar(2 * u.nc * (6 - traces / u.volume))
    if definition != "clover":
        raise ParameterError(f"energy density is 'clover' or 'plaquette', got {definition!r}.")
    total = 0.0
    for mu, nu in PLANES.values():
        f = _strength(u, mu, nu, traceless=True)
        total = total + u.real_trace_sum(f, f)  # tr F F^dagger = -tr F F
    return u.scalar(total / u.volume)


__all__ = ["clover_coefficients", "clover_leaf_sum", "clover_term", "energy_density", "field_strength"]

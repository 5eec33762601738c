r"""Heatbath and overrelaxation for the Wilson action, any Nc >= 2, periodic lattices with even extents.

The weight of one link given all others is exp[(beta/Nc) Re tr U A], A the sum of its staples. The links of one
direction on one parity share no plaquette, so they are updated together: 8 steps a sweep, each exact. Within a link
every SU(2) subgroup (i, j) is updated in turn (Cabibbo and Marinari): with R = U A, the projection of the 2 x 2 block of
R onto quaternions is k V, V in SU(2), and the subgroup element g sees the weight exp[alpha x0], alpha = 2 beta k / Nc,
x = g V = x0 + i x.sigma.

* heatbath: x0 from sqrt(1 - x0^2) exp(alpha x0) by Kennedy-Pendleton, by Creutz for small alpha; g = x V^dagger;
* overrelaxation: g = V^dagger V^dagger, which leaves Re tr g V, and so the action, as it was.

Random numbers are keyed by the global site; their counter holds (sweep, direction, parity, subgroup, try). Try k of the
rejection loop reads block k of its own counter, so the stream does not depend on which other sites were rejected, on
blocking, or on the backend.

Work per link and heatbath step (Nc = 3): staples 12 products of 3 x 3 = 12 x 198 flops, R one more, three subgroups of
some 200: 3.2 kflop; 19 matrices of 144 bytes move, 2.7 kB in double.
"""

from __future__ import annotations

import numpy as np

from .. import random as rng
from ..errors import GeometryError, NonUnitaryLinksError, ParameterError
from ..fields import GaugeField, complete_su
from ..geometry import LatticeGeometry
from ..selection import gauge_kernel

_BLOCK = 4096  # sites worked on at once: the 3 x 3 matrices of a block (590 kB each) stay in the level-2 cache
_SMALL_ALPHA = 1.7  # below it Creutz accepts more often than Kennedy-Pendleton; a matter of speed only
_TRIES = 1 << 16  # counter blocks kept for the tries of one update; acceptance is at least 0.7, so some 15 are used


class CheckerboardLinks:
    """Links by direction and parity, site last: ``links[mu][parity]`` is ``(Nc, Nc, V/2)`` complex128, contiguous.

    Entry k of a half is the site whose global index, halved, is k. Changed in place by the sweeps.
    """

    def __init__(self, field: GaugeField):
        geometry = field.geometry
        _need_even(geometry)
        self.geometry = geometry
        u = field.array
        self.links = [
            [
                np.ascontiguousarray(
                    np.moveaxis(geometry.split_parity(u[..., mu, :, :], p).reshape(-1, geometry.nc, geometry.nc), 0, 2),
                    dtype=np.complex128,
                )
                for p in (0, 1)
            ]
            for mu in range(4)
        ]
        sites = np.arange(geometry.volume).reshape(geometry.shape)
        self.forward = [[self._half_index(np.roll(sites, -1, mu), p) for mu in range(4)] for p in (0, 1)]
        self.backward = [[self._half_index(np.roll(sites, 1, mu), p) for mu in range(4)] for p in (0, 1)]

    def _half_index(self, sites: np.ndarray, parity: int) -> np.ndarray:
        return np.ascontiguousarray(self.geometry.split_parity(sites, parity).reshape(-1) >> 1)

    def field(self, precision="double") -> GaugeField:
        """A new field of the links as they are now."""
        g = self.geometry
        out = np.empty(g.gauge_shape, np.complex128)
        for mu in range(4):
            halves = [np.moveaxis(self.links[mu][p], 2, 0).reshape(*g.shape[:3], g.X // 2, g.nc, g.nc) for p in (0, 1)]
            out[..., mu, :, :] = g.join_parity(*halves)
        return GaugeField(g, out, precision)

    def blocks(self):
        """Slices that cut a half lattice into pieces that fit a cache."""
        half = self.geometry.volume // 2
        return [slice(a, min(a + _BLOCK, half)) for a in range(0, half, _BLOCK)]

    def staple(self, mu: int, parity: int, block: slice) -> np.ndarray:
        """A_mu of :func:`lqcd_core.gauge.staple` on the sites of a block, shape ``(Nc, Nc, n)``."""
        p, q = parity, 1 - parity
        total = None
        plus_mu = self.forward[p][mu][block]
        for nu in range(4):
            if nu == mu:
                continue
            plus_nu, minus_nu = self.forward[p][nu][block], self.backward[p][nu][block]
            across = _gather(self.links[nu][q], plus_mu)
            beside = _product(self.links[nu][p][:, :, block], _gather(self.links[mu][q], plus_nu))
            total = _product(across, _dagger(beside), total)
            corner = _gather(self.links[nu][p], self.forward[q][mu][minus_nu])
            beside = _product(_gather(self.links[mu][q], minus_nu), corner)
            total = _product(_dagger(beside), _gather(self.links[nu][q], minus_nu), total)
        return total

    def staples(self, mu: int, parity: int):
        """(block, :meth:`staple` of it) over a half; links of this direction and parity may change on the way.

        From the backend that the user named, if it offers them. Never from one that is merely installed: rounding decides
        over acceptance sooner or later, and a chain must not change with what is on the machine.
        """
        kernel = gauge_kernel("checkerboard_staple", self.geometry.nc, named_only=True)
        whole = None if kernel is None else kernel(self.links, self.forward, self.backward, mu, parity)
        for block in self.blocks():
            yield block, self.staple(mu, parity, block) if whole is None else whole[:, :, block]

    def plaquette(self) -> float:
        """Mean Re tr P / Nc, as :func:`lqcd_core.gauge.plaquette`."""
        total = 0.0
        for p, q in ((0, 1), (1, 0)):
            for block in self.blocks():
                for mu in range(4):
                    plus_mu = self.forward[p][mu][block]
                    for nu in range(mu):
                        a = _product(self.links[mu][p][:, :, block], _gather(self.links[nu][q], plus_mu))
                        beside = _gather(self.links[mu][q], self.forward[p][nu][block])
                        b = _product(self.links[nu][p][:, :, block], beside)
                        total += float(np.sum(a.real * b.real) + np.sum(a.imag * b.imag))
        return total / (6 * self.geometry.volume * self.geometry.nc)

    def heatbath(self, beta: float, seed: int, sweep: int) -> None:
        """One heatbath update of every link, in place."""
        for mu in range(4):
            for parity in (0, 1):
                for block, staple in self.staples(mu, parity):
                    links = self.links[mu][parity][:, :, block]
                    counter = (sweep * 4 + mu) * 2 + parity
                    heatbath_links(links, staple, beta, seed, counter, block.start)

    def overrelax(self) -> None:
        """One microcanonical update of every link, in place."""
        for mu in range(4):
            for parity in (0, 1):
                for block, staple in self.staples(mu, parity):
                    overrelax_links(self.links[mu][parity][:, :, block], staple)

    def unitarize(self) -> None:
        """Remove the rounding that has gathered: Gram-Schmidt on the rows, det = 1, in place."""
        for mu in range(4):
            for parity in (0, 1):
                u = self.links[mu][parity]
                u[...] = np.moveaxis(complete_su(np.moveaxis(u[:-1], 2, 0)), 0, 2)


def heatbath_sweep(gauge: GaugeField, beta: float, seed: int, sweep: int) -> GaugeField:
    r"""One Cabibbo-Marinari heatbath sweep with the weight :math:`\exp[\frac{\beta}{N_c}\sum_P\mathrm{Re\,tr}\,U_P]`.

    Parameters
    ----------
    gauge
        Links in SU(Nc); not changed.
    beta
        Coupling 2 Nc / g^2, dimensionless; any finite number.
    seed
        In [0, 2^64).
    sweep
        Number of the sweep, at least 0: sweeps of one seed and different numbers are independent.

    Returns
    -------
    GaugeField
        A new field of the same precision (the arithmetic is double).

    Raises
    ------
    GeometryError
        If an extent is odd.
    ParameterError
        If beta is not finite or sweep is negative.

    References
    ----------
    .. [1] N. Cabibbo and E. Marinari, Phys. Lett. B 119 (1982) 387.
    .. [2] A. D. Kennedy and B. J. Pendleton, Phys. Lett. B 156 (1985) 393.
    .. [3] M. Creutz, Phys. Rev. D 21 (1980) 2308.

    Examples
    --------
    >>> from lqcd_core.gauge import plaquette
    >>> U = GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2))
    >>> 0.5 < plaquette(heatbath_sweep(U, beta=6.0, seed=1, sweep=0)) < 1.0
    True
    """
    check_beta(beta)
    if isinstance(sweep, bool) or not isinstance(sweep, (int, np.integer)) or sweep < 0:
        raise ParameterError(f"sweep must be a whole number of at least 0, got {sweep!r}.")
    work = CheckerboardLinks(gauge)
    work.heatbath(float(beta), seed, int(sweep))
    return _like(gauge, work)


def overrelaxation_sweep(gauge: GaugeField, sweeps: int = 1) -> GaugeField:
    r"""Microcanonical sweeps: every SU(2) subgroup of every link is reflected about its staple, :math:`g = V^{\dagger2}`.

    The action of any beta is conserved to rounding; it needs no random numbers.

    Parameters
    ----------
    gauge
        Links in SU(Nc); not changed.
    sweeps
        Number of sweeps, at least 1.

    Raises
    ------
    GeometryError
        If an extent is odd.

    References
    ----------
    .. [1] M. Creutz, Phys. Rev. D 36 (1987) 515.

    Examples
    --------
    >>> from lqcd_core.gauge import plaquette
    >>> U = GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=2), seed=1)
    >>> abs(plaquette(overrelaxation_sweep(U)) - plaquette(U)) < 1e-13
    True
    """
    if isinstance(sweeps, bool) or not isinstance(sweeps, (int, np.integer)) or sweeps < 1:
        raise ParameterError(f"sweeps must be a whole number of at least 1, got {sweeps!r}.")
    work = CheckerboardLinks(gauge)
    for _ in range(sweeps):
        work.overrelax()
    return _like(gauge, work)


def heatbath_links(
    links: np.ndarray, staples: np.ndarray, beta: float, seed: int, counter: int, first_site: int = 0
) -> None:
    r"""Heatbath of independent links with weight :math:`\exp[\frac{\beta}{N_c}\mathrm{Re\,tr}\,U A]`, in place.

    Parameters
    ----------
    links
        U, complex128 ``(Nc, Nc, n)``, site last; overwritten.
    staples
        A, complex128 ``(Nc, Nc, n)``; not changed.
    beta
        Coupling, dimensionless.
    seed, counter, first_site
        Key of the random numbers: ``counter`` numbers the update, link k draws as site ``first_site + k``.

    Raises
    ------
    NonUnitaryLinksError
        If a link or staple is not finite.
    """
    nc = links.shape[0]
    r = _product(links, staples)
    pairs = subgroups(nc)
    for n, (i, j) in enumerate(pairs):
        k, v = _quaternion(r, i, j)
        alpha = (2 * beta / nc) * k
        if not np.isfinite(alpha).all():
            raise NonUnitaryLinksError("cannot update: some links are not finite; the configuration is damaged.")
        if beta < 0:
            alpha, v = -alpha, -v
        draw = _TRIES * (counter * len(pairs) + n)
        g = _times_dagger(_sample_su2(alpha, seed, draw, first_site), v)
        _apply(g, links, i, j)
        if n + 1 < len(pairs):
            _apply(g, r, i, j)


def overrelax_links(links: np.ndarray, staples: np.ndarray) -> None:
    """Microcanonical update of independent links, in place; arguments as in :func:`heatbath_links`."""
    nc = links.shape[0]
    r = _product(links, staples)
    pairs = subgroups(nc)
    for n, (i, j) in enumerate(pairs):
        _, v = _quaternion(r, i, j)
        g = np.empty_like(v)
        g[0] = 2 * v[0] * v[0] - 1
        np.multiply(v[1:], -2 * v[0], out=g[1:])
        _apply(g, links, i, j)
        if n + 1 < len(pairs):
            _apply(g, r, i, j)


def subgroups(nc: int) -> list[tuple[int, int]]:
    """The SU(2) subgroups (i, j), i < j, in the order in which they are updated."""
    return [(i, j) for i in range(nc) for j in range(i + 1, nc)]


def check_beta(beta) -> None:
    """Raise :class:`ParameterError` unless beta is a finite real number."""
    if isinstance(beta, bool) or not isinstance(beta, (int, float, np.integer, np.floating)) or not np.isfinite(beta):
        raise ParameterError(f"beta must be a finite number, got {beta!r}.")


# -- SU(2), as unit quaternions x0 + i x.sigma in arrays (4, n) -------------------------------------------------------


def _quaternion(r: np.ndarray, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
    """k and V of the block (i, j): k V is its projection onto quaternions; V = 1 where the block projects to zero."""
    v = np.empty((4, r.shape[-1]))
    np.add(r[i, i].real, r[j, j].real, out=v[0])
    np.add(r[i, j].imag, r[j, i].imag, out=v[1])
    np.subtract(r[i, j].real, r[j, i].real, out=v[2])
    np.subtract(r[i, i].imag, r[j, j].imag, out=v[3])
    v *= 0.5
    k = np.sqrt(np.einsum("in,in->n", v, v))
    zero = k == 0
    if zero.any():
        v[0, zero] = 1
        v /= np.where(zero, 1, k)
    else:
        v /= k
    return k, v


def _times_dagger(x: np.ndarray, v: np.ndarray) -> np.ndarray:
    """x V^dagger: (a0 + i a.s)(b0 + i b.s) = a0 b0 - a.b + i (a0 b + b0 a - a x b).s with b = -v."""
    out = np.empty_like(x)
    out[0] = x[0] * v[0] + x[1] * v[1] + x[2] * v[2] + x[3] * v[3]
    out[1] = x[1] * v[0] - x[0] * v[1] + x[2] * v[3] - x[3] * v[2]
    out[2] = x[2] * v[0] - x[0] * v[2] + x[3] * v[1] - x[1] * v[3]
    out[3] = x[3] * v[0] - x[0] * v[3] + x[1] * v[2] - x[2] * v[1]
    return out


def _apply(g: np.ndarray, m: np.ndarray, i: int, j: int) -> None:
    """Multiply rows i and j of the matrices m ``(Nc, Nc, n)`` by g from the left, in place."""
    a = np.empty(g.shape[1], np.complex128)
    b = np.empty_like(a)
    a.real, a.imag = g[0], g[3]
    b.real, b.imag = g[2], g[1]
    row_i, row_j = m[i], m[j]
    new_i = a * row_i
    new_i += b * row_j
    new_j = a.conj() * row_j
    new_j -= b.conj() * row_i
    m[i] = new_i
    m[j] = new_j


def _sample_su2(alpha: np.ndarray, seed: int, draw: int, first_site: int) -> np.ndarray:
    """x in SU(2) with weight exp(alpha x0), alpha >= 0, one per site, ``(4, n)``.

    The first two blocks of each counter hold the first try and the direction, the later ones a try each.
    """
    n = len(alpha)
    sites = range(first_site, first_site + n)
    u = rng.uniform(seed, "heatbath", sites, 2 * rng.WORDS, rng.WORDS * draw).T
    delta, accepted = _propose(alpha, u[:4])
    todo = np.flatnonzero(~accepted)
    attempt = 2
    while todo.size:
        if attempt == _TRIES:
            raise AssertionError("the SU(2) heatbath rejected 65534 tries running")
        some = range(first_site + int(todo[0]), first_site + int(todo[-1]) + 1)
        w = rng.uniform(seed, "heatbath", some, rng.WORDS, rng.WORDS * (draw + attempt))[todo - todo[0]].T
        delta[todo], accepted = _propose(alpha[todo], w)
        todo = todo[~accepted]
        attempt += 1
    x = np.empty((4, n))
    x[0] = 1 - delta
    length = np.sqrt(delta * (2 - delta))
    cos = 2 * u[4] - 1
    flat = length * np.sqrt(1 - cos * cos)
    phi = (2 * np.pi) * u[5]
    x[1] = flat * np.cos(phi)
    x[2] = flat * np.sin(phi)
    x[3] = length * cos
    return x


def _propose(alpha: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One try of delta = 1 - x0 from sqrt(delta (2 - delta)) exp(-alpha delta), and whether it is accepted."""
    small = alpha < _SMALL_ALPHA
    if not small.any():
        return _propose_kennedy_pendleton(alpha, u)
    if small.all():
        return _propose_creutz(alpha, u)
    delta, accepted = np.empty_like(alpha), np.empty(alpha.shape, bool)
    for which, propose in ((small, _propose_creutz), (~small, _propose_kennedy_pendleton)):
        delta[which], accepted[which] = propose(alpha[which], u[:, which])
    return delta, accepted


def _propose_kennedy_pendleton(alpha, u):
    # delta / 2 = lambda^2 from lambda exp(-2 alpha lambda^2) dlambda^2 (a Gamma(3/2)), then sqrt(1 - lambda^2).
    cos = np.cos((2 * np.pi) * u[1])
    half = -(np.log(u[0]) + cos * cos * np.log(u[2])) / (2 * alpha)
    return 2 * half, u[3] * u[3] <= 1 - half


def _propose_creutz(alpha, u):
    # delta from exp(-alpha delta) on [0, 2] by inverting its integral, then sqrt(1 - x0^2).
    alpha = np.maximum(alpha, 1e-150)  # the limit alpha = 0 is uniform, and this reaches it without a 0/0
    delta = -np.log1p(u[0] * np.expm1(-2 * alpha)) / alpha
    return delta, u[3] * u[3] <= delta * (2 - delta)


# -- matrices (Nc, Nc, n), site last ----------------------------------------------------------------------------------


def _gather(half: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.take(half, index, axis=2)


def _dagger(m: np.ndarray) -> np.ndarray:
    return m.conj().swapaxes(0, 1)


def _product(a: np.ndarray, b: np.ndarray, add_to: np.ndarray | None = None) -> np.ndarray:
    """a b (+ add_to, which is overwritten): rows of outer products, each a long vector operation."""
    if add_to is None:
        add_to = a[:, 0, None] * b[None, 0]
        start = 1
    else:
        start = 0
    term = np.empty_like(add_to)
    for k in range(start, a.shape[1]):
        np.multiply(a[:, k, None], b[None, k], out=term)
        add_to += term
    return add_to


def _need_even(geometry: LatticeGeometry) -> None:
    odd = [f"{n}={e}" for n, e in zip("TZYX", geometry.shape) if e % 2]
    if odd:
        raise GeometryError(
            f"heatbath and overrelaxation update a checkerboard, which needs four even extents, but {', '.join(odd)} is "
            "odd: across the periodic boundary two links of one parity would share a plaquette."
        )


def _like(gauge: GaugeField, work: CheckerboardLinks) -> GaugeField:
    out = work.field(gauge.precision)
    # a file's checksum or plaquette no longer holds, so what is known of the old field moves one level down, once
    out.origin = {"kind": "heatbath or overrelaxation sweeps", "from": dict(gauge.origin.get("from", gauge.origin))}
    return out


__all__ = [
    "CheckerboardLinks",
    "heatbath_links",
    "heatbath_sweep",
    "overrelax_links",
    "overrelaxation_sweep",
    "subgroups",
]

r"""The operators by explicit loops over sites, directions, spins: slow, short, and independent of every backend.

Nothing here comes from the code under test: the gamma matrices are written out, neighbours are counted by hand, the
clover leaves are walked link by link. The laws compare backends with these numbers, so no backend marks its own homework.

.. math:: M = (m + 1 + 3\nu/\xi_0) + i\mu\gamma_5 + C - H
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

GAMMA_X = np.array([[0, 0, 0, 1j], [0, 0, 1j, 0], [0, -1j, 0, 0], [-1j, 0, 0, 0]])
GAMMA_Y = np.array([[0, 0, 0, -1], [0, 0, 1, 0], [0, 1, 0, 0], [-1, 0, 0, 0]], dtype=complex)
GAMMA_Z = np.array([[0, 0, 1j, 0], [0, 0, 0, -1j], [-1j, 0, 0, 0], [0, 1j, 0, 0]])
GAMMA_T = np.array([[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]], dtype=complex)
GAMMAS = (GAMMA_T, GAMMA_Z, GAMMA_Y, GAMMA_X)
"""DeGrand-Rossi, by direction index t, z, y, x."""


def sites_of(shape):
    """All (t, z, y, x) in canonical order."""
    return itertools.product(*(range(extent) for extent in shape))


def step(site, mu, by, shape):
    """The site ``by`` steps along mu, and how often the walk crossed the edge upwards (+) or downwards (-)."""
    moved = list(site)
    moved[mu] += by
    wraps, moved[mu] = divmod(moved[mu], shape[mu])
    return tuple(moved), wraps


def hopping(u, psi, phases=(1, 1, 1, 1), coefficients=(1.0, 1.0, 1.0, 1.0)):
    r"""H psi for a batch.

    .. math:: H\psi(x) = \tfrac12\sum_\mu c_\mu\left[(1-\gamma_\mu)U_\mu(x)\psi(x+\hat\mu)
              + (1+\gamma_\mu)U^\dagger_\mu(x-\hat\mu)\psi(x-\hat\mu)\right]

    Parameters
    ----------
    u
        Links ``(T, Z, Y, X, 4, Nc, Nc)``.
    psi
        Spinors ``(n, T, Z, Y, X, Ns, Nc)``.
    phases
        Factor of U_mu on the last slice of direction mu.
    coefficients
        c_mu.

    Returns
    -------
    numpy.ndarray
        complex128, the shape of psi.
    """
    u, psi = np.asarray(u, complex), np.asarray(psi, complex)
    shape, one = u.shape[:4], np.eye(4)
    out = np.zeros_like(psi)
    for x in sites_of(shape):
        for mu in range(4):
            ahead, up = step(x, mu, +1, shape)
            behind, down = step(x, mu, -1, shape)
            link = u[(*x, mu)] * (phases[mu] if up else 1)
            back = (u[(*behind, mu)] * (phases[mu] if down else 1)).conj().T
            term = (one - GAMMAS[mu]) @ psi[(slice(None), *ahead)] @ link.T
            term = term + (one + GAMMAS[mu]) @ psi[(slice(None), *behind)] @ back.T
            out[(slice(None), *x)] += 0.5 * coefficients[mu] * term
    return out


def _walk(u, site, moves):
    """Product of links along a path of signed directions (+1..+4 forward, -1..-4 backward), from site back to it."""
    shape, product = u.shape[:4], np.eye(u.shape[-1], dtype=complex)
    for move in moves:
        mu = abs(move) - 1
        if move > 0:
            product = product @ u[(*site, mu)]
            site, _ = step(site, mu, +1, shape)
        else:
            site, _ = step(site, mu, -1, shape)
            product = product @ u[(*site, mu)].conj().T
    return product


def clover_matrices(u, csw_r, csw_t, xi0=1.0):
    r"""The clover term as a matrix per site, :math:`C = -\sum_{\mu<\nu}c_{\mu\nu}\gamma_\mu\gamma_\nu\otimes F_{\mu\nu}`.

    c = csw_r / (2 xi0) on spatial planes, csw_t / 2 on planes with t. F = (Q - Q^dagger) / 8, its trace kept.

    Returns
    -------
    numpy.ndarray
        ``(T, Z, Y, X, Ns, Nc, Ns, Nc)``.
    """
    u = np.ascontiguousarray(u, complex)
    return _clover_matrices(u.tobytes(), u.shape, csw_r, csw_t, xi0)


@functools.lru_cache(maxsize=16)  # the laws ask for the same few fields again and again
def _clover_matrices(links, links_shape, csw_r, csw_t, xi0):
    u = np.frombuffer(links, complex).reshape(links_shape)
    shape, nc = u.shape[:4], u.shape[-1]
    out = np.zeros((*shape, 4, nc, 4, nc), complex)
    for x in sites_of(shape):
        for mu in range(4):
            for nu in range(mu + 1, 4):
                m, n = mu + 1, nu + 1
                leaves = ((m, n, -m, -n), (n, -m, -n, m), (-m, -n, m, n), (-n, m, n, -m))
                q = sum(_walk(u, x, leaf) for leaf in leaves)
                f = (q - q.conj().T) / 8
                c = csw_t / 2 if mu == 0 else csw_r / (2 * xi0)
                out[x] -= c * np.einsum("ij,ab->iajb", GAMMAS[mu] @ GAMMAS[nu], f)
    out.setflags(write=False)
    return out


def dirac(u, psi, mass, phases=(-1, 1, 1, 1), csw_r=0.0, csw_t=0.0, xi0=1.0, nu=1.0, mu=0.0):
    """M psi for a batch, all terms; complex128."""
    psi = np.asarray(psi, complex)
    c = nu / xi0
    out = (mass + 1 + 3 * c) * psi - hopping(u, psi, phases, (1.0, c, c, c))
    out = out + 1j * mu * np.array([1, 1, -1, -1])[:, None] * psi
    if csw_r or csw_t:
        out = out + np.einsum("tzyxiajb,ntzyxjb->ntzyxia", clover_matrices(u, csw_r, csw_t, xi0), psi)
    return out


def dense(apply, shape, nc):
    """The matrix of a linear function of batches ``(n, T, Z, Y, X, Ns, Nc)``, column by column."""
    size = int(np.prod(shape)) * 4 * nc
    columns = np.eye(size, dtype=complex).reshape(size, *shape, 4, nc)
    return apply(columns).reshape(size, size).T

"""A Wilson operator as one dense matrix, site by site from its definition: what the hadron tests invert exactly."""

import itertools

import numpy as np

from lqcd_core.fields import GaugeField, Propagator
from lqcd_core.gamma import GAMMA
from lqcd_core.geometry import LatticeGeometry


def smooth_field(geometry: LatticeGeometry, seed: int, size: float = 0.4) -> GaugeField:
    """Links at a distance of the order of ``size`` from the unit matrix, nothing symmetric about them."""
    haar = GaugeField.random(geometry, seed).array
    return GaugeField(geometry, np.eye(geometry.nc) + size * haar).unitarize()


def dense_wilson(U: GaugeField, mass: float, boundary=(-1, 1, 1, 1)) -> np.ndarray:
    """M, (V Ns Nc) x (V Ns Nc), index order t z y x spin colour."""
    g, links = U.geometry, U.array
    n = 4 * g.nc
    M = (4 + mass) * np.eye(g.volume * n, dtype=complex)
    M = M.reshape(g.volume, n, g.volume, n)
    for site in itertools.product(*map(range, g.shape)):
        for mu in range(4):
            there = list(site)
            there[mu] = (site[mu] + 1) % g.shape[mu]
            u = links[site][mu] * (boundary[mu] if site[mu] == g.shape[mu] - 1 else 1)
            i, j = np.ravel_multi_index(site, g.shape), np.ravel_multi_index(there, g.shape)
            M[i, :, j, :] -= 0.5 * np.kron(np.eye(4) - GAMMA[mu], u)
            M[j, :, i, :] -= 0.5 * np.kron(np.eye(4) + GAMMA[mu], u.conj().T)
    return M.reshape(g.volume * n, g.volume * n)


class DenseSolver:
    """M^-1 by LAPACK, with the call that a solver offers."""

    def __init__(self, U, mass, boundary=(-1, 1, 1, 1)):
        self.geometry, self.boundary = U.geometry, boundary
        self.matrix = dense_wilson(U, mass, boundary)
        self.inverse = np.linalg.inv(self.matrix)

    def solve(self, columns: np.ndarray) -> np.ndarray:
        return (columns.reshape(len(columns), -1) @ self.inverse.T).reshape(columns.shape)

    def propagator(self, source) -> Propagator:
        return source.make_propagator(
            self.solve(source.columns()), provenance={"boundary": list(self.boundary), "operator": "wilson"}
        )


def random_propagator(geometry, seed, **info) -> Propagator:
    """Numbers without any structure, so that an index in the wrong place shows."""
    r = np.random.default_rng(seed)
    shape = (*geometry.shape, 4, 4, geometry.nc, geometry.nc)
    return Propagator(geometry, r.normal(size=shape) + 1j * r.normal(size=shape), **info)


def rotated(S: Propagator, g: np.ndarray, site) -> Propagator:
    """The gauge transform g(x) S(x, x0) g^dagger(x0) of a propagator with source at ``site``."""
    array = np.einsum("...ab,...ijbc,dc->...ijad", g, S.array, g[site].conj(), optimize=True)
    return Propagator(S.geometry, array, S.basis, dict(S.source), dict(S.provenance))

r"""The backend: where spinors live, and the hopping term. All else is derived by the core.

.. math:: H\psi(x) = \tfrac12\sum_\mu\left[(1-\gamma_\mu)U_\mu(x)\psi(x+\hat\mu)
          + (1+\gamma_\mu)U^\dagger_\mu(x-\hat\mu)\psi(x-\hat\mu)\right]
"""

import numpy as np

from lqcd_core.gamma import GAMMA
from lqcd_core.spaces import ArraySpace


class ExampleBackend:
    """Two methods. The constructor takes the options that the record declares; this one declares none."""

    def space(self, geometry, precision, n_rhs=1, parity=None):
        # A ready space over any array-API library; handles are arrays (n, Ns, Nc, T, Z, Y, X).
        return ArraySpace(np, geometry, precision, n_rhs, parity)

    def hopping(self, links, space):
        # All work that depends on the links alone happens here, once.
        dtype = space.precision.complex_dtype
        # c_mu phase_mu(x) U_mu(x), as (4, Nc, Nc, T, Z, Y, X): a new array, so later changes of the links cannot reach us
        u = np.ascontiguousarray(np.moveaxis(links.folded(), (4, 5, 6), (0, 1, 2)), dtype=dtype)
        minus, plus = ((0.5 * (np.eye(4) + sign * GAMMA)).astype(dtype) for sign in (-1, 1))

        def hop(psi):
            out = np.zeros_like(psi)
            for mu in range(4):
                axis = mu - 4  # T, Z, Y, X are the last four axes
                ahead = np.roll(psi, -1, axis)
                out += np.einsum("ij,ab...,njb...->nia...", minus[mu], u[mu], ahead, optimize=True)
                behind = np.roll(np.einsum("ba...,njb...->nja...", u[mu].conj(), psi), 1, axis)
                out += np.einsum("ij,nja...->nia...", plus[mu], behind)
            return out  # a new handle; psi is left alone

        return hop

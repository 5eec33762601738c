r"""The Wilson operator.

.. math:: M\psi(x) = \left(m + 1 + \tfrac{3\nu}{\xi_0}\right)\psi(x) - \tfrac12\sum_\mu c_\mu\left[(1-\gamma_\mu)U_\mu(x)
          \psi(x+\hat\mu) + (1+\gamma_\mu)U_\mu^\dagger(x-\hat\mu)\psi(x-\hat\mu)\right]

with :math:`c_t = 1,\ c_i = \nu/\xi_0`; the isotropic case is :math:`\nu=\xi_0=1`, diagonal :math:`4+m`.
"""

from __future__ import annotations

import attrs

from ..backend import SiteDiagonal
from .definition import ANTIPERIODIC_T, boundary_phases, mass_and_kappa, positive_number
from .dirac import DiracOperator


@attrs.define(frozen=True, slots=False, kw_only=True)
class WilsonDirac(DiracOperator):
    r"""The Wilson-Dirac operator, a definition that is bound to links with :meth:`bind`.

    Parameters
    ----------
    mass, kappa
        Give one. :math:`\kappa = 1/(8+2m)`; lattice units.
    boundary
        Fermion phases in the order t, z, y, x. Default antiperiodic in t.
    xi0, nu
        Bare anisotropy and velocity, dimensionless, positive (Chroma's convention; kappa still means
        :math:`m = 1/(2\kappa) - 4`).

    Raises
    ------
    ParameterError
        If a parameter is missing, doubled, not finite or out of range.

    References
    ----------
    .. [1] K. G. Wilson, Phys. Rev. D 10 (1974) 2445.

    Examples
    --------
    >>> D = WilsonDirac(kappa=0.125)
    >>> D.mass
    0.0
    """

    mass: float | None = None
    """Bare quark mass m, lattice units."""
    kappa: float | None = None
    """Hopping parameter, dimensionless."""
    boundary: tuple = attrs.field(default=ANTIPERIODIC_T, converter=boundary_phases)
    """Fermion boundary phases, order t, z, y, x."""
    xi0: float = 1.0
    """Bare anisotropy, positive."""
    nu: float = 1.0
    """Bare fermion velocity, positive."""

    name = "wilson"

    def __attrs_post_init__(self):
        mass, kappa = mass_and_kappa(self.mass, self.kappa)
        object.__setattr__(self, "mass", mass)
        object.__setattr__(self, "kappa", kappa)
        object.__setattr__(self, "xi0", positive_number("xi0", self.xi0))
        object.__setattr__(self, "nu", positive_number("nu", self.nu))

    def site_diagonal(self, gauge) -> SiteDiagonal:
        return SiteDiagonal(scalar=self.diagonal)

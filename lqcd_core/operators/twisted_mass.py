r"""The twisted-mass operator, one flavour, with or without a clover term.

.. math:: M(\mu) = M_{\rm Wilson\ or\ clover} + i\mu\gamma_5,\qquad M(\mu)^\dagger = \gamma_5 M(-\mu)\gamma_5

The second flavour of the doublet is :math:`M(-\mu)`. gamma5 = gamma_x gamma_y gamma_z gamma_t; openQCD and tmLQCD have the
opposite sign after the change of basis, so their mu is minus ours.
"""

from __future__ import annotations

import attrs

from ..backend import SiteDiagonal
from .clover import clover_blocks
from .definition import ANTIPERIODIC_T, boundary_phases, mass_and_kappa, positive_number, real_number
from .dirac import DiracOperator


@attrs.define(frozen=True, slots=False, kw_only=True)
class TwistedMassDirac(DiracOperator):
    r"""The twisted-mass Wilson operator (twisted clover if csw is not zero).

    Parameters
    ----------
    mass, kappa
        Give one; the untwisted mass.
    mu
        Twisted mass, lattice units. No default.
    csw
        Clover coefficient, default 0 (no clover term).
    boundary
        Fermion phases in the order t, z, y, x.

    References
    ----------
    .. [1] R. Frezzotti et al., JHEP 08 (2001) 058, hep-lat/0101001.
    """

    mu: float
    """Twisted mass, lattice units."""
    mass: float | None = None
    """Untwisted bare mass m, lattice units."""
    kappa: float | None = None
    """Hopping parameter, dimensionless."""
    csw: float = 0.0
    """Clover coefficient, dimensionless."""
    boundary: tuple = attrs.field(default=ANTIPERIODIC_T, converter=boundary_phases)
    """Fermion boundary phases, order t, z, y, x."""
    xi0: float = 1.0
    """Bare anisotropy, positive."""
    nu: float = 1.0
    """Bare fermion velocity, positive."""

    def __attrs_post_init__(self):
        mass, kappa = mass_and_kappa(self.mass, self.kappa)
        for name, value in {
            "mass": mass, "kappa": kappa, "mu": real_number("mu", self.mu), "csw": real_number("csw", self.csw),
            "xi0": positive_number("xi0", self.xi0), "nu": positive_number("nu", self.nu),
        }.items():  # fmt: skip
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        return "twisted_clover" if self.csw else "twisted_mass"

    def site_diagonal(self, gauge) -> SiteDiagonal:
        blocks = clover_blocks(gauge, self.csw, self.csw, self.xi0) if self.csw else None
        return SiteDiagonal(scalar=self.diagonal, blocks=blocks, twist=self.mu)

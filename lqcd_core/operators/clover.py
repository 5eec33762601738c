r"""The clover (Sheikholeslami-Wohlert) operator.

.. math:: M = M_{\rm Wilson} - \tfrac{c_{sw}}{2}\sum_{\mu<\nu}\gamma_\mu\gamma_\nu F_{\mu\nu}
            = M_{\rm Wilson} + c_{sw}\tfrac{i}{4}\sum_{\mu,\nu}\sigma_{\mu\nu}F_{\mu\nu},\qquad
          F = (Q - Q^\dagger)/8

F is anti-Hermitian and keeps its trace. On anisotropic lattices spatial planes carry :math:`c_R/(2\xi_0)` and temporal
planes :math:`c_T/2` (Chroma).
"""

from __future__ import annotations

import attrs

from ..backend import SiteDiagonal
from ..errors import ParameterError
from .definition import ANTIPERIODIC_T, boundary_phases, mass_and_kappa, positive_number, real_number
from .dirac import DiracOperator


@attrs.define(frozen=True, slots=False, kw_only=True)
class CloverWilsonDirac(DiracOperator):
    r"""The Wilson-clover operator.

    Parameters
    ----------
    mass, kappa
        Give one; see :class:`~lqcd_core.operators.wilson.WilsonDirac`.
    csw
        Clover coefficient for all planes; or give both ``csw_r`` (spatial planes) and ``csw_t`` (planes with t).
    boundary, xi0, nu
        As for Wilson. The clover term is made of raw links: boundary phases do not enter it.

    Raises
    ------
    ParameterError
        If a parameter is missing, doubled, not finite or out of range.

    References
    ----------
    .. [1] B. Sheikholeslami, R. Wohlert, Nucl. Phys. B 259 (1985) 572.
    """

    mass: float | None = None
    """Bare quark mass m, lattice units."""
    kappa: float | None = None
    """Hopping parameter, dimensionless."""
    csw: float | None = None
    """Clover coefficient of every plane, dimensionless; None if csw_r and csw_t differ."""
    csw_r: float | None = None
    """Clover coefficient of spatial planes."""
    csw_t: float | None = None
    """Clover coefficient of temporal planes."""
    boundary: tuple = attrs.field(default=ANTIPERIODIC_T, converter=boundary_phases)
    """Fermion boundary phases, order t, z, y, x."""
    xi0: float = 1.0
    """Bare anisotropy, positive."""
    nu: float = 1.0
    """Bare fermion velocity, positive."""

    name = "clover"

    def __attrs_post_init__(self):
        mass, kappa = mass_and_kappa(self.mass, self.kappa)
        csw_r, csw_t = clover_coefficients(self.csw, self.csw_r, self.csw_t)
        for name, value in {
            "mass": mass, "kappa": kappa, "csw_r": csw_r, "csw_t": csw_t, "csw": csw_r if csw_r == csw_t else None,
            "xi0": positive_number("xi0", self.xi0), "nu": positive_number("nu", self.nu),
        }.items():  # fmt: skip
            object.__setattr__(self, name, value)

    def site_diagonal(self, gauge) -> SiteDiagonal:
        return SiteDiagonal(scalar=self.diagonal, blocks=clover_blocks(gauge, self.csw_r, self.csw_t, self.xi0))


def clover_coefficients(csw, csw_r, csw_t) -> tuple[float, float]:
    """(csw_r, csw_t) from either form.

    Raises
    ------
    ParameterError
        If neither or both forms are given: a clover operator without its coefficient is an error, never zero.
    """
    if csw is not None:
        csw = real_number("csw", csw)
        for name, value in (("csw_r", csw_r), ("csw_t", csw_t)):
            if value is not None and value != csw:
                raise ParameterError(f"give csw=, or csw_r= and csw_t=, not both (csw={csw!r}, {name}={value!r}).")
        return csw, csw
    if csw_r is None or csw_t is None:
        raise ParameterError("the clover operator needs csw=, or both csw_r= and csw_t=.")
    return real_number("csw_r", csw_r), real_number("csw_t", csw_t)


def clover_blocks(gauge, csw_r: float, csw_t: float, xi0: float):
    """The clover term as chiral blocks, shape ``(T, Z, Y, X, 2, 2Nc, 2Nc)``, without the mass."""
    from ..gauge.field_strength import clover_coefficients as plane_coefficients
    from ..gauge.field_strength import clover_term

    return clover_term(gauge, *plane_coefficients(csw_r, csw_t, xi0))

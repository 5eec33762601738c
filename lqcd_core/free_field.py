r"""Free Wilson quarks, U = 1, by the momentum sum: what every operator and solver must give back.

.. math:: S(x)=\frac1V\sum_p e^{ip\cdot x}\,
          \frac{m+\sum_\mu(1-\cos p_\mu)-i\sum_\mu\gamma_\mu\sin p_\mu}
               {\bigl[m+\sum_\mu(1-\cos p_\mu)\bigr]^2+\sum_\mu\sin^2p_\mu},\qquad
          p_\mu=\frac{2\pi n_\mu+\theta_\mu}{L_\mu},

the inverse of :math:`M=(4+m)-\frac12\sum_\mu[(1-\gamma_\mu)\psi(x+\hat\mu)+(1+\gamma_\mu)\psi(x-\hat\mu)]` whose links on
the last slice of direction mu carry the phase :math:`e^{i\theta_\mu}`, so that
:math:`\psi(x+L_\mu\hat\mu)=e^{i\theta_\mu}\psi(x)`. Mass normalisation, lattice units, r = 1.
"""

from __future__ import annotations

import numpy as np

from .errors import ParameterError
from .fields import Propagator
from .gamma import GAMMA
from .geometry import DIRECTIONS, LatticeGeometry

ANTIPERIODIC_IN_TIME = (-1, 1, 1, 1)
"""The field's usual fermion boundary phases, order t, z, y, x."""


def free_spin_propagator(
    geometry: LatticeGeometry, mass: float, boundary=ANTIPERIODIC_IN_TIME, position=(0, 0, 0, 0)
) -> np.ndarray:
    r"""The 4x4 spin matrix S(x, x_0) at every site; it is the unit matrix in colour.

    Parameters
    ----------
    geometry
        The lattice.
    mass
        Bare quark mass m, lattice units.
    boundary
        Phases :math:`e^{i\theta_\mu}` of modulus 1, order t, z, y, x.
    position
        Source site x_0, order t, z, y, x.

    Returns
    -------
    numpy.ndarray
        complex128, ``(T, Z, Y, X, sink spin, source spin)``, DeGrand-Rossi.

    Raises
    ------
    ParameterError
        If a phase is not of modulus 1, the mass is not finite, the position lies outside the lattice, or the operator
        has a zero mode (massless and periodic).

    Examples
    --------
    >>> S = free_spin_propagator(LatticeGeometry(T=8, Z=4, Y=4, X=4), mass=0.1)
    >>> S.shape
    (8, 4, 4, 4, 4, 4)
    """
    phases = np.asarray(boundary, dtype=complex)
    if phases.shape != (4,) or not np.allclose(np.abs(phases), 1, rtol=0, atol=1e-12):
        raise ParameterError(f"boundary needs four phases of modulus 1, order t, z, y, x; got {boundary!r}.")
    if not np.isfinite(mass):
        raise ParameterError(f"mass must be finite, got {mass!r}.")
    if len(position) != 4 or any(x not in range(n) for x, n in zip(position, geometry.shape)):
        raise ParameterError(f"position {tuple(position)} (t, z, y, x) lies outside {geometry}.")
    theta = np.angle(phases)
    p = np.meshgrid(
        *[(2 * np.pi * np.arange(n) + th) / n for n, th in zip(geometry.shape, theta)], indexing="ij", sparse=True
    )
    scalar = mass + sum(1 - np.cos(q) for q in p)
    denominator = scalar**2 + sum(np.sin(q) ** 2 for q in p)
    if denominator.min() < 1e-24:
        raise ParameterError(
            f"the free operator of mass {mass} with boundary {boundary} has a zero mode on {geometry}; change either."
        )
    S = np.empty((*geometry.shape, 4, 4), complex)
    S[...] = scalar[..., None, None] * np.eye(4)
    for mu in range(4):
        S -= 1j * np.sin(p[mu])[..., None, None] * GAMMA[mu]
    S /= denominator[..., None, None]
    S = np.fft.ifftn(S, axes=(0, 1, 2, 3))
    for mu in range(4):
        n = geometry.shape[mu]
        x = np.arange(n)
        # The distance x - x0 lies in -x0 .. n-1-x0: the ifft repeats with period n, this factor does not.
        S = np.roll(S, position[mu], axis=mu)
        shape = [1] * 6
        shape[mu] = n
        S *= np.exp(1j * theta[mu] * (x - position[mu]) / n).reshape(shape)
    return S


def free_propagator(
    geometry: LatticeGeometry, mass: float, boundary=ANTIPERIODIC_IN_TIME, position=(0, 0, 0, 0)
) -> Propagator:
    """The free propagator of a point source as a :class:`Propagator` with every column; see
    :func:`free_spin_propagator` for the parameters and the errors.

    Examples
    --------
    >>> S = free_propagator(LatticeGeometry(T=8, Z=4, Y=4, X=4), mass=0.1)
    >>> C = (abs(S.array) ** 2).sum(axis=(1, 2, 3, 4, 5, 6, 7))
    >>> [float(c.round(12)) for c in C[:3]]
    [0.843602498318, 0.075815895179, 0.039773899495]
    """
    S = free_spin_propagator(geometry, mass, boundary, position)
    array = np.einsum("...ij,ab->...ijab", S, np.eye(geometry.nc))
    return Propagator(
        geometry,
        np.ascontiguousarray(array),
        source={"kind": "point", "position": [int(x) for x in position], "time": int(position[0])},
        provenance={
            "operator": "free Wilson",
            "mass": float(mass),
            "boundary": [complex(b) if complex(b).imag else float(complex(b).real) for b in boundary],
            "boundary_order": list(DIRECTIONS),
            "normalization": "mass",
        },
    )


def free_pion_correlator(geometry: LatticeGeometry, mass: float, boundary=ANTIPERIODIC_IN_TIME) -> np.ndarray:
    r"""Zero-momentum pion of a point source, :math:`C(t)=N_c\sum_{\vec x}\mathrm{tr}\,S^\dagger S`, shape ``(T,)``.

    Examples
    --------
    >>> C = free_pion_correlator(LatticeGeometry(T=8, Z=4, Y=4, X=4), mass=0.1)
    >>> [float(c.round(12)) for c in C[:4]]
    [0.843602498318, 0.075815895179, 0.039773899495, 0.034664443325]
    """
    S = free_spin_propagator(geometry, mass, boundary)
    return geometry.nc * (S.real**2 + S.imag**2).sum(axis=(1, 2, 3, 4, 5))

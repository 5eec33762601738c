"""Numbers that other codes or exact formulas give, each with its origin, for ``lqcd selftest``.

The Grid numbers belong to fields anybody can make: links and spinor come from a 64-bit mixing function of the site
index, so no file is needed.
"""

from __future__ import annotations

import attrs
import numpy as np

from ..fields import complete_su
from ..geometry import LatticeGeometry


@attrs.frozen
class Published:
    """A number from elsewhere."""

    name: str
    """What it is."""
    value: float
    """The number, dimensionless."""
    origin: str
    """Where it comes from."""
    tolerance: float
    """Largest relative difference allowed in double precision."""


GRID_LATTICE = LatticeGeometry(T=8, Z=8, Y=8, X=8)
_GRID = "Grid, double precision, on the generated 8^4 field; periodic, DeGrand-Rossi"

GRID = {
    p.name: p
    for p in (
        Published("plaquette", 3.0173464200463056e-04, _GRID, 1e-12),
        Published("norm2 of the source psi", 3.2745559020367960e04, _GRID, 1e-13),
        Published("norm2 of Dhop psi", 1.3076750428756553e05, _GRID, 1e-13),
        Published("norm2 of Dhop^dagger psi", 1.3106163165609453e05, _GRID, 1e-13),
        Published("norm2 of M psi, Wilson m = 0.1", 6.8072805156991084e05, _GRID, 1e-13),
        Published("norm2 of M psi, clover m = 0.1, csw = 1", 6.8829636916306557e05, _GRID, 1e-13),
        Published("norm2 of x, even-odd CG on the odd sites, m = 0.1", 7.3280693814416225e01, _GRID, 1e-9),
    )
}
"""By name. The last: asymmetric Mpc^dagger Mpc x = psi_odd from x = 0 to |r| <= 1e-10 |b|."""

GRID_ITERATIONS = 23
"""Iterations that Grid's conjugate gradient takes for the last of them."""

FREE_PION = (0.843602498318, 0.075815895179, 0.039773899495, 0.034664443325, 0.033722596080)
"""Pion of free Wilson quarks, point source, m = 0.1, 4^3 x 8, antiperiodic in t; t = 0..4, twelve digits: the exact
momentum sum."""

HAAR_SU3 = {"<|tr U|^2>": 1.0, "<|tr U|^4>": 2.0, "<|tr U|^6>": 6.0, "<Re (tr U)^3>": 1.0}
"""Exact moments of the Haar measure of SU(3): numbers of invariants in tensor products."""


def _mix(z: np.ndarray) -> np.ndarray:
    """The splitmix64 step, modulo 2^64."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _uniform(seed: int, index: np.ndarray) -> np.ndarray:
    """Numbers in [-1, 1): 2 (mix(mix(seed) + i) >> 11) / 2^53 - 1."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        start = _mix(np.array([seed], np.uint64))
        bits = _mix(start + index.astype(np.uint64)) >> np.uint64(11)
    return 2 * (bits.astype(float) / 2.0**53) - 1


def grid_links(geometry: LatticeGeometry = GRID_LATTICE) -> np.ndarray:
    """The generated links, ``(T, Z, Y, X, 4, 3, 3)``, directions t, z, y, x.

    Key 4 site + mu with mu = x, y, z, t; six complex numbers make two rows, Gram-Schmidt and the cross product the rest.
    """
    index = np.arange(geometry.volume * 4 * 12).reshape(geometry.volume, 4, 12)
    key = np.arange(geometry.volume * 4).reshape(geometry.volume, 4, 1)
    u = _uniform(1, 18 * key + index % 12)
    rows = (u[..., 0::2] + 1j * u[..., 1::2]).reshape(geometry.volume, 4, 2, 3)
    return complete_su(rows).reshape(*geometry.shape, 4, 3, 3)[..., ::-1, :, :].copy()


def grid_spinor(geometry: LatticeGeometry = GRID_LATTICE) -> np.ndarray:
    """The generated spinor, ``(T, Z, Y, X, 4, 3)``."""
    u = _uniform(2, np.arange(geometry.volume * 24))
    return (u[0::2] + 1j * u[1::2]).reshape(geometry.spinor_shape)


__all__ = ["FREE_PION", "GRID", "GRID_ITERATIONS", "GRID_LATTICE", "HAAR_SU3", "Published", "grid_links", "grid_spinor"]

"""How much memory a solve takes, from the number of vectors a solver says it needs."""

from __future__ import annotations

from ..geometry import LatticeGeometry
from ..precision import Precision, as_precision
from .krylov import Solver
from .mixed import MixedPrecision

OPERATOR_VECTORS = 3
"""Temporaries of one application of M in the derived path: H x, A x, and one half-spinor's worth of work."""


def memory_estimate(
    M, solver: Solver, n_rhs: int | None = None, even_odd: bool | None = None, host: bool = True
) -> int:
    """Bytes that a solve of ``n_rhs`` columns takes at its peak: links, site term, vectors, and the host's b and x.

    Parameters
    ----------
    M
        The bound operator.
    solver
        The solver.
    n_rhs
        Columns solved together; default those M is bound for.
    even_odd
        As in :func:`lqcd_core.solvers.solve`; vectors of the Schur complement are half as long on a backend that has
        half lattices.
    host
        Count the source and the solution on the host.

    Returns
    -------
    int
        Bytes. Within about 20 % on the reference backend; others may pad.

    Examples
    --------
    >>> from lqcd_core import BiCGStab, ConjugateGradient, GaugeField, LatticeGeometry, WilsonDirac
    >>> M = WilsonDirac(mass=0.1).bind(GaugeField.cold(LatticeGeometry(T=4, Z=4, Y=4, X=4)), backend="numpy")
    >>> memory_estimate(M, ConjugateGradient(tol=1e-8), 1) < memory_estimate(M, ConjugateGradient(tol=1e-8), 12)
    True
    """
    g, p = M.geometry, M.precision
    n = M.n_rhs if n_rhs is None else n_rhs
    if even_odd is None:
        even_odd = g.why_no_parity() is None
    half = even_odd and "even_odd" in M.choice.backend.info.features
    share = 0.5 if half else 1.0
    packed = 2 if half else 1  # the full operator and the parity hops each keep their links
    blocks = M.diagonal.blocks is not None
    total = _links(g, p, packed) + (_blocks(g, p, 2 if even_odd else 1) if blocks else 0)
    mixed = isinstance(solver, MixedPrecision)
    outer = solver.vectors_needed - (solver.inner.vectors_needed + 2 if mixed else 0)
    vectors = n * share * _spinor(g, p) * (outer + OPERATOR_VECTORS)
    if mixed:
        low = as_precision(solver.precision)
        total += _links(g, low, packed) + (_blocks(g, low, 2 if even_odd else 1) if blocks else 0)
        vectors += n * share * _spinor(g, low) * (solver.inner.vectors_needed + 2 + OPERATOR_VECTORS)
    # The check of the true residual runs on the full lattice when the solver's vectors are gone.
    total += max(vectors, n * _spinor(g, p) * (2 + OPERATOR_VECTORS))
    if host:
        total += 2 * n * g.volume * 4 * g.nc * p.complex_dtype.itemsize
    return int(total)


def _spinor(g: LatticeGeometry, p: Precision) -> int:
    return g.volume * 4 * g.nc * 2 * p.bytes_per_real


def _links(g: LatticeGeometry, p: Precision, copies: int) -> int:
    return copies * g.volume * 4 * g.nc**2 * 2 * p.bytes_per_real


def _blocks(g: LatticeGeometry, p: Precision, copies: int) -> int:
    # The term itself in double on the host, and the packed ones of M and of the inverses.
    size = g.volume * 2 * (2 * g.nc) ** 2
    return size * 16 + copies * size * p.complex_dtype.itemsize

r"""Quark propagators: :math:`S = M^{-1}\eta` for every column of a source.

The columns are solved in batches; column = source spin * Nc + source colour.
"""

from __future__ import annotations

import platform
from typing import Any

import attrs
import numpy as np

from ..errors import FieldShapeError, ParameterError
from ..fields import ColorSpinorField, Propagator
from ..geometry import EVEN
from ..operators.bound import BoundOperator
from ..solvers.krylov import Solver
from ..solvers.solution import Callback, Progress, SolverInfo, merge_infos
from ..solvers.solve import solve
from .sources import Source


def propagator(
    M,
    source: Source,
    solver: Solver,
    *,
    columns=None,
    batch: int | None = None,
    even_odd: bool | None = None,
    form: str = "symmetric",
    parity: int = EVEN,
    device_solve: bool | None = None,
    callback: Callback | None = None,
    raise_on_failure: bool = True,
) -> Propagator | ColorSpinorField:
    r"""Solve :math:`M S_j = \eta_j` for the columns of a source.

    Parameters
    ----------
    M
        A bound operator.
    source
        E.g. :func:`~lqcd_core.hadrons.sources.point_source`. Columns are made when their batch is solved.
    solver
        E.g. ``ConjugateGradient(tol=1e-10)``.
    columns
        Column indices to solve. None: all of them.
    batch
        Columns solved together, at least 1; default all of those asked for. The answer does not depend on it unless the
        backend's own arithmetic does; memory does.
    even_odd, form, parity, device_solve
        As in :func:`lqcd_core.solvers.solve`.
    callback
        Called with a :class:`~lqcd_core.solvers.solution.Progress` after each iteration; ``progress.columns`` are the
        columns of the present batch.
    raise_on_failure
        False keeps columns that did not converge; the provenance says which.

    Returns
    -------
    Propagator
        With ``source`` (the source's description) and ``provenance`` (operator, backend, links, solver and its account
        per column) filled in. If ``columns`` were named, or the source has not 4 Nc columns, a
        :class:`~lqcd_core.fields.ColorSpinorField` batch of the solutions in the order asked for: a propagator never has
        holes.

    Raises
    ------
    NotConvergedError
        If a column missed the tolerance.
    ParameterError
        If a column does not exist, is named twice, or none is asked for.
    FieldShapeError
        If the source lives on another lattice.
    ToleranceError
        If the tolerance is below what the precision can reach.

    Examples
    --------
    >>> from lqcd_core import ConjugateGradient, GaugeField, LatticeGeometry, WilsonDirac, point_source
    >>> g = LatticeGeometry(T=4, Z=2, Y=2, X=2)
    >>> M = WilsonDirac(mass=0.5).bind(GaugeField.random(g, seed=1), backend="numpy", n_rhs=12)
    >>> S = propagator(M, point_source(g), ConjugateGradient(tol=1e-10))
    >>> S.provenance["solve"]["converged"], S.source["kind"]
    (True, 'point')
    """
    if not isinstance(M, BoundOperator):
        raise ParameterError(f"M must be a bound operator (WilsonDirac(...).bind(U)), got {type(M).__name__}.")
    if not isinstance(source, Source):
        raise ParameterError(
            f"source must be a Source such as point_source(U.geometry), got {type(source).__name__}; "
            "one field of your own is solved by solve(M, b, solver)."
        )
    if source.geometry != M.geometry:
        raise FieldShapeError(f"the source lives on {source.geometry}, the operator on {M.geometry}.")
    g = M.geometry
    wanted = _columns(source, columns)
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or batch < 1):
        raise ParameterError(f"batch must be a whole number of at least 1, got {batch!r}.")
    width = len(wanted) if batch is None else int(batch)
    dtype = M.precision.complex_dtype
    whole = columns is None and len(wanted) == 4 * g.nc
    # Columns go straight to their place: no second copy of twelve spinors.
    out = np.empty((*g.shape, 4, 4, g.nc, g.nc) if whole else (len(wanted), *g.spinor_shape), dtype)
    infos: list[SolverInfo] = []
    for begin in range(0, len(wanted), width):
        part = wanted[begin : begin + width]
        tell = None if callback is None else _with_columns(callback, part)
        x, info = solve(
            M, source.columns(part, precision=M.precision), solver, even_odd=even_odd, form=form, parity=parity,
            device_solve=device_solve, callback=tell, raise_on_failure=raise_on_failure,
        )  # fmt: skip
        infos.append(info)
        for k, column in enumerate(part):
            if whole:
                spin, color = divmod(column, g.nc)
                out[..., :, spin, :, color] = x[k]
            else:
                out[begin + k] = x[k]
        del x
    if not whole:
        return ColorSpinorField(g, out)
    used = even_odd if even_odd is not None else g.why_no_parity() is None
    return Propagator(
        g, out, source=source.describe(), provenance=provenance(M, solver, merge_infos(infos), used, form, parity)
    )  # fmt: skip


def provenance(M, solver: Solver, info: SolverInfo, even_odd: bool, form: str, parity: int) -> dict[str, Any]:
    """What a propagator keeps about how it was made, as plain data."""
    from .. import __version__

    return {
        **M.provenance(),
        "solver": solver.parameters(),
        "preconditioning": {"even_odd": bool(even_odd), **({"form": form, "parity": int(parity)} if even_odd else {})},
        "solve": info.as_dict(),
        "version": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _columns(source: Source, columns) -> list[int]:
    n = len(source)
    if columns is None:
        return list(range(n))
    if isinstance(columns, (int, np.integer)) and not isinstance(columns, bool):
        columns = [columns]
    wanted = list(columns)
    if not wanted:
        raise ParameterError("an empty list of columns was asked for; name at least one, or leave columns out for all.")
    for c in wanted:
        if isinstance(c, bool) or not isinstance(c, (int, np.integer)) or not 0 <= c < n:
            raise ParameterError(f"column {c!r} was asked for, but this source has columns 0..{n - 1}.")
    if len(set(wanted)) != len(wanted):
        raise ParameterError(f"columns are named twice in {wanted}.")
    return [int(c) for c in wanted]


def _with_columns(callback: Callback, part: list[int]) -> Callback:
    def tell(progress: Progress):
        inside = progress.columns or tuple(range(len(part)))
        callback(attrs.evolve(progress, columns=tuple(part[k] for k in inside)))

    return tell


__all__ = ["propagator"]

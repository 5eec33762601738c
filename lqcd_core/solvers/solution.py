r"""What a solve gives back: the solution, and an honest account of how it went.

A column is said to be converged only if its *true* relative residual :math:`|b-Ax|/|b|`, recomputed from x in the outer
precision after the iteration, is at or below the tolerance.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np


class Reason(str, enum.Enum):
    """Why a column stopped. The value is the sentence shown to the user."""

    CONVERGED = "converged: the true residual is at or below the tolerance"
    ZERO_SOURCE = "converged: the source is zero, so x = 0"
    MAXIMUM_ITERATIONS = (
        "the maximum number of iterations was reached; raise maxiter, or use a better preconditioned form"
    )
    STAGNATION = (
        "stagnation: restarts no longer lower the true residual; the tolerance is below what the precision reaches for "
        "this operator (raise tol, bind in double or use MixedPrecision), or another solver is needed"
    )
    BREAKDOWN = (
        "breakdown: the recurrence divided by zero, also after a restart; use ConjugateGradient on the normal equations "
        "(lqcd.solve does) or GCR"
    )
    NOT_FINITE = "not finite: NaN or infinity in the source or in the operator; check the links and the source"
    NOT_POSITIVE = (
        "not positive: p.Ap was not a positive real number, so the operator is not Hermitian positive definite; use "
        "lqcd.solve, the normal equations (M.normal_linear), BiCGStab or GCR"
    )

    @property
    def good(self) -> bool:
        """True if the column has its solution."""
        return self in (Reason.CONVERGED, Reason.ZERO_SOURCE)

    def __str__(self) -> str:
        return self.value


@attrs.frozen(eq=False)
class Progress:
    """What a callback is told after each iteration."""

    iteration: int
    """Iterations done in this solve, from 1."""
    residuals: np.ndarray
    """Relative residual per column as the recurrence knows it, ``(n,)``."""
    tol: float
    """The tolerance asked for."""
    active: int
    """Columns still iterating."""
    total: int
    """Columns in this solve."""
    columns: tuple[int, ...] = ()
    """Which columns of a larger set (of a propagator) these are; () if they stand alone."""


Callback = Callable[[Progress], Any]


@attrs.frozen(eq=False, kw_only=True)
class SolverInfo:
    """How a solve went. Residuals are relative to |b|, dimensionless."""

    solver: str
    """Name of the solver."""
    converged: bool
    """True if every column is converged by its true residual."""
    iterations: int
    """Iterations, the largest over columns."""
    final_residual: float
    """True relative residual recomputed in the outer precision, the largest over columns."""
    reason: Reason
    """Why it stopped: of the worst column. ``str(reason)`` is the advice."""
    tol: float
    """Tolerance asked for."""
    history: list
    """Relative residual after each iteration as the recurrence knew it: arrays ``(n,)``, or floats for one column. One
    entry per iteration (in batched defect correction, where columns share their cycles, it may outlast each column)."""
    column_converged: np.ndarray
    """bool, ``(n,)``."""
    column_iterations: np.ndarray
    """Iterations until each column stopped, ``(n,)``."""
    column_residuals: np.ndarray
    """True relative residual of each column, ``(n,)``."""
    column_reasons: tuple[Reason, ...]
    """Why each column stopped."""
    applications: int
    """Applications of the operator or its adjoint to a batch (of the inner one in mixed precision)."""
    outer_applications: int = 0
    """Applications of the outer operator in mixed precision, 0 elsewhere."""
    seconds: float = 0.0
    """Wall time."""
    parts: tuple[SolverInfo, ...] = ()
    """One record per shift for a multi-shift solve, else ()."""
    inside: str = ""
    """Name of the backend that ran the iterations itself (SupportsDeviceSolve); "" where the core's loop did."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for files (without the history)."""
        out = {
            "solver": self.solver, "converged": bool(self.converged), "iterations": int(self.iterations),
            "final_residual": float(self.final_residual), "reason": self.reason.name.lower(), "tol": float(self.tol),
            "column_converged": [bool(c) for c in self.column_converged],
            "column_iterations": [int(i) for i in self.column_iterations],
            "column_residuals": [float(r) for r in self.column_residuals],
            "column_reasons": [r.name.lower() for r in self.column_reasons],
            "applications": int(self.applications), "outer_applications": int(self.outer_applications),
            "seconds": float(self.seconds), "inside": self.inside,
        }  # fmt: skip
        if self.parts:
            out["parts"] = [p.as_dict() for p in self.parts]
        return out

    def __str__(self) -> str:
        where = f" inside {self.inside}" if self.inside else ""
        return (
            f"{self.solver}{where}: {self.reason} (|r|/|b| = {self.final_residual:.3g} for tol {self.tol:.3g} after "
            f"{self.iterations} iterations)"
        )


@attrs.frozen(eq=False)
class Solution:
    """The solution and its account; ``x, info = solver.solve(...)`` works too."""

    x: Any
    """The solution, of the kind of the source: a field for a field, an array for an array."""
    info: SolverInfo
    """How it went."""

    def __iter__(self):
        return iter((self.x, self.info))


def worst(reasons: Sequence[Reason]) -> Reason:
    """The reason of the whole: the first failure, else converged."""
    for reason in reasons:
        if not reason.good:
            return reason
    return Reason.CONVERGED if Reason.CONVERGED in reasons or not reasons else Reason.ZERO_SOURCE


def make_info(
    solver: str, tol: float, history: list[np.ndarray], iterations, residuals, reasons: Sequence[Reason], **more
) -> SolverInfo:
    """A :class:`SolverInfo` from the per-column account."""
    residuals, iterations = np.asarray(residuals, float), np.asarray(iterations, int)
    good = np.array([r.good for r in reasons], bool)
    one = len(reasons) == 1
    worst_residual = float("nan") if np.isnan(residuals).any() else float(residuals.max(initial=0.0))
    return SolverInfo(
        solver=solver, converged=bool(good.all()), iterations=int(iterations.max(initial=0)), tol=float(tol),
        final_residual=worst_residual, reason=worst(reasons), history=[float(h[0]) for h in history] if one else history,
        column_converged=good, column_iterations=iterations, column_residuals=residuals, column_reasons=tuple(reasons),
        **more,
    )  # fmt: skip


def merge_infos(infos: Sequence[SolverInfo]) -> SolverInfo:
    """One account of batches that were solved one after another: columns joined, applications and seconds added."""
    if len(infos) == 1:
        return infos[0]
    length = max(len(i.history) for i in infos)
    padded = []
    for info in infos:
        rows = [np.atleast_1d(h) for h in info.history] or [info.column_residuals]
        padded.append(rows + [rows[-1]] * (length - len(rows)))
    return make_info(
        infos[0].solver, infos[0].tol, [np.concatenate(rows) for rows in list(zip(*padded))[:length]],
        np.concatenate([i.column_iterations for i in infos]), np.concatenate([i.column_residuals for i in infos]),
        sum((i.column_reasons for i in infos), ()), applications=sum(i.applications for i in infos),
        outer_applications=sum(i.outer_applications for i in infos), seconds=sum(i.seconds for i in infos),
        inside=infos[0].inside if len({i.inside for i in infos}) == 1 else "",
    )  # fmt: skip


def first_columns(info: SolverInfo, n: int) -> SolverInfo:
    """The account of the first n columns (the others were padding of a static batch)."""
    if n == len(info.column_reasons):
        return info
    return make_info(
        info.solver, info.tol, [np.atleast_1d(h)[:n] for h in info.history], info.column_iterations[:n],
        info.column_residuals[:n], info.column_reasons[:n], applications=info.applications,
        outer_applications=info.outer_applications, seconds=info.seconds, inside=info.inside,
    )  # fmt: skip

r"""Mixed precision: iterations in a low precision, the answer in a high one.

Defect correction, with :math:`A` in the outer and :math:`a` in the inner precision (or backend), s a power of two:

.. math:: r = b - Ax,\quad a\,d \approx s\,r,\quad x \mathrel{+}= d/s\qquad\text{until } |r|\le\text{tol}\,|b|

Reliable updates run *one* inner recurrence; whenever its residual has fallen by ``delta`` since the last time,

.. math:: x \mathrel{+}= y/s,\quad y \leftarrow 0,\quad r \leftarrow s\,(b - Ax)

and the search direction goes on, made orthogonal to the exact r again. Either way what decides is the true residual, and
a cycle that no longer lowers it ends the column as stagnating.

References
----------
.. [1] G. L. G. Sleijpen, H. A. van der Vorst, Computing 56 (1996) 141.
.. [2] M. A. Clark et al., Comput. Phys. Commun. 181 (2010) 1517, arXiv:0911.3191.
.. [3] R. Strzodka, D. Goeddeke, Proc. FCCM (2006) 259.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from ..errors import ParameterError
from ..operators.linear import LinearOperator
from ..precision import Precision, as_precision
from .columns import ColumnBook, Counter, RightHandSide, blend, on_columns, power_of_two
from .krylov import Solver, check_reachable, start, valid_count, valid_tolerance
from .solution import Progress, Reason

METHODS = ("defect_correction", "reliable_updates")


def cycle_tolerance(precision: Precision) -> float:
    """How far one inner solve goes: 20 times the error of an operator application in the inner precision."""
    return 20 * precision.tolerance


def _solver(instance, attribute, value) -> None:
    if not isinstance(value, Solver):
        raise ParameterError(f"inner must be a solver, e.g. BiCGStab(tol=1e-10), got {type(value).__name__}.")
    if isinstance(value, MixedPrecision) or not hasattr(value, "make_steps"):
        raise ParameterError(f"inner cannot be {value.name}; use ConjugateGradient, BiCGStab or GCR.")


def _method(instance, attribute, value) -> None:
    if value not in METHODS:
        raise ParameterError(f"method must be one of {', '.join(map(repr, METHODS))}, got {value!r}.")


def _fraction(instance, attribute, value) -> None:
    valid_tolerance(instance, attribute, value)


@attrs.frozen
class MixedPrecision(Solver):
    r"""An inner solver in a lower precision (or on another backend), corrected from the true residual.

    The tolerance ``tol`` holds for the true residual in the precision of the operator that is passed in. One inner solve
    goes to ``inner.tol``, or to what the inner precision can usefully reach if that is larger.

    Memory: 4 vectors in the outer precision (b, x, r, and b - A x on its way) and those of the inner solver, plus two, in the inner one.

    Raises
    ------
    ParameterError
        If a parameter is out of range or the precision unknown.

    Examples
    --------
    >>> from lqcd_core.solvers import ConjugateGradient
    >>> MixedPrecision(inner=ConjugateGradient(tol=1e-12), precision="single").tol
    1e-12
    """

    inner: Solver = attrs.field(validator=_solver)
    """The solver that runs in the lower precision."""
    precision: str = attrs.field(default="single", converter=lambda p: as_precision(p).name)
    """Inner precision, by name."""
    backend: Any = None
    """Inner backend: a name or (name, options); None for that of the operator."""
    method: str = attrs.field(default="defect_correction", validator=_method)
    """``defect_correction`` or ``reliable_updates``."""
    tol: float = attrs.field(default=None, validator=valid_tolerance, kw_only=True)
    """True relative residual to reach in the outer precision, in (0, 1); default that of ``inner``."""
    maxiter: int = attrs.field(default=None, validator=valid_count, kw_only=True)
    """Most inner iterations in total; default that of ``inner``."""
    delta: float = attrs.field(default=0.1, validator=_fraction, kw_only=True)
    """Reliable updates: fall of the inner residual between two of them, in (0, 1)."""
    cycles: int = attrs.field(default=200, validator=valid_count, kw_only=True)
    """Most corrections (or reliable updates) per column."""
    inner_operator: LinearOperator | Callable | None = attrs.field(default=None, kw_only=True)
    """The operator in the inner precision where it cannot be bound again: needed with a plain function."""
    verbose: bool = attrs.field(default=False, kw_only=True)
    """Print the residual every ten iterations."""

    def __attrs_post_init__(self):
        if self.tol is None:
            object.__setattr__(self, "tol", self.inner.tol)
        if self.maxiter is None:
            object.__setattr__(self, "maxiter", self.inner.maxiter)

    @property
    def needs_positive(self) -> bool:
        return self.inner.needs_positive

    @property
    def general(self) -> MixedPrecision:
        return attrs.evolve(self, inner=self.inner.general)

    @property
    def vectors_needed(self) -> int:
        return 4 + 2 + self.inner.vectors_needed

    def check(self, A):
        check_reachable(self.tol, A.vectors.precision, self.name)
        if self.inner.needs_positive and not A.positive:
            raise ParameterError(
                f"{self.inner.name} inside MixedPrecision needs a positive operator, and {A.name} is not known to be one; "
                "use lqcd.solve(M, b, solver), which solves the normal equations, or M.normal_linear."
            )
        if self.inner_operator is None and A.rebind is None:
            raise ParameterError(
                f"MixedPrecision cannot bind {A.name} again in {self.precision}; pass inner_operator=, the same operator "
                "in the inner precision."
            )

    def inner_of(self, A: LinearOperator, n: int) -> LinearOperator:
        """The operator in the inner precision, for n columns."""
        if self.inner_operator is not None:
            return on_columns(self.inner_operator, n)
        # Kept with the outer operator: a propagator solved in batches, or a defect solved again, must not bind again.
        kept = {} if A.owner is None else A.owner.__dict__.setdefault("_rebound", {})
        key = (A.name, self.precision, repr(self.backend))
        found = kept.get(key)
        if found is None or not (found.vectors.resizable or found.vectors.n == n):
            options = {"precision": self.precision, "n_rhs": n}
            if self.backend is not None:
                options["backend"] = self.backend
            found = kept[key] = A.rebind(**options)
        return on_columns(found, n)

    def run(self, A, rhs, x0, targets, callback):
        counter, inner_counter = Counter(), Counter()
        book = ColumnBook(self.name, self.tol, targets, callback, self.verbose)
        B = inner_counter.watch(self.inner_of(A, A.vectors.n))
        # b stays inside: it is needed at every correction, and packing it again each time would be a crossing each time.
        rhs = RightHandSide.of_handle(A.vectors, rhs.new())
        run = _Defects if self.method == "defect_correction" else _Reliable
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            x = run(self, counter.watch(A), B, rhs, x0, book).run()
        return x, book.info(applications=inner_counter.count, outer_applications=counter.count)


class _Outer:
    """What both methods share: x and the true residual in the outer precision, strikes, and the end."""

    def __init__(self, solver, A, B, rhs, x0, book):
        self.solver, self.A, self.B, self.rhs, self.book = solver, A, B, rhs, book
        self.v, self.w = A.vectors, B.vectors
        self.x, self.r, rr, self.unit, self.bnorm = start(A, rhs, x0, book)
        self.rr = rr
        n = self.v.n
        self.last = book.residuals.copy()
        self.strikes, self.cycles = np.zeros(n, int), np.zeros(n, int)
        self.counts: np.ndarray | None = None  # iterations per column where the history does not tell
        self.narrows = self.v.resizable and self.w.resizable

    def add_and_renew(self, columns: np.ndarray, d, scale: np.ndarray, mask: np.ndarray):
        """x += d / scale on ``columns`` and r = b - A x there.

        ``d`` is an outer handle of those columns where the outer space is resizable, else of all with ``mask`` saying
        which count. Returns (r, |r|^2) of the same kind.
        """
        v = self.v
        if v.resizable:
            A = on_columns(self.A, len(columns))
            everything = len(columns) == v.n
            x = self.x if everything else v.take(self.x, columns.tolist())
            x = A.vectors.axpy(1.0 / scale[columns], d, x)
            del d
            t = self.rhs.new(None if everything else columns.tolist())
            t = A.vectors.axpy(-1.0, A(x), A.vectors.scale(self.unit[columns], t))
            self.x = x if everything else v.put(self.x, columns.tolist(), x)
            return t, A.vectors.norm2(t)
        self.x = v.axpy(np.where(mask, 1.0 / scale, 0.0), d, self.x)
        t = v.axpy(-1.0, self.A(self.x), v.scale(self.unit, self.rhs.new()))
        return t, v.norm2(t)[columns]

    def judge(self, columns: np.ndarray, residuals: np.ndarray, inner_reasons=None) -> None:
        """Converged, or a strike for a cycle that did not lower the true residual by a tenth; two end the column."""
        book = self.book
        book.stop(columns[~np.isfinite(residuals)], Reason.NOT_FINITE)
        book.verified(columns, residuals)
        lazy = ~(residuals <= 0.9 * self.last[columns])
        self.strikes[columns] = np.where(lazy, self.strikes[columns] + 1, 0)
        self.cycles[columns] += 1
        self.last[columns] = residuals
        for k, c in enumerate(columns):
            if self.strikes[c] >= 2:
                why = None if inner_reasons is None else inner_reasons[k]
                fatal = (Reason.NOT_POSITIVE, Reason.BREAKDOWN, Reason.NOT_FINITE)
                book.stop(c, why if why in fatal else Reason.STAGNATION)
            elif self.cycles[c] >= self.solver.cycles:
                book.stop(c, Reason.STAGNATION)
        if len(book.history) >= self.solver.maxiter:
            book.stop(np.flatnonzero(book.live), Reason.MAXIMUM_ITERATIONS)

    def finish(self):
        book, v, x = self.book, self.v, self.x
        self.x = self.r = None
        if self.counts is not None:
            book.iterations = self.counts
        unknown = np.array([not reason.good for reason in book.reasons])
        if unknown.any():
            t = v.axpy(-1.0, self.A(x), v.scale(self.unit, self.rhs.new()))
            book.true[unknown] = (np.sqrt(v.norm2(t)) / self.bnorm)[unknown]
        for k, reason in enumerate(book.reasons):
            if not reason.good and book.true[k] <= book.targets[k]:
                book.reasons[k] = Reason.CONVERGED
        return v.scale(1.0 / self.unit, x)


class _Defects(_Outer):
    """Defect correction. Only live columns go into an inner solve where both spaces are resizable."""

    def run(self):
        book, solver, v, w = self.book, self.solver, self.v, self.w
        floor = max(solver.inner.tol, cycle_tolerance(w.precision))
        present = np.arange(v.n)  # columns in self.r
        while book.live.any():
            columns = np.flatnonzero(book.live)
            if self.narrows and len(columns) < len(present):
                inside = np.searchsorted(present, columns)
                self.r, present = v.take(self.r, inside.tolist()), columns
            live = book.live[present]
            relative = book.residuals[present]
            if self.counts is None:
                self.counts = np.zeros(v.n, int)
            scale = np.zeros(v.n)
            # Zero for columns that are done on a static space: the inner solver sees a zero source there.
            scale[present] = np.where(live, power_of_two(relative * self.bnorm[present], w), 0.0)
            r = w.convert_from(v.scale(scale[present], self.r), v.narrow(len(present)) if self.narrows else v)
            self.r = None
            targets = np.clip(np.maximum(floor, 0.5 * book.targets[present] / np.maximum(relative, 1e-300)), None, 0.5)
            left = max(1, solver.maxiter - len(book.history))
            inner = attrs.evolve(solver.inner, maxiter=min(left, solver.inner.maxiter), verbose=False)
            B = on_columns(self.B, len(present))
            d, info = inner.run(
                B,
                RightHandSide.of_handle(B.vectors, r),
                None,
                np.where(live, targets, 0.5),
                self.tell(present, relative),
            )
            del r
            d = v.convert_from(d, B.vectors)
            scale = np.where(scale == 0, 1.0, scale)
            if self.narrows or not v.resizable:
                t, tt = self.add_and_renew(columns, d, scale, book.live)
            else:  # static inside, resizable outside: the outer steps see the live columns only
                t, tt = self.add_and_renew(columns, v.take(d, columns.tolist()), scale, book.live)
            residuals = np.sqrt(tt) / self.bnorm[columns]
            book.residuals[columns] = residuals
            if v.resizable and not self.narrows and len(columns) < v.n:
                t = v.put(v.zeros(), columns.tolist(), t)
            self.r = t
            at = np.searchsorted(present, columns)
            self.counts[columns] += info.column_iterations[
                at
            ]  # a cycle of the batch lasts as long as its slowest column
            self.judge(columns, residuals, [info.column_reasons[k] for k in at])
        return self.finish()

    def tell(self, present, relative):
        """Inner iterations enter the history in units of |b|."""

        def callback(progress: Progress):
            residuals = self.book.residuals.copy()
            live = self.book.live[present]
            residuals[present[live]] = (progress.residuals * relative)[live]
            self.book.record(residuals)

        return callback


class _Reliable(_Outer):
    """Reliable updates. The outer x and b always hold all columns; the inner recurrence loses finished ones."""

    def run(self):
        book, solver, v, w = self.book, self.solver, self.v, self.w
        if not book.live.any():
            return self.finish()
        relative = book.residuals
        self.scale = np.where(book.live, power_of_two(relative * self.bnorm, w), 1.0)
        r = w.convert_from(v.scale(self.scale, self.r), v)
        self.r = None
        rr = w.norm2(r)
        steps = solver.inner.make_steps(self.B, w.zeros(), r, rr)
        del r
        present = np.arange(v.n)
        peak = relative.copy()  # largest residual since the last update
        steps, present = self.compact(steps, present)
        while book.live.any():
            live = book.live[present]
            failures = steps.step(live)
            residuals = book.residuals.copy()
            at = present[live]
            residuals[at] = np.sqrt(steps.rr[live]) / (self.scale * self.bnorm)[at]
            book.record(residuals)
            none = np.zeros(len(present), bool)
            odd = live & (failures.get(Reason.NOT_FINITE, none) | ~np.isfinite(residuals[present]))
            book.stop(present[odd], Reason.NOT_FINITE)
            live = live & ~odd
            peak[at] = np.fmax(peak[at], residuals[at])
            broken = live & (failures.get(Reason.BREAKDOWN, none) | failures.get(Reason.NOT_POSITIVE, none))
            due = live & (
                (residuals[present] <= np.maximum(solver.delta * peak[present], book.targets[present])) | broken
            )
            if len(book.history) >= solver.maxiter:
                due = live
            if due.any():
                reasons = [
                    Reason.NOT_POSITIVE if failures.get(Reason.NOT_POSITIVE, none)[k] else
                    Reason.BREAKDOWN if broken[k] else None for k in np.flatnonzero(due)
                ]  # fmt: skip
                steps = self.update(steps, present, due, broken, reasons, peak)
            steps, present = self.compact(steps, present)
        del steps
        return self.finish()

    def update(self, steps, present, due, broken, reasons, peak):
        book, v, w = self.book, self.v, self.w
        columns = present[due]
        inner_v = steps.v
        y = v.convert_from(steps.x, inner_v)
        if v.resizable:
            if len(columns) < len(present):
                y = v.take(y, np.flatnonzero(due).tolist())
            t, tt = self.add_and_renew(columns, y, self.scale, due)
        else:  # a static outer space never narrows: present is all columns
            t, tt = self.add_and_renew(columns, y, self.scale, due)
        del y
        before = self.last[columns].copy()
        residuals = np.sqrt(tt) / self.bnorm[columns]
        book.residuals[columns] = residuals
        self.judge(columns, residuals, reasons)
        peak[columns] = residuals
        # The next unit of r, and its directions with it.
        new = self.scale.copy()
        new[columns] = power_of_two(residuals * self.bnorm[columns], w)
        factor = (new / self.scale)[present]
        self.scale = new
        steps.x = inner_v.scale((~due).astype(float), steps.x)
        if v.resizable:
            t = on_columns(self.A, len(columns)).vectors.scale(new[columns], t)
            if inner_v.resizable:
                t = w.convert_from(t, v.narrow(len(columns)))
                steps.r = inner_v.put(steps.r, np.flatnonzero(due).tolist(), t)
            else:
                whole = v.put(v.zeros(), columns.tolist(), t)
                steps.r = blend(inner_v, due, w.convert_from(whole, v), steps.r)
        else:
            whole = w.convert_from(v.scale(np.where(due, new, 0.0), t), v)
            if inner_v.resizable and len(present) < v.n:
                whole = w.take(whole, present.tolist())
            steps.r = blend(inner_v, due, whole, steps.r)
        steps.rescale(factor)
        recurred = steps.rr
        steps.rr = np.where(due, inner_v.norm2(steps.r), recurred)
        # A residual that jumped up, or a breakdown, makes the old directions worthless.
        fresh = np.zeros(len(present), bool)
        fresh[due] = ~(residuals <= before)
        fresh &= ~broken
        if fresh.any():
            steps.restart(fresh)
        if (due & broken).any():
            steps.recover(due & broken)
        kept = due & ~fresh & ~broken
        if kept.any():
            steps.replaced(kept, recurred)
        return steps

    def compact(self, steps, present):
        if not self.narrows:
            return steps, present
        live = self.book.live[present]
        if live.all() or not live.any():
            return steps, present
        keep = np.flatnonzero(live)
        steps.take(keep)
        return steps, present[keep]

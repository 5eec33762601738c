r"""What every Krylov solver shares: the loop around one iteration's recurrence.

.. math:: r_0 = b - Ax_0;\quad\text{step until } |r_k|\le\text{tol}\,|b|;\quad\text{then } r=b-Ax
          \text{ anew: converged, or restart from this } r

The recurrence (:class:`Steps`) knows one iteration. The loop keeps the account of each column, tests for NaN, claims of
convergence, breakdown and stagnation, restarts single columns, and takes finished ones out of the batch. Nothing that
happens to a column depends on another one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from ..backend import Handle
from ..errors import ParameterError, ToleranceError
from ..operators.definition import positive_number
from ..operators.linear import LinearOperator
from ..precision import Precision
from ..spaces import Vectors
from .columns import ColumnBook, Counter, RightHandSide, blend, on_columns, power_of_two
from .solution import Callback, Reason, Solution, SolverInfo


def valid_tolerance(instance, attribute, value) -> None:
    """attrs validator: a finite number in (0, 1)."""
    if value is None and attribute.default is None:
        return
    value = positive_number(attribute.name, value)
    if value >= 1:
        raise ParameterError(f"{attribute.name} must be below 1 (x = 0 has relative residual 1), got {value!r}.")


def valid_count(instance, attribute, value) -> None:
    """attrs validator: a whole number of at least 1 (0 where the default is smaller)."""
    if value is None and attribute.default is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ParameterError(f"{attribute.name} must be a whole number of at least 1, got {value!r}.")


def reachable(precision: Precision) -> float:
    """The smallest relative residual that a solve in this precision may be asked for.

    4 epsilon for double and single; for 16-bit storage the error of one operator application.
    """
    return precision.tolerance if precision.bytes_per_real == 2 else 4 * precision.epsilon


def check_reachable(tol: float, precision: Precision, solver: str) -> None:
    """Raise :class:`ToleranceError` if rounding alone exceeds the tolerance."""
    limit = reachable(precision)
    if tol < limit:
        higher = "double" if precision.name != "double" else None
        advice = (
            f"bind in {higher} and use MixedPrecision(inner={solver}(...), precision={precision.name!r}): it reaches the "
            f"residual of {higher} at the speed of {precision}"
            if higher
            else "raise tol"
        )
        raise ToleranceError(
            f"{solver}: tol={tol:g} cannot be reached in {precision} arithmetic (limit {limit:.2g}); {advice}."
        )


CHECKED_TOGETHER = 4
"""Columns whose true residual is recomputed together on a resizable space."""


class Steps(abc.ABC):
    """One iteration of a recurrence on a batch. State: handles and numbers per column; ``x``, ``r`` and ``rr`` always.

    ``r`` is the residual b - A x as the recurrence knows it, ``rr`` its norm squared.
    """

    handles: tuple[str, ...] = ("x", "r")
    """Attributes that are handles (None allowed), or lists of handles."""
    numbers: tuple[str, ...] = ("rr",)
    """Attributes that are arrays with one entry per column."""
    directions: tuple[str, ...] = ()
    """Handles other than x and r that scale with r."""
    powers: dict[str, int] = {"rr": 2}
    """Numbers that scale with a power of r."""

    def __init__(self, A: LinearOperator, x: Handle, r: Handle, rr: np.ndarray):
        self.A, self.v = A, A.vectors
        self.x, self.r, self.rr = x, r, rr

    @abc.abstractmethod
    def step(self, live: np.ndarray) -> dict[Reason, np.ndarray]:
        """One iteration of the columns in ``live``; the others must not change. Returns masks of failures."""

    @abc.abstractmethod
    def restart(self, mask: np.ndarray) -> None:
        """``r`` and ``rr`` of these columns were replaced: forget their search directions."""

    def recover(self, mask: np.ndarray) -> None:
        """The same after a breakdown: go on in a way that does not meet the same zero again, if there is one."""
        self.restart(mask)

    def replaced(self, mask: np.ndarray, before: np.ndarray) -> None:
        """``r`` and ``rr`` (``before`` it) of these columns were made more exact: keep the directions where possible."""
        self.restart(mask)

    def rescale(self, factor: np.ndarray) -> None:
        """Change the unit of r per column; x and r are the caller's to scale."""
        for name in self.directions:
            if getattr(self, name) is not None:
                setattr(self, name, self.v.scale(factor, getattr(self, name)))
        for name, power in self.powers.items():
            setattr(self, name, getattr(self, name) * factor**power)

    def take(self, keep: np.ndarray) -> None:
        """Go on with these columns only (indices into the present ones)."""
        columns = keep.tolist()
        for name in self.handles:
            value = getattr(self, name)
            if isinstance(value, list):
                for k, item in enumerate(value):  # one by one: the old handle is dropped before the next is made
                    value[k] = self.v.take(item, columns)
            elif value is not None:
                setattr(self, name, self.v.take(value, columns))
        for name in self.numbers:
            setattr(self, name, getattr(self, name)[..., keep])
        self.A = on_columns(self.A, len(columns))
        self.v = self.A.vectors


@attrs.frozen
class Solver(abc.ABC):
    """What every solver is: a frozen record of parameters with ``solve`` and ``solve_handles``."""

    @property
    @abc.abstractmethod
    def needs_positive(self) -> bool:
        """True if it converges for Hermitian positive definite operators only."""

    @property
    @abc.abstractmethod
    def general(self) -> Solver:
        """The same solver for any invertible operator (through the normal equations where it needs a positive one)."""

    @property
    @abc.abstractmethod
    def vectors_needed(self) -> int:
        """Handles of the batch alive at once, operator's own temporaries not counted."""

    @abc.abstractmethod
    def run(
        self, A: LinearOperator, rhs: RightHandSide, x0: Handle | None, targets: np.ndarray, callback: Callback | None
    ) -> tuple[Handle, SolverInfo]:
        """The solve itself, with a tolerance per column. x0 is consumed."""

    @property
    def name(self) -> str:
        """Name for messages and files."""
        return type(self).__name__

    def parameters(self) -> dict[str, Any]:
        """Name and parameters as plain data, for files."""
        out: dict[str, Any] = {"solver": self.name}
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, Solver):
                value = value.parameters()
            elif value is not None and not isinstance(value, (bool, int, float, str)):
                # (name, options) of a backend is a tuple too
                numbers = isinstance(value, tuple) and all(isinstance(v, (int, float, np.number)) for v in value)
                value = [float(v) for v in value] if numbers else repr(value)
            out[field.name] = value
        return out

    def check(self, A: LinearOperator) -> None:
        """Raise if this operator, or its precision, cannot be served."""
        if getattr(self, "refuse_unreachable", True):
            check_reachable(self.tol, A.vectors.precision, self.name)

    def solve_handles(
        self, A: LinearOperator, b: Handle, x0: Handle | None = None, callback: Callback | None = None
    ) -> tuple[Handle, SolverInfo]:
        """Solve A x = b on handles of A's space.

        Parameters
        ----------
        A
            The operator.
        b
            Source; any number of columns where the space is resizable. Left alone.
        x0
            Start; left alone. None means 0.
        callback
            Called with a :class:`~lqcd_core.solvers.solution.Progress` after each iteration.

        Returns
        -------
        tuple
            (handle of x, :class:`~lqcd_core.solvers.solution.SolverInfo`).

        Raises
        ------
        ToleranceError
            If the tolerance is below what A's precision can reach.
        """
        self.check(A)
        n = len(A.vectors.norm2(b))
        A = on_columns(A, n)
        v = A.vectors
        x0 = None if x0 is None else v.copy(x0)
        return self.run(A, RightHandSide.of_handle(v, b), x0, np.full(n, self.tol), callback)

    def solve(self, A, b, x0=None, callback: Callback | None = None) -> Solution:
        """Solve A x = b on the host; failure to converge is reported in ``info``, not raised.

        Parameters
        ----------
        A
            A bound operator, its Schur complement, a :class:`~lqcd_core.operators.linear.LinearOperator`, a square
            matrix, or any function of an array.
        b
            A field or array (a batch of any size) for operators; for a function an array of NumPy, torch, ... of any
            shape, one right-hand side.
        x0
            Start, of the kind of b; None means 0.
        callback
            Called with a :class:`~lqcd_core.solvers.solution.Progress` after each iteration.

        Raises
        ------
        ParameterError
            If the solver needs a positive operator and this one is none.
        ToleranceError
            If the tolerance is below what the precision can reach.
        FieldShapeError, FieldTypeError
            If b or x0 do not fit.

        Examples
        --------
        >>> from lqcd_core.solvers import BiCGStab
        >>> x, info = BiCGStab(tol=1e-12).solve(lambda v: 2 * v, np.array([2.0, 4.0]))
        >>> x, info.iterations
        (array([1., 2.]), 1)
        """
        from .host import solve_on_host  # host forms stand on solvers

        return solve_on_host(self, A, b, x0, callback)


def start(A: LinearOperator, rhs: RightHandSide, x0: Handle | None, book: ColumnBook):
    """(x, r, |r|^2, unit, |b| unit) of the scaled problem A (x unit) = b unit, unit a power of two per column.

    Columns that need no iteration are stopped in the book: zero or non-finite source, or x0 already exact.
    """
    v = A.vectors
    r = rhs.new()
    b2 = v.norm2(r)
    norms = np.sqrt(b2)
    unit = power_of_two(norms, v)
    zero = b2 == 0
    book.true[zero] = 0.0
    book.stop(np.flatnonzero(zero), Reason.ZERO_SOURCE)
    book.stop(np.flatnonzero(~np.isfinite(b2)), Reason.NOT_FINITE)
    bnorm = np.where(zero, 1.0, norms * unit)
    r = v.scale(unit, r)
    if x0 is None:
        x, rr = v.zeros(), (norms * unit) ** 2
    else:
        x = v.scale(np.where(zero, 0.0, unit), x0)
        if book.live.any():
            r = v.axpy(-1.0, A(x), r)
        rr = v.norm2(r)
        book.stop(np.flatnonzero(~np.isfinite(rr)), Reason.NOT_FINITE)
        live = np.flatnonzero(book.live)
        book.verified(live, np.sqrt(rr[live]) / bnorm[live])
    book.residuals = np.where(zero, 0.0, np.sqrt(rr) / bnorm)
    return x, r, rr, unit, bnorm


def iterate(
    solver,
    make_steps: Callable[[LinearOperator, Handle, Handle, np.ndarray], Steps],
    A: LinearOperator,
    rhs: RightHandSide,
    x0: Handle | None,
    targets: np.ndarray,
    callback: Callback | None,
) -> tuple[Handle, SolverInfo]:
    """Run a recurrence to the tolerance; see the module. ``solver`` gives tol, maxiter, restarts, patience, verbose."""
    book = ColumnBook(solver.name, solver.tol, targets, callback, solver.verbose)
    counter = Counter()
    # NaN and overflow are looked for by name; numpy need not warn of them as well.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        loop = _Loop(solver, make_steps, counter.watch(A), rhs, x0, book)
        x = loop.run()
    return x, book.info(applications=counter.count)


class _Loop:
    """The state of :func:`iterate`. ``present`` are the columns now in the steps' handles."""

    def __init__(self, solver, make_steps, A, rhs, x0, book):
        self.solver, self.A, self.rhs, self.book = solver, A, rhs, book
        self.v: Vectors = A.vectors
        x, r, rr, self.unit, self.bnorm = start(A, rhs, x0, book)
        n = self.v.n
        self.present = np.arange(n)
        self.full: Handle | None = None
        self.last_true = np.full(n, np.inf)
        self.restarts = np.zeros(n, int)
        self.best, self.best_at = book.residuals.copy(), np.zeros(n, int)
        self.broke_at = np.full(n, -2)
        self.steps = make_steps(A, x, r, rr)
        del x, r  # the steps own them; a second name would keep their memory
        self.compact()

    def run(self) -> Handle:
        book, solver = self.book, self.solver
        while book.live.any():
            if len(book.history) >= solver.maxiter:
                book.stop(np.flatnonzero(book.live), Reason.MAXIMUM_ITERATIONS)
                break
            live = book.live[self.present]
            failures = self.steps.step(live)
            self.account(live)
            self.judge(live, failures)
            self.compact()
        return self.finish()

    def account(self, live: np.ndarray) -> None:
        residuals = self.book.residuals.copy()
        at = self.present[live]
        residuals[at] = np.sqrt(self.steps.rr[live]) / self.bnorm[at]
        self.book.record(residuals)
        better = self.book.live & (residuals < 0.99 * self.best)
        self.best[better], self.best_at[better] = residuals[better], len(self.book.history)

    def judge(self, live: np.ndarray, failures: dict[Reason, np.ndarray]) -> None:
        book, now = self.book, len(self.book.history)
        present = self.present
        residuals = book.residuals[present]
        for reason in (Reason.NOT_FINITE, Reason.NOT_POSITIVE):
            if reason in failures:
                book.stop(present[live & failures[reason]], reason)
        book.stop(present[live & ~np.isfinite(residuals)], Reason.NOT_FINITE)
        live = live & book.live[present]
        claims = live & (residuals <= book.targets[present])
        broken = live & ~claims & failures.get(Reason.BREAKDOWN, np.zeros(len(present), bool))
        # A restart that breaks down in its very first step meets the same zero again.
        hopeless = broken & (self.broke_at[present] == now - 1)
        book.stop(present[hopeless], Reason.BREAKDOWN)
        broken &= ~hopeless
        self.broke_at[present[broken]] = now
        stalled = live & ~claims & ~broken & ~hopeless & (now - self.best_at[present] >= self.solver.patience)
        again = claims | broken | stalled
        if again.any():
            self.renew(again, broken)

    def renew(self, mask: np.ndarray, broken: np.ndarray) -> None:
        """True residual of these columns: converged, restarted from it, or stopped."""
        book, steps = self.book, self.steps
        residuals = self.exact_residual(mask)
        at = self.present[mask]
        book.stop(at[~np.isfinite(residuals)], Reason.NOT_FINITE)
        book.verified(at, residuals)
        # A restart pays as long as each one lowers the true residual; a breakdown has lowered nothing and is new luck.
        useless = ~broken[mask] & ~(residuals < 0.5 * self.last_true[at])
        book.stop(at[useless], Reason.STAGNATION)
        worn = self.restarts[at] >= self.solver.restarts
        book.stop(at[worn & broken[mask]], Reason.BREAKDOWN)
        book.stop(at[worn], Reason.STAGNATION)
        self.last_true[at] = np.where(broken[mask], self.last_true[at], residuals)
        self.restarts[at] += 1
        self.best[at], self.best_at[at] = residuals, len(book.history)
        again = mask & book.live[self.present]
        rr = steps.rr.copy()
        rr[mask] = (residuals * self.bnorm[at]) ** 2
        steps.rr = np.where(again, rr, steps.rr)
        if (again & ~broken).any():
            steps.restart(again & ~broken)
        if (again & broken).any():
            steps.recover(again & broken)

    def exact_residual(self, mask: np.ndarray) -> np.ndarray:
        """|b - A x| / |b| of the masked columns, whose part of ``r`` becomes b - A x."""
        steps, v, at = self.steps, self.steps.v, self.present[mask]
        if not v.resizable:
            if mask.all():
                steps.r = None  # freed before its successor is made
            t = v.scale(self.unit, self.rhs.new())
            t = v.axpy(-1.0, steps.A(steps.x), t)
            residuals = (np.sqrt(v.norm2(t)) / self.bnorm)[mask]
            steps.r = t if steps.r is None else blend(v, mask, t, steps.r)
            return residuals
        # A few columns at a time: the check must not need more memory than the iteration.
        places = np.flatnonzero(mask)
        residuals = np.empty(len(at))
        pieces = np.array_split(np.arange(len(at)), -(-len(at) // CHECKED_TOGETHER))
        whole = len(pieces) == 1 and mask.all()
        if whole:
            steps.r = None
        for piece in pieces:
            columns, inside = at[piece], places[piece].tolist()
            A = on_columns(steps.A, len(piece))
            w = A.vectors
            t = w.scale(self.unit[columns], self.rhs.new(None if len(piece) == self.v.n else columns.tolist()))
            t = w.axpy(-1.0, A(steps.x if whole else v.take(steps.x, inside)), t)
            residuals[piece] = np.sqrt(w.norm2(t)) / self.bnorm[columns]
            steps.r = t if whole else v.put(steps.r, inside, t)
            del t
        return residuals

    def compact(self) -> None:
        """Take finished columns out of the batch, their x into the full solution."""
        if not self.v.resizable:
            return
        live = self.book.live[self.present]
        if live.all() or not live.any():
            return
        self.collect(~live)
        keep = np.flatnonzero(live)
        self.steps.take(keep)
        self.present = self.present[keep]

    def collect(self, mask: np.ndarray) -> None:
        v, x = self.steps.v, self.steps.x
        if self.full is None and len(self.present) == self.v.n:
            self.full = x  # take() below makes new handles, so this one is free to become the answer
            return
        part = x if mask.all() else v.take(x, np.flatnonzero(mask).tolist())
        self.full = self.v.put(self.full, self.present[mask].tolist(), part)

    def finish(self) -> Handle:
        """Unscaled x of all columns; true residuals of the columns that stopped without one."""
        book, v = self.book, self.v
        self.collect(np.ones(len(self.present), bool))
        x, self.full, unit = self.full, None, self.unit
        self.steps = None
        unknown = np.array([not reason.good for reason in book.reasons])
        if unknown.any():
            t = v.axpy(-1.0, self.A(x), v.scale(unit, self.rhs.new()))
            residuals = np.sqrt(v.norm2(t)) / self.bnorm
            book.true[unknown] = residuals[unknown]
        for k, reason in enumerate(
            book.reasons
        ):  # never said of anything but the true residual, and always if it holds
            if not reason.good and book.true[k] <= book.targets[k]:
                book.reasons[k] = Reason.CONVERGED
        return v.scale(1.0 / unit, x)

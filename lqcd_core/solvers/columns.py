"""Columns of a batch: who still iterates, why the others stopped, and right-hand sides that can be had again.

A batch runs in lockstep, every scalar of a recurrence being one number per column. A column that is done leaves the
batch where the space is resizable; on a static space its scalars become zero, so that it stays where it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from ..backend import Handle
from ..operators.linear import LinearOperator
from ..spaces import Vectors
from .solution import Callback, Progress, Reason, SolverInfo, make_info


class RightHandSide:
    """b, given out as new handles as often as a solver needs it.

    Parameters
    ----------
    vectors
        Operations for all n columns.
    make
        Columns (None for all) -> a new handle. From the host this packs again, so that no copy of b stays alive in the
        backend during the iteration.
    """

    def __init__(self, vectors: Vectors, make: Callable[[Sequence[int] | None], Handle]):
        self.vectors, self.new = vectors, make

    @classmethod
    def of_handle(cls, vectors: Vectors, b: Handle) -> RightHandSide:
        """From a handle that the caller keeps; it is left alone."""
        return cls(vectors, lambda columns=None: vectors.copy(b) if columns is None else vectors.take(b, columns))


def on_columns(A: LinearOperator, n: int) -> LinearOperator:
    """The same operator for handles of n columns."""
    return A if A.vectors.n == n else attrs.evolve(A, vectors=A.vectors.narrow(n))


class Counter:
    """Counts applications of an operator and its adjoint."""

    def __init__(self):
        self.count = 0

    def watch(self, A: LinearOperator) -> LinearOperator:
        """A, counted."""

        def counted(function):
            def apply(x):
                self.count += 1
                return function(x)

            return apply

        dagger = A.apply_dagger
        return attrs.evolve(A, apply=counted(A.apply), apply_dagger=None if dagger is None else counted(dagger))


def ratio(above, below, where) -> np.ndarray:
    """above / below where ``where`` holds, else 0, per column."""
    above, below = np.asarray(above), np.asarray(below)
    out = np.zeros(np.broadcast(above, below).shape, np.result_type(above, below, float))
    return np.divide(above, below, out=out, where=np.asarray(where) & (below != 0))


def blend(v: Vectors, mask: np.ndarray, new: Handle, old: Handle) -> Handle:
    """``old`` with the columns of ``mask`` taken from ``new``; consumes old, both hold all columns."""
    if mask.all():
        return v.copy(new)
    if v.resizable:
        columns = np.flatnonzero(mask).tolist()
        return v.put(old, columns, v.take(new, columns))
    return v.axpy(mask.astype(float), new, v.scale((~mask).astype(float), old))  # exact: times 0 and 1 only


def power_of_two(norms: np.ndarray, vectors: Vectors) -> np.ndarray:
    """2^-k per column with |b| 2^-k in [1/2, 1): scaling by it is exact, and takes tiny sources out of underflow.

    In 16-bit storage |b| becomes (number of components)^(1/4) instead: half way between a point source, whose one
    component must not overflow fp16, and noise, whose many must not underflow.
    """
    precision = vectors.precision
    limit = 500 if precision.bytes_per_real == 8 else 100
    good = np.isfinite(norms) & (norms > 0)
    target = 1.0
    if precision.bytes_per_real == 2:
        target = float(vectors.geometry.volume * 4 * vectors.geometry.nc) ** 0.25
    exponents = np.frexp(np.where(good, norms / target, 1.0))[1]
    return np.ldexp(1.0, -np.clip(exponents, -limit, limit))


class ColumnBook:
    """The account of one solve, column by column."""

    def __init__(self, solver: str, tol: float, targets: np.ndarray, callback: Callback | None, verbose: bool):
        self.solver, self.tol, self.targets = solver, tol, targets
        self.callback, self.verbose = callback, verbose
        n = len(targets)
        self.reasons: list[Reason | None] = [None] * n
        self.iterations = np.zeros(n, int)
        self.residuals = np.full(n, np.nan)  # as the recurrence knows them
        self.true = np.full(n, np.nan)  # verified ones
        self.history: list[np.ndarray] = []
        self.started = time.perf_counter()

    @property
    def live(self) -> np.ndarray:
        """Mask of the columns that still iterate."""
        return np.array([r is None for r in self.reasons], bool)

    def stop(self, columns, reason: Reason) -> None:
        """These columns (indices) are done."""
        for c in np.atleast_1d(columns):
            if self.reasons[c] is None:
                self.reasons[c] = reason
                self.iterations[c] = len(self.history)

    def verified(self, columns, residuals, targets=None) -> None:
        """True residuals of these columns; those at or below their target are converged."""
        columns = np.atleast_1d(columns)
        self.true[columns] = residuals
        good = self.true[columns] <= self.targets[columns]
        self.stop(columns[good], Reason.CONVERGED)

    def record(self, residuals: np.ndarray) -> None:
        """One iteration is over; relative residuals of all columns."""
        self.residuals = residuals
        self.history.append(residuals.copy())
        iteration, live = len(self.history), int(self.live.sum())
        if self.verbose and (iteration == 1 or iteration % 10 == 0):
            print(f"{self.solver}: iteration {iteration}, |r|/|b| = {np.nanmax(residuals):.3e}, {live} columns")
        if self.callback is not None:
            self.callback(Progress(iteration, residuals.copy(), self.tol, live, len(residuals)))

    def info(self, **more) -> SolverInfo:
        """The account; every column must have stopped and its true residual be known."""
        info = make_info(
            self.solver, self.tol, self.history, self.iterations, self.true, self.reasons,
            seconds=time.perf_counter() - self.started, **more,
        )  # fmt: skip
        if self.verbose:
            print(info)
        return info

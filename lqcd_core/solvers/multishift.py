r"""Multi-shift conjugate gradient: :math:`(A+\sigma_s)x_s=b` for all shifts at the cost of one, the smallest.

Krylov spaces of A and A + sigma are equal and residuals collinear, :math:`r_s=\zeta_s r`. With :math:`\sigma` counted from
the smallest shift,

.. math:: \zeta'_s = \frac{\zeta_s\zeta^-_s\alpha^-}{\alpha\beta(\zeta^-_s-\zeta_s)+\zeta^-_s\alpha^-(1+\sigma_s\alpha)},\quad
          \alpha_s=\alpha\frac{\zeta'_s}{\zeta_s},\quad x_s\mathrel{+}=\alpha_s p_s,\quad
          p_s\leftarrow\zeta'_s r+\beta'\Big(\frac{\zeta'_s}{\zeta_s}\Big)^2p_s

with beta the coefficient that made the present p and alpha^- the last alpha.

References
----------
.. [1] B. Jegerlehner, arXiv:hep-lat/9612014.
"""

from __future__ import annotations

import time

import attrs
import numpy as np

from ..errors import ParameterError
from ..operators.definition import real_number
from .cg import ConjugateGradient
from .columns import ColumnBook, Counter, power_of_two, ratio
from .krylov import Solver, valid_count, valid_tolerance
from .solution import Reason, make_info


def _shifts(values) -> tuple[float, ...]:
    try:
        values = tuple(values)  # a copy: the caller's list is not kept
    except TypeError:
        raise ParameterError(f"shifts must be a sequence of numbers, got {values!r}.") from None
    if not values:
        raise ParameterError("shifts is empty; give at least one number.")
    shifts = tuple(real_number(f"shifts[{k}]", value) for k, value in enumerate(values))
    if min(shifts) < 0:
        raise ParameterError(f"shifts must be at least 0 (A + shift has to stay positive), got {min(shifts)!r}.")
    return shifts


@attrs.frozen
class MultiShiftCG(Solver):
    r"""Conjugate gradient for :math:`(A+\sigma_s)x_s=b`, all shifts together; A Hermitian positive definite.

    The solution is a list, one entry per shift in the order given. ``info.parts`` holds a record per shift, each with its
    own true residual; shifts that missed the tolerance are refined one by one by :class:`ConjugateGradient` first.

    Memory: 2 vectors per shift and 3 more.

    Raises
    ------
    ParameterError
        If a parameter is out of range or a shift negative.

    Examples
    --------
    >>> a = np.diag([1.0, 2.0])
    >>> xs, info = MultiShiftCG(shifts=[0, 1], tol=1e-12).solve(lambda v: a @ v, np.array([2.0, 6.0]))
    >>> [x.round(12).tolist() for x in xs], len(info.parts)
    ([[2.0, 3.0], [1.0, 2.0]], 2)
    """

    shifts: tuple[float, ...] = attrs.field(converter=_shifts)
    """sigma, at least 0, in the units of A."""
    tol: float = attrs.field(validator=valid_tolerance)
    """Relative residual |b - (A + sigma) x| / |b| to reach for every shift, in (0, 1)."""
    maxiter: int = attrs.field(default=10000, validator=valid_count)
    """Most iterations of the common recurrence, and of each refinement."""
    verbose: bool = attrs.field(default=False, kw_only=True)
    """Print the residual every ten iterations."""
    refine: bool = attrs.field(default=True, kw_only=True)
    """Refine the shifts that missed."""
    refuse_unreachable: bool = attrs.field(default=True, kw_only=True)
    """Refuse a tolerance below what the precision can reach; False tries and reports."""

    needs_positive = True

    @property
    def vectors_needed(self) -> int:
        return 2 * len(self.shifts) + 3

    @property
    def general(self) -> MultiShiftCG:
        raise ParameterError(
            "MultiShiftCG has no form for general operators: (M + sigma) has no common normal equations."
        )

    def check(self, A):
        if not A.positive:
            raise ParameterError(
                f"MultiShiftCG needs a Hermitian positive definite operator, and {A.name} is not known to be one; use "
                "M.normal_linear or the normal_linear of a Schur complement."
            )
        Solver.check(self, A)

    def run(self, A, rhs, x0, targets, callback):
        if x0 is not None:
            raise ParameterError("MultiShiftCG starts from 0: residuals of different shifts are collinear only then.")
        started = time.perf_counter()
        counter = Counter()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            xs, book, unit, norms = self._iterate(counter.watch(A), rhs, targets, callback)
            parts = []
            for s, sigma in enumerate(self.shifts):
                xs[s], info = self._verify(_shifted(counter.watch(A), sigma), rhs, xs[s], unit, norms, targets, book)
                parts.append(info)
        reasons = [p.column_reasons for p in parts]
        residuals = np.array([p.column_residuals for p in parts])
        worst = [next((r[k] for r in reasons if not r[k].good), reasons[0][k]) for k in range(len(targets))]
        info = make_info(
            self.name, self.tol, book.history, np.max([p.column_iterations for p in parts], axis=0),
            residuals.max(axis=0), worst, applications=counter.count, seconds=time.perf_counter() - started,
            parts=tuple(parts),
        )  # fmt: skip
        if self.verbose:
            print(info)
        return xs, info

    def _iterate(self, A, rhs, targets, callback):
        v, n, S = A.vectors, A.vectors.n, len(self.shifts)
        book = ColumnBook(self.name, self.tol, targets, callback, self.verbose)
        base = min(self.shifts)
        sigma = np.array(self.shifts)[:, None] - base  # (S, 1)
        r = rhs.new()
        b2 = v.norm2(r)
        norms = np.sqrt(b2)
        book.true[b2 == 0] = 0.0
        book.stop(np.flatnonzero(b2 == 0), Reason.ZERO_SOURCE)
        book.stop(np.flatnonzero(~np.isfinite(b2)), Reason.NOT_FINITE)
        unit = power_of_two(norms, v)
        bnorm = np.where(b2 > 0, norms * unit, 1.0)
        r = v.scale(unit, r)
        rr = (norms * unit) ** 2
        xs, ps = [v.zeros() for _ in range(S)], [v.copy(r) for _ in range(S)]
        p = v.copy(r)
        zeta, zeta_last = np.ones((S, n)), np.ones((S, n))
        alpha_last, beta = np.ones(n), np.zeros(n)
        active = np.ones((S, n), bool)  # shifts still moving, per column
        while book.live.any():
            if len(book.history) >= self.maxiter:
                book.stop(np.flatnonzero(book.live), Reason.MAXIMUM_ITERATIONS)
                break
            live = book.live
            ap = A(p)
            if base:
                ap = v.axpy(base, p, ap)
            pap = v.inner(p, ap)
            finite = np.isfinite(pap)
            positive = (pap.real > 0) & (np.abs(pap.imag) <= 0.1 * np.abs(pap.real))
            book.stop(np.flatnonzero(live & ~finite), Reason.NOT_FINITE)
            book.stop(np.flatnonzero(live & finite & ~positive), Reason.NOT_POSITIVE)
            go = live & finite & positive
            alpha = ratio(rr, pap.real, go)
            below = alpha * beta * (zeta_last - zeta) + zeta_last * alpha_last * (1 + sigma * alpha)
            moving = active & go
            zeta_next = np.where(moving, ratio(zeta * zeta_last * alpha_last, below, moving), zeta)
            step = alpha * ratio(zeta_next, zeta, moving)
            for s in range(S):
                if moving[s].any():
                    xs[s] = v.axpy(step[s], ps[s], xs[s])
            before = rr
            r, rr = v.axpy_norm2(-alpha, ap, r)
            rr = np.where(go, rr, before)
            beta = ratio(rr, before, go)
            for s in range(S):
                if moving[s].any():  # p_s = zeta r + beta (zeta'/zeta)^2 p_s; a column at rest only has its p spoilt
                    factor = beta * ratio(zeta_next[s], zeta[s], moving[s]) ** 2
                    ps[s] = v.axpy(zeta_next[s], r, v.scale(factor, ps[s]))
            p = v.xpay(r, beta, p)
            zeta_last, zeta = np.where(moving, zeta, zeta_last), zeta_next
            alpha_last = np.where(go, alpha, alpha_last)
            relative = np.sqrt(rr) / bnorm
            # A shift rests once its own residual is well below target, so that zeta cannot underflow.
            active &= ~(np.abs(zeta) * relative <= 0.1 * targets)
            residuals = np.where(go, (np.abs(zeta) * relative).max(axis=0), book.residuals)
            book.record(residuals)
            done = go & (relative <= targets)
            book.stop(np.flatnonzero(done), Reason.CONVERGED)
            book.stop(np.flatnonzero(go & ~np.isfinite(relative)), Reason.NOT_FINITE)
        return xs, book, unit, bnorm

    def _verify(self, A, rhs, x, unit, bnorm, targets, book):
        """Unscaled x of one shift and its account; refined if it missed."""
        v = A.vectors

        def true(y):
            t = v.axpy(-1.0, A(y), v.scale(unit, rhs.new()))
            return np.sqrt(v.norm2(t)) / bnorm

        residuals = np.where([r is Reason.ZERO_SOURCE for r in book.reasons], 0.0, true(x))
        x = v.scale(1.0 / unit, x)
        reasons, iterations = list(book.reasons), book.iterations.copy()
        hopeless = (Reason.NOT_FINITE, Reason.NOT_POSITIVE, Reason.ZERO_SOURCE)
        missed = np.array([r not in hopeless for r in reasons]) & ~(residuals <= targets)
        if missed.any() and self.refine:
            cg = ConjugateGradient(tol=self.tol, maxiter=self.maxiter, refuse_unreachable=False)
            # Columns that are there already converge in 0 iterations: x is their exact start.
            x, info = cg.run(A, rhs, x, targets, None)
            residuals = np.where(missed, info.column_residuals, residuals)
            iterations = iterations + np.where(missed, info.column_iterations, 0)
            reasons = [info.column_reasons[k] if missed[k] else r for k, r in enumerate(reasons)]
        for k, r in enumerate(reasons):
            if r not in hopeless:
                good = residuals[k] <= targets[k]
                reasons[k] = Reason.CONVERGED if good else (Reason.STAGNATION if r.good else r)
        return x, make_info(
            self.name, self.tol, book.history, iterations, residuals, reasons, applications=0
        )  # fmt: skip


def _shifted(A, sigma: float):
    """A + sigma."""
    if sigma == 0:
        return A
    v = A.vectors

    def apply(x):
        return v.axpy(sigma, x, A(x))

    return attrs.evolve(
        A, apply=apply, apply_dagger=apply, name=f"{A.name} + {sigma:g}", rebind=None, owner=None
    )  # fmt: skip

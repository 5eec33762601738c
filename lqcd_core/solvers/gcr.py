r"""Generalised conjugate residual, flexible and restarted, for any invertible A.

.. math:: z = Kr,\quad q = Az - \sum_i \frac{q_i^\dagger Az}{|q_i|^2} q_i,\quad p = z - \sum_i(\dots)p_i,\quad
          \alpha=\frac{q^\dagger r}{|q|^2},\quad x\mathrel{+}=\alpha p,\quad r\mathrel{-}=\alpha q

K, the preconditioner, may be another one at every step: any approximate solver will do. The residual never grows.

References
----------
.. [1] S. C. Eisenstat, H. C. Elman, M. H. Schultz, SIAM J. Numer. Anal. 20 (1983) 345.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from ..errors import ParameterError
from .columns import RightHandSide, blend, ratio
from .krylov import Solver, Steps, iterate, valid_count, valid_tolerance
from .solution import Reason


class GCRSteps(Steps):
    """The recurrence. Handles: x, r, and up to ``length`` pairs (p, q = A p)."""

    handles = ("x", "r", "ps", "qs")
    numbers = ("rr", "qq", "first", "onward")

    def __init__(self, A, x, r, rr, length, precondition):
        super().__init__(A, x, r, rr)
        self.length, self.precondition = length, precondition
        self.ps: list[Any] = []
        self.qs: list[Any] = []
        self.qq = np.zeros((length, len(rr)))
        self.first = np.zeros(len(rr), int)  # pairs before this one are forgotten by the column
        self.onward = np.zeros(len(rr), bool)  # the next direction is the last A p, not r

    def step(self, live):
        v = self.v
        p = v.copy(self.r) if self.precondition is None else self.precondition(self.A, self.r)
        if (self.onward & live).any():
            p = blend(v, self.onward & live, self.qs[-1], p)
            self.onward = np.zeros(len(self.rr), bool)
        if len(self.ps) == self.length:
            self.ps, self.qs = [], []
            self.first = np.zeros(len(self.rr), int)
        k = len(self.ps)
        q = self.A(p)
        for i in range(k):
            if not (live & (i >= self.first)).any():
                continue
            overlap = ratio(v.inner(self.qs[i], q), self.qq[i], live & (i >= self.first))
            q = v.axpy(-overlap, self.qs[i], q)
            p = v.axpy(-overlap, self.ps[i], p)
        qq, qr = v.norm2(q), v.inner(q, self.r)
        finite = np.isfinite(qq) & np.isfinite(qr)
        # A step that lowers |r| by less than rounding: q is orthogonal to r (skew A) or zero (singular A).
        lost = finite & (np.abs(qr) ** 2 <= v.precision.epsilon**2 * qq * self.rr)
        alpha = ratio(qr, qq, live & finite)
        before = self.rr
        self.x, self.r, rr = v.cg_update(alpha, p, q, self.x, self.r)
        self.rr = np.where(live & finite, rr, before)
        self.qq[k] = np.where(finite, qq, 0.0)
        self.ps.append(p)
        self.qs.append(q)
        return {Reason.NOT_FINITE: ~finite, Reason.BREAKDOWN: lost}

    def restart(self, mask):
        self.first = np.where(mask, len(self.ps), self.first)
        # replaced() comes here too: pairs kept from before a reliable update cost more than they give, measured at 16 bits
        # as 3 to 4 times the iterations.

    def recover(self, mask):
        self.onward = self.onward | mask  # r^dagger A r = 0: r as direction gains nothing, A r makes the space grow


def _preconditioner(instance, attribute, value) -> None:
    if value is not None and not isinstance(value, Solver) and not callable(value):
        raise ParameterError(f"preconditioner must be a solver or a function r -> K r, got {type(value).__name__}.")


@attrs.frozen
class GCR(Solver):
    r"""Flexible generalised conjugate residual, restarted after ``restart`` steps.

    Memory: 2 restart + 4 vectors (x, r, the pairs p and Ap, the new pair), and those of the preconditioner.

    Raises
    ------
    ParameterError
        If a parameter is out of range.
    """

    tol: float = attrs.field(validator=valid_tolerance)
    """Relative residual |b - A x| / |b| to reach, in (0, 1), dimensionless."""
    maxiter: int = attrs.field(default=10000, validator=valid_count)
    """Most iterations, at least 1."""
    restart: int = attrs.field(default=16, validator=valid_count, kw_only=True)
    """Search directions kept before they are dropped, at least 1."""
    preconditioner: Solver | Callable | None = attrs.field(default=None, validator=_preconditioner, kw_only=True)
    """K: a solver (run on the same operator; a few iterations or a loose tol), or a function r -> K r of handles (of
    arrays where A is a function of arrays); None for the identity."""
    verbose: bool = attrs.field(default=False, kw_only=True)
    """Print the residual every ten iterations."""
    restarts: int = attrs.field(default=10, validator=valid_count, kw_only=True)
    """Most restarts from the true residual per column."""
    patience: int = attrs.field(default=300, validator=valid_count, kw_only=True)
    """Iterations without a residual smaller by 1 % before a column counts as stagnating."""
    refuse_unreachable: bool = attrs.field(default=True, kw_only=True)
    """Refuse a tolerance below what the precision can reach; False tries and reports."""

    needs_positive = False

    @property
    def vectors_needed(self) -> int:
        inner = self.preconditioner.vectors_needed if isinstance(self.preconditioner, Solver) else 0
        return 2 * self.restart + 4 + inner

    @property
    def general(self) -> GCR:
        return self

    def check(self, A):
        Solver.check(self, A)
        if isinstance(self.preconditioner, Solver) and self.preconditioner.needs_positive and not A.positive:
            raise ParameterError(
                f"the preconditioner {self.preconditioner.name} needs a positive operator, and {A.name} is none; use "
                "BiCGStab or GCR there."
            )

    def make_steps(self, A, x, r, rr) -> GCRSteps:
        inner = self.preconditioner
        if isinstance(inner, Solver):

            def precondition(B, residual):
                n = len(B.vectors.norm2(residual))
                return inner.run(
                    B, RightHandSide.of_handle(B.vectors, residual), None, np.full(n, inner.tol), None
                )[0]  # fmt: skip

        else:
            precondition = None if inner is None else (lambda B, residual: inner(residual))
        return GCRSteps(A, x, r, rr, self.restart, precondition)

    def run(self, A, rhs, x0, targets, callback):
        return iterate(self, self.make_steps, A, rhs, x0, targets, callback)

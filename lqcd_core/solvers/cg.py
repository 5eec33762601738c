r"""Conjugate gradient, for Hermitian positive definite A, and for the normal equations of any M.

.. math:: \alpha = \frac{|r|^2}{p^\dagger Ap},\quad x \mathrel{+}= \alpha p,\quad r \mathrel{-}= \alpha Ap,\quad
          \beta=\frac{|r'|^2}{|r|^2},\quad p \leftarrow r' + \beta p

On :math:`M^\dagger M x = M^\dagger b` with the residual of the system itself kept (CGNR), so that the stopping rule is on
:math:`|b-Mx|`, not on :math:`|M^\dagger(b-Mx)|`:

.. math:: z = M^\dagger r,\quad p \leftarrow z + \beta p,\quad q = Mp,\quad \alpha = \frac{|z|^2}{|q|^2},\quad
          x \mathrel{+}= \alpha p,\quad r \mathrel{-}= \alpha q

References
----------
.. [1] M. R. Hestenes, E. Stiefel, J. Res. NBS 49 (1952) 409.
"""

from __future__ import annotations

import attrs
import numpy as np

from ..errors import ParameterError
from .columns import ratio
from .krylov import Solver, Steps, iterate, valid_count, valid_tolerance
from .solution import Reason


class CGSteps(Steps):
    """The recurrence of conjugate gradient. Handles: x, r, p, and A p during the step."""

    handles = ("x", "r", "p")
    numbers = ("rr", "beta")
    directions = ("p",)

    def __init__(self, A, x, r, rr):
        super().__init__(A, x, r, rr)
        self.p, self.beta = None, np.zeros(len(rr))

    def step(self, live):
        v = self.v
        # beta = 0 gives p = r: that is how a single column restarts.
        self.p = v.copy(self.r) if self.p is None else v.xpay(self.r, np.where(live, self.beta, 0.0), self.p)
        ap = self.A(self.p)
        pap = v.inner(self.p, ap)
        finite = np.isfinite(pap)
        positive = (pap.real > 0) & (np.abs(pap.imag) <= 0.1 * np.abs(pap.real))
        go = live & finite & positive
        before = self.rr
        alpha = ratio(before, pap.real, go)
        self.x, self.r, rr = v.cg_update(alpha, self.p, ap, self.x, self.r)
        self.rr = np.where(live & finite, rr, before)
        self.beta = ratio(self.rr, before, go)
        return {Reason.NOT_FINITE: ~finite, Reason.NOT_POSITIVE: finite & ~positive}

    def restart(self, mask):
        self.beta = np.where(mask, 0.0, self.beta)

    def replaced(self, mask, before):
        # p was orthogonal to the old r, not to the exact one: without this the reliable update loses its direction.
        if self.p is not None:
            overlap = ratio(self.v.inner(self.r, self.p), self.rr, mask)
            self.p = self.v.axpy(-overlap, self.r, self.p)
            self.beta = np.where(mask, ratio(self.rr, before, mask) * self.beta, self.beta)  # |r exact|^2 / |r old|^2


class NormalCGSteps(Steps):
    """The recurrence of CGNR. Handles: x, r, p, and one of z, q during the step."""

    handles = ("x", "r", "p")
    numbers = ("rr", "zz", "keep", "again")
    directions = ("p",)
    powers = {"rr": 2, "zz": 2}

    def __init__(self, A, x, r, rr):
        super().__init__(A, x, r, rr)
        self.p, self.zz = None, np.zeros(len(rr))
        self.keep, self.again = np.zeros(len(rr)), np.zeros(len(rr), bool)

    def step(self, live):
        v, A = self.v, self.A
        z = A.apply_dagger(self.r)
        zz = v.norm2(z)
        if self.p is None:
            self.p = z
        else:
            beta = ratio(zz, self.zz, live) * self.keep
            if self.again.any():
                overlap = ratio(v.inner(z, self.p), zz, self.again)
                self.p = v.axpy(-overlap, z, self.p)
            self.p = v.xpay(z, beta, self.p)
        del z
        self.zz, self.keep, self.again = zz, np.ones(len(zz)), np.zeros(len(zz), bool)
        q = A(self.p)
        qq = v.norm2(q)
        finite = np.isfinite(zz) & np.isfinite(qq)
        broken = finite & ((zz == 0) | (qq == 0))  # r in the kernel of M^dagger, or p in that of M: M is singular
        alpha = ratio(zz, qq, live & finite & ~broken)
        before = self.rr
        self.x, self.r, rr = v.cg_update(alpha, self.p, q, self.x, self.r)
        self.rr = np.where(live & finite, rr, before)
        return {Reason.NOT_FINITE: ~finite, Reason.BREAKDOWN: broken}

    def restart(self, mask):
        self.keep = np.where(mask, 0.0, self.keep)

    def replaced(self, mask, before):
        self.again = self.again | mask


@attrs.frozen
class ConjugateGradient(Solver):
    r"""Conjugate gradient for Hermitian positive definite operators.

    Stops when :math:`|b-Ax|/|b|\le` tol per column, verified on the true residual. Through :func:`lqcd_core.solvers.solve`
    it serves any M by the normal equations.

    Memory: 4 vectors (x, r, p, Ap).

    Raises
    ------
    ParameterError
        If a parameter is out of range.

    Examples
    --------
    >>> a = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> x, info = ConjugateGradient(tol=1e-12).solve(lambda v: a @ v, np.array([3.0, 4.0]))
    >>> x.round(12), info.iterations, info.converged
    (array([1., 1.]), 2, True)
    """

    tol: float = attrs.field(validator=valid_tolerance)
    """Relative residual |b - A x| / |b| to reach, in (0, 1), dimensionless."""
    maxiter: int = attrs.field(default=10000, validator=valid_count)
    """Most iterations, at least 1."""
    verbose: bool = attrs.field(default=False, kw_only=True)
    """Print the residual every ten iterations."""
    restarts: int = attrs.field(default=10, validator=valid_count, kw_only=True)
    """Most restarts from the true residual per column; each must halve it, else the column stagnates."""
    patience: int = attrs.field(default=1000, validator=valid_count, kw_only=True)
    """Iterations without a smaller residual before a column counts as stagnating."""
    refuse_unreachable: bool = attrs.field(default=True, kw_only=True)
    """Refuse a tolerance below what the precision can reach; False tries and reports."""

    needs_positive = True
    vectors_needed = 4

    @property
    def general(self) -> NormalCG:
        return NormalCG(**{f.name: getattr(self, f.name) for f in attrs.fields(ConjugateGradient)})

    def check(self, A):
        if not A.positive:
            raise ParameterError(
                f"ConjugateGradient needs a Hermitian positive definite operator, and {A.name} is not known to be one; "
                "use lqcd.solve(M, b, solver), which solves the normal equations, or M.normal_linear."
            )
        Solver.check(self, A)

    def run(self, A, rhs, x0, targets, callback):
        return iterate(self, CGSteps, A, rhs, x0, targets, callback)

    make_steps = CGSteps


@attrs.frozen
class NormalCG(Solver):
    r"""Conjugate gradient on :math:`M^\dagger Mx=M^\dagger b` with the stopping rule on :math:`|b-Mx|/|b|` (CGNR).

    What :func:`lqcd_core.solvers.solve` runs for :class:`ConjugateGradient`. The operator needs its adjoint.

    Memory: 4 vectors (x, r, p and one of M p, M^dagger r).
    """

    tol: float = attrs.field(validator=valid_tolerance)
    """Relative residual |b - M x| / |b| to reach, in (0, 1), dimensionless."""
    maxiter: int = attrs.field(default=10000, validator=valid_count)
    """Most iterations, at least 1."""
    verbose: bool = attrs.field(default=False, kw_only=True)
    """Print the residual every ten iterations."""
    restarts: int = attrs.field(default=10, validator=valid_count, kw_only=True)
    """Most restarts from the true residual per column."""
    patience: int = attrs.field(default=1000, validator=valid_count, kw_only=True)
    """Iterations without a smaller residual before a column counts as stagnating."""
    refuse_unreachable: bool = attrs.field(default=True, kw_only=True)
    """Refuse a tolerance below what the precision can reach; False tries and reports."""

    needs_positive = False
    vectors_needed = 4

    @property
    def general(self) -> NormalCG:
        return self

    def check(self, A):
        if A.apply_dagger is None:
            raise ParameterError(f"NormalCG needs the adjoint of the operator, and {A.name} does not have one.")
        Solver.check(self, A)

    def run(self, A, rhs, x0, targets, callback):
        return iterate(self, NormalCGSteps, A, rhs, x0, targets, callback)

    make_steps = NormalCGSteps

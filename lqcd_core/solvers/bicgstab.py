r"""Stabilised biconjugate gradient, for any invertible A.

.. math:: \rho = \hat r^\dagger r,\quad p \leftarrow r + \beta(p - \omega v),\quad v = Ap,\quad
          \alpha = \rho/\hat r^\dagger v,\quad s = r - \alpha v
.. math:: t = As,\quad \omega = \frac{t^\dagger s}{|t|^2},\quad x \mathrel{+}= \alpha p + \omega s,\quad
          r \leftarrow s - \omega t,\quad \beta = \frac{\rho'}{\rho}\frac{\alpha}{\omega}

References
----------
.. [1] H. A. van der Vorst, SIAM J. Sci. Stat. Comput. 13 (1992) 631.
"""

from __future__ import annotations

import attrs
import numpy as np

from .columns import blend, ratio
from .krylov import Solver, Steps, iterate, valid_count, valid_tolerance
from .solution import Reason


class BiCGStabSteps(Steps):
    """The recurrence. Handles: x, r (also s), the shadow residual, p, v, and t during the step."""

    handles = ("x", "r", "shadow", "p", "Ap")
    numbers = ("rr", "shadow2", "rho", "factor", "omega")
    directions = ("p", "Ap")
    powers = {"rr": 2, "rho": 1}

    def __init__(self, A, x, r, rr):
        super().__init__(A, x, r, rr)
        self.shadow = self.p = self.Ap = None
        self.shadow2 = rr.copy()
        self.rho = np.zeros(len(rr), complex)
        self.factor = np.zeros(len(rr), complex)  # alpha / omega
        self.omega = np.zeros(len(rr), complex)

    def step(self, live):
        v, epsilon = self.v, self.v.precision.epsilon
        if self.p is None:
            self.shadow, self.p = v.copy(self.r), v.copy(self.r)
            self.rho = self.rr.astype(complex)
        else:
            rho = v.inner(self.shadow, self.r)
            beta = ratio(rho, self.rho, live) * self.factor
            self.rho = rho
            # beta (p - omega v): beta = 0 restarts a column.
            self.p = v.axpy(-self.omega, self.Ap, self.p)
            self.p = v.xpay(self.r, beta, self.p)
        self.Ap = None  # before the next one is made
        self.Ap = self.A(self.p)
        below = v.inner(self.shadow, self.Ap)
        finite = np.isfinite(below) & np.isfinite(self.rho)
        # |cos| of the angle between shadow and r (or A p) at rounding level: the quotient would be noise.
        ap2 = v.norm2(self.Ap)
        lost = np.abs(self.rho) ** 2 <= epsilon**2 * self.shadow2 * self.rr
        lost |= np.abs(below) ** 2 <= epsilon**2 * self.shadow2 * ap2
        alpha = ratio(self.rho, below, live & finite & ~lost)
        self.r, ss = v.axpy_norm2(-alpha, self.Ap, self.r)  # s
        t = self.A(self.r)
        ts, tt = v.inner(t, self.r), v.norm2(t)
        finite &= np.isfinite(ts) & np.isfinite(tt)
        still = ss > 0  # s = 0 is the exact solution (A = 2): omega = 0 then
        omega = ratio(ts, tt, live & finite & still)
        lost |= still & (np.abs(ts) ** 2 <= epsilon**2 * tt * ss)
        self.x = v.axpy(alpha, self.p, self.x)
        self.x = v.axpy(omega, self.r, self.x)
        before = self.rr
        self.r, rr = v.axpy_norm2(-omega, t, self.r)
        self.rr = np.where(live & finite, rr, before)
        self.factor = ratio(alpha, omega, live & finite & ~lost)
        self.omega = omega
        return {Reason.NOT_FINITE: ~finite, Reason.BREAKDOWN: finite & lost}

    def restart(self, mask):
        if self.p is None:
            return
        self.shadow = blend(self.v, mask, self.r, self.shadow)
        self.shadow2 = np.where(mask, self.rr, self.shadow2)
        self.factor = np.where(mask, 0.0, self.factor)

    def recover(self, mask):
        # With shadow = r the same r^dagger A r = 0 would come again: lean the shadow towards A r.
        if self.p is None:
            return
        v = self.v
        ar = self.A(self.r)
        size2 = v.norm2(ar)
        lean = v.xpay(self.r, np.sqrt(ratio(self.rr, size2, mask & np.isfinite(size2))), ar)
        self.shadow = blend(v, mask, lean, self.shadow)
        self.shadow2 = np.where(mask, v.norm2(self.shadow), self.shadow2)
        self.factor = np.where(mask, 0.0, self.factor)

    def replaced(self, mask, before):
        pass  # p, v and the shadow go on with the exact r (Sleijpen, van der Vorst, Computing 56 (1996) 141)


@attrs.frozen
class BiCGStab(Solver):
    r"""Stabilised biconjugate gradient; the usual choice for Wilson-type M and its Schur complements.

    Two applications of A an iteration. A breakdown restarts with the shadow r + A r |r| / |A r|; a second one at once is
    reported.

    Memory: 6 vectors (x, r, shadow, p, Ap, As).

    Raises
    ------
    ParameterError
        If a parameter is out of range.
    """

    tol: float = attrs.field(validator=valid_tolerance)
    """Relative residual |b - A x| / |b| to reach, in (0, 1), dimensionless."""
    maxiter: int = attrs.field(default=10000, validator=valid_count)
    """Most iterations, at least 1."""
    verbose: bool = attrs.field(default=False, kw_only=True)
    """Print the residual every ten iterations."""
    restarts: int = attrs.field(default=20, validator=valid_count, kw_only=True)
    """Most restarts from the true residual per column, for breakdowns and missed claims together."""
    patience: int = attrs.field(default=300, validator=valid_count, kw_only=True)
    """Iterations without a smaller residual before a column restarts, and stagnates if that does not halve it."""
    refuse_unreachable: bool = attrs.field(default=True, kw_only=True)
    """Refuse a tolerance below what the precision can reach; False tries and reports."""

    needs_positive = False
    vectors_needed = 6

    @property
    def general(self) -> BiCGStab:
        return self

    def run(self, A, rhs, x0, targets, callback):
        return iterate(self, BiCGStabSteps, A, rhs, x0, targets, callback)

    make_steps = BiCGStabSteps

r"""Even-odd: the Schur complement of M on one parity.

With p the parity kept and q the other, :math:`M = \begin{pmatrix}A_p & -H_{pq}\\ -H_{qp} & A_q\end{pmatrix}`:

.. math:: \text{asymmetric:}\quad \hat M = A_p - H_{pq}A_q^{-1}H_{qp},\qquad \hat b = b_p + H_{pq}A_q^{-1}b_q
.. math:: \text{symmetric:}\quad \hat M = 1 - A_p^{-1}H_{pq}A_q^{-1}H_{qp},\qquad \hat b = A_p^{-1}(b_p + H_{pq}A_q^{-1}b_q)
.. math:: \hat M x_p = \hat b,\qquad x_q = A_q^{-1}(b_q + H_{qp}x_p)

A backend with SupportsEvenOdd hops between half lattices; on any other the same equations run on full-lattice vectors
that are zero on the other parity (:class:`~lqcd_core.spaces.MaskedSpace`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from ..backend import Handle, SupportsEvenOdd
from ..errors import ParameterError
from ..geometry import EVEN, ODD
from ..spaces import MaskedSpace, Vectors
from .linear import LinearOperator

FORMS = ("symmetric", "asymmetric")


class SchurOperator:
    """The Schur complement of a bound operator. Made by :meth:`BoundOperator.even_odd`.

    Parameters
    ----------
    bound
        The operator on the full lattice.
    parity
        The parity kept: 0 (even) or 1 (odd).
    form
        ``symmetric`` or ``asymmetric``.

    Raises
    ------
    GeometryError
        On a lattice with an odd extent.
    ParameterError
        For another parity or form.
    """

    def __init__(self, bound, parity: int, form: str):
        if parity not in (EVEN, ODD):
            raise ParameterError(f"parity must be 0 (even) or 1 (odd), got {parity!r}.")
        if form not in FORMS:
            raise ParameterError(f"form must be one of {FORMS}, got {form!r}.")
        self.bound, self.parity, self.form, self.geometry = bound, parity, form, bound.geometry
        self.geometry._need_parity()
        p, q = parity, 1 - parity
        backend, geometry = bound.backend, bound.geometry
        self.masked = not isinstance(backend, SupportsEvenOdd)
        if not self.masked:
            spaces = {k: backend.space(geometry, bound.precision, bound.n_rhs, k) for k in (p, q)}
            self.hop = {k: backend.parity_hopping(bound.links, spaces[k]) for k in (p, q)}
        else:
            spaces = {k: MaskedSpace(bound.space, k) for k in (p, q)}
            self.hop = dict.fromkeys((p, q), bound.hopping)
        self.v = {k: Vectors(spaces[k]) for k in (p, q)}
        self.vectors = self.v[p]
        self._bind_operators()

    # The site-diagonal terms, made when they are first used: a backend with fused operators needs few of them, and an
    # operator that only serves inside a mixed solve none.

    def _functions(self, inverse: bool, dagger: bool) -> dict[int, Callable[[Handle], Handle]]:
        from .bound import diagonal_function

        bound = self.bound

        def term(whole):
            whole = whole.inverse() if inverse else whole
            return whole.dagger() if dagger else whole

        if self.masked:  # A keeps the zeros, and the backend knows only its own full-lattice space
            return dict.fromkeys((0, 1), diagonal_function(term(bound.diagonal), bound.vectors, bound.backend))
        halves = {k: term(bound.diagonal.on_parity(self.geometry, k)) for k in (0, 1)}
        return {k: diagonal_function(half, self.v[k], bound.backend) for k, half in halves.items()}

    @cached_property
    def a(self):
        """A per parity, a function of handles."""
        return self._functions(inverse=False, dagger=False)

    @cached_property
    def a_inv(self):
        """A^-1 per parity."""
        return self._functions(inverse=True, dagger=False)

    @cached_property
    def a_dag(self):
        """A^dagger per parity; A itself where it is Hermitian."""
        return self._functions(inverse=False, dagger=True) if self.bound.diagonal.twist else self.a

    @cached_property
    def a_inv_dag(self):
        """A^-dagger per parity."""
        return self._functions(inverse=True, dagger=True) if self.bound.diagonal.twist else self.a_inv

    def _bind_operators(self) -> None:
        p, q = self.parity, 1 - self.parity
        v, h, g5 = self.vectors, self.hop, self.vectors.gamma5

        def asymmetric(x: Handle) -> Handle:
            return v.axpy(-1.0, h[p](self.a_inv[q](h[q](x))), self.a[p](x))

        def asymmetric_dagger(x: Handle) -> Handle:  # H^dagger = g5 H g5 and g5 commutes with A
            return v.axpy(-1.0, g5(h[p](self.a_inv_dag[q](h[q](g5(x))))), self.a_dag[p](x))

        def symmetric(x: Handle) -> Handle:
            return v.axpy(-1.0, self.a_inv[p](h[p](self.a_inv[q](h[q](x)))), v.copy(x))

        def symmetric_dagger(x: Handle) -> Handle:
            return v.axpy(-1.0, g5(h[p](self.a_inv_dag[q](h[q](g5(self.a_inv_dag[p](x)))))), v.copy(x))

        derived = (symmetric, symmetric_dagger) if self.form == "symmetric" else (asymmetric, asymmetric_dagger)

        def fused(kind):
            if self.masked:
                return None
            return self.bound._fused(kind, v.space, parity=self.parity, form=self.form)

        self.apply = fused("schur") or derived[0]
        self.apply_dagger = fused("schur_dag") or derived[1]
        self.apply_normal = fused("schur_normal") or (lambda x: self.apply_dagger(self.apply(x)))

    # -- as linear operators ------------------------------------------------------------------------------------------

    @property
    def linear(self) -> LinearOperator:
        """The Schur complement as a solver sees it."""
        return LinearOperator(
            vectors=self.vectors, apply=self.apply, apply_dagger=self.apply_dagger, rebind=lambda **k: self.rebind(**k).linear,
            name=f"{self.form} Schur complement of {self.bound.definition.name}", owner=self,
        )  # fmt: skip

    @property
    def normal_linear(self) -> LinearOperator:
        """Mhat^dagger Mhat as a solver sees it."""
        return LinearOperator(
            vectors=self.vectors, apply=self.apply_normal, apply_dagger=self.apply_normal, hermitian=True, positive=True,
            rebind=lambda **k: self.rebind(**k).normal_linear,
            name=f"normal {self.form} Schur complement of {self.bound.definition.name}", owner=self,
        )  # fmt: skip

    def rebind(self, **options) -> SchurOperator:
        """The Schur complement of the rebound operator; see :meth:`BoundOperator.rebind`."""
        return self.bound.rebind(**options).even_odd(self.parity, self.form)

    # -- between the full lattice and one parity ----------------------------------------------------------------------

    def split(self, batch: np.ndarray) -> tuple[Handle, Handle]:
        """Handles (b_p, b_q) of a host batch ``(n, T, Z, Y, X, Ns, Nc)``."""
        p, q = self.parity, 1 - self.parity
        return tuple(self.v[k].pack(self.geometry.split_parity(batch, k, lead=1)) for k in (p, q))

    def join(self, x_p: Handle, x_q: Handle) -> np.ndarray:
        """The host batch of two halves."""
        p, q = self.parity, 1 - self.parity
        halves = {p: self.v[p].unpack(x_p), q: self.v[q].unpack(x_q)}
        return self.geometry.join_parity(halves[EVEN], halves[ODD], lead=1)

    def prepare(self, b_p: Handle, b_q: Handle) -> Handle:
        """The source bhat of the Schur complement; a new handle, its arguments are left alone."""
        p, q = self.parity, 1 - self.parity
        v = self.vectors
        n = v.axpy(1.0, b_p, self.hop[p](self.a_inv[q](b_q)))
        return self.a_inv[p](n) if self.form == "symmetric" else n

    def reconstruct(self, x_p: Handle, b_q: Handle) -> Handle:
        """x_q from x_p; a new handle."""
        q = 1 - self.parity
        return self.a_inv[q](self.v[q].axpy(1.0, b_q, self.hop[q](x_p)))

    def __repr__(self) -> str:
        return f"<{self.form} Schur complement on parity {self.parity} of {self.bound!r}>"

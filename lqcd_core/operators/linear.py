"""What a solver sees of an operator: vectors, a function of a handle, its adjoint, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ..backend import Handle
from ..spaces import Vectors


@attrs.frozen(eq=False, kw_only=True)
class LinearOperator:
    """A linear map on the handles of one space."""

    vectors: Vectors
    """Vector operations of the space it acts on."""
    apply: Callable[[Handle], Handle]
    """x -> A x, a new handle; x is left alone."""
    apply_dagger: Callable[[Handle], Handle] | None = None
    """x -> A^dagger x, None if unknown."""
    hermitian: bool = False
    """True if A = A^dagger by construction."""
    positive: bool = False
    """True if A is Hermitian positive definite by construction (conjugate gradient may be used)."""
    name: str = "A"
    """For messages, e.g. ``M^dagger M of wilson``."""
    rebind: Callable[..., LinearOperator] | None = None
    """The same operator at another precision or backend: ``rebind(precision=, backend=)``; None for a raw callable."""
    owner: Any = None
    """The bound operator this came from, for backends that solve inside (SupportsDeviceSolve)."""

    def __call__(self, x: Handle) -> Handle:
        return self.apply(x)

    @property
    def dagger(self) -> LinearOperator:
        """A^dagger."""
        if self.hermitian:
            return self
        rebind = self.rebind
        return attrs.evolve(
            self, apply=self.apply_dagger, apply_dagger=self.apply, name=f"{self.name}^dagger",
            rebind=None if rebind is None else lambda **k: rebind(**k).dagger, owner=None,
        )  # fmt: skip

    @property
    def normal(self) -> LinearOperator:
        """A^dagger A, Hermitian and positive."""
        rebind = self.rebind
        apply, dagger = self.apply, self.apply_dagger

        def normal(x):
            return dagger(apply(x))

        return attrs.evolve(
            self, apply=normal, apply_dagger=normal, hermitian=True, positive=True, name=f"{self.name}^dagger {self.name}",
            rebind=None if rebind is None else lambda **k: rebind(**k).normal, owner=None,
        )  # fmt: skip

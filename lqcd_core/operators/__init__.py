"""Fermion operators: definitions (wilson, clover, twisted_mass), and what they become when bound (bound, even_odd)."""

from .bound import BoundOperator, bind, explain
from .clover import CloverWilsonDirac
from .dirac import DiracOperator
from .even_odd import SchurOperator
from .linear import LinearOperator
from .twisted_mass import TwistedMassDirac
from .wilson import WilsonDirac

__all__ = [
    "BoundOperator", "CloverWilsonDirac", "DiracOperator", "LinearOperator", "SchurOperator", "TwistedMassDirac",
    "WilsonDirac", "bind", "explain",
]  # fmt: skip

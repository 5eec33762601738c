"""Solvers over any space, batched, with the true residual as the only judge."""

from .bicgstab import BiCGStab
from .cg import ConjugateGradient, NormalCG
from .gcr import GCR
from .krylov import Solver
from .memory import memory_estimate
from .mixed import MixedPrecision
from .multishift import MultiShiftCG
from .solution import Progress, Reason, Solution, SolverInfo
from .solve import solve

__all__ = [
    "GCR",
    "BiCGStab",
    "ConjugateGradient",
    "MixedPrecision",
    "MultiShiftCG",
    "NormalCG",
    "Progress",
    "Reason",
    "Solution",
    "Solver",
    "SolverInfo",
    "memory_estimate",
    "solve",
]  # fmt: skip

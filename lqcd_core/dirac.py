"""Fermion operators under the module name of lqcd-neuron. A face: everything is defined in lqcd_core.operators.

``D(psi, U)``, ``D.dagger(psi, U)`` and ``D.normal(psi, U)`` take fields or raw arrays and bind on the way. The spinor
decides what comes back: a field, a NumPy array or a torch tensor, in its precision. A program that applies one operator
often binds it once, ``M = D.bind(U)``.
"""

from .gamma import GAMMA, GAMMA5, sigma
from .operators import CloverWilsonDirac, DiracOperator, TwistedMassDirac, WilsonDirac, bind, explain

__all__ = [
    "GAMMA", "GAMMA5", "CloverWilsonDirac", "DiracOperator", "TwistedMassDirac", "WilsonDirac", "bind", "explain", "sigma",
]  # fmt: skip

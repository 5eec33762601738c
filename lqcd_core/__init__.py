"""Lattice QCD in Python: one script, any backend, from a laptop to AWS Trainium.

    import lqcd_core as lqcd
    lqcd.use_backend("native")                                   # strict; or leave it out and the best one is chosen
    U = lqcd.GaugeField.read("cfg.ildg")
    M = lqcd.WilsonDirac(mass=0.1).bind(U, precision="double")   # links go into the backend once, here
    S = lqcd.propagator(M, lqcd.point_source(U.geometry), lqcd.ConjugateGradient(tol=1e-10))
    C = lqcd.observables.pion_correlator(S)                      # host again, shape (T,)

Fields, operators and selection are imported here; solvers, hadrons, files and the rest load on first use.
"""

from __future__ import annotations

import importlib

from . import errors
from .backend import (
    FEATURES,
    Backend,
    BackendInfo,
    DiracTerms,
    Links,
    Option,
    Request,
    SiteDiagonal,
    Space,
)  # fmt: skip
from .errors import LQCDError
from .fields import ColorSpinorField, GaugeField, Propagator, random_gauge_rotation
from .geometry import EVEN, FULL, ODD, LatticeGeometry
from .hookspecs import hookimpl
from .operators import (
    BoundOperator,
    CloverWilsonDirac,
    DiracOperator,
    LinearOperator,
    SchurOperator,
    TwistedMassDirac,
    WilsonDirac,
    bind,
    explain,
)  # fmt: skip
from .precision import PRECISIONS, Precision
from .selection import backends, current_backend, prefer_backends, use_backend

__version__ = "0.1.0"

_ON_FIRST_USE = {
    "solve": "solvers", "ConjugateGradient": "solvers", "BiCGStab": "solvers", "GCR": "solvers",
    "MultiShiftCG": "solvers", "MixedPrecision": "solvers", "Solution": "solvers", "SolverInfo": "solvers",
    "propagator": "hadrons.propagator",
    "Source": "hadrons", "point_source": "hadrons", "wall_source": "hadrons", "momentum_source": "hadrons",
    "noise_source": "hadrons", "smeared_source": "hadrons", "sequential_source": "hadrons", "gaussian_smear": "hadrons",
    "read_gauge": "io", "write_gauge": "io", "read_propagator": "io", "write_propagator": "io",
}  # fmt: skip
_MODULES = ("core", "dirac", "free_field", "gauge", "hadrons", "io", "observables", "params", "solvers", "testing")


def __getattr__(name: str):
    if name in _ON_FIRST_USE:
        value = getattr(importlib.import_module(f"{__name__}.{_ON_FIRST_USE[name]}"), name)
    elif name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {errors.nearest(name, __all__)}")
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))


__all__ = [
    "EVEN", "FEATURES", "FULL", "ODD", "PRECISIONS", "Backend", "BackendInfo", "BoundOperator", "CloverWilsonDirac",
    "ColorSpinorField", "DiracOperator", "DiracTerms", "GaugeField", "LQCDError", "LatticeGeometry", "LinearOperator",
    "Links", "Option", "Precision", "Propagator", "Request", "SchurOperator", "SiteDiagonal", "Space",
    "TwistedMassDirac", "WilsonDirac", "backends", "bind", "current_backend", "errors", "explain", "hookimpl",
    "prefer_backends", "random_gauge_rotation", "use_backend", *_ON_FIRST_USE, *_MODULES,
]  # fmt: skip

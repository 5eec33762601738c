"""nki_sim: a functional stand-in for the subset of ``nki`` that the kernels use. No Neuron device is involved.

It proves that kernels keep to what is documented and what they compute; its cycle counts are predictions from documented rules.
See README.md for what is covered and for every choice where the documents are silent.
"""

import contextlib
import importlib.machinery
import sys
import types

from . import isa, language
from .errors import NkiValidationError
from .kernel import COMPILED, Kernel, Program, Result, jit, run, simulate, trace
from .report import Report
from .tensors import NkiTensor

STAND_IN = True
VERSION = "0.7.0"
"""The NKI release whose documented signatures are followed."""

for _module in (language, isa):
    _module.NkiTensor = NkiTensor
isa.NkiValidationError = NkiValidationError

nki = types.ModuleType("nki", __doc__)
nki.STAND_IN, nki.__version__, nki.__path__ = True, VERSION, []
nki.jit, nki.simulate, nki.Kernel = jit, simulate, Kernel
nki.language, nki.isa = language, isa
MODULES = {"nki": nki, "nki.language": language, "nki.isa": isa}


def real_wheel() -> bool:
    """True if an ``nki`` that is not this stand-in could be imported."""
    loaded = sys.modules.get("nki")
    if loaded is not None:
        return not getattr(loaded, "STAND_IN", False)
    return importlib.machinery.PathFinder.find_spec("nki") is not None


def install() -> None:
    """Make ``import nki`` give the stand-in. A real wheel is never shadowed."""
    if real_wheel():
        raise RuntimeError("a real nki is installed here: use it with nki.simulate, the stand-in does not shadow it")
    sys.modules.update(MODULES)


@contextlib.contextmanager
def installed():
    """``import nki`` gives the stand-in inside the block."""
    before = {name: sys.modules.get(name) for name in MODULES}
    install()
    try:
        yield nki
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


__all__ = [
    "COMPILED",
    "Kernel",
    "NkiTensor",
    "NkiValidationError",
    "Program",
    "Report",
    "Result",
    "install",
    "installed",
    "jit",
    "run",
    "simulate",
    "trace",
]

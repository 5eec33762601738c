"""A stand-in for the nki wheel, on the path of the compiler's process only: nki_sim traces and checks a kernel, and a NEFF is packed that
only the stand-in libnrt runs. The one documented way in: call the ``@nki.jit`` function with NKI_ARTIFACTS_DIR set to an empty
folder; kernel.neff is left there, and the call then fails, because there is no device.
"""

import inspect
import os
import sys
from pathlib import Path

import nki_neff
import nki_sim
from nki_sim import isa, language
from nki_sim.kernel import Kernel, jit, simulate

STAND_IN = nki_neff.LABEL
__version__ = os.environ.get("LQCD_STANDIN_NKI_VERSION", nki_sim.VERSION)
sys.modules.update({"nki.language": language, "nki.isa": isa})


def _write(folder, function, inputs, outputs, constants, target, lnc):
    neff = nki_neff.pack(f"{function.__module__}:{function.__name__}", inputs, outputs, constants, target, lnc)
    Path(folder, "kernel.neff").write_bytes(neff)


def _pack(kernel, arrays, constants, target, lnc, folder):
    """The hook of nki_sim: called when a kernel was compiled."""
    program = nki_sim.trace(kernel, arrays, constants, target=target, lnc=lnc)
    aliases = {alias for *_, alias in program.outputs if alias}
    inputs = [(n + ".must_alias_input" * (n in aliases), shape, dtype) for n, shape, dtype in program.inputs]
    outputs = [(alias or f"output_{k}", shape, dtype) for k, (_, shape, dtype, alias) in enumerate(program.outputs)]
    _write(folder, kernel.func, inputs, outputs, constants, target, lnc)


nki_sim.COMPILED.append(_pack)


def toy_jit(function):
    """The same for a plain function of arrays (toy_kernels)."""

    def call(*arrays, **constants):
        folder = Path(os.environ["NKI_ARTIFACTS_DIR"])
        if not folder.is_dir() or any(folder.iterdir()):
            raise RuntimeError(f"NKI_ARTIFACTS_DIR={folder} must be an empty directory")
        results = function(*arrays, **constants)
        results = results if isinstance(results, tuple) else (results,)
        inputs = [(n, a.shape, a.dtype.name) for n, a in zip(inspect.signature(function).parameters, arrays)]
        outputs = [(f"output_{k}", r.shape, r.dtype.name) for k, r in enumerate(results)]
        target = os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"]
        _write(
            folder, function, inputs, outputs, constants, target, int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", "1"))
        )
        raise RuntimeError("no NeuronCore: compiled by a stand-in, not executed")

    return call


__all__ = ["Kernel", "isa", "jit", "language", "simulate", "toy_jit"]

"""A stand-in for the nki wheel, on the path of the compiler's process only: it traces kernels by nki_sim and packs a NEFF that only the
stand-in libnrt runs. It has the one documented way in: call the ``@nki.jit`` function with NKI_ARTIFACTS_DIR set to an empty
folder; kernel.neff is left there, and the call then fails, because there is no device.
"""

import os
from pathlib import Path

STAND_IN = "STAND-IN nki_sim, no compiler"
__version__ = os.environ.get("LQCD_STANDIN_NKI_VERSION", "0.7.0")
_ARTIFACTS = os.environ.get("NKI_ARTIFACTS_DIR")  # read at import, as documented


class Kernel:
    """What jit returns."""

    toy = False

    def __init__(self, function):
        self.function = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __call__(self, *arrays, **constants):
        if _ARTIFACTS is None:
            return self.function(*arrays, **constants)
        return _compile(self, arrays, constants)


def _compile(kernel, arrays, constants):
    import inspect

    import nki_neff

    folder = Path(_ARTIFACTS)
    if not folder.is_dir() or any(folder.iterdir()):
        raise RuntimeError(f"NKI_ARTIFACTS_DIR={folder} must be an empty directory")
    target = os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"]
    lnc = int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", "1"))
    results = kernel.function(*arrays, **constants)
    results = results if isinstance(results, tuple) else (results,)
    names = list(inspect.signature(kernel.function).parameters)
    inputs = [(n, a.shape, a.dtype.name) for n, a in zip(names, arrays)]
    outputs = [(f"output_{k}", r.shape, r.dtype.name) for k, r in enumerate(results)]
    module = kernel.function.__module__
    neff = nki_neff.pack(f"{module}:{kernel.__name__}", inputs, outputs, constants, target, lnc)
    (folder / "kernel.neff").write_bytes(neff)
    raise RuntimeError("nrt_init failed: no Neuron device")


def jit(fn=None, *, compile_config=None, specialization_config=None, **kwargs):
    return Kernel(fn) if fn is not None else Kernel

"""The compiler's process: one kernel, or the versions of what would compile it. Run as a script, in an environment of its own.

    python compile_worker.py versions RESULT
    python compile_worker.py compile REQUEST RESULT

That environment needs the NKI wheel, neuronx-cc and NumPy, and nothing of this project: the kernel sources are found beside this
file. The variables NKI_ARTIFACTS_DIR (an empty folder), NEURON_PLATFORM_TARGET_OVERRIDE and NEURON_LOGICAL_NC_CONFIG are set by
the driver before this process starts, because nki reads them when it is imported.
"""

import importlib
import importlib.util
import json
import os
import sys
import traceback
import types
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "lqcd_backends.neuron.nki"


def versions() -> dict:
    """Versions by name, '' for what is missing; ``stand_in`` is not empty where nki is no compiler."""
    found = {"python": ".".join(map(str, sys.version_info[:3])), "stand_in": "", "error": ""}
    for name in ("nki", "neuronx-cc", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    spec = importlib.util.find_spec("nki")
    # The name is found but belongs to no distribution: only the package itself can say what it is.
    if spec is not None and not found["nki"]:
        try:
            nki = importlib.import_module("nki")
            found["nki"] = str(getattr(nki, "__version__", ""))
            found["stand_in"] = str(getattr(nki, "STAND_IN", "") or "")
        except Exception as error:
            found["error"] = f"nki cannot be imported: {error}"
    elif spec is None:
        found["error"] = "there is no package nki"
    return found


def expose_kernels() -> None:
    """Make the kernel modules importable by their full names without their distribution being installed here."""
    folder = HERE
    for name in (PACKAGE, PACKAGE.rpartition(".")[0], PACKAGE.partition(".")[0]):
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
        folder = folder.parent


def array_type(name: str):
    """NumPy type of a storage name."""
    import numpy as np

    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def compile_kernel(request: dict) -> dict:
    """Call the kernel on zeros, and see what the compiler left in its folder."""
    import numpy as np

    artifacts = Path(os.environ["NKI_ARTIFACTS_DIR"])
    expose_kernels()
    module, _, attribute = request["function"].partition(":")
    error = ""
    try:
        kernel = getattr(importlib.import_module(module), attribute)
        arrays = [np.zeros(a["shape"], array_type(a["dtype"])) for a in request["inputs"]]
        constants = {k: tuple(v) if isinstance(v, list) else v for k, v in request["constants"].items()}
        kernel(*arrays, **constants)
    except BaseException as problem:  # without a device the call ends in one, after the NEFF was written
        error = "".join(traceback.format_exception_only(problem)).strip()
        traceback.print_exc()
        if isinstance(problem, KeyboardInterrupt):
            raise
    found = sorted(artifacts.rglob("kernel.neff"))
    return {"neff": str(found[0]) if found else "", "error": error, "versions": versions()}


def main(arguments: list) -> int:
    what, result = arguments[0], Path(arguments[-1])
    answer = versions() if what == "versions" else compile_kernel(json.loads(Path(arguments[1]).read_text()))
    result.write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    # This file's folder must not hide packages of the environment: nki/ is also the name of the wheel's package.
    sys.path[:] = [p for p in sys.path if p and Path(p).resolve() != HERE]
    sys.exit(main(sys.argv[1:]))

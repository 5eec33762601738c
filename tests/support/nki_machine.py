"""A machine that pretends to have NeuronCores for the backend neuron-nki: device files, sysfs, a stand-in libnrt, a stand-in compiler.

Nothing that runs on it is a measurement. Everything it makes carries a label: the library, the compiler's version, every NEFF,
the backend's description and therefore the provenance of files.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import nki_neff  # noqa: E402
from neuron_standin import make_machine  # noqa: E402

TARGETS = {"inf2.xlarge": "inf2", "trn1.32xlarge": "trn1", "trn2.3xlarge": "trn2"}
RUNNER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t,
    ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint64),
    ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint64),
)  # fmt: skip


@cache
def build(*flags):
    """The stand-in library, compiled once per process with the system's C compiler."""
    if shutil.which("cc") is None:
        import pytest

        pytest.skip("the stand-in libnrt is compiled by the system's C compiler, and there is none called cc")
    folder = tempfile.mkdtemp(prefix="lqcd-libnrt-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "libnrt_standin.so"
    command = [
        "cc",
        "-O1",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        *flags,
        "-o",
        str(path),
        str(HERE / "libnrt_standin.c"),
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    return str(path)


def resolve(function):
    """The kernel that a NEFF names; ``import nki`` inside its module gives nki_sim."""
    module, _, name = function.partition(":")
    if module in sys.modules:
        return getattr(sys.modules[module], name)
    import nki_sim

    with nki_sim.installed():
        return getattr(importlib.import_module(module), name)


@cache
def prepared(payload):
    """(function of arrays, description) of a NEFF: traced once, however often it runs."""
    made = json.loads(payload)
    constants = {k: tuple(v) if isinstance(v, list) else v for k, v in made["constants"].items()}
    kernel = resolve(made["function"])
    if getattr(kernel, "toy", False):  # a plain function of arrays
        return lambda *arrays: kernel(*arrays, **constants), made
    import nki_sim

    names = [n.removesuffix(".must_alias_input") for n, _, _ in made["inputs"]]
    shapes = {n: (tuple(s), d) for n, (_, s, d) in zip(names, made["inputs"])}
    program = nki_sim.trace(kernel, shapes, constants, target=made["target"], lnc=made["lnc"])
    return lambda *arrays: program.execute(dict(zip(names, arrays))).outputs, made


@contextlib.contextmanager
def torch_arrays():
    """Around a kernel that the stand-in torch package calls on arrays."""
    target = os.environ.get("LQCD_STANDIN_NRT_TARGET", "trn2")
    with mock.patch.dict(os.environ, {"NKI_SIMULATOR": "1", "NEURON_PLATFORM_TARGET_OVERRIDE": target}):
        yield


SIMULATOR = threading.Lock()
FAILURES = []
"""Exceptions of kernels: a C caller only sees a number."""


def _array(pointer, size, shape, dtype):
    from lqcd_backends.neuron.nki.compile_worker import array_type

    raw = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))
    return raw.view(array_type(dtype)).reshape(shape)


@RUNNER
def run_neff(payload, payload_size, n_in, in_names, in_data, in_sizes, n_out, out_names, out_data, out_sizes):
    try:
        with SIMULATOR:  # a program holds its memory while it runs
            return _run(ctypes.string_at(payload, payload_size), in_data, in_sizes, out_data, out_sizes)
    except BaseException as error:
        FAILURES.append(error)
        traceback.print_exc()  # shown by pytest beside the number
        return 1004


def _run(payload, in_data, in_sizes, out_data, out_sizes):
    function, kernel = prepared(payload)
    inputs = [_array(in_data[k], in_sizes[k], s, d).copy() for k, (_, s, d) in enumerate(kernel["inputs"])]
    results = function(*inputs)
    results = results if isinstance(results, (tuple, list)) else (results,)
    finite = True
    for k, (result, (_, shape, dtype)) in enumerate(zip(results, kernel["outputs"], strict=True)):
        out = _array(out_data[k], out_sizes[k], shape, dtype)
        if np.shape(result) != tuple(shape):
            raise ValueError(f"output {k} has the shape {np.shape(result)}, the NEFF says {shape}")
        out[...] = result
        if "float" in dtype:
            finite = finite and bool(np.isfinite(out.astype(np.float32)).all())
    return 0 if finite else 1003


@cache
def library(path):
    """The library with the functions that only a stand-in has."""
    lib = ctypes.CDLL(path)
    lib.lqcd_standin_runner.argtypes = [RUNNER]
    lib.lqcd_standin_count.restype, lib.lqcd_standin_count.argtypes = ctypes.c_long, [ctypes.c_char_p]
    lib.lqcd_standin_fault.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    lib.lqcd_standin_layout.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    lib.lqcd_standin_runner(run_neff)
    return lib


def counts(lib):
    """Objects that the library has given out and not got back."""
    return {
        what: lib.lqcd_standin_count(what.encode()) for what in ("tensors", "sets", "models", "infos", "use_after_free")
    }


def fault(lib, function, code, skip=0, count=1):
    lib.lqcd_standin_fault(function.encode(), code, skip, count)


def pack_directly(compiler, spec, folder):
    """What the stand-in compiler makes, without its process: for tests of something else."""
    tensors = [[(a.name, tuple(a.shape), a.dtype) for a in group] for group in (spec.inputs, spec.outputs)]
    (folder / "kernel.neff").write_bytes(
        nki_neff.pack(spec.function, *tensors, dict(spec.constants), compiler.target, compiler.lnc)
    )


def close_runtime():
    """Close the process's runtime and let a new one be opened, which only a stand-in allows."""
    from lqcd_backends.neuron.nki import libnrt

    from lqcd_core.registry import REGISTRY

    REGISTRY._instances = {k: v for k, v in REGISTRY._instances.items() if k[0] != "neuron-nki"}
    if libnrt._RUNTIME is not None:
        lib = library(libnrt._RUNTIME.library.path)
        libnrt._RUNTIME.close()
        libnrt._RUNTIME = None
        lib.lqcd_standin_reset()


@contextlib.contextmanager
def machine(instance="trn2.3xlarge", cache=None, compiler="direct", flags=(), environment=(), lnc=1):
    """The pretended machine inside the block; yields its library. ``compiler``: "direct", "process", or "none"."""
    from lqcd_backends.neuron import device
    from lqcd_backends.neuron.nki import driver
    from lqcd_backends.neuron.nki.libnrt import StandInWarning

    path = build(*flags)
    lib = library(path)
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        dev, sysfs = make_machine(Path(root), instance)
        stack.enter_context(mock.patch.object(device, "DEV", dev))
        stack.enter_context(mock.patch.object(device, "SYSFS", sysfs))
        target = TARGETS[instance]
        variables = {
            "LQCD_NEURON_LIBRARY": path, "LQCD_NEURON_CACHE": str(cache or Path(root) / "cache"), "LQCD_NEURON_PYTHON": sys.executable,
            "LQCD_STANDIN_NRT_LNC": str(lnc), "LQCD_STANDIN_NRT_TARGET": target,
            "PYTHONPATH": os.pathsep.join([str(HERE / "nki_compiler"), str(HERE), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        if target.startswith("trn2"):
            variables["NEURON_LOGICAL_NC_CONFIG"] = str(lnc)
        stack.enter_context(mock.patch.dict(os.environ, {**variables, **dict(environment)}))
        if compiler != "process":
            facts = driver.CompilerFacts(nki="0.7.0", neuronx_cc="", stand_in=nki_neff.LABEL, python="")
            if compiler == "direct":
                stack.enter_context(mock.patch.object(driver.Compiler, "facts", lambda self: facts))
                stack.enter_context(mock.patch.object(driver.Compiler, "compile", pack_directly))
            else:
                stack.enter_context(mock.patch.dict(os.environ, {"LQCD_NEURON_PYTHON": str(Path(root) / "no-python")}))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StandInWarning)
            close_runtime()
            FAILURES.clear()
            try:
                yield lib
            finally:
                close_runtime()


if __name__ == "__main__":
    import runpy

    print("STAND-IN: no Neuron device is used; times printed here mean nothing.", flush=True)
    sys.argv = sys.argv[1:]
    with machine():
        runpy.run_path(sys.argv[0], run_name="__main__")

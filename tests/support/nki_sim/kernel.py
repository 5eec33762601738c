"""``nki.jit``, ``nki.simulate`` and the stand-in's own :func:`run` and :func:`trace`."""

import inspect
import os
import threading
from collections.abc import Mapping

import attrs
import numpy as np

from . import chips, dtypes
from .errors import NkiValidationError, refuse, require
from .program import _CURRENT, Trace
from .report import Report
from .tensors import NkiTensor

_RUNNING = threading.Lock()  # a program owns its memory while it runs
COMPILED = []
"""Hooks called as ``hook(kernel, arrays, constants, target, lnc, folder)`` when a jitted kernel is called on NumPy arrays with
``NKI_ARTIFACTS_DIR`` set: a stand-in compiler writes ``kernel.neff`` there."""


class Kernel:
    """What ``@nki.jit`` returns."""

    def __init__(self, func, lnc=None, schedule=None, address_rotation=None, barrier_check=None):
        _check_signature(func)
        self.func, self.lnc, self.schedule = func, lnc, schedule
        self.address_rotation, self.barrier_check = address_rotation, barrier_check
        self.__name__, self.__doc__, self.__module__ = func.__name__, func.__doc__, func.__module__
        self.__wrapped__ = func
        self._programs = {}

    def __getitem__(self, lnc):
        require(lnc in (1, 2), "kernel[lnc]", "lnc", lnc, "1 or 2")
        asked = os.environ.get("NEURON_LOGICAL_NC_CONFIG")
        require(
            asked is None or int(asked) == lnc,
            "kernel[lnc]",
            "lnc against NEURON_LOGICAL_NC_CONFIG",
            (lnc, asked),
            "the same",
        )
        return Kernel(self.func, lnc)

    def __call__(self, *args, **kwargs):
        if _CURRENT.get() is not None:  # a kernel called by a kernel is part of it
            return self.func(*args, **kwargs)
        arrays, constants = _split(self.func, args, kwargs)
        target = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
        lnc = self.lnc or int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", "1"))
        if os.environ.get("NKI_SIMULATOR") == "1":
            outputs = self._traced(arrays, constants, target, lnc).execute(arrays).outputs
            return outputs[0] if len(outputs) == 1 else outputs
        folder = os.environ.get("NKI_ARTIFACTS_DIR")
        trace(self, arrays, constants, target=target, lnc=lnc)
        if folder:
            require(
                not os.path.isdir(folder) or not os.listdir(folder),
                "nki.jit",
                "NKI_ARTIFACTS_DIR",
                folder,
                "an empty directory",
            )
            os.makedirs(folder, exist_ok=True)
            for hook in COMPILED:
                hook(self, arrays, constants, target, lnc, folder)
        raise RuntimeError("no NeuronCore: compiled by a stand-in, not executed")

    def _traced(self, arrays, constants, target, lnc):
        """The program for these shapes and constants: traced once, however often it runs."""
        shapes = tuple((name, a.shape, dtypes.name_of(a.dtype)) for name, a in arrays.items())
        key = (shapes, repr(sorted(constants.items())), target, lnc)
        if key not in self._programs:
            self._programs[key] = trace(self, arrays, constants, target=target, lnc=lnc)
        return self._programs[key]


def _check_signature(func):
    for p in inspect.signature(func).parameters.values():
        if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD, p.VAR_POSITIONAL):
            refuse(
                f"nki.jit of {func.__name__}",
                "parameter kind",
                f"{p.name} ({p.kind.description})",
                "plain parameters: no bare *, *args, **kwargs",
            )


def jit(fn=None, *, compile_config=None, specialization_config=None, **kwargs):
    if kwargs:
        refuse(
            "nki.jit",
            "keywords",
            sorted(kwargs),
            "compile_config, specialization_config (mode= and platform_target= are gone)",
        )
    return Kernel if fn is None else Kernel(fn)


def simulate(kernel):
    """A callable on NumPy arrays, target from ``NEURON_PLATFORM_TARGET_OVERRIDE`` (else trn3)."""

    def call(*args, **kwargs):
        arrays, constants = _split(_function(kernel), args, kwargs)
        target = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
        lnc = getattr(kernel, "lnc", None) or int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", "1"))
        outputs = run(kernel, arrays, constants, target=target, lnc=lnc).outputs
        return outputs[0] if len(outputs) == 1 else outputs

    return call


def _function(kernel):
    return kernel.func if isinstance(kernel, Kernel) else kernel


def _split(func, args, kwargs):
    bound = inspect.signature(func).bind(*args, **kwargs).arguments
    arrays = {k: v for k, v in bound.items() if isinstance(v, np.ndarray)}
    return arrays, {k: v for k, v in bound.items() if k not in arrays}


@attrs.frozen
class Result:
    """What :func:`run` gives."""

    outputs: tuple
    """NumPy arrays in the order in which the kernel returns them; an input that is returned is a changed copy."""
    report: Report
    """Counts and predicted cost of core 0."""
    reports: tuple
    """The same for every core of the logical core."""


@attrs.frozen
class Program:
    """A kernel traced for shapes, constants, target and LNC; it holds no data until it runs."""

    traces: tuple
    """One per core."""
    inputs: tuple
    """``(name, shape, dtype)``."""
    outputs: tuple
    """``(name, shape, dtype, alias)``: alias is the input that is also this output, or None."""

    def reports(self, ran=False) -> tuple:
        return tuple(t.report(ran) for t in self.traces)

    def execute(self, arrays: Mapping) -> Result:
        """Run on NumPy arrays by name; the arrays given are left alone. One program runs at a time in a process."""
        with _RUNNING:
            try:
                return self._execute(arrays)
            finally:
                for t in self.traces:
                    _forget(t)

    def _execute(self, arrays):
        memory = {}
        for name, shape, dtype in self.inputs:
            require(name in arrays, "execute", f"input {name!r}", sorted(arrays), [n for n, _, _ in self.inputs])
            given = np.asarray(arrays[name])
            require(
                given.shape == shape and dtypes.name_of(given.dtype) == dtype,
                f"input {name!r}",
                "shape and dtype",
                (given.shape, given.dtype.name),
                (shape, dtype),
            )
            memory[name] = np.ascontiguousarray(given).copy()
        first = self.traces[0]
        environments = []
        for t in self.traces:
            for one in t.storages:
                one.array = None
                if one.kind == "input":
                    one.array = memory[one.name]
            shared = [s for s in first.storages if s.buffer == "shared_hbm"]
            environments.append(t.prepare())
            if t is not first:  # the cores of a logical core see the same shared HBM
                for mine, theirs in zip(
                    [s for s in t.storages if s.buffer == "shared_hbm" and s.kind != "input"],
                    [s for s in shared if s.kind != "input"],
                ):
                    mine.array = theirs.array
        with np.errstate(all="ignore"):
            for pieces in zip(*(t.segments() for t in self.traces)):
                for t, piece, env in zip(self.traces, pieces, environments):
                    t.execute(piece, env)
        outputs = tuple(t._storage.array.reshape(t.shape).copy() for t in first.outputs)
        reports = self.reports(True)
        return Result(outputs, reports[0], reports)


def _forget(trace):
    """Drop the memory and the loop counters, so that the program can run again."""
    for one in trace.storages:
        one.array = one.matmul = None

    def reset(block):
        for node in block:
            if hasattr(node, "turns"):
                node.turns = 0
                reset(node.body)

    reset(trace.blocks[0])


def trace(kernel, arrays, constants=None, target="trn2", lnc=1) -> Program:
    """Trace and check a kernel without running it.

    Parameters
    ----------
    kernel
        A ``Kernel`` of ``nki.jit`` or a plain function.
    arrays
        NumPy arrays, or ``(shape, dtype)`` pairs, by parameter name or in the order of the parameters.
    constants
        Compile-time arguments by name.
    target
        trn1, inf2, trn2, trn3 (or gen2, gen3, gen4).
    lnc
        Physical cores of a logical core: 1, or 2 from gen3.
    """
    func, constants = _function(kernel), dict(constants or {})
    chip = chips.chip_of(target)
    require(
        lnc in ((1,) if chip.generation == 2 else (1, 2)), "nki.jit", "LNC", lnc, "1 on gen2; 1 or 2 on gen3 and gen4"
    )
    parameters = inspect.signature(func).parameters
    _check_signature(func)
    if not isinstance(arrays, Mapping):
        free = [p for p in parameters if p not in constants]
        require(
            len(arrays) <= len(free),
            f"kernel {func.__name__}",
            "number of arrays",
            len(arrays),
            f"for the parameters {free}",
        )
        arrays = dict(zip(free, arrays))
    for name, value in constants.items():
        require(not isinstance(value, list), f"kernel {func.__name__}", f"argument {name!r}", "a list", "a tuple")
    unknown = sorted((set(arrays) | set(constants)) - set(parameters))
    require(not unknown, f"kernel {func.__name__}", "arguments", unknown, sorted(parameters))
    lacking = [n for n, p in parameters.items() if p.default is p.empty and n not in arrays and n not in constants]
    require(not lacking, f"kernel {func.__name__}", "arguments that are missing", lacking, "a value for each")
    spec = []
    for name in (p for p in parameters if p in arrays):
        given = arrays[name]
        shape, dtype = (given.shape, given.dtype) if hasattr(given, "shape") else given
        spec.append((name, tuple(int(n) for n in shape), dtypes.name_of(dtype, f"input {name!r}")))
    traces = []
    for core in range(lnc):
        one = Trace(target, lnc, core)
        tensors = {
            name: NkiTensor(shape, dtype, one.storage(shape, dtype, "shared_hbm", name, kind="input"))
            for name, shape, dtype in spec
        }
        token = _CURRENT.set(one)
        try:
            outputs = func(**tensors, **constants)
        finally:
            _CURRENT.reset(token)
        traces.append(one.finish(outputs))
    if lnc == 2:
        shapes = [[(s.shape, s.dtype) for s in t.storages if s.buffer == "shared_hbm"] for t in traces]
        require(
            shapes[0] == shapes[1], "LNC 2", "shared_hbm tensors of the two cores", shapes, "the same in the same order"
        )
        cuts = [len(t.segments()) for t in traces]
        require(cuts[0] == cuts[1], "LNC 2", "core_barrier calls of the two cores", cuts, "equal")
    outputs = []
    for k, t in enumerate(traces[0].outputs):
        alias = t._storage.name if t._storage.kind == "input" else None
        outputs.append((alias or f"output_{k}", t.shape, t.dtype, alias))
    return Program(tuple(traces), tuple(spec), tuple(outputs))


def run(kernel, arrays, constants=None, target="trn2", lnc=1) -> Result:
    """Trace, check and run a kernel on NumPy arrays; see :func:`trace` for the arguments."""
    program = trace(kernel, arrays, constants, target, lnc)
    if not isinstance(arrays, Mapping):
        arrays = {name: array for (name, _, _), array in zip(program.inputs, arrays)}
    return program.execute(arrays)


__all__ = ["Kernel", "NkiValidationError", "Program", "Result", "jit", "run", "simulate", "trace"]

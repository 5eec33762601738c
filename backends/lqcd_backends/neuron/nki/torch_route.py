"""Launches through native torch-neuronx: vectors are tensors on the device ``neuron``, kernels are registered operators.

Each kernel becomes a torch operator by ``torch_neuronx.nki_op("namespace::name", mutates_args={})``, the documented wrapper; the
package compiles it per shape and keeps its own cache. Trn2 and Trn3 only. The kernel modules are imported into this process here,
so this environment needs the NKI wheel itself.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import attrs
import numpy as np

from lqcd_core.errors import BackendUnavailable

from ..cache import cache_root
from ..device import NeuronDevice
from .compile_worker import array_type
from .driver import Compiler
from .status import NeuronCallError

NEED = "install the native torch-neuronx of the Neuron SDK 2.33 or later, which serves Trn2 and Trn3, or use route='libnrt'"


@attrs.frozen
class NativePackage:
    """The native torch-neuronx that was found."""

    module: Any
    """``torch_neuronx``."""
    place: str = "neuron"
    """Name of torch's device."""
    label: str = ""
    """Empty for the package; what a stand-in calls itself."""


def find_package(device: NeuronDevice) -> NativePackage:
    """The native package.

    Raises
    ------
    BackendUnavailable
        On another generation, or without the package.
    """
    if device.generation not in ("gen3", "gen4"):
        raise BackendUnavailable(f"route='torch' exists on Trn2 and Trn3, and this machine is {device.generation or 'of an unknown generation'}; use route='libnrt'")  # fmt: skip
    # Read by the package for its own cache of compiled kernels.
    os.environ.setdefault("TORCH_NEURONX_NEFF_CACHE_DIR", str(cache_root() / "native"))
    try:
        torch, module = import_module("torch"), import_module("torch_neuronx")
    except ImportError as error:
        raise BackendUnavailable(f"route='torch' needs the native torch-neuronx ({error}); {NEED}") from error
    if not callable(getattr(module, "nki_op", None)):
        raise BackendUnavailable(
            f"torch_neuronx ({getattr(module, '__file__', None)}) has no nki_op: it is another package of that name; {NEED}"
        )
    label = str(getattr(module, "LABEL", "STAND-IN torch_neuronx")) if getattr(module, "STAND_IN", False) else ""
    # A device that torch calls neuron cannot be made in Python: a stand-in says where its tensors live.
    place = str(getattr(module, "PLACE", "cpu")) if label else "neuron"
    try:
        torch.empty(1, device=place)
    except RuntimeError as error:
        raise BackendUnavailable(f"torch has no usable device {place!r}: {error}; {NEED}") from error
    return NativePackage(module, place, label)


class TensorBuffer:
    """A tensor on the device and the bytes that it is said to have."""

    __slots__ = ("overlap", "tensor")

    def __init__(self, tensor):
        self.tensor, self.overlap = tensor, None

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.tensor.numel() * self.tensor.element_size()


class TorchExecutor:
    """Kernels and memory through torch; the same calls as :class:`~.launch.LibnrtExecutor`.

    Parameters
    ----------
    package
        The native package.
    compiler
        Says which NKI release the kernels want; it compiles nothing here.
    """

    name = "torch"

    def __init__(self, package: NativePackage, compiler: Compiler):
        self.torch, self.package, self.label = import_module("torch"), package, package.label
        self.compiler = compiler
        self._lock = threading.Lock()
        self._launches: dict[str, TorchLaunch] = {}

    def to_tensor(self, array: np.ndarray):
        """An array as a tensor on the device; bfloat16 travels as its bits, which NumPy and torch both know."""
        array = np.ascontiguousarray(array)
        if array.dtype.name == "bfloat16":
            host = self.torch.from_numpy(array.view(np.int16).copy()).view(self.torch.bfloat16)
        else:
            host = self.torch.from_numpy(array.copy())
        return host.to(self.package.place)

    def place(self, array: np.ndarray, name: str = "field") -> TensorBuffer:
        """A buffer with the numbers of an array."""
        return TensorBuffer(self.to_tensor(array))

    def fetch(self, buffer: TensorBuffer, shape: Sequence[int], dtype: str) -> np.ndarray:
        """The array that a buffer holds, a copy on the host."""
        host = buffer.tensor.detach().to("cpu").contiguous()
        if tuple(host.shape) != tuple(shape) or str(host.dtype) != f"torch.{dtype}":
            raise NeuronCallError(
                f"an array {tuple(shape)} of {dtype} was asked of a tensor {tuple(host.shape)} of {host.dtype}."
            )
        if dtype == "bfloat16":
            return host.view(self.torch.int16).numpy().view(array_type(dtype)).copy()
        return host.numpy().copy()

    def launch(self, spec) -> TorchLaunch:
        """The operator of a specification, registered once."""
        with self._lock:
            if spec.digest not in self._launches:
                self._launches[spec.digest] = TorchLaunch(self, spec)
            return self._launches[spec.digest]

    def synchronize(self) -> None:
        """Nothing: a number on the host has waited for its launches."""

    def unload(self) -> None:
        """Forget every launch; torch keeps registered operators until the process ends."""
        with self._lock:
            self._launches.clear()


class TorchLaunch:
    """A kernel as a torch operator."""

    def __init__(self, executor: TorchExecutor, spec):
        self.executor, self.spec = executor, spec
        module, _, attribute = spec.function.partition(":")
        try:
            kernel = getattr(import_module(module), attribute)
        except ImportError as error:
            raise BackendUnavailable(
                f"route='torch' imports kernels into this process and that failed ({error}); install nki {executor.compiler.nki_version} here, or "
                "use route='libnrt', whose compiler may live in another environment"
            ) from error
        self.operator = executor.package.module.nki_op(f"lqcd::{attribute}_{spec.digest}", mutates_args={})(
            self._body(kernel)
        )

    def _body(self, kernel):
        Tensor = self.executor.torch.Tensor
        constants = dict(self.spec.constants)
        count = len(self.spec.outputs)

        def body(*tensors):
            return kernel(*tensors, **constants)

        # torch reads an operator's schema from the signature of its function, so the body gets that of this kernel.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(a.name, kind, annotation=Tensor) for a in self.spec.inputs]
        result = Tensor if count == 1 else tuple[(Tensor,) * count]
        body.__signature__ = inspect.Signature(parameters, return_annotation=result)
        body.__annotations__ = {a.name: Tensor for a in self.spec.inputs} | {"return": result}
        body.__name__ = self.spec.function.partition(":")[2]
        return body

    def __call__(self, *inputs: TensorBuffer | np.ndarray) -> tuple[TensorBuffer, ...]:
        """One launch."""
        if len(inputs) != len(self.spec.inputs):
            raise NeuronCallError(f"{self.spec.name} takes {len(self.spec.inputs)} inputs, got {len(inputs)}.")
        tensors = []
        for argument, given in zip(self.spec.inputs, inputs):
            tensor = (
                given.tensor
                if isinstance(given, TensorBuffer)
                else self.executor.to_tensor(np.asarray(given, array_type(argument.dtype)))
            )
            if tuple(tensor.shape) != tuple(argument.shape):
                raise NeuronCallError(
                    f"{self.spec.name}: {argument.name!r} has the shape {tuple(argument.shape)}, got {tuple(tensor.shape)}."
                )
            tensors.append(tensor)
        with self.executor.torch.no_grad():
            results = self.operator(*tensors)
        results = results if isinstance(results, (tuple, list)) else (results,)
        return tuple(TensorBuffer(t) for t in results)


__all__ = ["NativePackage", "TensorBuffer", "TorchExecutor", "TorchLaunch", "find_package"]

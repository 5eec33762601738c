"""The two packages that are both called torch-neuronx, behind one small interface.

Which one is there is found by probing what it has (``torch_neuronx.trace``, or a device ``neuron`` in torch), never by
a version. Each adapter says where vectors live, and makes a callable of a graph.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch

from lqcd_core.errors import BackendError, BackendUnavailable

from ..cache import Cache, cache_root
from ..device import NeuronDevice
from .cost import narrow_product
from .graph import STORAGE, Graph, GraphSpec

TOO_LARGE = re.compile(
    r"NCC_EBVF030|NCC_EVRF007|NCC_EXTP004|XTP002|instructions .*over the threshold|exceed\w* .*2 ?Gi?B", re.I
)
"""What the compiler says of a graph that is too large: smaller slabs may pass."""


class GraphTooLarge(BackendError):
    """The compiler refused a graph for its size."""


@attrs.frozen(kw_only=True)
class CompileOptions:
    """What the compiler is told, beside the graph."""

    optimize_level: int = 2
    """1 to 3."""
    workdir: str | None = None
    """Folder for the compiler's own files; None for a temporary one."""
    num_cores: int = 1
    """NeuronCores that share the right-hand sides."""


@attrs.define(eq=False)
class Loaded:
    """A graph that can be called, and what it cost to get there."""

    call: Callable[..., torch.Tensor]
    """Vectors in, vector out, both where the adapter keeps vectors."""
    from_cache: bool
    """True if nothing had to be compiled."""
    seconds: float
    """Time to compile (or read) and load."""


class Adapter(Protocol):
    """One generation of torch-neuronx."""

    name: str

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        """A tensor of the host where vectors live."""

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The inverse."""

    def load(
        self, spec: GraphSpec, weights: Mapping[str, torch.Tensor], digest: str, options: CompileOptions
    ) -> Loaded:
        """The graph with its weights. ``digest`` names the weights if they are baked in, else it is empty."""


def compiler_arguments(spec: GraphSpec, options: CompileOptions, device: NeuronDevice) -> list[str]:
    """Flags for neuronx-cc. Casting is always said: its default changed between releases."""
    flags = ["--auto-cast", "none"]
    if spec.formulation == "fused" and narrow_product(spec):
        # The factors of the product were 16 bits wide before the graph widened them, so this cast loses nothing; the
        # array then runs at the 16-bit rate and still accumulates and answers in fp32.
        flags = [
            "--auto-cast",
            "matmult",
            "--auto-cast-type",
            {"bfloat16": "bf16", "float16": "fp16"}[spec.link_storage],
        ]
    flags += ["--optlevel", str(options.optimize_level)]
    if device.generation in ("gen3", "gen4"):
        flags += ["--logical-nc-config", str(device.logical_core_config)]
    return flags


def versions() -> dict[str, str]:
    """Versions of what takes part in a compilation; '' for what is not installed as a distribution."""
    out = {"torch": torch.__version__}
    for name in ("torch-neuronx", "neuronx-cc"):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = ""
    return out


def example_inputs(spec: GraphSpec, weights: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Zeros of the shapes and types that the graph takes."""
    vectors = [torch.zeros(s, dtype=t) for s, t in zip(spec.vector_shapes(), spec.vector_types())]
    given = [torch.zeros_like(weights[n]) for n in spec.weights] if spec.as_arguments else []
    return (*vectors, *given)


def cache_key(
    spec: GraphSpec, digest: str, baked: bool, flags: list[str], device: NeuronDevice, adapter: str
) -> dict[str, Any]:
    """Everything that a compiled graph depends on."""
    return {
        "adapter": adapter, "spec": attrs.asdict(spec), "baked": baked, "weights": digest if baked else "",
        "flags": flags, "versions": versions(), "generation": device.generation, "lnc": device.logical_core_config,
        "source": _source_digest(),
    }  # fmt: skip


def _source_digest() -> str:
    from ..cache import _file_digest

    return _file_digest(Path(__file__).with_name("graph.py"))


class TraceAdapter:
    """The XLA package: ``torch_neuronx.trace``; tensors of the CPU go in and come out. Inf2, Trn1."""

    name = "trace"

    def __init__(self, package, device: NeuronDevice):
        self.package, self.device = package, device
        self.cache = Cache("traced")

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def load(
        self, spec: GraphSpec, weights: Mapping[str, torch.Tensor], digest: str, options: CompileOptions
    ) -> Loaded:
        start, baked = time.perf_counter(), bool(digest) and bool(spec.weights)
        flags = compiler_arguments(spec, options, self.device)
        key = cache_key(spec, digest, baked, flags, self.device, self.name)
        # Weights that are replaced after loading are compiled as zeros: if the replacement were ever forgotten, the
        # answer would be zero, and not that of another gauge field.
        held = weights if baked else {n: torch.zeros_like(v) for n, v in weights.items()}

        def build(folder: Path) -> None:
            graph = Graph(spec, held).eval()
            with tempfile.TemporaryDirectory() as temporary, torch.no_grad():
                module = self._compile(graph, example_inputs(spec, weights), baked, flags, options.workdir or temporary)
                torch.jit.save(module, str(folder / "module.pt"))

        folder, there = self.cache.fetch(key, build)
        replaced = {} if baked or spec.as_arguments else {n: weights[n] for n in spec.weights}
        modules = [self._place(folder / "module.pt", replaced, core) for core in range(options.num_cores)]
        call = modules[0] if len(modules) == 1 else share_columns(modules, spec.n_rhs, 2 if spec.two_vectors else 1)
        return Loaded(_without_gradients(call), there, time.perf_counter() - start)

    def _place(self, path: Path, weights: Mapping[str, torch.Tensor], core: int):
        with self.package.neuron_cores_context(start_nc=core, nc_count=1):
            module = torch.jit.load(str(path))
        if weights:
            self.package.replace_weights(module, dict(weights))
        if hasattr(
            self.package, "move_trace_to_device"
        ):  # marked for deprecation: without it, weights travel at every call
            self.package.move_trace_to_device(module, core)
        return module

    def _compile(self, graph: Graph, examples, baked: bool, flags: list[str], workdir: str):
        try:
            return self.package.trace(
                graph, examples, compiler_workdir=workdir, compiler_args=flags, inline_weights_to_neff=baked
            )
        except Exception as error:  # whatever the compiler's wrapper raises: its text is all that is documented
            raise _told(error) from error


class NativeAdapter:
    """The native package: tensors live on the device ``neuron``, ``torch.compile`` makes the graph. Trn2, Trn3.

    Parameters
    ----------
    device
        The machine.
    place
        Name of torch's device.
    """

    name = "native"

    def __init__(self, device: NeuronDevice, place: str = "neuron"):
        self.device, self.place = device, torch.device(place)

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self.place)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu")

    def load(
        self, spec: GraphSpec, weights: Mapping[str, torch.Tensor], digest: str, options: CompileOptions
    ) -> Loaded:
        if digest:
            raise BackendUnavailable(
                "the native torch-neuronx documents no way to bake constants into a graph; use gauge='resident'."
            )
        if options.num_cores > 1:
            raise BackendUnavailable(
                "the native torch-neuronx gives a process one logical core; use num_cores=1 and a process per core."
            )
        start = time.perf_counter()
        held = {} if spec.as_arguments else dict(weights)
        graph = Graph(spec, held).eval().to(self.place)
        compiled = torch.compile(graph, backend="neuron", fullgraph=True, dynamic=False)
        examples = tuple(self.to_device(v) for v in example_inputs(spec, weights))
        try:
            with torch.no_grad():
                compiled(*examples)  # compilation happens in the first call
        except Exception as error:
            raise _told(error) from error
        return Loaded(_without_gradients(compiled), False, time.perf_counter() - start)


def share_columns(modules: list, n: int, vectors: int):
    """A function of ``len(modules) * n`` columns: n go to each module, all at once, in threads of their own.

    The package's own DataParallel splits by rules that are not written down, and pads what it splits; here every core
    gets exactly the batch that was compiled. Inputs after the first ``vectors`` (links as arguments) go to every core whole.
    """
    pool = ThreadPoolExecutor(len(modules), thread_name_prefix="neuroncore")

    def one(k: int, tensors):
        mine = [v.narrow(0, k * n, n).contiguous() for v in tensors[:vectors]]
        with torch.no_grad():
            return modules[k](*mine, *tensors[vectors:])

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(pool.map(lambda k: one(k, tensors), range(len(modules)))))

    return call


def _without_gradients(function):
    def call(*tensors):
        with torch.no_grad():
            return function(*tensors)

    return call


def _told(error: Exception) -> BackendError:
    text = " ".join(str(error).split())
    if TOO_LARGE.search(text):
        return GraphTooLarge(text)
    return BackendError(f"the Neuron compiler failed: {text[:600]}")


def find_adapter(device: NeuronDevice) -> Adapter:
    """The adapter for the package that is installed.

    Raises
    ------
    BackendUnavailable
        If there is none, with the package that this machine needs.
    """
    # Read by the native package for its own cache of compiled graphs; harmless to the other.
    os.environ.setdefault("TORCH_NEURONX_NEFF_CACHE_DIR", str(cache_root() / "native"))
    wanted = {
        "gen2": "torch-neuronx 2.9 of the Neuron SDK (the XLA package, with neuronx-cc), which serves Inf2 and Trn1",
        "gen3": "the native torch-neuronx of the Neuron SDK 2.33 or later, which serves Trn2 and Trn3",
    }
    need = wanted["gen3" if device.generation in ("gen3", "gen4") else "gen2"]
    try:
        package = import_module("torch_neuronx")
    except ImportError as error:
        raise BackendUnavailable(
            f"a Neuron device is here, but torch_neuronx cannot be imported ({error}); install {need}."
        ) from error
    if callable(getattr(package, "trace", None)) and callable(getattr(package, "replace_weights", None)):
        return TraceAdapter(package, device)
    if hasattr(torch, "neuron"):
        try:
            return NativeAdapter(device)
        except RuntimeError as error:
            raise BackendUnavailable(f"torch has no device 'neuron' although torch.neuron exists: {error}") from error
    raise BackendUnavailable(
        f"torch_neuronx ({getattr(package, '__file__', None)}) has neither trace nor a torch device 'neuron'; install {need}."
    )


__all__ = ["STORAGE", "Adapter", "CompileOptions", "GraphTooLarge", "Loaded", "NativeAdapter", "TraceAdapter", "cache_key",
           "compiler_arguments", "example_inputs", "find_adapter", "versions"]  # fmt: skip

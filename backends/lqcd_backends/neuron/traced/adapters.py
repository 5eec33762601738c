"""The two packages that are both called torch-neuronx, behind one small interface.

Which one is there is found by probing what it has (``torch_neuronx.trace``, or a device ``neuron`` in torch), never by
a version. Each adapter says where vectors live, and makes a callable of a graph.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import tempfile
import time
import types
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch

from lqcd_core.errors import BackendError, BackendUnavailable

from .. import native_cache
from ..cache import Cache, key_digest, writable
from ..device import NeuronDevice, generation_of
from .cost import narrow_product
from .graph import STORAGE, Graph, GraphSpec

TOO_LARGE = re.compile(
    r"NCC_EBVF030|NCC_EVRF007|NCC_EXTP004|XTP002|instructions .*over the threshold|exceed\w* .*2 ?Gi?B", re.I
)
"""What the compiler says of a graph that is too large: smaller slabs may pass."""


TARGETS = ("inf2", "trn1", "trn1n", "trn2")
"""What neuronx-cc of the XLA package compiles for."""


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
    target: str = ""
    """The compiler's ``--target``; empty: not said, the compiler takes the machine's."""
    cpu_backend: bool = False
    """Trace without a device; needs a target."""


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

    def why_not(self, gauge: str, options: CompileOptions) -> str | None:
        """Why this package cannot serve a gauge mode with these options, a sentence with a remedy; None if it can."""

    def describe(self) -> dict[str, str]:
        """Facts of the adapter for people."""

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
    if options.target:
        flags += ["--target", options.target]
    if device.generation in ("gen3", "gen4"):
        flags += ["--logical-nc-config", str(device.logical_core_config)]
    return flags


def target_of(device: NeuronDevice, options: CompileOptions) -> str:
    """The compiler's name for what a graph is compiled for, said or found: the same on a build machine and where it runs."""
    if options.target:
        return options.target
    family = device.instance_type.partition(".")[0]
    if generation_of(family) == device.generation and family in TARGETS:
        return family
    return device.hardware.target if device.hardware else ""


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
    spec: GraphSpec, digest: str, baked: bool, device: NeuronDevice, options: CompileOptions, adapter: str
) -> dict[str, Any]:
    """Everything that a compiled graph depends on. Whether the target was said or found makes no difference."""
    flags = compiler_arguments(spec, attrs.evolve(options, target=""), device)
    return {
        "adapter": adapter, "spec": attrs.asdict(spec), "baked": baked, "weights": digest if baked else "",
        "flags": flags, "target": target_of(device, options), "versions": versions(), "generation": device.generation,
        "lnc": device.logical_core_config, "environment_flags": os.environ.get("NEURON_CC_FLAGS", ""), "source": _source_digest(),
    }  # fmt: skip


def _source_digest() -> str:
    from ..cache import _file_digest

    return _file_digest(Path(__file__).with_name("graph.py"))


class TraceAdapter:
    """The XLA package: ``torch_neuronx.trace``; tensors of the CPU go in and come out. Inf2, Trn1.

    Parameters
    ----------
    package
        The module ``torch_neuronx``; beyond ``trace``, what it has is probed.
    device
        The machine, or what is compiled for.
    build_only
        True: there is no device to run on; graphs are compiled into the cache and never loaded.
    """

    name = "trace"

    def __init__(self, package, device: NeuronDevice, build_only: bool = False):
        self.package, self.device, self.build_only = package, device, build_only
        self.cache = Cache("traced")
        self._separates = _accepts(package.trace, "inline_weights_to_neff")

    def why_not(self, gauge: str, options: CompileOptions) -> str | None:
        if gauge == "resident" and not (self._separates and callable(getattr(self.package, "replace_weights", None))):
            return (
                "this torch_neuronx has trace, but not both trace(inline_weights_to_neff=) and replace_weights, with which "
                "gauge='resident' puts links into a loaded graph; use gauge='baked' (a compilation per field) or 'argument'."
            )
        if options.cpu_backend and not _accepts(self.package.trace, "cpu_backend"):
            return (
                "this torch_neuronx.trace has no argument cpu_backend: it compiles on a Neuron instance only; compile there, "
                "or install the release of the Neuron SDK whose trace has it."
            )
        if options.num_cores > 1 and not any(hasattr(self.package, n) for n in _PLACEMENT):
            return f"this torch_neuronx has none of {', '.join(_PLACEMENT)}: graphs cannot be put on several cores; use num_cores=1."
        return None

    def describe(self) -> dict[str, str]:
        facts = {"adapter": self.name, "cache": str(self.cache.folder)}
        return {**facts, "runs_here": "no: compiles into the cache only"} if self.build_only else facts

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def load(
        self, spec: GraphSpec, weights: Mapping[str, torch.Tensor], digest: str, options: CompileOptions
    ) -> Loaded:
        start, baked = time.perf_counter(), bool(digest) and bool(spec.weights)
        key = cache_key(spec, digest, baked, self.device, options, self.name)
        # Weights that are replaced after loading are compiled as zeros: if the replacement were ever forgotten, the
        # answer would be zero, and not that of another gauge field.
        held = weights if baked else {n: torch.zeros_like(v) for n, v in weights.items()}

        def build(folder: Path) -> None:
            graph = Graph(spec, held).eval()
            with tempfile.TemporaryDirectory() as temporary, torch.no_grad():
                workdir = _own_workdir(options.workdir, key_digest(key)) if options.workdir else temporary
                module = self._compile(graph, example_inputs(spec, weights), baked, spec, options, workdir)
                torch.jit.save(module, str(folder / "module.pt"))

        folder, there = self.cache.fetch(key, build)
        if self.build_only:
            return Loaded(_not_here(target_of(self.device, options), folder), there, time.perf_counter() - start)
        replaced = {} if baked or spec.as_arguments else {n: weights[n] for n in spec.weights}
        modules = [self._place(folder / "module.pt", replaced, core) for core in range(options.num_cores)]
        call = modules[0] if len(modules) == 1 else share_columns(modules, spec.n_rhs, 2 if spec.two_vectors else 1)
        return Loaded(_without_gradients(call), there, time.perf_counter() - start)

    def _place(self, path: Path, weights: Mapping[str, torch.Tensor], core: int):
        context = getattr(self.package, "neuron_cores_context", None)
        with context(start_nc=core, nc_count=1) if context else contextlib.nullcontext():
            module = torch.jit.load(str(path))
        if context is None and hasattr(self.package, "set_neuron_cores"):
            self.package.set_neuron_cores(module, start_nc=core, nc_count=1)
        if weights:
            self.package.replace_weights(module, dict(weights))
        if hasattr(
            self.package, "move_trace_to_device"
        ):  # marked for deprecation: without it, weights travel at every call
            self.package.move_trace_to_device(module, core)
        return module

    def _compile(self, graph: Graph, examples, baked: bool, spec: GraphSpec, options: CompileOptions, workdir: str):
        more: dict[str, Any] = {"inline_weights_to_neff": baked} if self._separates else {}
        if options.cpu_backend:
            more["cpu_backend"] = True
        flags = compiler_arguments(spec, options, self.device)
        try:
            return self.package.trace(graph, examples, compiler_workdir=workdir, compiler_args=flags, **more)
        except Exception as error:  # whatever the compiler's wrapper raises: its text is all that is documented
            raise _told(error) from error


def _own_workdir(asked: str, digest: str) -> str:
    """A folder for one graph: the compiler's files have the same names for every graph, and two processes may compile at once."""
    folder = Path(asked).expanduser() / digest
    with writable("option workdir=", folder, "name a folder that can be written to, or leave workdir out"):
        folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


_PLACEMENT = ("neuron_cores_context", "set_neuron_cores")
"""What puts a graph on a core, in the order of preference."""


def _accepts(function: Callable, name: str) -> bool:
    """True if a function takes the keyword, by its own name or by ``**``; True too where Python cannot tell."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _not_here(target: str, folder: Path) -> Callable[..., torch.Tensor]:
    def call(*tensors: torch.Tensor) -> torch.Tensor:
        raise BackendUnavailable(
            f"this graph was compiled for {target} on a machine that cannot run it (cpu_backend=True); it is {folder}. Copy "
            "the cache to an instance, let LQCD_NEURON_CACHE name it there, and bind without cpu_backend."
        )

    return call


class NativeAdapter:
    """The native package: tensors live on the device ``neuron``, ``torch.compile`` makes the graph. Trn2, Trn3.

    Parameters
    ----------
    device
        The machine.
    place
        Torch's device.
    """

    name = "native"

    def __init__(self, device: NeuronDevice, place: str | torch.device = "neuron"):
        self.device, self.place = device, torch.device(place)

    def why_not(self, gauge: str, options: CompileOptions) -> str | None:
        if options.num_cores > 1:
            return "the native torch-neuronx gives a process one logical core; use num_cores=1 and a process per core."
        if options.cpu_backend or options.target:
            return (
                "target and cpu_backend are arguments of the XLA package's torch_neuronx.trace; the native package "
                "compiles in the first call, on the device, for the device. Leave them out."
            )
        return None

    def describe(self) -> dict[str, str]:
        late = " (named after torch was imported: holds only if the package reads it later)"
        folder = os.environ.get(native_cache.VARIABLE, "")
        return {"adapter": self.name, "cache": folder + (late if native_cache.TORCH_CAME_FIRST else "")}

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self.place)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu")

    def load(
        self, spec: GraphSpec, weights: Mapping[str, torch.Tensor], digest: str, options: CompileOptions
    ) -> Loaded:
        if reason := self.why_not("baked" if digest else "resident", options):
            raise BackendUnavailable(reason)
        start = time.perf_counter()
        # Copies: a compiled graph shares no memory with anything that somebody may change in place.
        held = {} if spec.as_arguments else {n: weights[n].clone() for n in spec.weights}
        graph = Graph(spec, held).eval().to(self.place)
        backend = _with_constants(tuple(graph.buffers())) if digest else "neuron"
        compiled = torch.compile(_own_code(graph), backend=backend, fullgraph=True, dynamic=False)
        examples = tuple(self.to_device(v) for v in example_inputs(spec, weights))
        try:
            with torch.no_grad():
                compiled(*examples)  # compilation happens in the first call
        except Exception as error:
            raise _told(error) from error
        return Loaded(_without_gradients(compiled), False, time.perf_counter() - start)


def _own_code(graph: torch.nn.Module) -> Callable[..., torch.Tensor]:
    """A function that calls a graph, with a code object of its own.

    torch.compile keeps what it compiled by code object, counts recompilations there, and with ``fullgraph`` refuses after eight.
    All graphs share one ``forward``; without this the ninth operator of a process would not compile.
    """

    def whole(*tensors: torch.Tensor) -> torch.Tensor:
        return graph(*tensors)

    return types.FunctionType(whole.__code__.replace(), globals(), whole.__name__, None, whole.__closure__)


def _with_constants(constants: tuple[torch.Tensor, ...]) -> Callable:
    """A backend of torch.compile: makes constants of these inputs of the graph, then hands it to the backend ``neuron``.

    Dynamo passes the buffers of a module as inputs. Here every such input becomes a constant of the graph (the form that
    ``torch.tensor(...)`` in a model takes), so the lowering below sees numbers and not a parameter.
    """

    def compile_graph(module: torch.fx.GraphModule, examples) -> Callable:
        from torch._dynamo import lookup_backend

        # A graph of its own: Dynamo still asks its graph what to call the result with.
        graph, copies, kept, attributes = torch.fx.Graph(), {}, [], {}
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        for k, (node, value) in enumerate(zip(inputs, examples)):
            if any(value is c for c in constants):
                attributes[f"constant_{k}"] = (node, value.detach())
            else:
                kept.append(k)
                copies[node] = graph.node_copy(node)
        for name, (node, _) in attributes.items():
            copies[node] = graph.call_function(torch.ops.aten.lift_fresh_copy.default, (graph.get_attr(name),))
        graph.output(graph.graph_copy(module.graph, copies))
        if len(attributes) != len(constants):  # never a graph that only seems to be baked
            raise BackendError(
                f"torch gave the compiler {len(attributes)} of {len(constants)} constants by identity; use gauge='resident'."
            )
        frozen = torch.fx.GraphModule({name: value for name, (_, value) in attributes.items()}, graph)
        for name, (_, value) in attributes.items():  # a buffer would become an input again, an attribute does not
            delattr(frozen, name)
            setattr(frozen, name, value)
        inner = lookup_backend("neuron")(frozen, [examples[k] for k in kept])
        return lambda *given: inner(*(given[k] for k in kept))

    return compile_graph


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


def native_place() -> torch.device | None:
    """Torch's device of the native package; None if it is not registered.

    Raises
    ------
    BackendUnavailable
        If torch has the namespace of the device, but not the device.
    """
    if not hasattr(torch, "neuron"):
        return None
    try:
        return torch.device("neuron")
    except RuntimeError as error:
        raise BackendUnavailable(f"torch has no device 'neuron' although torch.neuron exists: {error}") from error


def find_adapter(device: NeuronDevice, build_only: bool = False) -> Adapter:
    """The adapter for the package that is installed.

    Parameters
    ----------
    device
        The machine, or what is compiled for.
    build_only
        There is no device here to run on.

    Raises
    ------
    BackendUnavailable
        If there is none, with the package that this machine needs.
    """
    wanted = {
        "gen2": "torch-neuronx 2.9 of the Neuron SDK (the XLA package, with neuronx-cc), which serves Inf2 and Trn1",
        "gen3": "the native torch-neuronx of the Neuron SDK 2.33 or later, which serves Trn2 and Trn3",
    }
    need = wanted["gen3" if device.generation in ("gen3", "gen4") and not build_only else "gen2"]
    try:
        package = import_module("torch_neuronx")
    except ImportError as error:
        here = "cpu_backend=True needs the vendor's compiler" if build_only else "a Neuron device is here"
        raise BackendUnavailable(f"{here}, but torch_neuronx cannot be imported ({error}); install {need}.") from error
    if callable(getattr(package, "trace", None)):
        return TraceAdapter(package, device, build_only)
    place = native_place()
    if place is not None:
        return NativeAdapter(device, place)
    raise BackendUnavailable(
        f"torch_neuronx ({getattr(package, '__file__', None)}) has neither trace nor a torch device 'neuron'; install {need}."
    )


__all__ = [
    "STORAGE",
    "TARGETS",
    "Adapter",
    "CompileOptions",
    "GraphTooLarge",
    "Loaded",
    "NativeAdapter",
    "TraceAdapter",
    "cache_key",
    "compiler_arguments",
    "example_inputs",
    "find_adapter",
    "native_place",
    "target_of",
    "versions",
]  # fmt: skip

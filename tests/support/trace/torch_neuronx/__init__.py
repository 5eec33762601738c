"""A stand-in for the XLA package torch_neuronx: its documented signatures and limits, run by torch on the CPU.

It proves that the traced backend keeps to what is documented. It says nothing about speed, and nothing about what the real
compiler does beyond that.
"""

import contextlib
import io
import math
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch

STAND_IN = True  # scripts that measure look for this and write no times

HLO_LIMIT = 2 << 30
# TorchScript would otherwise spend its time on specialising graphs that tests call once.
torch._C._set_graph_executor_optimize(False)
_ALONE = threading.Lock()  # tracing, and forgetting what was traced, is for one thread at a time
CALLS = []  # what was compiled: (compiler_args, inline_weights_to_neff), for tests
TRACED = []  # the same with every argument of interest


TARGETS = ("inf2", "trn1", "trn1n", "trn2")
CORES = 2  # those of an inf2.xlarge


def _limit():
    return int(os.environ.get("STANDIN_INSTRUCTION_LIMIT", "5000000"))


def trace(func, example_inputs, *_, input_output_aliases={}, compiler_workdir=None, compiler_args=None,  # noqa: B006
          partitioner_config=None, inline_weights_to_neff=True, cpu_backend=False):  # fmt: skip
    if _:
        warnings.warn(f"trace: {len(_)} extra positional argument(s) ignored", stacklevel=2)
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    for v in inputs:
        if not isinstance(v, torch.Tensor):
            raise TypeError("example_inputs must be a tensor or a tuple of tensors")
        if v.device.type != "cpu":
            raise RuntimeError("example inputs must be CPU tensors")
    flags = compiler_args.split() if isinstance(compiler_args, str) else list(compiler_args or [])
    target = flags[flags.index("--target") + 1] if "--target" in flags else None
    if cpu_backend and target is None:
        raise ValueError("cpu_backend=True needs --target in compiler_args")
    if target is not None and target not in TARGETS:
        raise RuntimeError(f"neuronx-cc: --target {target}: not one of {TARGETS}")
    if partitioner_config is not None and not isinstance(partitioner_config, PartitionerConfig):
        raise TypeError("partitioner_config must be a PartitionerConfig")
    TRACED.append(
        {"flags": flags, "cpu_backend": cpu_backend, "inlined": inline_weights_to_neff, "workdir": compiler_workdir}
    )
    with _ALONE:
        return _loaded_anew(_traced(func, inputs, flags, inline_weights_to_neff))


class _Function(torch.nn.Module):
    """A plain function as a module: trace takes either."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def _traced(func, inputs, compiler_args, inlined):
    module = func if isinstance(func, torch.nn.Module) else _Function(func)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        # In a thread of its own: TorchScript writes down the Python stack of every operation, and a test's is deep.
        with ThreadPoolExecutor(1) as shallow:
            traced = shallow.submit(torch.jit.trace, module, inputs, check_trace=False).result()
    if any(issubclass(w.category, torch.jit.TracerWarning) for w in said):  # a value that steers Python
        raise RuntimeError("data-dependent control flow cannot be traced")
    CALLS.append((compiler_args, inlined))
    _check(traced, inputs)
    if inlined:
        held = [*traced.buffers(), *traced.parameters()]
        if sum(b.numel() * b.element_size() for b in held) > HLO_LIMIT:
            raise RuntimeError("HLO protobuf exceeds the limit of 2 GiB")
    return _neff(traced, inputs, inlined)


def _loaded_anew(module):
    """The module with a compilation unit of its own.

    What is traced stays in the process's one for good, 12 MB a graph: thousands of graphs fill the machine.
    """
    file = io.BytesIO()
    torch.jit.save(module, file)
    # What torch's own tests do between each other.
    torch._C._jit_clear_class_registry()
    torch.jit._recursive.concrete_type_store = torch.jit._recursive.ConcreteTypeStore()
    torch.jit._state._clear_class_state()
    file.seek(0)
    return torch.jit.load(file)


def _check(traced, inputs):
    kinds = {"ComplexFloat": "NCC_EVRF004", "ComplexDouble": "NCC_EVRF004", "Double": "NCC_ESPP004"}
    instructions = 0
    for v in inputs:
        if v.is_complex() or v.dtype == torch.float64:
            raise RuntimeError(f"[NCC_EVRF004] type {v.dtype} is not supported on the device")
    for node in traced.inlined_graph.nodes():
        for out in node.outputs():
            kind = out.type()
            if not isinstance(kind, torch._C.TensorType) or kind.scalarType() is None:
                continue
            if kind.scalarType() in kinds:
                raise RuntimeError(f"[{kinds[kind.scalarType()]}] {kind.scalarType()} is not supported on the device")
            sizes = kind.sizes()
            if sizes:
                instructions += math.ceil(math.prod(sizes) / (128 * 512))
                if node.kind() == "aten::bmm":
                    instructions += 16 * sizes[0]
    if instructions > _limit():
        raise RuntimeError(
            f"[XTP002] Number of instructions ({instructions}) is over the threshold ({_limit()}). (NCC_EVRF007)"
        )


def _neff(model, inputs, inlined):
    """What trace returns: one fused call with frozen shapes and types."""

    class Neff(torch.jit.ScriptModule):  # a class each time: TorchScript keeps one type per class
        def __init__(self):
            super().__init__()
            self.model, self.inlined = model, inlined
            self.dynamic, self.lazy, self.asynchronous = False, False, False
            self.start_nc, self.nc_count = -1, 1
            names = [f"x{k}" for k in range(len(inputs))]
            batch = inputs[0].shape[0] if inputs and inputs[0].dim() else 0
            free = 1 if all(v.dim() and v.shape[0] == batch for v in inputs) else 0  # axes that dynamic_batch frees
            checks = "".join(
                f"    if {n}.size()[{free} if self.dynamic else 0:] != {list(v.shape)}[{free} if self.dynamic else 0:]:\n"
                f"        raise RuntimeError('input {k} has another shape than the one traced: {tuple(v.shape)}')\n"
                f"    if {n}.dtype != {_DTYPE[v.dtype]}:\n"
                f"        raise RuntimeError('input {k} has another type than the one traced')\n"
                for k, (n, v) in enumerate(zip(names, inputs))
            )
            self.batch, self.can_batch = batch, bool(free)
            self.define(f"def forward(self, {', '.join(names)}):\n{checks}{_chunks(names)}"
                        f"    return self.model({', '.join(names)})\n")  # fmt: skip

    return Neff()


def _chunks(names):
    """Lines of a forward that cuts dim 0 into what was traced, and fills the last piece with zeros."""
    same = " or ".join(f"{n}.size(0) != total" for n in names)
    parts = "".join(
        f"            p{k} = {n}.narrow(0, at, size)\n"
        f"            if size < self.batch:\n"
        f"                p{k} = torch.cat([p{k}, torch.zeros_like({n}[:1]).expand([self.batch - size] + {n}.shape[1:])])\n"
        for k, n in enumerate(names)
    )
    given = ", ".join(f"p{k}" for k in range(len(names)))
    return (
        "    if self.dynamic:\n"
        f"        total = {names[0]}.size(0)\n"
        f"        if {same}:\n"
        "            raise RuntimeError('dynamic batching: all inputs must share dimension 0')\n"
        "        pieces: List[Tensor] = []\n"
        "        at = 0\n"
        "        while at < total:\n"
        "            size = min(self.batch, total - at)\n"
        f"{parts}"
        f"            pieces.append(self.model({given}).narrow(0, 0, size))\n"
        "            at += size\n"
        "        return torch.cat(pieces)\n"
    )


# TorchScript compares types as the numbers of its own enumeration.
_DTYPE = {torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}


def replace_weights(neuron_model, weights):
    if neuron_model.inlined:
        raise RuntimeError("replace_weights needs a model traced with inline_weights_to_neff=False")
    state = weights.state_dict() if isinstance(weights, torch.nn.Module) else dict(weights)
    neuron_model.model.load_state_dict(state, strict=True)


def _neuron(module):
    """True for what :func:`trace` made; placing anything else does nothing, as documented."""
    return isinstance(module, torch.jit.ScriptModule) and hasattr(module, "inlined")


def move_trace_to_device(trace, device_id):
    if device_id not in range(CORES):
        raise RuntimeError(f"no NeuronCore {device_id} in this stand-in")
    if _neuron(trace):
        trace.start_nc, trace.nc_count = device_id, 1


_PLACED = []  # (start_nc, nc_count) of every context entered, for tests


def _cores(start_nc, nc_count):
    """The documented check: -1 means any core, and one of them."""
    count = 1 if nc_count == -1 else nc_count
    if count < 1 or start_nc < -1 or max(start_nc, 0) + count > CORES:
        raise ValueError(f"start_nc={start_nc}, nc_count={nc_count}: there are {CORES} NeuronCores")
    return start_nc, count


def set_neuron_cores(trace, start_nc=-1, nc_count=-1):
    where = _cores(start_nc, nc_count)
    if _neuron(trace):
        trace.start_nc, trace.nc_count = where


def set_multicore(trace):
    set_neuron_cores(trace, 0, CORES)


@contextlib.contextmanager
def neuron_cores_context(start_nc=-1, nc_count=-1):
    _PLACED.append(_cores(start_nc, nc_count))
    yield


@contextlib.contextmanager
def multicore_context():
    with neuron_cores_context(0, CORES):
        yield


def lazy_load(trace, enable_lazy_load=True):
    """Kept in the file: it has to be called before torch.jit.save."""
    trace.lazy = bool(enable_lazy_load)


def async_load(trace, enable_async_load=True):
    trace.asynchronous = bool(enable_async_load)


def dynamic_batch(neuron_script):
    if not _neuron(neuron_script):
        raise TypeError("dynamic_batch needs what trace returned")
    if not neuron_script.can_batch:
        raise ValueError("dynamic batching needs inputs that share dimension 0")
    neuron_script.dynamic = True
    return neuron_script


class DataParallel:
    """Pieces of ``max(1, extent // cores)`` along ``dim``, each to a worker thread; the results joined in order.

    With dynamic batching (``dim=0`` only, and inputs that share it) a piece may have any extent. Without it, every piece must be
    what was traced: ``input.shape[dim] / len(device_ids) == compilation_input.shape[dim]``.
    """

    def __init__(self, model, device_ids=None, dim=0, set_dynamic_batching=True):
        ids = list(range(CORES)) if device_ids is None else [self._index(k) for k in device_ids]
        if not ids or any(k not in range(CORES) for k in ids):
            raise ValueError(f"device_ids {device_ids}: this process sees the NeuronCores 0 to {CORES - 1}")
        self.model, self.dim, self.device_ids = model, dim, ids
        self.num_workers, self.split_size = 2 * len(ids), None
        self.dynamic = set_dynamic_batching and dim == 0 and bool(getattr(model, "can_batch", False))
        if self.dynamic:
            dynamic_batch(model)

    @staticmethod
    def _index(core):
        return int(core.removeprefix("nc:")) if isinstance(core, str) else core

    def disable_dynamic_batching(self):
        self.dynamic = False
        self.model.dynamic = False

    def __call__(self, *inputs):
        extents = {v.shape[self.dim] for v in inputs}
        if len(extents) > 1:
            raise ValueError(f"inputs differ along dimension {self.dim}: {sorted(extents)}")
        size = self.split_size or max(1, extents.pop() // len(self.device_ids))
        parts = list(zip(*(v.split(size, self.dim) for v in inputs)))
        with ThreadPoolExecutor(self.num_workers) as pool:
            return torch.cat(list(pool.map(lambda p: self.model(*p), parts)), self.dim)


def analyze(func, example_inputs, compiler_workdir=None, *, additional_ignored_ops=set(), max_workers=4,  # noqa: B006
            is_hf_transformers=False, cleanup=False):  # fmt: skip
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    graph = torch.jit.trace(func, inputs, check_trace=False).inlined_graph
    good, bad = {}, []
    for node in graph.nodes():
        kind = node.kind()
        if not kind.startswith("aten::") or kind in additional_ignored_ops:
            continue
        kinds = {str(v.type().scalarType()) for v in node.outputs() if isinstance(v.type(), torch._C.TensorType)}
        if kinds & {"ComplexFloat", "ComplexDouble", "Double"}:
            bad.append({"kind": kind, "failureAt": "neuronx-cc", "call": node.sourceRange(), "opGraph": str(node)})
        else:
            good[kind] = good.get(kind, 0) + 1
    total = sum(good.values()) + len(bad)
    return {
        "torch_neuronx_version": "stand-in", "neuronx_cc_version": "stand-in",
        "support_percentage": f"{100 * (total - len(bad)) / total if total else 100:.2f}%",
        "supported_operators": good, "unsupported_operators": bad,
    }  # fmt: skip


class PartitionerConfig:
    def __init__(self, *, trace_kwargs=None, model_support_percentage_threshold=0.5, min_subgraph_size=-1,
                 max_subgraph_count=-1, ops_to_partition=None, analyze_parameters=None):  # fmt: skip
        self.__dict__.update({k: v for k, v in locals().items() if k != "self"})


class BucketModelConfig:
    def __init__(
        self, bucket_kernel, *_, shared_state_buffer=None, shared_state_buffer_preprocessor=None, func_kwargs=None
    ):
        if _:
            warnings.warn(f"BucketModelConfig: {len(_)} extra positional argument(s) ignored", stacklevel=2)
        self.__dict__.update({k: v for k, v in locals().items() if k not in ("self", "_")})


def bucket_model_trace(func, example_inputs, bucket_config, compiler_workdir=None, compiler_args=None):
    """A graph for every entry of ``example_inputs``; the kernel picks one by the inputs of a call."""
    keywords = bucket_config.func_kwargs
    keywords = keywords if isinstance(keywords, list) else [keywords or {}] * len(example_inputs)
    if len(keywords) != len(example_inputs):
        raise ValueError(f"{len(keywords)} func_kwargs for {len(example_inputs)} buckets")
    models = [
        trace(func(**more)[0], inputs, compiler_workdir=compiler_workdir, compiler_args=compiler_args)
        for inputs, more in zip(example_inputs, keywords)
    ]
    kernel = bucket_config.bucket_kernel()

    def call(*inputs):
        tensors, index = kernel(list(inputs))
        return models[int(index)](*tensors)

    return call

"""A stand-in for the XLA package torch_neuronx: its documented signatures and limits, run by torch on the CPU.

It proves that the traced backend keeps to what is documented. It says nothing about speed, and nothing about what the real
compiler does beyond that.
"""

import contextlib
import math
import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch

STAND_IN = True  # scripts that measure look for this and write no times

HLO_LIMIT = 2 << 30
# TorchScript would otherwise spend its time on specialising graphs that tests call once.
torch._C._set_graph_executor_optimize(False)
CALLS = []  # what was compiled: (compiler_args, inline_weights_to_neff), for tests


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
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        traced = torch.jit.trace(func, inputs, check_trace=False)
    if any(issubclass(w.category, torch.jit.TracerWarning) for w in said):  # a value that steers Python
        raise RuntimeError("data-dependent control flow cannot be traced")
    CALLS.append((list(compiler_args or []), inline_weights_to_neff))
    _check(traced, inputs)
    if inline_weights_to_neff:
        held = [*traced.buffers(), *traced.parameters()]
        if sum(b.numel() * b.element_size() for b in held) > HLO_LIMIT:
            raise RuntimeError("HLO protobuf exceeds the limit of 2 GiB")
    return _neff(traced, inputs, inline_weights_to_neff)


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
            names = [f"x{k}" for k in range(len(inputs))]
            checks = "".join(
                f"    if {n}.size() != {list(v.shape)}:\n"
                f"        raise RuntimeError('input {k} has another shape than the one traced: {tuple(v.shape)}')\n"
                f"    if {n}.dtype != {_DTYPE[v.dtype]}:\n"
                f"        raise RuntimeError('input {k} has another type than the one traced')\n"
                for k, (n, v) in enumerate(zip(names, inputs))
            )
            self.define(f"def forward(self, {', '.join(names)}):\n{checks}    return self.model({', '.join(names)})\n")

    return Neff()


# TorchScript compares types as the numbers of its own enumeration.
_DTYPE = {torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}


def replace_weights(neuron_model, weights):
    if neuron_model.inlined:
        raise RuntimeError("replace_weights needs a model traced with inline_weights_to_neff=False")
    state = weights.state_dict() if isinstance(weights, torch.nn.Module) else dict(weights)
    neuron_model.model.load_state_dict(state, strict=True)


def move_trace_to_device(trace, device_id):
    if device_id not in range(2):
        raise RuntimeError(f"no NeuronCore {device_id} in this stand-in")


_PLACED = []  # (start_nc, nc_count) of every context entered, for tests


@contextlib.contextmanager
def neuron_cores_context(start_nc=-1, nc_count=-1):
    _PLACED.append((start_nc, nc_count))
    yield


class DataParallel:
    """Chunks along ``dim``, each padded to the traced batch where dynamic batching is on."""

    def __init__(self, model, device_ids=None, dim=0, set_dynamic_batching=True):
        self.model, self.dim, self.dynamic = model, dim, set_dynamic_batching
        self.num_workers = 2 * len(device_ids if device_ids is not None else range(2))
        self.split_size = None

    def disable_dynamic_batching(self):
        self.dynamic = False

    def __call__(self, *inputs):
        total = inputs[0].shape[self.dim]
        self.split_size = max(1, total // self.num_workers)
        parts = list(zip(*(v.split(self.split_size, self.dim) for v in inputs)))
        with ThreadPoolExecutor(self.num_workers) as pool:
            return torch.cat(list(pool.map(lambda p: self.model(*p), parts)), self.dim)

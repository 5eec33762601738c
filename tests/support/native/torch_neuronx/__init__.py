"""A stand-in for the native package torch_neuronx: the ``neuron`` backend of torch.compile, run by torch on the CPU.

Dynamo, then AOTAutograd, as documented; what the lowering would get is checked and counted. There is no ``trace``, and no
``dynamic=True``, mode or option. A device that torch calls ``neuron`` cannot be made in Python, so tests place tensors on the CPU:
what is proven is the compiled graph and its limits, not the movement of tensors.
"""

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

STAND_IN = True  # scripts that measure look for this and write no times

COMPILED = []  # of every graph that was lowered: how many inputs and constants it has, and its number of nodes
LAUNCHES = []  # number of inputs of every run of a graph


def _lower(module, examples):
    inputs, constants = 0, 0
    for node in module.graph.nodes:
        inputs += node.op == "placeholder"
        if node.op == "get_attr":
            constants += isinstance(getattr(module, node.target), torch.Tensor)
        value = node.meta.get("val")
        for v in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(v, torch.Tensor):
                if v.is_complex() or v.dtype == torch.float64:
                    raise RuntimeError(f"type {v.dtype} is not supported on the device")
                if any(not isinstance(n, int) for n in v.shape):
                    raise RuntimeError("dynamic shapes are not supported")
    COMPILED.append({"inputs": inputs, "constants": constants, "nodes": len(module.graph.nodes)})

    def launch(*inputs):
        LAUNCHES.append(len(inputs))
        return module.forward(*inputs)

    return make_boxed_func(launch)


def _neuron(module, examples, *, mode=None, options=None, **unknown):
    if mode not in (None, "default") or unknown or set(options or {}) - {"fallback_execution"}:
        raise ValueError(f"mode {mode!r}, options {options!r}: only the default mode and few options are supported")
    return aot_autograd(fw_compiler=_lower)(module, examples)


# The registry keeps the first module of a process; later imports share its lists.
if "neuron" not in torch._dynamo.list_backends(()):
    _neuron.lists = COMPILED, LAUNCHES
    torch._dynamo.register_backend(name="neuron", compiler_fn=_neuron)
COMPILED, LAUNCHES = torch._dynamo.lookup_backend("neuron").lists

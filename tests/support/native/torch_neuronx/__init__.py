"""A stand-in for the native package torch_neuronx: the ``neuron`` backend of torch.compile, run by torch on the CPU.

It has no ``trace``. A device that torch calls ``neuron`` cannot be made in Python, so tests place tensors on the CPU instead:
what is proven is the compiled graph and its limits, not the movement of tensors.
"""

import torch

STAND_IN = True  # scripts that measure look for this and write no times

COMPILED = []


def _neuron(graph_module, example_inputs, **options):
    for node in graph_module.graph.nodes:
        value = node.meta.get("example_value")
        for v in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(v, torch.Tensor):
                if v.is_complex() or v.dtype == torch.float64:
                    raise RuntimeError(f"type {v.dtype} is not supported on the device")
                if any(not isinstance(n, int) for n in v.shape):
                    raise RuntimeError("dynamic shapes are not supported")
    COMPILED.append(len(graph_module.graph.nodes))
    return graph_module.forward


if "neuron" not in torch._dynamo.list_backends(()):
    torch._dynamo.register_backend(name="neuron", compiler_fn=_neuron)

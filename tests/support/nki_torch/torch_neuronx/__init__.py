"""A stand-in for the native package torch_neuronx with the documented wrapper for NKI kernels, run on the CPU.

``nki_op(name, mutates_args={})`` registers a torch custom operator, as documented. A device that torch calls ``neuron`` cannot be made in
Python, so tensors live on the CPU: what is proven is the operator's schema and its calls, not the movement of tensors.
"""

import numpy as np
import torch

STAND_IN = True
LABEL = "STAND-IN torch_neuronx, no Neuron device"
PLACE = "cpu"
REGISTERED = {}


def nki_op(name, *, mutates_args):
    if "::" not in name:
        raise ValueError("an operator is called namespace::name")

    def register(function):
        def on_arrays(*tensors):
            import nki_machine

            for t in tensors:
                if t.is_complex() or t.dtype == torch.float64:
                    raise RuntimeError(f"type {t.dtype} is not supported on the device")
            with nki_machine.torch_arrays():
                results = function(*[_numpy(t) for t in tensors])
            many = isinstance(results, (tuple, list))
            out = tuple(_tensor(r) for r in (results if many else (results,)))
            return out if many else out[0]

        on_arrays.__signature__ = function.__signature__
        on_arrays.__annotations__ = function.__annotations__
        operator = torch.library.custom_op(name, on_arrays, mutates_args=tuple(mutates_args))
        REGISTERED[name] = operator
        return operator

    return register


def _numpy(t):
    import ml_dtypes

    return (
        t.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy() if t.dtype == torch.bfloat16 else t.numpy().copy()
    )


def _tensor(a):
    a = np.ascontiguousarray(a)
    return (
        torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
        if a.dtype.name == "bfloat16"
        else torch.from_numpy(a.copy())
    )

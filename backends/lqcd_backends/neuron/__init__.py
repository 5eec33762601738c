"""AWS Neuron: what the two backends share (device, budget, cache, monitor) and the ancestor's explicit interface.

``import lqcd_backends.neuron`` imports no torch and no Neuron package; the names below arrive on first use.
"""

from __future__ import annotations

_WHERE = {
    "NeuronCompiler": ".traced.compiler",
    "NeuronDevice": ".device",
    "get_device": ".device",
    "is_neuron_available": ".device",
}


def __getattr__(name: str):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name], __name__), name)


def __dir__():
    return sorted(_WHERE)


__all__ = ["NeuronCompiler", "NeuronDevice", "get_device", "is_neuron_available"]

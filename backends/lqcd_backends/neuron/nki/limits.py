"""What a device cannot hold or address, found before anything is packed or compiled."""

from __future__ import annotations

from collections.abc import Iterable

from lqcd_core.errors import ParameterError

from ..budget import MICROCODE
from ..device import NeuronDevice

ADDRESSABLE = 1 << 32
"""Bytes of one tensor: a kernel's registers have 32 bits."""
VECTORS = 10
"""Vectors that a solve keeps beside its operator: x, b, r, p, A p, two in flight, and an outer solver's three."""


def check_fits(what: str, tensors: Iterable, device: NeuronDevice, vector_bytes: int = 0) -> None:
    """Refuse what cannot run.

    Parameters
    ----------
    what
        Operator and lattice, for the message.
    tensors
        Tensors that stay on the device, with ``name``, ``shape``, ``dtype`` and ``nbytes``.
    device
        The machine.
    vector_bytes
        One vector; a solve keeps VECTORS of them.

    Raises
    ------
    ParameterError
        With the numbers.
    """
    tensors = list(tensors)
    for t in tensors:
        if t.nbytes >= ADDRESSABLE:
            raise ParameterError(
                f"{what}: {t.name!r} would be {tuple(t.shape)} of {t.dtype}, {t.nbytes:,} B, and a kernel addresses less than "
                f"{ADDRESSABLE:,} B in a tensor; bind fewer right-hand sides at once, use a 16-bit precision, or cut the lattice over more cores."
            )
    need = sum(t.nbytes for t in tensors) + VECTORS * vector_bytes
    there = device.core_bytes - MICROCODE * device.logical_core_config
    if need > there:
        raise ParameterError(
            f"{what} needs about {need:,} B of device memory ({need - VECTORS * vector_bytes:,} for the operator, {VECTORS} vectors of "
            f"{vector_bytes:,}) and a core has {there:,}; bind fewer right-hand sides, use a 16-bit precision, or cut the lattice over more cores."
        )


__all__ = ["ADDRESSABLE", "VECTORS", "check_fits"]

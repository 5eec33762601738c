"""What a kernel is to the runtime: a function's name, named tensors in and out, constants. Data only; imports no NKI.

Everything that may change without a compilation is a tensor; every constant is part of the compiled code.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import attrs

STORAGE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4}
"""Bytes of one element by storage name."""


@attrs.frozen
class TensorArg:
    """One tensor that a kernel takes or gives."""

    name: str
    """Inputs: the kernel function's parameter. Outputs: ``output_0``, ``output_1``, ... in the order returned."""
    shape: tuple[int, ...] = attrs.field(converter=tuple)
    """Extents; where the kernel addresses partitions, the first is the partition axis."""
    dtype: str = attrs.field(default="float32", validator=attrs.validators.in_(STORAGE_BYTES))
    """A name of STORAGE_BYTES."""

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * STORAGE_BYTES[self.dtype]


@attrs.frozen(eq=False, slots=False, kw_only=True)
class KernelSpec:
    """A kernel with its shapes and constants: one compilation, one NEFF."""

    name: str
    """For people and messages: operator, lattice, precision."""
    function: str
    """``package.module:function`` of the ``@nki.jit`` function."""
    inputs: tuple[TensorArg, ...] = attrs.field(converter=tuple)
    """In the order of the function's parameters."""
    outputs: tuple[TensorArg, ...] = attrs.field(converter=tuple)
    """In the order returned."""
    constants: Mapping[str, Any] = attrs.field(factory=dict)
    """Passed by keyword after the tensors: numbers, text, tuples of them."""

    def key(self) -> dict[str, Any]:
        """All that the compiled code depends on, as JSON-able data; the name is for people and not part of it."""
        return {
            "function": self.function, "inputs": [attrs.astuple(a) for a in self.inputs],
            "outputs": [attrs.astuple(a) for a in self.outputs], "constants": dict(self.constants), "source": source_digest(),
        }  # fmt: skip

    @cached_property
    def digest(self) -> str:
        """blake2b (160 bits, hex) of the key."""
        text = json.dumps(self.key(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


KERNEL_SOURCES = ("vector_kernel.py", "tensor_kernel.py", "blas_kernels.py", "exact.py", "microbenchmarks.py")
"""Files whose text is in every key: a changed kernel is compiled again."""


@lru_cache(maxsize=1)
def source_digest() -> str:
    """blake2b of the kernel sources."""
    h = hashlib.blake2b(digest_size=20)
    for name in KERNEL_SOURCES:
        path = Path(__file__).with_name(name)
        h.update(name.encode() + (path.read_bytes() if path.exists() else b""))
    return h.hexdigest()


__all__ = ["KERNEL_SOURCES", "STORAGE_BYTES", "KernelSpec", "TensorArg", "source_digest"]

"""Formulas written once over an array namespace: the few things that differ between NumPy and other libraries."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np

from .errors import FieldTypeError, how_to_install


def library_of(array: Any) -> str:
    """Name of the library an array belongs to: ``numpy``, ``torch``, ``jax``, ..."""
    return type(array).__module__.partition(".")[0]


def namespace(array: Any) -> ModuleType:
    """The module whose functions (roll, einsum, stack, ...) act on this array.

    Raises
    ------
    FieldTypeError
        If the object is no array.
    """
    if isinstance(array, np.ndarray):
        return np
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    module = sys.modules.get(library_of(array))
    if module is None or not hasattr(array, "shape") or not hasattr(module, "einsum"):
        raise FieldTypeError(f"expected an array or a field, got {type(array).__name__}.")
    return module


def is_complex(array: Any) -> bool:
    """True for an array of complex numbers of any library."""
    return "complex" in str(array.dtype)


def raw(field: Any) -> Any:
    """The complex array in a field, or the array itself."""
    return field.array if hasattr(field, "geometry") else field


def from_numpy(array: np.ndarray, library: str) -> Any:
    """A view of a NumPy array in another library, without a copy (``library.from_dlpack``)."""
    if library == "numpy":
        return array
    try:
        module = importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise FieldTypeError(f"an array of {library} was asked for; {how_to_install(library)}.") from error
    return module.from_dlpack(array)


def to_numpy(array: Any) -> np.ndarray:
    """A NumPy array of the same numbers; a gradient is cut here and a lazy conjugate resolved."""
    if isinstance(array, np.ndarray):
        return array
    for step in ("detach", "resolve_conj", "resolve_neg", "cpu"):
        if hasattr(array, step):
            array = getattr(array, step)()
    return np.asarray(array)

"""Metadata as plain data: nested dictionaries to JSON and back, and how two of them differ."""

from __future__ import annotations

import json
from typing import Any

import attrs
import numpy as np


def plain(value: Any) -> Any:
    """The same information in dictionaries, lists, strings, numbers, booleans and None.

    A complex number becomes ``{"re": ..., "im": ...}``, an attrs record the dictionary of its fields, an array a nested list;
    what is none of these becomes its ``str``.

    Examples
    --------
    >>> plain({"kappa": np.float64(0.125), "momentum": (0, 0, 1), "phase": 1j})
    {'kappa': 0.125, 'momentum': [0, 0, 1], 'phase': {'re': 0.0, 'im': 1.0}}
    """
    if isinstance(value, str):
        return str(value)  # of a subclass (the version of torch is one) the letters: HDF5 refuses the rest
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, complex):
        return {"re": value.real, "im": value.imag}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in (sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)]
    if attrs.has(type(value)):
        return {a.name: plain(getattr(value, a.name)) for a in attrs.fields(type(value))}
    return str(value)


def to_json(value: Any) -> str:
    """Canonical JSON: keys sorted, so that equal metadata are equal text."""
    return json.dumps(plain(value), sort_keys=True, ensure_ascii=True)


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves of a plain tree by dotted name.

    >>> flatten({"operator": {"kappa": 0.1}, "columns": [1, 2]})
    {'operator.kappa': 0.1, 'columns': [1, 2]}
    """
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree} if prefix else {}
    out = {}
    for key, value in tree.items():
        out.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return out


def differences(asked: Any, found: Any) -> list[str]:
    """One phrase for every leaf that differs, in order of name; empty if the two say the same.

    >>> differences({"kappa": 0.1, "csw": 1.0}, {"kappa": 0.12, "csw": 1.0})
    ['kappa: asked 0.1, found 0.12']
    """
    a, b = flatten(json.loads(to_json(asked))), flatten(json.loads(to_json(found)))
    missing = "nothing"
    return [
        f"{name}: asked {a.get(name, missing)!r}, found {b.get(name, missing)!r}"
        for name in sorted({*a, *b})
        if a.get(name, missing) != b.get(name, missing)
    ]

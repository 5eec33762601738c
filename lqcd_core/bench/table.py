"""The printed table: columns per backend, three lines per row, as soon as the row is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .sweep import COLUMNS

_LABEL = 34  # lattice, precision, batch, unit
_CELL = 11


def header(backends: Sequence[str], threads: int) -> str:
    """Two lines: names, and the columns under each."""
    group = _CELL * len(COLUMNS)
    names = " " * _LABEL + "".join(f"{b:^{group}}" for b in backends) + f"{'best':>10}"
    under = f"{'lattice':<14}{'precision':<10}{'n':>3} {'':6}"
    under += "".join(f"{c:>{_CELL}}" for _ in backends for c in COLUMNS) + f"{'speed-up':>10}"
    return f"{names}\n{under}\n{separator(backends)}"


def separator(backends: Sequence[str]) -> str:
    """The line between lattices."""
    return "-" * (_LABEL + _CELL * len(COLUMNS) * len(backends) + 10)


def row(data: Mapping[str, Any], backends: Sequence[str], before: Mapping[str, Any] | None = None) -> str:
    """GFLOP/s, GB/s and the share of the roofline; with ``before`` also the ratio to that row's GFLOP/s.

    >>> cell = {"backend": "numpy", "column": "single", "gflops": 2.0, "gbytes": 1.5, "fraction": 0.25}
    >>> print(row({"lattice": [4, 4, 4, 8], "precision": "double", "batch": 1, "cells": [cell]}, ["numpy"]))
    4x4x4x8       double      1 GFLOP/s       2.00          -          -         -
                                GB/s           1.5          -          -
                                roof           25%          -          -
    """
    cells = {(c["backend"], c["column"]): c for c in data["cells"]}
    old = {(c["backend"], c["column"]): c for c in before["cells"]} if before else {}
    order = [(b, c) for b in backends for c in COLUMNS]
    lattice = "x".join(map(str, data["lattice"]))
    speed = f"{data['speed_up']:.2f}" if "speed_up" in data else "-"

    def line(lead: str, unit: str, text, end: str = "") -> str:
        return f"{lead:<28}{unit:<6}".ljust(_LABEL) + "".join(f"{text(k):>{_CELL}}" for k in order) + end

    def show(name: str, form):
        return lambda k: form(cells[k][name]) if name in cells.get(k, {}) else "-"

    lead = f"{lattice:<14}{data['precision']:<10}{data['batch']:>3} "
    lines = [
        line(lead, "GFLOP/s", show("gflops", _three), f"{speed:>10}"),
        line("", "GB/s", show("gbytes", lambda v: f"{v:.1f}")),
        line("", "roof", show("fraction", lambda v: f"{100 * v:.0f}%")),
    ]
    if old:

        def ratio(k):
            now, then = cells.get(k, {}).get("gflops"), old.get(k, {}).get("gflops")
            return f"{now / then:.2f}x" if now and then else "-"

        lines.append(line("", "before", ratio))
    return "\n".join(lines)


def _three(value: float) -> str:
    return f"{value:.1f}" if value >= 99.95 else f"{value:.2f}"


def reasons(data: Mapping[str, Any]) -> list[str]:
    """Sentences on the cells that are empty for a reason that is not in the plan of the sweep."""
    found: dict[tuple[str, str], list[str]] = {}
    for c in data["cells"]:
        if "why" in c and c["why"] not in ("as single", "one thread asked for"):
            found.setdefault((c["backend"], c["why"]), []).append(c["column"])
    return [f"{backend} {', '.join(columns)}: {why}" for (backend, why), columns in found.items()]


__all__ = ["header", "reasons", "row", "separator"]

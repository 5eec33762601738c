"""Pictures of a sweep: the roofline, speed against volume, speed against the number of right-hand sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .machine import Limits

_MARKERS = {"single": "o", "batched": "s", "multicore": "^"}
_LINES = {"single": ":", "batched": "--", "multicore": "-"}
NAMES = ("roofline", "volume", "n_rhs")
"""Stems of the files."""


def draw(folder, head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write every picture as PNG and SVG into a folder; the paths."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder, written = Path(folder), []
    folder.mkdir(parents=True, exist_ok=True)
    backends = list(dict.fromkeys(c["backend"] for r in rows for c in r["cells"]))
    colours = {b: f"C{k}" for k, b in enumerate(backends)}
    precisions = list(dict.fromkeys(r["precision"] for r in rows))
    for name, function in zip(NAMES, (_roofline, _volume, _n_rhs)):
        figure = Figure(figsize=(1.8 + 4.4 * len(precisions), 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(precisions), sharey=True, squeeze=False)[0]
        for axis, precision in zip(axes, precisions):
            function(axis, head, [r for r in rows if r["precision"] == precision], colours)
            axis.set_title(precision, fontsize=10)
            axis.grid(True, which="major", alpha=0.25)
        axes[0].set_ylabel("GFLOP/s")
        handles = {label: h for a in axes for h, label in zip(*a.get_legend_handles_labels())}
        if handles:
            handles = dict(sorted(handles.items()))
            figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8, frameon=False)
        about = head["machine"]
        figure.suptitle(f"{about['processor']}, {head['date'][:10]}", fontsize=9, color="0.3", x=0.01, ha="left")
        written += [_save(figure, folder / f"{name}.{suffix}") for suffix in ("png", "svg")]
    return written


def _save(figure, path: Path) -> Path:
    from matplotlib import rc_context

    from ..io.atomic import replacing

    suffix = path.suffix[1:]
    with replacing(path) as f, rc_context({"svg.hashsalt": "lqcd"}):
        figure.savefig(f, format=suffix, dpi=130, metadata={"Date": None} if suffix == "svg" else {})
    return path


def _cells(rows):
    for r in rows:
        for c in r["cells"]:
            if "gflops" in c:
                yield r, c


def _roofline(axis, head, rows, colours) -> None:
    from ..precision import as_precision

    points = list(_cells(rows))
    intensities = [c["intensity"] for _, c in points] or [1.0]
    x = np.geomspace(min(intensities) / 3, max(max(intensities) * 6, 30), 200)
    for k, (threads, data) in enumerate(sorted(head["limits"].items(), key=lambda item: int(item[0]))):
        limits = Limits.from_plain(data)
        peak = limits.peak(as_precision(rows[0]["precision"])).value
        style = ("-", "--")[k % 2]
        for level in limits.levels:
            axis.plot(x, np.minimum(peak, x * level.value), style, color="0.55", linewidth=0.9, zorder=0)
            if k == 0 and level.value * x[0] < 0.8 * peak:  # a level that never binds here needs no name
                axis.annotate(level.name, (x[0], x[0] * level.value), fontsize=7, color="0.4", va="top", ha="left")
        axis.plot([], [], style, color="0.55", label=f"limits, {threads} thread{'s' if int(threads) > 1 else ''}")
    for _, c in points:
        axis.plot(
            c["intensity"], c["gflops"], _MARKERS[c["column"]], color=colours[c["backend"]], markersize=5,
            label=f"{c['backend']} {c['column']}",
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("counted flops per counted byte")


def _lines(axis, rows, colours, x_of, keep) -> None:
    series: dict[tuple, list] = {}
    for r, c in _cells(rows):
        for column in keep(r, c):
            series.setdefault((c["backend"], column), []).append((x_of(r, c), c["gflops"], *c["gflops_range"]))
    for (backend, column), points in series.items():
        points.sort()
        x, y, low, high = np.array(points).T
        axis.errorbar(
            x, y, yerr=[y - low, high - y], color=colours[backend], linestyle=_LINES[column], marker=_MARKERS[column],
            markersize=4, elinewidth=0.8, label=f"{backend} {column}",
        )  # fmt: skip
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=0)


def _volume(axis, head, rows, colours) -> None:
    largest = max((r["batch"] for r in rows), default=1)
    _lines(
        axis, rows, colours, lambda r, c: np.prod(r["lattice"]), lambda r, c: [c["column"]] * (r["batch"] == largest)
    )
    axis.set_xlabel(f"sites (batched and multicore: {largest} right-hand sides)")


def _n_rhs(axis, head, rows, colours) -> None:
    largest = max((r["lattice"] for r in rows), key=lambda e: (np.prod(e), e), default=None)

    def keep(r, c) -> list[str]:
        if r["lattice"] != largest:
            return []
        if c["column"] == "single":  # a batch of one: where the batched line begins
            return ["batched"] if r["batch"] == 1 else []
        return [c["column"]]

    _lines(axis, rows, colours, lambda r, c: r["batch"], keep)
    axis.set_xlabel(f"right-hand sides ({'x'.join(map(str, largest or []))})")


__all__ = ["NAMES", "draw"]

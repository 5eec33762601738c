"""The picture of ``lqcd spectrum``: correlators on a logarithmic axis, effective masses below. matplotlib, no display."""

from __future__ import annotations

import numpy as np

_MARKERS = "osD^vP*X<>h"


def plot_spectrum(path, results, title: str, note: str = "") -> None:
    """Draw and save.

    Parameters
    ----------
    path
        PNG, PDF or SVG by its suffix; written whole or not at all.
    results
        Records with ``label``, ``mean``, ``error`` (None without an ensemble), ``mass``, ``mass_error``, ``mass_kind``.
    title, note
        Headline, and a remark under it.
    """
    from pathlib import Path

    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from ..io.atomic import replacing

    figure = Figure(figsize=(7.2, 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.15, 1))
    count = len(results)
    for k, r in enumerate(results):
        # A little to the side of each other, so that error bars of several channels can be told apart.
        shift = 0.0 if count == 1 else 0.3 * (k / (count - 1) - 0.5)
        style = dict(color=f"C{k % 10}", marker=_MARKERS[k % len(_MARKERS)], markersize=4.5, linestyle="none",
                     elinewidth=1.2, capsize=2.5)  # fmt: skip
        t = np.arange(len(r.mean)) + shift
        positive = r.mean > 0
        _points(above, t, r.mean, r.error, positive, label=r.label, **style)
        if (~positive & (r.mean != 0)).any():
            _points(above, t, -r.mean, r.error, ~positive, markerfacecolor="white", **style)
        _points(below, t, r.mass, r.mass_error, np.isfinite(r.mass), **style)
    above.set_yscale("log")
    above.set_ylabel(r"$|C(t)|$   [lattice units]" if _any_negative(results) else r"$C(t)$   [lattice units]")
    above.grid(True, which="major", alpha=0.25)
    above.legend(frameon=False, ncols=2 if count > 4 else 1, fontsize=9)
    below.set_ylabel(r"$a\,m_{\rm eff}(t)$")
    below.set_xlabel(r"$t/a$")
    below.grid(True, alpha=0.25)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    kinds = sorted({r.mass_kind for r in results})
    below.text(
        0.99, 0.97, "effective mass: " + ", ".join(kinds), transform=below.transAxes, ha="right", va="top", fontsize=8,
        color="0.4", bbox=dict(facecolor="white", edgecolor="none", pad=1.5),
    )  # fmt: skip
    for axes in (above, below):  # beyond T/2 backward states take over
        axes.axvline(len(results[0].mean) / 2, color="0.75", linewidth=0.8, linestyle="--", zorder=0)
    limits = _mass_limits(results)
    if limits:
        below.set_ylim(*limits)
    below.set_xlim(-0.6, len(results[0].mean) - 0.4)
    figure.suptitle(title, fontsize=11)
    if _any_negative(results):
        note = f"{note}; open symbols: C(t) < 0"
    if note:
        above.set_title(note, fontsize=9, color="0.35")
    suffix = Path(path).suffix.lstrip(".").lower()
    # No date and no random names in the file: the same numbers give the same picture, byte for byte.
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(suffix, {})
    with replacing(path) as f, rc_context({"svg.hashsalt": "lqcd"}):
        figure.savefig(f, format=suffix, dpi=150, metadata=metadata)


def _points(axes, t, value, error, where, label=None, **style) -> None:
    bars = None if error is None else np.where(np.isfinite(error[where]), error[where], 0.0)
    axes.errorbar(t[where], value[where], yerr=bars, label=label, **style)


def _any_negative(results) -> bool:
    return any((r.mean < 0).any() for r in results)


def _mass_limits(results):
    """Limits that show the points that mean something: in the forward half, past the source, and, where errors are known,
    with an error below half the value."""
    values = []
    for r in results:
        t = np.arange(len(r.mass))
        good = np.isfinite(r.mass) & (t >= 1) & (t < len(r.mass) / 2)
        if r.mass_error is not None:
            good &= np.isfinite(r.mass_error) & (r.mass_error < 0.5 * np.abs(r.mass))
        values.append(r.mass[good])
    values = np.concatenate(values) if values else np.array([])
    if len(values) == 0:
        return None
    low, high = float(values.min()), float(values.max())
    margin = 0.12 * (high - low) + 0.08 * max(abs(high), 1e-3)
    return (0.0 if 0 <= low < margin else low - margin), high + margin


__all__ = ["plot_spectrum"]

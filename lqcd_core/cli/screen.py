"""What the command prints: tables and facts on stdout, progress and remarks on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_PIPE_WIDTH = 160  # columns when nobody watches: wide enough that no reason is cut in a log


def console(stderr: bool = False):
    """A rich console; wide and without colours where the stream is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    watched = stream.isatty()
    return Console(
        file=stream, width=None if watched else _PIPE_WIDTH, highlight=False, soft_wrap=False, emoji=False, markup=False
    )


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], styles: Sequence[str] | None = None
) -> None:
    """Print a table. ``styles`` gives one rich style per row, or an empty string."""
    from rich import box
    from rich.table import Table

    out = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in columns:
        out.add_column(name, overflow="fold")
    for k, row in enumerate(rows):
        out.add_row(*(str(c) for c in row), style=(styles[k] or None) if styles else None)
    console().print(out)


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, aligned, one a line; nothing is wrapped, so that lines can be searched."""
    pairs = [(str(a), str(b)) for a, b in pairs]
    width = max((len(a) for a, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}")


def remark(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def as_json(value: Any) -> None:
    """Print plain data as JSON. Complex numbers become [re, im]; NaN and infinities, which JSON lacks, become text."""
    print(json.dumps(plain(value), indent=2))


def plain(value: Any) -> Any:
    """Plain data of what attrs records, tuples, NumPy scalars and complex numbers hold."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [plain(v) for v in items]
    if isinstance(value, (bool, int, str, type(None))):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if hasattr(value, "item"):
        return plain(value.item())
    return str(value)


def bytes_text(count: float) -> str:
    """A number of bytes for people.

    >>> bytes_text(3 * 2**30)
    '3.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def seconds_text(seconds: float) -> str:
    """A time for people.

    >>> seconds_text(3725)
    '1:02:05'
    """
    if not math.isfinite(seconds):
        return "-"
    s = int(seconds + 0.5)
    return f"{s // 3600}:{s % 3600 // 60:02d}:{s % 60:02d}"


__all__ = ["as_json", "bytes_text", "console", "facts", "plain", "remark", "seconds_text", "table"]

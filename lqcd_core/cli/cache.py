"""``lqcd cache``: what backends keep on disk between runs, and how to be rid of it.

A cache is a folder ``$XDG_CACHE_HOME/lqcd/<name>``, or the one that ``LQCD_<NAME>_CACHE`` names. An entry is a folder with a
file ``entry.json`` in it; beside entries only what a killed process left is removed (:mod:`lqcd_core.io.unfinished`).
"""

from __future__ import annotations

import json as json_module
import os
import re
import time
from pathlib import Path

import click

from .program import DONE, LQCDCommand
from .screen import as_json, bytes_text, table

RECORD = "entry.json"


def caches() -> dict[str, Path]:
    """Folders of caches by name, those that exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "lqcd"
    found = {p.name: p for p in sorted(root.iterdir()) if p.is_dir()} if root.is_dir() else {}
    for variable, value in os.environ.items():
        name = re.fullmatch(r"LQCD_(\w+)_CACHE", variable)
        if name and value:
            found[name[1].lower().replace("_", "-")] = Path(value).expanduser()
    return {name: path for name, path in found.items() if path.is_dir()}


def entries(folder: Path) -> list[Path]:
    """Folders of entries anywhere below ``folder``, complete ones only."""
    hidden = [p for p in folder.rglob(RECORD) if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    return sorted(p.parent for p in hidden)


def _describe(name: str, folder: Path, root: Path) -> dict:
    try:
        record = json_module.loads((folder / RECORD).read_text())
        created = float(record.get("created", 0))
    except (OSError, ValueError, TypeError, AttributeError):
        created = 0.0
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    return {"cache": name, "entry": str(folder.relative_to(root)), "bytes": size, "created": created}


@click.command("cache", cls=LQCDCommand)
@click.argument("action", type=click.Choice(["list", "clear"]))
@click.argument("name", required=False)
@click.option("--older", type=float, default=0.0, metavar="DAYS", help="Only entries at least this old.")
@click.option("--json", is_flag=True, help="Machine-readable output.")
def command(action, name, older, json):
    """List or clear what backends keep on disk (compiled code); of all, or of the cache called NAME.

    A program that runs meanwhile is not disturbed: it has read its entry whole, and makes a missing one again.
    """
    from ..io.unfinished import hide_and_remove, remove_unfinished

    known = caches()
    if name is not None and name not in known:
        raise click.UsageError(f"there is no cache {name!r}; there are: {', '.join(known) or 'none'}")
    rows, left, now = [], 0, time.time()
    for key, root in known.items():
        if name in (None, key):
            for folder in entries(root):
                row = _describe(key, folder, root)
                if now - row["created"] >= 86400 * older:
                    rows.append((row, folder))
            if action == "clear":
                holds_locks = sorted({root, *(lock.parent for lock in root.rglob(".*.lock"))})
                left += sum(len(remove_unfinished(folder, 86400 * older)) for folder in holds_locks)
    if action == "clear":
        for _, folder in rows:
            hide_and_remove(folder)
    if json:
        as_json([row for row, _ in rows])
        return DONE
    total = sum(row["bytes"] for row, _ in rows)
    if rows and action == "list":
        table("", ("cache", "entry", "size", "made"), [
            (r["cache"], r["entry"], bytes_text(r["bytes"]), time.strftime("%Y-%m-%d %H:%M", time.localtime(r["created"])))
            for r, _ in rows
        ])  # fmt: skip
    unfinished = f", and {left} left unfinished by killed processes" if left else ""
    print(f"{len(rows)} entries, {bytes_text(total)}{' removed' if action == 'clear' else ''}{unfinished}")
    return DONE


__all__ = ["caches", "command", "entries"]

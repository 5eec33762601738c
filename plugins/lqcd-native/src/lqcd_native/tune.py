"""How a hop is scheduled: measured once per machine, operator size and thread count, and remembered on disk.

A schedule changes the order of the work and how results are stored, never a bit of them. ``LQCD_TUNE=off`` takes the fixed
schedule; small operators always do, since a measurement would cost more than it brings. What was measured is kept in
``tune.json`` in the folder LQCD_NATIVE_CACHE, else in the user's cache folder; a file that cannot be read or written is
treated as absent.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from . import __version__

TUNE_VARIABLE = "LQCD_TUNE"
"""Environment variable: ``off`` for the fixed schedule."""
SMALLEST = 2**17
"""Sites times columns from which a measurement is made."""
PREFETCH = ("none", "streams", "neighbours")
"""Kinds of prefetch by number; see kernels.h."""
BUDGET = 1.0
"""Seconds after which a measurement stops with what it has."""


@attrs.frozen
class Schedule:
    """Order of work and kind of store of one hop."""

    block: int
    """Groups of right-hand sides that share a link while it is in cache, at least 1."""
    tile: int
    """Vector sites of a time slice that a thread takes through the slices in turn, at least 1."""
    stream: bool
    """Store around the cache."""
    prefetch: int
    """Index into :data:`PREFETCH`."""


def cost(layout: Any, n_rhs: int, reals: int, block: int) -> str:
    r"""What a hop on the full lattice costs per site and right-hand side, a sentence.

    .. math:: \text{bytes} = \frac{8\cdot\text{reals}\cdot b_l}{m} + 2 b_s + \frac{41}{w m},\qquad \text{full lanes} = \frac{n}{r\lceil n/r\rceil}

    with b_l bytes a real of a link, b_s bytes a spinor, m right-hand sides that share a link (block times lanes of columns),
    w sites and r columns a vector: each spinor read once and written around the cache. Lanes are over as many sub-lattices as
    the extents allow, since lanes over columns stay empty for n < r and make neighbours as many vectors as there are sites.

    Parameters
    ----------
    layout
        Layout of the spinors.
    n_rhs
        Right-hand sides, at least 1.
    reals
        Reals kept of a link, 18 or 12.
    block
        Groups of columns that share a link, at least 1.
    """
    groups = layout.groups(n_rhs)
    shared = min(n_rhs, block * layout.rhs_lanes)
    link = 8 * reals * layout.link_bytes / 144 / layout.lanes
    spinor = layout.site_bytes / layout.lanes
    moved = link / shared + 2 * spinor + 41 / (layout.site_lanes * shared)
    full = n_rhs / (groups * layout.rhs_lanes)
    return f"1320 flops and {moved:.0f} bytes a site and column, {100 * full:.0f} % of the lanes full"


def fixed(per_slice: int, groups: int, footprint: int, cache: int) -> Schedule:
    """The schedule without a measurement: good on a Zen 4 and a Zen 3 (PERFORMANCE.md).

    Parameters
    ----------
    per_slice
        Vector sites of a time slice of the target.
    groups
        Groups of right-hand sides.
    footprint, cache
        Bytes of links and fields together, and of the last-level cache.
    """
    far = footprint > cache // 4
    prefetch = (2 if groups > 1 else 1) if far else 0
    return Schedule(block=2, tile=256 if groups > 1 else max(64, per_slice), stream=far, prefetch=prefetch)


def candidates(first: Schedule, per_slice: int, groups: int) -> list[Schedule]:
    """The fixed schedule, and those that differ in prefetch, in stores, or in block and tile."""
    found = [first]
    found += [attrs.evolve(first, prefetch=p) for p in range(len(PREFETCH)) if p != first.prefetch]
    found.append(attrs.evolve(first, stream=not first.stream))
    blocks = (1, 2, 3, 4) if groups > 1 else (first.block,)
    for block, tile in itertools.product(blocks, sorted({64, 256, max(64, per_slice)})):
        schedule = attrs.evolve(first, block=block, tile=tile)
        if schedule not in found:
            found.append(schedule)
    return found


def wanted() -> bool:
    """False if LQCD_TUNE says off."""
    return os.environ.get(TUNE_VARIABLE, "").strip().lower() not in ("off", "0", "no")


def choose(key: str, options: list[Schedule], run: Callable[[Schedule], None]) -> Schedule:
    """The fastest of the options: remembered for this key, else measured now.

    Parameters
    ----------
    key
        Everything that the answer may depend on, apart from the machine and the version of this package.
    options
        At least one; the first is kept if the measurement ends before any other was timed.
    run
        Does the work once.
    """
    key = f"{_machine()} {key}"
    known = _read().get(key)
    try:
        remembered = Schedule(**{k: int(known[k]) for k in attrs.fields_dict(Schedule)}) if known else None
    except (KeyError, TypeError, ValueError):
        remembered = None
    if remembered in options:
        return remembered
    best = dict.fromkeys(options, float("inf"))
    run(options[0])  # touches the memory
    start = time.perf_counter()
    for _ in range(3):  # in turn, so that a disturbance does not hit one alone
        for option in options:
            before = time.perf_counter()
            run(option)
            best[option] = min(best[option], time.perf_counter() - before)
            if time.perf_counter() - start > BUDGET:
                break
    fastest = min(options, key=best.__getitem__)
    _write(key, attrs.asdict(fastest))
    return fastest


def _path() -> Path:
    folder = os.environ.get("LQCD_NATIVE_CACHE")
    if folder:
        return Path(folder) / "tune.json"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lqcd-native" / "tune.json"


def _read() -> dict:
    try:
        found = json.loads(_path().read_text())
    except (OSError, ValueError, RuntimeError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(key: str, value: dict) -> None:
    try:
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {**_read(), key: value}
        handle, name = tempfile.mkstemp(dir=path.parent, prefix="tune", suffix=".partial")
        with os.fdopen(handle, "w") as f:
            json.dump(known, f, indent=1, sort_keys=True)
        os.replace(name, path)
    except (OSError, RuntimeError):
        pass  # a cache that cannot be kept is measured again next time


def _machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            lines = f.read().splitlines()
        fields = [
            line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "model\t", "cpu family"))
        ]
        model = "-".join(dict.fromkeys(fields)) or model
    except OSError:
        pass
    return f"{model} {__version__}"

r"""What the machine can do, and the roofline that follows from it.

.. math:: F_{\max} = \min\left(F_{\rm peak},\; I\,B_{\rm level}\right),\qquad I = \frac{\text{flops}}{\text{bytes}}

The peak is the best that is seen of dense matrix products by NumPy's BLAS and of a multiply-add loop of a backend that has one.
The bandwidth is that of c = a + b in double by NumPy (two arrays read, one written, as in the STREAM triad; a written line is not counted
as read first), or of a backend's own y += a x where it is better. Each is measured with the fields in one level of the caches, and in
memory. Who gave a number is written beside it. A limit that was measured while others used the machine is too low.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import numpy as np

from ..machine import usable_processors, versions
from ..precision import Precision

PACKAGES = ("lqcd-core", "lqcd-native", "numpy", "torch")
"""Versions that a record of the machine names."""


@attrs.frozen
class Cache:
    """A level of the caches."""

    level: int
    """1, 2, 3."""
    bytes: int
    """Size of one instance."""
    shared: bool
    """True if several processors share it."""


@attrs.frozen
class Limit:
    """One measured limit."""

    name: str
    """What: ``single``, ``double`` (GFLOP/s), or ``L1``, ``L2``, ``L3``, ``memory`` (GB/s)."""
    value: float
    """GFLOP/s or GB/s, of all threads together."""
    by: str
    """What measured it."""
    holds: float = float("inf")
    """Bytes that the level holds for all threads together; infinite for memory and for peaks."""


@attrs.frozen
class Limits:
    """The limits of a number of threads."""

    threads: int
    """Threads."""
    peaks: tuple[Limit, ...]
    """Multiply-add peaks by arithmetic."""
    levels: tuple[Limit, ...]
    """Bandwidths, the nearest level first, memory last."""

    def level(self, working_set: float) -> Limit:
        """Where a working set of so many bytes lives."""
        return next(level for level in self.levels if working_set <= level.holds)

    def peak(self, precision: Precision) -> Limit:
        """The peak of a precision's arithmetic."""
        name = "double" if precision.arithmetic == "float64" else "single"
        return next(p for p in self.peaks if p.name == name)

    def roof(self, flops: float, moved: float, precision: Precision) -> tuple[float, str]:
        """(GFLOP/s that are possible, what binds) for an application that moves ``moved`` bytes and touches each once."""
        level, peak = self.level(moved), self.peak(precision)
        by_bytes = flops / moved * level.value
        return (by_bytes, level.name) if by_bytes < peak.value else (peak.value, "multiply-adds")

    def at_least(self, fewer: Limits) -> Limits:
        """These limits, none below that of fewer threads: where more gave less, others had the machine."""

        def better(mine: Limit, theirs: Limit) -> Limit:
            if mine.value >= theirs.value:
                return mine
            return attrs.evolve(mine, value=theirs.value, by=f"{theirs.by}, {fewer.threads} thread(s)")

        pairs = lambda a, b: tuple(better(x, y) for x, y in zip(a, b))  # noqa: E731
        return Limits(self.threads, pairs(self.peaks, fewer.peaks), pairs(self.levels, fewer.levels))

    @classmethod
    def from_plain(cls, data: Mapping) -> Limits:
        """The record of what :func:`attrs.asdict` gave, infinities as text."""
        read = lambda items: tuple(Limit(**{**i, "holds": float(i["holds"])}) for i in items)  # noqa: E731
        return cls(int(data["threads"]), read(data["peaks"]), read(data["levels"]))


# -- description -------------------------------------------------------------------------------------------------------


def caches() -> tuple[Cache, ...]:
    """Data caches of the first processor, the nearest first; empty if the system does not say."""
    found = []
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            read = lambda name, e=entry: (e / name).read_text().strip()  # noqa: E731
            if read("type") == "Instruction":
                continue
            size = re.fullmatch(r"(\d+)([KMG]?)", read("size"))
            scale = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[size[2]]
            found.append(
                Cache(int(read("level")), int(size[1]) * scale, bool(re.search("[,-]", read("shared_cpu_list"))))
            )
        except (OSError, TypeError, ValueError):
            continue
    if not found and sys.platform == "darwin":
        found = _caches_of_darwin()
    return tuple(sorted(found, key=lambda c: c.level))


def _caches_of_darwin() -> list[Cache]:
    import subprocess

    found = []
    for level, name in ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize"), (3, "hw.l3cachesize")):
        try:
            size = int(subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=10).stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        if size:
            found.append(Cache(level, size, level > 1))
    return found


def describe() -> dict[str, str]:
    """The machine and the software, as short facts by name."""
    from ..cli.memory import total_memory
    from ..cli.screen import bytes_text

    total = total_memory()
    levels = ", ".join(f"L{c.level} {bytes_text(c.bytes)}{' shared' if c.shared else ''}" for c in caches())
    return {
        "processor": _processor(),
        "processors": f"{usable_processors()} usable of {os.cpu_count()}",
        "caches": levels or "unknown",
        "memory": "unknown" if total is None else bytes_text(total),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
    }


def moment() -> dict[str, str]:
    """What may differ between two runs on one machine: the date, and what else it was doing."""
    load = " ".join(f"{x:.2f}" for x in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "load": load}


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(
        re.findall(r"^(model name|vendor_id|cpu family|model|CPU implementer|CPU part)\s*: (.*)$", text, re.M)
    )
    name = fields.get("model name") or " ".join(fields.values()) or platform.machine()
    known = sorted(set(re.findall(r"\b(?:a[vm]x(?:2|512f|512_bf16|_tile)|asimd|sve)\b", text)))
    family = f" (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else ""
    return f"{name}{family}{', ' if known else ''}{' '.join(known)}"


# -- measurement -------------------------------------------------------------------------------------------------------


def best_seconds(function, budget: float, least: int = 3) -> float:
    """Seconds of the fastest call: others only ever add time."""
    best, end, count = float("inf"), time.perf_counter() + budget, 0
    while count < least or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        best, count = min(best, time.perf_counter() - start), count + 1
    return best


def matrix_product_peak(dtype, threads: int, budget: float) -> float:
    """GFLOP/s of C = A B by NumPy's BLAS, which takes its threads from the environment of the process."""
    n = 768
    a = np.random.default_rng(0).standard_normal((n, n)).astype(dtype)
    b, c = a.copy(), a.copy()
    return 2 * n**3 / best_seconds(lambda: np.matmul(a, b, out=c), budget) / 1e9


def sum_bandwidth(working_set: int, threads: int, budget: float) -> float:
    """GB/s of c = a + b in double: ``working_set`` bytes of the three arrays of all threads together.

    Small arrays are walked over many times in one call, by a stride of zero, so that the call itself costs nothing.
    """
    n = max(working_set // (24 * threads) // 8 * 8, 64)
    again = max(1, 2_000_000 // n)
    sets = []
    for _ in range(threads):
        block = np.zeros(3 * n + 24)  # one block, so that the arrays do not fall on the same sets of a cache
        sets.append(tuple(
            np.lib.stride_tricks.as_strided(block[k * (n + 8) : k * (n + 8) + n], (again, n), (0, 8)) for k in range(3)
        ))  # fmt: skip

    def walk(arrays):
        np.add(arrays[0], arrays[1], out=arrays[2])

    if threads == 1:
        seconds = best_seconds(lambda: walk(sets[0]), budget)
    else:
        seconds = _together(walk, sets, budget)
    return 24.0 * n * again * threads / seconds / 1e9


def _together(walk, sets, budget: float) -> float:
    """Seconds of the fastest round in which every thread walks its own arrays once; NumPy lets go of the lock."""
    ready, done = threading.Barrier(len(sets) + 1), threading.Barrier(len(sets) + 1)
    go_on = [True]

    def worker(arrays):
        while True:
            ready.wait()
            if not go_on[0]:
                return
            walk(arrays)
            done.wait()

    workers = [threading.Thread(target=worker, args=(s,), daemon=True) for s in sets]
    for w in workers:
        w.start()

    def round_trip():
        ready.wait()
        done.wait()

    seconds = best_seconds(round_trip, budget)
    go_on[0] = False
    ready.wait()
    for w in workers:
        w.join()
    return seconds


def working_sets(threads: int, known: Iterable[Cache] | None = None) -> list[tuple[str, float, int]]:
    """(level, bytes it holds for all threads, bytes to measure it with) of the caches and of memory.

    A cache of its own is there once per thread. It is measured half full, memory with four times the last cache, but not
    with less than 64 MiB.
    """
    found = []
    for c in caches() if known is None else known:
        holds = c.bytes * (1 if c.shared else threads)
        if not found or holds > found[-1][1]:
            found.append((f"L{c.level}", float(holds), holds // 2))
    last = found[-1][1] if found else 2**24
    return [*found, ("memory", float("inf"), int(min(max(4 * last, 2**26), 2**29)))]


def measure(threads: int = 1, budget: float = 0.3, backends: Iterable[str] = ()) -> Limits:
    """Measure the limits of this machine; ``budget`` is the seconds of each of some six measurements.

    Parameters
    ----------
    threads
        Threads; the BLAS takes them from the environment, so a process that was started for them should ask.
    backends
        Names of backends that are asked too, if they have the optional method ``measure_limits(threads)``. It returns numbers by name:
        ``"single"`` and ``"double"`` in GFLOP/s, and GB/s by the bytes of a working set (a number; infinite for memory).
    """
    numpy = f"NumPy {np.__version__}"
    peaks = {
        name: Limit(name, matrix_product_peak(dtype, threads, budget), f"matrix product by {numpy}")
        for name, dtype in (("single", np.float32), ("double", np.float64))
    }
    levels = {
        name: Limit(name, sum_bandwidth(size, threads, budget), f"c = a + b by {numpy}", holds)
        for name, holds, size in working_sets(threads)
    }
    for backend in backends:
        for key, value in _asked(backend, threads).items():
            if isinstance(key, str):
                if key in peaks and value > peaks[key].value:
                    peaks[key] = Limit(key, value, f"multiply-adds by {backend}")
                continue
            name = next(n for n, level in levels.items() if key <= level.holds)
            if value > levels[name].value:
                levels[name] = attrs.evolve(levels[name], value=value, by=f"y += a x by {backend}")
    return Limits(threads, tuple(peaks.values()), _nearer_is_faster(levels.values()))


def _nearer_is_faster(levels: Iterable[Limit]) -> tuple[Limit, ...]:
    """A level whose measurement was beaten by a farther one gets that one's number: its own call cost too much."""
    kept: list[Limit] = []
    for level in reversed(list(levels)):
        if kept and kept[0].value > level.value:
            level = attrs.evolve(level, value=kept[0].value, by=f"{kept[0].by}, in {kept[0].name}")
        kept.insert(0, level)
    return tuple(kept)


def _asked(backend: str, threads: int) -> Mapping:
    from ..errors import LQCDError
    from ..registry import REGISTRY

    try:
        found = getattr(REGISTRY.load(backend, {}).instance, "measure_limits", None)
    except LQCDError:  # it cannot start here, so it has nothing to say
        return {}
    return found(threads) if callable(found) else {}


__all__ = [
    "Cache", "Limit", "Limits", "best_seconds", "caches", "describe", "matrix_product_peak", "measure", "moment",
    "sum_bandwidth", "working_sets",
]  # fmt: skip

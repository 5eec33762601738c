"""What the benchmarks share: literal parameters, fixed fields, and skips that say why."""

from __future__ import annotations

import os
from timeit import default_timer

import lqcd_core as lqcd
from lqcd_core.bench import machine
from lqcd_core.bench.case import Case, bound, noise, prepare
from lqcd_core.errors import LQCDError
from lqcd_core.machine import usable_processors
from lqcd_core.precision import as_precision

BACKENDS = ["numpy", "torch", "native"]
"""Literal, whatever is installed: a missing backend skips with its reason, and results of machines stay comparable."""
PRECISIONS = ["single", "double"]
VOLUMES = ["8x8x8x8", "16x16x16x16"]
N_RHS = [1, 12]
THREADS = ["one", "all"]
"""One thread, or every processor that the process may use."""


def extents(volume: str) -> tuple[int, ...]:
    """Extents of a text TxZxYxX."""
    return tuple(int(n) for n in volume.split("x"))


def geometry(volume: str) -> lqcd.LatticeGeometry:
    """Lattice of a text TxZxYxX."""
    return lqcd.LatticeGeometry.from_shape(extents(volume))


def skip(reason: str):
    """asv's way to say: not here. The reason is in the log of `asv run --show-stderr`."""
    return NotImplementedError(reason)


def threads_of(word: str) -> int:
    """The number that a word of THREADS stands for."""
    return 1 if word == "one" else usable_processors()


def choice_of(backend: str, word: str):
    """``backend=`` with its number of threads; skips where that cannot be set, or would measure the same twice."""
    if word == "all" and usable_processors() == 1:
        raise skip("one processor: the same as one thread")
    try:
        settable = "threads" in lqcd.backends()[backend].options
    except KeyError:
        raise skip(f"no backend {backend!r} is registered") from None
    if word == "all" and not settable:
        raise skip(f"{backend} has no option 'threads'")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # for libraries that load from here on
        os.environ[name] = str(threads_of(word))
    return (backend, {"threads": threads_of(word)}) if settable else backend


def prepared(operator: str, backend: str, precision: str, volume: str, n_rhs: int, word: str):
    """(the case, bound and warmed up); skips with the reason if the backend cannot serve it."""
    choice_of(backend, word)
    case = Case(
        operator=operator, lattice=extents(volume), precision=precision, n_rhs=n_rhs, backend=backend, threads=threads_of(word)
    )  # fmt: skip
    try:
        return case, prepare(case)
    except LQCDError as error:
        raise skip(str(error)) from None


def operator_of(
    backend: str, precision: str, volume: str = "8x8x8x8", n_rhs: int = 1, name: str = "wilson", word: str = "one"
):
    """(bound operator, a handle of noise in its space); skips with the reason if the backend cannot serve."""
    try:
        _, x, _, made = bound(name, extents(volume), precision, n_rhs, choice_of(backend, word))
    except LQCDError as error:
        raise skip(str(error)) from None
    return made, x


def median_seconds(function, rounds: int = 7) -> float:
    """Seconds of one call: the median of rounds, after one that does not count."""
    function()
    times = []
    for _ in range(rounds):
        start = default_timer()
        function()
        times.append(default_timer() - start)
    return sorted(times)[rounds // 2]


def limits_of_this_machine() -> dict:
    """Limits by number of threads, as quick measurements give them; for setup_cache."""
    counts = sorted({1, usable_processors()})
    one = machine.measure(1, budget=0.15)
    return {t: one if t == 1 else machine.measure(t, budget=0.15).at_least(one) for t in counts}


__all__ = [
    "BACKENDS", "N_RHS", "PRECISIONS", "THREADS", "VOLUMES", "as_precision", "choice_of", "extents", "geometry", "limits_of_this_machine",
    "median_seconds", "noise", "operator_of", "prepared", "skip", "threads_of",
]  # fmt: skip

"""Rows of a sweep: every cell of a row measured in interleaved rounds, and kept as one JSON line.

A row is a lattice, a precision and a batch B. Each backend has three cells: *single* (one right-hand side, one thread), *batched* (B,
one thread) and *multicore* (B, all threads). A round times every cell once, in turn, so that a disturbance hits all alike; the
row gives the median over rounds, with best and worst, and ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from ..errors import FileFormatError, ParameterError
from ..io.lines import LineFile, read_lines
from ..precision import as_precision
from ..registry import REGISTRY
from . import machine
from .case import Case
from .machine import Limits
from .worker import Worker, WorkerLost

COLUMNS = ("single", "batched", "multicore")
"""Cells of a backend."""
FORMAT = "lqcd-bench 1"
"""First field of the first line of a file."""


@attrs.frozen(kw_only=True)
class Plan:
    """What a sweep measures."""

    operator: str
    """A name of the table of work."""
    lattices: tuple[tuple[int, int, int, int], ...]
    """Extents T, Z, Y, X of each."""
    precisions: tuple[str, ...]
    """Names."""
    batches: tuple[int, ...]
    """Right-hand sides of the batched cells, each at least 1."""
    backends: tuple[str, ...]
    """Names; speed-ups are over the single cell of the first that has one."""
    threads: int
    """Of the multicore cells, at least 1."""
    rounds: int = 7
    """At least 1."""
    seconds: float = 0.1
    """Of one timing."""

    def rows(self) -> Iterator[tuple[tuple[int, int, int, int], str, int]]:
        """(lattice, precision, batch) in the order of measurement."""
        for lattice in self.lattices:
            for precision in self.precisions:
                for batch in self.batches:
                    yield lattice, precision, batch


def key_of(row: Mapping[str, Any]) -> tuple:
    """What makes two rows of two files the same row."""
    return row["operator"], tuple(row["lattice"]), row["precision"], row["batch"]


class Sweep:
    """Measures rows; a context manager, since it holds processes.

    Parameters
    ----------
    plan
        What to measure.
    limits
        Measured limits by number of threads.
    """

    def __init__(self, plan: Plan, limits: Mapping[int, Limits]):
        self.plan, self.limits = plan, limits
        self._workers: dict[tuple[str, str], Worker] = {}

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *exc) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _worker(self, backend: str, column: str, threads: int) -> Worker:
        worker = self._workers.get((backend, column))
        if worker is None or not worker.alive:
            worker = self._workers[backend, column] = Worker(threads)
        return worker

    def cases(self, lattice, precision: str, batch: int) -> dict[tuple[str, str], Case | str]:
        """Case of every cell of a row, or the reason why there is none."""
        out: dict[tuple[str, str], Case | str] = {}
        for backend in self.plan.backends:
            settable = "threads" in REGISTRY.record(backend).options
            for column in COLUMNS:
                n, threads = (1 if column == "single" else batch), (self.plan.threads if column == "multicore" else 1)
                if column == "batched" and batch == 1:
                    out[backend, column] = "as single"
                elif column == "multicore" and threads == 1:
                    out[backend, column] = "one thread asked for"
                elif column == "multicore" and not settable:
                    out[backend, column] = "no option 'threads'"
                else:
                    out[backend, column] = Case(
                        operator=self.plan.operator,
                        lattice=lattice,
                        precision=precision,
                        n_rhs=n,
                        backend=backend,
                        threads=threads,
                    )
        return out

    def row(self, lattice, precision: str, batch: int) -> dict[str, Any]:
        """Measure one row: plain data."""
        times: dict[tuple[str, str], list[float]] = {}
        cells: dict[tuple[str, str], dict] = {}
        cases = self.cases(lattice, precision, batch)
        for key, case in cases.items():
            if isinstance(case, str):
                cells[key] = {"why": case}
                continue
            try:
                worker = self._worker(*key, case.threads)
                facts = worker.ask(do="prepare", case=attrs.asdict(case))["facts"]
                times[key], cells[key] = [], {"facts": facts}
            except WorkerLost as error:
                cells[key] = {"why": str(error)}
        for _ in range(self.plan.rounds):
            for key in list(times):
                try:
                    times[key].append(self._workers[key].ask(do="run", seconds=self.plan.seconds)["seconds"])
                except WorkerLost as error:
                    del times[key]
                    cells[key] = {"why": str(error)}
        for key in times:
            with contextlib.suppress(WorkerLost):
                self._workers[key].ask(do="drop")
            cells[key].update(self._rates(cases[key], times[key]))
        row = {
            "kind": "row", "operator": self.plan.operator, "lattice": list(lattice), "precision": precision, "batch": batch,
            **machine.moment(),
            "cells": [{"backend": b, "column": c, **cells[b, c]} for b, c in cells],
        }  # fmt: skip
        return row | self._speed_up(cases, times)

    def _rates(self, case: Case, times: Sequence[float]) -> dict[str, Any]:
        middle, flops = statistics.median(times), case.flops / 1e9
        roof, binds = self.limits[case.threads].roof(case.flops, case.bytes, as_precision(case.precision))
        return {
            "n_rhs": case.n_rhs, "threads": case.threads, "seconds": list(times), "gflops": flops / middle,
            "gflops_range": [flops / max(times), flops / min(times)], "gbytes": case.bytes / middle / 1e9,
            "working_set": case.bytes, "intensity": case.flops / case.bytes, "roof": roof, "binds": binds,
            "fraction": flops / middle / roof,
        }  # fmt: skip

    def _speed_up(self, cases, times) -> dict[str, Any]:
        """The best cell against the single cell of the first backend that has one, per site and right-hand side."""
        first = next((b for b in self.plan.backends if (b, "single") in times), None)
        if first is None:
            return {}
        base, found = times[first, "single"], {}
        for key, mine in times.items():
            ratios = [b / (t / cases[key].n_rhs) for b, t in zip(base, mine)]
            found[key] = statistics.median(ratios), min(ratios), max(ratios)
        best = max(found, key=lambda k: found[k][0])
        return {
            "speed_up": found[best][0],
            "speed_up_range": list(found[best][1:]),
            "fastest": list(best),
            "over": [first, "single"],
        }


# -- limits ------------------------------------------------------------------------------------------------------------


def measure_limits(threads: int, budget: float, backends: Sequence[str]) -> Limits:
    """The limits of a number of threads, measured in a process that was started for them.

    Raises
    ------
    WorkerLost
        If that process fails.
    """
    worker = Worker(threads)
    try:
        return Limits.from_plain(
            worker.ask(do="limits", threads=threads, budget=budget, backends=list(backends))["limits"]
        )
    finally:
        worker.close()


# -- files -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def record(path, head: Mapping[str, Any] | None) -> Iterator[LineFile | None]:
    """The file of a sweep: a line on the machine, then a line per row, each on the disk before the next is measured.

    Parameters
    ----------
    path
        The file; without one there is no record, and None is given.
    head
        What the first line of a new file says; None goes on in an old one.
    """
    if not path:
        yield None
        return
    with LineFile(path, new=head is not None) as lines:
        if head is not None:
            lines.append({"format": FORMAT, "kind": "machine", **head})
        yield lines


def read(path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the line on the machine, the rows) of a file; a last line without its end is left out.

    Raises
    ------
    FileError, FileFormatError
        If it cannot be read, or is no record of a sweep.
    """
    lines = read_lines(path)
    what = None
    if not lines:
        what = "it holds no whole line"
    elif lines[0].get("format") != FORMAT:
        what = f"it has no {FORMAT!r} on its first line"
    elif not all("kind" in line for line in lines):
        what = "a line does not say what kind it is"
    if what:
        raise FileFormatError(f"{str(path)!r} is no record of 'lqcd bench': {what}.")
    return lines[0], [line for line in lines[1:] if line["kind"] == "row"]


def begun(path) -> bool:
    """Whether a file holds the line on the machine: one that a kill tore holds nothing worth keeping.

    >>> begun("there is no such file")
    False
    """
    try:
        with open(path, "rb") as file:
            return b"\n" in file.read()
    except FileNotFoundError:
        return False


def check_same(head: Mapping[str, Any], wanted: Mapping[str, Any], path) -> None:
    """Refuse to go on in the file of another machine, or of other settings.

    Raises
    ------
    ParameterError
        Naming what differs.
    """
    there, here = head.get("machine", {}), wanted["machine"]
    differ = [k for k in here if there.get(k) != here[k]]
    settings = [k for k in wanted["settings"] if head.get("settings", {}).get(k) != wanted["settings"][k]]
    if differ or settings:
        before = head.get("settings", {})
        what = ", ".join(
            f"{k} ({old.get(k)!r} there, {new[k]!r} here)"
            for old, new, names in ((there, here, differ), (before, wanted["settings"], settings)) for k in names
        )  # fmt: skip
        raise ParameterError(
            f"{str(path)!r} was measured otherwise: {what}. Name another --output, or leave out --resume."
        )


__all__ = ["COLUMNS", "FORMAT", "Plan", "Sweep", "begun", "check_same", "key_of", "measure_limits", "read", "record"]

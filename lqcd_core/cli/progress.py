"""Progress on stderr: a bar where somebody watches, now and then a plain line where not (logs, batch jobs)."""

from __future__ import annotations

import math
import sys
import time

from .screen import remark, seconds_text

_PLAIN_EVERY = 10.0  # seconds between plain lines: a log of an hour stays readable


class Progress:
    """How much of a known amount of work is done, with a note and the time that is left.

    Parameters
    ----------
    title
        What is being done, a word or two.
    total
        Amount of work, in any unit; positive.
    done
        Work found done at the start: it does not count for the estimate of the time left.
    quiet
        Print nothing.
    """

    def __init__(self, title: str, total: float, done: float = 0.0, quiet: bool = False):
        self.title, self.total, self.first = title, float(total), float(done)
        self.quiet, self.watched = quiet, sys.stderr.isatty()
        self._began = self._spoke = time.monotonic()
        self._bar = self._task = None

    def __enter__(self) -> Progress:
        if not self.quiet and self.watched:
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar
            from rich.table import Column

            from .screen import console

            self._bar = Bar(
                TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=len(self.title))),
                BarColumn(bar_width=16),
                TextColumn("{task.percentage:>3.0f} %", table_column=Column(no_wrap=True, min_width=5)),
                TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
                console=console(stderr=True), refresh_per_second=5, expand=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self.title, total=self.total, completed=self.first, note="")
            self._bar.start()
        return self

    def __exit__(self, *exc) -> None:
        if self._bar is not None:
            self._bar.stop()

    def seconds_left(self, done: float) -> float:
        """Time left at the mean speed so far; infinite while nothing is done."""
        moved = done - self.first
        if moved <= 0:
            return math.inf
        return (time.monotonic() - self._began) * (self.total - done) / moved

    def update(self, done: float, note: str = "", always: bool = False) -> None:
        """Say how much is done. A plain line comes at most every ten seconds unless ``always``."""
        if self.quiet:
            return
        done = min(max(done, 0.0), self.total)
        elapsed = seconds_text(time.monotonic() - self._began)
        times = f"{elapsed}, left {seconds_text(self.seconds_left(done))}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=f"{times}  {note}")
            return
        now = time.monotonic()
        if always or now - self._spoke >= _PLAIN_EVERY:
            self._spoke = now
            remark(f"{self.title} {100 * done / self.total:5.1f} %  {times}  {note}".rstrip())

    def say(self, text: str) -> None:
        """A line that stays, above the bar if there is one."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text)
        else:
            remark(text)


def residual_fraction(residual: float, first: float, target: float) -> float:
    r"""How far a solve has come, by the logarithm of its residual: :math:`\ln(r_0/r)/\ln(r_0/r_{\rm target})` in [0, 1].

    Krylov solvers reduce the residual by a roughly constant factor per iteration, so this grows evenly with time.

    >>> residual_fraction(1e-5, 1.0, 1e-10)
    0.5
    """
    if not (residual > 0 and first > target > 0 and math.isfinite(residual)):
        return 0.0 if not residual <= target else 1.0
    return min(max(math.log(first / residual) / math.log(first / target), 0.0), 1.0)


__all__ = ["Progress", "residual_fraction"]

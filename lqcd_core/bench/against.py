r"""A foreign program measured in turn with ours.

In every round our case runs, then the foreign command, as a process of its own. The foreign rate of a round is

.. math:: F = \frac{\text{declared work (GFLOP)}}{\text{wall time of the command}}\quad\text{or}\quad
          F = \text{the last number in its output that a pattern finds}

The first counts its start-up against it, so it belongs to long runs; the second trusts its own clock, and its own count of flops.
The ratio is ours over foreign, per round; its median and range are what is reported.
"""

from __future__ import annotations

import re
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable

import attrs

from ..errors import LQCDError, ParameterError
from .case import Case
from .worker import Worker

UNITS = {"GFLOP/s": 1.0, "MFLOP/s": 1e-3, "TFLOP/s": 1e3}
"""Units that a foreign program's own rate may have, in GFLOP/s."""


class ForeignError(LQCDError, RuntimeError):
    """The foreign program failed, or printed no rate."""


@attrs.frozen(kw_only=True)
class Foreign:
    """A foreign program and how its rate is found: exactly one of ``work`` and ``pattern``."""

    command: str
    """Words as a shell would split them; no shell runs."""
    work: float | None = None
    """GFLOP that one run of the command does, positive."""
    pattern: str | None = None
    """Regular expression with one group around the number."""
    unit: str = "GFLOP/s"
    """Of that number."""
    timeout: float = 3600.0
    """Seconds that one run may take."""

    def __attrs_post_init__(self):
        if (self.work is None) == (self.pattern is None):
            raise ParameterError("a foreign rate comes from --work or from --rate-pattern: give exactly one of them.")
        if self.work is not None and not self.work > 0:
            raise ParameterError(f"--work must be a positive number of GFLOP, got {self.work:g}.")
        if not self.words:
            raise ParameterError("the foreign command is empty.")
        if self.pattern is not None and self._compiled.groups != 1:
            raise ParameterError(f"--rate-pattern needs one group (...) around the number, got {self.pattern!r}.")

    @property
    def words(self) -> list[str]:
        """The command, split."""
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise ParameterError(f"the foreign command {self.command!r} cannot be split: {error}.") from None

    @property
    def _compiled(self) -> re.Pattern:
        try:
            return re.compile(self.pattern)
        except re.error as error:
            raise ParameterError(f"--rate-pattern {self.pattern!r} is no regular expression: {error}.") from None

    def run(self) -> float:
        """Run it once; its rate in GFLOP/s.

        Raises
        ------
        ForeignError
            If it cannot start, fails, takes too long, or prints nothing that the pattern finds.
        """
        start = time.perf_counter()
        try:
            done = subprocess.run(
                self.words,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=self.timeout,
            )
        except OSError as error:
            raise ForeignError(f"{self.words[0]!r} cannot be started: {error.strerror}.") from None
        except subprocess.TimeoutExpired:
            raise ForeignError(f"{self.command!r} took more than {self.timeout:g} s.") from None
        seconds = time.perf_counter() - start
        text = done.stdout.decode(errors="replace")
        if done.returncode:
            last = " | ".join(text.strip().splitlines()[-3:]) or "nothing"
            raise ForeignError(f"{self.command!r} ended with code {done.returncode}; its last words: {last}")
        return self.work / seconds if self.work is not None else self.rate_in(text)

    def rate_in(self, text: str) -> float:
        """The last rate that the pattern finds in a text, in GFLOP/s.

        >>> Foreign(command="x", pattern=r"rate = (\\S+)", unit="MFLOP/s").rate_in("rate = 10\\nrate = 2500")
        2.5
        """
        found = self._compiled.findall(text)
        try:
            rate = float(found[-1]) * UNITS[self.unit]
        except (IndexError, ValueError):
            what = f"found {found[-1]!r}, which is no number" if found else "found nothing"
            raise ForeignError(f"--rate-pattern {self.pattern!r} {what} in the output of {self.command!r}.") from None
        if not 0 < rate < float("inf"):
            raise ForeignError(f"{self.command!r} gave the rate {rate:g} GFLOP/s; a rate is positive.")
        return rate


@attrs.frozen(kw_only=True)
class Paired:
    """What paired rounds gave."""

    case: Case
    """Ours."""
    foreign: Foreign
    """Theirs."""
    ours: tuple[float, ...]
    """GFLOP/s of each round."""
    theirs: tuple[float, ...]
    """GFLOP/s of each round."""

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours over theirs, per round."""
        return tuple(a / b for a, b in zip(self.ours, self.theirs))

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)


def pair(
    case: Case, foreign: Foreign, rounds: int, seconds: float, heard: Callable[[int, float, float], None]
) -> Paired:
    """Measure both in turn, after one run of each that does not count.

    Raises
    ------
    WorkerLost, ForeignError
        If one of the two fails.
    """
    worker = Worker(case.threads)
    ours, theirs = [], []
    try:
        worker.ask(do="prepare", case=attrs.asdict(case))
        foreign.run()
        for k in range(rounds):
            # Who goes first alternates: whatever the first leaves behind (clock, caches) hits both alike.
            for side in ("ours", "theirs") if k % 2 == 0 else ("theirs", "ours"):
                if side == "ours":
                    ours.append(case.flops / 1e9 / worker.ask(do="run", seconds=seconds)["seconds"])
                else:
                    theirs.append(foreign.run())
            heard(k, ours[-1], theirs[-1])
    finally:
        worker.close()
    return Paired(case=case, foreign=foreign, ours=tuple(ours), theirs=tuple(theirs))


__all__ = ["UNITS", "Foreign", "ForeignError", "Paired", "pair"]

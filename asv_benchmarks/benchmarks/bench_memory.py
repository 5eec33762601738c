"""Peak memory of a twelve-column propagator: `memory.py`, a process of its own for each."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .common import BACKENDS, PRECISIONS, choice_of, skip

PROGRAM = Path(__file__).parents[1] / "memory.py"


class Propagator:
    """Above what a small solve left; Wilson, even-odd."""

    params = [BACKENDS, PRECISIONS, ["cg", "bicgstab"], ["4x4x4x4", "16x8x8x8"]]
    param_names = ["backend", "precision", "solver", "volume"]
    timeout = 300

    def setup(self, backend, precision, solver, volume):
        choice_of(backend, "one")

    def track_peak(self, backend, precision, solver, volume):
        return self._measured(backend, precision, solver, volume)[0]

    def track_ratio_to_fields(self, backend, precision, solver, volume):
        return self._measured(backend, precision, solver, volume)[1]

    def _measured(self, backend, precision, solver, volume) -> tuple[float, float]:
        words = [sys.executable, str(PROGRAM), backend, precision, solver, volume]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode and "BackendUnavailable" in done.stderr:
            raise skip(done.stderr.strip().splitlines()[-1])
        if done.returncode:
            raise RuntimeError(done.stderr)
        found = re.search(r"peak (\d+) MiB.*?ratio ([\d.]+)", done.stdout)
        return float(found[1]) * 2**20, float(found[2])

    track_peak.unit = "bytes"
    track_ratio_to_fields.unit = "of links + 12 columns x vectors"

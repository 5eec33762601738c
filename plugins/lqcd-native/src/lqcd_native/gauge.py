"""Formulas of links alone by compiled kernels (SupportsGauge): host arrays in, new host arrays out, double arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lqcd_core.errors import NonUnitaryLinksError
from lqcd_core.gamma import GAMMA
from lqcd_core.gauge.links import PLANES, SPATIAL_PLANES

from . import _native


class GaugeKernels:
    """Kernels for Nc = 3.

    Parameters
    ----------
    isa
        Instruction set.
    threads
        Threads, at least 1; they change no bit of a result.
    """

    def __init__(self, isa: str, threads: int):
        self._isa, self._threads = isa, threads

    def find(self, kind: str, nc: int) -> Callable | None:
        """See :meth:`lqcd_core.backend.SupportsGauge.gauge_kernel`."""
        return getattr(self, kind, None) if nc == 3 and not kind.startswith("_") and kind != "find" else None

    @property
    def _native(self):
        # Made anew: a backend lives until the interpreter ends, and a compiled object that does is reported as a leak.
        return _native.Gauge(self._isa, self._threads)

    def plaquettes(self, links) -> np.ndarray:
        return self._native.plaquettes(_contiguous(links))

    def staple(self, links, mu: int) -> np.ndarray:
        return self._native.staple(_contiguous(links), int(mu))

    def clover(self, links, c_r: float, c_t: float) -> np.ndarray:
        spin = [-(c_r if name in SPATIAL_PLANES else c_t) * (GAMMA[m] @ GAMMA[n]) for name, (m, n) in PLANES.items()]
        blocks = np.array([[s[:2, :2], s[2:, 2:]] for s in spin], np.complex128)
        return self._native.clover(_contiguous(links), blocks)

    def inverse(self, blocks) -> np.ndarray:
        found = self._native.invert(_contiguous(blocks, np.complex128))
        if found is None:
            raise np.linalg.LinAlgError("Singular matrix")
        return found

    def exponential(self, algebra) -> np.ndarray:
        return self._native.exponential(_contiguous(algebra, np.complex128))

    def unitarize(self, matrices) -> np.ndarray:
        found, failure = self._native.project(_contiguous(matrices, np.complex128))
        if failure:
            raise NonUnitaryLinksError(
                f"cannot unitarize: some links are {'not finite' if failure == 1 else 'singular'}."
            )
        return found

    def checkerboard_staple(self, links, forward, backward, mu: int, parity: int) -> np.ndarray:
        halves = [[_contiguous(half, np.complex128) for half in pair] for pair in links]
        tables = [[[_contiguous(t, np.int64) for t in half] for half in way] for way in (forward, backward)]
        return self._native.half_staple(halves, *tables, int(mu), int(parity))


def _contiguous(array, dtype=None) -> np.ndarray:
    """The array itself where it is contiguous and aligned, else a copy."""
    return np.require(array, dtype, ["C", "A"])

"""Vector operations of a space, the fused forms where a backend has them (the core derives them elsewhere)."""

from __future__ import annotations

from .common import BACKENDS, N_RHS, PRECISIONS, THREADS, VOLUMES, median_seconds, operator_of, skip

PASSES = {"axpy": 3, "norm2": 1, "inner": 2, "gamma5": 2, "axpy_norm2": 3, "cg_update": 6}
"""Vectors read and written, each once."""


class BLAS:
    """One operation on a whole batch."""

    params = [list(PASSES), BACKENDS, PRECISIONS, VOLUMES, N_RHS, THREADS]
    param_names = ["operation", "backend", "precision", "volume", "n_rhs", "threads"]
    timeout = 300
    rounds = 4

    def setup(self, operation, backend, precision, volume, n_rhs, threads):
        if backend == "numpy" and volume == "16x16x16x16" and n_rhs > 1:
            raise skip("twelve columns at 16^4 take the reference minutes")
        operator, self.x = operator_of(backend, precision, volume, n_rhs, word=threads)
        v = self.vectors = operator.vectors
        self.y, self.z, self.w = v.copy(self.x), v.copy(self.x), v.copy(self.x)
        self.bytes = PASSES[operation] * 24 * operator.geometry.volume * n_rhs * operator.precision.bytes_per_real
        self.run = getattr(self, f"_{operation}")
        self.run()

    # y is consumed: whoever calls goes on with what comes back.
    def _axpy(self):
        self.y = self.vectors.axpy(1e-3, self.x, self.y)

    def _norm2(self):
        self.vectors.norm2(self.x)

    def _inner(self):
        self.vectors.inner(self.x, self.y)

    def _gamma5(self):
        self.vectors.gamma5(self.x)

    def _axpy_norm2(self):
        self.y, _ = self.vectors.axpy_norm2(1e-3, self.x, self.y)

    def _cg_update(self):
        self.z, self.w, _ = self.vectors.cg_update(1e-3, self.x, self.y, self.z, self.w)

    def time_operation(self, *parameters):
        self.run()

    def track_gbytes(self, *parameters):
        return self.bytes / median_seconds(self.run) / 1e9

    track_gbytes.unit = "GB/s (each vector once)"

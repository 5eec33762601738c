"""The operators, per backend, precision, volume, number of right-hand sides and threads."""

from __future__ import annotations

from .common import (
    BACKENDS,
    N_RHS,
    PRECISIONS,
    THREADS,
    VOLUMES,
    as_precision,
    limits_of_this_machine,
    median_seconds,
    prepared,
    skip,
)


class _Operator:
    """One application; GFLOP/s and GB/s from the counts of lqcd_core.bench.work (1320 flops a site for the hopping term)."""

    operator: str
    params = [BACKENDS, PRECISIONS, VOLUMES, N_RHS, THREADS]
    param_names = ["backend", "precision", "volume", "n_rhs", "threads"]
    timeout = 300
    warmup_time = 0.2
    rounds = 4

    def setup_cache(self):
        return limits_of_this_machine()

    def setup(self, limits, backend, precision, volume, n_rhs, threads):
        if backend == "numpy" and volume == "16x16x16x16" and n_rhs > 1:
            raise skip("twelve columns at 16^4 take the reference minutes")
        self.case, self.prepared = prepared(self.operator, backend, precision, volume, n_rhs, threads)

    def apply(self):
        self.prepared.finish(self.prepared.call())

    def time_apply(self, limits, *parameters):
        self.apply()

    def track_gflops(self, limits, *parameters):
        return self.case.flops / median_seconds(self.apply) / 1e9

    def track_gbytes(self, limits, *parameters):
        return self.case.bytes / median_seconds(self.apply) / 1e9

    def track_fraction_of_roofline(self, limits, *parameters):
        roof, _ = limits[self.case.threads].roof(self.case.flops, self.case.bytes, as_precision(self.case.precision))
        return self.case.flops / median_seconds(self.apply) / 1e9 / roof

    track_gflops.unit = "GFLOP/s (1320 per site for the hopping term)"
    track_gbytes.unit = "GB/s (each link and spinor once)"
    track_fraction_of_roofline.unit = "of min(peak, flops/byte x bandwidth)"


class Wilson(_Operator):
    """H psi."""

    operator = "hop"


class Clover(_Operator):
    """M psi with the clover term."""

    operator = "clover"


class Parity(_Operator):
    """H from odd onto even sites."""

    operator = "parity"


class Schur(_Operator):
    """The symmetric Schur complement of Wilson on the even sites."""

    operator = "schur"

"""The operator: hopping term and clover M, per backend, precision, volume and number of right-hand sides."""

from __future__ import annotations

from timeit import default_timer

import lqcd_core as lqcd

from .common import BACKENDS, FLOPS_PER_SITE, N_RHS, PRECISIONS, VOLUMES, bound, source


class Dslash:
    """H psi; the norm that ends the timed body returns a host number and so waits for the device."""

    params = [BACKENDS, PRECISIONS, VOLUMES, N_RHS]
    param_names = ["backend", "precision", "volume", "n_rhs"]
    timeout = 300
    warmup_time = 0.2

    def setup(self, backend, precision, volume, n_rhs):
        if backend == "numpy" and volume == "16x16x16x16" and n_rhs > 1:
            raise NotImplementedError("twelve columns at 16^4 take the reference minutes")
        self.operator = bound(lqcd.WilsonDirac(mass=0.1), volume, backend, precision, n_rhs)
        self.x = source(self.operator)
        self.operator.hopping(self.x)

    def time_hopping(self, backend, precision, volume, n_rhs):
        self.operator.hopping(self.x)

    def track_gflops(self, backend, precision, volume, n_rhs):
        times = []
        for _ in range(5):
            start = default_timer()
            self.operator.hopping(self.x)
            times.append(default_timer() - start)
        return FLOPS_PER_SITE * self.operator.geometry.volume * n_rhs / min(times) / 1e9

    track_gflops.unit = "GFLOP/s (1320 per site)"


class Clover:
    """M psi of the clover operator at 8^4, and its Schur complement."""

    params = [BACKENDS, PRECISIONS]
    param_names = ["backend", "precision"]

    def setup(self, backend, precision):
        self.operator = bound(lqcd.CloverWilsonDirac(mass=0.1, csw=1.0), "8x8x8x8", backend, precision)
        self.x = source(self.operator)
        self.schur = self.operator.even_odd()
        self.half, _ = self.schur.split(self.operator.space.unpack(self.x))
        self.operator.apply(self.x)
        self.schur.apply(self.half)

    def time_M(self, backend, precision):
        self.operator.apply(self.x)

    def time_schur(self, backend, precision):
        self.schur.apply(self.half)


class Transfer:
    """Pack and unpack: the only doors between host and backend."""

    params = [BACKENDS, PRECISIONS]
    param_names = ["backend", "precision"]

    def setup(self, backend, precision):
        self.operator = bound(lqcd.WilsonDirac(mass=0.1), "8x8x8x8", backend, precision)
        self.x = source(self.operator)
        self.host = self.operator.space.unpack(self.x)

    def time_pack(self, backend, precision):
        self.operator.space.pack(self.host)

    def time_unpack(self, backend, precision):
        self.operator.space.unpack(self.x)

"""Time to solution on a fixed field: weak coupling by construction, so that iteration counts do not move."""

from __future__ import annotations

import numpy as np

import lqcd_core as lqcd
from lqcd_core.errors import BackendError

from .common import BACKENDS, THREADS, choice_of, geometry, skip


def weak_field(volume: str) -> lqcd.GaugeField:
    """Links near 1: a random field mixed with the unit field and projected back onto SU(3)."""
    random = lqcd.GaugeField.random(geometry(volume), seed=42)
    mixed = lqcd.GaugeField(random.geometry, 0.85 * np.eye(3) + 0.15 * random.array)
    return mixed.unitarize()


class Solve:
    """Point source, Wilson, mass 0.1, even-odd, true residual 1e-8; ``mixed`` iterates in single precision."""

    params = [BACKENDS, ["cg", "bicgstab", "mixed"], [1, 12], THREADS]
    param_names = ["backend", "solver", "columns", "threads"]
    timeout = 300
    rounds = 4

    def setup(self, backend, solver, columns, threads):
        gauge = weak_field("8x4x4x4")
        try:
            self.operator = lqcd.WilsonDirac(mass=0.1).bind(gauge, backend=choice_of(backend, threads), n_rhs=columns)
        except BackendError as error:
            raise skip(str(error)) from None
        self.b = lqcd.point_source(gauge.geometry).columns(range(columns))
        cg = lqcd.ConjugateGradient(tol=1e-8)
        self.solver = {
            "cg": cg,
            "bicgstab": lqcd.BiCGStab(tol=1e-8),
            "mixed": lqcd.MixedPrecision(tol=1e-8, inner=lqcd.ConjugateGradient(tol=1e-4), precision="single"),
        }[solver]
        lqcd.solve(self.operator, self.b, self.solver)

    def time_solve(self, *parameters):
        lqcd.solve(self.operator, self.b, self.solver)

    def track_iterations(self, *parameters):
        return lqcd.solve(self.operator, self.b, self.solver).info.iterations

    track_iterations.unit = "iterations"

"""Observables on the host, with the formulas of links left to the backend that is named where it offers them."""

from __future__ import annotations

import numpy as np

import lqcd_core as lqcd
from lqcd_core.errors import LQCDError

from .common import BACKENDS, geometry, skip


class Loops:
    """Links of 8^4 sites."""

    params = [BACKENDS]
    param_names = ["backend"]
    rounds = 4

    def setup(self, backend):
        self.field = lqcd.GaugeField.random(geometry("8x8x8x8"), seed=42)
        try:
            self.setting = lqcd.use_backend(backend)
            lqcd.WilsonDirac(mass=0.1).bind(self.field, check_links=False)
        except LQCDError as error:
            raise skip(str(error)) from None
        self.time_plaquette(backend)

    def time_plaquette(self, backend):
        lqcd.observables.plaquette(self.field)

    def time_polyakov_loop(self, backend):
        lqcd.observables.polyakov_loop(self.field)

    def time_topological_charge(self, backend):
        lqcd.observables.topological_charge(self.field)


class Correlators:
    """Contractions of a random propagator on 16x8x8x8."""

    rounds = 4

    def setup(self):
        g = geometry("16x8x8x8")
        rng = np.random.default_rng(3)
        shape = (*g.shape, 4, 4, 3, 3)
        self.propagator = lqcd.Propagator(g, rng.standard_normal(shape) + 1j * rng.standard_normal(shape))
        self.time_pion()

    def time_pion(self):
        lqcd.observables.pion_correlator(self.propagator)

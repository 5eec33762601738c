"""Every observable under one name, ``lqcd.observables``. A face: the formulas are in lqcd_core.gauge and
lqcd_core.hadrons.

Gauge observables take a :class:`~lqcd_core.fields.GaugeField` or a raw link array (for a torch tensor the answer is a
tensor through which gradients flow); hadronic ones take a :class:`~lqcd_core.fields.Propagator` or a correlator.
"""

from .gauge import (
    clover_leaf_sum,
    energy_density,
    field_strength,
    integrated_autocorrelation,
    link_trace,
    plaquette,
    plaquette_ss,
    plaquette_st,
    plaquettes,
    polyakov_loop,
    rectangle,
    topological_charge,
    topological_charge_density,
    wilson_action,
    wilson_loop,
    wilson_loops,
)
from .hadrons import (
    baryon_correlator,
    delta_correlator,
    effective_mass,
    effective_mass_jackknife,
    jackknife,
    meson_correlator,
    meson_correlators,
    nucleon_correlator,
    pion_correlator,
    quark_condensate,
)

__all__ = [
    "baryon_correlator",
    "clover_leaf_sum",
    "delta_correlator",
    "effective_mass",
    "effective_mass_jackknife",
    "energy_density",
    "field_strength",
    "integrated_autocorrelation",
    "jackknife",
    "link_trace",
    "meson_correlator",
    "meson_correlators",
    "nucleon_correlator",
    "pion_correlator",
    "plaquette",
    "plaquette_ss",
    "plaquette_st",
    "plaquettes",
    "polyakov_loop",
    "quark_condensate",
    "rectangle",
    "topological_charge",
    "topological_charge_density",
    "wilson_action",
    "wilson_loop",
    "wilson_loops",
]

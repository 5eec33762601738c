"""What needs links only: loops, staples, field strength, topology, and generating quenched configurations."""

from .autocorrelation import Autocorrelation, integrated_autocorrelation
from .exponential import exponential
from .field_strength import clover_coefficients, clover_leaf_sum, clover_term, energy_density, field_strength
from .generate import ConfigurationInfo, SweepReport, generate
from .loops import (
    link_trace,
    plaquette,
    plaquette_ss,
    plaquette_st,
    plaquettes,
    polyakov_loop,
    rectangle,
    wilson_action,
    wilson_loop,
    wilson_loops,
)
from .staples import staple, staples
from .topology import topological_charge, topological_charge_density
from .update import heatbath_sweep, overrelaxation_sweep

__all__ = [
    "Autocorrelation",
    "ConfigurationInfo",
    "SweepReport",
    "clover_coefficients",
    "clover_leaf_sum",
    "clover_term",
    "energy_density",
    "exponential",
    "field_strength",
    "generate",
    "heatbath_sweep",
    "integrated_autocorrelation",
    "link_trace",
    "overrelaxation_sweep",
    "plaquette",
    "plaquette_ss",
    "plaquette_st",
    "plaquettes",
    "polyakov_loop",
    "rectangle",
    "staple",
    "staples",
    "topological_charge",
    "topological_charge_density",
    "wilson_action",
    "wilson_loop",
    "wilson_loops",
]

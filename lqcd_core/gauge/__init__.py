"""What needs links only: loops, staples, field strength, topology, and generating quenched configurations."""

from .field_strength import clover_coefficients, clover_leaf_sum, clover_term, energy_density, field_strength
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

__all__ = [
    "clover_coefficients",
    "clover_leaf_sum",
    "clover_term",
    "energy_density",
    "field_strength",
    "link_trace",
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

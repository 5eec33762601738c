"""Lattice and fields under the module name of lqcd-neuron. A face: everything is defined elsewhere.

What changed for scripts that come from there is in docs/migration.md.
"""

from .fields import ColorSpinorField, GaugeField, Propagator
from .geometry import LatticeGeometry

__all__ = ["ColorSpinorField", "GaugeField", "LatticeGeometry", "Propagator"]

"""Files, read and written: gauge configurations, propagators, spinors and correlators.

==============  ===========================  ==================================================================
configurations  :func:`read_gauge`           NERSC, ILDG, SciDAC, MILC, openQCD, npy; found by content, checked
                :func:`write_gauge`          the same, whole or not at all
                :func:`inspect_gauge`        everything a file says of itself, beside what its data give
                :func:`read_gauge_slab`      some time slices, at their offset
                :func:`read_gauge_part`      the same with their part of the checksums, for many readers of one file
                :func:`convert_gauge`        from one format to another
propagators     :func:`read_propagator`      HDF5 (ours, QDP++ and lalibe, PyQUDA), SciDAC, npy
                :func:`write_propagator`     HDF5, SciDAC, npy
                :class:`PropagatorFile`      column by column, surviving a kill
                :func:`lay_out_propagator`   for many writers of one HDF5 file, each its time slices
correlators     :func:`read_correlators`     HDF5
                :func:`write_correlators`
spinors         :func:`read_spinor`          openQCD
                :func:`write_spinor`
any file        :func:`sniff`                the name of its format
==============  ===========================  ==================================================================

Importing this needs numpy only; h5py is imported when an HDF5 file is touched.
"""

from .atomic import replacing, replacing_path
from .configuration import (
    GaugePart,
    check_gauge_parts,
    convert_gauge,
    format_of_name,
    inspect_gauge,
    read_gauge,
    read_gauge_part,
    read_gauge_slab,
    write_gauge,
)
from .hdf5 import StoredCorrelator, read_correlators, write_correlators
from .openqcd import read_spinor, write_spinor
from .partial import PropagatorFile
from .parts import PropagatorLayout, lay_out_propagator
from .propagators import read_propagator, write_propagator
from .report import Check, FileCheckWarning, GaugeReport
from .sniff import GAUGE_FORMATS, sniff

info = inspect_gauge
"""Another name of :func:`inspect_gauge`, as the command ``lqcd info`` has it."""

__all__ = [
    "GAUGE_FORMATS",
    "Check",
    "FileCheckWarning",
    "GaugePart",
    "GaugeReport",
    "PropagatorFile",
    "PropagatorLayout",
    "StoredCorrelator",
    "check_gauge_parts",
    "convert_gauge",
    "format_of_name",
    "info",
    "inspect_gauge",
    "lay_out_propagator",
    "read_correlators",
    "read_gauge",
    "read_gauge_part",
    "read_gauge_slab",
    "read_propagator",
    "read_spinor",
    "replacing",
    "replacing_path",
    "sniff",
    "write_correlators",
    "write_gauge",
    "write_propagator",
    "write_spinor",
]

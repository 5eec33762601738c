"""The laws of lqcd_core for every instruction set that runs here, and for several threads."""

import pytest
from lqcd_native import _native

from lqcd_core.testing.conformance import BackendConformance

RUNS = _native.instruction_sets()
LATTICES = ((4, 2, 6, 2), (3, 2, 1, 5), (2, 4, 8, 4))


class TestBest(BackendConformance):
    backend = "native"
    options = {"threads": 2}
    ncs = (3, 2)
    lattices = LATTICES[:2]


@pytest.mark.skipif("baseline" not in RUNS or RUNS[0] == "baseline", reason="the best instruction set is the baseline")
class TestBaseline(BackendConformance):
    backend = "native"
    options = {"isa": "baseline", "threads": 1}
    ncs = (3,)
    lattices = LATTICES[:2]


@pytest.mark.skipif(
    "avx2" not in RUNS or RUNS[0] == "avx2", reason="AVX2 is the best instruction set here, or does not run"
)
class TestAVX2(BackendConformance):
    backend = "native"
    options = {"isa": "avx2", "threads": 1, "stores": "stream"}
    ncs = (3,)
    lattices = LATTICES


class TestWide(BackendConformance):
    """Every lane a sub-lattice of its own, on a parity too."""

    backend = "native"
    options = {"threads": 2, "tile": 5}
    precisions = ("single", "fixed16")
    ncs = (3,)
    lattices = LATTICES[2:]


class TestTwoRows(BackendConformance):
    backend = "native"
    options = {"threads": 1, "links": "two-row"}
    precisions = ("double", "half")
    ncs = (3,)
    lattices = LATTICES[:2]


class TestStreaming(BackendConformance):
    backend = "native"
    options = {"threads": 1, "stores": "stream", "tile": 1, "block": 1}
    precisions = ("single", "fixed16")
    ncs = (3,)
    lattices = ((4, 2, 6, 2),)

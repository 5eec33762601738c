"""A reduced conformance suite, small enough for a build with sanitizers: every storage, both kinds of lanes, links and stores."""

import pytest
from lqcd_native import _native

from lqcd_core.testing.conformance import BackendConformance

GROUPS = (
    "required",
    "even_odd",
    "site_diagonal",
    "fused_dirac",
    "fused_blas",
    "columns",
    "conversion",
    "halo",
    "fused_halo",
)


class TestSubLattices(BackendConformance):
    backend = "native"
    options = {"threads": 2, "stores": "stream", "tile": 3}
    ncs = (3,)
    lattices = ((4, 2, 4, 4),)
    groups = GROUPS


class TestColumnLanes(BackendConformance):
    backend = "native"
    options = {"threads": 1, "links": "two-row"}
    ncs = (3,)
    lattices = ((2, 1, 3, 3),)
    groups = GROUPS


@pytest.mark.skipif(_native.instruction_sets()[0] == "baseline", reason="the best instruction set is the baseline")
class TestBaseline(BackendConformance):
    backend = "native"
    options = {"isa": "baseline", "threads": 1}
    precisions = ("double", "half", "bf16", "fixed16")
    ncs = (3,)
    lattices = ((2, 2, 2, 4),)
    groups = ("required", "halo")

"""The traced Neuron backend obeys every law under the stand-in package. No device is used, and nothing is timed.

The whole matrix of modes and precisions takes minutes (``-m slow``); a plain run has every law once in each formulation.
"""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from neuron_standin import standin  # noqa: E402

from lqcd_core.testing.conformance import (  # noqa: E402
    BackendConformance,
    EvenOddConformance,
    FusedDiracConformance,
)


@pytest.fixture(scope="module", autouse=True)
def machine(tmp_path_factory):
    # Processes that share the laws share what they compiled: most laws meet the graphs of another law again.
    base = tmp_path_factory.getbasetemp()
    with standin(cache=(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "laws_of_traced"):
        yield


class TestFused(BackendConformance):
    backend, options = "neuron-traced", {"formulation": "fused"}
    precisions, ncs, n_rhs, lattices = ("single",), (3,), 2, ((2, 2, 4, 2),)


class TestHalfEvenOdd(EvenOddConformance):
    backend, options = "neuron-traced", {"formulation": "half"}
    precisions, ncs, n_rhs, lattices = ("single",), (3,), 2, ((2, 2, 4, 2),)


@pytest.mark.slow
class TestHalfFusedDirac(FusedDiracConformance):
    backend, options = "neuron-traced", {"formulation": "half"}
    precisions, ncs, n_rhs, lattices = ("bf16",), (3,), 2, ((2, 2, 4, 2),)


@pytest.mark.slow
class TestHalf(BackendConformance):
    backend, options = "neuron-traced", {"formulation": "half"}
    precisions, ncs, n_rhs, lattices = ("single", "half", "bf16"), (3, 2), 2, ((2, 2, 4, 2),)


@pytest.mark.slow
class TestOddExtents(BackendConformance):
    backend, options = "neuron-traced", {"formulation": "half"}
    precisions, ncs, n_rhs, lattices = ("single", "bf16"), (3,), 2, ((3, 2, 1, 1),)


@pytest.mark.slow
class TestFusedEverywhere(BackendConformance):
    backend, options = "neuron-traced", {"formulation": "fused"}
    precisions, ncs, n_rhs = ("half", "bf16"), (3, 4), 2
    lattices = ((2, 2, 4, 2), (3, 2, 1, 1))


@pytest.mark.slow
class TestBaked(BackendConformance):
    backend, options = "neuron-traced", {"gauge": "baked", "formulation": "fused"}
    precisions, ncs, n_rhs, lattices = ("single", "bf16"), (3,), 2, ((2, 2, 4, 2),)


@pytest.mark.slow
class TestArgument(BackendConformance):
    backend, options = "neuron-traced", {"gauge": "argument", "formulation": "half"}
    precisions, ncs, n_rhs, lattices = ("single", "half"), (3,), 2, ((2, 2, 4, 2),)


@pytest.mark.slow
class TestSlabs(BackendConformance):
    backend, options = "neuron-traced", {"slabs": 2, "formulation": "half"}
    precisions, ncs, n_rhs, lattices = ("single", "bf16"), (3,), 2, ((4, 2, 2, 2),)


@pytest.mark.slow
class TestMixedStorage(BackendConformance):
    backend = "neuron-traced"
    options = {"half_spinors": "float32", "bf16_links": "float16", "formulation": "fused"}
    precisions, ncs, n_rhs, lattices = ("half", "bf16"), (3,), 2, ((2, 2, 4, 2),)


@pytest.mark.slow
class TestTwoCores(BackendConformance):
    backend, options = "neuron-traced", {"num_cores": 2, "formulation": "fused"}
    precisions, ncs, n_rhs, lattices = ("single", "half"), (3,), 3, ((2, 2, 4, 2),)

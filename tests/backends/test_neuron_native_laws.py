"""The traced Neuron backend obeys every law under the stand-in of the native package too: torch.compile, one graph an operator.

No device is used, and nothing is timed. A compilation takes seconds, and the stand-in keeps none of them: ``-m slow``.
"""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from neuron_standin import standin  # noqa: E402

from lqcd_core.testing.conformance import BackendConformance, EvenOddConformance  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def machine():
    with standin("trn2.3xlarge", "native", on_cpu=True):
        yield


class TestResident(BackendConformance):
    backend, options = "neuron-traced", {"formulation": "fused"}
    precisions, ncs, n_rhs, lattices = ("single", "half", "bf16"), (3,), 2, ((2, 2, 4, 2),)


class TestBaked(BackendConformance):
    backend, options = "neuron-traced", {"gauge": "baked", "formulation": "fused"}
    precisions, ncs, n_rhs, lattices = ("single", "half", "bf16"), (3,), 2, ((2, 2, 4, 2),)


class TestArgument(BackendConformance):
    backend, options = "neuron-traced", {"gauge": "argument", "formulation": "fused"}
    precisions, ncs, n_rhs, lattices = ("single", "half", "bf16"), (3,), 2, ((2, 2, 4, 2),)


class TestHalfSpinors(EvenOddConformance):
    backend, options = "neuron-traced", {"formulation": "half", "slabs": 2}
    precisions, ncs, n_rhs, lattices = ("single", "bf16"), (3,), 2, ((2, 2, 4, 2),)

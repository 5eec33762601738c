"""The suite that authors subclass, seen from outside: skips say why, known gaps are strict, mistakes are named."""

import os
import re
import subprocess
import sys

import pytest

SOURCE = """
import numpy as np
from lqcd_core import BackendInfo, hookimpl
from lqcd_core.spaces import ArraySpace
from lqcd_core.testing import loopback
from lqcd_core.testing.conformance import BackendConformance, EvenOddConformance, SiteDiagonalConformance
from lqcd_backends.numpy.backend import NumpyBackend


class Clamps(NumpyBackend):
    def hopping(self, links, space):
        hop = super().hopping(links, space)
        return lambda x: np.nan_to_num(hop(x))


class Plugin:
    @hookimpl
    def lqcd_register_backends(self):
        return [BackendInfo(
            name="clamps", load=f"{__name__}:Clamps", precisions={"double"},
            accepts=lambda r: None if r.geometry.nc == 3 else f"has kernels for Nc = 3 only, not {r.geometry.nc}",
        )]


class Common(BackendConformance):
    plugin, backend, lattices = Plugin(), "clamps", ((2, 2, 2, 2),)


class TestAsItIs(Common):
    pass


class TestGapKnown(Common):
    known_gaps = {"nan_passes_through": "the kernel clamps"}


class TestGapMended(Common):
    known_gaps = {"gamma5_is_diagonal": "long ago"}


class TestMissing(EvenOddConformance):
    plugin, backend, lattices, precisions, ncs = loopback, "loopback", ((2, 2, 2, 2),), ("double",), (3,)
"""
TAIL = """

class TestMisspelt(Common):
    known_gaps = {"nan_passes_thru": "typo"}
"""
NAMELESS = """

class TestNameless(BackendConformance):
    pass
"""


def run(tmp_path, source, *args):
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["lqcd_core.testing.pytest_plugin"]\n')
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", "-rA", *args]
    done = subprocess.run(
        [*command, "test_it.py"], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    laws = "nan_passes or gamma5_is or parity_hops or hopping_agrees"
    return run(tmp_path_factory.mktemp("harness"), SOURCE, "-k", laws, "--tb=line", "-W", "ignore::RuntimeWarning")


def outcome(report, kind, law, case="double-nc3-2x2x2x2"):
    found = re.search(rf"^(\w+) test_it.py::{kind}::test_law\[{law}-{case}\]", report, re.MULTILINE)
    return found.group(1) if found else None


def test_a_fault_fails_and_the_rest_passes(report):
    assert outcome(report, "TestAsItIs", "nan_passes_through") == "FAILED"
    assert outcome(report, "TestAsItIs", "hopping_agrees_with_loops") == "PASSED"


def test_what_a_backend_cannot_serve_is_skipped_with_its_own_sentence(report):
    assert "backend 'clamps' has kernels for Nc = 3 only, not 2" in report


def test_a_known_gap_is_an_expected_failure_and_a_mended_one_is_a_failure(report):
    assert outcome(report, "TestGapKnown", "nan_passes_through") == "XFAIL"
    assert outcome(report, "TestGapMended", "gamma5_is_diagonal") == "FAILED"
    assert "[XPASS(strict)] long ago" in report


def test_a_protocol_that_must_be_there_and_is_not_fails(report):
    assert outcome(report, "TestMissing", "parity_hops_are_parts_of_the_full_hop") == "FAILED"
    assert "does not implement SupportsEvenOdd" in report


def test_a_misspelt_law_is_named_with_the_nearest(tmp_path):
    assert "did you mean 'nan_passes_through'" in run(tmp_path, SOURCE + TAIL, "--collect-only")


def test_a_class_without_a_backend_says_what_to_set(tmp_path):
    assert "needs the class attribute backend" in run(tmp_path, SOURCE + NAMELESS, "--collect-only")

"""The graphs of the traced backend lowered to StableHLO, which is what the vendor's compiler takes in, and executed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "stablehlo.py"
ALLOWED = {
    "add", "broadcast_in_dim", "compare", "concatenate", "constant", "convert", "dot_general", "multiply", "negate", "reshape", "select", "slice",
    "subtract", "transpose",
}  # fmt: skip
"""Operators with static shapes and no control flow."""


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "torchax", "jax")),
    reason="lowering to StableHLO needs torchax and jax (600 MB), which the tests do not install",
)
def test_graphs_lower_to_static_real_stablehlo_and_give_the_same_numbers():
    done = subprocess.run([sys.executable, "-W", "ignore", str(SCRIPT)], capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == 4
    for case in found:
        assert case["error"] < 5e-7, case
        assert set(case["operators"]) <= ALLOWED, case
        assert set(case["types"]) <= {"f32", "i1", "i32", "i64"}, case

"""The Neuron examples run in stand-in mode, labelled as such and without a single time; without a device they say why not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
STANDIN = ROOT / "tests" / "support" / "neuron_standin.py"


def run(*words, cwd):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def test_the_quickstart_runs_labelled_and_solves(tmp_path):
    done = run(STANDIN, ROOT / "examples" / "neuron_quickstart.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("STAND-IN") and "1 graph(s)" in done.stdout
    residual = float(done.stdout.partition("true residual ")[2].split()[0])
    assert residual <= 1e-12


def test_the_first_hour_writes_one_file_and_no_speed_of_a_stand_in(tmp_path):
    words = ("results.json", "--lattice", "2,2,2,2", "--rhs", "2")
    done = run(STANDIN, ROOT / "examples" / "neuron_first_hour.py", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "results.json").read_text()
    assert "second" not in text  # neither a time nor a rate
    results = json.loads(text)
    parts = results["parts"]
    rows = parts["traced"]["results"]
    assert results["stand_in"] == parts["traced"]["stand_in"] == "STAND-IN" and len(rows) == 9
    assert all("error" not in row and row["relative_error"] < 5e-3 for row in rows)
    assert parts["nki_launches"]["unavailable"] and parts["nki_instructions"]["unavailable"]  # no libnrt there


@pytest.mark.parametrize(("script", "words"), (("neuron_quickstart", ()), ("neuron_first_hour", ("results.json",))))
def test_without_a_device_they_say_so(script, words, tmp_path):
    if Path("/dev/neuron0").exists():
        pytest.skip("this machine has a Neuron device")
    done = run(ROOT / "examples" / f"{script}.py", *words, cwd=tmp_path)
    assert done.returncode == 1 and "no Neuron device" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())

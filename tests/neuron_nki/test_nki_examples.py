"""The measurements run in stand-in mode, labelled and without a single time; the page's table is that of the code."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

from lqcd_backends.neuron.nki import plugin, status  # noqa: E402
from lqcd_backends.neuron.nki.microbenchmark_specs import microbenchmarks  # noqa: E402

SCRIPT = ROOT / "examples" / "neuron_first_hour.py"


def run(*words, cwd):
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def test_the_first_hour_writes_one_file_and_no_speed_of_a_stand_in(tmp_path):
    words = ("results.json", "--lattice", "2,2,2,2", "--rhs", "2", "--precision", "half")
    done = run(SUPPORT / "nki_machine.py", SCRIPT, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("STAND-IN")
    text = (tmp_path / "results.json").read_text()
    assert "second" not in text  # neither a time nor a rate
    results = json.loads(text)
    parts = results["parts"]
    assert "STAND-IN" in results["stand_in"] and len(parts) == 3 and "neuronx" in parts["traced"]["unavailable"]
    for name in ("nki_launches", "nki_instructions"):
        assert "STAND-IN" in parts[name]["stand_in"] and "STAND-IN" in parts[name]["machine"]["stand_in"]
    rows = parts["nki_launches"]["results"]
    assert len(rows) == 2 and {row["case"] for row in rows} == {"M"}  # the round trip is the empty kernel's, below
    assert all("error" not in row and row["relative_error"] < 5e-4 and row["norm_error"] < 1e-6 for row in rows)
    rows = parts["nki_instructions"]["results"]
    assert len(rows) == len(microbenchmarks()) and all("error" not in row and row["exact"] is True for row in rows)


def test_without_a_device_they_say_so(tmp_path):
    if Path("/dev/neuron0").exists():
        import pytest

        pytest.skip("this machine has a Neuron device")
    done = run(SCRIPT, "results.json", cwd=tmp_path)
    assert done.returncode == 1 and "no Neuron device" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_page_has_every_status_and_every_option():
    page = (ROOT / "docs" / "neuron.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\w+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert {int(code): (name, meaning, advice) for code, name, _, meaning, advice in rows} == {
        s.code: (s.name, s.meaning, s.advice) for s in status.STATUS.values() if s.code
    }
    section = page.partition("## The backend `neuron-nki`")[2]
    assert all(f"`{name}`" in section for name in plugin.INFO.options)

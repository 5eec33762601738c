"""Every example runs as a user would run it, in a directory of its own, and stays under a screen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9]*.py"))
SCREEN = 50


def run(script, cwd, *arguments):
    env = {**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning"}
    env.pop("LQCD_BACKEND", None)
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_examples_are_numbered_without_gaps():
    assert [p.name[:3] for p in EXAMPLES] == [f"{i:02d}_" for i in range(1, len(EXAMPLES) + 1)] and EXAMPLES


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs_and_says_something(script, tmp_path):
    if "import torch" in script.read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_example_fits_on_a_screen(script):
    assert len(script.read_text(encoding="utf-8").splitlines()) <= SCREEN


def test_the_configurations_of_one_example_feed_another(tmp_path):
    made = run(EXAMPLES[4], tmp_path)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "cfg_3.ildg").exists()
    used = run(EXAMPLES[0], tmp_path, tmp_path / "cfg_3.ildg")
    assert used.returncode == 0, used.stderr
    assert "m_eff" in used.stdout
    again = run(EXAMPLES[4], tmp_path)
    assert again.returncode == 1 and "complete" in again.stderr and "Traceback" not in again.stderr

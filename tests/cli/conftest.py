"""Fixtures of the command's tests: a runner in the process, and small files to work on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

click_testing = pytest.importorskip("click.testing", reason="the command needs click")
pytest.importorskip("rich", reason="the command needs rich")
pytest.importorskip("h5py", reason="the command writes HDF5")

from lqcd_core.fields import GaugeField  # noqa: E402
from lqcd_core.geometry import LatticeGeometry  # noqa: E402

GEOMETRY = LatticeGeometry(T=4, Z=2, Y=2, X=2)


@pytest.fixture
def lqcd():
    """Run ``lqcd WORDS`` in this process; the result has exit_code, stdout, stderr."""
    from lqcd_core.cli.program import program

    try:
        runner = click_testing.CliRunner(mix_stderr=False)
    except TypeError:  # newer click always keeps them apart
        runner = click_testing.CliRunner()

    def run(*words, code=0):
        result = runner.invoke(program, [str(w) for w in words])
        if code is not None:
            assert result.exit_code == code, f"code {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return result

    return run


@pytest.fixture
def start_lqcd():
    """Start ``lqcd WORDS`` as a process of its own."""
    started = []

    def run(*words, **options):
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", "from lqcd_core.cli import main; main()", *map(str, words)], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def configuration(tmp_path_factory):
    """A random configuration of 4x2x2x2 sites as an ILDG file."""
    path = tmp_path_factory.mktemp("configuration") / "random.ildg"
    GaugeField.random(GEOMETRY, seed=5).write(path)
    return path

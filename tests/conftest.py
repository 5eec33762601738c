"""Fixtures for the whole suite. Threads are pinned before numpy loads: two busy pools on two cores crawl."""

import contextlib
import os
import signal
import subprocess
import sys

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# A shell that starts the suite in its background has it ignore Ctrl-C, and so every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)

from pathlib import Path

import pytest

pytest_plugins = ["lqcd_core.testing.pytest_plugin"]


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of configurations and fields written by other codes, named by LQCD_TEST_DATA."""
    where = os.environ.get("LQCD_TEST_DATA")
    if not where or not Path(where).is_dir():
        pytest.skip("LQCD_TEST_DATA does not name a folder with other codes' data")
    return Path(where)


@pytest.fixture(scope="session")
def lqcd():
    """Run ``lqcd WORDS`` in this process and expect a code (None: any); the result has exit_code, stdout, stderr."""
    testing = pytest.importorskip("click.testing", reason="the command needs click")
    pytest.importorskip("rich", reason="the command needs rich")
    from lqcd_core.cli.program import program

    try:
        runner = testing.CliRunner(mix_stderr=False)
    except TypeError:  # newer click always keeps them apart
        runner = testing.CliRunner()

    def run(*words, code=0):
        result = runner.invoke(program, [str(w) for w in words])
        said = f"code {result.exit_code}\n{result.stdout}\n{result.stderr}\n{result.exception!r}"
        assert code is None or result.exit_code == code, said
        return result

    return run


@pytest.fixture
def start_lqcd():
    """Start ``lqcd WORDS`` as a process of its own; whatever is left of it is killed at the end of the test."""
    pytest.importorskip("click", reason="the command needs click")
    pytest.importorskip("rich", reason="the command needs rich")
    started = []

    def run(*words, env=(), **options):
        process = subprocess.Popen(
            [sys.executable, "-c", "from lqcd_core.cli import main; main()", *map(str, words)],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **dict(env)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            **options,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()

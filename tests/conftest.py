"""Fixtures for the whole suite. Threads are pinned before numpy loads: two busy pools on two cores crawl."""

import contextlib
import os
import signal

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

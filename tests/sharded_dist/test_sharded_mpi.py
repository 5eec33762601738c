"""The same ranks over MPI: the bits of one shard, and a rank that hangs does not hold the job."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import rank_launch
import ranks_script

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
MPIRUN = shutil.which("mpirun")
pytestmark = pytest.mark.skipif(MPIRUN is None, reason="no mpirun on the path")


def mpirun(case, folder, ranks, timeout, seconds):
    """(exit code, standard error) of a launch."""
    command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), sys.executable]
    process = subprocess.Popen(
        [*command, str(rank_launch.SCRIPT), case, str(folder)],
        env=rank_launch.environment(LQCD_TEST_TIMEOUT=timeout), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        errors = process.communicate(timeout=seconds)[1]
        return process.returncode, errors
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(20)


def test_mpi_gives_the_bits_of_the_inner_backend(tmp_path):
    code, errors = mpirun("bits", tmp_path, 2, 60, 200)
    assert code == 0, errors
    whole = ranks_script.numbers("numpy")
    for rank in range(2):
        got = np.load(tmp_path / f"bits-{rank}.npz")
        assert all(np.array_equal(got[name], whole[name]) for name in whole)
        assert '"executor": "mpi"' in (tmp_path / f"facts-{rank}.json").read_text()


@pytest.mark.parametrize(("case", "words"), [
    ("hung", "died, hangs or is cut off"), ("raising", "ZeroDivisionError: of the victim"), ("nan", "returned NaN"),
])  # fmt: skip
def test_mpi_ends_the_job_and_names_the_rank(case, words, tmp_path):
    began = time.monotonic()
    code, errors = mpirun(case, tmp_path, 3, 6, 120)
    assert code != 0 and time.monotonic() - began < 120
    assert words in errors and "rank 1 (process" in errors, errors

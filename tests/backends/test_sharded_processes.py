"""The sharded executor over processes: the same laws and bits, and every way to fail ends with a reason and no litter."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import lqcd_core as lqcd
from lqcd_core.errors import BackendError, BackendUnavailable
from lqcd_core.registry import REGISTRY
from lqcd_core.testing.conformance import BackendConformance

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes by POSIX signals")

OPTIONS = {"inner": "numpy", "shards": 2, "executor": "processes"}
SEGMENTS = Path("/dev/shm")


class TestShardedProcesses(BackendConformance):
    backend, options = "sharded", OPTIONS
    precisions, lattices, ncs = ("double",), ((4, 2, 6, 2),), (3,)


@pytest.fixture(scope="module", autouse=True)
def nothing_stays():
    """After the module: no worker of ours, no segment of ours."""
    yield
    instance = REGISTRY.load("sharded", OPTIONS).instance
    instance.close()
    assert not litter()


def litter() -> list[str]:
    """Live workers and shared segments of this process."""
    workers = [p.name for p in multiprocessing.active_children() if p.name.startswith("lqcd-shard")]
    return workers + segments_of(os.getpid())


def segments_of(pid: int) -> list[str]:
    return [p.name for p in SEGMENTS.glob(f"lqcd-{pid}-*")] if SEGMENTS.is_dir() else []


def problem():
    g = lqcd.LatticeGeometry(T=8, Z=2, Y=4, X=2)
    rng = np.random.default_rng(4)
    psi = rng.normal(size=(3, *g.spinor_shape)) + 1j * rng.normal(size=(3, *g.spinor_shape))
    return lqcd.GaugeField.random(g, seed=4), psi


def solve(backend, callback=lambda p: None, tol=1e-9):
    U, b = problem()
    M = lqcd.CloverWilsonDirac(mass=0.4, csw=1.1).bind(U, backend=backend, n_rhs=3)
    seen = []

    def record(progress):
        seen.append(progress.residuals.copy())
        callback(progress)

    x, _ = lqcd.solve(M, b, lqcd.ConjugateGradient(tol=tol), callback=record)
    return np.array(seen), x


def test_processes_give_the_bits_of_the_inner_backend():
    want, got = solve("numpy"), solve(("sharded", OPTIONS))
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_faces_grow_with_the_batch():
    """Shared segments are made anew for a batch that does not fit, and the old ones go."""
    U, psi = problem()
    D = lqcd.WilsonDirac(mass=0.4)
    small = D.bind(U, backend=("sharded", OPTIONS), n_rhs=1)
    assert np.array_equal(small(psi[:1]), D.bind(U, backend="numpy", n_rhs=1)(psi[:1]))
    many = np.concatenate([psi] * 5)
    assert np.array_equal(small(many), D.bind(U, backend="numpy", n_rhs=1)(many))
    assert len(segments_of(os.getpid())) in (0, 2)  # one a rank


@pytest.mark.parametrize(
    ("send", "says"),
    [
        (signal.SIGKILL, r"rank 1 \(process \d+\) on \S+ was ended by signal 9 \(SIGKILL\)"),
        (signal.SIGSTOP, r"rank 1 \(process \d+\) on \S+ gave no answer to '\w+' within the time-out of 3 s"),
    ],
    ids=["dies", "hangs"],
)
def test_a_worker_that_dies_or_hangs_ends_the_solve_with_rank_and_reason(send, says):
    options = {**OPTIONS, "timeout": 3}
    instance = REGISTRY.load("sharded", options).instance
    pids = []

    def hurt(progress):
        if progress.iteration == 3:
            pids.extend(instance.team.pids)
            os.kill(pids[1], send)

    start = time.monotonic()
    with pytest.raises(BackendError, match=says):
        solve(("sharded", options), hurt)
    assert time.monotonic() - start < 60  # a hang of the test itself, not a claim about speed
    assert len(pids) == 2 and not any(alive(pid) for pid in pids)
    assert not [s for s in segments_of(os.getpid()) if instance._team.state.prefix in s]
    want, got = solve("numpy"), solve(("sharded", options))  # a new bind starts new workers
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    instance.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_error_of_the_caller_crosses_with_its_type_and_leaves_the_workers_alive():
    U, psi = problem()
    space = lqcd.WilsonDirac(mass=0.4).bind(U, backend=("sharded", OPTIONS), n_rhs=3).space
    x = space.pack(psi)
    with pytest.raises(ValueError, match="broadcast") as caught:
        space.axpy(np.ones(7), x, space.pack(psi))
    assert "rank 0" in str(caught.value.__cause__)
    assert (space.norm2(x) > 0).all()


SCRIPT = """
import os, sys, time
import lqcd_core as lqcd

def main():
    U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=1)
    options = dict(inner="numpy", shards=2, executor="processes")
    M = lqcd.WilsonDirac(mass=0.4).bind(U, backend=("sharded", options))
    handle = M.space.zeros()
    print("pids", *M.backend.team.pids, flush=True)
    while True:
        handle = M.hopping(handle)
"""


def started(tmp_path, text: str) -> tuple[subprocess.Popen, list[int]]:
    """A script with its own process group that has printed its workers' pids."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    line = process.stdout.readline().split()
    assert line and line[0] == "pids", process.communicate()[1]
    return process, [int(p) for p in line[1:]]


def gone(process: subprocess.Popen, pids: list[int]) -> bool:
    """Workers and segments of a script vanish within a while."""
    for _ in range(200):
        if not any(alive(pid) for pid in pids) and not segments_of(process.pid):
            return True
        time.sleep(0.1)
    return False


def test_ctrl_c_stops_everything(tmp_path):
    process, pids = started(tmp_path, SCRIPT + "\nif __name__ == '__main__':\n    main()\n")
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: to the whole group
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors and "resource_tracker" not in errors
    assert gone(process, pids)


def test_workers_leave_when_the_executor_is_killed(tmp_path):
    process, pids = started(tmp_path, SCRIPT + "\nif __name__ == '__main__':\n    main()\n")
    time.sleep(0.3)
    process.kill()
    process.communicate(timeout=60)
    assert gone(process, pids)


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    script = tmp_path / "bare.py"
    script.write_text(SCRIPT + "\nmain()\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "__name__" in done.stderr.splitlines()[-1]


def test_an_inner_backend_that_cannot_start_is_the_reason():
    options = {**OPTIONS, "inner": ("torch", {"device": "cuda:77"})}
    pytest.importorskip("torch")
    before = multiprocessing.active_children()
    with pytest.raises(BackendUnavailable, match=r"cannot load its inner backend.*(CUDA|device)"):
        REGISTRY.load("sharded", options)
    assert set(multiprocessing.active_children()) <= set(before)

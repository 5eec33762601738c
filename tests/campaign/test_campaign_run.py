"""Campaigns on real Ray, on this machine, with workers and drivers that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lqcd_core.campaign.driver import connect, run
from lqcd_core.campaign.plan import make_plan
from lqcd_core.fields import GaugeField
from lqcd_core.geometry import LatticeGeometry

pytest.importorskip("ray", reason="campaigns need ray")
pytest.importorskip("click", reason="a task runs the command")
h5py = pytest.importorskip("h5py", reason="propagators are HDF5")

PATIENCE = 180.0
"""Seconds that a test waits for something that takes a few on an idle machine."""


@pytest.fixture(scope="module")
def ray():
    """A local cluster with two CPUs and two cores of a device that are not there: Ray only counts them."""
    found = connect(None, num_cpus=2, resources={"neuron_cores": 2})
    yield found
    found.shutdown()


@pytest.fixture
def folder(tmp_path):
    """Two small configurations, and one that takes some seconds a column or so."""
    for k in range(2):
        GaugeField.random(LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=5 + k).write(tmp_path / f"small{k}.ildg")
    GaugeField.random(LatticeGeometry(T=8, Z=4, Y=4, X=4), seed=9).write(tmp_path / "large.ildg")
    return tmp_path


def _plan(folder, configurations=("small*.ildg",), masses=(1.0, 1.5), resources=None, **more):
    return make_plan(
        {
            "campaign": {"configurations": list(configurations), "masses": list(masses), "output": "out", **more},
            "propagator": {"backend": "numpy", "tol": 1e-9, "batch": 1}, "resources": resources or {},
        },
        folder,
    )  # fmt: skip


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _columns(path):
    with h5py.File(path) as f:
        found = {}
        f.visititems(
            lambda name, item: found.update({name: item[()].tobytes()}) if isinstance(item, h5py.Dataset) else None
        )
    return {name: data for name, data in found.items() if "provenance" not in name}


def _until(condition):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def test_a_campaign_and_again(ray, folder):
    plan = _plan(folder)
    plan.output.mkdir()
    outcome = run(plan, ray)
    assert sorted(outcome.done) == sorted(t.name for t in plan.tasks) and not outcome.failed
    results = _lines(plan.output / "results.jsonl")
    assert {r["task"] for r in results} == set(outcome.done) and all(r["residual"] <= 1e-9 for r in results)
    assert all(len(r["correlators"]["pion"]) == 4 and r["correlators"]["pion"][0][0] > 0 for r in results)
    assert all(r["host"] and r["pid"] != os.getpid() for r in results)
    times = {t.name: os.stat(t.output).st_mtime_ns for t in plan.tasks}
    assert sorted(run(plan, ray).done) == sorted(outcome.done)
    assert {t.name: os.stat(t.output).st_mtime_ns for t in plan.tasks} == times, "a finished task ran again"
    assert _lines(plan.output / "results.jsonl") == results


def test_a_task_that_fails_has_its_reason_and_stops_nobody(ray, folder):
    whole = (folder / "small0.ildg").read_bytes()
    (folder / "small0.ildg").write_bytes(whole[: len(whole) // 2])
    plan = _plan(folder, masses=[1.0])
    plan.output.mkdir()
    outcome = run(plan, ray)
    assert outcome.done == ["small1_s0_mass1.0"]
    assert list(outcome.failed) == ["small0_s0_mass1.0"] and "small0.ildg" in outcome.failed["small0_s0_mass1.0"]
    events = [e["event"] for e in _lines(plan.output / "manifest.jsonl") if e["task"] == "small0_s0_mass1.0"]
    assert events == ["submitted", "failed"], "an error of its own is not tried again"


def test_cores_of_a_device_are_given_by_the_scheduler(ray, folder):
    plan = _plan(folder, resources={"neuron_cores": 1})
    plan.output.mkdir()
    assert len(run(plan, ray).done) == 4
    done = [e for e in _lines(plan.output / "manifest.jsonl") if e["event"] == "done"]
    given = [e["accelerators"]["neuron_cores"] for e in done]
    assert all(len(g) == 1 and g[0] in ("0", "1") for g in given)


def test_a_file_changed_to_other_settings_is_not_taken_for_done(ray, folder):
    plan = _plan(folder, masses=[1.0])
    plan.output.mkdir()
    run(plan, ray)
    other = make_plan(
        {
            "campaign": {"configurations": ["small*.ildg"], "masses": [1.0], "output": "out"},
            "propagator": {"backend": "numpy", "tol": 1e-6, "batch": 1},
        },
        folder,
    )
    outcome = run(other, ray)
    assert not outcome.done and all("other settings" in reason for reason in outcome.failed.values())


# -- killed ------------------------------------------------------------------------------------------------------------

PLAN = """
[campaign]
configurations = ["large.ildg", "small*.ildg"]
masses = [0.5]
output = "out"
[propagator]
backend = "numpy"
tol = 1e-10
batch = 1
"""


@pytest.fixture
def driver(start_lqcd, folder):
    """Start ``lqcd campaign`` as a process of its own, with one worker at a time."""
    (folder / "plan.toml").write_text(PLAN)
    return lambda: start_lqcd("campaign", folder / "plan.toml", "--num-cpus", 1, env={MARK: str(folder)})


MARK = "LQCD_TEST_CAMPAIGN"
"""Variable that a driver hands to every process of its cluster."""


def _left(folder):
    """Processes of a driver's cluster that are there, by pid."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def _worker(folder):
    """Pid of the worker that has the long task now."""
    try:
        return json.loads((folder / "out" / ".running" / "large_s0_mass0.5.json").read_text())["pid"]
    except (OSError, ValueError):
        return None


def _saved(folder):
    """Columns that the long task has saved."""
    partial = folder / "out" / "large_s0_mass0.5.h5.partial"
    try:
        with h5py.File(partial, locking=False) as f:
            return int(f["done"][()].sum())
    except (OSError, KeyError):
        return 0


def _undisturbed(folder, name="large"):
    subprocess.run(
        [sys.executable, "-c", "from lqcd_core.cli import main; main()", "propagator", str(folder / f"{name}.ildg"), "--backend", "numpy",
         "--tol", "1e-10", "--batch", "1", "--mass", "0.5", "-q", "-o", str(folder / "undisturbed.h5")], check=True, capture_output=True,
    )  # fmt: skip
    return _columns(folder / "undisturbed.h5")


def test_a_killed_worker_is_replaced_and_its_columns_kept(driver, folder):
    process = driver()
    _until(lambda: _saved(folder) >= 2)
    marker = json.loads((folder / "out" / ".running" / "large_s0_mass0.5.json").read_text())
    os.kill(marker["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "3 of 3 tasks done" in out
    events = [e for e in _lines(folder / "out" / "manifest.jsonl") if e["task"] == "large_s0_mass0.5"]
    assert [(e["event"], e["attempt"]) for e in events] == [
        ("submitted", 1),
        ("died", 1),
        ("submitted", 2),
        ("done", 2),
    ]
    assert (
        events[1]["pid"] == marker["pid"] and events[1]["host"] == marker["host"] and events[3]["pid"] != marker["pid"]
    )
    assert _columns(folder / "out" / "large_s0_mass0.5.h5") == _undisturbed(folder)


def test_a_worker_that_dies_more_often_than_retries_allow_has_its_reason(driver, folder):
    """Once by the signal of a batch system that wants its node back, which is a death too, once at once."""
    (folder / "plan.toml").write_text(PLAN.replace("masses", "retries = 1\nmasses"))
    process = driver()
    _until(lambda: _saved(folder) >= 1)
    first = _worker(folder)
    os.kill(first, signal.SIGTERM)
    _until(lambda: [e for e in _lines(folder / "out" / "manifest.jsonl") if e["event"] == "died"])
    second = _until(lambda: _worker(folder))
    os.kill(second, signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    assert "failed: large_s0_mass0.5" in out and f"(pid {second}) died" in out and "2 of 3 tasks done" in out
    events = [e for e in _lines(folder / "out" / "manifest.jsonl") if e["task"] == "large_s0_mass0.5"]
    assert [e["event"] for e in events] == ["submitted", "died", "submitted", "failed"]
    assert events[1]["pid"] == first and "SIGTERM" in events[1]["message"]


def test_a_killed_driver_is_followed_by_one_that_does_the_rest(driver, folder):
    process = driver()
    _until(lambda: _saved(folder) >= 2)
    process.kill()
    process.communicate()
    again = driver()
    out, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, err
    assert "3 of 3 tasks done" in out
    results = _lines(folder / "out" / "results.jsonl")
    assert sorted(r["task"] for r in results) == ["large_s0_mass0.5", "small0_s0_mass0.5", "small1_s0_mass0.5"]
    assert _columns(folder / "out" / "large_s0_mass0.5.h5") == _undisturbed(folder)
    assert not list((folder / "out").glob("*.partial")) and not list((folder / "out" / ".running").glob("*.json"))


def test_two_drivers_do_not_write_one_campaign(driver, folder):
    first = driver()
    _until(lambda: _saved(folder) >= 1)
    _, err = driver().communicate(timeout=PATIENCE)
    assert "being written by another process" in err
    if Path("/proc").is_dir():
        assert len(_left(folder)) > 2, "the cluster's processes are not seen"
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=PATIENCE)
    assert first.returncode == 130
    if Path("/proc").is_dir():
        _until(lambda: not _left(folder))  # no scheduler, no worker

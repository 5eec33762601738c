"""neuron-sharded: one core a process, refused with the reason where there is no device. No hardware is touched here."""

import multiprocessing
import os

import attrs
import pytest
from lqcd_backends.neuron import device
from lqcd_backends.sharded import neuron, processes

import lqcd_core as lqcd
from lqcd_core.errors import BackendUnavailable, ParameterError
from lqcd_core.registry import REGISTRY


@attrs.frozen
class Made:
    """What would have been started."""

    inner: str
    options: dict
    shards: int
    executor: str
    exact: bool
    timeout: float
    environments: list | None = None


@pytest.fixture
def four_cores(monkeypatch):
    found = device.NeuronDevice(
        num_devices=2,
        num_cores=4,
        generation="gen2",
        instance_type="",
        memory_bytes=0,
        logical_core_config=1,
        source="test",
    )
    monkeypatch.setattr(device, "require_device", lambda: found)
    monkeypatch.setattr(neuron, "ShardedBackend", Made)
    monkeypatch.delenv(neuron.VISIBLE, raising=False)


def test_without_a_device_it_says_what_was_looked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "DEV", tmp_path)
    U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=1)
    with pytest.raises(BackendUnavailable, match=r"no Neuron device: there is no .*neuron0"):
        lqcd.WilsonDirac(mass=0.1).bind(U, backend="neuron-sharded", precision="single")


def test_every_process_has_a_core_of_its_own(four_cores, monkeypatch):
    made = neuron.neuron_sharded()
    assert (made.inner, made.shards, made.executor, made.exact) == ("neuron-nki", 4, "processes", True)
    assert [e[neuron.VISIBLE] for e in made.environments] == ["0", "1", "2", "3"]
    monkeypatch.setenv(neuron.VISIBLE, "4-6,9")
    made = neuron.neuron_sharded(inner=("neuron-traced", {"slabs": 2}), shards=3)
    assert (made.inner, made.options) == ("neuron-traced", {"slabs": 2})
    assert [e[neuron.VISIBLE] for e in made.environments] == ["4", "5", "6"]


def test_wrong_requests_are_refused(four_cores):
    with pytest.raises(ParameterError, match="4 NeuronCores are visible"):
        neuron.neuron_sharded(shards=5)
    with pytest.raises(ParameterError, match="does not run on NeuronCores"):
        neuron.neuron_sharded(inner="numpy")
    with pytest.raises(ParameterError, match="option executor="):
        REGISTRY.record("neuron-sharded").settle_options({"executor": "threads"})


def test_variables_are_set_before_the_inner_backend_loads(monkeypatch):
    """The worker's own function, run here: its load is refused after a look at the environment."""
    seen = []

    def load(name, options):
        seen.append(os.environ.get(neuron.VISIBLE))
        raise BackendUnavailable("looked")

    monkeypatch.setenv(neuron.VISIBLE, "0-3")
    monkeypatch.setattr(REGISTRY, "load", load)
    monkeypatch.setattr(processes.signal, "signal", lambda *_: None)
    ours, theirs = multiprocessing.Pipe()
    processes.serve(theirs, 0, 2, ("numpy", {}), (None, None), (None, None), 1.0, {neuron.VISIBLE: "2"})
    assert seen == ["2"] and "looked" in str(ours.recv()[1].error)

"""What a user hears on a machine without a Neuron device: what is missing first, then what the request asks too much."""

import pytest
from lqcd_backends.neuron import device
from lqcd_backends.neuron.nki import plugin

import lqcd_core as lqcd
from lqcd_core.errors import BackendUnavailable
from lqcd_core.registry import registered

U = lqcd.GaugeField.cold(lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2))


@pytest.fixture(autouse=True)
def bare(session_backend, monkeypatch, tmp_path):
    monkeypatch.setattr(device, "DEV", tmp_path / "dev")
    with registered(plugin):
        yield


def test_a_bind_in_double_hears_of_the_driver_and_of_the_precision():
    lqcd.use_backend("neuron-nki")
    with pytest.raises(BackendUnavailable) as caught:
        lqcd.WilsonDirac(mass=0.1).bind(U)
    text = str(caught.value)
    said = ["no Neuron driver is loaded", "aws-neuronx-dkms", "has no double precision", "precision='single'"]
    places = [text.index(words) for words in said]
    assert places == sorted(places) and ".." not in text


def test_a_bind_in_single_hears_of_the_driver_only():
    with pytest.raises(BackendUnavailable, match="no Neuron driver is loaded") as caught:
        lqcd.WilsonDirac(mass=0.1).bind(U, backend="neuron-nki", precision="single")
    assert "precision=" not in str(caught.value)


def test_explain_says_both_with_one_full_stop_each():
    told = lqcd.explain(lqcd.WilsonDirac(mass=0.1), U, backend="neuron-nki", start_all=True)
    row = next(line for line in str(told).splitlines() if line.split()[0] == "neuron-nki")
    assert "no Neuron driver is loaded" in row and "Besides, it has no double precision" in row
    assert all(line.endswith(".") and not line.endswith("..") for line in str(told).splitlines()[1:])

"""``lqcd info``, ``lqcd convert`` and ``lqcd backends``."""

import json
import shutil

import numpy as np
import pytest

from lqcd_core.fields import GaugeField
from lqcd_core.gauge import plaquette
from lqcd_core.io import read_gauge


def test_info_prints_what_the_library_computes(lqcd, configuration):
    out = lqcd("info", configuration).stdout
    U = GaugeField.read(configuration)
    assert f"{plaquette(U):.12f}" in out and "T=4 Z=2 Y=2 X=2" in out and U.digest() in out


def test_info_as_json_holds_stored_found_and_verdict(lqcd, configuration):
    data = json.loads(lqcd("info", configuration, "--json").stdout)
    assert data["ok"] and data["unitary"] and data["geometry"] == {"T": 4, "Z": 2, "Y": 2, "X": 2, "nc": 3}
    check = next(c for c in data["checks"] if c["name"] == "suma")
    assert check["stored"] == check["found"] and check["ok"]
    assert data["plaquette"] == pytest.approx(plaquette(GaugeField.read(configuration)), abs=1e-14)


def test_a_flipped_bit_is_found_and_is_a_failure(lqcd, configuration, tmp_path):
    damaged = tmp_path / "damaged.ildg"
    shutil.copy(configuration, damaged)
    data = bytearray(damaged.read_bytes())
    middle = data.find(b"ildg-binary-data") + 5000
    data[middle] ^= 1
    damaged.write_bytes(data)
    out = lqcd("info", damaged, code=1).stdout
    assert "WRONG" in out
    assert lqcd("convert", damaged, tmp_path / "out.nersc", code=2).stderr.count("\n") == 1
    assert not (tmp_path / "out.nersc").exists()


def test_a_truncated_file_is_a_mistake(lqcd, configuration, tmp_path):
    cut = tmp_path / "cut.ildg"
    cut.write_bytes(configuration.read_bytes()[:-2000])
    result = lqcd("info", cut, code=2)
    assert "lqcd:" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("target", ["b.nersc", "b.scidac", "b.npy", "b.lime"])
def test_a_converted_configuration_holds_the_same_links(lqcd, configuration, tmp_path, target):
    lqcd("convert", configuration, tmp_path / target)
    assert np.array_equal(read_gauge(tmp_path / target).array, read_gauge(configuration).array)


def test_convert_takes_a_format_a_precision_and_options(lqcd, configuration, tmp_path):
    lqcd("convert", configuration, tmp_path / "b.dat", "--to", "nersc", "--precision", "single", "--option", "rows=2")
    U = read_gauge(tmp_path / "b.dat")
    assert (
        U.precision.name == "single"
        and U.origin["format"] == "nersc"
        and U.origin["header"]["DATATYPE"] == "4D_SU3_GAUGE"
    )


def test_remedies_are_those_of_the_command_line(lqcd, configuration, tmp_path):
    assert "--precision single" in lqcd("convert", configuration, tmp_path / "b.milc", code=2).stderr
    (tmp_path / "text").write_text("hello")
    for words in (("info", tmp_path / "text"), ("info", configuration, "--format", "nersc"),
                  ("propagator", configuration, "--mass", 1, "--backend", "nump", "-o", tmp_path / "s.h5"),
                  ("propagator", configuration, "--mass", 1, "--backend", "sharded", "-o", tmp_path / "s.h5")):  # fmt: skip
        said = lqcd(*words, code=2).stderr
        assert "format=" not in said and "backend=" not in said and "use_backend" not in said, said


def test_convert_does_not_overwrite_unless_forced(lqcd, configuration, tmp_path):
    target = tmp_path / "b.nersc"
    target.write_text("precious")
    assert "--force" in lqcd("convert", configuration, target, code=2).stderr
    assert target.read_text() == "precious"
    lqcd("convert", configuration, target, "--force")
    assert read_gauge(target).geometry.T == 4


def test_a_propagator_is_converted_too(lqcd, tmp_path):
    from lqcd_core.free_field import free_propagator
    from lqcd_core.geometry import LatticeGeometry
    from lqcd_core.io import read_propagator, write_propagator

    S = free_propagator(LatticeGeometry(T=4, Z=2, Y=2, X=2), mass=0.3)
    write_propagator(S, tmp_path / "a.h5")
    lqcd("convert", tmp_path / "a.h5", tmp_path / "b.lime")
    lqcd("convert", tmp_path / "b.lime", tmp_path / "c.h5")
    assert np.array_equal(read_propagator(tmp_path / "c.h5").array, S.array)


def test_backends_lists_every_one_with_its_answer(lqcd):
    from lqcd_core.selection import backends

    out = lqcd("backends", "--precision", "fixed16").stdout
    assert all(name in out for name in backends()) and "has no fixed16 precision" in out
    verbose = lqcd("backends", "-v").stdout
    assert "origin" in verbose and "plugins left out" in verbose
    data = json.loads(lqcd("backends", "--json", "--backend", "numpy").stdout)
    assert data["chosen"] == "numpy" and "numpy" in {b["name"] for b in data["backends"]}


def test_an_unknown_backend_names_the_nearest(lqcd):
    assert "did you mean 'numpy'" in lqcd("backends", "--backend", "nunpy", code=2).stderr


def test_a_broken_plugin_is_reported_and_does_not_stop_the_command(lqcd, monkeypatch):
    from lqcd_core.registry import REGISTRY

    REGISTRY.records()
    monkeypatch.setitem(REGISTRY._broken, "ghost", "ImportError: no such runtime")
    assert "no such runtime" in lqcd("backends", "-v").stdout


def test_info_reproduces_the_published_weak_field(lqcd, test_data):
    data = json.loads(lqcd("info", test_data / "pyquda" / "weak_field.lime", "--json").stdout)
    assert data["plaquette"] == pytest.approx(0.994804132267, abs=1e-12)
    assert data["link_trace"] == pytest.approx(0.379449348715, abs=1e-12)
    assert data["polyakov"]["t"] == pytest.approx([0.87876950, -0.00991386], abs=1e-8)


def test_info_of_the_file_whose_checksum_is_wrong_is_a_failure(lqcd, test_data):
    out = lqcd("info", test_data / "milc" / "lat.sample.5p7", code=1).stdout
    assert "WRONG" in out and "NOT in SU(Nc)" in out

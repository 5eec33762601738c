"""Sources: what each column is, and that a column does not depend on how it is asked for."""

import itertools
import json

import numpy as np
import pytest

from lqcd_core.errors import FieldShapeError, ParameterError
from lqcd_core.fields import ColorSpinorField, GaugeField, Propagator
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.hadrons import (
    gaussian_smear,
    momentum_source,
    noise_source,
    point_source,
    sequential_source,
    smeared_source,
    wall_source,
)
from lqcd_core.hadrons.sources import noise_numbers

G = LatticeGeometry(T=4, Z=2, Y=3, X=4)
U = GaugeField.random(G, seed=1)
ALL = {
    "point": point_source(G, 1, 1, 2, 3),
    "wall": wall_source(G, 2),
    "wall with momentum": wall_source(G, 2, (1, 0, -1)),
    "momentum": momentum_source(G, (1, 2, 1), frequency=0.5),
    "z2": noise_source(G, 3, "z2"),
    "z4": noise_source(G, 3, "z4", t=2, sample=4),
    "gaussian": noise_source(G, 3, "gaussian", dilution=("time", "color")),
    "smeared": smeared_source(point_source(G, 1, 1, 2, 3), U, 1.0, 2),
    "sequential": sequential_source(
        Propagator.from_columns(G, ColorSpinorField.gaussian(G, 1, n_rhs=12).array, source={"position": [0, 1, 1, 1]}),
        7, 3, (1, 0, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_a_column_does_not_depend_on_the_batch(name):
    source = ALL[name]
    everything = source.columns()
    assert everything.shape == (len(source), *G.spinor_shape)
    picked = source.columns([5, 0, 7])
    assert (picked == everything[[5, 0, 7]]).all()
    assert (source.columns(np.int64(2))[0] == everything[2]).all()
    assert source.columns([1], precision="single").dtype == np.complex64


@pytest.mark.parametrize("name", ALL)
def test_description_is_plain_and_complete(name):
    d = ALL[name].describe()
    assert json.loads(json.dumps(d)) == d
    assert d["n_columns"] == len(ALL[name])
    d["kind"] = "spoiled"
    assert ALL[name].describe()["kind"] != "spoiled"
    if name != "gaussian":
        S = ALL[name].make_propagator(ALL[name].columns())
        assert S.source == ALL[name].describe()
        assert (S.columns() == ALL[name].columns()).all()  # the order of columns is that of Propagator


def test_point_source_columns_are_the_unit_matrix_at_the_site():
    a = ALL["point"].columns()
    assert (a[:, 1, 1, 2, 3].reshape(12, 12) == np.eye(12)).all()
    assert np.abs(a).sum() == 12
    one = ColorSpinorField.point_source(G, 1, 1, 2, 3, spin=2, color=1)
    assert (ALL["point"].column(2 * 3 + 1).array == one.array).all()


def test_wall_and_momentum_sources_are_plane_waves():
    a = ALL["wall"].columns([4])[0]
    assert (a[2, ..., 1, 1] == 1).all() and a.sum() == G.spatial_volume
    t, z, y, x = np.indices(G.shape)
    wave = np.exp(2j * np.pi * (1 * x / 4 + 2 * y / 3 + 1 * z / 2 + 0.5 * t / 4))
    a = ALL["momentum"].columns([11])[0]
    assert np.abs(a[..., 3, 2] - wave).max() < 1e-14 and not a[..., :3, :].any()
    b = momentum_source(G, (1, 2, 1), t=3).columns([0])[0, ..., 0, 0]
    assert np.abs(b[3] - wave[3] / np.exp(2j * np.pi * 0.5 * 3 / 4)).max() < 1e-14 and not b[:3].any()
    assert np.abs(ColorSpinorField.momentum(G, (1, 2, 1), 3, 2, frequency=0.5).array - a).max() == 0
    assert (ColorSpinorField.wall(G, 2, spin=1, color=1).array == ALL["wall"].columns([4])[0]).all()


@pytest.mark.parametrize("kind, values", [("z2", [1, -1]), ("z4", [1, 1j, -1, -1j])])
def test_zn_noise_takes_its_values_equally_often_and_independently(kind, values):
    a = {"z2": ColorSpinorField.z2, "z4": ColorSpinorField.z4}[kind](LatticeGeometry(T=8, Z=8, Y=8, X=8), seed=5).array
    n = a.size
    counts = [int((a == v).sum()) for v in values]
    assert sum(counts) == n
    expected, sigma = n / len(values), np.sqrt(n / len(values) * (1 - 1 / len(values)))
    assert max(abs(c - expected) for c in counts) < 4 * sigma
    for shifted in (np.roll(a, 1, axis=3), np.roll(a, 1, axis=4), np.roll(a, 1, axis=5), np.roll(a, 1, axis=0)):
        assert abs(np.vdot(a, shifted)) < 4 * np.sqrt(n)
    if kind == "z4":
        assert abs(np.sum(a * a)) < 4 * np.sqrt(n)


def test_noise_belongs_to_the_global_site():
    whole = noise_numbers("z4", 9, 2, range(G.volume), 12)
    assert (noise_numbers("z4", 9, 2, range(17, 40), 12) == whole[17:40]).all()
    slice_ = noise_source(G, 9, "z4", t=2, dilution=(), sample=2).columns()[0]
    assert (slice_[2].reshape(-1) == noise_source(G, 9, "z4", dilution=(), sample=2).columns()[0, 2].reshape(-1)).all()
    assert not slice_[[0, 1, 3]].any()


def test_batch_of_noise_is_a_batch_of_samples():
    batch = ColorSpinorField.z2(G, seed=4, n_rhs=3).array
    for k in range(3):
        assert (batch[k] == noise_source(G, 4, "z2", dilution=(), sample=k).columns()[0]).all()
    assert not (batch[0] == batch[1]).all()
    gaussian = noise_source(G, 4, "gaussian", dilution=(), sample=2).columns()[0]
    assert (gaussian == ColorSpinorField.gaussian(G, 4, n_rhs=3).array[2]).all()


def test_dilution_splits_and_shares():
    undiluted = noise_source(G, 3, "z4", dilution=()).columns()[0]
    by_time = noise_source(G, 3, "z4", dilution=["time"])
    assert len(by_time) == 4 and (by_time.columns().sum(axis=0) == undiluted).all()
    full = noise_source(G, 3, "z4").columns()
    xi = full[0, ..., 0, 0]
    assert (np.abs(xi) == 1).all()
    for i in range(12):
        spin, color = divmod(i, 3)
        assert (full[i, ..., spin, color] == xi).all() and np.abs(full[i]).sum() == G.volume
    by_spin = noise_source(G, 3, "z4", dilution=("spin",)).columns()
    assert len(by_spin) == 4 and (by_spin[0, ..., 0, :] == by_spin[3, ..., 3, :]).all()
    assert not (by_spin[0, ..., 0, 0] == by_spin[0, ..., 0, 1]).all()
    assert [len(noise_source(G, 3, "z2", dilution=d)) for d in (("color",), ("time", "spin", "color"))] == [3, 48]


def test_smeared_source_is_the_smeared_columns():
    want = gaussian_smear(point_source(G, 1, 1, 2, 3).columns(), U, 1.0, 2)
    assert (ALL["smeared"].columns() == want).all()
    d = ALL["smeared"].describe()
    assert d["position"] == [1, 1, 2, 3] and d["smearing"][0]["links_digest"] == U.digest()
    twice = smeared_source(ALL["smeared"], U, 0.5, 1).describe()["smearing"]
    assert [s["width"] for s in twice] == [1.0, 0.5]


def test_momenta_on_the_lattice_are_the_same_modulo_the_extent():
    a, b = wall_source(G, 0, (1, 1, 1)).columns([0]), wall_source(G, 0, (5, -2, 3)).columns([0])
    assert (a == b).all()


def test_other_numbers_of_colors():
    g = LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=2)
    assert len(point_source(g)) == len(noise_source(g, 1, "z2")) == 8
    assert (point_source(g).columns()[:, 0, 0, 0, 0].reshape(8, 8) == np.eye(8)).all()


@pytest.mark.parametrize(
    "make, word",
    [
        (lambda: point_source(G, t=4), "t=4"),
        (lambda: point_source(G, x=-1), "x=-1"),
        (lambda: wall_source(G, 0, (0.5, 0, 0)), "three whole numbers"),
        (lambda: wall_source(G, 0, (1, 0)), "three whole numbers"),
        (lambda: wall_source(G, 0, 3), "three whole numbers"),
        (lambda: momentum_source(G, (0, 0, 0), t=1, frequency=0.5), "frequency"),
        (lambda: noise_source(G, 1, "z3"), "did you mean"),
        (lambda: noise_source(G, 1, "z2", dilution=("colour",)), "did you mean 'color'"),
        (lambda: noise_source(G, 1, "z2", t=1, dilution=("time",)), "time"),
        (lambda: noise_source(G, -1, "z2"), "seed"),
        (lambda: noise_source(G, 1, "z2", sample=-1), "sample"),
        (lambda: ALL["point"].columns([]), "empty"),
        (lambda: ALL["point"].columns([12]), "0..11"),
        (lambda: ColorSpinorField.z2(G, 1, n_rhs=0), "n_rhs"),
        (lambda: ColorSpinorField.wall(G, 0, spin=4), "spin=4"),
    ],
)
def test_requests_that_make_no_sense_are_refused(make, word):
    with pytest.raises(ParameterError, match=word):
        make()


def test_a_source_that_is_no_full_set_makes_no_propagator():
    source = ALL["gaussian"]  # 4 slices x 3 colours: twelve columns, and yet no propagator
    assert len(source) == 12 and not source.makes_propagator and ALL["z2"].makes_propagator
    with pytest.raises(FieldShapeError, match="dilute"):
        source.make_propagator(source.columns())


@pytest.mark.parametrize("name", ALL)
def test_slabs_of_a_column_are_the_column(name):
    source = ALL[name]
    edges = [0, 1, 3, source.geometry.T]
    slabs = [source.slab(a, b) for a, b in itertools.pairwise(edges)]
    columns = [0, source.n_columns - 1]
    assert np.array_equal(np.concatenate([s.columns(columns) for s in slabs], axis=1), source.columns(columns))
    assert all(s.describe() == source.describe() for s in slabs)
    with pytest.raises(ParameterError, match="outside"):
        source.slab(2, source.geometry.T + 1)

"""Generating configurations: the chain's bits survive interruptions, and damaged or foreign checkpoints are refused."""

import json
import os
import stat

import numpy as np
import pytest

from lqcd_core import gauge as gg
from lqcd_core.errors import FileError, FileFormatError, ParameterError
from lqcd_core.fields import GaugeField
from lqcd_core.geometry import LatticeGeometry

GEOMETRY = LatticeGeometry(T=4, Z=2, Y=2, X=4)
RUN = dict(thermalization=7, separation=4, configurations=3, overrelaxation=2, start="hot")


class Stop(Exception):
    pass


def run(**changes):
    return list(gg.generate(GEOMETRY, changes.pop("beta", 5.5), changes.pop("seed", 3), **{**RUN, **changes}))


@pytest.fixture(scope="module")
def uninterrupted():
    return run()


def test_configurations_come_after_the_sweeps_asked_for(uninterrupted):
    assert [(i, info.index, info.sweep) for i, _, info in uninterrupted] == [(0, 0, 7), (1, 1, 11), (2, 2, 15)]
    for _, u, info in uninterrupted:
        assert isinstance(u, GaugeField) and u.precision.name == "double"
        assert u.unitarity() < 1e-13
        assert info.plaquette == pytest.approx(gg.plaquette(u), abs=1e-14)
        assert len(info.history) == info.sweep and info.history[-1] == info.plaquette
        assert u.origin["beta"] == 5.5 and u.origin["seed"] == 3 and u.origin["sweep"] == info.sweep
        json.dumps(u.origin)  # it goes into file headers


def test_the_chain_is_its_sweeps(uninterrupted):
    u = GaugeField.random(GEOMETRY, seed=3)
    for sweep in range(7):
        u = gg.overrelaxation_sweep(gg.heatbath_sweep(u, 5.5, 3, sweep), 2)
    np.testing.assert_array_equal(u.array, uninterrupted[0][1].array)


def test_runs_are_reproducible_and_seeds_differ(uninterrupted):
    assert [u.digest() for _, u, _ in run()] == [u.digest() for _, u, _ in uninterrupted]
    assert run(seed=4)[0][1].digest() != uninterrupted[0][1].digest()
    assert run(start="cold")[0][1].digest() != uninterrupted[0][1].digest()


@pytest.mark.parametrize("stop", [1, 7, 9, 15])
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_stopped_at_any_sweep_resumes_to_the_same_bits(tmp_path, uninterrupted, stop, every):
    path = tmp_path / "chain.npz"
    got = {}

    def callback(report):
        if report.sweep == stop:
            raise Stop

    options = dict(checkpoint=path, checkpoint_every=every)
    with pytest.raises(Stop):
        for i, u, _ in gg.generate(GEOMETRY, 5.5, 3, **RUN, **options, callback=callback):
            got[i] = u.digest()
    for i, u, info in gg.generate(GEOMETRY, 5.5, 3, **RUN, **options):
        assert got.get(i, u.digest()) == u.digest()
        got[i] = u.digest()
        np.testing.assert_array_equal(info.history, uninterrupted[i][2].history)
    assert [got[i] for i in range(3)] == [u.digest() for _, u, _ in uninterrupted]
    assert os.listdir(tmp_path) == ["chain.npz"]


def test_a_consumer_that_dies_gets_its_configuration_again(tmp_path, uninterrupted):
    path = tmp_path / "chain.npz"
    iterator = gg.generate(GEOMETRY, 5.5, 3, **RUN, checkpoint=path)
    next(iterator), next(iterator)
    iterator.close()  # before configuration 1 was acknowledged
    again = [(i, u.digest()) for i, u, _ in run(checkpoint=path)]
    assert again == [(i, u.digest()) for i, u, _ in uninterrupted[1:]]


def test_a_finished_run_yields_nothing_more_and_can_be_prolonged(tmp_path, uninterrupted):
    path = tmp_path / "chain.npz"
    assert len(run(checkpoint=path, configurations=2)) == 2
    assert run(checkpoint=path, configurations=2) == []
    more = run(checkpoint=path, configurations=3)
    assert [(i, u.digest()) for i, u, _ in more] == [(2, uninterrupted[2][1].digest())]


def test_callback_sees_every_sweep():
    reports = []
    run(callback=reports.append, configurations=2)
    assert [r.sweep for r in reports] == list(range(1, 12))
    assert [r.thermalized for r in reports] == [False] * 7 + [True] * 4
    assert {r.total for r in reports} == {11}
    assert all(-0.5 <= r.plaquette <= 1 and r.seconds >= 0 for r in reports)


def test_no_thermalization_starts_with_the_start():
    (_, u, info), *_ = run(thermalization=0, start="cold", configurations=1)
    assert info.sweep == 0 and info.plaquette == 1.0 and gg.plaquette(u) == 1.0


def test_links_stay_unitary_over_many_sweeps():
    *_, (_, u, _) = run(thermalization=150, configurations=1, overrelaxation=1)
    assert u.unitarity() < 1e-13


@pytest.mark.parametrize(
    "change", [dict(beta=5.6), dict(seed=4), dict(start="cold"), dict(overrelaxation=3), dict(separation=5)]
)
def test_a_checkpoint_of_another_chain_is_refused(tmp_path, change):
    path = tmp_path / "chain.npz"
    run(checkpoint=path, configurations=1)
    before = path.read_bytes()
    (name,) = change
    with pytest.raises(ParameterError, match=name):
        run(checkpoint=path, **change)
    assert path.read_bytes() == before


def test_a_checkpoint_of_another_lattice_is_refused(tmp_path):
    path = tmp_path / "chain.npz"
    run(checkpoint=path, configurations=1)
    for other in (LatticeGeometry(T=2, Z=2, Y=2, X=4), LatticeGeometry(T=4, Z=2, Y=2, X=4, nc=2)):
        with pytest.raises(ParameterError, match=r"shape|nc"):
            gg.generate(other, 5.5, 3, **RUN, checkpoint=path)


def test_damaged_checkpoints_are_refused(tmp_path):
    path = tmp_path / "chain.npz"
    run(checkpoint=path, configurations=1)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    np.save(tmp_path / "array.npy", np.ones(3))
    for bad in (
        b"",
        good[:100],
        good[:-200],
        bytes(flipped),
        b"plainly no checkpoint",
        (tmp_path / "array.npy").read_bytes(),
    ):
        path.write_bytes(bad)
        with pytest.raises(FileFormatError, match=r"damaged|digest"):
            run(checkpoint=path)
        assert path.read_bytes() == bad  # never overwritten: it may be the only copy of a long run


def test_a_checkpoint_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(FileError, match="name a directory"):
        gg.generate(GEOMETRY, 5.5, 3, **RUN, checkpoint=tmp_path / "absent" / "chain.npz")
    if os.geteuid() != 0:  # root writes everywhere
        locked = tmp_path / "locked"
        locked.mkdir()
        locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(FileError, match="name a directory"):
            gg.generate(GEOMETRY, 5.5, 3, **RUN, checkpoint=locked / "chain.npz")
    with pytest.raises(FileError):
        run(checkpoint=tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        dict(beta=float("nan")),
        dict(beta=True),
        dict(seed=-1),
        dict(seed=2**64),
        dict(seed=1.0),
        dict(thermalization=-1),
        dict(separation=0),
        dict(configurations=0),
        dict(overrelaxation=-1),
        dict(overrelaxation=1.5),
        dict(start="warm"),
        dict(checkpoint_every=0),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_sweep(change):
    with pytest.raises(ParameterError):
        gg.generate(GEOMETRY, change.pop("beta", 5.5), change.pop("seed", 3), **{**RUN, **change})

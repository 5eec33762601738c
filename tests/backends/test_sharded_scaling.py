"""The scaling model against cases worked out by hand, and its limits. No time is asserted."""

from __future__ import annotations

import json
import multiprocessing
import types

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lqcd_backends.sharded.scaling import Machine, Measured, _answer, face_bytes, measure, predict, scaling

from lqcd_core.errors import BackendError, ParameterError, UnknownBackendError
from lqcd_core.geometry import LatticeGeometry

G = LatticeGeometry(T=16, Z=4, Y=4, X=4)
M = Machine(site_seconds=1e-7, vector_seconds=5e-8, command_seconds=1e-5, latency=2e-5, bandwidth=1e9)


def test_a_case_by_hand():
    """T = 16 on 4 hosts, 64 sites a slice, 3 right-hand sides, double: faces of 64 * 3 * 6 * 16 = 18432 bytes."""
    assert face_bytes(G, 3, "double") == 18432
    p = predict(G, 3, "double", M, 4)
    slice_seconds = 64 * 3 * 1e-7  # 19.2 us
    exchange = 2 * (2e-5 + 18432e-9)  # 76.864 us: more than the interior of two slices
    assert p.slices == 4
    assert p.hop == pytest.approx(1e-5 + exchange + 2 * slice_seconds)
    assert p.hidden == pytest.approx(2 * slice_seconds / exchange)
    total = 2 * 2 * 2e-5 + 8 * 16 * 3 / 1e9
    vectors = 4 * 64 * 3 * 5e-8
    assert p.iteration == pytest.approx(2 * p.hop + vectors + 2 * (total + 1e-5))


def test_one_host_pays_for_no_network():
    p = predict(G, 3, "double", attrs.evolve(M, latency=1e3), 1)
    assert p.hop == pytest.approx(1e-5 + 16 * 64 * 3 * 1e-7) and p.hidden == 1


def test_without_network_and_overhead_scaling_is_perfect():
    ideal = attrs.evolve(M, latency=0.0, bandwidth=1e300, command_seconds=0.0)
    for weak in (True, False):
        points = scaling(G, 3, "single", ideal, weak, hosts=(1, 2, 4, 8))
        assert [p.efficiency for p in points] == pytest.approx([1.0] * 4)


def test_uneven_slabs_go_by_the_largest():
    g = LatticeGeometry(T=12, Z=2, Y=2, X=2)
    assert [p.slices for p in scaling(g, 1, "single", M, weak=False, hosts=(1, 2, 3, 4, 5, 6))] == [12, 6, 4, 4, 4, 2]


@given(
    hosts=st.sampled_from([2, 4, 8]), n=st.integers(1, 16), latency=st.floats(0, 1e-2), more=st.floats(0, 1e-2),
    bandwidth=st.floats(1e6, 1e11),
)  # fmt: skip
def test_a_worse_network_is_never_faster(hosts, n, latency, more, bandwidth):
    good = attrs.evolve(M, latency=latency, bandwidth=bandwidth)
    bad = attrs.evolve(M, latency=latency + more, bandwidth=bandwidth / (1 + more))
    a, b = predict(G, n, "single", good, hosts), predict(G, n, "single", bad, hosts)
    assert a.hop <= b.hop and a.iteration <= b.iteration and 0 <= b.hidden <= a.hidden <= 1


@pytest.mark.parametrize(
    "change",
    [
        {"site_seconds": 0.0},
        {"site_seconds": float("nan")},
        {"bandwidth": 0.0},
        {"latency": -1.0},
        {"vector_seconds": "fast"},
    ],
)
def test_numbers_that_make_no_sense_are_refused(change):
    with pytest.raises(ParameterError):
        attrs.evolve(M, **change)


def test_more_hosts_than_pairs_of_slices_are_refused():
    with pytest.raises(ParameterError, match="at least two time slices"):
        predict(G, 1, "single", M, 9)


def test_the_measurement_measures_both(tmp_path):
    found = measure("numpy", LatticeGeometry(T=8, Z=2, Y=2, X=2), 2, "double", repeats=3)
    assert isinstance(found, Measured) and set(found.hop) == set(found.iteration) == {1, 2}
    assert all(t > 0 for each in (found.hop, found.iteration) for pair in each.values() for t in pair)


def test_a_backend_that_is_not_there_ends_the_measurement_with_its_reason():
    with pytest.raises(UnknownBackendError, match="nummpy"):
        measure("nummpy", LatticeGeometry(T=8, Z=2, Y=2, X=2), 1, "double", repeats=3)
    with pytest.raises(ParameterError, match="two time slices each"):
        measure("numpy", LatticeGeometry(T=2, Z=2, Y=2, X=2), 1, "double", repeats=3)


def test_a_process_that_dies_ends_the_wait():
    with pytest.raises(BackendError, match="ended with code -9"):
        _answer(multiprocessing.get_context("spawn").Queue(), [types.SimpleNamespace(exitcode=-9)])


def test_the_command_prints_the_prediction_as_table_and_json(lqcd):
    words = ["plan", "--scaling", "--lattice", "8x8x8x8", "--site-ns", "100", "--latency-us", "5"]
    assert "weak scaling of 8x8x8x8" in lqcd(*words).output
    points = json.loads(lqcd(*words, "--json").output)["points"]
    assert [p["hosts"] for p in points] == [1, 2, 4, 8, 16, 32, 64]
    lqcd("plan", "--scaling", code=2)
    lqcd("plan", code=2)
    lqcd(*words, "--measure", code=2)
    assert "go with --site-ns" in lqcd("plan", "--scaling", "--measure", "--command-us", "1", code=2).output
    lqcd("plan", "--scaling", "--site-ns", "-1", code=2)
    lqcd("plan", "--scaling", "--site-ns", "1", "--lattice", "8x8", code=2)

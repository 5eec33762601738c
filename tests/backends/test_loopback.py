"""The fake backends obey every law, and a core or a solver that looks into a handle fails on them."""

import copy

import numpy as np
import pytest

from lqcd_core import CloverWilsonDirac, ColorSpinorField, GaugeField, LatticeGeometry, TwistedMassDirac, WilsonDirac
from lqcd_core.selection import backends
from lqcd_core.testing import loopback as plugin
from lqcd_core.testing.conformance import BackendConformance, DeviceSolveConformance, GaugeConformance

G = LatticeGeometry(T=4, Z=2, Y=2, X=2)
U = GaugeField.random(G, seed=1)
PSI = ColorSpinorField.gaussian(G, seed=2, n_rhs=2)


class TestMinimal(BackendConformance):
    plugin, backend = plugin, "loopback"


class TestFull(BackendConformance):
    plugin, backend = plugin, "loopback-full"


class TestSolving(DeviceSolveConformance):
    plugin, backend, precisions, ncs = plugin, "loopback-solves", ("double", "single"), (3,)


class TestLinkFormulas(GaugeConformance):
    plugin, backend, precisions = plugin, "loopback-solves", ("double",)


def test_users_never_see_it():
    assert not {"loopback", "loopback-full"} & set(backends())


def test_it_is_gone_after_the_block(loopback):
    with plugin.register_loopback():
        pass
    assert "loopback" in backends()


@pytest.mark.parametrize(
    "peek",
    [
        lambda h: h[0], lambda h: len(h), lambda h: list(h), lambda h: h + h, lambda h: 2 * h, lambda h: -h,
        lambda h: np.asarray(h), lambda h: np.float64(2) * h, lambda h: bool(h), lambda h: h @ h, lambda h: 0 in h,
        lambda h: h.__setitem__(0, 1), lambda h: copy.copy(h), lambda h: copy.deepcopy(h), lambda h: abs(h),
    ],
)  # fmt: skip
def test_handles_are_sealed(loopback, peek):
    m = WilsonDirac(mass=0.1).bind(U, backend="loopback", n_rhs=2)
    with pytest.raises(AssertionError, match="looked into"):
        peek(m.space.pack(PSI.array))


def test_a_consumed_handle_is_poisoned(loopback):
    space = WilsonDirac(mass=0.1).bind(U, backend="loopback", n_rhs=2).space
    x, y = space.pack(PSI.array), space.zeros()
    space.axpy(1.0, x, y)
    with pytest.raises(AssertionError, match="after axpy consumed it"):
        space.norm2(y)
    space.norm2(x)


def test_a_handle_belongs_to_one_kind_of_space(loopback):
    double = WilsonDirac(mass=0.1).bind(U, backend="loopback", n_rhs=2)
    single = double.rebind(precision="single")
    with pytest.raises(AssertionError, match="was given to the space"):
        single.space.norm2(double.space.pack(PSI.array))


OPERATORS = [
    WilsonDirac(mass=0.1), TwistedMassDirac(mass=0.1, mu=0.2), CloverWilsonDirac(mass=0.1, csw=1.0),
    TwistedMassDirac(mass=0.1, mu=0.2, csw=1.0),
]  # fmt: skip


@pytest.mark.parametrize("name", ["loopback", "loopback-full"])
@pytest.mark.parametrize("definition", OPERATORS, ids=lambda d: d.name)
def test_no_spinor_crosses_during_an_application(loopback, definition, name):
    if name == "loopback" and "clover" in definition.name:
        pytest.skip("without SupportsSiteDiagonal the derived clover term goes through the host")
    m = definition.bind(U, backend=name, n_rhs=2)
    s = m.even_odd()
    x, (x_p, x_q) = m.vectors.pack(PSI.array), s.split(PSI.array)
    with m.backend.crossings.none_allowed():
        for function in (m.apply, m.apply_dagger, m.apply_normal, m.normal_linear, m.hermitian_linear):
            function(x)
        for function in (s.apply, s.apply_dagger, s.apply_normal):
            function(x_p)
        s.reconstruct(s.prepare(x_p, x_q), x_q)


def test_the_derived_clover_term_crosses_twice(loopback):
    m = CloverWilsonDirac(mass=0.1, csw=1.0).bind(U, backend="loopback", n_rhs=2)
    x = m.vectors.pack(PSI.array)
    before = m.backend.crossings.total
    m.apply(x)
    assert m.backend.crossings.total - before == 2


def test_a_host_call_crosses_once_each_way(loopback):
    m = WilsonDirac(mass=0.1).bind(U, backend="loopback", n_rhs=2)
    crossings = m.backend.crossings
    before = (crossings.pack, crossings.unpack)
    m.normal(PSI)
    assert (crossings.pack - before[0], crossings.unpack - before[1]) == (1, 1)


def test_the_crossing_count_catches_a_peek(loopback):
    m = WilsonDirac(mass=0.1).bind(U, backend="loopback", n_rhs=2)
    x = m.vectors.pack(PSI.array)
    with pytest.raises(AssertionError, match="1 unpack"), m.backend.crossings.none_allowed():
        m.vectors.unpack(x)


@pytest.mark.parametrize("name", ["loopback", "loopback-full"])
@pytest.mark.parametrize("definition", OPERATORS, ids=lambda d: d.name)
def test_it_agrees_with_numpy(loopback, definition, name):
    ours, theirs = (definition.bind(U, backend=b, n_rhs=2)(PSI).array for b in (name, "numpy"))
    assert np.linalg.norm(ours - theirs) <= 1e-14 * np.linalg.norm(theirs)

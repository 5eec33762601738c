"""What a solver sees: linear maps on handles, their adjoints and products."""

import numpy as np
import pytest

from lqcd_core import ColorSpinorField, GaugeField, LatticeGeometry, TwistedMassDirac, WilsonDirac

G = LatticeGeometry(T=4, Z=2, Y=2, X=2)
U = GaugeField.random(G, seed=1)
X, Y = (ColorSpinorField.gaussian(G, seed=s, n_rhs=2).array for s in (2, 3))


@pytest.fixture(params=["numpy", "loopback", "loopback-full"])
def bound(request, loopback):
    return TwistedMassDirac(mass=0.1, mu=0.2).bind(U, backend=request.param, n_rhs=2)


def adjoint_error(operator):
    v = operator.vectors
    x, y = v.pack(X), v.pack(Y)
    return np.abs(v.inner(x, operator(y)) - v.inner(operator.dagger(x), y)).max() / np.abs(v.norm2(x)).max()


def test_dagger_of_each_is_its_adjoint(bound):
    for operator in (
        bound.linear,
        bound.linear.dagger,
        bound.normal_linear,
        bound.hermitian_linear,
        bound.linear.normal,
    ):
        assert adjoint_error(operator) < 1e-14


def test_what_is_said_of_each_is_true(bound):
    assert not bound.linear.hermitian and not bound.hermitian_linear.hermitian  # a twist: gamma5 M is not Hermitian
    assert WilsonDirac(mass=0.1).bind(U).hermitian_linear.hermitian
    assert bound.normal_linear.hermitian and bound.normal_linear.positive
    v = bound.vectors
    x = v.pack(X)
    product = v.inner(x, bound.normal_linear(x))
    assert (product.real > 0).all() and np.abs(product.imag).max() < 1e-12 * product.real.max()


def test_normal_of_linear_is_the_normal_operator(bound):
    v = bound.vectors
    got, want = v.unpack(bound.linear.normal(v.pack(X))), v.unpack(bound.normal_linear(v.pack(X)))
    assert np.linalg.norm(got - want) < 1e-14 * np.linalg.norm(want)


def test_dagger_of_dagger_is_the_operator(bound):
    v = bound.vectors
    got, want = v.unpack(bound.linear.dagger.dagger(v.pack(X))), v.unpack(bound.linear(v.pack(X)))
    assert np.array_equal(got, want)


def test_rebinding_keeps_what_the_operator_is(bound):
    for operator in (
        bound.linear,
        bound.linear.dagger,
        bound.normal_linear,
        bound.even_odd().linear,
        bound.linear.normal,
    ):
        low = operator.rebind(precision="single")
        if operator.vectors.space.parity is None:
            got = low.vectors.unpack(low(low.vectors.pack(X.astype("complex64"))))
            want = operator.vectors.unpack(operator(operator.vectors.pack(X)))
            assert np.linalg.norm(got - want) < 2e-5 * np.linalg.norm(want)
        assert (low.vectors.precision.name, low.hermitian, low.name) == ("single", operator.hermitian, operator.name)

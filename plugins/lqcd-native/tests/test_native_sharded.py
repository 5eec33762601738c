"""``sharded`` over ``native``: cutting the lattice changes no bit of an operator or of a solve."""

import numpy as np
import pytest

import lqcd_core as lqcd

BATCHES = (1, 3)


def cut(shards, executor="threads"):
    return "sharded", {"inner": "native", "shards": shards, "executor": executor}


@pytest.fixture(scope="module")
def gauge():
    return lqcd.GaugeField.random(lqcd.LatticeGeometry(T=8, Z=4, Y=4, X=4), seed=1)


def source(U, n):
    rng = np.random.default_rng(2)
    shape = (n, *U.geometry.spinor_shape)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


@pytest.mark.parametrize("precision", ["double", "single", "half", "fixed16"])
@pytest.mark.parametrize("n", BATCHES)
@pytest.mark.parametrize("shards", [2, 3])
def test_operators_have_the_bits_of_the_uncut_lattice(gauge, shards, n, precision):
    psi = source(gauge, n)
    for definition in (lqcd.WilsonDirac(mass=0.4), lqcd.CloverWilsonDirac(mass=0.4, csw=1.0)):
        whole, slabs = (
            definition.bind(gauge, backend=backend, precision=precision, n_rhs=n) for backend in ("native", cut(shards))
        )
        x, y = whole.space.pack(psi), slabs.space.pack(psi)
        for name in ("hopping", "apply", "apply_dagger"):
            np.testing.assert_array_equal(
                slabs.space.unpack(getattr(slabs, name)(y)), whole.space.unpack(getattr(whole, name)(x)), err_msg=name
            )


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("n", BATCHES)
@pytest.mark.parametrize("even_odd", [False, True])
def test_a_solve_has_the_same_bits_for_any_number_of_shards(gauge, even_odd, n, precision):
    # Uncut, the Schur complement is one kernel that rounds its last step once; cut, it is made of hops and A.
    backends = [cut(2), cut(3), cut(4), cut(2, "processes"), *([] if even_odd else ["native"])]
    solver, histories, solutions = lqcd.ConjugateGradient(tol=1e-5, maxiter=200), [], []
    for backend in backends:
        M = lqcd.WilsonDirac(mass=0.4).bind(gauge, backend=backend, precision=precision, n_rhs=n)
        b = source(gauge, n).astype(M.precision.complex_dtype)
        solution = lqcd.solve(M, b, solver=solver, even_odd=even_odd, device_solve=False)
        histories.append(np.asarray(solution.info.history))
        solutions.append(np.asarray(solution.x))
    for history, x in zip(histories[1:], solutions[1:], strict=True):
        np.testing.assert_array_equal(history, histories[0])
        np.testing.assert_array_equal(x, solutions[0])
    assert len(histories[0]) > 5

"""The condensate: the estimator itself, its mean against the exact trace, and its sign."""

import attrs
import numpy as np
import pytest
from hadrons_dense import DenseSolver, smooth_field

from lqcd_core.errors import FieldShapeError, NotConvergedError, ParameterError
from lqcd_core.fields import GaugeField
from lqcd_core.free_field import free_spin_propagator
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.hadrons import noise_source, quark_condensate

G = LatticeGeometry(T=4, Z=2, Y=2, X=3)
SOLVER = DenseSolver(smooth_field(G, seed=31), mass=0.4)
EXACT = float(np.trace(SOLVER.inverse).real / G.volume)


def test_trace_is_real_and_positive():
    assert abs(np.trace(SOLVER.inverse).imag) < 1e-12
    assert EXACT > 0


@pytest.mark.parametrize("noise", ["z2", "z4", "gaussian"])
@pytest.mark.parametrize("dilution", [(), ("spin", "color"), ("time",)])
def test_mean_over_noise_is_the_trace_within_errors(noise, dilution):
    c = quark_condensate(SOLVER, G, seed=2, n_noise=100, noise=noise, dilution=dilution)
    assert 0 < c.error < 0.05 * EXACT
    assert abs(c.value - EXACT) < 4 * c.error
    assert np.isclose(c.error, c.samples.std(ddof=1) / 10, rtol=1e-10)


def test_a_sample_is_the_quadratic_form_written_out():
    c = quark_condensate(SOLVER.solve, G, seed=2, n_noise=2, noise="z4")
    for k in range(2):
        eta = noise_source(G, 2, "z4", dilution=(), sample=k).columns()[0].ravel()
        assert abs(c.samples[k] - np.vdot(eta, SOLVER.inverse @ eta).real / G.volume) < 1e-13
    assert c.parameters["seed"] == 2 and c.parameters["noise"] == "z4"


def test_batches_do_not_change_the_result():
    a = quark_condensate(SOLVER, G, seed=2, n_noise=1, dilution=("spin", "color"), batch=5)
    b = quark_condensate(SOLVER, G, seed=2, n_noise=1, dilution=("spin", "color"))
    assert np.abs(a.samples - b.samples).max() < 1e-13
    assert np.isnan(a.error)


def test_free_field_against_the_momentum_sum():
    free = DenseSolver(GaugeField.cold(G), mass=0.4)
    exact = 3 * np.trace(free_spin_propagator(G, 0.4)[0, 0, 0, 0]).real
    assert abs(np.trace(free.inverse).real / G.volume - exact) < 1e-13
    c = quark_condensate(free, G, seed=3, n_noise=60)
    assert abs(c.value - exact) < 4 * c.error


@attrs.frozen
class Info:
    converged: bool
    reason: str = "the maximum number of iterations was reached"


@attrs.frozen
class Solved:
    x: np.ndarray
    info: Info


def test_solutions_may_come_as_a_record_or_a_pair():
    want = quark_condensate(SOLVER, G, seed=2, n_noise=2).samples
    for wrap in (lambda x: Solved(x, Info(True)), lambda x: (x, Info(True)), lambda x: (x, None)):
        assert (
            quark_condensate(lambda b, wrap=wrap: wrap(SOLVER.solve(b)), G, seed=2, n_noise=2).samples == want
        ).all()


def test_a_solve_that_did_not_converge_is_no_condensate():
    for wrap in (lambda x: Solved(x, Info(False)), lambda x: (x, Info(False))):
        with pytest.raises(NotConvergedError, match="maximum number of iterations"):
            quark_condensate(lambda b, wrap=wrap: wrap(SOLVER.solve(b)), G, seed=2, n_noise=2)


def test_requests_that_make_no_sense_are_refused():
    with pytest.raises(ParameterError, match="n_noise"):
        quark_condensate(SOLVER, G, seed=1, n_noise=0)
    with pytest.raises(ParameterError, match="batch"):
        quark_condensate(SOLVER, G, seed=1, n_noise=1, batch=0)
    with pytest.raises(ParameterError, match="unknown"):
        quark_condensate(SOLVER, G, seed=1, n_noise=1, noise="z8")
    with pytest.raises(FieldShapeError, match="solve gave"):
        quark_condensate(lambda b: b[0], G, seed=1, n_noise=1)

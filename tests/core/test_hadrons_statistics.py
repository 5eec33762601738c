"""Resampling: identities that hold for any data, and coverage on data of known spread."""

import numpy as np
import pytest

from lqcd_core.errors import FieldShapeError, ParameterError
from lqcd_core.hadrons import bin_samples, bootstrap, covariance, jackknife
from lqcd_core.hadrons.statistics import jackknife_means

X = np.random.default_rng(3).normal(size=(24, 5)) * [1, 2, 3, 4, 5] + 10


def test_jackknife_of_the_mean_is_the_standard_error():
    e = jackknife(X)
    assert np.allclose(e.value, X.mean(axis=0), rtol=1e-14)
    assert np.allclose(e.error, X.std(axis=0, ddof=1) / np.sqrt(24), rtol=1e-13)
    z = X[:, 0] + 1j * X[:, 1]
    assert np.isclose(jackknife(z).error, np.hypot(e.error[0], e.error[1]), rtol=1e-13)


def test_jackknife_propagates_errors_like_the_derivative():
    small = 1 + 1e-4 * (X - 10)
    e = jackknife(small, lambda m: np.log(m[0]) * m[1] ** 2)
    gradient = small[:, 0] / small[:, 0].mean() * small[:, 1].mean() ** 2 + 2 * np.log(small[:, 0].mean()) * small[:, 1]
    assert abs(e.error / (gradient.std(ddof=1) / np.sqrt(24)) - 1) < 1e-3


def test_jackknife_means_leave_one_out():
    means = jackknife_means(X)
    assert np.allclose(means[7], np.delete(X, 7, axis=0).mean(axis=0), rtol=1e-14)


def test_binning():
    b = bin_samples(X, 5)
    assert b.shape == (4, 5) and np.allclose(b[3], X[15:20].mean(axis=0), rtol=1e-15)
    assert (bin_samples(X, 1) == X).all()
    repeated = np.repeat(X, 4, axis=0)  # every configuration four times: only bins see that nothing was learnt
    assert np.allclose(jackknife(repeated, bin_size=4).error, jackknife(X).error, rtol=1e-12)
    assert (jackknife(repeated).error < 0.6 * jackknife(X).error).all()
    assert bin_samples([1, 2, 4], 3) == pytest.approx(7 / 3)


def test_covariance_is_that_of_the_mean():
    c = covariance(X)
    assert np.allclose(np.sqrt(np.diag(c)), jackknife(X).error, rtol=1e-13)
    assert np.allclose(c, np.cov(X.T) / 24, rtol=1e-12)
    assert np.allclose(covariance(X, 3), np.cov(bin_samples(X, 3).T) / 8, rtol=1e-12)


def test_bootstrap_agrees_with_the_jackknife_and_repeats_itself():
    e = bootstrap(X, draws=4000, seed=5)
    # The naive bootstrap spread is sqrt((N-1)/N) of the standard error; its own error is 1/sqrt(2 draws).
    want = jackknife(X).error * np.sqrt(23 / 24)
    assert np.abs(e.error / want - 1).max() < 5 / np.sqrt(2 * 4000)
    again = bootstrap(X, draws=4000, seed=5)
    assert (again.samples == e.samples).all()
    assert not (bootstrap(X, draws=4000, seed=6).samples == e.samples).all()


def test_inputs_are_not_changed_and_integers_are_welcome():
    before = X.copy()
    jackknife(X), covariance(X), bootstrap(X, draws=2, seed=1)
    assert (X == before).all()
    assert float(jackknife([1, 2, 3]).value) == 2.0


def test_requests_that_make_no_sense_are_refused():
    for size in (0, -1, 1.5, True):
        with pytest.raises(ParameterError, match="bin size"):
            bin_samples(X, size)
    with pytest.raises(ParameterError, match="does not fit"):
        bin_samples(X, 25)
    with pytest.raises(ParameterError, match="two bins"):
        jackknife(X, bin_size=13)
    with pytest.raises(ParameterError):
        bootstrap(X, draws=1, seed=1)
    with pytest.raises(ParameterError, match="real"):
        covariance(X + 0j)
    with pytest.raises(FieldShapeError):
        covariance(X[:, 0])
    with pytest.raises(FieldShapeError):
        jackknife([])
    with pytest.raises(ParameterError, match="numbers"):
        jackknife(["a", "b"])

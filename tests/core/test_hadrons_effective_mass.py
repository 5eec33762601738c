"""Effective masses: exact on the functions they are made for, NaN where there is no answer."""

import numpy as np
import pytest

from lqcd_core.errors import FieldShapeError, FieldTypeError, ParameterError
from lqcd_core.hadrons import effective_mass, effective_mass_jackknife

MASSES = [1e-3, 0.05, 0.7, 4.0, 30.0]


def periodic(m, T, sign=1):
    t = np.arange(T)
    return 3.7 * (np.exp(-m * t) + sign * np.exp(-m * (T - t)))


def solvable(m, T):
    """Points where rounding of the correlator leaves something of the mass: |m u| not tiny."""
    return np.arange(T - 1)[np.abs(m * (np.arange(T - 1) + 0.5 - T / 2)) > 1e-3 * 0.4]


@pytest.mark.parametrize("T", [8, 9, 16])
@pytest.mark.parametrize("m", MASSES)
def test_cosh_mass_is_exact(m, T):
    found = effective_mass(periodic(m, T), "cosh")
    assert found.shape == (T,) and np.isnan(found[-1])
    at = solvable(m, T)
    at = at[2 * at + 1 != T]
    assert at.size
    assert np.abs(found[at] / m - 1).max() < 1e-8  # m = 1e-3: the ratio differs from 1 by m^2 only
    if m > 0.04:
        assert np.abs(found[at] / m - 1).max() < 1e-10
    if T % 2:
        assert np.isnan(found[(T - 1) // 2])


@pytest.mark.parametrize("m", MASSES[1:4])
def test_sinh_mass_is_exact(m):
    T = 12
    found = effective_mass(periodic(m, T, -1), "sinh")
    defined = [t for t in range(T - 1) if t not in (5, 6)]  # next to the zero in the middle there is no ratio
    assert np.abs(found[defined] / m - 1).max() < 1e-10
    assert np.isnan(found[[5, 6, 11]]).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("m", MASSES[1:4])
def test_acosh_mass_is_exact_for_both_symmetries(m, sign):
    T = 11
    found = effective_mass(periodic(m, T, sign), "acosh")
    assert np.abs(found[1:-1] / m - 1).max() < 1e-9
    assert np.isnan(found[[0, -1]]).all()


def test_log_mass_is_exact_and_may_be_negative():
    assert np.abs(effective_mass(np.exp(-0.3 * np.arange(7)), "log")[:-1] - 0.3).max() < 1e-14
    assert np.abs(effective_mass(-np.exp(0.3 * np.arange(7)), "log")[:-1] + 0.3).max() < 1e-14
    both = effective_mass(np.stack([periodic(0.5, 8), periodic(0.9, 8)]), "cosh")
    assert np.abs(both[:, 0] - [0.5, 0.9]).max() < 1e-14


def test_constant_correlator_has_mass_zero():
    # The ratio is 1 + O(m^2): one rounding of it is a mass of sqrt(epsilon) = 1.5e-8.
    assert np.abs(effective_mass(np.ones(8), "cosh")[:-1]).max() < 1.5e-8
    assert (effective_mass(np.ones(8), "acosh")[1:-1] == 0).all()


@pytest.mark.parametrize("kind", ["log", "cosh", "sinh", "acosh"])
def test_bad_points_are_nan_and_nothing_else(kind):
    C = periodic(0.5, 16, -1 if kind == "sinh" else 1)
    good = effective_mass(C, kind)
    C[4] = -C[4]
    C[12] = np.nan
    with np.errstate(all="raise"):
        found = effective_mass(C, kind)
    touched = {3, 4, 11, 12} | ({5, 13} if kind == "acosh" else set())
    for t in range(16):
        if t in touched:
            assert np.isnan(found[t]) or (kind == "acosh" and t in (3, 5) and not np.isclose(found[t], 0.5))
        else:
            assert found[t] == good[t] or (np.isnan(found[t]) and np.isnan(good[t]))
    assert np.isnan(effective_mass(np.zeros(6), kind)).all()


def test_jackknife_error_follows_the_error_of_the_correlator():
    """m = ln C0/C1: to first order sigma_m^2 is the variance of dC0/C0 - dC1/C1."""
    r = np.random.default_rng(1)
    t = np.arange(6)
    x = np.exp(-0.4 * t) * (1 + 1e-4 * r.normal(size=(50, 6)))
    e = effective_mass_jackknife(x, "log")
    assert np.allclose(e.value[:-1], effective_mass(x.mean(axis=0), "log")[:-1], rtol=1e-14)
    relative = x / x.mean(axis=0)
    want = (relative[:, :-1] - relative[:, 1:]).std(axis=0, ddof=1) / np.sqrt(50)
    assert np.abs(e.error[:-1] / want - 1).max() < 1e-3
    assert np.isnan(e.error[-1])


def test_an_undefined_replica_makes_the_error_nan_and_does_not_raise():
    x = np.tile(periodic(0.5, 8), (4, 1))
    x[0, 3] = -100.0
    e = effective_mass_jackknife(x, "cosh")
    assert np.isnan(e.error[[2, 3]]).all() and np.isfinite(e.error[[0, 1, 5]]).all()


def test_requests_that_make_no_sense_are_refused():
    with pytest.raises(ParameterError, match="did you mean 'cosh'"):
        effective_mass(np.ones(8), "coshh")
    with pytest.raises(FieldTypeError, match="real"):
        effective_mass(np.ones(8, complex), "log")
    with pytest.raises(FieldShapeError):
        effective_mass(np.ones(2), "log")
    with pytest.raises(FieldShapeError):
        effective_mass_jackknife(np.ones(8), "log")
    with pytest.raises(ParameterError, match="two bins"):
        effective_mass_jackknife(np.ones((3, 8)), "log", bin_size=2)

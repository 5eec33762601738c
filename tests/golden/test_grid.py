"""Numbers that Grid computed on a field given by formulas (8^4, periodic, DeGrand-Rossi, mass 0.1)."""

import numpy as np
import pytest
from grid_field import grid_links, grid_spinor

from lqcd_core import ODD, CloverWilsonDirac, ColorSpinorField, GaugeField, LatticeGeometry, WilsonDirac
from lqcd_core.gauge import plaquette
from lqcd_core.solvers import ConjugateGradient, MixedPrecision, solve

SHAPE = (8, 8, 8, 8)
PLAQUETTE = 3.0173464200463056e-04
NORM2_PSI = 3.2745559020367960e04
NORM2_DHOP = 1.3076750428756553e05
NORM2_DHOP_DAGGER = 1.3106163165609453e05
NORM2_M = 6.8072805156991084e05
NORM2_CLOVER = 6.8829636916306557e05
CG_ITERATIONS, CG_NORM2_X = 23, 7.3280693814416225e01


def _norm2(a):
    return float(np.vdot(a, a).real)


@pytest.fixture(scope="module")
def field():
    g = LatticeGeometry.from_shape(SHAPE)
    U = GaugeField(g, grid_links(SHAPE))
    M = WilsonDirac(mass=0.1, boundary="periodic").bind(U, backend="numpy")
    return g, U, M, grid_spinor(SHAPE)


@pytest.fixture(scope="module")
def clover(field):
    _, U, _, psi = field
    return CloverWilsonDirac(mass=0.1, csw=1.0, boundary="periodic").bind(U, backend="numpy")(psi)


def test_the_plaquette_is_grids(field):
    assert plaquette(field[1]) == pytest.approx(PLAQUETTE, abs=1e-14)


def test_norms_of_the_wilson_operator_are_grids(field):
    _, _, M, psi = field
    assert _norm2(psi) == pytest.approx(NORM2_PSI, rel=1e-13)
    assert _norm2(-M.hop(psi)) == pytest.approx(NORM2_DHOP, rel=1e-13)  # Dhop = -H
    assert _norm2(M.dagger(psi) - 4.1 * psi) == pytest.approx(NORM2_DHOP_DAGGER, rel=1e-12)
    assert _norm2(M(psi)) == pytest.approx(NORM2_M, rel=1e-13)


def test_norm_and_site_values_of_the_clover_operator_are_grids(clover):
    assert _norm2(clover) == pytest.approx(NORM2_CLOVER, rel=1e-13)
    site = clover[1, 3, 2, 1]  # t, z, y, x
    assert site[0, 0] == pytest.approx(-1.014102128462700 - 1.203073916206197j, abs=1e-13)
    assert site[3, 0] == pytest.approx(-1.359106343285620 + 2.178960279998180j, abs=1e-13)


def test_even_odd_cg_takes_grids_iterations_to_grids_solution(field):
    _, _, M, psi = field
    schur = M.even_odd(parity=ODD, form="asymmetric")
    b_odd, _ = schur.split(psi[None])
    v = schur.vectors
    before = v.unpack(b_odd)
    x, info = ConjugateGradient(tol=1e-10).solve_handles(schur.normal_linear, b_odd)
    assert info.converged and info.final_residual <= 1e-10
    assert info.iterations == CG_ITERATIONS
    assert float(v.norm2(x)[0]) == pytest.approx(CG_NORM2_X, rel=1e-10)
    assert np.array_equal(v.unpack(b_odd), before)
    half = ConjugateGradient(tol=1e-10).solve(schur.normal_linear, before[0]).x
    assert np.array_equal(half, v.unpack(x)[0])


def test_mixed_precision_reaches_double_on_grids_field(field):
    g, _, M, psi = field
    solver = MixedPrecision(inner=ConjugateGradient(tol=1e-12), precision="single")
    x, info = solve(M, ColorSpinorField(g, psi), solver)
    assert (M(x) - ColorSpinorField(g, psi)).norm() / np.sqrt(NORM2_PSI) <= 1e-12
    assert info.final_residual <= 1e-12


def test_arrays_are_grids_to_rounding(field, clover, test_data):
    _, _, M, psi = field
    folder = test_data / "grid_8888"

    def read(name, *tail):
        return np.fromfile(folder / f"8x8x8x8.{name}.bin", np.complex128).reshape(*SHAPE, *tail)

    links = read("U", 4, 3, 3)[..., ::-1, :, :]
    for ours, theirs in (
        (field[1].array, links), (psi, read("psi", 4, 3)), (-M.hop(psi), read("dhop", 4, 3)),
        (M.dagger(psi) - 4.1 * psi, read("dhopdag", 4, 3)), (M(psi), read("M", 4, 3)),
        (clover, read("Mclover_csw1", 4, 3)),
    ):  # fmt: skip
        assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-13

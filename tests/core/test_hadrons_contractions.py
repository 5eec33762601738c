"""Mesons: the trace written out, the laws of a two-point function, and both meanings of Gamma-bar."""

import numpy as np
import pytest
from hadrons_dense import DenseSolver, random_propagator, rotated, smooth_field

from lqcd_core.errors import FieldShapeError, FieldTypeError, ParameterError
from lqcd_core.fields import GaugeField, random_gauge_rotation
from lqcd_core.free_field import free_propagator
from lqcd_core.gamma import GAMMA5, GT, gamma
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.hadrons import (
    meson_correlator,
    meson_correlators,
    noise_source,
    pion_correlator,
    point_source,
    sequential_source,
)
from lqcd_core.hadrons.contractions import GAMMA_NAMES, adjoint_sign, gamma_bar

G = LatticeGeometry(T=3, Z=2, Y=1, X=3)
S1 = random_propagator(G, 1, source={"position": [0, 1, 0, 2]})
S2 = random_propagator(G, 2, source={"position": [0, 1, 0, 2]})

DENSE = LatticeGeometry(T=4, Z=2, Y=2, X=3)
U = smooth_field(DENSE, seed=11)
SOLVER = DenseSolver(U, mass=0.4)


def written_out(A, B, snk, src, momentum=(0, 0, 0), x0=(0, 0, 0)):
    """sum_x e^{ip(x-x0)} tr[g5 A^dagger g5 snk B src], one 12 x 12 matrix product after another; x0 = (z, y, x)."""
    g, one = A.geometry, np.eye(3)
    C = np.zeros(g.T, complex)
    wide = [np.kron(m, one) for m in (GAMMA5, snk, src)]
    for t, z, y, x in np.ndindex(*g.shape):
        a, b = (S.array[t, z, y, x].swapaxes(1, 2).reshape(12, 12) for S in (A, B))
        p = [2 * np.pi * n / length for n, length in zip(momentum, (g.X, g.Y, g.Z))]
        phase = np.exp(1j * (p[0] * (x - x0[2]) + p[1] * (y - x0[1]) + p[2] * (z - x0[0])))
        C[t] += phase * np.trace(wide[0] @ a.conj().T @ wide[0] @ wide[1] @ b @ wide[2])
    return C


@pytest.mark.parametrize("momentum", [(0, 0, 0), (1, 0, -1), (2, 5, 1)])
def test_every_structure_is_the_trace_written_out(momentum):
    ours = meson_correlators(S1, S2, momentum, convention="chroma")
    adjoint = meson_correlators(S1, S2, momentum)
    for m, n in ((0, 0), (15, 15), (8, 1), (7, 15), (6, 13), (3, 10)):
        want = written_out(S1, S2, gamma(m), gamma(n), momentum, x0=(1, 0, 2))
        scale = np.abs(want).max()
        assert np.abs(ours[m, n] - want).max() < 1e-13 * scale
        one = meson_correlator(S1, S2, m, n, momentum, convention="chroma")
        assert np.abs(one - want).max() < 1e-13 * scale
        want = written_out(S1, S2, gamma(m), -GT @ gamma(n).conj().T @ GT, momentum, x0=(1, 0, 2))
        assert np.abs(adjoint[m, n] - want).max() < 1e-13 * scale
    assert np.abs(np.einsum("nnt->nt", ours) - meson_correlators(S1, S2, momentum, diagonal=True, convention="chroma")).max() < 1e-10  # fmt: skip


def test_conventions_differ_by_a_sign_on_the_diagonal():
    chroma = meson_correlators(S1, diagonal=True, convention="chroma")
    adjoint = meson_correlators(S1, diagonal=True)
    signs = np.array([adjoint_sign(n) for n in range(16)])
    assert np.abs(adjoint - signs[:, None] * chroma).max() < 1e-11
    by_name = dict(zip(GAMMA_NAMES, signs))
    assert by_name["g5"] == by_name["gx"] == by_name["gy"] == by_name["gz"] == 1
    assert by_name["1"] == by_name["gt"] == by_name["gxgygz"] == by_name["gxgt"] == -1
    assert all(np.array_equal(gamma_bar(n, "chroma"), gamma(n)) for n in range(16))


@pytest.mark.parametrize("momentum", [(0, 0, 0), (1, 0, 0)])
def test_pion_is_the_gamma5_correlator_in_both_conventions(momentum):
    C = pion_correlator(S1, momentum)
    for convention in ("adjoint", "chroma"):
        assert np.abs(C - meson_correlator(S1, momentum=momentum, convention=convention)).max() < 1e-11
    assert (C.dtype == float) == (momentum == (0, 0, 0))


def test_adjoint_correlators_of_free_quarks_are_positive_matrices():
    """C_mn(t) = <O_m(t) O_n^dagger(0)> = sum_n e^{-Et} v v^dagger for 0 < t < T, backward states included."""
    C = meson_correlators(free_propagator(LatticeGeometry(T=8, Z=4, Y=4, X=4), mass=0.2))
    for t in range(1, 8):
        assert np.abs(C[..., t] - C[..., t].conj().T).max() < 1e-14
        assert np.linalg.eigvalsh(C[..., t]).min() > -1e-14
        assert C[15, 15, t].real > 0
    assert (meson_correlators(free_propagator(LatticeGeometry(T=8, Z=4, Y=4, X=4), 0.2), diagonal=True).real[:, 1:] > -1e-15).all()  # fmt: skip


def test_gauge_transformation_changes_nothing():
    g = random_gauge_rotation(DENSE, seed=3)
    site = (1, 1, 0, 2)
    S = SOLVER.propagator(point_source(DENSE, *site))
    T = DenseSolver(U.gauge_transform(g), mass=0.4).propagator(point_source(DENSE, *site))
    assert np.abs(T.array - rotated(S, g, site).array).max() < 1e-13
    a, b = meson_correlators(S, momentum=(1, 0, 1)), meson_correlators(T, momentum=(1, 0, 1))
    assert np.abs(a - b).max() < 1e-13


def test_source_anywhere_on_a_translated_field_gives_the_same_correlator():
    shift = (3, 1, 1, 2)
    moved = GaugeField(DENSE, np.roll(U.array, shift, axis=(0, 1, 2, 3)))
    S = SOLVER.propagator(point_source(DENSE))
    T = DenseSolver(moved, mass=0.4).propagator(point_source(DENSE, *shift))
    for momentum in ((0, 0, 0), (1, 1, -1)):
        a, b = meson_correlators(S, momentum=momentum), meson_correlators(T, momentum=momentum)
        assert np.abs(a - b).max() < 1e-13
    absolute = pion_correlator(T, source_time=0)
    assert np.abs(np.roll(absolute, -3) - pion_correlator(S)).max() < 1e-13


def test_sign_of_the_momentum_phase():
    """A propagator that lives at x0 + x only picks up e^{+ip}, p = 2 pi / X."""
    S = random_propagator(G, 4, source={"position": [0, 0, 0, 1]})
    S.array[:, :, :, [0, 1]] = 0  # x = 2 stays, one step from the source
    ratio = pion_correlator(S, (1, 0, 0)) / pion_correlator(S)
    assert np.abs(ratio - np.exp(2j * np.pi / 3)).max() < 1e-14
    ratio = pion_correlator(S, (1, 0, 0), position=(0, 0, 0, 0)) / pion_correlator(S)
    assert np.abs(ratio - np.exp(4j * np.pi / 3)).max() < 1e-14


def test_result_does_not_depend_on_the_basis_of_the_propagator():
    for basis in ("chiral", "ukqcd", "dirac-pauli"):
        a = meson_correlators(S1.to_basis(basis), S2, (1, 0, 0))
        assert np.abs(a - meson_correlators(S1, S2, (1, 0, 0))).max() < 1e-11


def test_exchange_of_quark_and_antiquark_is_complex_conjugation():
    a = meson_correlator(S1, S2, 5, 5, (1, 0, 1))
    b = meson_correlator(S2, S1, 5, 5, (-1, 0, -1))
    assert np.abs(a - b.conj()).max() < 1e-12


def test_single_precision_propagators_are_summed_in_double():
    half = random_propagator(LatticeGeometry(T=2, Z=8, Y=8, X=8), 5)
    half.array = half.array.astype(np.complex64)
    exact = np.sum(np.abs(half.array.astype(complex)) ** 2, axis=(1, 2, 3, 4, 5, 6, 7))
    assert np.abs(pion_correlator(half) / exact - 1).max() < 1e-13
    assert np.abs(meson_correlator(half) / exact - 1).max() < 1e-13


@pytest.mark.parametrize("n", [0, 5, 15])
def test_sequential_line_closed_at_the_source_is_the_two_point_function(n):
    site, t_sink, p = (1, 0, 1, 2), 3, (1, 0, 0)
    S = SOLVER.propagator(point_source(DENSE, *site))
    B = SOLVER.propagator(sequential_source(S, n, t_sink, p))
    # tr[S(x0, x) Gamma S(x, x0) Gamma'] summed over x with its phase, S(x0, x) = g5 S^dagger g5.
    closed = np.einsum("ijaa,ji->", B.array[site], gamma(n))
    want = meson_correlator(S, S, n, n, p, convention="chroma")[(t_sink - site[0]) % DENSE.T]
    assert abs(closed - want) < 1e-13
    assert B.source["kind"] == "sequential" and B.source["position"] == list(site)


def test_sequential_source_understands_any_basis():
    S = SOLVER.propagator(point_source(DENSE))
    a = sequential_source(S, 6, 2).columns([4])
    assert np.abs(sequential_source(S.to_basis("dirac-pauli"), 6, 2).columns([4]) - a).max() < 1e-14
    assert not a[0, [0, 1, 3]].any() and a[0, 2].any()


def test_one_end_trick_reproduces_the_pion_on_average():
    """Noise on one slice, spin and colour diluted: sum |S xi|^2 is Z Y X times the pion, up to noise."""
    pion = np.mean([pion_correlator(SOLVER.propagator(point_source(DENSE, 1, *x))) for x in np.ndindex(2, 2, 3)], axis=0)  # fmt: skip
    samples = np.array([
        pion_correlator(SOLVER.propagator(noise_source(DENSE, seed=8, kind="z2", t=1, sample=k))) for k in range(60)
    ]) / DENSE.spatial_volume  # fmt: skip
    error = samples.std(axis=0, ddof=1) / np.sqrt(60)
    assert (np.abs(samples.mean(axis=0) - pion) < 4 * error + 1e-14).all()
    assert (error < 0.2 * pion).all()  # the noise is small enough for the line above to say something


def test_requests_that_make_no_sense_are_refused():
    with pytest.raises(ParameterError, match="adjoint"):
        meson_correlator(S1, convention="adjoin")
    with pytest.raises(ParameterError, match=r"0\.\.15"):
        meson_correlator(S1, gamma_sink=16)
    with pytest.raises(ParameterError, match="three whole numbers"):
        meson_correlator(S1, momentum=(0.5, 0, 0))
    with pytest.raises(FieldShapeError, match="lives on"):
        meson_correlator(S1, random_propagator(DENSE, 1))
    with pytest.raises(FieldTypeError, match="propagators"):
        meson_correlator(S1.array)
    elsewhere = random_propagator(G, 2, source={"position": [1, 1, 0, 2]})
    with pytest.raises(ParameterError, match="different slices"):
        meson_correlator(S1, elsewhere)

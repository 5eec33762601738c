"""Baryons: Wick contractions by brute force, and the laws of a three-quark two-point function."""

import itertools

import numpy as np
import pytest
from hadrons_dense import DenseSolver, random_propagator, rotated, smooth_field

from lqcd_core.errors import FieldTypeError, GeometryError, ParameterError
from lqcd_core.fields import GaugeField, Propagator, random_gauge_rotation
from lqcd_core.free_field import free_propagator
from lqcd_core.gamma import GAMMA, GAMMA5, GT, GX, GY, GZ, basis_rotation, gamma_in_basis
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.hadrons import (
    DELTA,
    NUCLEON,
    NUCLEON_UPPER,
    BaryonOperator,
    baryon_correlator,
    delta_correlator,
    nucleon_correlator,
    point_source,
)
from lqcd_core.hadrons.baryons import CHARGE_CONJUGATION, baryon_spin_tensor, contract_baryon

C5 = CHARGE_CONJUGATION @ GAMMA5
ONE_SITE = LatticeGeometry(T=1, Z=1, Y=1, X=1)
DENSE = LatticeGeometry(T=4, Z=2, Y=2, X=3)
U = smooth_field(DENSE, seed=21)
SOLVER = DenseSolver(U, mass=0.4)
FREE = free_propagator(LatticeGeometry(T=8, Z=2, Y=2, X=2), mass=0.4)


def sign_of(p):
    return np.linalg.det(np.eye(3)[list(p)])


def nonzero(m):
    return [(i, j, m[i, j]) for i, j in zip(*np.nonzero(m))]


def wick(S, flavors, A, B=None, A_src=None, B_src=None, flavors_src=None):
    """<chi chibar> at one site by explicit loops over spins, colours and contractions, with the fermion sign of each.

    S[f][alpha, a, beta, b]; chi = eps (q1 A q2) B q3, chibar = eps (q3bar B')(q2bar A' q1bar).
    """
    B = np.eye(4) if B is None else B
    A_src, B_src = A if A_src is None else A_src, B if B_src is None else B_src
    flavors_src = flavors if flavors_src is None else flavors_src
    a_bar, b_bar = GT @ A_src.conj().T @ GT, GT @ B_src.conj().T @ GT
    out = np.zeros((4, 4), complex)
    for color in itertools.permutations(range(3)):
        for color_src in itertools.permutations(range(3)):
            eps = sign_of(color) * sign_of(color_src)
            for p in itertools.permutations(range(3)):
                # q1 q2 q3 (q3bar q2bar q1bar): nested pairing has sign +, permuting the sources multiplies by sign(p).
                if any(flavors[i] != flavors_src[p[i]] for i in range(3)):
                    continue
                for (al, be, va), (be_, al_, va_) in itertools.product(nonzero(A), nonzero(a_bar)):
                    for (g, de, vb), (de_, g_, vb_) in itertools.product(nonzero(B), nonzero(b_bar)):
                        spins, spins_src = (al, be, de), (al_, be_, de_)
                        value = eps * sign_of(p) * va * va_ * vb * vb_
                        for i in range(3):
                            value *= S[flavors[i]][spins[i], color[i], spins_src[p[i]], color_src[p[i]]]
                        out[g, g_] += value
    return out


def site_matrix(S):
    return S.array[0, 0, 0, 0].swapaxes(1, 2)


@pytest.mark.parametrize(
    "operator",
    [
        NUCLEON,
        NUCLEON_UPPER,
        DELTA[0],
        DELTA[2],
        BaryonOperator("uds", C5),
        BaryonOperator("ssd", CHARGE_CONJUGATION @ GX, GAMMA5),
    ],
    ids=["nucleon", "nucleon-lower", "delta-x", "delta-z", "three-flavours", "general"],
)
def test_contractions_by_brute_force(operator):
    S = {f: random_propagator(ONE_SITE, k) for k, f in enumerate("uds")}
    ours = contract_baryon(baryon_spin_tensor(*(S[f] for f in operator.flavors)), operator)[0]
    want = wick({f: site_matrix(s) for f, s in S.items()}, operator.flavors, operator.diquark, operator.spinor)
    assert np.abs(ours - want).max() < 1e-13 * np.abs(want).max()


def test_two_different_operators_by_brute_force():
    S = {f: random_propagator(ONE_SITE, k) for k, f in enumerate("ud")}
    sink, source = BaryonOperator("udu", C5), BaryonOperator("uud", CHARGE_CONJUGATION @ GX, GAMMA5 @ GX)
    ours = contract_baryon(baryon_spin_tensor(S["u"], S["d"], S["u"]), sink, source)[0]
    want = wick({f: site_matrix(s) for f, s in S.items()}, "udu", C5, None, source.diquark, source.spinor, "uud")
    assert np.abs(ours - want).max() < 1e-13 * np.abs(want).max()


def test_projection_momentum_and_sum_over_sites_by_brute_force():
    g = LatticeGeometry(T=1, Z=1, Y=1, X=3)
    S = random_propagator(g, 3, source={"position": [0, 0, 0, 1]})
    P = {+1: (np.eye(4) + GT) / 2, -1: -(np.eye(4) - GT) / 2}
    want = {+1: np.zeros(1, complex), -1: np.zeros(1, complex)}
    for t, z, y, x in np.ndindex(*g.shape):
        q = S.array[t, z, y, x].swapaxes(1, 2)
        phase = np.exp(2j * np.pi * (x - 1) / 3)
        matrix = wick({"u": q, "d": q}, "udu", C5)
        for parity in P:
            want[parity][t] += phase * np.trace(P[parity] @ matrix)
    for parity in P:
        ours = nucleon_correlator(S, momentum=(1, 0, 0), parity=parity)
        assert np.abs(ours - want[parity]).max() < 1e-12 * np.abs(want[parity]).max()
        ours = nucleon_correlator(S, momentum=(1, 0, 0), projector=P[parity])
        assert np.abs(ours - want[parity]).max() < 1e-12 * np.abs(want[parity]).max()


def test_charge_conjugation_matrix():
    C = CHARGE_CONJUGATION
    for mu in range(4):
        assert np.allclose(C @ GAMMA[mu] @ np.linalg.inv(C), -GAMMA[mu].T)
    assert np.allclose(C.T, -C)  # so u C g5 u and u C u vanish, u C gamma_i u does not
    assert np.allclose((C @ GX).T, C @ GX)


def test_antisymmetric_diquark_of_equal_quarks_vanishes():
    """u^T C gamma5 u is antisymmetric in spin and colour at once: the operator is zero, and so is its correlator."""
    S = random_propagator(ONE_SITE, 4)
    G6 = baryon_spin_tensor(S, S, S)
    zero = contract_baryon(G6, BaryonOperator("uud", C5))
    scale = np.abs(contract_baryon(G6, DELTA[0])).max()
    assert np.abs(zero).max() < 1e-13 * scale


def test_delta_plus_is_delta_plus_plus_in_the_isospin_limit():
    """[2 (u C gamma d) u + (u C gamma u) d] / sqrt 3 against (u C gamma u) u, contraction by contraction."""
    S = random_propagator(ONE_SITE, 5)
    G6 = baryon_spin_tensor(S, S, S)
    for i, m in enumerate((GX, GY, GZ)):
        mixed = [(2, BaryonOperator("udu", CHARGE_CONJUGATION @ m)), (1, BaryonOperator("uud", CHARGE_CONJUGATION @ m))]
        plus = sum(a * b * contract_baryon(G6, x, y) for a, x in mixed for b, y in mixed) / 3
        want = contract_baryon(G6, DELTA[i])
        assert np.abs(plus - want).max() < 1e-13 * np.abs(want).max()


def test_spin_parts_of_the_delta_add_up():
    parts = [delta_correlator(FREE, spin=s) for s in ("1/2", "3/2")]
    assert np.abs(sum(parts) - delta_correlator(FREE, spin=None)).max() < 1e-15
    average = sum(baryon_correlator({"u": FREE}, d) for d in DELTA) / 3
    assert np.abs(average - delta_correlator(FREE, spin=None)).max() < 1e-15


@pytest.mark.parametrize("parity", [1, -1])
@pytest.mark.parametrize("kind", ["nucleon", "nucleon-upper", "delta 3/2", "delta"])
def test_free_correlators_are_positive(kind, parity):
    C = {
        "nucleon": lambda: nucleon_correlator(FREE, parity=parity),
        "nucleon-upper": lambda: nucleon_correlator(FREE, parity=parity, relativistic=False),
        "delta 3/2": lambda: delta_correlator(FREE, parity=parity),
        "delta": lambda: delta_correlator(FREE, parity=parity, spin=None),
    }[kind]()
    assert (C.real[1:] > 0).all()
    assert np.abs(C.imag).max() < 1e-15


def test_time_reflection_exchanges_the_parities():
    """With antiperiodic quarks C_+(T - t) = C_-(t): the backward baryon has the other parity and the same norm."""
    plus, minus = nucleon_correlator(FREE, parity=1), nucleon_correlator(FREE, parity=-1)
    assert np.abs(plus[1:][::-1] - minus[1:]).max() < 1e-15
    assert plus[1].real > 10 * minus[1].real


def test_gauge_transformation_changes_nothing():
    g = random_gauge_rotation(DENSE, seed=3)
    site = (0, 1, 0, 2)
    S = SOLVER.propagator(point_source(DENSE, *site))
    T = rotated(S, g, site)
    for correlator in (nucleon_correlator, delta_correlator):
        a, b = correlator(S), correlator(T)
        assert np.abs(a - b).max() < 1e-12 * np.abs(a).max()


@pytest.mark.parametrize("boundary", [(-1, 1, 1, 1), (1, 1, 1, 1), (np.exp(0.8j), 1, 1, 1)])
def test_source_on_any_slice_gives_one_continuous_correlator(boundary):
    """Three quarks pick up the cube of the boundary phase where they wrap; it is divided out."""
    shift = (3, 1, 0, 2)
    moved = GaugeField(DENSE, np.roll(U.array, shift, axis=(0, 1, 2, 3)))
    S = DenseSolver(U, 0.4, boundary).propagator(point_source(DENSE))
    T = DenseSolver(moved, 0.4, boundary).propagator(point_source(DENSE, *shift))
    for momentum in ((0, 0, 0), (1, 1, 0)):
        a, b = nucleon_correlator(S, momentum=momentum), nucleon_correlator(T, momentum=momentum)
        assert np.abs(a - b).max() < 1e-13 * np.abs(a).max()
    T.provenance.clear()
    again = nucleon_correlator(T, boundary=boundary, momentum=(1, 1, 0))
    assert np.abs(again - b).max() < 1e-15
    with pytest.raises(ParameterError, match="boundary="):
        nucleon_correlator(T)


def test_nucleon_in_the_dirac_basis_agrees_with_the_quark_model_operator():
    """C gamma5 (1 + gamma_t)/2 couples the upper Dirac-Pauli components as u_up d_dn - u_dn d_up, nothing else."""
    R = basis_rotation("degrand-rossi", "dirac-pauli")
    A = R.conj() @ NUCLEON_UPPER.diquark @ R.conj().T  # q^T A q with q = R^dagger q_Dirac
    assert np.allclose(gamma_in_basis(GT, "dirac-pauli"), np.diag([1, 1, -1, -1]))
    assert abs(A[0, 1]) > 0.9 and abs(A[0, 1] + A[1, 0]) < 1e-15
    rest = A.copy()
    rest[0, 1] = rest[1, 0] = 0
    assert np.abs(rest).max() < 1e-15


def test_basis_of_the_propagators_does_not_matter():
    S = random_propagator(ONE_SITE, 6)
    a, b = nucleon_correlator(S, parity=1), nucleon_correlator(S.to_basis("chiral"), S, parity=1)
    assert np.abs(a - b).max() < 1e-12 * np.abs(a).max()


def test_requests_that_make_no_sense_are_refused():
    two = random_propagator(LatticeGeometry(T=1, Z=1, Y=1, X=1, nc=2), 1)
    with pytest.raises(GeometryError, match="Nc = 3"):
        nucleon_correlator(two)
    with pytest.raises(ParameterError, match="parity"):
        nucleon_correlator(FREE, parity=0)
    with pytest.raises(ParameterError, match="at rest"):
        delta_correlator(FREE, momentum=(1, 0, 0))
    with pytest.raises(ParameterError, match="spin"):
        delta_correlator(FREE, spin="5/2")
    with pytest.raises(ParameterError, match="given for"):
        baryon_correlator({"u": FREE}, NUCLEON)
    with pytest.raises(ParameterError, match="differ"):
        baryon_correlator({"u": FREE, "d": FREE}, NUCLEON, DELTA[0])
    with pytest.raises(ParameterError, match="three flavours"):
        BaryonOperator("ud", C5)
    with pytest.raises(FieldTypeError):
        nucleon_correlator(FREE.array)


def lalibe(*terms, shift=0):
    """lalibe's way to write a correlator, in the Dirac-Pauli basis, 0 = up, 1 = down (2 and 3 for the lower components,
    shift=2): a coefficient and three pairs (sink spin, source spin), contracted with epsilon epsilon in colour."""
    R = basis_rotation("degrand-rossi", "dirac-pauli")

    def evaluate(G6):
        dirac = np.einsum(
            "ai,bj,ck,tiIjJkK,AI,BJ,CK->taAbBcC", R, R, R, G6, R.conj(), R.conj(), R.conj(), optimize=True
        )
        return sum(c * dirac[(slice(None), *(i + shift for pair in pairs for i in pair))] for c, *pairs in terms)

    return evaluate


# The rule that lalibe's baryon tables follow, for quarks in the order d u u (proton, spin up) and u u u (Delta++).
PROTON_UP = (
    (1.0, (1, 1), (0, 0), (0, 0)), (-1.0, (0, 1), (0, 0), (1, 0)), (-1.0, (1, 0), (0, 0), (0, 1)),
    (0.5, (0, 0), (0, 0), (1, 1)), (0.5, (0, 0), (0, 1), (1, 0)),
)  # fmt: skip
LALIBE_DELTA = [
    lalibe((6.0, (0, 0), (0, 0), (0, 0))),
    lalibe((6.0, (0, 0), (0, 0), (1, 1)), (12.0, (0, 0), (0, 1), (1, 0))),
    lalibe((6.0, (0, 0), (1, 1), (1, 1)), (12.0, (0, 1), (1, 0), (1, 1))),
    lalibe((6.0, (1, 1), (1, 1), (1, 1))),
]


@pytest.mark.parametrize("parity, component", [(1, 0), (-1, 2)])
def test_proton_of_lalibe_is_half_of_ours_without_the_small_components(parity, component):
    """Spin up; `_np` of the lower components lacks the sign that makes ours positive."""
    up, down = random_propagator(ONE_SITE, 7), random_propagator(ONE_SITE, 8)
    R = basis_rotation("degrand-rossi", "dirac-pauli")
    spin_up = R.conj().T @ np.diag(np.arange(4) == component) @ R
    theirs = lalibe(*PROTON_UP, shift=component)(baryon_spin_tensor(down, up, up))
    ours = nucleon_correlator(up, down, relativistic=False, parity=parity, projector=spin_up)
    assert np.abs(ours / 2 - theirs).max() < 1e-13 * np.abs(theirs).max()
    spin_down = R.conj().T @ np.diag(np.arange(4) == component + 1) @ R
    both = ours + nucleon_correlator(up, down, relativistic=False, parity=parity, projector=spin_down)
    trace = nucleon_correlator(up, down, relativistic=False, parity=parity)
    assert np.abs(both - parity * trace).max() < 1e-12 * np.abs(trace).max()


def test_delta_of_lalibe_summed_over_spins_is_ours_with_upper_components():
    S = random_propagator(ONE_SITE, 9)
    G6 = baryon_spin_tensor(S, S, S)
    P = (np.eye(4) + GT) / 2
    spatial = (GX, GY, GZ)
    operators = [BaryonOperator("uuu", CHARGE_CONJUGATION @ m @ P, P) for m in spatial]
    ours = 0
    for i in range(3):
        for j in range(3):
            weight = (i == j) * np.eye(4) - spatial[j] @ spatial[i] / 3
            ours = ours + np.einsum("tij,ji->t", contract_baryon(G6, operators[i], operators[j]), weight @ P) / 3
    theirs = sum(state(G6) for state in LALIBE_DELTA)
    theirs = 2 / 3 * theirs  # their states are normalised one by one
    assert np.abs(ours - theirs).max() < 1e-13 * np.abs(theirs).max()


@pytest.mark.parametrize("name", ["PS_up_4", "PS_dn_4"])
def test_lalibes_propagators_from_slice_4_give_positive_continuous_baryons(test_data, name):
    """Antiperiodic quarks, smooth field: all of 0 < t < 8 positive, no sign or jump at the wrap t = 4, both parities
    mirror images up to the asymmetry of one configuration."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(test_data / "lalibe" / "test_propagator_t4.h5") as f:
        array = f["sh_sig2p0_n5"][name][()]
    g = LatticeGeometry(T=8, Z=4, Y=4, X=4)
    S = Propagator(g, array, source={"position": [4, 0, 0, 0]}, provenance={"boundary": [-1, 1, 1, 1]})
    plus, minus = nucleon_correlator(S), nucleon_correlator(S, parity=-1)
    assert (plus.real[1:] > 0).all() and (minus.real[1:] > 0).all() and (delta_correlator(S).real[1:] > 0).all()
    assert np.abs(plus.real[1:][::-1] / minus.real[1:] - 1).max() < 0.01
    step = plus.real[2:] / plus.real[1:-1]
    assert (np.diff(step) > 0).all()  # the logarithm is convex: no jump where the quarks wrap

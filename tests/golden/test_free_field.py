"""Free Wilson quarks: exact numbers, and the operator written out site by site."""

import itertools

import numpy as np
import pytest

from lqcd_core.errors import ParameterError
from lqcd_core.free_field import free_pion_correlator, free_propagator, free_spin_propagator
from lqcd_core.gamma import GAMMA
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.hadrons import effective_mass, meson_correlator, nucleon_correlator, pion_correlator

SMALL = LatticeGeometry(T=8, Z=4, Y=4, X=4)
ANTI, PERIODIC = (-1, 1, 1, 1), (1, 1, 1, 1)

# Zero-momentum pion of a point source, momentum sum done independently (to the digits printed).
PION = [
    (SMALL, 0.1, ANTI, [0.843602498318, 0.075815895179, 0.039773899495, 0.034664443325, 0.033722596080]),
    (SMALL, 0.1, PERIODIC, [1.316339442571, 0.333249954193, 0.276365771986, 0.259058639035, 0.254100417656]),
    (SMALL, 0.5, ANTI, [0.712421468587, 0.040403714108, 0.009773439882, 0.004232363664, 0.003047184369]),
    (
        LatticeGeometry(T=16, Z=8, Y=8, X=8), 0.1, ANTI,
        [0.831741937688, 0.052926379197, 0.011159248832, 0.005325050968, 0.003936975649,
         0.003372905216, 0.003065011162, 0.002898395275, 0.002844832079],
    ),
]  # fmt: skip


@pytest.mark.parametrize("geometry, mass, boundary, expected", PION, ids=lambda v: str(v)[:24])
def test_pion_of_a_point_source(geometry, mass, boundary, expected):
    C = free_pion_correlator(geometry, mass, boundary)
    n = len(expected)
    assert np.abs(C[:n] - expected).max() < 1e-11  # the numbers have twelve digits after the point
    assert np.abs(C[1:] - C[1:][::-1]).max() < 1e-13


@pytest.mark.parametrize("boundary", [ANTI, PERIODIC, (np.exp(0.7j), -1, np.exp(-1.1j), np.exp(0.3j))])
def test_operator_on_the_propagator_is_a_point_source(boundary):
    g = LatticeGeometry(T=3, Z=2, Y=4, X=5)
    position = (2, 0, 3, 1)
    mass = 0.3
    S = free_spin_propagator(g, mass, boundary, position)
    for site in itertools.product(*map(range, g.shape)):
        out = (4 + mass) * S[site]
        for mu in range(4):
            n = g.shape[mu]
            up, down = list(site), list(site)
            up[mu], down[mu] = (site[mu] + 1) % n, (site[mu] - 1) % n
            forth = boundary[mu] if site[mu] == n - 1 else 1
            back = np.conj(boundary[mu]) if site[mu] == 0 else 1
            out = out - 0.5 * (np.eye(4) - GAMMA[mu]) @ S[tuple(up)] * forth
            out = out - 0.5 * (np.eye(4) + GAMMA[mu]) @ S[tuple(down)] * back
        assert np.abs(out - (np.eye(4) if site == position else 0)).max() < 1e-14


def test_propagator_record_gives_the_same_pion():
    S = free_propagator(SMALL, 0.1, position=(3, 1, 2, 0))
    assert np.abs(pion_correlator(S) - free_pion_correlator(SMALL, 0.1)).max() < 1e-14
    assert np.abs(meson_correlator(S) - free_pion_correlator(SMALL, 0.1)).max() < 1e-14


def test_masses_are_those_of_quarks_at_rest():
    """A free quark at rest has energy ln(1 + m): the pion two of them, the nucleon three."""
    mass = 0.5
    S = free_propagator(LatticeGeometry(T=80, Z=2, Y=2, X=2), mass)
    pion = effective_mass(pion_correlator(S), "cosh")
    nucleon = effective_mass(nucleon_correlator(S).real, "log")
    assert abs(pion[12] - 2 * np.log(1 + mass)) < 1e-6
    assert abs(nucleon[12] - 3 * np.log(1 + mass)) < 1e-6


@pytest.mark.parametrize(
    "change, word",
    [
        ({"mass": 0.0, "boundary": PERIODIC}, "zero mode"),
        ({"mass": float("nan")}, "finite"),
        ({"boundary": (-1, 1, 1)}, "four phases"),
        ({"boundary": (2, 1, 1, 1)}, "modulus 1"),
        ({"position": (8, 0, 0, 0)}, "outside"),
    ],
)
def test_requests_without_an_answer_are_refused(change, word):
    with pytest.raises(ParameterError, match=word):
        free_spin_propagator(SMALL, **({"mass": 0.1} | change))

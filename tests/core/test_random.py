"""Random numbers are a function of (seed, stream, global site, draw), and have the distributions they claim."""

import itertools

import numpy as np
import pytest

from lqcd_core import random as rng
from lqcd_core.errors import ParameterError
from lqcd_core.fields import GaugeField, haar, random_gauge_rotation
from lqcd_core.geometry import LatticeGeometry

stats = pytest.importorskip("scipy.stats")


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [rng.uniform, rng.normal])
@pytest.mark.parametrize("first_draw", [0, 8, 4 * 2**40])
def test_a_site_draws_the_same_however_the_sites_are_split(draw, first_draw):
    whole = draw(7, "gauge", range(0, 50), 11, first_draw)
    for cuts in ([0, 50], [0, 1, 2, 49, 50], [0, 17, 33, 50]):
        parts = [draw(7, "gauge", range(a, b), 11, first_draw) for a, b in itertools.pairwise(cuts)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(draw(7, "gauge", 50, 11, first_draw), whole)


def test_draws_asked_for_in_pieces_are_those_asked_for_at_once():
    whole = rng.uniform(7, "spinor", range(5, 15), 24)
    np.testing.assert_array_equal(rng.uniform(7, "spinor", range(5, 15), 10), whole[:, :10])
    np.testing.assert_array_equal(rng.uniform(7, "spinor", range(5, 15), 13, first_draw=8), whole[:, 8:21])
    with pytest.raises(ParameterError, match="multiple of 4"):
        rng.uniform(7, "spinor", 3, 4, first_draw=2)


def test_the_generator_is_philox4x64_10():
    # Random123's known answers: counter and key all zero; all ones (D. E. Shaw Research, kat_vectors)
    zero = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert [int(w) for w in rng.raw_words(0, 0, range(0, 1), 0)[0]] == zero
    ones = [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0]
    top = 2**64 - 1
    found = rng.raw_words(top, top, range(top, top + 1), 2**192 - 1)
    assert [int(w) for w in found[0]] == ones


def test_words_of_site_and_block_are_those_of_their_counter():
    # site in the low 64 bits, block above: no two (site, block) share a counter, and block 1 starts at site 0 again
    a = rng.raw_words(3, 5, range(0, 4), 1)
    bits = np.random.Philox(key=3 + (5 << 64), counter=np.array([2**64 - 1, 0, 0, 0], np.uint64))
    np.testing.assert_array_equal(a, bits.random_raw(16).reshape(4, 4))


def test_seeds_and_streams_differ():
    base = rng.uniform(1, "gauge", 100, 4)
    for other in (rng.uniform(2, "gauge", 100, 4), rng.uniform(1, "spinor", 100, 4), rng.uniform(1, 77, 100, 4)):
        assert np.intersect1d(base, other).size == 0
    assert len(set(rng.STREAMS.values())) == len(rng.STREAMS)
    np.testing.assert_array_equal(base, rng.uniform(1, rng.STREAMS["gauge"], 100, 4))


def test_uniform_numbers_stay_inside_the_open_interval(monkeypatch):
    for word, where in ((0, 2.0**-53), (2**64 - 1, 1 - 2.0**-53)):
        monkeypatch.setattr(rng, "raw_words", lambda *a, w=word: np.full((1, 4), w, np.uint64))
        u = rng.uniform(1, "gauge", 1, 4)
        assert (u == where).all() and (u > 0).all() and (u < 1).all()
        assert np.isfinite(rng.normal(1, "gauge", 1, 4)).all()


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None, True])
def test_wrong_seeds_are_refused(seed):
    with pytest.raises(ParameterError, match="seed"):
        rng.uniform(seed, "gauge", 3, 4)


@pytest.mark.parametrize("stream", ["guage", -1, 2**64, 1.5, None])
def test_wrong_streams_are_refused(stream):
    with pytest.raises(ParameterError, match="stream"):
        rng.uniform(1, stream, 3, 4)


# -- distributions ----------------------------------------------------------------------------------------------------


def test_uniform_and_normal_distributions():
    u = rng.uniform(11, "gauge", 20000, 6)
    n = rng.normal(11, "gauge", 20000, 6)
    for k in range(6):
        assert stats.kstest(u[:, k], stats.uniform.cdf).pvalue > 1e-3
        assert stats.kstest(n[:, k], stats.norm.cdf).pvalue > 1e-3
    for sample in (u, n):
        c = np.corrcoef(sample.T)
        assert np.abs(c - np.eye(6)).max() < 4 / np.sqrt(20000)
        neighbours = np.corrcoef(sample[:-1, 0], sample[1:, 0])[0, 1]
        assert abs(neighbours) < 4 / np.sqrt(20000)


HAAR_MOMENTS = {2: {2: 1, 4: 2, 6: 5, 8: 14}, 3: {2: 1, 4: 2, 6: 6, 8: 23}, 4: {2: 1, 4: 2, 6: 6, 8: 24}}
"""<|tr U|^n>; for SU(2) the Catalan numbers, k! as long as k is below Nc."""


def within(sample, want):
    return abs(sample.mean() - want) < 4 * sample.std() / np.sqrt(len(sample))


@pytest.mark.parametrize("nc", [2, 3, 4])
def test_haar_matrices_have_the_exact_moments(nc):
    u = haar(nc, 2, "gauge", range(15000), 2).reshape(-1, nc, nc)
    np.testing.assert_allclose(np.linalg.det(u), 1, atol=1e-13)
    np.testing.assert_allclose(u @ u.conj().swapaxes(-1, -2), np.broadcast_to(np.eye(nc), u.shape), atol=1e-13)
    t = np.trace(u, axis1=1, axis2=2)
    for n, value in HAAR_MOMENTS[nc].items():
        assert within(np.abs(t) ** n, value)
    # the centre: <(tr U)^k> is 0 unless Nc divides k (SU(2): <(tr U)^2> = 1, SU(3): <(tr U)^3> = 1, SU(4): <(tr U)^4> = 1)
    for k in range(1, 5):
        want = 1.0 if k == nc else (2.0 if (nc, k) == (2, 4) else 0.0)
        assert within((t**k).real, want)
        assert within((t**k).imag, 0.0) or nc == 2
    # every entry alike: <U_ij> = 0, <|U_ij|^2> = 1/Nc, <|U_ij|^4> = 2 / (Nc (Nc + 1))
    for i in range(nc):
        for j in range(nc):
            assert within(np.abs(u[:, i, j]) ** 2, 1 / nc)
            assert within(np.abs(u[:, i, j]) ** 4, 2 / (nc * (nc + 1)))
            assert within(u[:, i, j].real, 0.0)


@pytest.mark.parametrize("nc", [2, 3])
def test_haar_is_invariant_under_left_and_right_multiplication(nc):
    u = haar(nc, 3, "gauge", range(20000), 1)[:, 0]
    g = haar(nc, 99, "transformation", range(1), 1)[0, 0]
    for v in (g @ u, u @ g):
        t = np.trace(v, axis1=1, axis2=2)
        assert within(np.abs(t) ** 2, 1)
        assert within(np.abs(t) ** 4, 2)
        assert within(t.real, 0)


def test_su3_eigenphases_have_weyls_density():
    # the density of one eigenphase of SU(3) under Haar is (1/2pi) (1 + (2/3) cos 3 theta); U(3) would give a flat one
    u = haar(3, 4, "gauge", range(8000), 1)[:, 0]
    phases = np.angle(np.linalg.eigvals(u)).ravel()
    want = np.mean(np.cos(3 * phases))
    assert abs(want - 1 / 3) < 4 / np.sqrt(2 * len(phases) / 3)


def test_random_field_depends_on_global_sites_only():
    geometry = LatticeGeometry(T=4, Z=2, Y=2, X=2)
    from lqcd_core.fields import haar_links

    whole = GaugeField.random(geometry, seed=5).array
    slab = haar_links(geometry, 5, range(8, 24))  # time slices 1 and 2
    np.testing.assert_array_equal(slab, whole[1:3])
    u = GaugeField.random(geometry, seed=5, precision="single")
    np.testing.assert_array_equal(u.array, whole.astype(np.complex64))


def test_gauge_rotations_are_independent_of_the_links_of_the_same_seed():
    geometry = LatticeGeometry(T=4, Z=4, Y=4, X=4)
    g, u = random_gauge_rotation(geometry, 5), GaugeField.random(geometry, 5).array
    for mu in range(4):
        t = np.einsum("...ij,...ij->...", g.conj(), u[..., mu, :, :]).ravel()  # tr g^dagger U is that of a Haar matrix
        assert within(np.abs(t) ** 2, 1)

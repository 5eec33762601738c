"""Formulas of links by compiled kernels: NumPy and scipy are the judges."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from lqcd_native import _native
from lqcd_native.gauge import GaugeKernels

from lqcd_core import CloverWilsonDirac, ColorSpinorField, GaugeField, LatticeGeometry, gauge, use_backend
from lqcd_core.backend import GAUGE_KINDS, SiteDiagonal
from lqcd_core.errors import NonUnitaryLinksError
from lqcd_core.gauge.update import CheckerboardLinks
from lqcd_core.selection import gauge_kernel

SHAPES = [(4, 6, 2, 8), (3, 1, 5, 7), (2, 2, 2, 2), (1, 1, 1, 1), (4, 4, 4, 12)]
ISAS = _native.instruction_sets()


def links(shape, seed=1):
    return GaugeField.random(LatticeGeometry.from_shape(shape), seed=seed)


def anti_hermitian(count, size, seed=3, trace=False):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(count, 3, 3)) + 1j * rng.normal(size=(count, 3, 3))
    a = (a - a.conj().swapaxes(-1, -2)) / 2
    if not trace:
        a -= np.trace(a, axis1=-2, axis2=-1)[:, None, None] / 3 * np.eye(3)
    return size * a


def difference(a, b):
    return np.abs(a - b).max() / np.abs(b).max()


def both(function):
    with use_backend("native", threads=2):
        ours = function()
    with use_backend("numpy"):
        return ours, function()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_core_uses_the_kernels_and_gets_the_same(shape):
    U = links(shape)
    for field in (U, U.to("single")):
        epsilon = 1e-13 if field is U else 1e-6
        for function in (
            lambda U=field: np.array(list(gauge.plaquettes(U).values())), lambda U=field: gauge.plaquette(U),
            lambda U=field: gauge.wilson_action(U, 5.7), lambda U=field: gauge.energy_density(U, "plaquette"),
            lambda U=field: gauge.staples(U), lambda U=field: gauge.clover_term(U, 0.6, 0.9),
        ):  # fmt: skip
            ours, numpy = both(function)
            assert type(ours) is type(numpy)
            if isinstance(ours, np.ndarray):
                assert ours.dtype == numpy.dtype
            assert difference(ours, numpy) <= 20 * epsilon


def test_a_unit_field_is_exact():
    U = GaugeField.cold(LatticeGeometry(T=3, Z=2, Y=4, X=5))
    with use_backend("native"):
        assert gauge.plaquette(U) == 1.0 and not gauge.clover_term(U, 1.0).any()
        assert np.array_equal(gauge.staple(U, "x"), 6 * U.array[..., 3, :, :])


def test_strided_and_foreign_arrays():
    U = links((4, 4, 2, 6)).array
    strided = np.repeat(U, 2, axis=3)[:, :, :, ::2]
    assert not strided.flags.c_contiguous
    with use_backend("native"):
        want = gauge.plaquette(U)
        assert gauge.plaquette(strided) == gauge.plaquette(np.asfortranarray(U)) == want
        read_only = U.copy()
        read_only.setflags(write=False)
        assert gauge.plaquette(read_only) == want


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_and_thread_count(isa):
    """Instruction sets agree to rounding, thread counts in every bit."""
    U = links((4, 6, 4, 10))
    work = CheckerboardLinks(U)
    a = anti_hermitian(3000, 0.8)
    blocks = gauge.clover_term(U, 0.5) + 4.1 * np.eye(6)
    calls = {
        "plaquettes": (U.array,), "staple": (U.array, 2), "clover": (U.array, 0.7, 0.2), "inverse": (blocks,), "exponential": (a,),
        "unitarize": (U.array + 0.05 * anti_hermitian(U.array.size // 9, 1.0).reshape(U.array.shape),),
        "checkerboard_staple": (work.links, work.forward, work.backward, 1, 1),
    }  # fmt: skip
    assert calls.keys() == GAUGE_KINDS.keys()
    for kind, arguments in calls.items():
        results = [GaugeKernels(isa, threads).find(kind, 3)(*arguments) for threads in (1, 2, 3, 5)]
        assert len({r.tobytes() for r in results}) == 1, kind
        best = GaugeKernels(ISAS[0], 1).find(kind, 3)(*arguments)
        assert difference(results[0], best) <= 1e-13, kind


# -- exponential -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0.0, 1e-160, 1e-12, 1e-5, 1e-2, 0.3, 0.7, 1.0, 3.0, 20.0])
def test_the_exponential_is_that_of_scipy(size):
    with use_backend("native"):
        for trace in (False, True):
            a = anti_hermitian(40, size, trace=trace)
            e = gauge.exponential(a)
            want = np.array([scipy.linalg.expm(m) for m in a])
            assert difference(e, want) <= 1e-13 * max(1.0, size) * 5
            assert np.abs(e @ e.conj().swapaxes(-1, -2) - np.eye(3)).max() <= 1e-14 * max(1.0, size) * 5
            if not trace:
                assert np.abs(np.linalg.det(e) - 1).max() <= 1e-14 * max(1.0, size) * 5
            assert np.abs(e @ gauge.exponential(-a) - np.eye(3)).max() <= 1e-13 * max(1.0, size)
            if size == 0:
                assert np.array_equal(e, np.broadcast_to(np.eye(3), e.shape))


@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=2),
    st.sampled_from([0.0, 1e-14, 1e-9, 1e-6, 1e-3]),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_degenerate_eigenvalues(pair, split, seed):
    """Two eigenvalues that meet are where the analytic form divides by little: c0 at its bounds, w near 0."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3)))[0]
    x = pair[0]
    for spectrum in ((x, x + split, -2 * x - split), (pair[0], pair[1], -pair[0] - pair[1])):
        a = (q * (1j * np.array(spectrum))) @ q.conj().T
        a = (a - a.conj().T) / 2
        want = (q * np.exp(1j * np.array(spectrum))) @ q.conj().T
        with use_backend("native"):
            assert np.abs(gauge.exponential(a) - want).max() <= 5e-13


def test_the_two_branches_meet():
    """c1 = tr Q^2 / 2 on either side of 1, where the series gives way to the analytic form."""
    a = anti_hermitian(200, 1.0)
    c1 = -np.einsum("nij,nji->n", a, a).real / 2
    with use_backend("native"):
        for near in (1 - 1e-9, 1.0, 1 + 1e-9, 0.999, 1.001):
            scaled = a * np.sqrt(near / c1)[:, None, None]
            want = np.array([scipy.linalg.expm(m) for m in scaled])
            assert difference(gauge.exponential(scaled), want) <= 5e-14


# -- projection and inverse --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 1e-12, 1e-3, 0.3, 1.5])
def test_projection_is_the_nearest_special_unitary_matrix(noise):
    U = links((4, 2, 4, 6))
    rng = np.random.default_rng(5)
    rough = U.array + noise * (rng.normal(size=U.array.shape) + 1j * rng.normal(size=U.array.shape))
    field = GaugeField(U.geometry, rough)
    ours, numpy = both(lambda: field.unitarize().array)
    smallest = np.linalg.svd(rough, compute_uv=False).min()
    assert np.abs(ours - numpy).max() <= 1e-13 + 1e-14 / smallest**2
    assert GaugeField(U.geometry, ours).unitarity() <= 1e-14 * 5


def test_what_cannot_be_projected_is_refused_in_the_same_words():
    U = links((2, 2, 2, 2))
    for entry, word in ((np.nan, "not finite"), (np.inf, "not finite"), (0.0, "singular")):
        array = U.array.copy()
        if word == "singular":
            array[1, 1, 0, 1, 2] = [[1, 2, 3], [2, 4, 6], [0, 0, 1]]
        else:
            array[1, 1, 0, 1, 2, 0, 0] = entry
        for backend in ("native", "numpy"):
            with use_backend(backend), pytest.raises(NonUnitaryLinksError, match=word):
                GaugeField(U.geometry, array).unitarize()


def test_the_inverse_of_the_clover_term():
    U = links((4, 2, 2, 6))
    for term in (
        SiteDiagonal(scalar=4.1, blocks=gauge.clover_term(U, 0.5)),
        SiteDiagonal(scalar=0.3, blocks=gauge.clover_term(U, 2.0), twist=0.2),  # indefinite: pivots matter
    ):
        ours, numpy = both(lambda term=term: term.inverse())
        assert difference(ours.blocks, numpy.blocks) <= 1e-11
        assert ours.hermitian_blocks == numpy.hermitian_blocks
        one = ours.blocks @ term.full_blocks()
        assert np.abs(one - np.eye(6)).max() <= 1e-10
    permuted = np.broadcast_to(np.eye(6)[[3, 0, 5, 1, 2, 4]].astype(complex), (2, 2, 2, 2, 2, 6, 6)).copy()
    with use_backend("native"):  # zeros on the diagonal
        inverse = SiteDiagonal(blocks=permuted, hermitian_blocks=False).inverse()
        assert np.array_equal(inverse.blocks, permuted.swapaxes(-1, -2))
        permuted[1, 0, 1, 0, 1, 2] = 0
        with pytest.raises(np.linalg.LinAlgError):
            SiteDiagonal(blocks=permuted, hermitian_blocks=False).inverse()


def test_a_bound_clover_operator_is_the_same():
    U = links((4, 4, 2, 4))
    psi = ColorSpinorField.gaussian(U.geometry, seed=2)
    results = []
    for backend in ("native", "numpy"):
        with use_backend(backend):
            M = CloverWilsonDirac(mass=0.1, csw=1.2).bind(U)
            results.append((M(psi).array, M.even_odd().apply(M.even_odd().split(psi.array[None])[0]), M))
    assert difference(results[0][0], results[1][0]) <= 1e-13
    halves = [m.even_odd().vectors.space.unpack(x) for _, x, m in results]
    assert difference(halves[0], halves[1]) <= 1e-13


# -- who computes ------------------------------------------------------------------------------------------------------


def test_who_is_asked():
    with use_backend("native"):
        assert all(callable(gauge_kernel(kind, 3)) for kind in GAUGE_KINDS)
        assert all(gauge_kernel(kind, 2) is None for kind in GAUGE_KINDS)
        assert gauge_kernel("no such kind", 3) is None and gauge_kernel("find", 3) is None
        assert gauge.plaquette(GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=2), seed=1)) < 1
    with use_backend("numpy"):
        assert gauge_kernel("plaquettes", 3) is None  # named, so not replaced
    with use_backend(None):
        assert callable(gauge_kernel("plaquettes", 3)) and gauge_kernel("plaquettes", 3, named_only=True) is None


def test_a_chain_changes_with_the_backend_only_if_one_is_named():
    U = links((4, 2, 4, 4))
    with use_backend("numpy"):
        numpy = gauge.heatbath_sweep(U, 5.8, seed=3, sweep=0)
        over = gauge.overrelaxation_sweep(U)
    with use_backend(None):
        assert gauge.heatbath_sweep(U, 5.8, seed=3, sweep=0).array.tobytes() == numpy.array.tobytes()
    chains = []
    for threads in (1, 3):
        with use_backend("native", threads=threads):
            ours = gauge.heatbath_sweep(U, 5.8, seed=3, sweep=0)
            assert difference(ours.array, numpy.array) <= 1e-11
            # A reflection about a short staple magnifies rounding.
            assert difference(gauge.overrelaxation_sweep(U).array, over.array) <= 1e-8
            chains.append([f.array.tobytes() for f, _ in _chain()])
    assert chains[0] == chains[1]


def _chain():
    for _, field, info in gauge.generate(
        LatticeGeometry(T=4, Z=2, Y=2, X=2), beta=5.7, configurations=2, thermalization=3, separation=2, seed=4
    ):
        yield field, info


def test_wrong_arguments_are_refused_at_the_border():
    kernels = _native.Gauge(ISAS[-1], 1)
    U = links((2, 2, 2, 4)).array
    work = CheckerboardLinks(links((2, 2, 2, 4)))
    for wrong in (
        lambda: _native.Gauge("no such set", 1), lambda: _native.Gauge(ISAS[0], 0), lambda: kernels.plaquettes(U[..., :2, :2].copy()),
        lambda: kernels.staple(U, 4), lambda: kernels.clover(U, np.zeros((6, 2, 2), complex)),
        lambda: kernels.invert(np.zeros((3, 5, 5), complex)), lambda: kernels.exponential(np.zeros((3, 2, 2), complex)),
        lambda: kernels.project(np.zeros(3, complex)),
        lambda: kernels.half_staple(work.links, [[t + 100 for t in h] for h in work.forward], work.backward, 0, 0),
        lambda: kernels.half_staple(work.links, work.forward, work.backward, 0, 2),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            wrong()

"""What the laws do not ask: extents, lanes, threads, borders, forks, memory."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lqcd_native import _native
from lqcd_native.backend import NativeBackend, default_threads

from lqcd_core import CloverWilsonDirac, ConjugateGradient, MixedPrecision, TwistedMassDirac, WilsonDirac, solve
from lqcd_core.backend import Links, Request, SiteDiagonal
from lqcd_core.errors import BackendUnavailable, FieldShapeError, ParameterError
from lqcd_core.geometry import EVEN, FULL, ODD, LatticeGeometry
from lqcd_core.precision import as_precision
from lqcd_core.registry import REGISTRY

PHASES = (-1, np.exp(0.3j), 1j, np.exp(-1.1j))
SHAPES = [(6, 4, 8, 12), (2, 2, 2, 2), (3, 5, 7, 4), (4, 4, 4, 64), (1, 3, 1, 1), (2, 8, 4, 6)]
DOUBLE, SINGLE = as_precision("double"), as_precision("single")


def geometry_of(shape):
    return LatticeGeometry.from_shape(shape)


def links_of(shape, seed=1):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(*shape, 4, 3, 3)) + 1j * rng.normal(size=(*shape, 4, 3, 3))
    q = np.linalg.qr(a)[0]
    return q / np.linalg.det(q)[..., None, None] ** (1 / 3)


def spinors(geometry, n, parity=FULL, seed=2):
    rng = np.random.default_rng(seed)
    shape = (n, *geometry.parity_shape(parity))
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def record(shape, seed=1, phases=PHASES):
    return Links(geometry_of(shape), links_of(shape, seed), phases, (1.0, 0.4, 0.4, 0.4), f"{shape}{seed}")


def reference_hop(links, psi):
    numpy = REGISTRY.load("numpy").instance
    space = numpy.space(links.geometry, DOUBLE, len(psi))
    return space.unpack(numpy.hopping(links, space)(space.pack(psi)))


def hop(backend, links, psi, precision=DOUBLE):
    space = backend.space(links.geometry, precision, len(psi))
    return space.unpack(backend.hopping(links, space)(space.pack(psi)))


def difference(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("isa", _native.instruction_sets())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_hopping_and_parity_hops_on_odd_and_even_extents(shape, isa):
    links, backend = record(shape), NativeBackend(threads=1, isa=isa)
    g = links.geometry
    psi = spinors(g, 2)
    want = reference_hop(links, psi)
    for precision in (DOUBLE, SINGLE):
        assert difference(hop(backend, links, psi, precision), want) <= precision.tolerance
        if g.why_no_parity() is None:
            for target in (EVEN, ODD):
                here, there = (backend.space(g, precision, 2, p) for p in (target, 1 - target))
                x = there.pack(g.split_parity(psi, 1 - target, lead=1))
                got = here.unpack(backend.parity_hopping(links, here)(x))
                assert difference(got, g.split_parity(want, target, lead=1)) <= precision.tolerance


@pytest.mark.parametrize("n", range(1, 14))
def test_any_number_of_columns_on_lanes_of_sites_and_of_columns(n):
    backend = NativeBackend(threads=2)
    for shape in ((4, 4, 4, 4), (3, 1, 5, 2), (3, 3, 3, 3)):
        links = record(shape)
        psi = spinors(links.geometry, n)
        want = reference_hop(links, psi)
        for precision in (DOUBLE, SINGLE):
            assert difference(hop(backend, links, psi, precision), want) <= precision.tolerance
            space = backend.space(links.geometry, precision, n)
            norms = space.norm2(space.pack(psi))
            assert np.allclose(
                norms, (np.abs(psi) ** 2).reshape(n, -1).sum(1), rtol=1e-6 if precision is SINGLE else 1e-13
            )


@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 6)] * 4), n=st.integers(1, 5), block=st.integers(1, 4), tile=st.integers(1, 40),
    threads=st.integers(1, 3), stores=st.sampled_from(["plain", "stream"]), angle=st.floats(-3, 3),
    prefetch=st.sampled_from(["none", "streams", "neighbours"]),
)  # fmt: skip
def test_random_extents_schedules_and_phases(shape, n, block, tile, threads, stores, angle, prefetch):
    links = Links(geometry_of(shape), links_of(shape), (-1, np.exp(1j * angle), 1, np.exp(2j * angle)))
    psi = spinors(links.geometry, n)
    backend = NativeBackend(threads=threads, block=block, tile=tile, stores=stores, prefetch=prefetch)
    assert difference(hop(backend, links, psi), reference_hop(links, psi)) <= DOUBLE.tolerance


@pytest.mark.parametrize("precision", ["double", "single"])
def test_bits_do_not_depend_on_threads_or_schedule(precision):
    shape, precision = (6, 8, 4, 8), as_precision(precision)
    links = record(shape)
    g = links.geometry
    psi, eta = spinors(g, 3), spinors(g, 3, seed=5)
    blocks = np.broadcast_to(np.diag(np.arange(1.0, 7)), (*shape, 2, 6, 6)) + 0j
    seen = []
    for threads, tile, stores, prefetch in [
        (1, 64, "plain", "none"),
        (2, 5, "plain", "streams"),
        (3, 64, "stream", "neighbours"),
        (4, 1, "plain", "auto"),
        (5, 7, "stream", "streams"),
    ]:
        backend = NativeBackend(threads=threads, tile=tile, stores=stores, prefetch=prefetch)
        space = backend.space(g, precision, 3)
        x, y = space.pack(psi), space.pack(eta)
        h = backend.hopping(links, space)(x)
        a = backend.site_diagonal(SiteDiagonal(scalar=4.0, blocks=blocks, twist=0.1), space)(h)
        y, norm2 = space.axpy_norm2(np.array([0.1, 2.0, -1j]), a, y)
        p, r, rr = space.cg_update(0.3, x, h, space.copy(y), a)
        seen.append([space.unpack(v) for v in (h, y, p, r)] + [norm2, rr, space.inner_slices(x, y), space.inner(x, y)])
    for other in seen[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(seen[0], other))


def test_inner_products_are_the_correctly_rounded_sum_of_slices():
    from lqcd_core.spaces import exact_sum

    backend, g = NativeBackend(threads=1), geometry_of((12, 4, 2, 4))
    space = backend.space(g, DOUBLE, 2)
    x, y = space.pack(spinors(g, 2)), space.pack(spinors(g, 2, seed=9))
    assert np.array_equal(space.inner(x, y), exact_sum(space.inner_slices(x, y)))
    assert np.array_equal(space.norm2(x), exact_sum(space.inner_slices(x, x)).real) or np.allclose(
        space.norm2(x), exact_sum(space.inner_slices(x, x)).real, rtol=1e-15
    )


@pytest.mark.parametrize(
    "definition",
    [WilsonDirac(mass=0.1), CloverWilsonDirac(mass=0.1, csw=1.2), TwistedMassDirac(mass=0.1, mu=0.2),
     TwistedMassDirac(mass=0.1, mu=0.2, csw=1.1)],
    ids=lambda d: d.name,
)  # fmt: skip
def test_fused_operators_agree_with_the_numpy_backend(definition):
    shape = (4, 4, 2, 8)
    u = links_of(shape)
    psi = spinors(geometry_of(shape), 2)
    native = definition.bind(u, backend=("native", {"threads": 2}), precision="double", n_rhs=2)
    numpy = definition.bind(u, backend="numpy", precision="double", n_rhs=2)
    assert native.choice.name == "native"
    for name in ("__call__", "dagger", "normal"):
        assert difference(getattr(native, name)(psi), getattr(numpy, name)(psi)) <= 4 * DOUBLE.tolerance
    for form in ("symmetric", "asymmetric"):
        for parity in (EVEN, ODD):
            s, t = native.even_odd(parity, form), numpy.even_odd(parity, form)
            half = native.geometry.split_parity(psi, parity, lead=1)
            for name in ("apply", "apply_dagger", "apply_normal"):
                got = s.vectors.unpack(getattr(s, name)(s.vectors.pack(half)))
                want = t.vectors.unpack(getattr(t, name)(t.vectors.pack(half)))
                assert difference(got, want) <= 8 * DOUBLE.tolerance, (form, parity, name)


def test_the_record_refuses_other_groups_with_a_reason():
    request = Request(operator="wilson", precision=DOUBLE, geometry=LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=4))
    assert "Nc = 3 only" in REGISTRY.record("native").why_not(request)


def test_handles_of_other_spaces_and_wrong_arguments_are_refused():
    backend, g = NativeBackend(threads=1), geometry_of((4, 4, 4, 4))
    space, other = backend.space(g, DOUBLE, 2), backend.space(geometry_of((4, 4, 4, 2)), DOUBLE, 2)
    single, half = backend.space(g, SINGLE, 2), backend.space(g, DOUBLE, 2, EVEN)
    x, y = space.pack(spinors(g, 2)), space.zeros()
    h = backend.hopping(record((4, 4, 4, 4)), space)
    for foreign in (other.zeros(), single.zeros(), half.zeros()):
        for call in (
            lambda f: space.axpy(1.0, f, y), lambda f: space.axpy(1.0, x, f), lambda f: space.inner(x, f), space.norm2,
            space.unpack, space.gamma5, h, lambda f: space.put(x, [0, 1], f), lambda f: space.take(f, [0]),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="another space"):
                call(foreign)
    with pytest.raises(ValueError, match="one handle"):
        space.axpy(1.0, x, x)
    with pytest.raises(ValueError, match="one handle"):
        space.cg_update(1.0, x, y, x, space.zeros())
    with pytest.raises(ValueError, match="columns"):
        space.axpy(1.0, space.take(x, [0]), y)
    with pytest.raises(ParameterError, match="scalars"):
        space.axpy(np.ones(3), x, y)
    with pytest.raises(ValueError, match="out of range"):
        space.take(x, [2])
    with pytest.raises(ValueError, match="out of range"):
        space.take(x, [-1])
    with pytest.raises(FieldShapeError):
        space.pack(spinors(g, 2)[:, :2])
    with pytest.raises(TypeError):
        space.norm2(np.zeros(3))


def test_strided_and_byte_swapped_arrays_are_packed_right():
    backend, g = NativeBackend(threads=1), geometry_of((4, 2, 4, 4))
    space, psi = backend.space(g, DOUBLE, 2), spinors(g, 4)
    assert np.array_equal(space.unpack(space.pack(psi[::2])), psi[::2])
    assert np.array_equal(space.unpack(space.pack(psi[1::-1])), psi[1::-1])
    assert np.array_equal(space.unpack(space.pack(psi[:2].astype(">c16"))), psi[:2])
    assert np.array_equal(space.unpack(space.pack(psi[:2].real)), psi[:2].real)


def test_nan_stays_in_its_column_where_columns_share_a_vector():
    backend, shape = NativeBackend(threads=1), (3, 3, 3, 3)
    links = record(shape)
    space, psi = backend.space(links.geometry, DOUBLE, 3), spinors(links.geometry, 3)
    assert space.layout.rhs_lanes > 1
    psi[1, 0, 0, 0, 0, 0, 0] = np.nan
    norms = space.norm2(backend.hopping(links, space)(space.pack(psi)))
    assert np.isnan(norms[1]) and np.isfinite(norms[[0, 2]]).all()


@pytest.mark.skipif("avx512" not in _native.instruction_sets(), reason="needs a processor with AVX-512")
def test_links_from_memory_take_narrower_vectors_whatever_the_number_of_slices(monkeypatch):
    """12^3: a slice of links is 1.9 MiB in double, 0.95 in single, so a mixed solve has both layouts."""
    monkeypatch.delenv("LQCD_NATIVE_ISA", raising=False)
    backend = NativeBackend(threads=1)
    for shape, double, single in (
        ((2, 12, 12, 12), "avx2", "avx512"),
        ((8, 12, 12, 12), "avx2", "avx512"),
        ((16, 8, 8, 8), "avx512", "avx512"),
        ((2, 16, 16, 16), "avx2", "avx2"),
    ):
        for precision, isa in (("double", double), ("single", single)):
            assert backend._layout(geometry_of(shape), as_precision(precision), FULL).isa == isa
    forced = NativeBackend(isa="avx512")
    assert forced._layout(geometry_of((2, 16, 16, 16)), DOUBLE, FULL).isa == "avx512"
    g = geometry_of((2, 12, 12, 12))
    b = spinors(g, 2)
    M = WilsonDirac(mass=0.6).bind(links_of(g.shape), backend=("native", {"threads": 1}), n_rhs=2)
    x, info = solve(M, b, MixedPrecision(inner=ConjugateGradient(tol=1e-11), precision="single"))
    assert info.converged and np.linalg.norm(M(x) - b) <= 2e-11 * np.linalg.norm(b)


def test_forced_instruction_set_by_variable_and_option(monkeypatch):
    monkeypatch.setenv("LQCD_NATIVE_ISA", "baseline")
    assert NativeBackend().isa == "baseline"
    assert NativeBackend().describe()["instruction set"] == "baseline"
    best = _native.instruction_sets()[0]
    assert NativeBackend(isa=best).isa == best
    monkeypatch.setenv("LQCD_NATIVE_ISA", "mmx")
    with pytest.raises(BackendUnavailable, match="mmx"):
        NativeBackend()
    missing = set(_native.instruction_sets(False)) - set(_native.instruction_sets())
    for isa in missing:
        with pytest.raises(BackendUnavailable, match="does not run"):
            NativeBackend(isa=isa)


def test_threads_follow_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert default_threads() == 3 and NativeBackend().threads == 3 and NativeBackend(threads=2).threads == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "nonsense")
    assert default_threads() >= 1


def test_several_python_threads_share_the_pool():
    shape = (4, 8, 8, 4)
    backend, links = NativeBackend(threads=3), record(shape)
    psi = spinors(links.geometry, 2)
    want, wrong = hop(backend, links, psi), []

    def work():
        for _ in range(10):
            if not np.array_equal(hop(backend, links, psi), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_computes_the_same():
    shape = (4, 8, 8, 4)
    backend, links = NativeBackend(threads=3), record(shape)
    psi = spinors(links.geometry, 2)
    want = hop(backend, links, psi)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(hop(backend, links, psi), want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(hop(backend, links, psi), want)


def test_memory_stays_flat_over_many_operations():
    resource = pytest.importorskip("resource")
    shape = (4, 4, 4, 4)
    backend, links = NativeBackend(threads=1), record(shape)
    space = backend.space(links.geometry, DOUBLE, 2)
    x, h = space.pack(spinors(links.geometry, 2)), backend.hopping(links, space)

    def rounds(k):
        for _ in range(k):
            y = space.axpy(0.5, x, h(x))
            space.norm2(space.take(y, [0]))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = rounds(200)
    grown = rounds(3000) - before
    assert grown < 8 * 1024, f"peak memory grew by {grown} KiB over 3000 applications of 200 KiB each"


def test_a_schedule_is_measured_once_and_remembered(tmp_path, monkeypatch):
    from lqcd_native import tune

    options = tune.candidates(tune.Schedule(2, 64, True, 2), 512, 12)
    assert len(set(options)) == len(options) >= 6
    ran = []
    first = tune.choose("k", options, ran.append)
    assert first in options and set(ran) == set(options)
    ran.clear()
    assert tune.choose("k", options, ran.append) == first and not ran
    (tmp_path / "tune.json").write_text("{broken")
    assert tune.choose("k", options, ran.append) in options and ran
    monkeypatch.setenv("LQCD_NATIVE_CACHE", str(tmp_path / "tune.json" / "no folder"))
    assert tune.choose("k", options, ran.append) in options


def test_large_hops_are_tuned_unless_told_otherwise(tmp_path, monkeypatch):
    from lqcd_native import tune

    monkeypatch.setattr(tune, "SMALLEST", 256)
    links = record((4, 4, 4, 4))
    psi = spinors(links.geometry, 2)
    monkeypatch.setenv("LQCD_TUNE", "off")
    plain = hop(NativeBackend(threads=1), links, psi)
    assert not (tmp_path / "tune.json").exists()
    monkeypatch.delenv("LQCD_TUNE")
    assert np.array_equal(hop(NativeBackend(threads=1), links, psi), plain)
    assert (tmp_path / "tune.json").exists()


def test_asking_the_record_imports_no_kernel():
    code = "import lqcd_core, sys; from lqcd_core.registry import REGISTRY; REGISTRY.records()['native']; "
    code += "sys.exit('lqcd_native._native' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_layouts_say_which_lanes_they_use():
    def words(*shape, parity=-1, double=False):
        return _native.Layout(list(shape), parity, "float64" if double else "float32", "baseline").describe()

    assert words(8, 8, 8, 8) == "4 lanes = 4 sub-lattices (2x2x1 over z, y, x)"
    assert words(3, 5, 7, 3) == "4 lanes = 4 right-hand sides"
    assert words(3, 5, 7, 6) == "4 lanes = 2 sub-lattices (1x1x2 over z, y, x) x 2 right-hand sides"
    assert words(2, 2, 2, 2, parity=0) == "4 lanes = 4 right-hand sides"


def test_a_mixed_precision_solve_runs_in_the_plugin():
    from lqcd_core import ConjugateGradient, MixedPrecision, solve

    shape = (4, 4, 4, 4)
    u = links_of(shape)
    b = spinors(geometry_of(shape), 2)
    m = CloverWilsonDirac(mass=0.4, csw=1.0).bind(u, backend=("native", {"threads": 1}), precision="double", n_rhs=2)
    x, info = solve(m, b, MixedPrecision(inner=ConjugateGradient(tol=1e-4), tol=1e-10, precision="single"))
    assert info.converged and difference(m(x), b) <= 2e-10

"""Whole solves inside the backend: the core's own solvers on the same handles are the judge."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from lqcd_native import _native
from lqcd_native.backend import NativeBackend

from lqcd_core import (
    GCR,
    BiCGStab,
    CloverWilsonDirac,
    ColorSpinorField,
    ConjugateGradient,
    GaugeField,
    LatticeGeometry,
    MixedPrecision,
    TwistedMassDirac,
    WilsonDirac,
    explain,
    gauge,
    point_source,
    propagator,
)  # fmt: skip
from lqcd_core.errors import BackendUnavailable, NotConvergedError, ParameterError
from lqcd_core.solvers import NormalCG, Reason, solve
from lqcd_core.testing.conformance import DeviceSolveConformance, GaugeConformance

G = LatticeGeometry(T=6, Z=4, Y=4, X=4)


class TestDeviceSolve(DeviceSolveConformance):
    backend, ncs = "native", (3,)


class TestGauge(GaugeConformance):
    backend, ncs = "native", (3,)


def near_unit(geometry, size=0.3, seed=1):
    """Links near 1, where solvers have something to do."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=geometry.gauge_shape) + 1j * rng.normal(size=geometry.gauge_shape)
    a = (a - a.conj().swapaxes(-1, -2)) / 2
    return GaugeField(geometry, gauge.exponential(size * a)).unitarize()


LINKS = near_unit(G)
OPERATORS = {
    "wilson": WilsonDirac(mass=0.05),
    "clover": CloverWilsonDirac(mass=0.1, csw=1.0),
    "twisted": TwistedMassDirac(mass=0.1, mu=0.2),
}
CG, BICG = ConjugateGradient(tol=1e-9), BiCGStab(tol=1e-9)
SOLVERS = {
    "cg": CG, "bicgstab": BICG, "normal": NormalCG(tol=1e-9),
    "mixed cg": MixedPrecision(inner=CG), "mixed bicgstab": MixedPrecision(inner=BICG),
    "reliable cg": MixedPrecision(inner=CG, method="reliable_updates"),
    "reliable bicgstab": MixedPrecision(inner=BICG, method="reliable_updates"),
}  # fmt: skip


def bind(definition=OPERATORS["wilson"], links=LINKS, precision="double", n_rhs=3, **options):
    options.setdefault("threads", 1)
    return definition.bind(links, backend=("native", options), precision=precision, n_rhs=n_rhs)


def source(n=3, seed=2, geometry=G):
    return ColorSpinorField.gaussian(geometry, seed=seed, n_rhs=n)


def true_residuals(M, x, b):
    r = b.array - M(x).array
    axes = tuple(range(1, r.ndim))
    return np.sqrt((abs(r) ** 2).sum(axes) / (abs(b.array) ** 2).sum(axes))


def rows(info):
    return np.array([np.atleast_1d(h) for h in info.history])


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_histories_and_counts_are_those_of_the_core(operator, name):
    M, b, solver = bind(OPERATORS[operator]), source(), SOLVERS[name]
    for system in ({"even_odd": False}, {"form": "symmetric"}, {"form": "asymmetric", "parity": 1}):
        x, inside = solve(M, b, solver, device_solve=True, **system)
        y, outside = solve(M, b, solver, device_solve=False, **system)
        assert (inside.inside, outside.inside) == ("native", "")
        assert inside.converged and outside.converged
        assert abs(inside.column_iterations - outside.column_iterations).max() <= 1
        assert abs(inside.applications - outside.applications) <= 4
        assert abs(inside.outer_applications - outside.outer_applications) <= 2
        h, k = rows(inside), rows(outside)
        both = min(len(h), len(k)) - 2  # the last ones may be of another cycle
        assert abs(np.log(h[:both] / k[:both])).max() < 1e-5
        assert true_residuals(M, x, b).max() <= 1e-9
        assert np.allclose(inside.column_residuals, true_residuals(M, x, b), rtol=1e-4)
        assert np.linalg.norm(x.array - y.array) <= 1e-7 * np.linalg.norm(y.array)


@pytest.mark.parametrize("name", ["cg", "bicgstab"])
def test_single_precision(name):
    M = bind(precision="single")
    b = source().to("single")
    solver = type(SOLVERS[name])(tol=1e-5)
    x, info = solve(M, b, solver, device_solve=True)
    _, outside = solve(M, b, solver, device_solve=False)
    assert info.converged and true_residuals(M, x, b).max() <= 1.1e-5
    assert abs(info.column_iterations - outside.column_iterations).max() <= 1


def test_mixed_precision_reaches_what_double_reaches():
    M, b = bind(OPERATORS["clover"]), source()
    for method in ("defect_correction", "reliable_updates"):
        for inner in (ConjugateGradient(tol=1e-12), BiCGStab(tol=1e-12)):
            x, info = solve(M, b, MixedPrecision(inner=inner, method=method), device_solve=True)
            assert info.inside == "native" and true_residuals(M, x, b).max() <= 1e-12
            assert info.outer_applications < info.applications


@pytest.mark.parametrize("n", range(1, 14))
def test_any_number_of_columns(n):
    """The first is zero where there are several; each column does as it does alone."""
    M = bind(n_rhs=n)
    b = source(n)
    array = b.array.copy()
    if n > 1:
        array[0] = 0
    b = ColorSpinorField(G, array)
    x, info = solve(M, b, CG, device_solve=True)
    assert info.converged and len(info.column_iterations) == n
    if n > 1:
        assert info.column_reasons[0] is Reason.ZERO_SOURCE and not x.array[0].any() and info.column_iterations[0] == 0
    last, alone = solve(M, ColorSpinorField(G, array[-1]), CG, device_solve=True)
    assert np.linalg.norm(x.array[-1] - last.array) <= 1e-9 * np.linalg.norm(last.array)
    assert abs(info.column_iterations[-1] - alone.iterations) <= 1


def test_columns_of_very_different_size_and_difficulty():
    """Columns leave the batch at their own time; tiny and huge sources keep their relative residual."""
    M, b = bind(n_rhs=4), source(4)
    array = b.array * np.array([1e-30, 1.0, 1e20, 1e-3]).reshape(-1, *(1,) * 6)
    array[3] = 0
    array[3, 1, 2, 3, 0, 1, 2] = 1
    b = ColorSpinorField(G, array)
    for solver in SOLVERS.values():
        x, info = solve(M, b, solver, device_solve=True)
        assert info.converged and true_residuals(M, x, b).max() <= 1e-9


def test_nan_is_reported_and_does_not_spread():
    M = bind()
    array = source().array.copy()
    array[1, 0, 0, 0, 0, 0, 0] = np.nan
    b = ColorSpinorField(G, array)
    for name in ("cg", "bicgstab", "mixed cg", "reliable bicgstab"):
        x, info = solve(M, b, SOLVERS[name], device_solve=True, raise_on_failure=False)
        good = [0, 2]
        assert info.column_reasons[1] is Reason.NOT_FINITE and info.column_converged[good].all()
        assert np.isfinite(x.array[good]).all()
        assert true_residuals(M, x, b)[good].max() <= 1e-9
    damaged = LINKS.array.copy()
    damaged[0, 1, 2, 3, 0, 0, 0] = np.inf
    M = OPERATORS["wilson"].bind(damaged, backend="native", check_links=False, n_rhs=2)
    for name in ("cg", "bicgstab", "mixed cg", "reliable bicgstab"):
        _, info = solve(M, source(2), SOLVERS[name], device_solve=True, raise_on_failure=False)
        assert not info.converged and info.reason is Reason.NOT_FINITE
    with pytest.raises(NotConvergedError, match="not finite"):
        solve(M, source(2), CG)


@pytest.mark.parametrize("name", SOLVERS)
def test_the_iteration_limit(name):
    M, b = bind(), source()
    solver = SOLVERS[name]
    if isinstance(solver, MixedPrecision):
        solver = MixedPrecision(inner=solver.inner, method=solver.method, maxiter=4)
    else:
        solver = type(solver)(tol=1e-9, maxiter=4)
    _, info = solve(M, b, solver, device_solve=True, raise_on_failure=False)
    assert info.reason is Reason.MAXIMUM_ITERATIONS and not info.converged
    assert info.iterations == 4 and len(info.history) == 4


def test_stagnation_is_the_cores():
    M, b = bind(precision="single"), source().to("single")
    for solver in (
        ConjugateGradient(tol=1e-12, refuse_unreachable=False),
        BiCGStab(tol=1e-12, refuse_unreachable=False),
    ):
        _, info = solve(M, b, solver, device_solve=True, raise_on_failure=False)
        assert info.reason is Reason.STAGNATION and info.final_residual < 1e-5


@pytest.mark.parametrize("name", ["cg", "mixed bicgstab"])
def test_callbacks_hear_each_iteration(name):
    M, b, heard = bind(), source(), []
    _, info = solve(M, b, SOLVERS[name], callback=heard.append, device_solve=True)
    assert [p.iteration for p in heard] == list(range(1, len(info.history) + 1))
    assert all(np.array_equal(p.residuals, h) for p, h in zip(heard, info.history))
    _, silent = solve(M, b, SOLVERS[name], device_solve=True)
    assert np.array_equal(rows(silent), rows(info))


def test_verbose_prints_as_the_core_does(capsys):
    M, b = bind(), source()
    for inside in (True, False):
        solve(M, b, ConjugateGradient(tol=1e-9, verbose=True), device_solve=inside)
    inside, outside = capsys.readouterr().out.split("iteration 1,")[1:]
    assert inside.count("iteration") == outside.count("iteration") >= 2


def test_what_a_callback_raises_ends_the_solve():
    M, b = bind(), source()

    def stop(progress):
        if progress.iteration == 3:
            raise LookupError("enough")

    for name in ("cg", "reliable cg"):
        with pytest.raises(LookupError, match="enough"):
            solve(M, b, SOLVERS[name], callback=stop, device_solve=True)
    assert solve(M, b, CG, device_solve=True).info.converged


ENDLESS_PROGRAM = textwrap.dedent(
    """
    import signal, sys, threading, time, os
    import numpy as np
    from lqcd_core import ColorSpinorField, ConjugateGradient, GaugeField, LatticeGeometry, WilsonDirac
    from lqcd_core.solvers import solve
    g = LatticeGeometry(T=8, Z=8, Y=8, X=8)
    M = WilsonDirac(mass=-2.0).bind(GaugeField.random(g, seed=1), backend=("native", {"threads": 2}), precision="single")
    b = ColorSpinorField.gaussian(g, seed=1, precision="single")
    endless = ConjugateGradient(tol=1e-30, maxiter=10**9, patience=10**9, restarts=10**9, refuse_unreachable=False)
    ticks = [0]
    def count():
        while True:
            ticks[0] += 1
            time.sleep(0.001)
    threading.Thread(target=count, daemon=True).start()
    def interrupt():
        time.sleep(0.5)
        before = ticks[0]
        time.sleep(0.5)
        print("others ran" if ticks[0] > before + 5 else "others waited", flush=True)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        while True:
            solve(M, b, endless, even_odd=False, device_solve=True, raise_on_failure=False)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    x, info = solve(WilsonDirac(mass=1.0).bind(GaugeField.random(g, seed=1), backend="native"),
                    ColorSpinorField.gaussian(g, seed=1), ConjugateGradient(tol=1e-8))
    print("solved" if info.converged and info.inside == "native" else info, flush=True)
    """
)


def test_an_interrupt_ends_a_solve_and_other_threads_run_meanwhile(tmp_path):
    env = {**os.environ, "LQCD_NATIVE_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS_PROGRAM], capture_output=True, text=True, timeout=120, env=env, check=False
    )
    assert done.stdout.split("\n")[:3] == ["others ran", "interrupted", "solved"], done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer")
def test_an_interrupt_in_this_process_reaches_the_caller():
    M, b = bind(WilsonDirac(mass=-2.0), GaugeField.random(G, seed=1)), source()
    endless = NormalCG(tol=1e-15, maxiter=10**9, patience=10**9, restarts=10**9, refuse_unreachable=False)
    before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(InterruptedError("time is up")))
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        with pytest.raises(InterruptedError, match="time is up"):
            while True:
                solve(M, b, endless, even_odd=False, device_solve=True, raise_on_failure=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", ["cg", "bicgstab", "mixed cg", "reliable bicgstab"])
def test_bits_do_not_depend_on_threads(name):
    g = LatticeGeometry(T=6, Z=8, Y=4, X=8)
    links, b = near_unit(g), source(2, geometry=g)
    answers = []
    for threads in (1, 2, 3, 5):
        x, info = solve(bind(links=links, n_rhs=2, threads=threads), b, SOLVERS[name], device_solve=True)
        answers.append((x.array.tobytes(), rows(info).tobytes()))
    assert len(set(answers)) == 1


@pytest.mark.parametrize("isa", _native.instruction_sets())
def test_every_instruction_set_solves(isa):
    M, b = bind(OPERATORS["clover"], isa=isa), source()
    for name in ("cg", "reliable bicgstab"):
        x, info = solve(M, b, SOLVERS[name], device_solve=True)
        _, outside = solve(M, b, SOLVERS[name], device_solve=False)
        assert info.converged and true_residuals(M, x, b).max() <= 1e-9
        assert abs(info.iterations - outside.iterations) <= 1


def test_two_python_threads_solve_at_once():
    M = bind(threads=2)
    sources = [source(seed=k) for k in (5, 6)]
    alone = [solve(M, b, CG, device_solve=True).x.array for b in sources]
    together: list = [None, None]

    def work(k):
        for _ in range(3):
            together[k] = solve(M, sources[k], CG, device_solve=True).x.array

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for x, y in zip(alone, together):
        assert x.tobytes() == y.tobytes()


def test_a_start_is_used_and_left_alone():
    M, b = bind(), source()
    x, _ = solve(M, b, CG)
    kept = x.array.copy()
    again = solve(M, b, CG, x0=x, device_solve=True)
    assert again.info.iterations == 0 and np.array_equal(x.array, kept)
    near = ColorSpinorField(G, x.array * (1 + 1e-6))
    closer = solve(M, b, CG, x0=near, device_solve=True).info
    assert closer.converged and closer.iterations < solve(M, b, CG).info.iterations


def test_who_solves_is_said_and_can_be_forced():
    M, b = bind(), source()
    info = solve(M, b, CG).info
    assert info.inside == "native" and "inside native" in str(info) and info.as_dict()["inside"] == "native"
    assert solve(M, b, CG, device_solve=False).info.inside == ""
    assert "runs whole solves itself" in str(explain(OPERATORS["wilson"], LINKS, backend="native"))
    half = solve(bind(precision="half"), b, ConjugateGradient(tol=1e-2))
    assert half.info.inside == "" and half.info.converged  # 16-bit storage is the core's
    assert solve(M, b, GCR(tol=1e-8)).info.inside == ""  # the core's, without a word
    with pytest.raises(BackendUnavailable, match="leaves a GCR solve"):
        solve(M, b, GCR(tol=1e-8), device_solve=True)
    numpy = OPERATORS["wilson"].bind(LINKS, backend="numpy", n_rhs=3)
    with pytest.raises(BackendUnavailable, match="numpy"):
        solve(numpy, b, CG, device_solve=True)
    other = MixedPrecision(inner=CG, backend="numpy")
    assert solve(M, b, other).info.inside == "" and solve(M, b, other).info.converged
    with pytest.raises(ParameterError, match="device_solve must be"):
        solve(M, b, CG, device_solve="yes")
    with pytest.raises(ParameterError, match="bound operator"):
        solve(M.linear, b, CG, device_solve=True)


def test_a_propagator_says_who_solved():
    M = bind(OPERATORS["clover"], n_rhs=12)
    S = propagator(M, point_source(G), MixedPrecision(inner=BICG))
    T = propagator(M, point_source(G), MixedPrecision(inner=BICG), device_solve=False, batch=5)
    assert (S.provenance["solve"]["inside"], T.provenance["solve"]["inside"]) == ("native", "")
    assert np.linalg.norm(S.array - T.array) <= 1e-7 * np.linalg.norm(T.array)


def test_odd_extents_and_right_hand_side_lanes():
    g = LatticeGeometry(T=3, Z=5, Y=7, X=3)
    M = bind(links=near_unit(g))
    b = source(geometry=g)
    for solver in SOLVERS.values():
        x, info = solve(M, b, solver, device_solve=True)
        assert info.converged and true_residuals(M, x, b).max() <= 1e-9
    small = LatticeGeometry(T=2, Z=2, Y=2, X=2)
    M = bind(links=near_unit(small), n_rhs=5)
    x, info = solve(M, source(5, geometry=small), BICG, device_solve=True)
    assert info.converged


def test_wrong_arguments_are_refused_at_the_border():
    M, other = bind(), bind(links=near_unit(LatticeGeometry(T=2, Z=4, Y=4, X=4)))
    from lqcd_native.solve import system_of

    system = system_of(M, True, 0, "symmetric")
    assert system is system_of(M, True, 0, "symmetric")
    schur = M.even_odd()
    b = schur.split(source().array)[0]
    given = {
        "outer": system, "inner": None, "recurrence": "cgnr", "mixing": "none", "targets": [1e-9] * 3, "maxiter": 10,
        "restarts": 1, "patience": 10, "inner_tol": 0.1, "delta": 0.1, "inner_maxiter": 10, "cycles": 1, "b": b, "x0": None,
        "callback": None,
    }  # fmt: skip
    for wrong in (
        {"targets": [1e-9]}, {"recurrence": "magic"}, {"mixing": "some"}, {"mixing": "reliable_updates"}, {"inner": system},
        {"maxiter": 0}, {"patience": 0}, {"b": M.space.zeros()}, {"b": other.even_odd().vectors.space.zeros()},
        {"x0": M.space.zeros()}, {"outer": system_of(other, True, 0, "symmetric")},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            _native.solve(**{**given, **wrong})
    with pytest.raises(ValueError, match="parity"):
        _native.split_parity(b, b_layout(schur), 1)
    with pytest.raises(ValueError, match="even and an odd"):
        _native.join_parity(b, b, M.space.layout, 1)


def b_layout(schur):
    return schur.vectors.space.layout


@pytest.mark.parametrize("shape", [(6, 4, 4, 8), (2, 2, 2, 2), (4, 6, 2, 10)], ids=str)
@pytest.mark.parametrize("n", [1, 3, 13])
def test_halves_are_those_of_the_geometry(shape, n):
    g = LatticeGeometry.from_shape(shape)
    backend = NativeBackend(threads=2)
    for precision in ("double", "single"):
        M = WilsonDirac(mass=1.0).bind(
            GaugeField.cold(g), backend=("native", {"threads": 2}), precision=precision, n_rhs=n
        )
        b = ColorSpinorField.gaussian(g, seed=1, n_rhs=n, precision=precision).array
        handle = M.space.pack(b)
        halves = []
        for parity in (0, 1):
            space = backend.space(g, M.precision, n, parity)
            halves.append(_native.split_parity(handle, space.layout, 2))
            assert np.array_equal(space.unpack(halves[-1]), g.split_parity(b, parity, lead=1))
        assert np.array_equal(M.space.unpack(_native.join_parity(*halves, M.space.layout, 2)), b)


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")
@pytest.mark.parametrize("solves", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_memory_is_flat_over_many_solves(solves):
    M, b = bind(n_rhs=5), source(5)
    several = [SOLVERS[k] for k in ("cg", "bicgstab", "mixed bicgstab", "reliable cg")]
    for k in range(20):
        solve(M, b, several[k % 4], device_solve=True)
    gc.collect()
    before = resident()
    for k in range(solves):
        solve(M, b, several[k % 4], device_solve=True)
    gc.collect()
    assert resident() - before < 8 << 20

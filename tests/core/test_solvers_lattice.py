"""Laws of the solvers on lattice operators: batches, static and resizable spaces, even-odd, mixed precision, devices."""

import sys
import weakref

import attrs
import numpy as np
import pytest
from lqcd_backends.numpy.backend import NumpyBackend

from lqcd_core import (
    EVEN,
    ODD,
    BackendInfo,
    CloverWilsonDirac,
    ColorSpinorField,
    GaugeField,
    LatticeGeometry,
    TwistedMassDirac,
    WilsonDirac,
    hookimpl,
)
from lqcd_core.backend import SupportsDeviceSolve
from lqcd_core.errors import (
    FieldShapeError,
    FieldTypeError,
    GeometryError,
    NotConvergedError,
    ParameterError,
    ToleranceError,
)
from lqcd_core.registry import registered
from lqcd_core.solvers import (
    GCR,
    BiCGStab,
    ConjugateGradient,
    MixedPrecision,
    MultiShiftCG,
    NormalCG,
    Reason,
    memory_estimate,
    solve,
)
from lqcd_core.testing.loopback import LoopbackHandle, register_loopback

pytestmark = pytest.mark.filterwarnings("error")

G = LatticeGeometry(T=4, Z=2, Y=2, X=4)
TINY = LatticeGeometry(T=2, Z=2, Y=2, X=2)

OPERATORS = {
    "wilson": WilsonDirac(mass=0.3),
    "clover": CloverWilsonDirac(mass=0.4, csw=1.0),
    "twisted": TwistedMassDirac(mass=0.3, mu=0.2),
}
SOLVERS = {
    "cg": ConjugateGradient(tol=1e-10),
    "bicgstab": BiCGStab(tol=1e-10),
    "gcr": GCR(tol=1e-10, restart=8),
    "flexible gcr": GCR(tol=1e-10, restart=8, preconditioner=BiCGStab(tol=0.2)),
    "mixed cg": MixedPrecision(inner=ConjugateGradient(tol=1e-10)),
    "mixed bicgstab": MixedPrecision(inner=BiCGStab(tol=1e-10), method="reliable_updates"),
}


@pytest.fixture(scope="module")
def links():
    return GaugeField.random(G, seed=1)


@pytest.fixture(scope="module")
def loopback():
    with register_loopback():
        yield


@pytest.fixture(scope="module")
def weak():
    """Links near one on 4^4, where M is ill-conditioned at a small mass."""
    g = LatticeGeometry(T=4, Z=4, Y=4, X=4)
    noise = np.random.default_rng(4).normal(size=(2, *g.gauge_shape))
    return GaugeField(g, np.eye(3) + 0.05 * (noise[0] + 1j * noise[1])).unitarize()


def _true(M, x, b):
    return np.atleast_1d((M(x) - b).norm() / b.norm())


def _dense(apply, geometry):
    n = int(np.prod(geometry.spinor_shape))
    columns = apply(np.eye(n, dtype=complex).reshape(n, *geometry.spinor_shape))
    return columns.reshape(n, n).T


# -- against a direct solve --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_solution_is_that_of_a_direct_solve(operator, solver):
    M = OPERATORS[operator].bind(GaugeField.random(TINY, seed=3), backend="numpy")
    b = ColorSpinorField.gaussian(TINY, seed=5, n_rhs=2)
    exact = np.linalg.solve(_dense(M, TINY), b.array.reshape(2, -1).T).T.reshape(b.shape)
    x, info = solve(M, b, SOLVERS[solver])
    assert np.linalg.norm(x.array - exact) <= 1e-9 * np.linalg.norm(exact)
    assert info.converged and np.all(_true(M, x, b) <= 1e-10)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("solver", ["cg", "bicgstab", "mixed cg"])
@pytest.mark.parametrize(
    "route",
    [{"even_odd": False}, *({"form": f, "parity": p} for f in ("symmetric", "asymmetric") for p in (EVEN, ODD))],
)
def test_every_route_gives_the_tolerance_on_the_full_residual(links, operator, solver, route):
    M = OPERATORS[operator].bind(links, backend="numpy")
    b = ColorSpinorField.gaussian(G, seed=5, n_rhs=2)
    kept = b.array.copy()
    x, info = solve(M, b, SOLVERS[solver], **route)
    true = _true(M, x, b)
    assert info.converged and np.all(true <= 1e-10)
    assert np.allclose(info.column_residuals, true, rtol=1e-3)
    assert info.final_residual == info.column_residuals.max()
    assert np.array_equal(b.array, kept)
    # Columns of a batch take their defect-correction cycles together: its history may outlast each of them.
    assert info.iterations <= len(info.history) <= info.iterations + (4 if solver == "mixed cg" else 0)
    assert info.solver == SOLVERS[solver].name


def test_point_sources_on_either_parity_are_solved_alike(links):
    """A source on an odd site, and its reconstruction, with both parities kept."""
    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    for t in (0, 1):
        b = ColorSpinorField.point_source(G, t=t)
        answers = [solve(M, b, BiCGStab(tol=1e-11), even_odd=e, parity=p).x.array for e, p in ((0, 0), (1, 0), (1, 1))]
        for a in answers[1:]:
            assert np.linalg.norm(a - answers[0]) <= 1e-9 * np.linalg.norm(a)


# -- columns -----------------------------------------------------------------------------------------------------------


def _uneven(M, n=4):
    """A batch whose columns converge at different times: noise, an eigenvector-like smooth one, zero, tiny noise."""
    b = ColorSpinorField.gaussian(M.geometry, seed=6, n_rhs=n).array.copy()
    b[1] = M.normal(M.normal(b[1]))  # rich in large eigenvalues: converges early or late, not with the others
    b[2] = 0
    b[3] *= 1e-30
    return b


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "backend, n_rhs, even_odd",
    [
        ("numpy", 1, True),
        ("numpy", 1, False),
        ("loopback", 4, True),
        ("loopback", 3, True),
        ("loopback-full", 3, False),
    ],
)
def test_a_column_does_not_feel_its_batch(links, loopback, solver, even_odd, backend, n_rhs):
    """Column by column the same iterations, reason and solution: in a batch, alone, static, padded, or resizable."""
    reference = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    M = WilsonDirac(mass=0.3).bind(links, backend=backend, n_rhs=n_rhs)
    b = _uneven(reference)
    x, info = solve(M, b, SOLVERS[solver], even_odd=even_odd)
    assert info.converged and not x[2].any() and info.column_reasons[2] is Reason.ZERO_SOURCE
    for k in (1, 3):
        y, alone = solve(reference, b[k], SOLVERS[solver], even_odd=even_odd)
        assert np.linalg.norm(x[k] - y) <= 1e-8 * np.linalg.norm(y)
        assert np.linalg.norm(b[k] - reference(x[k])) <= 1.001e-10 * np.linalg.norm(b[k])
        if "mixed" not in solver:  # single-precision rounding of another backend may move an update
            assert abs(info.column_iterations[k] - alone.iterations) <= 1
        if backend == "numpy":
            assert np.array_equal(x[k], y), "bits depend on the batch"
            assert info.column_iterations[k] == alone.iterations


@pytest.mark.parametrize("backend", ["numpy", "loopback"])
@pytest.mark.parametrize("make", [ConjugateGradient, BiCGStab, GCR])
def test_a_converged_column_stops_costing_or_stays_where_it_is(links, loopback, make, backend):
    M = WilsonDirac(mass=0.3).bind(links, backend=backend, n_rhs=3)
    A = M.normal_linear
    v = A.vectors
    rng = np.random.default_rng(0)
    b = rng.normal(size=(3, *G.spinor_shape)) + 0j
    exact = v.unpack(ConjugateGradient(tol=1e-13).solve_handles(A, v.pack(b))[0])
    start = np.stack([exact[0], 0 * b[1], exact[2] + 1e-7 * b[2]])  # one there, one far, one near
    widths = []

    def apply(x):
        widths.append(len(v.norm2(x)))
        return A.apply(x)

    x, info = make(tol=1e-11).solve_handles(attrs.evolve(A, apply=apply), v.pack(b), x0=v.pack(start))
    assert info.converged and info.column_iterations[0] == 0 < info.column_iterations[2] < info.column_iterations[1]
    assert np.linalg.norm(v.unpack(x)[0] - exact[0]) <= 1e-15 * np.linalg.norm(exact[0])  # never drifted
    if backend == "numpy":
        assert widths[0] == 3 and 2 in widths and widths[-3:] == [1, 1, 1]
    else:
        assert set(widths) == {3}


@pytest.mark.parametrize("backend", ["numpy", "loopback"])
def test_a_bad_column_does_not_spoil_the_others(links, loopback, backend):
    M = WilsonDirac(mass=0.3).bind(links, backend=backend, n_rhs=3)
    b = ColorSpinorField.gaussian(G, seed=6, n_rhs=3).array.copy()
    b[1, 0, 0, 0, 0, 0, 0] = np.nan
    for s in (ConjugateGradient(tol=1e-9), BiCGStab(tol=1e-9), MixedPrecision(inner=BiCGStab(tol=1e-9))):
        for even_odd in (False, True):
            x, info = solve(M, b, s, even_odd=even_odd, raise_on_failure=False)
            assert [r.good for r in info.column_reasons] == [True, False, True]
            assert info.reason is Reason.NOT_FINITE and np.isnan(info.final_residual)
            for k in (0, 2):
                assert np.linalg.norm(b[k] - M(x[k])) <= 1.001e-9 * np.linalg.norm(b[k])


# -- handles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_vectors_stay_inside_the_backend_while_it_iterates(links, loopback, solver):
    """pack and unpack are counted: their number must not grow with the iterations (loopback converts by itself)."""
    counts = []
    s = SOLVERS[solver]
    for tol in (1e-2, 1e-10):
        M = WilsonDirac(mass=0.3).bind(links, backend="loopback-full", n_rhs=2)
        before = M.backend.crossings.total
        inner = attrs.evolve(s.inner, tol=tol) if isinstance(s, MixedPrecision) else None
        now = attrs.evolve(s, tol=tol) if inner is None else attrs.evolve(s, inner=inner, tol=tol)
        info = solve(M, ColorSpinorField.gaussian(G, seed=1, n_rhs=2), now).info
        counts.append((M.backend.crossings.total - before, info.iterations))
    (few, short), (many, long) = counts
    assert long > short and many <= few + 4 < long + 24


@pytest.mark.parametrize(
    "make",
    [NormalCG, ConjugateGradient, BiCGStab, lambda **k: GCR(restart=3, **k)],
    ids=["cgnr", "cg", "bicgstab", "gcr"],
)
@pytest.mark.parametrize("backend", ["loopback", "loopback-full"])
def test_live_vectors_stay_within_what_the_solver_declares(links, loopback, monkeypatch, make, backend):
    solver = make(tol=1e-10)
    alive: weakref.WeakSet = weakref.WeakSet()
    original = LoopbackHandle.__init__

    def counted(self, *args):
        original(self, *args)
        alive.add(self)

    M = WilsonDirac(mass=0.3).bind(links, backend=backend, n_rhs=1)
    A = M.linear if make is not ConjugateGradient else M.normal_linear
    b = A.vectors.pack(ColorSpinorField.gaussian(G, seed=1, n_rhs=1).array)
    monkeypatch.setattr(LoopbackHandle, "__hash__", object.__hash__, raising=False)
    monkeypatch.setattr(LoopbackHandle, "__init__", counted)
    most = 0

    def watched(function):
        def apply(x):
            nonlocal most
            usable = [h for h in alive if not h._LoopbackHandle__poison]
            most = max(most, len(usable) + 1)  # the result is about to exist
            return function(x)

        return apply

    A = attrs.evolve(A, apply=watched(A.apply), apply_dagger=watched(A.apply_dagger))
    _, info = solver.solve_handles(A, b)
    assert info.converged
    assert 3 <= most <= solver.vectors_needed


def test_arguments_of_solve_handles_are_left_alone(links, loopback):
    for backend in ("numpy", "loopback", "loopback-full"):
        M = WilsonDirac(mass=0.3).bind(links, backend=backend, n_rhs=2)
        v = M.vectors
        b, x0 = (ColorSpinorField.gaussian(G, seed=k, n_rhs=2).array for k in (1, 2))
        hb, hx = v.pack(b), v.pack(x0)
        for s in (BiCGStab(tol=1e-8), GCR(tol=1e-8), MixedPrecision(inner=BiCGStab(tol=1e-8))):
            s.solve_handles(M.linear, hb, x0=hx)
        assert np.array_equal(v.unpack(hb), b) and np.array_equal(v.unpack(hx), x0)


# -- the front door ----------------------------------------------------------------------------------------------------


def test_x_is_of_the_kind_of_b(links):
    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    s = BiCGStab(tol=1e-8)
    field, batch = ColorSpinorField.gaussian(G, seed=1), ColorSpinorField.gaussian(G, seed=1, n_rhs=1)
    assert isinstance(solve(M, field, s).x, ColorSpinorField) and solve(M, field, s).x.n_rhs is None
    assert solve(M, batch, s).x.n_rhs == 1
    assert isinstance(solve(M, field.array, s).x, np.ndarray) and solve(M, field.array, s).x.shape == G.spinor_shape
    assert len(solve(M, field, s).info.history) == solve(M, field, s).info.iterations
    torch = pytest.importorskip("torch")
    assert isinstance(solve(M, field.tensor, s).x, torch.Tensor)


def test_exact_start_takes_no_iteration(links):
    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    b = ColorSpinorField.gaussian(G, seed=1, n_rhs=2)
    for s in SOLVERS.values():
        x = solve(M, b, s).x
        y, info = solve(M, b, s, x0=x)
        assert info.iterations == 0 and np.array_equal(x.array, y.array)
        near = ColorSpinorField(G, x.array * (1 + 1e-5))
        z, info = solve(M, b, s, x0=near)
        assert 0 < info.iterations <= solve(M, b, s).info.iterations and np.all(_true(M, z, b) <= 1e-10)


def test_failure_raises_with_what_was_reached(links):
    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    b = ColorSpinorField.gaussian(G, seed=1, n_rhs=2)
    with pytest.raises(NotConvergedError, match="maxiter") as caught:
        solve(M, b, ConjugateGradient(tol=1e-10, maxiter=4))
    solution = caught.value.solution
    assert not solution.info.converged and solution.info.iterations == 4
    assert solution.info.final_residual == pytest.approx(_true(M, solution.x, b).max(), rel=1e-6)
    x, _info = solve(M, b, ConjugateGradient(tol=1e-10, maxiter=4), raise_on_failure=False)
    assert np.array_equal(x.array, solution.x.array)


def test_odd_extents_run_on_the_full_lattice():
    g = LatticeGeometry(T=3, Z=2, Y=2, X=2)
    M = WilsonDirac(mass=0.5).bind(GaugeField.random(g, seed=1), backend="numpy")
    b = ColorSpinorField.gaussian(g, seed=1)
    assert solve(M, b, BiCGStab(tol=1e-10)).info.converged
    with pytest.raises(GeometryError, match="odd"):
        solve(M, b, BiCGStab(tol=1e-10), even_odd=True)


def test_wrong_sources_are_refused(links):
    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    s = BiCGStab(tol=1e-8)
    b = ColorSpinorField.gaussian(G, seed=1)
    for bad, error in (
        (ColorSpinorField.gaussian(TINY, seed=1), FieldShapeError), (b.array[..., :2], FieldShapeError),
        (b.array[None][:0], FieldShapeError), (b.array.real.copy(), FieldTypeError),
    ):  # fmt: skip
        with pytest.raises(error):
            solve(M, bad, s)
    with pytest.raises(FieldShapeError, match="x0"):
        solve(M, b, s, x0=ColorSpinorField.gaussian(G, seed=1, n_rhs=2))
    with pytest.raises(ParameterError, match="solver"):
        solve(M, b, "cg")
    with pytest.raises(ParameterError, match="form"):
        solve(M, b, s, form="lopsided")
    low = WilsonDirac(mass=0.3).bind(links, backend="numpy", precision="single")
    with pytest.raises(FieldTypeError, match="silence"):
        solve(low, b, BiCGStab(tol=1e-5))
    with pytest.raises(FieldTypeError, match="silence"):
        BiCGStab(tol=1e-5).solve(low.even_odd().linear, G.split_parity(b.array, EVEN))
    with pytest.raises(ToleranceError, match="MixedPrecision"):
        solve(low, b.to("single"), BiCGStab(tol=1e-9))


def test_cg_refuses_operators_that_are_not_positive(links):
    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    b = ColorSpinorField.gaussian(G, seed=1)
    half = ColorSpinorField(G, G.split_parity(b.array, EVEN), parity=EVEN)
    for A, source in ((M, b), (M.linear, b), (M.even_odd(), half)):
        for s in (ConjugateGradient(tol=1e-8), MixedPrecision(inner=ConjugateGradient(tol=1e-8))):
            with pytest.raises(ParameterError, match=r"lqcd\.solve"):
                s.solve(A, source)
    with pytest.raises(ParameterError, match="normal_linear"):
        MultiShiftCG(shifts=[0], tol=1e-8).solve(M, b)
    with pytest.raises(ParameterError, match="per shift"):
        solve(M, b, MultiShiftCG(shifts=[0], tol=1e-8))
    x, info = ConjugateGradient(tol=1e-8).solve(M.normal_linear, b)
    assert info.converged and (M.normal(x) - b).norm() <= 1e-8 * b.norm()
    y, info = BiCGStab(tol=1e-8).solve(M.even_odd(), half)
    assert y.parity == EVEN and info.converged


def test_linear_operators_take_the_front_door(links):
    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    b = ColorSpinorField.gaussian(G, seed=1)
    x, info = solve(M.linear, b, ConjugateGradient(tol=1e-9))
    assert info.converged and _true(M, x, b)[0] <= 1e-9
    y, info = solve(M.normal_linear, b, ConjugateGradient(tol=1e-9))
    assert info.converged and (M.normal(y) - b).norm() <= 1e-9 * b.norm()
    z, info = solve(M.hermitian_linear, b, ConjugateGradient(tol=1e-9))
    assert info.converged and (M.gamma5(z) - b).norm() <= 1e-9 * b.norm()
    with pytest.raises(ParameterError, match="bound operator"):
        solve(M.linear, b, BiCGStab(tol=1e-9), even_odd=True)


def test_multishift_on_a_batch_of_spinors(links, loopback):
    b = ColorSpinorField.gaussian(G, seed=1, n_rhs=3)
    for backend, n in (("numpy", 3), ("numpy", 1), ("loopback", 3), ("loopback", 2)):
        M = WilsonDirac(mass=0.3).bind(links, backend=backend, n_rhs=n)
        xs, info = MultiShiftCG(shifts=[0.0, 1e-3, 1.0], tol=1e-10).solve(M.normal_linear, b)
        assert info.converged
        for x, sigma in zip(xs, (0.0, 1e-3, 1.0)):
            assert np.all((M.normal(x) + sigma * x - b).norm() <= 1.001e-10 * b.norm())


def test_the_callback_counts_iterations_across_corrections(links):
    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    b = ColorSpinorField.gaussian(G, seed=1, n_rhs=2)
    for s in SOLVERS.values():
        seen = []
        info = solve(M, b, s, callback=seen.append).info
        assert [p.iteration for p in seen] == list(range(1, len(info.history) + 1))
        assert all(p.total == 2 and p.tol == 1e-10 for p in seen)
        assert all(np.array_equal(p.residuals, h) for p, h in zip(seen, info.history))


# -- mixed precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["defect_correction", "reliable_updates"])
@pytest.mark.parametrize("precision", ["single", "half", "bf16"])
@pytest.mark.parametrize("inner", [ConjugateGradient, BiCGStab, GCR])
def test_mixed_precision_reaches_1e_12(links, method, precision, inner):
    M = WilsonDirac(mass=0.1).bind(links, backend="numpy")
    b = ColorSpinorField.gaussian(G, seed=2, n_rhs=2)
    plain = solve(M, b, inner(tol=1e-12)).info
    x, info = solve(M, b, MixedPrecision(inner=inner(tol=1e-12), precision=precision, method=method))
    assert np.all(_true(M, x, b) <= 1e-12) and info.final_residual <= 1e-12
    assert info.iterations <= 2 * plain.iterations and info.outer_applications < info.applications


@pytest.mark.parametrize("method", ["defect_correction", "reliable_updates"])
@pytest.mark.parametrize("precision", ["single", "half", "bf16"])
def test_mixed_precision_on_a_weak_field_converges_or_says_that_it_does_not(weak, method, precision):
    """Near kappa_c the error of a 16-bit operator is as large as its smallest eigenvalue."""
    M = WilsonDirac(kappa=0.135).bind(weak, backend="numpy")
    b = ColorSpinorField.point_source(weak.geometry)
    for inner in (BiCGStab(tol=1e-10, maxiter=100), ConjugateGradient(tol=1e-10, maxiter=100)):
        x, info = solve(M, b, MixedPrecision(inner=inner, precision=precision, method=method), raise_on_failure=False)
        true = _true(M, x, b)[0]
        assert info.converged == (true <= 1e-10) and info.final_residual == pytest.approx(true, rel=1e-3)
        assert info.iterations <= inner.maxiter
        if precision == "single":
            assert info.converged


@pytest.mark.parametrize("inner_backend, outer_backend", [("loopback", "numpy"), ("numpy", "loopback")])
@pytest.mark.parametrize("method", ["defect_correction", "reliable_updates"])
def test_the_inner_solver_may_run_on_another_backend(links, loopback, inner_backend, outer_backend, method):
    M = WilsonDirac(mass=0.3).bind(links, backend=outer_backend, n_rhs=3)
    b = _uneven(WilsonDirac(mass=0.3).bind(links, backend="numpy"), 4)[[0, 2, 3]]
    s = MixedPrecision(inner=BiCGStab(tol=1e-11), backend=inner_backend, method=method)
    x, info = solve(M, b, s)
    assert info.converged and np.linalg.norm(b[0] - M(x[0])) <= 1e-11 * np.linalg.norm(b[0])


def test_the_inner_operator_is_bound_once(links, monkeypatch):
    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    binds = []
    original = type(M).rebind
    monkeypatch.setattr(type(M), "rebind", lambda self, **k: binds.append(k) or original(self, **k))
    for seed in range(3):
        solve(M, ColorSpinorField.gaussian(G, seed=seed), MixedPrecision(inner=BiCGStab(tol=1e-10)))
    assert len(binds) == 1


# -- solves inside the backend -----------------------------------------------------------------------------------------


class LyingDevice(NumpyBackend):
    """Solves to 1e-3 whatever was asked, and claims a residual of zero; ``mode`` changes how bad it is."""

    mode = "sloppy"

    def solve(self, bound, inner_bound, b, x0, parameters, callback):
        if self.mode == "declines":
            return None
        if self.mode == "garbage":
            return bound.vectors.copy(b), {"iterations": 1, "final_residual": 0.0, "converged": True}
        x, info = BiCGStab(tol=1e-3).solve_handles(bound.linear, b)
        callback(info.iterations, info.column_residuals)
        return x, {"iterations": info.iterations, "final_residual": 0.0, "converged": True, "applications": 7}


class LyingPlugin:
    @staticmethod
    @hookimpl
    def lqcd_register_backends():
        return [
            BackendInfo(
                name="liar", load=f"{__name__}:LyingDevice", precisions={"double", "single"},
                features={"even_odd", "site_diagonal", "device_solve"},
            )
        ]  # fmt: skip


@pytest.fixture
def liar(links):
    assert __name__ in sys.modules
    with registered(LyingPlugin):
        yield WilsonDirac(mass=0.3).bind(links, backend="liar", n_rhs=2)
    LyingDevice.mode = "sloppy"


def test_a_device_that_claims_a_false_residual_is_not_believed(liar):
    assert isinstance(liar.backend, SupportsDeviceSolve)
    b = ColorSpinorField.gaussian(G, seed=2, n_rhs=2)
    x, info = solve(liar, b, BiCGStab(tol=1e-10))  # each call gains three digits: repeated on the defect it gets there
    assert info.converged and np.all(_true(liar, x, b) <= 1e-10) and info.applications >= 4 * 7
    LyingDevice.mode = "garbage"
    x, info = solve(liar, b, BiCGStab(tol=1e-10), raise_on_failure=False)
    assert not info.converged and info.reason is Reason.STAGNATION
    assert info.final_residual == pytest.approx(_true(liar, x, b).max(), rel=1e-6) and info.final_residual > 0.1
    with pytest.raises(NotConvergedError):
        solve(liar, b, ConjugateGradient(tol=1e-10))


def test_a_device_may_leave_a_solve_to_the_core(liar):
    LyingDevice.mode = "declines"
    b = ColorSpinorField.gaussian(G, seed=2)
    x, info = solve(liar, b, BiCGStab(tol=1e-10))
    assert info.converged and info.iterations > 1 and _true(liar, x, b)[0] <= 1e-10


# -- counts and memory -------------------------------------------------------------------------------------------------


def test_iteration_counts_on_a_fixed_field(weak):
    """Regression, +-5 %: convergence must not get slower unnoticed."""
    M = WilsonDirac(kappa=0.128).bind(weak, backend="numpy")
    b = ColorSpinorField.gaussian(weak.geometry, seed=1)
    expected = {"cg": 28, "bicgstab": 34, "gcr": 44, "mixed cg": 31, "reliable cg": 28, "reliable half": 45}
    for name, s in {
        "cg": ConjugateGradient(tol=1e-10), "bicgstab": BiCGStab(tol=1e-10), "gcr": GCR(tol=1e-10),
        "mixed cg": MixedPrecision(inner=ConjugateGradient(tol=1e-10)),
        "reliable cg": MixedPrecision(inner=ConjugateGradient(tol=1e-10), method="reliable_updates"),
        "reliable half": MixedPrecision(inner=BiCGStab(tol=1e-10), precision="half", method="reliable_updates"),
    }.items():  # fmt: skip
        found = solve(M, b, s).info.iterations
        assert abs(found - expected[name]) <= max(2, 0.05 * expected[name]), (name, found)


def test_memory_of_a_solve_is_as_estimated(weak):
    import gc
    import tracemalloc

    b = ColorSpinorField.gaussian(weak.geometry, seed=1, n_rhs=12).array
    for s in (ConjugateGradient(tol=1e-1), BiCGStab(tol=1e-1)):
        gc.collect()
        tracemalloc.start()
        M = WilsonDirac(mass=1.0).bind(weak, backend="numpy", n_rhs=12)
        solve(M, b, s, even_odd=False)
        peak = tracemalloc.get_traced_memory()[1] + b.nbytes
        tracemalloc.stop()
        estimate = memory_estimate(M, s, 12, even_odd=False)
        assert 0.8 * estimate < peak < 1.2 * estimate


def test_memory_does_not_grow_with_the_number_of_solves(links):
    import gc
    import tracemalloc

    M = WilsonDirac(mass=0.3).bind(links, backend="numpy")
    b = ColorSpinorField.gaussian(G, seed=1, n_rhs=8)
    solver = MixedPrecision(inner=BiCGStab(tol=1e-4))
    solve(M, b, solver)
    tracemalloc.start()
    for _ in range(2):
        solve(M, b, solver)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(4):
        solve(M, b, solver)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < b.nbytes / 2

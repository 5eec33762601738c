"""The sharded executor obeys every law that its inner backends obey, and cutting the lattice changes no bits."""

import itertools
import time

import attrs
import numpy as np
import pytest

import lqcd_core as lqcd
from lqcd_core.backend import BackendInfo
from lqcd_core.errors import BackendError, BackendUnavailable, GeometryError, ParameterError, UnknownOptionError
from lqcd_core.hookspecs import hookimpl
from lqcd_core.precision import as_precision
from lqcd_core.registry import REGISTRY, registered
from lqcd_core.testing import loopback
from lqcd_core.testing.conformance import BackendConformance, HaloConformance

LATTICES = ((4, 2, 6, 2), (5, 2, 1, 3))


class TestNumpyHalo(HaloConformance):
    backend, lattices = "numpy", LATTICES


class TestShardedNumpy(BackendConformance):
    backend, options = "sharded", {"inner": "numpy", "shards": 2}
    precisions, lattices, ncs = ("double",), LATTICES, (3,)


class TestShardedLoopbackFull(BackendConformance):
    """Everything but faces: ghost slices by way of the host."""

    backend, options, plugin = "sharded", {"inner": "loopback-full", "shards": 2}, loopback
    precisions, lattices, ncs = ("double",), LATTICES[:1], (3,)


class TestShardedLoopback(BackendConformance):
    """The required protocol and nothing else, with static spaces."""

    backend, options, plugin = "sharded", {"inner": "loopback", "shards": 2}, loopback
    precisions, lattices, ncs = ("double",), LATTICES[:1], (3,)


# -- bits -------------------------------------------------------------------------------------------------------------


def problem(T: int, precision: str = "double", seed: int = 3):
    """A random field and three sources on T x 2 x 4 x 2."""
    g = lqcd.LatticeGeometry(T=T, Z=2, Y=4, X=2)
    rng = np.random.default_rng(seed)
    psi = rng.normal(size=(3, *g.spinor_shape)) + 1j * rng.normal(size=(3, *g.spinor_shape))
    return lqcd.GaugeField.random(g, seed=seed), psi.astype(as_precision(precision).complex_dtype)


def sharded(inner: str, shards: int, **more):
    return ("sharded", {"inner": inner, "shards": shards, **more})


CLOVER = lqcd.CloverWilsonDirac(mass=0.4, csw=1.1, boundary=(-1, 1, np.exp(0.2j), 1))
OPERATORS = {
    "wilson": lqcd.WilsonDirac(mass=0.4), "clover": CLOVER,
    "twisted clover": lqcd.TwistedMassDirac(mass=0.4, mu=0.2, csw=1.1),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["double", "single", "half"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_cutting_the_lattice_changes_no_bits_of_any_operator(operator, precision):
    U, psi = problem(8, precision)
    definition = OPERATORS[operator]
    whole = definition.bind(U, backend="numpy", precision=precision, n_rhs=3)
    for shards in (2, 3, 4):
        cut = definition.bind(U, backend=sharded("numpy", shards), precision=precision, n_rhs=3)
        for name in ("__call__", "dagger", "normal", "gamma5", "hop"):
            assert np.array_equal(getattr(cut, name)(psi), getattr(whole, name)(psi)), (name, shards)
        for parity in (lqcd.EVEN, lqcd.ODD):
            pair = [m.even_odd(parity, "symmetric") for m in (whole, cut)]
            got = [s.vectors.unpack(s.apply_normal(s.split(psi)[0])) for s in pair]
            assert np.array_equal(*got), (parity, shards)


@pytest.mark.parametrize("inner", ["loopback", "loopback-full"])
def test_the_derived_path_agrees_with_the_whole_lattice(inner):
    """Ghost slices by way of the host, on backends that know nothing of faces."""
    U, psi = problem(6)
    with loopback.register_loopback():
        for shards in (2, 3):
            for definition in OPERATORS.values():
                whole = definition.bind(U, backend=inner, n_rhs=3)
                cut = definition.bind(U, backend=sharded(inner, shards), n_rhs=3)
                assert cut.backend.describe()["faces"] == "host"
                for name in ("__call__", "dagger", "hop"):
                    got, want = getattr(cut, name)(psi), getattr(whole, name)(psi)
                    assert np.linalg.norm(got - want) <= 1e-14 * np.linalg.norm(want)


HEAVY = attrs.evolve(CLOVER, mass=1.5, kappa=None)


def history(backend, precision="double", even_odd=False, solver=None):
    """(residuals by iteration, x) of a solve on T = 14."""
    U, b = problem(14, precision)
    M = HEAVY.bind(U, backend=backend, precision=precision, n_rhs=3)
    seen = []
    solver = solver or lqcd.ConjugateGradient(tol={"double": 1e-8, "single": 1e-5}[precision])
    x, _ = lqcd.solve(M, b, solver, even_odd=even_odd, callback=lambda p: seen.append(p.residuals.copy()))
    return np.array(seen), x


@pytest.mark.parametrize(("precision", "even_odd", "counts"), [
    ("double", True, range(1, 8)), ("double", False, (2, 7)), ("single", True, (2, 5)),
])  # fmt: skip
def test_a_solve_has_the_same_bits_on_one_to_seven_shards(precision, even_odd, counts):
    want = history("numpy", precision, even_odd)
    assert len(want[0]) > 5
    for shards in counts:
        got = history(sharded("numpy", shards), precision, even_odd)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True)), shards


def test_fast_reductions_agree_to_rounding_and_not_always_in_bits():
    want = history(sharded("numpy", 3), even_odd=True)
    got = history(sharded("numpy", 3, reductions="fast"), even_odd=True)
    assert np.linalg.norm(got[1] - want[1]) <= 1e-9 * np.linalg.norm(want[1])
    assert not hasattr(REGISTRY.load(*sharded("numpy", 3, reductions="fast")).instance.space(
        lqcd.LatticeGeometry(T=6, Z=2, Y=2, X=2), as_precision("double")), "inner_slices")  # fmt: skip


@pytest.mark.parametrize("solver", [
    lqcd.BiCGStab(tol=1e-9), lqcd.GCR(tol=1e-9),
    lqcd.MixedPrecision(inner=lqcd.ConjugateGradient(tol=1e-4), precision="single", tol=1e-10),
], ids=lambda s: s.name)  # fmt: skip
def test_other_solvers_have_the_same_bits_too(solver):
    want = history("numpy", even_odd=True, solver=solver)
    got = history(sharded("numpy", 3), even_odd=True, solver=solver)
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_propagator_has_the_same_bits():
    U, _ = problem(6)
    kwargs = dict(solver=lqcd.ConjugateGradient(tol=1e-9))
    S = [
        lqcd.propagator(
            lqcd.WilsonDirac(mass=0.4).bind(U, backend=b, n_rhs=12), lqcd.point_source(U.geometry), **kwargs
        )
        for b in ("numpy", sharded("numpy", 2), sharded("numpy", 3))
    ]
    pions = [lqcd.observables.pion_correlator(s) for s in S]
    assert np.array_equal(pions[0], pions[1]) and np.array_equal(pions[0], pions[2])


# -- what crosses, and what is refused ---------------------------------------------------------------------------------


def test_one_shard_is_the_inner_backend_itself():
    assert REGISTRY.load(*sharded("numpy", 1)).instance is REGISTRY.load("numpy").instance


def test_slabs_are_even_and_even_handed():
    from lqcd_backends.sharded.slabs import slabs

    for T in range(2, 25):
        for shards in range(1, T // 2 + 1):
            cut = slabs(T, shards)
            sizes = [b - a for a, b in cut]
            assert cut[0][0] == 0 and cut[-1][1] == T and all(a[1] == b[0] for a, b in itertools.pairwise(cut))
            assert all(a % 2 == 0 for a, _ in cut) and all(s % 2 == 0 for s in sizes[:-1]) and min(sizes) >= 2
            assert max(sizes) - min(sizes) <= 2 + T % 2
    with pytest.raises(GeometryError, match="pairs of time slices"):
        slabs(6, 4)


def test_options_are_refused_by_name():
    U, _ = problem(8)
    bind = lqcd.WilsonDirac(mass=0.4).bind
    with pytest.raises(ParameterError, match="needs the option inner="):
        bind(U, backend="sharded")
    with pytest.raises(UnknownOptionError, match="did you mean 'shards'"):
        bind(U, backend=("sharded", {"inner": "numpy", "shard": 2}))
    for bad in (
        {"shards": 0},
        {"shards": True},
        {"executor": "gpu"},
        {"reductions": "sloppy"},
        {"timeout": -1},
        {"inner": 3},
    ):
        with pytest.raises(ParameterError, match=f"option {next(iter(bad))}="):
            bind(U, backend=("sharded", {"inner": "numpy", "shards": 2, **bad}))
    with pytest.raises(ParameterError, match="is an executor itself"):
        bind(U, backend=sharded("sharded", 2))
    with pytest.raises(GeometryError, match="use shards=4"):
        bind(U, backend=sharded("numpy", 5))
    with pytest.raises(BackendUnavailable, match="inner backend 'numpy' has no fixed16"):
        bind(U, backend=sharded("numpy", 2), precision="fixed16")
    assert "executor is only used when named" in str(lqcd.explain(lqcd.WilsonDirac(mass=0.4), U))


def test_no_spinor_crosses_to_the_host_in_a_solve_where_faces_exist(monkeypatch):
    from lqcd_core.spaces import ArraySpace

    U, b = problem(8)
    M = CLOVER.bind(U, backend=sharded("numpy", 2), n_rhs=3)
    A = M.normal_linear
    handle = A.vectors.pack(b)

    def forbidden(*_):
        raise AssertionError("a spinor crossed between host and backend")

    for door in ("pack", "unpack"):
        monkeypatch.setattr(ArraySpace, door, forbidden)
    _, info = lqcd.ConjugateGradient(tol=1e-8).solve_handles(A, handle)
    assert info.converged


def test_objects_go_with_their_handles():
    U, psi = problem(8)
    M = CLOVER.bind(U, backend=sharded("numpy", 2), n_rhs=3)
    team = M.space.team
    x = M.space.pack(psi)
    for _ in range(5):
        x = M.apply(x)
    team.call("abilities")  # the numbers given up so far reach the workers
    kept = live_objects(M)
    M.apply(x)
    team.call("abilities")
    assert live_objects(M) == kept


def live_objects(M) -> int:
    """Objects that rank 0 holds, asked through a command."""
    from lqcd_backends.sharded.shard import Shard

    Shard.count = lambda self: len(self.objects)
    try:
        return M.space.team.call("count")[0]
    finally:
        del Shard.count


def test_a_consumed_handle_says_so():
    U, psi = problem(8)
    space = CLOVER.bind(U, backend=sharded("numpy", 2), n_rhs=3).space
    x, y = space.pack(psi), space.pack(psi)
    space.axpy(1.0, x, y)
    with pytest.raises(BackendError, match="after an operation consumed it"):
        space.norm2(y)


# -- failures in threads -----------------------------------------------------------------------------------------------


class Faulty(loopback.FullLoopbackBackend):
    """loopback-full whose hop fails, or hangs, when it meets the number 13 in its slab."""

    what = "fail"

    def hopping(self, links, space):
        inner = super().hopping(links, space)

        def hop(x):
            if np.any(space.unpack(x) == 13):
                if self.what == "hang":
                    time.sleep(4)
                raise ZeroDivisionError("thirteen")
            return inner(x)

        return hop


class FaultyPlugin:
    @hookimpl
    def lqcd_register_backends(self):
        return [
            BackendInfo(name="faulty", load=f"{__name__}:Faulty", precisions={"double"}),
            BackendInfo(name="hanging", load=f"{__name__}:Hanging", precisions={"double"}),
        ]


class Hanging(Faulty):
    what = "hang"


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        ("faulty", "rank 2 .*failed in 'hop': ZeroDivisionError: thirteen"),
        ("hanging", "rank 2 .* no answer to 'hop' within the time-out of 1 s"),
    ],
)
def test_a_thread_that_fails_or_hangs_ends_the_team_with_rank_and_reason(inner, says):
    U, psi = problem(16)
    with registered(FaultyPlugin()):
        M = lqcd.WilsonDirac(mass=0.4).bind(U, backend=sharded(inner, 4, timeout=1), n_rhs=3)
        assert np.isfinite(M(psi)).all()
        psi[0, 9, 0, 1, 0, 0, 0] = 13  # slab 2 is the slices 8 to 11: no neighbour sees slice 9
        with pytest.raises(BackendError, match=says):
            M(psi)
        with pytest.raises(BackendError, match=r"team of workers was stopped.*rank 2"):
            M(psi)
        again = lqcd.WilsonDirac(mass=0.4).bind(U, backend=sharded(inner, 4, timeout=1), n_rhs=3)
        assert np.isfinite(again(problem(16)[1])).all()


def test_an_error_of_the_caller_leaves_the_team_alive():
    U, psi = problem(8)
    space = lqcd.WilsonDirac(mass=0.4).bind(U, backend=sharded("numpy", 2), n_rhs=3).space
    x = space.pack(psi)
    with pytest.raises(ValueError, match="broadcast"):
        space.axpy(np.ones(7), x, space.pack(psi))
    assert (space.norm2(x) > 0).all()

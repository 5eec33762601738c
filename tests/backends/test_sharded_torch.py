"""The sharded executor over torch."""

import numpy as np
import pytest

import lqcd_core as lqcd
from lqcd_core.testing.conformance import BackendConformance, FusedHaloConformance, HaloConformance

pytest.importorskip("torch")


class TestTorchHalo(HaloConformance):
    backend, lattices = "torch", ((4, 2, 6, 2), (5, 2, 1, 3))


class TestTorchFusedHalo(FusedHaloConformance):
    backend, lattices, ncs = "torch", ((4, 2, 6, 2), (5, 2, 1, 3)), (3,)


class TestTorchHaloInSmallBlocks(HaloConformance):
    """Blocks of a z plane or two: faces are then cut as well."""

    backend, options, lattices, ncs = "torch", {"chunk": 24}, ((4, 2, 6, 2), (6, 4, 2, 4)), (3,)


class TestShardedTorch(BackendConformance):
    backend, options = "sharded", {"inner": "torch", "shards": 2}
    precisions, lattices, ncs = ("single", "half"), ((4, 2, 6, 2),), (3,)


def problem(precision: str):
    g = lqcd.LatticeGeometry(T=12, Z=2, Y=4, X=2)
    rng = np.random.default_rng(3)
    psi = rng.normal(size=(3, *g.spinor_shape)) + 1j * rng.normal(size=(3, *g.spinor_shape))
    return lqcd.GaugeField.random(g, seed=3), psi.astype("complex128" if precision == "double" else "complex64")


def bound(shards: int, precision: str, **options):
    U, psi = problem(precision)
    definition = lqcd.CloverWilsonDirac(mass=0.8, csw=1.1)
    inner = ("torch", options)
    return definition.bind(
        U, backend=("sharded", {"inner": inner, "shards": shards}), precision=precision, n_rhs=3
    ), psi


@pytest.mark.parametrize("precision", ["double", "single", "half", "bf16"])
def test_cutting_the_lattice_changes_no_bits_of_the_hopping_term(precision):
    whole, psi = bound(1, precision)
    want = whole.hop(psi)
    s = whole.even_odd(lqcd.ODD)
    want_half = s.vectors.unpack(s.hop[lqcd.ODD](s.split(psi)[1]))
    for shards in (2, 3, 6):
        for options in ({}, {"chunk": 40}):
            cut, _ = bound(shards, precision, **options)
            assert np.array_equal(cut.hop(psi), want), (shards, options)
            s = cut.even_odd(lqcd.ODD)
            assert np.array_equal(s.vectors.unpack(s.hop[lqcd.ODD](s.split(psi)[1])), want_half), (shards, options)


@pytest.mark.parametrize("precision", ["double", "single", "bf16"])
def test_cutting_the_lattice_changes_no_bits_of_the_fused_operators(precision):
    whole, psi = bound(1, precision)
    for shards in (2, 6):
        for options in ({}, {"chunk": 40}):
            cut, _ = bound(shards, precision, **options)
            for name in ("__call__", "dagger", "normal", "gamma5"):
                assert np.array_equal(getattr(cut, name)(psi), getattr(whole, name)(psi)), (name, shards, options)


@pytest.mark.parametrize(("precision", "even_odd"), [("double", False), ("double", True), ("single", False)])
def test_a_solve_has_the_same_bits_on_any_number_of_shards(precision, even_odd):
    """With even-odd torch fuses the Schur complement in an order of its own, which shards derive: there one shard, which
    is torch itself, agrees with the others to rounding."""
    tol = {"double": 1e-9, "single": 1e-5}[precision]
    answers = {}
    for shards in (1, 2, 3, 6):
        M, psi = bound(shards, precision)
        seen = []
        x, _ = lqcd.solve(
            M, psi, lqcd.ConjugateGradient(tol=tol), even_odd=even_odd,
            callback=lambda p, s=seen: s.append(p.residuals.copy()),
        )  # fmt: skip
        answers[shards] = np.array(seen), x
    for shards in (1, 3, 6) if not even_odd else (3, 6):
        assert all(np.array_equal(a, b) for a, b in zip(answers[shards], answers[2], strict=True)), shards
    assert np.linalg.norm(answers[1][1] - answers[2][1]) <= 10 * tol * np.linalg.norm(answers[1][1])

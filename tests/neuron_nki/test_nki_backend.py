"""The whole backend: NKI kernels, compiled by a stand-in, run by nki_sim behind the real ctypes path. No device, and nothing is timed.

A plain run has the laws once in each formulation; the other targets, precisions and lattices take minutes (``-m slow``).
"""

import sys
from pathlib import Path

import numpy as np
import pytest

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import nki_machine  # noqa: E402
from lqcd_backends.neuron.nki import driver, libnrt, plugin, prebuild  # noqa: E402

import lqcd_core as lqcd  # noqa: E402
from lqcd_core.errors import ParameterError  # noqa: E402
from lqcd_core.registry import registered  # noqa: E402
from lqcd_core.testing.conformance import (  # noqa: E402
    BackendConformance,
    EvenOddConformance,
    FusedBLASConformance,
    SiteDiagonalConformance,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::lqcd_backends.neuron.nki.status.NumericalWarning"),
    pytest.mark.filterwarnings("ignore::lqcd_backends.neuron.nki.libnrt.StandInWarning"),
]
ZERO = dict.fromkeys(("tensors", "sets", "models", "infos", "use_after_free"), 0)


@pytest.fixture(autouse=True)
def record():
    with registered(plugin):
        yield


class _On:
    """Conformance on a pretended machine, one for the class."""

    plugin = plugin
    backend = "neuron-nki"
    ncs, n_rhs, lattices = (3,), 2, ((2, 2, 4, 2),)
    instance, lnc = "trn2.3xlarge", 1

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def machine(cls):
        with nki_machine.machine(cls.instance, lnc=cls.lnc) as lib:
            yield lib


class TestVector(_On, BackendConformance):
    options, precisions = {"formulation": "vector"}, ("single",)


class TestTensorEvenOdd(_On, EvenOddConformance):
    options, precisions, lattices = {"formulation": "tensor"}, ("half",), ((2, 2, 2, 2),)


class TestTensorUpdates(_On, FusedBLASConformance):
    options, precisions, lattices = {"formulation": "tensor"}, ("half",), ((2, 2, 2, 2),)


class TestVectorTerms(_On, SiteDiagonalConformance):
    options, precisions, lattices = {"formulation": "vector"}, ("bf16",), ((2, 2, 2, 2),)


@pytest.mark.slow
class TestTensorSingle(_On, BackendConformance):
    options, precisions, lattices = {"formulation": "tensor"}, ("single",), ((4, 2, 6, 2), (3, 2, 1, 5))


@pytest.mark.slow
class TestTensorSixteenBit(_On, BackendConformance):
    options, precisions = {"formulation": "tensor", "asynchronous": True}, ("half", "bf16")


@pytest.mark.slow
class TestVectorEverywhere(_On, BackendConformance):
    options, precisions = {"formulation": "vector", "asynchronous": True}, ("single", "half", "bf16")
    lattices = ((4, 2, 6, 2), (3, 2, 1, 5))


@pytest.mark.slow
class TestGen2Vector(_On, BackendConformance):
    instance, options, precisions = "inf2.xlarge", {"formulation": "vector"}, ("single", "half")


@pytest.mark.slow
class TestGen2Tensor(_On, BackendConformance):
    instance, options, precisions = "inf2.xlarge", {"formulation": "tensor"}, ("single", "half")


@pytest.mark.slow
class TestTwoCoresJoined(_On, BackendConformance):
    lnc, options, precisions = 2, {"formulation": "vector"}, ("single",)


@pytest.mark.slow
class TestTwoCoresJoinedTensor(_On, BackendConformance):
    lnc, options, precisions = 2, {"formulation": "tensor"}, ("half",)


def field(*shape):
    return lqcd.GaugeField.random(lqcd.LatticeGeometry.from_shape(shape), seed=5)


@pytest.mark.parametrize("formulation", ["vector", "tensor"])
def test_a_propagator_is_that_of_the_reference(formulation):
    """Twelve columns, defect correction: double outside on the CPU, fp16 storage inside, all of it through libnrt's calls."""
    U = field(4, 2, 2, 2) if formulation == "tensor" else field(4, 4, 4, 4)
    D = lqcd.WilsonDirac(mass=1.0)
    inner = ("neuron-nki", {"formulation": formulation})
    solver = lqcd.MixedPrecision(inner=lqcd.BiCGStab(tol=1e-6), precision="half", backend=inner)
    with nki_machine.machine() as lib:
        M = D.bind(U, backend="numpy", n_rhs=12)
        source = lqcd.point_source(U.geometry)
        got = lqcd.propagator(M, source, solver)
        want = lqcd.propagator(M, source, lqcd.BiCGStab(tol=1e-10))
        assert lib.lqcd_standin_count(b"launches") > 20
        pion = [lqcd.observables.pion_correlator(S) for S in (got, want)]
        np.testing.assert_allclose(*pion, rtol=1e-5)
        libnrt.runtime().close()
        assert nki_machine.counts(lib) == ZERO  # every tensor, set and model was given back


def test_sums_have_the_same_bits_in_both_layouts_and_any_batch():
    with nki_machine.machine():
        U = field(4, 2, 4, 2)
        rng = np.random.default_rng(8)
        psi = (rng.normal(size=(3, *U.geometry.spinor_shape, 2)) @ [1, 1j]).astype(np.complex64)
        found = {}
        for formulation in ("vector", "tensor"):
            for n in (3, 1):
                D = lqcd.WilsonDirac(mass=0.1)
                v = D.bind(U, backend=("neuron-nki", {"formulation": formulation}), precision="single", n_rhs=n).vectors
                found[formulation, n] = v.norm2(v.pack(psi[:n]))
        exact = (np.abs(psi.astype(complex)) ** 2).reshape(3, -1).sum(1)
        np.testing.assert_allclose(found["vector", 3], exact, rtol=1e-6)
        np.testing.assert_array_equal(found["vector", 3], found["tensor", 3])
        for formulation in ("vector", "tensor"):
            np.testing.assert_array_equal(found[formulation, 1], found[formulation, 3][:1])


def test_sums_stay_right_while_vectors_shrink_and_grow():
    with nki_machine.machine():
        U = field(2, 2, 2, 2)
        v = lqcd.WilsonDirac(mass=0.1).bind(U, backend="neuron-nki", precision="single", n_rhs=2).vectors
        psi = np.random.default_rng(8).normal(size=(2, *U.geometry.spinor_shape)).astype(np.complex64)
        want = (np.abs(psi.astype(complex)) ** 2).reshape(2, -1).sum(1)
        for factor in (1.0, 2.0**-20, 2.0**20, 2.0**-30, 1.0):
            x = v.scale(np.array([factor, 1.0]), v.pack(psi))
            np.testing.assert_allclose(v.norm2(x), want * [factor**2, 1.0], rtol=3e-7)
            y, norm = v.axpy_norm2(np.array([factor, 0.0]), x, v.zeros())
            np.testing.assert_allclose(norm, want * [factor**4, 0.0], rtol=3e-7)
            np.testing.assert_allclose(v.inner(x, y).real, want * [factor**3, 0.0], rtol=3e-7)


@pytest.mark.parametrize("formulation", ["vector", "tensor"])
def test_an_iteration_of_cg_is_three_launches(formulation):
    with nki_machine.machine() as lib:
        U = field(2, 2, 2, 2)
        M = lqcd.WilsonDirac(mass=0.3).bind(
            U, backend=("neuron-nki", {"formulation": formulation}), precision="single", n_rhs=2
        )
        v = M.vectors
        rng = np.random.default_rng(4)
        b = (rng.normal(size=(2, *U.geometry.spinor_shape, 2)) @ [1, 1j]).astype(np.complex64)
        x, r, p = v.zeros(), v.pack(b), v.pack(b)
        rr = v.norm2(r)
        counts = []
        for _ in range(5):
            before = lib.lqcd_standin_count(b"launches")
            q = M.apply_normal(p)
            overlap = v.inner(p, q)
            host = (v.unpack(p).astype(complex).conj() * v.unpack(q)).reshape(2, -1).sum(1)
            np.testing.assert_allclose(overlap, host, rtol=1e-5)
            x, r, new = v.cg_update(rr / overlap.real, p, q, x, r)
            p, rr = v.xpay(r, new / rr, p), new
            counts.append(lib.lqcd_standin_count(b"launches") - before)
        assert counts[-1] == 3, counts
        left = M.normal(v.unpack(x)) - b
        np.testing.assert_allclose(np.linalg.norm(left.reshape(2, -1), axis=1), np.sqrt(rr), rtol=1e-3)


def test_the_choice_of_kernel_is_explained_and_can_be_forced():
    with nki_machine.machine():
        U = lqcd.GaugeField.cold(lqcd.LatticeGeometry(T=8, Z=8, Y=8, X=8))
        D = lqcd.WilsonDirac(mass=0.1)
        for options, n, kernel in (
            ({}, 1, "kernel A"),
            ({}, 64, "kernel B"),
            ({"formulation": "vector"}, 64, "kernel A"),
        ):
            text = str(lqcd.explain(D, U, precision="single", n_rhs=n, backend=("neuron-nki", options)))
            assert kernel in text and "STAND-IN" in text and "not measured" in text
        assert libnrt._RUNTIME is None


def test_what_no_kernel_takes_is_refused_before_anything_starts():
    with nki_machine.machine():
        two = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=2), seed=1)
        assert "Nc = 3 only" in str(lqcd.explain(lqcd.WilsonDirac(mass=0.1), two, precision="single", start_all=True))
        big = lqcd.LatticeGeometry(T=128, Z=64, Y=64, X=64)
        instance = lqcd.WilsonDirac(mass=0.1).bind(field(2, 2, 2, 2), backend="neuron-nki", precision="single").backend
        with pytest.raises(ParameterError, match=r"4294967296 B"):
            instance.space(big, lqcd.PRECISIONS["single"], 12)


def test_kernels_compiled_by_another_process_serve_a_machine_without_compiler(tmp_path, capsys):
    """The build machine has no device, the run machine no compiler."""
    shipped = tmp_path / "cache"
    request = ["--target", "trn2", "--lattice", "2,2,2,2", "--precision", "single", "--rhs", "1", "--forms", "scalar"]
    with nki_machine.machine(compiler="process", cache=shipped):
        spec = driver_spec()
        store = driver.KernelStore(driver.Compiler("trn2"), "STAND-IN")
        neff = store.neff(spec)
        assert store.compiled == 1 and b"_kernel:hop" in neff
    with nki_machine.machine(cache=shipped):
        assert prebuild.main(request) == 0
        said = capsys.readouterr().out
        assert "compiled: M on 2x2x2x2" in said and "not for hardware" in said
        assert prebuild.main(request) == 0
        assert "compiled:" not in capsys.readouterr().out
    with nki_machine.machine(compiler="none", cache=shipped):
        U = field(2, 2, 2, 2)
        M = lqcd.WilsonDirac(mass=0.1).bind(U, backend="neuron-nki", precision="single")
        psi = np.ones(U.geometry.spinor_shape, np.complex64)
        want = lqcd.WilsonDirac(mass=0.1).bind(U, backend="numpy", precision="double")(psi.astype(complex))
        np.testing.assert_allclose(M(psi), want, atol=1e-5)
        assert (
            lqcd.solve(M, psi, lqcd.ConjugateGradient(tol=1e-5)).info.final_residual < 1e-5
        )  # every kernel of a solve is there
        assert M.backend.executor.store.compiled == 0
        with pytest.raises(driver.CompilerUnavailable, match=r"half|float16"):
            lqcd.WilsonDirac(mass=0.1).bind(U, backend="neuron-nki", precision="half")(psi)


def driver_spec():
    from lqcd_backends.neuron.nki.catalogue import Catalogue

    catalogue = Catalogue("trn2", 1)
    g = lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2)
    return catalogue.hop(catalogue.layout(g, lqcd.PRECISIONS["single"], 1))[0]


@pytest.mark.parametrize(
    "wrong",
    [["--lattice", "4x4"], ["--lattice", "2,2,2,2", "--forms", "wilson"], ["--lattice", "2,2,2,2", "--target", "trn9"]],
)
def test_prebuild_refuses_wrong_words(wrong):
    with pytest.raises(SystemExit):
        prebuild.main(["--target", "trn2", *wrong])


def test_prebuild_says_what_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv(driver.VARIABLE, str(tmp_path / "none"))
    assert prebuild.main(["--target", "trn2", "--lattice", "2,2,2,2"]) == 1
    assert "is not an interpreter" in capsys.readouterr().err

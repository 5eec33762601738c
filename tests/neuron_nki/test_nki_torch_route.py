"""The torch route with the kernels themselves: kernels A, B and those of vectors as registered torch operators, on the stand-in for nki.

Tensors live on the CPU, for a device that torch calls ``neuron`` cannot be made in Python: schemas, arguments and results are held
here, not the movement of tensors.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import nki_machine  # noqa: E402
import nki_sim  # noqa: E402
from lqcd_backends.neuron.nki import plugin  # noqa: E402

import lqcd_core as lqcd  # noqa: E402
from lqcd_core.precision import PRECISIONS  # noqa: E402
from lqcd_core.registry import registered  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::lqcd_backends.neuron.nki.status.NumericalWarning")
if nki_sim.real_wheel():
    pytest.skip("a real nki is installed here, and the stand-in does not shadow it", allow_module_level=True)


@pytest.fixture
def native(monkeypatch):
    """A machine with the stand-ins for torch_neuronx and nki; gives the names of the operators that were registered."""
    monkeypatch.syspath_prepend(str(SUPPORT / "nki_torch"))
    monkeypatch.delitem(sys.modules, "torch_neuronx", raising=False)
    with registered(plugin), nki_machine.machine(), nki_sim.installed():
        import torch_neuronx

        torch_neuronx.REGISTERED.clear()
        yield torch_neuronx.REGISTERED
    sys.modules.pop("torch_neuronx", None)


def field(*shape):
    return lqcd.GaugeField.random(lqcd.LatticeGeometry.from_shape(shape), seed=5)


def by(formulation):
    return ("neuron-nki", {"route": "torch", "formulation": formulation})


def kinds(operators):
    """Names of kernels among registered operators, lqcd::<name>_<digest>."""
    return {name.removeprefix("lqcd::").rpartition("_")[0] for name in operators}


def source(geometry, n, seed=4):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, *geometry.spinor_shape, 2)) @ [1, 1j]).astype(np.complex64)


@pytest.mark.parametrize("formulation", ["vector", "tensor"])
def test_a_solve_by_cg_is_that_of_the_reference(native, formulation):
    """M^dagger M with its overlap, the update of CG and the sums are one operator each."""
    U, D = field(2, 2, 2, 2), lqcd.WilsonDirac(mass=1.0)
    b = source(U.geometry, 2)
    M = D.bind(U, backend=by(formulation), precision="single", n_rhs=2)
    got = lqcd.solve(M.normal_linear, b, lqcd.ConjugateGradient(tol=1e-5))
    exact = D.bind(U, backend="numpy", n_rhs=2).normal_linear
    want = lqcd.solve(exact, b.astype(complex), lqcd.ConjugateGradient(tol=1e-10))
    assert got.info.final_residual < 1e-5
    np.testing.assert_allclose(got.x, want.x, atol=2e-5)
    assert {"normal_inner", "cg_update", "norm2", "axpy"} <= kinds(native)
    assert "STAND-IN" in M.backend.describe()["stand_in"] and M.backend.describe()["route"] == "torch"


@pytest.mark.parametrize("formulation", ["vector", pytest.param("tensor", marks=pytest.mark.slow)])
def test_a_solve_of_the_schur_complement_is_that_of_the_reference(native, formulation):
    """Parity hops with their site terms; M and M^dagger apart."""
    U, D = field(2, 2, 2, 2), lqcd.WilsonDirac(mass=1.0)
    b = source(U.geometry, 1)[0]
    got = lqcd.solve(D.bind(U, backend=by(formulation), precision="single"), b, lqcd.ConjugateGradient(tol=1e-5))
    want = lqcd.solve(D.bind(U, backend="numpy"), b.astype(complex), lqcd.ConjugateGradient(tol=1e-10))
    assert got.info.final_residual < 1e-5
    np.testing.assert_allclose(got.x, want.x, atol=2e-5)
    assert {"hop", "cg_update"} <= kinds(native)


@pytest.mark.parametrize(
    "formulation, precision",
    [("vector", "bf16"), ("tensor", "half"), *(pytest.param(*c, marks=pytest.mark.slow) for c in (("vector", "half"), ("tensor", "bf16")))],
)  # fmt: skip
def test_sixteen_bits_travel_through_torch(native, formulation, precision):
    """Clover terms as blocks, M, its adjoint and the hop: each equals the reference within the table."""
    U, D = field(2, 2, 4, 2), lqcd.CloverWilsonDirac(mass=0.1, csw=1.0)
    psi = source(U.geometry, 2)
    M = D.bind(U, backend=by(formulation), precision=precision, n_rhs=2)
    exact = D.bind(U, backend="numpy", n_rhs=2)
    for got, want in ((M(psi), exact(psi)), (M.dagger(psi), exact.dagger(psi)), (M.hop(psi), exact.hop(psi))):
        assert np.linalg.norm(got - want) < PRECISIONS[precision].tolerance * np.linalg.norm(want)
    assert "dirac_blocks" in kinds(native)


BIGGER = [(f, p, (4, 2, 4, 2)) for f in ("vector", "tensor") for p in ("single", "half")]


@pytest.mark.parametrize(
    "formulation, precision, shape",
    [("tensor", "half", (2, 2, 2, 2)), *(pytest.param(*case, marks=pytest.mark.slow) for case in BIGGER)],
)
def test_a_propagator_is_that_of_the_reference(native, formulation, precision, shape):
    """Twelve columns, defect correction outside on the CPU, everything inside through torch."""
    U, D = field(*shape), lqcd.CloverWilsonDirac(mass=1.0, csw=1.0)
    solver = lqcd.MixedPrecision(inner=lqcd.BiCGStab(tol=1e-6), precision=precision, backend=by(formulation))
    M = D.bind(U, backend="numpy", n_rhs=12)
    point = lqcd.point_source(U.geometry)
    got, want = lqcd.propagator(M, point, solver), lqcd.propagator(M, point, lqcd.BiCGStab(tol=1e-10))
    pion = [lqcd.observables.pion_correlator(S) for S in (got, want)]
    np.testing.assert_allclose(*pion, rtol=1e-5)
    assert {"hop", "site_term_blocks"} <= kinds(native)


@pytest.mark.slow
@pytest.mark.parametrize("formulation", ["vector", "tensor"])
def test_the_routes_give_the_same_bits(native, formulation):
    """What a kernel computes does not depend on who launches it."""
    U, D = field(4, 2, 4, 2), lqcd.WilsonDirac(mass=0.3)
    psi, found = source(U.geometry, 2), []
    for route in ("torch", "libnrt"):
        options = {"route": route, "formulation": formulation}
        M = D.bind(U, backend=("neuron-nki", options), precision="single", n_rhs=2)
        v = M.vectors
        x = v.pack(psi)
        y = M.apply_normal(x)
        z, norm = v.axpy_norm2(np.array([0.5, -0.25j]), x, v.copy(y))
        found.append([*(v.unpack(h) for h in (y, z)), norm, v.inner(x, y), v.norm2(x), M.dagger(psi), M.hop(psi)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)

"""The backend's space and operators over the real ctypes path, with kernels that are plain NumPy functions (toy_catalogue).

What is held here is the runtime: handles, launches, caches, messages. The NKI kernels have tests of their own.
"""

import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import nki_machine  # noqa: E402
import toy_catalogue  # noqa: E402
from lqcd_backends.neuron.nki import backend as nki_backend  # noqa: E402
from lqcd_backends.neuron.nki import libnrt, plugin  # noqa: E402
from lqcd_backends.neuron.nki.backend import NKIBackend  # noqa: E402

import lqcd_core as lqcd  # noqa: E402
from lqcd_core.errors import BackendUnavailable, ParameterError, UnknownOptionError  # noqa: E402
from lqcd_core.precision import as_precision  # noqa: E402
from lqcd_core.registry import REGISTRY  # noqa: E402
from lqcd_core.testing.conformance import BackendConformance, FusedBLASConformance  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::lqcd_backends.neuron.nki.status.NumericalWarning"),
    pytest.mark.filterwarnings("ignore::lqcd_backends.neuron.nki.libnrt.StandInWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def machine():
    toy = mock.patch.object(nki_backend, "Catalogue", toy_catalogue.Catalogue)
    with toy, mock.patch("lqcd_backends.neuron.nki.layout.why_not", lambda *a: None), nki_machine.machine() as lib:
        yield lib


class TestSingle(BackendConformance):
    plugin = plugin
    backend, precisions, ncs, n_rhs, lattices = "neuron-nki", ("single",), (3,), 2, ((2, 2, 4, 2),)


class TestAsynchronousSixteenBit(BackendConformance):
    plugin = plugin
    backend, options = "neuron-nki", {"asynchronous": True}
    precisions, ncs, n_rhs, lattices = ("half", "bf16"), (3,), 2, ((2, 2, 4, 2),)


class TestTwoColours(FusedBLASConformance):
    plugin = plugin
    backend, precisions, ncs, n_rhs, lattices = "neuron-nki", ("single", "half"), (2,), 3, ((3, 2, 1, 5),)


@pytest.fixture(autouse=True)
def registered():
    from lqcd_core.registry import registered

    with registered(plugin):
        yield


def small(nt=4):
    return lqcd.GaugeField.random(lqcd.LatticeGeometry(T=nt, Z=2, Y=2, X=2), seed=5)


def test_a_propagator_over_ctypes_is_that_of_the_reference(machine):
    U = small()
    D = lqcd.WilsonDirac(mass=0.6)
    solver = lqcd.MixedPrecision(inner=lqcd.ConjugateGradient(tol=1e-8), precision="half", backend="neuron-nki")
    source = lqcd.point_source(U.geometry)
    with lqcd.use_backend("numpy"):
        M = D.bind(U, n_rhs=12)
        before = machine.lqcd_standin_count(b"launches")
        got = lqcd.propagator(M, source, solver)
        assert machine.lqcd_standin_count(b"launches") > before + 20
        want = lqcd.propagator(M, source, lqcd.ConjugateGradient(tol=1e-10))
    a, b = (lqcd.observables.pion_correlator(S) for S in (got, want))
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_what_a_stand_in_made_says_so_everywhere():
    M = lqcd.WilsonDirac(mass=0.1).bind(small(), backend="neuron-nki", precision="single")
    M(np.ones((*M.geometry.spinor_shape,), np.complex64))
    facts = M.backend.describe()
    assert "STAND-IN" in facts["stand_in"] and facts["target"] == "trn2" and facts["runtime"].startswith("2.32")
    assert "STAND-IN" in str(M.provenance())
    assert "STAND-IN" in M.apply.report()
    told = str(lqcd.explain(lqcd.WilsonDirac(mass=0.1), small(), precision="single", backend="neuron-nki"))
    assert "STAND-IN" in told


def test_links_and_terms_stay_on_the_device(machine):
    U = small()
    M = lqcd.WilsonDirac(mass=0.1).bind(U, backend="neuron-nki", precision="single")
    x = M.vectors.pack(np.ones((1, *U.geometry.spinor_shape), np.complex64))
    M.apply(x)
    M.apply_dagger(x)
    assert M.apply.resident["links"] is M.apply_dagger.resident["links"]  # placed once for all operators of a bind
    made = machine.lqcd_standin_count(b"made_tensors")
    for _ in range(10):
        x = M.apply(x)
    assert machine.lqcd_standin_count(b"made_tensors") == made


def test_a_second_mass_compiles_nothing():
    backend = REGISTRY.load("neuron-nki", {}).instance
    lqcd.WilsonDirac(mass=0.1).bind(small(), backend="neuron-nki", precision="single").apply.warm_up()
    before = backend.executor.store.compiled
    M = lqcd.WilsonDirac(mass=0.7).bind(small(), backend="neuron-nki", precision="single")
    M.apply.warm_up()
    assert backend.executor.store.compiled == before and "ready after" in M.apply.report()


def test_asking_what_there_is_claims_no_core():
    with nki_machine.machine():
        assert nki_backend.is_available() and nki_backend.why_not_here() is None
        assert "this process sees 8 core(s)" in nki_backend.why_not_here(core=9)
        lqcd.explain(lqcd.WilsonDirac(mass=0.1), small(), precision="single", start_all=True)
        NKIBackend().space(small().geometry, as_precision("single"), 1)
        assert libnrt._RUNTIME is None


def test_the_wrong_generation_lnc_core_or_route_is_refused():
    with nki_machine.machine():
        for options, text in (
            ({"target": "trn1"}, r"target='trn1' was asked for, and this machine has Trainium2"),
            ({"lnc": 2}, r"lnc=2 was asked for, .*NEURON_LOGICAL_NC_CONFIG=2"),
            ({"route": "torch"}, "native torch-neuronx"),
        ):
            with pytest.raises(BackendUnavailable, match=text):
                REGISTRY.load("neuron-nki", options)
        with pytest.raises(BackendUnavailable, match="core=5"):
            NKIBackend(core=5).executor  # noqa: B018
        for options, error in (({"formulation": "fast"}, ParameterError), ({"core": -1}, ParameterError), ({"cores": 1}, UnknownOptionError),
                               ({"nki_version": "seven"}, ParameterError), ({"lnc": 3}, ParameterError), ({"compile_timeout": 0}, ParameterError)):  # fmt: skip
            with pytest.raises(error):
                lqcd.use_backend("neuron-nki", **options)
        with pytest.raises(ParameterError, match="leave core and asynchronous out"):
            NKIBackend(route="torch", core=1)
    with nki_machine.machine("inf2.xlarge"):
        assert NKIBackend().target == "inf2"
        with pytest.raises(BackendUnavailable, match=r"route='torch' exists on Trn2 and Trn3"):
            REGISTRY.load("neuron-nki", {"route": "torch"})


def test_without_a_device_or_a_library_nothing_runs_on_the_cpu(tmp_path):
    from lqcd_backends.neuron import device

    def bind():
        lqcd.WilsonDirac(mass=0.1).bind(small(), backend="neuron-nki", precision="single")

    with nki_machine.machine(environment={libnrt.VARIABLE: str(tmp_path / "none.so")}):
        with pytest.raises(BackendUnavailable, match=r"neuron-nki.*LQCD_NEURON_LIBRARY.*Nothing falls back"):
            bind()
        with (
            mock.patch.object(device, "DEV", tmp_path),
            pytest.raises(BackendUnavailable, match=r"no Neuron device.*aws-neuronx-dkms"),
        ):
            bind()
        assert not nki_backend.is_available()


def test_a_core_of_another_process_is_named():
    with nki_machine.machine() as lib:
        nki_machine.fault(lib, "nrt_init", 1005)
        with pytest.raises(BackendUnavailable, match="NEURON_RT_VISIBLE_CORES"):
            lqcd.WilsonDirac(mass=0.1).bind(small(), backend="neuron-nki", precision="single")


def test_sizes_beyond_the_device_are_refused_before_anything_is_made(machine):
    big = lqcd.LatticeGeometry(T=128, Z=64, Y=64, X=64)
    backend = REGISTRY.load("neuron-nki", {}).instance
    made = machine.lqcd_standin_count(b"made_tensors")
    with pytest.raises(ParameterError, match=r"38,654,705,664 B, and a kernel addresses less than 4,294,967,296 B"):
        backend.space(big, as_precision("single"), 12)
    middle = lqcd.LatticeGeometry(T=64, Z=32, Y=32, X=32)
    with pytest.raises(
        ParameterError,
        match=r"needs about 26,575,110,144 B of device memory .*10 vectors of 2,415,919,104\) and a core has 12,784,238,592",
    ):
        backend.space(middle, as_precision("single"), 12)
    assert machine.lqcd_standin_count(b"made_tensors") == made


def test_after_close_and_in_a_fork_the_backend_says_why():
    from lqcd_backends.neuron.nki.status import NeuronStateError

    with nki_machine.machine():
        M = lqcd.WilsonDirac(mass=0.1).bind(small(), backend="neuron-nki", precision="single")
        psi = np.ones(M.geometry.spinor_shape, np.complex64)
        M(psi)
        libnrt.runtime().close()
        with pytest.raises(NeuronStateError, match="start a new process"):
            M(psi)


def test_two_instances_of_options_share_the_runtime():
    with nki_machine.machine():
        a = lqcd.WilsonDirac(mass=0.1).bind(small(), backend="neuron-nki", precision="single")
        b = lqcd.WilsonDirac(mass=0.1).bind(
            small(), backend=("neuron-nki", {"core": 1, "asynchronous": True}), precision="single"
        )
        psi = np.random.default_rng(1).normal(size=a.geometry.spinor_shape).astype(np.complex64)
        np.testing.assert_array_equal(a(psi), b(psi))
        assert a.backend.executor.runtime is b.backend.executor.runtime
        x = b.vectors.convert_from(a.vectors.pack(psi[None]), a.vectors)  # another core: through the host
        np.testing.assert_array_equal(b.vectors.unpack(x)[0], psi)


@pytest.fixture
def native(monkeypatch):
    pytest.importorskip("torch")
    path = [p for p in sys.path if Path(p).parent != SUPPORT]
    monkeypatch.setattr(sys, "path", [str(SUPPORT / "nki_torch"), *path])
    monkeypatch.delitem(sys.modules, "torch_neuronx", raising=False)
    with nki_machine.machine():
        yield
    sys.modules.pop("torch_neuronx", None)


def test_the_torch_route_gives_what_libnrt_gives(native):
    U = small()
    rng = np.random.default_rng(2)
    for precision in ("single", "bf16"):
        D = lqcd.CloverWilsonDirac(mass=0.1, csw=1.0)
        a = D.bind(U, backend="neuron-nki", precision=precision, n_rhs=2)
        b = D.bind(U, backend=("neuron-nki", {"route": "torch"}), precision=precision, n_rhs=2)
        psi = (rng.normal(size=(2, *U.geometry.spinor_shape, 2)) @ [1, 1j]).astype(np.complex64)
        x, y = a.vectors.pack(psi), b.vectors.pack(psi)
        np.testing.assert_array_equal(a.vectors.unpack(a.apply_normal(x)), b.vectors.unpack(b.apply_normal(y)))
        z = b.vectors.axpy(np.array([0.5, 1j]), y, b.vectors.zeros())
        np.testing.assert_array_equal(b.vectors.unpack(z)[0], b.vectors.unpack(b.vectors.scale(0.5, y))[0])
        np.testing.assert_array_equal(a.vectors.norm2(x), b.vectors.norm2(y))
    from torch_neuronx import REGISTERED

    assert any(name.startswith("lqcd::dirac_blocks_") for name in REGISTERED)
    assert "STAND-IN" in b.backend.describe()["stand_in"]


def test_a_package_without_the_wrapper_is_refused(native, monkeypatch):
    import torch_neuronx

    monkeypatch.delattr(torch_neuronx, "nki_op")
    with pytest.raises(BackendUnavailable, match="has no nki_op"):
        NKIBackend(route="torch")

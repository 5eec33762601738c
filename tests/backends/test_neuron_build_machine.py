"""Packages that lack something, machines that lack a device: what the traced backend probes, and what it says. Stand-ins, no device."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lqcd_backends.neuron import NeuronCompiler  # noqa: E402
from neuron_standin import standin  # noqa: E402

import lqcd_core as lqcd  # noqa: E402
from lqcd_core.errors import BackendUnavailable, ParameterError  # noqa: E402

G = lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2)
U, D = lqcd.GaugeField.random(G, seed=2), lqcd.WilsonDirac(mass=0.2)
PSI = (np.random.default_rng(1).normal(size=(1, *G.spinor_shape, 2)) @ [1, 1j]).astype(np.complex64)


def bound(**options):
    return D.bind(U, backend=("neuron-traced", {"formulation": "fused", **options}), precision="single")


def is_right(m):
    want = D.bind(U, backend="numpy", precision="double")(PSI)
    return np.linalg.norm(m(PSI) - want) < 1e-6 * np.linalg.norm(want)


# -- a build machine ------------------------------------------------------------------------------------------------------


def test_what_a_build_machine_compiles_is_run_elsewhere_without_a_compilation(tmp_path):
    with standin("no chip", cache=tmp_path):
        import torch_neuronx

        with pytest.raises(BackendUnavailable, match="no Neuron device"):
            bound()
        with pytest.raises(ParameterError, match="name the machine"):
            bound(cpu_backend=True)
        for gauge in ("resident", "baked", "argument"):
            m = bound(gauge=gauge, target="inf2", cpu_backend=True)
            assert m.backend.describe()["runs_here"].startswith("no")
            m.apply.warm_up()
            told = torch_neuronx.TRACED[-1]
            assert told["cpu_backend"] and told["flags"][-2:] == ["--target", "inf2"]
            assert "1 compiled" in m.apply.report()
            with pytest.raises(BackendUnavailable, match=r"compiled for inf2 .* cannot run it"):
                m(PSI)
        two = bound(num_cores=2, target="trn1", cpu_backend=True)  # nobody counts cores that are not here
        two.apply.warm_up()
    with standin("inf2.xlarge", cache=tmp_path):
        import torch_neuronx

        for gauge in ("resident", "baked", "argument"):
            m = bound(gauge=gauge)
            assert is_right(m) and "1 of them from the cache" in m.apply.report()
        assert is_right(bound(target="inf2")) and not torch_neuronx.CALLS
        assert is_right(bound(target="trn1"))  # made for the other chip of this generation, above
        assert not torch_neuronx.CALLS
        assert is_right(bound(target="trn1n")) and len(torch_neuronx.CALLS) == 1


def test_the_explicit_compiler_compiles_for_another_chip(tmp_path):
    with standin("inf2.xlarge", cache=tmp_path):
        import torch_neuronx

        m = NeuronCompiler(dtype="bfloat16", target="trn2", cpu_backend=True).compile_dslash(D, gauge_field=U)
        m.apply.warm_up()
        flags = torch_neuronx.TRACED[-1]["flags"]
        assert flags[-2:] == ["--logical-nc-config", "2"] and flags[flags.index("--target") + 1] == "trn2"
        with pytest.raises(BackendUnavailable, match="compiled for trn2"):
            m(PSI)
        with pytest.raises(ParameterError, match="cannot run that"):
            bound(target="trn2")
        with pytest.raises(ParameterError, match="target"):
            bound(target="trn9")
        assert is_right(
            bound(target="inf2", cpu_backend=True)
        )  # this machine can run what it traced without its device


def test_packages_without_the_argument_say_so(tmp_path):
    with standin("no chip", cache=tmp_path):
        import torch_neuronx

        torch_neuronx.trace = lambda func, example_inputs, *_, compiler_args=None, inline_weights_to_neff=True: None
        with pytest.raises(BackendUnavailable, match="no argument cpu_backend"):
            bound(target="inf2", cpu_backend=True)
    for instance in ("no chip", "trn2.3xlarge"):
        with standin(instance, "native", on_cpu=True), pytest.raises(BackendUnavailable, match="XLA package's"):
            bound(target="trn2", cpu_backend=True)
    with standin("no chip", "nothing_here"), pytest.raises(BackendUnavailable, match="needs the vendor's compiler"):
        bound(target="trn2", cpu_backend=True)


# -- what a package has ---------------------------------------------------------------------------------------------------


def test_without_replace_weights_the_other_two_modes_still_serve(tmp_path):
    with standin(cache=tmp_path):
        import torch_neuronx

        del torch_neuronx.replace_weights
        with pytest.raises(BackendUnavailable, match=r"'resident' .*gauge='baked' .*'argument'"):
            bound()
        assert is_right(bound(gauge="baked")) and is_right(bound(gauge="argument"))


def test_without_separate_weights_trace_is_called_as_it_was(tmp_path):
    with standin(cache=tmp_path):
        import torch_neuronx

        whole = torch_neuronx.trace

        def trace(func, example_inputs, *_, compiler_workdir=None, compiler_args=None):
            return whole(func, example_inputs, compiler_workdir=compiler_workdir, compiler_args=compiler_args)

        torch_neuronx.trace = trace
        with pytest.raises(BackendUnavailable, match="inline_weights_to_neff"):
            bound()
        assert is_right(bound(gauge="baked")) and is_right(bound(gauge="argument"))


def test_cores_are_set_by_whichever_name_there_is(tmp_path):
    with standin(cache=tmp_path):
        import torch_neuronx

        del torch_neuronx.neuron_cores_context, torch_neuronx.move_trace_to_device
        placed, place = [], torch_neuronx.set_neuron_cores
        torch_neuronx.set_neuron_cores = lambda m, start_nc, nc_count: (
            placed.append(start_nc),
            place(m, start_nc, nc_count),
        )
        assert is_right(bound(num_cores=2)) and placed == [0, 1]
        del torch_neuronx.set_neuron_cores
        assert is_right(bound(num_cores=1, optimize_level=1))
        with pytest.raises(BackendUnavailable, match="use num_cores=1"):
            bound(num_cores=2, optimize_level=1)


# -- the native package's own cache -----------------------------------------------------------------------------------------


def test_the_native_cache_is_named_before_torch_is_imported(tmp_path):
    """A watch on imports prints the variable when the first line of torch runs."""
    script = (
        "import os, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'torch': print('at import:', os.environ.get('TORCH_NEURONX_NEFF_CACHE_DIR'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import lqcd_backends.neuron.traced.backend\n"
        "from lqcd_backends.neuron import native_cache\n"
        "print('late:', native_cache.TORCH_CAME_FIRST)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_NEURONX_NEFF_CACHE_DIR"}
    environment["LQCD_NEURON_CACHE"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"at import: {tmp_path / 'native'}", "late: False"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_name_that_came_late_is_said(monkeypatch):
    monkeypatch.delenv("TORCH_NEURONX_NEFF_CACHE_DIR", raising=False)
    assert runpy.run_module("lqcd_backends.neuron.native_cache")["TORCH_CAME_FIRST"]  # torch is here already
    assert not runpy.run_module("lqcd_backends.neuron.native_cache")["TORCH_CAME_FIRST"]  # the user's own, or ours

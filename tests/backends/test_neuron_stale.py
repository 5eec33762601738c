"""A changed gauge field or mass never meets a stale graph: links changed in place, three modes, both adapters, memory and disk.

Under the stand-ins; no device. Of the native package too: its graphs, its constants, one launch a call.
"""

import sys
from pathlib import Path

import attrs
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lqcd_backends.neuron.cache import key_digest  # noqa: E402
from lqcd_backends.neuron.device import device_of_target  # noqa: E402
from lqcd_backends.neuron.traced import adapters  # noqa: E402
from lqcd_backends.neuron.traced.adapters import CompileOptions, cache_key  # noqa: E402
from lqcd_backends.neuron.traced.graph import GraphSpec, Stage, Term  # noqa: E402
from neuron_standin import standin  # noqa: E402

import lqcd_core as lqcd  # noqa: E402
from lqcd_core.errors import BackendUnavailable, FileError  # noqa: E402

G = lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2)
PSI = (np.random.default_rng(1).normal(size=(1, *G.spinor_shape, 2)) @ [1, 1j]).astype(np.complex64)
GAUGE = ("resident", "baked", "argument")
MACHINES = {
    "trace": {"instance": "inf2.xlarge", "package": "trace"},
    "native": {"instance": "trn2.3xlarge", "package": "native", "on_cpu": True},
}


def links(seed):
    return np.array(lqcd.GaugeField.random(G, seed=seed).array)


def bind(u, gauge, mass=0.2, csw=None, n_rhs=1):
    D = lqcd.WilsonDirac(mass=mass) if csw is None else lqcd.CloverWilsonDirac(mass=mass, csw=csw)
    return D.bind(
        u, backend=("neuron-traced", {"formulation": "half", "gauge": gauge}), precision="single", n_rhs=n_rhs
    )


def expected(u, mass=0.2, csw=None):
    D = lqcd.WilsonDirac(mass=mass) if csw is None else lqcd.CloverWilsonDirac(mass=mass, csw=csw)
    return D.bind(np.array(u), backend="numpy", precision="double")(PSI)


def error(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize("gauge", GAUGE)
@pytest.mark.parametrize("adapter", MACHINES)
def test_links_changed_in_place_and_a_new_mass_meet_no_stale_graph(adapter, gauge, tmp_path):
    """The same field object and the same array, written to between binds; then the same files under another process."""
    field, array = lqcd.GaugeField(G, links(1)), links(1)
    with standin(cache=tmp_path, **MACHINES[adapter]):
        for given, memory in ((field, field.array), (array, array)):
            before = expected(memory)
            called, waiting = bind(given, gauge), bind(given, gauge)
            assert error(called(PSI), before) < 1e-6
            memory[...] = links(2)
            after = expected(memory)
            assert error(before, after) > 0.1
            # What is bound keeps the links of its bind, compiled or not; what is bound now has the new ones.
            assert error(called(PSI), before) < 1e-6 and error(waiting(PSI), before) < 1e-6
            assert error(bind(given, gauge)(PSI), after) < 1e-6
            assert error(bind(given, gauge, mass=0.7)(PSI), expected(memory, mass=0.7)) < 1e-6
    with standin(cache=tmp_path, **MACHINES[adapter]):
        for given, memory, seed in ((field, field.array, 2), (field, field.array, 3), (array, array, 3)):
            memory[...] = links(seed)  # 2 is on disk where links are baked, 3 is not
            assert error(bind(given, gauge)(PSI), expected(memory)) < 1e-6
            assert error(bind(given, gauge, mass=0.4)(PSI), expected(memory, mass=0.4)) < 1e-6


@pytest.mark.parametrize("gauge", GAUGE)
@pytest.mark.parametrize("adapter", [pytest.param("native", marks=pytest.mark.slow), "trace"])
def test_clover_terms_follow_links_changed_in_place(adapter, gauge, tmp_path):
    u = links(1)
    with standin(cache=tmp_path, **MACHINES[adapter]):
        before = expected(u, csw=1.3)
        called, waiting = bind(u, gauge, csw=1.3), bind(u, gauge, csw=1.3)
        assert error(called(PSI), before) < 1e-6
        u[...] = links(2)
        assert error(called(PSI), before) < 1e-6 and error(waiting(PSI), before) < 1e-6
        assert error(bind(u, gauge, csw=1.3)(PSI), expected(u, csw=1.3)) < 1e-6
        assert error(bind(u, gauge, csw=1.9)(PSI), expected(u, csw=1.9)) < 1e-6


def test_whatever_a_graph_depends_on_changes_its_key(monkeypatch):
    """Every field of the graph's definition, flags, target, device, package, versions, and the weights where they are baked."""
    monkeypatch.delenv("NEURON_CC_FLAGS", raising=False)
    spec = GraphSpec(chain=((Stage(centre=Term("scale", "scale_a")),),), sites=(2, 2, 2, 2), nc=3, n_rhs=1)
    changed = {
        "chain": ((Stage(dagger=True, centre=Term("scale", "scale_a")),),), "sites": (4, 2, 2, 2), "nc": 2, "n_rhs": 2,
        "formulation": "fused", "link_storage": "bfloat16", "storage_in": "bfloat16", "storage_centre": "bfloat16",
        "storage_out": "bfloat16", "ghost": True, "weights": ("links",), "as_arguments": True,
    }  # fmt: skip
    assert changed.keys() == attrs.fields_dict(GraphSpec).keys()
    one, other, options = device_of_target("trn2"), device_of_target("inf2"), CompileOptions()

    def digest(spec=spec, weights="u1", baked=True, device=one, options=options, adapter="trace"):
        return key_digest(cache_key(spec, weights, baked, device, options, adapter))

    found = [digest(), *(digest(spec=attrs.evolve(spec, **{k: v})) for k, v in changed.items())]
    found += [digest(weights="u2"), digest(baked=False), digest(device=other), digest(adapter="native")]
    found += [digest(device=attrs.evolve(one, logical_core_config=1)), digest(options=CompileOptions(optimize_level=3))]
    found += [digest(device=other, options=CompileOptions(target=name)) for name in ("inf2", "trn1n")]
    monkeypatch.setattr(adapters, "versions", lambda: {"neuronx-cc": "another"})
    found.append(digest())
    assert len(set(found)) == len(found)
    assert digest(weights="u1", baked=False) == digest(weights="u2", baked=False), (
        "weights that are replaced are no part"
    )


def test_flags_of_the_environment_meet_no_stale_graph(tmp_path, monkeypatch):
    monkeypatch.delenv("NEURON_CC_FLAGS", raising=False)
    u = links(1)
    with standin(cache=tmp_path):
        import torch_neuronx

        for flags, compiled in (("", 1), ("--verbose=35", 2), ("--verbose=35", 2), ("", 2)):
            monkeypatch.setenv("NEURON_CC_FLAGS", flags)
            assert error(bind(u, "resident")(PSI), expected(u)) < 1e-6 and len(torch_neuronx.CALLS) == compiled


def test_every_graph_has_a_workdir_of_its_own(tmp_path):
    """The compiler names its files alike for every graph: in one folder two processes would take each other's."""
    u, asked = links(1), tmp_path / "work"
    with standin(cache=tmp_path / "cache"):
        import torch_neuronx

        D = lqcd.WilsonDirac(mass=0.2)
        options = {"formulation": "half", "workdir": str(asked)}
        for n in (1, 2):
            D.bind(u, backend=("neuron-traced", options), precision="single", n_rhs=n).apply.warm_up()
        used = [Path(traced["workdir"]) for traced in torch_neuronx.TRACED]
        assert len(set(used)) == 2 and all(folder.is_dir() and folder.parent == asked for folder in used)
        (tmp_path / "file").touch()
        options["workdir"] = str(tmp_path / "file")
        m = D.bind(u, backend=("neuron-traced", options), precision="single", n_rhs=3)
        with pytest.raises(FileError, match=r"option workdir= .*leave workdir out"):
            m.apply.warm_up()


# -- the native package ---------------------------------------------------------------------------------------------------


def test_baked_links_are_constants_of_the_native_graph_and_others_are_inputs(tmp_path):
    u = lqcd.GaugeField.random(G, seed=4)
    with standin(cache=tmp_path, **MACHINES["native"]):
        import torch_neuronx

        seen = {}
        for gauge in GAUGE:
            m = bind(u, gauge)
            m.apply.warm_up()
            seen[gauge] = torch_neuronx.COMPILED[-1]
            torch_neuronx.LAUNCHES.clear()
            m(PSI)
            assert len(torch_neuronx.LAUNCHES) == 1, "one call is one launch"
            assert m.apply.program.weights.keys() == {"links", "scale_a"}
        assert (seen["baked"]["inputs"], seen["baked"]["constants"]) == (1, 2)
        for gauge in ("resident", "argument"):
            assert (seen[gauge]["inputs"], seen[gauge]["constants"]) == (3, 0)
        assert m.backend.describe()["adapter"] == "native"


def test_one_process_compiles_more_operators_than_torch_recompiles_a_function(tmp_path):
    """Every graph has a code object of its own: torch.compile counts recompilations by code object, fullgraph makes them fatal."""
    from lqcd_backends.neuron.traced.adapters import _own_code

    graph = torch.nn.Identity()
    codes = {id(f.__code__): f for f in (_own_code(graph) for _ in range(3))}
    assert len(codes) == 3
    u, limit = lqcd.GaugeField.random(G, seed=4), torch._dynamo.config.recompile_limit
    with standin(cache=tmp_path, **MACHINES["native"]), torch._dynamo.config.patch(recompile_limit=1):
        assert limit > 1
        held = [bind(u, "resident", n_rhs=n) for n in (1, 2, 3)]
        want = expected(u.array)
        assert all(error(m(PSI), want) < 1e-6 for m in held)


def test_the_native_package_says_what_it_lacks(tmp_path):
    with standin(cache=tmp_path, **MACHINES["native"]):
        for options, words in (({"num_cores": 2}, "one logical core"), ({"target": "trn2"}, "Leave them out")):
            D = lqcd.WilsonDirac(mass=0.2)
            with pytest.raises(BackendUnavailable, match=words):
                D.bind(links(1), backend=("neuron-traced", options), precision="single")

"""The traced Neuron backend: values, graphs, budget, cache and solves. Under the stand-in package; no device, no times."""

import itertools
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lqcd_backends.neuron.traced import cost  # noqa: E402
from lqcd_backends.neuron.traced.graph import ALLOWED_DTYPES, ALLOWED_OPERATORS, STORAGE, Graph, GraphSpec  # noqa: E402
from lqcd_backends.neuron.traced.program import dirac_program, hop_program  # noqa: E402
from lqcd_backends.numpy.backend import NumpyBackend  # noqa: E402
from neuron_standin import standin  # noqa: E402

import lqcd_core as lqcd  # noqa: E402
from lqcd_core.backend import DiracTerms, Links, SiteDiagonal  # noqa: E402
from lqcd_core.errors import BackendError, BackendUnavailable, FieldShapeError, ParameterError  # noqa: E402
from lqcd_core.geometry import EVEN, FULL, ODD, LatticeGeometry  # noqa: E402
from lqcd_core.precision import as_precision  # noqa: E402

DOUBLE = as_precision("double")
G = LatticeGeometry(T=4, Z=2, Y=2, X=4)
FORMS = ("half", "fused")
PHASES, COEFFICIENTS = (-1, np.exp(0.3j), 1j, np.exp(-1.1j)), (1.0, 0.4, 0.4, 0.4)


@pytest.fixture(scope="module", autouse=True)
def machine(tmp_path_factory):
    with standin(cache=tmp_path_factory.mktemp("cache")):
        yield


def gaussian(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def distance(got, want):
    return float(np.linalg.norm(np.asarray(got) - want) / np.linalg.norm(want))


def links_on(g, seed=1):
    u = np.linalg.qr(gaussian(*g.gauge_shape, seed=seed))[0]
    return Links(g, u, PHASES, COEFFICIENTS, f"{g.shape}{seed}")


def terms_on(g, twist=0.3, seed=3):
    b = gaussian(*g.shape, 2, 2 * g.nc, 2 * g.nc, seed=seed)
    return SiteDiagonal(scalar=4.1, blocks=0.1 * (b + b.conj().swapaxes(-1, -2)), twist=twist)


def planes(a, dtype=torch.float32):
    m = np.moveaxis(a, (5, 6), (1, 2))
    return torch.from_numpy(np.ascontiguousarray(np.stack([m.real, m.imag], 1), np.float32)).to(dtype)


def complex_of(t):
    m = t.double().numpy()
    return np.moveaxis(m[:, 0] + 1j * m[:, 1], (1, 2), (5, 6))


def graph_of(program, n=2, formulation="half", **more):
    weights = {k: make() for k, make in program.weights.items()}
    sites = tuple(program.geometry.parity_shape(program.parity)[:4])
    spec = GraphSpec(chain=program.chain, sites=sites, nc=program.geometry.nc, n_rhs=n, formulation=formulation,
                     weights=tuple(sorted(weights)), **more)  # fmt: skip
    return spec, Graph(spec, weights)


# -- the graph ---------------------------------------------------------------------------------------------------------

PROGRAMS = {
    "wilson M": ("M", SiteDiagonal(scalar=4.1), FULL, "asymmetric"),
    "clover MdagM": ("MdagM", terms_on(G, twist=0.0), FULL, "asymmetric"),
    "twisted Mdag": ("Mdag", SiteDiagonal(scalar=4.1, twist=0.3), FULL, "asymmetric"),
    "twisted clover schur": ("schur", terms_on(G), ODD, "asymmetric"),
    "twisted schur_dag": ("schur_dag", SiteDiagonal(scalar=4.1, twist=0.3), EVEN, "symmetric"),
}


@pytest.mark.parametrize("formulation", ("half", "fused"))
@pytest.mark.parametrize("parity", (FULL, EVEN, ODD))
@pytest.mark.parametrize(("shape", "nc"), (((4, 2, 6, 2), 3), ((2, 4, 2, 4), 2)))
def test_the_module_run_eagerly_is_the_hopping_term(formulation, parity, shape, nc):
    g = LatticeGeometry.from_shape(shape, nc=nc)
    links, psi, numpy = links_on(g), gaussian(2, *g.parity_shape(parity)), NumpyBackend()
    _, graph = graph_of(hop_program(links, parity, formulation, "float32"), formulation=formulation)
    target = numpy.space(g, DOUBLE, 2, parity)
    if parity is FULL:
        want = target.unpack(numpy.hopping(links, target)(target.pack(psi)))
    else:
        source = numpy.space(g, DOUBLE, 2, 1 - parity)
        want = target.unpack(numpy.parity_hopping(links, target)(source.pack(psi)))
    assert distance(complex_of(graph(planes(psi))), want) < 5e-7


LONG = [
    pytest.param(name, "half", marks=pytest.mark.slow) for name in PROGRAMS if name not in ("wilson M", "twisted Mdag")
]


@pytest.mark.parametrize(("name", "formulation"), [*((n, "fused") for n in PROGRAMS), ("wilson M", "half"), *LONG])
def test_exported_graphs_hold_allowed_operators_and_types_and_cost_what_the_model_says(name, formulation):
    """torch.export, strict: every node's operator and element type is on the list; counts agree within 10 per cent."""
    kind, diagonal, parity, form = PROGRAMS[name]
    terms = DiracTerms(links=links_on(G), diagonal=diagonal, parity=parity, form=form)
    program = dirac_program(kind, terms, formulation, "bfloat16")
    spec, graph = graph_of(program, formulation=formulation, link_storage="bfloat16", storage_in="bfloat16",
                           storage_out="bfloat16")  # fmt: skip
    exported = torch.export.export(graph, (planes(gaussian(2, *G.parity_shape(parity)), torch.bfloat16),), strict=True)
    for node in exported.graph.nodes:
        if node.op == "call_function":
            namespace, operator = node.target._schema.name.split("::")
            assert namespace == "aten" and operator in ALLOWED_OPERATORS, node.target
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            assert value.dtype in ALLOWED_DTYPES, (node, value.dtype)
            assert all(type(extent) is int for extent in value.shape)
    got, want = cost.measure(exported, spec), cost.count(spec)
    for field in ("arithmetic", "macs", "moves", "converts", "weight_converts"):
        a, b = getattr(got, field), getattr(want, field)
        # Masks of one number a row are the one thing that the model leaves out.
        assert abs(a - b) <= 0.1 * b, (field, a, b)
    assert got.arithmetic + got.macs > 0


def test_the_model_counts_the_flops_that_everybody_counts():
    spec, _ = graph_of(hop_program(links_on(G), FULL, "half", "float32"))
    assert cost.count(spec).arithmetic == 96 + 576 + 480 + 168 == 1320


FIGURES = (
    ("bfloat16", "bfloat16", 2.3e-3),
    ("float16", "bfloat16", 1.7e-3),
    ("bfloat16", "float32", 1.6e-3),
    ("float16", "float32", 2.0e-4),
    ("float16", "float16", 2.9e-4),
)
"""(links, spinors, relative error of one hop): the engineering note's, to the two digits that it prints."""


@pytest.mark.parametrize(("links", "spinors", "figure"), FIGURES)
@pytest.mark.parametrize("formulation", ("half", "fused"))
def test_storage_errors_are_those_of_rounding_links_and_spinors_once(links, spinors, figure, formulation):
    """Ten random SU(3) fields and Gaussian spinors against double; the result stays fp32, as in the figures.

    Nearest rounding of given numbers has an error of its own, which no arithmetic can lower: the exact hop of the rounded links and
    spinors. So the graph is held to that, to fp32, and the mean over the fields to the figure, to its two digits.
    """
    g, numpy, errors, from_exact = LatticeGeometry(T=4, Z=4, Y=4, X=4), NumpyBackend(), [], []
    space = numpy.space(g, DOUBLE, 1)

    def exact(u, psi):
        return space.unpack(numpy.hopping(Links(g, u, digest="x"), space)(space.pack(psi)))

    def rounded(a, storage):
        parts = (
            torch.from_numpy(np.ascontiguousarray(part)).to(STORAGE[storage]).double().numpy()
            for part in (a.real, a.imag)
        )
        return next(parts) + 1j * next(parts)

    for seed in range(10):
        u, psi = lqcd.GaugeField.random(g, seed=100 + seed).array, gaussian(1, *g.spinor_shape, seed=seed)
        field = Links(g, u, digest=str(seed))
        _, graph = graph_of(hop_program(field, FULL, formulation, links), n=1, formulation=formulation, link_storage=links,
                            storage_in=spinors)  # fmt: skip
        with torch.no_grad():
            got = complex_of(graph(planes(psi, STORAGE[spinors])))
        errors.append(distance(got, exact(u, psi)))
        from_exact.append(distance(got, exact(rounded(u, links), rounded(psi, spinors))))
    assert max(from_exact) < 2e-7, from_exact
    assert figure - 0.05 * 10 ** np.floor(np.log10(figure)) < np.mean(errors), (
        "what is stored in 16 bits is not rounded"
    )
    assert float(f"{np.mean(errors):.1e}") <= figure, errors


def test_a_graph_in_fp32_adds_no_more_than_its_own_rounding():
    g, numpy = LatticeGeometry(T=4, Z=4, Y=4, X=4), NumpyBackend()
    space, field = numpy.space(g, DOUBLE, 1), links_on(g)
    psi = gaussian(1, *g.spinor_shape)
    want = space.unpack(numpy.hopping(field, space)(space.pack(psi)))
    for formulation in FORMS:
        _, graph = graph_of(hop_program(field, FULL, formulation, "float32"), n=1, formulation=formulation)
        assert distance(complex_of(graph(planes(psi))), want) < 2e-7


# -- modes, slabs, batches ---------------------------------------------------------------------------------------------

MODES, SLABS = ("baked", "resident", "argument"), (1, 2, 3)
BATCHES = ((1, 1), (3, 3), (12, 12), (3, 4))
"""(right-hand sides compiled in, vectors given): the last one ends with a short batch."""
WHOLE = list(itertools.product(MODES, FORMS, SLABS, BATCHES))
FEW = [(MODES[(s + b) % 3], FORMS[(s + b) % 2], SLABS[s], BATCHES[b]) for b in range(4) for s in range(3)]
"""Every value of a column meets every value of each other column."""


def backend_with(**options):
    from lqcd_core.registry import REGISTRY

    return REGISTRY.load("neuron-traced", options).instance


def reference(kind, definition, u, psi, parity=EVEN):
    m = definition.bind(u, backend="numpy", precision="double", n_rhs=len(psi))
    if kind.startswith("schur"):
        m = m.even_odd(parity)
    function = {"M": m.apply, "MdagM": m.apply_normal, "schur": m.apply, "schur_normal": m.apply_normal}[kind]
    return m.vectors.unpack(function(m.vectors.pack(psi)))


def check_against_reference(gauge, formulation, slabs, batch, kind):
    n_rhs, count = batch
    u = lqcd.GaugeField.random(G, seed=5)
    definition = lqcd.CloverWilsonDirac(mass=0.1, csw=1.2)
    halved = kind.startswith("schur")
    psi = gaussian(count, *G.parity_shape(EVEN if halved else FULL), seed=6).astype(np.complex64)
    options = {"gauge": gauge, "formulation": formulation, "slabs": slabs}
    bound = definition.bind(u, backend=("neuron-traced", options), precision="single", n_rhs=n_rhs)
    m = bound.even_odd(EVEN) if halved else bound
    function = m.apply_normal if kind in ("MdagM", "schur_normal") else m.apply
    assert function.decision is None
    got = bound.map_batches(lambda part: m.vectors.unpack(function(m.vectors.pack(part))), psi)
    assert function.decision.need.slabs == slabs
    assert f"{slabs} slabs" in str(function.decision) or slabs == 1
    assert distance(got, reference(kind, definition, u.array, psi)) < 2 * as_precision("single").tolerance


def test_the_few_cases_hold_every_pair():
    for i, j in itertools.combinations(range(4), 2):
        assert {(case[i], case[j]) for case in FEW} == {(case[i], case[j]) for case in WHOLE}


@pytest.mark.parametrize(("gauge", "formulation", "slabs", "batch"), FEW)
def test_modes_formulations_slabs_and_batches_agree_with_the_reference(gauge, formulation, slabs, batch):
    """Four time slices: three slabs are of unequal thickness. Full lattice and one parity by turns."""
    kind = "M" if (slabs, batch[0]) in ((1, 12), (2, 3), (3, 1)) else "schur"
    check_against_reference(gauge, formulation, slabs, batch, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("MdagM", "schur_normal"))
@pytest.mark.parametrize(("gauge", "formulation", "slabs", "batch"), WHOLE)
def test_the_whole_matrix_agrees_with_the_reference(gauge, formulation, slabs, batch, kind):
    check_against_reference(gauge, formulation, slabs, batch, kind)


@pytest.mark.parametrize("formulation", FORMS)
def test_slabs_change_no_bit(formulation):
    """Equal or not: five time slices in 1, 2 (2 + 3) and 5 slabs, stage by stage, have the bits of one graph."""
    g = LatticeGeometry(T=5, Z=2, Y=1, X=2)
    psi = gaussian(2, *g.spinor_shape).astype(np.complex64)
    term = DiracTerms(links=links_on(g), diagonal=SiteDiagonal(scalar=4.1, twist=0.2))
    out = []
    for slabs in (1, 2, 5):
        backend = backend_with(slabs=slabs, formulation=formulation)
        space = backend.space(g, as_precision("bf16"), 2)
        out.append(space.unpack(backend.fused("MdagM", term, space)(space.pack(psi))))
    assert (out[0] == out[1]).all() and (out[0] == out[2]).all()


def test_more_slabs_than_time_slices_are_refused():
    u = lqcd.GaugeField.random(G, seed=5)
    m = lqcd.WilsonDirac(mass=0.1).bind(u, backend=("neuron-traced", {"slabs": 5}), precision="single")
    with pytest.raises(ParameterError, match=r"slabs=5 cannot be cut from T=4"):
        m.apply.warm_up()
    with pytest.raises(ParameterError, match=r"slabs=5 cannot be cut from T=4"):
        lqcd.explain(lqcd.WilsonDirac(mass=0.1), u, precision="single", backend=("neuron-traced", {"slabs": 5}))


def test_columns_are_shared_among_cores_and_short_batches_are_padded():
    import torch_neuronx

    u, definition = lqcd.GaugeField.random(G, seed=2), lqcd.WilsonDirac(mass=0.2)
    torch_neuronx._PLACED.clear()
    m = definition.bind(
        u, backend=("neuron-traced", {"num_cores": 2, "formulation": "fused"}), precision="single", n_rhs=3
    )
    psi = gaussian(5, *G.spinor_shape).astype(np.complex64)
    compiled = len(torch_neuronx.CALLS)
    assert distance(m(psi), reference("M", definition, u.array, psi)) < as_precision("single").tolerance
    assert torch_neuronx._PLACED == [(0, 1), (1, 1)] and len(torch_neuronx.CALLS) == compiled + 1
    with pytest.raises(ParameterError, match=r"sees 2 NeuronCore"):
        backend_with(num_cores=3)


# -- what is compiled, and when ---------------------------------------------------------------------------------------


def test_a_new_field_or_mass_meets_no_stale_graph_and_compiles_only_where_it_must(tmp_path):
    psi = gaussian(1, *G.spinor_shape).astype(np.complex64)
    for gauge, expected in (("resident", [1, 0, 0, 0]), ("argument", [1, 0, 0, 0]), ("baked", [1, 1, 1, 0])):
        with standin(cache=tmp_path / gauge):
            import torch_neuronx

            compiled = []
            for seed, mass in ((1, 0.1), (2, 0.1), (2, 0.3), (2, 0.3)):
                before, u = len(torch_neuronx.CALLS), lqcd.GaugeField.random(G, seed=seed)
                options = {"gauge": gauge, "formulation": "fused"}
                m = lqcd.WilsonDirac(mass=mass).bind(u, backend=("neuron-traced", options), precision="single")
                want = reference("M", lqcd.WilsonDirac(mass=mass), u.array, psi)
                assert distance(m(psi), want) < as_precision("single").tolerance
                compiled.append(len(torch_neuronx.CALLS) - before)
            assert compiled == expected, gauge
            assert all(inlined == (gauge == "baked") for _, inlined in torch_neuronx.CALLS)


def test_flags_precision_and_shape_are_in_the_key_and_casts_are_always_said():
    import torch_neuronx

    g = LatticeGeometry(T=2, Z=2, Y=2, X=3)  # nobody else's shape: nothing is there yet
    u, psi = lqcd.GaugeField.random(g, seed=3), gaussian(2, *g.spinor_shape).astype(np.complex64)
    seen = []
    for options, precision in (
        ({"formulation": "fused"}, "single"), ({"formulation": "fused"}, "bf16"),
        ({"formulation": "fused", "optimize_level": 3}, "bf16"), ({"formulation": "fused", "bf16_links": "float16"}, "bf16"),
    ):  # fmt: skip
        before = len(torch_neuronx.CALLS)
        m = lqcd.WilsonDirac(mass=0.1).bind(u, backend=("neuron-traced", options), precision=precision, n_rhs=2)
        m(psi)
        assert len(torch_neuronx.CALLS) == before + 1
        seen.append(" ".join(torch_neuronx.CALLS[-1][0]))
    assert seen[0] == "--auto-cast none --optlevel 2"
    assert seen[1] == "--auto-cast matmult --auto-cast-type bf16 --optlevel 2"
    assert (
        seen[2].endswith("--optlevel 3") and seen[3] == seen[0]
    )  # two types: no cast is lossless, so none is asked for


def test_first_calls_report_what_they_cost_and_nothing_is_compiled_before():
    u = lqcd.GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=6), seed=4)
    m = lqcd.WilsonDirac(mass=0.1).bind(u, backend="neuron-traced", precision="single")
    assert m.apply.report() == "not compiled yet"
    m.apply.warm_up()
    assert "1 graph(s)" in m.apply.report() and "1 compiled" in m.apply.report()
    again = lqcd.WilsonDirac(mass=0.1).bind(u, backend="neuron-traced", precision="single")
    again.apply.warm_up()
    assert "1 of them from the cache" in again.apply.report()


def test_a_refused_graph_is_cut_smaller_until_it_passes(monkeypatch, caplog):
    """The stand-in's compiler refuses by its own count; the backend reads the message and cuts."""
    g = LatticeGeometry(T=6, Z=2, Y=2, X=2)
    u, psi = lqcd.GaugeField.random(g, seed=2), gaussian(1, *g.spinor_shape).astype(np.complex64)
    monkeypatch.setenv("STANDIN_INSTRUCTION_LIMIT", str(16 * 24))  # a third of the lattice passes, half does not
    m = lqcd.WilsonDirac(mass=0.1).bind(u, backend=("neuron-traced", {"formulation": "fused"}), precision="single")
    with caplog.at_level("INFO", logger="lqcd_backends.neuron"):
        got = m(psi)
    assert m.apply.decision.need.slabs == 3
    assert "refused a graph in 1 slab" in caplog.text and "XTP002" in caplog.text and "3 slabs along t" in caplog.text
    assert distance(got, reference("M", lqcd.WilsonDirac(mass=0.1), u.array, psi)) < as_precision("single").tolerance
    monkeypatch.setenv("STANDIN_INSTRUCTION_LIMIT", "10")
    m = lqcd.WilsonDirac(mass=0.1).bind(u, backend=("neuron-traced", {"formulation": "fused"}), precision="bf16")
    with pytest.raises(ParameterError, match=r"refused .* in every cut: slabs along t tried 1, 2, 3, 6"):
        m(psi)


@pytest.mark.parametrize(("n_rhs", "cores"), ((3, 1), (3, 2)))
def test_refused_batches_are_cut_on_one_core_and_on_several(n_rhs, cores, monkeypatch):
    """Four vectors, the last batch is short; what the compiler refuses whole passes in three slabs."""
    g = LatticeGeometry(T=6, Z=2, Y=2, X=2)
    u, psi = lqcd.GaugeField.random(g, seed=2), gaussian(4, *g.spinor_shape).astype(np.complex64)
    monkeypatch.setenv("STANDIN_INSTRUCTION_LIMIT", str(16 * 24))
    options = {"formulation": "fused", "num_cores": cores, "optimize_level": 3}
    definition = lqcd.WilsonDirac(mass=0.1)
    m = definition.bind(u, backend=("neuron-traced", options), precision="single", n_rhs=n_rhs)
    got = m(psi)
    assert m.apply.decision.need.slabs == 3
    assert distance(got, reference("M", definition, u.array, psi)) < as_precision("single").tolerance


def test_the_budget_cuts_slabs_of_unequal_thickness_where_it_must():
    """Five slices, the limit lets two into a graph: 1 + 2 + 2. Data parallel over two cores as well."""
    g = LatticeGeometry(T=5, Z=2, Y=2, X=2)
    u, psi = lqcd.GaugeField.random(g, seed=2), gaussian(3, *g.spinor_shape).astype(np.complex64)
    options = {"formulation": "fused", "instruction_limit": 2 * 16 * 8 + 100, "num_cores": 2}
    m = lqcd.CloverWilsonDirac(mass=0.1, csw=1.1).bind(
        u, backend=("neuron-traced", options), precision="single", n_rhs=3
    )
    got = m.normal(psi)
    assert m.apply_normal.decision.need.slabs == 3
    want = reference("MdagM", lqcd.CloverWilsonDirac(mass=0.1, csw=1.1), u.array, psi)
    assert distance(got, want) < 2 * as_precision("single").tolerance


def test_a_refused_chain_is_first_taken_apart(monkeypatch):
    u, psi = lqcd.GaugeField.random(G, seed=2), gaussian(1, *G.spinor_shape).astype(np.complex64)
    monkeypatch.setenv(
        "STANDIN_INSTRUCTION_LIMIT", str(16 * G.volume * 3 // 2)
    )  # M passes, M^dagger M in one graph does not
    options = {"formulation": "fused", "optimize_level": 1}
    m = lqcd.WilsonDirac(mass=0.1).bind(u, backend=("neuron-traced", options), precision="single")
    got = m.normal(psi)
    assert (m.apply_normal.decision.need.slabs, m.apply_normal.decision.need.chained) == (1, False)
    assert (
        distance(got, reference("MdagM", lqcd.WilsonDirac(mass=0.1), u.array, psi))
        < 2 * as_precision("single").tolerance
    )


def test_the_budget_cuts_before_the_compiler_is_asked():
    import torch_neuronx

    u, psi = lqcd.GaugeField.random(G, seed=2), gaussian(1, *G.spinor_shape).astype(np.complex64)
    options = {"formulation": "fused", "instruction_limit": 700}
    m = lqcd.WilsonDirac(mass=0.1).bind(u, backend=("neuron-traced", options), precision="single")
    got = m.normal(psi)
    assert m.apply_normal.decision.need.slabs == 2 and not m.apply_normal.decision.need.chained
    assert (
        distance(got, reference("MdagM", lqcd.WilsonDirac(mass=0.1), u.array, psi))
        < 2 * as_precision("single").tolerance
    )
    before = len(torch_neuronx.CALLS)
    options = {"formulation": "fused", "instruction_limit": 10}
    m = lqcd.WilsonDirac(mass=0.1).bind(u, backend=("neuron-traced", options), precision="single")
    with pytest.raises(ParameterError, match="does not fit even in 4 slabs"):
        m(psi)
    assert len(torch_neuronx.CALLS) == before


def test_a_small_threshold_launches_every_stage_by_itself():
    u, psi = lqcd.GaugeField.random(G, seed=2), gaussian(1, *G.spinor_shape).astype(np.complex64)
    options = {"formulation": "fused", "sram_threshold_bytes": 1}
    m = lqcd.WilsonDirac(mass=0.1).bind(u, backend=("neuron-traced", options), precision="single")
    got = m.normal(psi)
    assert not m.apply_normal.decision.need.chained and m.apply_normal.decision.need.slabs == 1
    assert (
        distance(got, reference("MdagM", lqcd.WilsonDirac(mass=0.1), u.array, psi))
        < 2 * as_precision("single").tolerance
    )


def test_compiler_errors_of_another_kind_are_told():
    import torch_neuronx
    from lqcd_backends.neuron.traced.adapters import GraphTooLarge, _told

    for text in (
        "[NCC_EVRF007]",
        "NCC_EBVF030: split",
        "NCC_EXTP004",
        "[XTP002] Number of instructions (9) is over the threshold (5)",
    ):
        assert type(_told(RuntimeError(text))) is GraphTooLarge, text
    told = _told(RuntimeError("NCC_EVRF004: complex64"))
    assert type(told) is BackendError and "NCC_EVRF004" in str(told)
    with pytest.raises(RuntimeError, match="NCC_EVRF004"):
        torch_neuronx.trace(lambda x: x * 1j, (torch.zeros(2),))
    with pytest.raises(RuntimeError, match="Double"):
        torch_neuronx.trace(lambda x: x.double() * 2, (torch.zeros(2),))


def test_the_stand_in_has_the_documented_signatures():
    """Facts of the vendor's reference, written as data."""
    import inspect

    import torch_neuronx

    documented = {
        "trace": "(func, example_inputs, *_, input_output_aliases={}, compiler_workdir=None, compiler_args=None, "
        "partitioner_config=None, inline_weights_to_neff=True, cpu_backend=False)",
        "replace_weights": "(neuron_model, weights)",
        "move_trace_to_device": "(trace, device_id)",
        "neuron_cores_context": "(start_nc=-1, nc_count=-1)",
        "DataParallel": "(model, device_ids=None, dim=0, set_dynamic_batching=True)",
    }
    for name, signature in documented.items():
        assert str(inspect.signature(getattr(torch_neuronx, name))) == signature
    traced = torch_neuronx.trace(torch.nn.Linear(2, 2), torch.zeros(3, 2), inline_weights_to_neff=False)
    assert isinstance(traced, torch.jit.ScriptModule)
    with pytest.raises(Exception, match="another shape"):
        traced(torch.zeros(4, 2))
    with pytest.raises(Exception, match="another type"):
        traced(torch.zeros(3, 2, dtype=torch.bfloat16))
    with pytest.warns(UserWarning, match="ignored"):
        torch_neuronx.trace(torch.nn.Linear(2, 2), torch.zeros(3, 2), {"compiler_args": []})
    with pytest.raises(RuntimeError, match="control flow"):
        torch_neuronx.trace(lambda x: x if x.sum() > 0 else -x, (torch.zeros(2),))


# -- solves -----------------------------------------------------------------------------------------------------------


def true_residual(definition, u, x, b):
    r = b - reference("M", definition, u, x[None])[0]
    return float(np.linalg.norm(r) / np.linalg.norm(b))


@pytest.fixture
def weak_field(test_data):
    """Somebody else's weak field on 4^3 x 8."""
    return lqcd.GaugeField.read(test_data / "pyquda" / "weak_field.lime")


def mixed(u, maxiter=3000, method=lqcd.BiCGStab, **changed):
    definition = lqcd.WilsonDirac(**{"mass": 0.1, **changed})
    m, b = definition.bind(u, backend="numpy", precision="double"), gaussian(*u.geometry.spinor_shape, seed=8)
    inner = method(tol=1e-12, maxiter=maxiter)
    solver = lqcd.MixedPrecision(inner=inner, precision="bf16", backend=("neuron-traced", {"formulation": "fused"}))
    x, info = lqcd.solve(m, b, solver, raise_on_failure=False)
    return info, true_residual(definition, u.array, np.asarray(x), b)


def test_a_bf16_device_operator_inside_a_double_solve_reaches_1e_12_on_a_free_field():
    """Mass 0.1, M itself (not M^dagger M); the residual is recomputed here from the reference operator."""
    info, true = mixed(lqcd.GaugeField.cold(LatticeGeometry(T=8, Z=4, Y=4, X=4)))
    assert info.converged and true <= 1.01e-12


def test_a_bf16_device_operator_inside_a_double_solve_reaches_1e_12_on_a_weak_field(weak_field):
    info, true = mixed(weak_field)
    assert info.converged and true <= 1.01e-12


def test_a_solve_that_cannot_reach_its_tolerance_says_so():
    """bf16 alone: a double tolerance is refused before the first iteration; what it does reach is told as it is."""
    g = LatticeGeometry(T=4, Z=4, Y=2, X=2)
    u, b, definition = lqcd.GaugeField.random(g, seed=1), gaussian(*g.spinor_shape, seed=8), lqcd.WilsonDirac(mass=0.1)
    m = definition.bind(u, backend=("neuron-traced", {"formulation": "fused"}), precision="bf16")
    with pytest.raises(lqcd.errors.ToleranceError):
        lqcd.solve(m, b, lqcd.BiCGStab(tol=1e-12))
    info, true = mixed(lqcd.GaugeField.cold(LatticeGeometry(T=8, Z=4, Y=4, X=4)), maxiter=4)
    assert not info.converged and true > 1e-9
    assert info.final_residual == pytest.approx(true, rel=1e-6)


def test_where_16_bits_do_not_suffice_the_truth_is_told_and_m_reaches_further_than_its_normal_form():
    """The periodic free field: the condition number of M is about 8 / mass. 16 bits err by 2e-3 of the largest eigenvalue."""
    u, periodic = lqcd.GaugeField.cold(LatticeGeometry(T=4, Z=2, Y=2, X=2)), (1, 1, 1, 1)
    info, true = mixed(u, 400, mass=1e-3, boundary=periodic)
    assert info.converged and true <= 1.01e-12
    for mass, method in ((1e-3, lqcd.ConjugateGradient), (1e-5, lqcd.ConjugateGradient), (1e-5, lqcd.BiCGStab)):
        info, true = mixed(u, 400, method, mass=mass, boundary=periodic)
        assert not info.converged and true > 1e-3 and info.final_residual == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize("method", ("cg", "bicgstab", "mixed"))
def test_what_a_solve_moves_between_host_and_device(method, monkeypatch):
    """Vectors cross at the ends of a solve, never in its loop: there go site sums of 1/24 vector, and coefficients."""
    from lqcd_backends.neuron.traced.adapters import TraceAdapter

    moved = {"to_device": [], "to_host": []}
    for name, shapes in moved.items():
        real = getattr(TraceAdapter, name)
        monkeypatch.setattr(TraceAdapter, name, lambda self, t, real=real, s=shapes: s.append(t.shape) or real(self, t))
    u, b = lqcd.GaugeField.random(G, seed=2), gaussian(2, *G.spinor_shape, seed=3)
    b = b if method == "mixed" else b.astype(np.complex64)
    device = ("neuron-traced", {"formulation": "fused"})
    vectors, sums = [], []
    for maxiter in (2, 5):
        if method == "mixed":
            m = lqcd.WilsonDirac(mass=0.3).bind(u, backend="numpy", precision="double", n_rhs=2)
            inner = lqcd.BiCGStab(tol=1e-12, maxiter=maxiter)
            solver = lqcd.MixedPrecision(inner=inner, precision="single", backend=device)
        else:
            m = lqcd.WilsonDirac(mass=0.3).bind(u, backend=device, precision="single", n_rhs=2)
            solver = {"cg": lqcd.ConjugateGradient, "bicgstab": lqcd.BiCGStab}[method](tol=1e-6, maxiter=maxiter)
        for shapes in moved.values():
            shapes.clear()
        _, info = lqcd.solve(m, b, solver, raise_on_failure=False)
        assert info.iterations == maxiter
        full, half = (2, 2, 4, 3, *G.shape), (2, 2, 4, 3, *G.parity_shape(EVEN)[:4])
        ways = {name: [s.numel() for s in shapes if s in (full, half)] for name, shapes in moved.items()}
        vectors.append({name: sum(sizes) / (2 * 24 * G.volume) for name, sizes in ways.items()})
        sums.append(sum(s.numel() for s in moved["to_host"] if s not in (full, half)))
        assert all(s.numel() <= 4 for s in moved["to_device"] if s not in (full, half))
    for name, at_most in (("to_device", 6), ("to_host", 3)):
        few, many = (v[name] for v in vectors)
        assert 0 < few <= at_most
        assert many - few <= 1, "three more iterations, half a vector each, would be 1.5"  # a restart moves one
    assert 0 < sums[1] - sums[0] <= 3 * 10 * 2 * G.volume  # three iterations of at most ten sums


# -- the ancestor's interface ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gauge", ("resident", "baked", "argument"))
def test_the_explicit_compiler_gives_bound_operators(gauge):
    from lqcd_backends.neuron import NeuronCompiler, get_device, is_neuron_available

    assert is_neuron_available() and get_device().num_cores == 2
    compiler = NeuronCompiler(dtype="float32", gauge=gauge, formulation="fused")
    u, definition = lqcd.GaugeField.random(G, seed=2), lqcd.CloverWilsonDirac(mass=0.5, csw=1.0)
    psi = gaussian(3, *G.spinor_shape).astype(np.complex64)
    want = reference("M", definition, u.array, psi)
    for given in (u, u.array):
        results = {
            "plain": compiler.compile_dslash(definition, lattice_shape=G.shape, nc=3, gauge_field=given),
            "batched": compiler.compile_dslash_batched(definition, gauge_field=given, batch_size=2),
            "multicore": compiler.compile_dslash_multicore(definition, gauge_field=given, per_core_batch_size=1),
            "sharded": compiler.compile_dslash_sharded(definition, gauge_field=given, num_shards=2),
        }
        assert [m.n_rhs for m in results.values()] == [1, 2, 2, 1]
        for name, m in results.items():
            assert distance(m(psi), want) < as_precision("single").tolerance, name
            x, info = lqcd.solve(m, psi[:2], lqcd.BiCGStab(tol=1e-4))
            assert info.converged and distance(reference("M", definition, u.array, x), psi[:2]) < 2e-4, name
    with pytest.raises(FieldShapeError, match="lattice_shape"):
        compiler.compile_dslash(definition, lattice_shape=(8, 2, 2, 4), gauge_field=u)
    with pytest.raises(FieldShapeError, match="lattice_shape=4"):
        compiler.compile_dslash(definition, lattice_shape=4, gauge_field=u)
    with pytest.raises(ParameterError, match="gauge_field"):
        compiler.compile_dslash(definition)
    for name in ("num_cores", "per_core_batch_size"):
        with pytest.raises(ParameterError, match=f"{name} must be a whole number of at least 1, got 0"):
            compiler.compile_dslash_multicore(definition, gauge_field=u, **{name: 0})


def test_the_options_of_neuron_compile_param_are_understood():
    from lqcd_core.params import NeuronCompileParam

    options = NeuronCompileParam(dtype="bfloat16", inline_weights=True).backend_options()
    backend = backend_with(**options)
    assert backend.gauge == "baked"
    with pytest.raises(ParameterError, match="set up with dtype='bf16'"):
        backend.space(G, as_precision("single"), 1)
    with pytest.raises(ParameterError, match="contradicts"):
        backend_with(inline_weights=True, gauge="argument")


def test_explain_prints_the_model_and_one_right_hand_side_goes_by_half_spinors():
    u = lqcd.GaugeField.cold(LatticeGeometry(T=16, Z=16, Y=16, X=16))
    text = str(lqcd.explain(lqcd.WilsonDirac(mass=0.1), u, precision="bf16", n_rhs=1, backend="neuron-traced"))
    assert "formulation 'half'" in text and "us" in text and "without launch cost" in text
    text = str(lqcd.explain(lqcd.WilsonDirac(mass=0.1), u, precision="bf16", n_rhs=64, backend="neuron-traced"))
    assert "formulation 'fused'" in text


def test_two_threads_share_one_operator():
    u, psi = lqcd.GaugeField.random(G, seed=2), gaussian(1, *G.spinor_shape).astype(np.complex64)
    m = lqcd.WilsonDirac(mass=0.1).bind(u, backend=("neuron-traced", {"formulation": "fused"}), precision="single")
    out = []
    workers = [threading.Thread(target=lambda: out.append(m(psi))) for _ in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(out) == 3 and all((v == out[0]).all() for v in out)


# -- the native package -----------------------------------------------------------------------------------------------


def test_the_native_adapter_compiles_whole_static_graphs():
    """torch.compile(backend="neuron", fullgraph=True); tensors stay on the CPU here, the stand-in has no device."""
    from lqcd_backends.neuron import device
    from lqcd_backends.neuron.traced.adapters import CompileOptions, NativeAdapter

    with standin("trn2.3xlarge", "native"):
        import torch_neuronx

        adapter = NativeAdapter(device.get_device(), place="cpu")
        links, psi = links_on(G), gaussian(2, *G.spinor_shape)
        program = dirac_program("M", DiracTerms(links=links, diagonal=SiteDiagonal(scalar=4.1)), "fused", "float32")
        spec, graph = graph_of(program, formulation="fused")
        weights = {k: make() for k, make in program.weights.items()}
        before = len(torch_neuronx.COMPILED)
        loaded = adapter.load(spec, weights, "", CompileOptions())
        x = planes(psi)
        assert torch.equal(loaded.call(x), graph(x)) and len(torch_neuronx.COMPILED) == before + 1
        baked = adapter.load(spec, weights, "digest", CompileOptions())
        assert torch.equal(baked.call(x), graph(x)) and torch_neuronx.COMPILED[-1]["inputs"] == 1
        with pytest.raises(BackendUnavailable, match="one logical core"):
            adapter.load(spec, weights, "", CompileOptions(num_cores=2))


def test_a_package_that_is_neither_is_refused_with_the_one_to_install():
    from lqcd_backends.neuron import device
    from lqcd_backends.neuron.traced.adapters import find_adapter

    for instance, words in (("trn2.3xlarge", "native torch-neuronx"), ("inf2.xlarge", "XLA package")):
        with standin(instance, "native"), pytest.raises(BackendUnavailable, match=words):
            find_adapter(device.get_device())
        with standin(instance, "nothing_here"), pytest.raises(BackendUnavailable, match="cannot be imported"):
            find_adapter(device.get_device())

"""Kernels A and B against the numpy reference in double, on the stand-in for nki: unequal extents, phases, batches, storage."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lqcd_backends.neuron.nki import kernel_specs as ks
from nki_lattice import error, fields, kernel, launch, layout_of, reference, term

from lqcd_core.errors import FieldShapeError, GeometryError, ParameterError
from lqcd_core.precision import PRECISIONS

SINGLE = PRECISIONS["single"].tolerance
# Section 8 of the engineering note: relative error of one hop, (links, spinor) storage, float32 accumulation.
NOTE_STORAGE_ERRORS = {
    ("bfloat16", "bfloat16"): 2.3e-3,
    ("float16", "bfloat16"): 1.7e-3,
    ("bfloat16", "float32"): 1.6e-3,
    ("float16", "float32"): 2.0e-4,
    ("float16", "float16"): 2.9e-4,
}
FORMULATIONS = ("vector", "tensor")
TWISTED = (1j, -1, np.exp(0.3j), 1)


def run_hop(links, psi, formulation, dagger=False, generation=3, lnc=1, **storage):
    lay = layout_of(links, formulation, len(psi), generation, **storage)
    values = {"psi": lay.pack(psi), "links": lay.pack_links(links), "scalars": lay.pack_scalars()}
    return lay.unpack(launch(ks.hop(lay, dagger), values, generation, lnc).outputs[0])


def run_dirac(links, psi, diagonal, formulation, dagger=False, generation=3, lnc=1, **storage):
    lay = layout_of(links, formulation, len(psi), generation, **storage)
    used = diagonal.dagger() if dagger else diagonal
    spec = ks.dirac(lay, lay.diagonal_kind(used), dagger)
    values = {"psi": lay.pack(psi), "links": lay.pack_links(links), "diagonal": lay.pack_diagonal(used)}
    values["scalars"] = lay.pack_scalars(used.scalar, used.twist)
    return lay.unpack(launch(spec, values, generation, lnc).outputs[0])


def check_dirac(formulation, shape, n_rhs, kind, dagger, generation, lnc=1):
    links, psi = fields(shape, n_rhs, TWISTED, (1.0, 0.8, 1.1, 1.0))
    diagonal = term(kind, shape)
    h, a = reference(links, psi, diagonal, dagger)
    assert error(run_dirac(links, psi, diagonal, formulation, dagger, generation, lnc), a - h) < SINGLE


@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize(
    "shape,n_rhs,kind,dagger,generation",
    [
        ((4, 2, 6, 4), 1, "scalar", False, 2), ((4, 2, 6, 4), 2, "blocks", True, 3), ((6, 3, 2, 5), 8, "twist", False, 4),
        ((3, 5, 2, 1), 2, "twist", True, 2), ((2, 2, 3, 4), 12, "blocks", False, 2), ((2, 4, 4, 3), 13, "scalar", True, 3),
        ((2, 2, 4, 3), 64, "scalar", False, 3), ((8, 6, 2, 2), 1, "scalar", False, 3), ((2, 2, 6, 4), 64, "scalar", True, 2),
    ],
)  # fmt: skip
def test_dirac_equals_the_reference(formulation, shape, n_rhs, kind, dagger, generation):
    check_dirac(formulation, shape, n_rhs, kind, dagger, generation)


@pytest.mark.slow
@pytest.mark.parametrize("generation", (2, 3, 4))
@pytest.mark.parametrize("n_rhs", (1, 2, 8, 12, 13, 64))
@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_dirac_equals_the_reference_everywhere(formulation, n_rhs, generation):
    for shape in ((4, 2, 6, 4), (6, 8, 3, 2)):
        for kind, dagger in itertools.product(("scalar", "twist", "blocks"), (False, True)):
            check_dirac(formulation, shape, n_rhs, kind, dagger, generation)


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_every_boundary_sign(formulation):
    for phases in itertools.product((1, -1), repeat=4):
        links, psi = fields((2, 3, 2, 2), 1, phases)
        assert error(run_hop(links, psi, formulation), reference(links, psi)[0]) < SINGLE, phases


@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize("storage", NOTE_STORAGE_ERRORS, ids="-".join)
def test_storage_errors_are_those_of_the_note(formulation, storage):
    link_dtype, dtype = storage
    if formulation == "tensor" and dtype == "float32":
        with pytest.raises(ParameterError, match="pairs float32 with float32 only"):
            layout_of(fields((4, 2, 2, 4))[0], formulation, 2, dtype=dtype, link_dtype=link_dtype)
        return
    links, psi = fields((4, 4, 2, 4), 2)
    got = error(run_hop(links, psi, formulation, dtype=dtype, link_dtype=link_dtype), reference(links, psi)[0])
    assert 0.3 * NOTE_STORAGE_ERRORS[storage] < got < 1.5 * NOTE_STORAGE_ERRORS[storage]


@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize("precision", ("half", "bf16"))
def test_sixteen_bits_keep_the_mass_in_single(formulation, precision):
    p = PRECISIONS[precision]
    links, psi = fields((4, 2, 2, 4), 2)
    for kind in ("scalar", "twist", "blocks"):
        diagonal = term(kind, (4, 2, 2, 4))
        h, a = reference(links, psi, diagonal)
        got = run_dirac(links, psi, diagonal, formulation, dtype=p.spinor_storage, link_dtype=p.link_storage)
        assert error(got, a - h) < p.tolerance


@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize(
    "shape,generation",
    (
        ((4, 2, 2, 4), 2),
        ((2, 6, 4, 2), 3),
        pytest.param((4, 2, 6, 4), 3, marks=pytest.mark.slow),
        pytest.param((8, 4, 2, 6), 2, marks=pytest.mark.slow),
    ),
)
def test_parity_hops_and_closes(formulation, shape, generation):
    links, psi = fields(shape, 2, TWISTED)
    g = links.geometry
    for target, dagger in ((0, False), (1, True)):
        here, there = (g.split_parity(psi, q, lead=1) for q in (target, 1 - target))
        only_there = g.join_parity(*((there, None) if target == 1 else (None, there)), lead=1)
        h = g.split_parity(reference(links, only_there, dagger=dagger)[0], target, lead=1)
        lay = layout_of(links, formulation, 2, generation, parity=target)
        packed = {"psi": lay.pack(there), "chi": lay.pack(here), "links": lay.pack_links(links)}
        got = launch(ks.hop(lay, dagger), {**packed, "scalars": lay.pack_scalars()}, generation).outputs[0]
        assert error(lay.unpack(got), h) < SINGLE
        for kind in ("scalar", "twist", "blocks"):
            full = term(kind, shape)
            a = g.split_parity(reference(links, psi, full, dagger)[1], target, lead=1)
            used = (full.dagger() if dagger else full).on_parity(g, target)
            values = {
                **packed,
                "diagonal": lay.pack_diagonal(used),
                "scalars": lay.pack_scalars(used.scalar, used.twist),
            }
            got = launch(ks.dirac(lay, lay.diagonal_kind(used), dagger), values, generation).outputs[0]
            assert error(lay.unpack(got), a - h) < SINGLE, kind


@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize("kind", ("scalar", "twist", "blocks"))
def test_site_term_alone_and_its_inverse(formulation, kind):
    shape = (4, 2, 3, 2)
    links, psi = fields(shape, 3)
    for diagonal in (term(kind, shape), term(kind, shape).inverse(), term(kind, shape, hermitian=False)):
        lay = layout_of(links, formulation, 3)
        values = {
            "chi": lay.pack(psi),
            "diagonal": lay.pack_diagonal(diagonal),
            "scalars": lay.pack_scalars(diagonal.scalar, diagonal.twist),
        }
        got = launch(ks.site_term(lay, lay.diagonal_kind(diagonal)), values).outputs[0]
        assert error(lay.unpack(got), reference(links, psi, diagonal)[1]) < SINGLE


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_normal_operator_in_one_launch(formulation):
    shape = (4, 2, 2, 4)
    links, psi = fields(shape, 2, TWISTED)
    for kind in ("scalar", "twist") if formulation == "vector" else ("scalar",):
        diagonal = term(kind, shape)
        h, a = reference(links, psi, diagonal)
        h, a = reference(links, a - h, diagonal, dagger=True)
        lay = layout_of(links, formulation, 2)
        values = {
            "psi": lay.pack(psi),
            "links": lay.pack_links(links),
            "scalars": lay.pack_scalars(diagonal.scalar, diagonal.twist),
        }
        assert error(lay.unpack(launch(ks.normal(lay, kind), values).outputs[0]), a - h) < SINGLE
    with pytest.raises(ParameterError, match="compose it"):
        ks.normal(lay, "blocks")


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_two_cores_of_a_logical_core_share_the_work(formulation):
    links, psi = fields((8, 2, 2, 4), 2)
    lay = layout_of(links, formulation, 2)
    values = {"psi": lay.pack(psi), "links": lay.pack_links(links), "scalars": lay.pack_scalars()}
    one, two = (launch(ks.hop(lay), values, lnc=n) for n in (1, 2))
    assert np.array_equal(one.outputs[0], two.outputs[0])
    if formulation == "tensor":
        assert two.report.cycles["tensor"] == one.report.cycles["tensor"] / 2


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_two_cores_wait_for_each_other_inside_the_normal_operator(formulation):
    links, psi = fields((4, 2, 2, 4), 2)
    lay = layout_of(links, formulation, 2)
    values = {"psi": lay.pack(psi), "links": lay.pack_links(links), "scalars": lay.pack_scalars(4.1)}
    values["scale"] = np.ones((128, 2, 4), np.float32)
    one, two = (launch(ks.normal(lay, inner=True), values, lnc=n).outputs for n in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_batch_equals_one_by_one_and_pack_is_undone(formulation):
    links, psi = fields((4, 2, 2, 3), 3)
    together = run_hop(links, psi, formulation)
    alone = np.concatenate([run_hop(links, psi[k : k + 1], formulation) for k in range(3)])
    assert error(together, alone) < SINGLE
    for parity in (None, 0):
        links, psi = fields((4, 2, 6, 4), 3)
        lay = layout_of(links, formulation, 3, parity=parity)
        part = psi if parity is None else links.geometry.split_parity(psi, parity, lead=1)
        assert np.array_equal(lay.unpack(lay.pack(part)), part.astype(np.complex64))


def test_what_is_refused_says_so():
    links, psi = fields((4, 2, 2, 3), 2)
    lay = layout_of(links, "vector", 2)
    with pytest.raises(FieldShapeError, match="this layout holds"):
        lay.pack(psi[:1])
    with pytest.raises(FieldShapeError, match="on_parity"):
        layout_of(fields((4, 2, 2, 4))[0], "vector", 2, parity=0).pack_diagonal(term("blocks", (4, 2, 2, 4)))
    with pytest.raises(FieldShapeError, match="links have shape"):
        lay.pack_links(fields((4, 2, 2, 4))[0])
    with pytest.raises(ParameterError, match="no storage type 'float64'"):
        layout_of(links, "vector", 2, dtype="float64")
    with pytest.raises(GeometryError, match="even"):
        layout_of(links, "vector", 2, parity=0)
    with pytest.raises(GeometryError, match="1 to 512"):
        layout_of(links, "tensor", 513)


def test_kernels_name_the_inputs_of_their_specifications():
    import inspect

    links, _ = fields((4, 2, 2, 4), 1)
    for formulation in FORMULATIONS:
        for parity in (None, 1):
            lay = layout_of(links, formulation, 1, parity=parity)
            specs = [ks.hop(lay), *(f(lay, k) for f in (ks.dirac, ks.site_term) for k in ("scalar", "twist", "blocks"))]
            for spec in specs:
                names = list(inspect.signature(kernel(spec).func).parameters)
                assert names[: len(spec.inputs)] == [a.name for a in spec.inputs]
                assert set(names[len(spec.inputs) :]) == set(spec.constants)

"""Sixteen-bit storage, two-row links and slabs: what the laws do not ask."""

import attrs
import numpy as np
import pytest
from lqcd_native import _native
from lqcd_native.backend import NativeBackend
from lqcd_native.plugin import INFO

from lqcd_core import WilsonDirac
from lqcd_core.backend import DiracTerms, Links, SiteDiagonal, SupportsFusedHalo, SupportsHalo
from lqcd_core.errors import NonUnitaryLinksError, ParameterError
from lqcd_core.fields import from_storage, to_storage
from lqcd_core.geometry import EVEN, FULL, ODD, LatticeGeometry
from lqcd_core.precision import PRECISIONS, as_precision
from lqcd_core.registry import REGISTRY

RUNS = _native.instruction_sets()
SPLIT = ("half", "bf16", "fixed16")
PHASES = (-1, np.exp(0.3j), 1j, np.exp(-1.1j))
COEFFICIENTS = (1.0, 0.4, 0.4, -0.4)


def geometry_of(shape):
    return LatticeGeometry.from_shape(shape)


def links_of(shape, phases=PHASES, seed=1, coefficients=COEFFICIENTS):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(*shape, 4, 3, 3)) + 1j * rng.normal(size=(*shape, 4, 3, 3))
    q = np.linalg.qr(a)[0]
    u = q / np.linalg.det(q)[..., None, None] ** (1 / 3)
    return Links(geometry_of(shape), u, phases, coefficients, f"{shape}{seed}")


def spinors(geometry, n, seed=2, parity=FULL):
    rng = np.random.default_rng(seed)
    shape = (n, *geometry.parity_shape(parity))
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def reference_hop(links, psi):
    numpy = REGISTRY.load("numpy").instance
    space = numpy.space(links.geometry, as_precision("double"), len(psi))
    return space.unpack(numpy.hopping(links, space)(space.pack(psi)))


def hop(backend, links, psi, precision):
    space = backend.space(links.geometry, as_precision(precision), len(psi))
    return space.unpack(backend.hopping(links, space)(space.pack(psi)))


def difference(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def edge_values(kind):
    """Numbers where rounding is decided: ties both ways, subnormals, the largest, infinity, NaN, signed zeros."""
    info = {"half": (2.0**-24, 65504.0, 2.0**-10), "bf16": (2.0**-126, 3.38e38, 2.0**-7)}[kind]
    tiny, huge, step = info
    steps = np.arange(1, 9) * step / 2  # odd multiples are ties
    rng = np.random.default_rng(3)
    random = rng.normal(size=400) * 10.0 ** rng.uniform(-4, 3, size=400)
    values = [1 + steps, -(2 + 2 * steps), tiny * (np.arange(8) + 0.5), tiny * np.arange(8), random, random * tiny]
    values += [[0.0, -0.0, huge, -huge, 65519.9, 65520.0, 1e30, np.inf, -np.inf, np.nan]]
    return np.concatenate(values).astype(np.float32)


@pytest.mark.parametrize("isa", RUNS)
@pytest.mark.parametrize("precision", ["half", "bf16"])
def test_rounding_is_to_nearest_even_bit_by_bit(precision, isa):
    values = edge_values(precision)
    g, p = geometry_of((2, 2, 4, 4)), as_precision(precision)
    flat = np.zeros(g.volume * 12 * 2, np.float32)
    flat[: len(values)] = values
    psi = flat.view(np.complex64).reshape(1, *g.spinor_shape)
    space = NativeBackend(threads=1, isa=isa).space(g, p)
    with np.errstate(over="ignore"):
        want = from_storage(to_storage(psi, p), p)
    got = space.unpack(space.pack(psi))
    assert np.array_equal(got.view(np.float32), want.view(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(got.view(np.float32)), np.signbit(want.view(np.float32)))


@pytest.mark.parametrize("isa", RUNS)
def test_fixed_point_has_one_scale_a_site_and_keeps_what_it_gave(isa):
    g, p = geometry_of((3, 2, 4, 6)), as_precision("fixed16")
    psi = spinors(g, 3) * 10.0 ** np.random.default_rng(4).uniform(-20, 20, size=(3, *g.shape, 1, 1))
    space = NativeBackend(threads=1, isa=isa).space(g, p, 3)
    got = space.unpack(space.pack(psi))
    parts = [np.ascontiguousarray(a.astype(np.complex64)).view(np.float32).reshape(3, g.volume, 24) for a in (psi, got)]
    scale = np.abs(parts[0]).max(-1, keepdims=True)
    assert (np.abs(parts[1] - parts[0]) <= scale * (0.5 / 32767 + 1e-6)).all()
    assert np.array_equal(np.abs(parts[1]).max(-1, keepdims=True), scale)
    q = parts[1].astype(float) / scale * 32767
    assert np.abs(q - np.rint(q)).max() < 0.01
    assert np.array_equal(space.unpack(space.pack(got)), got)
    # a tie goes to the even neighbour
    tie = np.zeros((1, *g.spinor_shape), np.complex64)
    tie[..., 0, 0] = 32767
    tie[..., 1, 0] = 2.5 + 3.5j
    alone = space.unpack(space.pack(tie))
    assert np.array_equal(alone[..., 1, 0], np.full(alone.shape[:-2], 2 + 4j))


def test_fixed_point_says_what_it_cannot_hold():
    g = geometry_of((2, 2, 2, 2))
    backend, precision = NativeBackend(threads=1), as_precision("fixed16")
    space = backend.space(g, precision)
    psi = spinors(g, 1)
    psi[0, 0, 0, 0, 0, 2, 1] = np.inf
    got = space.unpack(space.pack(psi))
    bad = np.isnan(got).all((-1, -2))
    assert bad[0, 0, 0, 0, 0] and bad.sum() == 1
    links = links_of((2, 2, 2, 2))
    links.array[0, 0, 0, 0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="finite"):
        backend.hopping(links, space)


def test_fixed_point_links_that_are_not_unitary_do_not_wrap():
    links = links_of((2, 4, 2, 4))
    wide = attrs.evolve(links, array=links.array * 3.7, digest="wide")
    psi = spinors(links.geometry, 2)
    assert difference(hop(NativeBackend(threads=1), wide, psi, "fixed16"), reference_hop(wide, psi)) <= 2e-4


@pytest.mark.parametrize("precision", list(PRECISIONS))
@pytest.mark.parametrize("shape", [(4, 4, 4, 8), (2, 2, 2, 2), (3, 5, 7, 4), (4, 2, 6, 16), (1, 3, 1, 1)], ids=str)
def test_two_row_links_give_the_same_operator(shape, precision):
    p = as_precision(precision)
    for phases in ((-1, 1, 1, 1), PHASES, (0.5, 2j, 1, -1)):
        links = links_of(shape, phases)
        psi = spinors(links.geometry, 3)
        want = reference_hop(links, psi)
        for isa in RUNS:
            got = hop(NativeBackend(threads=2, isa=isa, links="two-row"), links, psi, precision)
            assert difference(got, want) <= p.tolerance
        if links.geometry.why_no_parity() is None:
            backend, g = NativeBackend(threads=1, links="two-row"), links.geometry
            for target in (EVEN, ODD):
                here, there = (backend.space(g, p, 3, k) for k in (target, 1 - target))
                x = there.pack(g.split_parity(psi, 1 - target, lead=1))
                got = here.unpack(backend.parity_hopping(links, here)(x))
                assert difference(got, g.split_parity(want, target, lead=1)) <= p.tolerance


def test_two_row_links_take_a_third_less_memory_and_refuse_what_is_not_su3():
    links = links_of((4, 4, 4, 4))
    space = NativeBackend(threads=1).space(links.geometry, as_precision("double"))
    full, two = (space.algebra.links(links.array, [-1.0, 1, 1, 1], [1.0] * 4, rows) for rows in (False, True))
    assert 3 * two.bytes == 2 * full.bytes and two.two_rows and two.deviation < 1e-14
    backend = NativeBackend(threads=1, links="two-row")
    u1 = links.array * np.exp(0.1j)  # unitary, but of another determinant
    nan = links.array.copy()
    nan[1, 1, 1, 1, 2, 2, 2] = np.nan
    for wrong in (u1, links.array * (1 + 1e-12), nan):
        with pytest.raises(NonUnitaryLinksError, match="links='full'"):
            backend.hopping(attrs.evolve(links, array=wrong, digest=""), space)
    with pytest.raises(ParameterError, match="two-row"):
        REGISTRY.load("native", {"links": "three-row"})


@pytest.mark.parametrize("rows", ["full", "two-row"])
@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_cutting_a_lattice_changes_no_bit(precision, rows):
    shape, p = (6, 4, 2, 4), as_precision(precision)
    links = links_of(shape)
    g = links.geometry
    for isa in RUNS:
        backend = NativeBackend(threads=2, isa=isa, links=rows, tile=3)
        assert isinstance(backend, SupportsHalo) and isinstance(backend, SupportsFusedHalo)
        for parity in (FULL, EVEN, ODD):
            full, source = (
                backend.space(g, p, 3, parity),
                backend.space(g, p, 3, FULL if parity is FULL else 1 - parity),
            )
            psi = spinors(g, 3, parity=source.parity)
            whole = backend.hopping(links, full) if parity is FULL else backend.parity_hopping(links, full)
            want = full.unpack(whole(source.pack(psi)))
            got = _in_slabs(backend, links, psi, p, parity, lambda b, cut, space: b.halo_hopping(cut, space))
            assert np.array_equal(got, want), (isa, parity)
        for kind in ("M", "Mdag"):
            terms = DiracTerms(links=links, diagonal=SiteDiagonal(scalar=4.1, twist=0.2))
            space, psi = backend.space(g, p, 3), spinors(g, 3)
            want = space.unpack(backend.fused(kind, terms, space)(space.pack(psi)))
            got = _in_slabs(
                backend, links, psi, p, FULL,
                lambda b, cut, s, k=kind, terms=terms: b.halo_fused(k, attrs.evolve(terms, links=cut), s),
            )  # fmt: skip
            assert np.array_equal(got, want), (isa, kind)


def _in_slabs(backend, links, psi, precision, parity, make):
    """The operator of slabs of 2 and 4 slices that exchange faces."""
    pieces, made = (slice(0, 2), slice(2, 6)), []
    for piece, phase in zip(pieces, (1, links.phases[0])):
        cut = links.array[piece]
        g = geometry_of(cut.shape[:4])
        record = Links(g, cut, (phase, *links.phases[1:]), links.coefficients, f"{links.digest}{piece}")
        target = backend.space(g, precision, len(psi), parity)
        source = target if parity is FULL else backend.space(g, precision, len(psi), 1 - parity)
        made.append((make(backend, record, target), source.pack(psi[:, piece]), target))
    faces = [h.faces(x) for h, x, _ in made]
    out = []
    for k, (h, x, target) in enumerate(made):
        out.append(target.unpack(h.exterior(x, h.interior(x), faces[1 - k][1].copy(), faces[1 - k][0].copy())))
    return np.concatenate(out, axis=1)


def test_faces_of_another_slab_are_refused():
    links = links_of((4, 4, 4, 4))
    backend = NativeBackend(threads=1)
    space = backend.space(links.geometry, as_precision("single"), 2)
    h, x = backend.halo_hopping(links, space), space.pack(spinors(links.geometry, 2))
    down, up = h.faces(x)
    for wrong in (down[:1], down[:, :1], down.astype(np.float64), down.view(np.int32), down[..., None]):
        with pytest.raises(ValueError, match="face does not fit"):
            h.exterior(x, h.interior(x), up, wrong)
    with pytest.raises(ValueError, match="does not belong"):
        h.exterior(x, x, up, down)
    with pytest.raises(ValueError, match="another space"):
        h.faces(backend.space(links.geometry, as_precision("half"), 2).zeros())
    with pytest.raises(TypeError):
        h.exterior(x, h.interior(x), None, down)


@pytest.mark.parametrize("precision", SPLIT)
def test_bits_do_not_depend_on_threads_or_schedule(precision):
    links = links_of((6, 8, 4, 8))
    g, p, seen = links.geometry, as_precision(precision), []
    psi, eta = spinors(g, 5), spinors(g, 5, seed=5)
    for threads, tile, block, stores in (
        (1, 64, 2, "plain"),
        (2, 5, 1, "stream"),
        (3, 64, 5, "stream"),
        (5, 1, 3, "plain"),
    ):
        backend = NativeBackend(threads=threads, tile=tile, block=block, stores=stores)
        space = backend.space(g, p, 5)
        x, y = space.pack(psi), space.pack(eta)
        h = backend.hopping(links, space)(x)
        y, norm2 = space.axpy_norm2(0.1 - 0.2j, h, y)
        assert np.array_equal(norm2, space.norm2(y))  # of what was stored, not of what was rounded away
        v, r, rr = space.cg_update(0.3, x, h, space.copy(y), y)
        seen.append([space.unpack(a) for a in (h, v, r)] + [norm2, rr, space.inner_slices(x, h)])
    for other in seen[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(seen[0], other))


@pytest.mark.parametrize("precision", SPLIT)
def test_columns_fill_lanes_of_narrow_lattices(precision):
    links = links_of((3, 3, 1, 5))
    backend, p = NativeBackend(threads=1), as_precision(precision)
    for n in (1, 3, 8, 13):
        psi = spinors(links.geometry, n)
        space = backend.space(links.geometry, p, n)
        assert space.layout.rhs_lanes > 1
        x = space.pack(psi)
        assert difference(space.unpack(backend.hopping(links, space)(x)), reference_hop(links, psi)) <= p.tolerance
        columns = list(range(0, n, 2))
        part = space.take(x, columns)
        assert np.array_equal(space.unpack(part), space.unpack(x)[columns])
        assert np.array_equal(space.unpack(space.put(space.zeros(), columns, part))[columns], space.unpack(part))


def test_conversions_between_all_storages_round_once():
    g = geometry_of((4, 6, 2, 4))
    backend = NativeBackend(threads=2)
    psi = spinors(g, 3)
    for a in PRECISIONS.values():
        there = backend.space(g, a, 3)
        x = there.pack(psi)
        for b in PRECISIONS.values():
            here = backend.space(g, b, 3)
            assert np.array_equal(here.unpack(here.convert_from(x, there)), here.unpack(here.pack(there.unpack(x))))


def test_a_field_of_sixteen_bits_takes_half_the_memory():
    g = geometry_of((4, 4, 4, 4))
    sizes = {
        name: NativeBackend(threads=1).space(g, p).layout.site_bytes
        for name, p in PRECISIONS.items()
        if name != "double"
    }
    assert sizes["half"] == sizes["bf16"] == sizes["single"] // 2 and sizes["fixed16"] == sizes["single"] * 13 // 24


@pytest.mark.parametrize("precision", SPLIT)
def test_mixed_solves_run_on_sixteen_bit_storage(precision):
    from lqcd_core import ConjugateGradient, MixedPrecision, solve

    links = links_of((4, 4, 4, 4), seed=3)
    b = spinors(links.geometry, 2)
    m = WilsonDirac(mass=0.6).bind(links.array, backend=("native", {"threads": 1}), precision="double", n_rhs=2)
    x, info = solve(m, b, MixedPrecision(inner=ConjugateGradient(tol=0.05), tol=1e-10, precision=precision))
    assert info.converged and difference(m(x), b) <= 2e-10


def test_the_record_lists_every_precision():
    assert INFO.precisions == set(PRECISIONS) and "halo" in INFO.features

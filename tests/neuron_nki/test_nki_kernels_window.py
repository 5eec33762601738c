"""Kernel B's window of spinors in SBUF: bytes counted beside the engineering note, the same result as without it, mistakes that show."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lqcd_backends.neuron.nki import cost, window
from lqcd_backends.neuron.nki import kernel_specs as ks
from lqcd_backends.neuron.nki.layout import SBUF_BYTES
from nki_lattice import count, error, fields, launch, layout_of, reference, term

from lqcd_core.backend import Links
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.precision import PRECISIONS

SINGLE = PRECISIONS["single"].tolerance
LIMIT = 5_000_000
"""Instructions of a compiled graph."""


def with_walk(lay, walk):
    """The layout with a walk of the test's choice."""
    lay.__dict__["walk"] = walk
    return lay


def note_bytes(lay):
    """DMA bytes per site of the note: blocks, with their zeros on gen2, and each spinor read once and written once."""
    width = lay.demand.width
    return 4608 * lay.demand.link_width * lay.slots[1] + 48 * width * lay.n_rhs


def cube(extent, n_rhs, dtype="bfloat16", generation=3):
    g = LatticeGeometry.from_shape((extent,) * 4 if isinstance(extent, int) else extent)
    return layout_of(Links(geometry=g, array=None), "tensor", n_rhs, generation, dtype)


def check_bytes(lay, kind="scalar"):
    report, volume = count(ks.dirac(lay, kind), lay.generation), lay.geometry.volume
    moved, note = report.dma_bytes / volume, note_bytes(lay)
    print(
        f"\ngen{lay.generation} {lay.dtype} B={lay.n_rhs} {lay.geometry.shape}: {moved:.0f} B per site counted, "
        f"{cost.predict(lay).dma_bytes:.0f} predicted, note {note} ({moved / note - 1:+.1%}); {report.static_instructions} instructions; "
        f"SBUF {report.sbuf_peak_bytes} B, planned {lay.walk.sbuf_bytes}; {lay.walk}"
    )
    assert abs(moved / note - 1) < 0.25
    assert abs(cost.predict(lay).dma_bytes / moved - 1) < 0.02
    assert report.sbuf_peak_bytes <= lay.walk.sbuf_bytes <= 0.95 * SBUF_BYTES[lay.generation]
    assert report.static_instructions < LIMIT // 10
    assert abs(cost.instructions(lay) / report.static_instructions - 1) < 0.1
    return report


@pytest.mark.parametrize("n_rhs", (8, 12, 64))
def test_bytes_are_those_of_the_note(n_rhs):
    lay = cube((4, 4, 4, 16), n_rhs)
    assert lay.walk.axis is not None
    check_bytes(lay)


@pytest.mark.slow
@pytest.mark.parametrize("generation", (2, 3, 4))
@pytest.mark.parametrize("n_rhs", (8, 12, 64))
def test_bytes_are_those_of_the_note_at_16_to_the_fourth(n_rhs, generation):
    report = check_bytes(cube(16, n_rhs, generation=generation))
    if n_rhs < 64:  # the bound of section 3 is that of the tensor engine again, on every generation but the second
        assert generation == 2 or report.bound()[0] == "tensor"


def test_at_16_to_the_fourth_64_right_hand_sides_need_blocks_of_y():
    """The whole slab does not fit, and what is left of it does: the numbers of the page."""
    d = cube(16, 64).demand
    assert d.row == 2048 and window.windowed(d, 1, 0, 16).sbuf_bytes > 2 * 262144 > SBUF_BYTES[4]
    for generation, constants, reads in ((2, (0, 2), 2.25), (3, (0, 4), 1.75), (4, (0, 4), 1.75)):
        lay = cube(16, 64, generation=generation)
        assert lay.walk.constants == constants and lay.walk.reads == reads
        assert cost.predict(lay).dma_bytes < 1.25 * note_bytes(lay)
    for generation, n_rhs, dtype in ((3, 8, "float32"), (4, 12, "float32"), (3, 12, "bfloat16"), (2, 12, "bfloat16")):
        lay = cube(16, n_rhs, dtype, generation)
        assert lay.walk.axis is not None and cost.predict(lay).dma_bytes < 1.05 * note_bytes(lay)


def test_where_no_window_fits_it_is_said_with_numbers():
    g = LatticeGeometry.from_shape((8, 8, 32, 32))
    said = str(cost.choose(g, 12, "bfloat16"))
    assert "a window of two slabs slides along t" in said and f"of {SBUF_BYTES[3]:,} B of a partition" in said
    wide = LatticeGeometry.from_shape((16, 16, 4, 128))
    said = str(cost.choose(wide, 16, "bfloat16", force="tensor"))
    assert "no window: the smallest needs 2" in said and "a spinor is loaded 7.00 times" in said
    lay = cube((4, 4, 4, 4), 8)
    assert window.choose(lay.demand, SBUF_BYTES[3], 0.0).constants == (-1, 4)
    assert window.choose(lay.demand, 1000).rows == 0


def test_two_cores_can_share_the_swept_axis_where_they_can_share_any():
    d = cube((6, 8, 4, 4), 8).demand
    assert d.inner[:2] == (3, 4) and {w.axis for w in window.candidates(d)} == {1}
    assert {w.axis for w in window.candidates(cube((6, 6, 4, 4), 8).demand)} == {0, 1}


def same(got, plain):
    """Equal to rounding: sums are in one order, but the host's product of a matrix and one column depends on strides."""
    wide = [np.asarray(v).astype(np.float32) for v in (got, plain)]
    return error(*wide) < (1e-6 if plain.dtype == np.float32 else 1e-3)


def by_walk(shape, n_rhs, generation=3, parity=None, kind="blocks", dagger=False, lnc=1, storage=("float32",), seen=None):  # fmt: skip
    """M by every walk must equal the plain one, and the plain one the reference."""
    links, psi = fields(shape, n_rhs, (-1, 1j, 1, -1), (1.0, 0.8, 1.1, 1.0))
    g, full = links.geometry, term(kind, shape)
    lay = layout_of(links, "tensor", n_rhs, generation, *storage, parity=parity)
    used = full.dagger() if dagger else full
    h, a = reference(links, psi, full, dagger)
    if parity is None:
        here = there = psi
    else:
        here, there = (g.split_parity(psi, q, lead=1) for q in (parity, 1 - parity))
        only = g.join_parity(*((there, None) if parity == 1 else (None, there)), lead=1)
        h, a = (g.split_parity(v, parity, lead=1) for v in (reference(links, only, dagger=dagger)[0], a))
        used = used.on_parity(g, parity)
    values = {
        "psi": lay.pack(there), "chi": lay.pack(here), "links": lay.pack_links(links), "diagonal": lay.pack_diagonal(used),
        "scalars": lay.pack_scalars(used.scalar, used.twist),
    }  # fmt: skip

    def run(walk):
        spec = ks.dirac(with_walk(lay, walk), lay.diagonal_kind(used), dagger)
        return launch(spec, values, generation, lnc).outputs[0]

    d = lay.demand
    rows = window.chunks(d, d.inner[2])[0]
    plain = run(window.plain(d, rows))
    assert error(lay.unpack(plain), a - h) < (SINGLE if storage == ("float32",) else 1e-2)
    for walk in window.candidates(d):
        assert same(run(walk), plain), walk
        if seen is not None:
            seen.add((walk.axis, walk.block < d.inner[2], walk.rows < walk.block))


@pytest.mark.parametrize(
    "shape,n_rhs,generation,parity,kind,dagger,lnc,storage",
    (
        ((6, 6, 4, 1), 1, 3, None, "blocks", True, 1, ("float32",)), ((4, 2, 6, 2), 1, 2, None, "scalar", False, 1, ("bfloat16",)),
        ((8, 4, 4, 2), 1, 4, 1, "twist", True, 1, ("float16",)), ((8, 4, 2, 1), 2, 3, None, "scalar", False, 2, ("float32",)),
        ((3, 5, 6, 1), 1, 3, None, "scalar", False, 1, ("bfloat16", "float16")), ((1, 2, 4, 3), 1, 3, None, "blocks", False, 1, ("float32",)),
    ),
)  # fmt: skip
def test_every_window_gives_what_no_window_gives(shape, n_rhs, generation, parity, kind, dagger, lnc, storage):
    by_walk(shape, n_rhs, generation, parity, kind, dagger, lnc, storage)


@pytest.mark.slow
@pytest.mark.parametrize("generation", (2, 3, 4))
@pytest.mark.parametrize("parity", (None, 0, 1))
@pytest.mark.parametrize("kind", ("scalar", "twist", "blocks"))
def test_every_window_gives_what_no_window_gives_everywhere(generation, parity, kind):
    seen = set()
    for shape in ((8, 16, 6, 2), (10, 4, 12, 2)):
        for dagger in (False, True):
            for lnc in (1,) if generation == 2 else (1, 2):
                for storage in (("float32",), ("bfloat16",), ("float16",)):
                    by_walk(shape, 2, generation, parity, kind, dagger, lnc, storage, seen)
    cut = (
        {(0, True, True), (1, True, True)} if generation > 2 else set()
    )  # what generation 2 holds, zeros too, leaves no such walk
    assert seen >= {(0, True, False), (0, False, True)} | cut


def test_normal_operator_by_a_window():
    links, psi = fields((8, 2, 4, 1), 1)
    lay = layout_of(links, "tensor", 1)
    values = {"psi": lay.pack(psi), "links": lay.pack_links(links), "scalars": lay.pack_scalars(4.1)}
    d = lay.demand
    outs = [
        launch(ks.normal(with_walk(lay, walk)), values, lnc=lnc).outputs[0]
        for walk in (window.plain(d, 1), window.windowed(d, 1, 0, 2), window.windowed(d, 2, 0, 4))
        for lnc in (1, 2)
    ]
    assert all(same(o, outs[0]) for o in outs[1:])

"""A kernel or a packing with one mistake must not pass: each mutation is a change of one line of source, run like the real one."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import nki_sim
from lqcd_backends.neuron.nki import kernel_specs as ks
from lqcd_backends.neuron.nki import layout as layout_module
from lqcd_backends.neuron.nki import window
from nki_lattice import error, fields, kernel, launch, reference, term

from lqcd_core.precision import PRECISIONS

SHAPE, PACKAGE = (6, 2, 4, 3), "lqcd_backends.neuron.nki"


def changed(module, *edits):
    """A module with its source edited; every edited text must be there, once."""
    path = Path(layout_module.__file__).with_name(f"{module}.py")
    source = path.read_text()
    for old, new in edits:
        assert source.count(old) == 1, f"{module}: {old!r} stands there {source.count(old)} times"
        source = source.replace(old, new)
    out = types.ModuleType(f"{PACKAGE}.{module}_changed")
    out.__package__, out.__file__ = PACKAGE, str(path)
    sys.modules[out.__name__] = out
    try:
        with nki_sim.installed():
            exec(compile(source, str(path), "exec"), out.__dict__)
    finally:
        del sys.modules[out.__name__]
    return out


def wrongness(formulation, layouts=layout_module, module=None, generation=3, shape=SHAPE, walk=None):
    """Error of M with blocks (and two right-hand sides) against the reference, the worse of M and M^dagger.

    ``walk(demand)``: how kernel B goes through the lattice; without a window if left out.
    """
    links, psi = fields(shape, 2, (-1, 1, 1j, 1))
    worst = 0.0
    for dagger in (False, True):
        diagonal = term("blocks", shape)
        used = diagonal.dagger() if dagger else diagonal
        lay = layouts.VectorLayout(
            geometry=links.geometry, n_rhs=2, formulation=formulation, generation=generation, window_share=0.0
        )
        if walk is not None:
            lay.__dict__["walk"] = walk(lay.demand)
        spec = ks.dirac(lay, "blocks", dagger)
        values = {
            "psi": lay.pack(psi),
            "links": lay.pack_links(links),
            "diagonal": lay.pack_diagonal(used),
            "scalars": lay.pack_scalars(used.scalar),
        }
        function = module.dirac_blocks if module else kernel(spec)
        h, a = reference(links, psi, diagonal, dagger)
        got = lay.unpack(launch(spec, values, generation, function=function).outputs[0])
        worst = np.maximum(worst, error(got, a - h))  # unlike max, this keeps a NaN
        if not worst < 1e-3:
            break  # seen already
    return worst


@pytest.mark.parametrize("formulation", ("vector", "tensor"))
def test_without_a_mistake_it_passes(formulation):
    assert wrongness(formulation) < PRECISIONS["single"].tolerance
    same = changed(f"{formulation}_kernel")
    assert wrongness(formulation, module=same) < PRECISIONS["single"].tolerance


KERNEL_MISTAKES = {
    "A, projector sign": (
        "vector_kernel",
        ("sign = -side if not dagger else side", "sign = side if not dagger else -side"),
    ),
    "A, one entry of gamma": (
        "vector_kernel",
        ("((1, -1, 0), (0, 1, 0)),\n    ((1, 0, 1)", "((1, 1, 0), (0, 1, 0)),\n    ((1, 0, 1)"),
    ),
    "A, shift in t": ("vector_kernel", ("SHIFTS[d][1] * fs[1 + SHIFTS[d][0]]", "fs[1 + SHIFTS[d][0]]")),
    "A, shift in y": ("vector_kernel", ("(side if mu == 2 else 0)", "(-side if mu == 2 else 0)")),
    "A, shift in x": ("vector_kernel", ("(1, 0) if side > 0 else (0, x - 1)", "(1, 1) if side > 0 else (0, x - 1)")),
    "A, halo row below": ("vector_kernel", ("move(axis, n - 1, 0)", "move(axis, 0, 0)")),
    "A, halo row above": ("vector_kernel", ("move(axis, 0, n + 1)", "move(axis, n - 1, n + 1)")),
    "A, imaginary part": ("vector_kernel", ("from_half = ri if k == 0 else 1 - ri", "from_half = ri")),
    "B, shift in x": ("tensor_kernel", ("r * x + (i + side) % x", "r * x + (i - side) % x")),
    "B, shift in t": ("tensor_kernel", ("(st.after, zi), (st.before, zi)", "(st.before, zi), (st.after, zi)")),
    "B, block placement": ("tensor_kernel", ("if leaves and nodes[mu] > 1 else j", "if False else j")),
    "B, halo row": ("tensor_kernel", ("y - 1 if sy.first else", "0 if sy.first else")),
    "B, halo slice": ("tensor_kernel", ("extent - 1 if self.first else", "0 if self.first else")),
    "B, a direction left out": ("tensor_kernel", ("range(8 if hops else 0)", "range(7 if hops else 0)")),
}


@pytest.mark.parametrize("name", KERNEL_MISTAKES)
def test_a_mistake_in_a_kernel_is_seen(name):
    module, edit = KERNEL_MISTAKES[name]
    try:
        wrong = wrongness(module.partition("_")[0], module=changed(module, edit))
    except nki_sim.NkiValidationError:
        return  # caught even earlier, by a rule of the machine
    assert not wrong < 1e-3


WINDOW_MISTAKES = {
    "the other slab": ("slabs[swept.odd], slabs[not swept.odd]", "slabs[not swept.odd], slabs[swept.odd]"),
    "the chunk ahead not kept": ("if sliding and not swept.last:", "if False:"),
    "the chunk ahead kept in the wrong place": ("known, register = middle\n", "known, register = above\n"),
    "the chunk ahead is this one": (
        "(st.after, zi) if axis == 0 else (ti, sz.after)",
        "(ti, zi) if axis == 0 else (ti, zi)",
    ),
    "the slab before the sweep": ("begin.before, sb)", "low, sb)"),
    "the first slab of the sweep": ("load_slab(slabs[begin.odd], low, sb)", "load_slab(slabs[begin.odd], 0 * low + 1, sb)"),
    "the rows of the block": ("(sb.index, high * row))", "(sb.index, rows * row))"),
    "the row above the block": ("y - 1 if sb.first else sb.index * high - 1", "y - 1 if sb.first else sb.index * high"),
    "the row below the block": ("0 if sb.last else sb.index * high + high", "0 if sb.last else sb.index * high"),
    "neighbours across": ("after if side > 0 else before", "before if side > 0 else after"),
    "neighbours in the next chunk": ("below if side > 0 else above", "above if side > 0 else below"),
    "the place in the slab": ("(along, rows * row)", "(along, row)"),
}  # fmt: skip
WINDOWED = (6, 6, 12, 1)
"""Lattice of the window's mistakes: inner (3, 3, 12, 1), two blocks of three chunks of two rows."""


@pytest.mark.parametrize("axis", (0, pytest.param(1, marks=pytest.mark.slow)))
@pytest.mark.parametrize("name", (None, *WINDOW_MISTAKES))
def test_a_mistake_in_the_window_is_seen(name, axis):
    edits = () if name is None else (WINDOW_MISTAKES[name],)
    walk = lambda d: window.windowed(d, 2, axis, 6)  # noqa: E731
    try:
        wrong = wrongness("tensor", module=changed("tensor_kernel", *edits), shape=WINDOWED, walk=walk)
    except nki_sim.NkiValidationError:
        assert name is not None
        return  # caught even earlier, by a rule of the machine
    assert wrong < PRECISIONS["single"].tolerance if name is None else not wrong < 1e-3


PACKING_MISTAKES = {
    "projector sign": ("spin = np.eye(4) - sign * GAMMA[mu]", "spin = np.eye(4) + sign * GAMMA[mu]"),
    "link conjugation": ("1, axis=mu).conj().swapaxes(-1, -2)", "1, axis=mu).swapaxes(-1, -2)"),
    "link shift": ("np.roll(u[..., mu, :, :], 1, axis=mu)", "np.roll(u[..., mu, :, :], 0, axis=mu)"),
    "phase or half": ("u = 0.5 * links.folded(np.complex128)", "u = 0.5 * np.asarray(links.array)"),
    "block placement": ("there[mu if mu is not None else 0] ^= 1", "pass"),
    "block at the wrong edge": ("(self.inner[mu] - 1 if sign > 0 else 0)", "(self.inner[mu] - 1 if sign < 0 else 0)"),
}


@pytest.mark.parametrize("formulation,generation", (("vector", 3), ("tensor", 3), ("tensor", 2)))
@pytest.mark.parametrize("name", PACKING_MISTAKES)
def test_a_mistake_in_the_packing_is_seen(name, formulation, generation):
    if formulation == "vector" and (name.startswith("block") or name == "projector sign"):
        pytest.skip("kernel A has its projectors in the kernel and no blocks")
    layouts = changed("layout", PACKING_MISTAKES[name])
    assert not wrongness(formulation, layouts=layouts, generation=generation) < 1e-3


def test_idle_rows_that_are_not_cleared_poison_the_product():
    """0 x NaN: the stand-in fills memory with NaN, as the documents warn."""
    uncleared = changed("tensor_kernel", ("        nisa.memset(tile, 0.0)\n        return tile", "        return tile"))
    assert not wrongness("tensor", module=uncleared) < 1e-3

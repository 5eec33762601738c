r"""Kernels A and B over (right-hand sides, storage, generation, boundary signs), against the numpy reference in double.

.. math:: \frac{|M_{\rm kernel}\psi - M\psi|}{|M\psi|} < \varepsilon(\text{storage})

A plain run takes cases in which every pair of values of two parameters meets; ``-m slow`` takes every combination of
right-hand sides, storage, generation and signs.
"""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lqcd_backends.neuron.nki import kernel_specs as ks
from nki_lattice import error, fields, launch, layout_of, reference, term

from lqcd_core.precision import PRECISIONS

SIGNS = tuple(itertools.product((1, -1), repeat=4))
PARAMETERS = {
    "n_rhs": (1, 2, 8, 12, 13, 64),
    "storage": (("float32", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16"), ("bfloat16", "float16")),
    "generation": (2, 3, 4), "t": (1, -1), "z": (1, -1), "y": (1, -1), "x": (1, -1),
    "what": ("hop", "dirac"), "kind": ("scalar", "twist", "blocks"), "dagger": (False, True), "parity": (None, 0, 1),
}  # fmt: skip
# One hop in 16-bit storage: 1.5 times the figures of section 8 of the engineering note, by (spinor, link) storage.
HOP = {
    ("float32", "float32"): PRECISIONS["single"].tolerance, ("float16", "float16"): 1.5 * 2.9e-4,
    ("bfloat16", "bfloat16"): 1.5 * 2.3e-3, ("bfloat16", "float16"): 1.5 * 1.74e-3,  # one field of 32 sites spreads by 2 %
}  # fmt: skip
STORED = {
    ("float32", "float32"): PRECISIONS["single"].tolerance, ("float16", "float16"): PRECISIONS["half"].tolerance,
    ("bfloat16", "bfloat16"): PRECISIONS["bf16"].tolerance, ("bfloat16", "float16"): PRECISIONS["bf16"].tolerance,
}  # fmt: skip
"""M, whose site term adds roundings of its own: the table of tolerances."""
FULL, EVEN = ((2, 1, 3, 4), (4, 2, 3, 2)), ((2, 4, 2, 2), (4, 2, 2, 2))
"""Small lattices of unequal extents, for the whole lattice and for one parity: every wrap in them crosses a boundary."""


def pairwise(parameters, seed=1):
    """Few cases such that any two values of any two parameters meet in one: each next case meets the most pairs still missing."""
    names = list(parameters)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(names)), 2)
        for i in range(len(parameters[names[a]]))
        for j in range(len(parameters[names[b]]))
    }
    rng, cases = np.random.default_rng(seed), []

    def met(case):
        return {(a, case[a], b, case[b]) for a, b in itertools.combinations(range(len(names)), 2)}

    while missing:
        best = ()
        for _ in range(60):  # every try has one of the missing pairs
            case = [int(rng.integers(len(parameters[name]))) for name in names]
            a, i, b, j = sorted(missing)[int(rng.integers(len(missing)))]
            case[a], case[b] = i, j
            gain = len(met(case) & missing)
            if not best or gain > best[0]:
                best = gain, case
        missing -= met(best[1])
        cases.append(tuple(parameters[name][k] for name, k in zip(names, best[1], strict=True)))
    return cases


def check(formulation, n_rhs, storage, generation, t, z, y, x, what, kind, dagger, parity):
    """H psi, or A psi - H psi, of one case."""
    dtype, link_dtype = storage
    shape = (FULL if parity is None else EVEN)[generation % 2]
    links, psi = fields(shape, n_rhs, (t, z, y, x), seed=n_rhs)
    lay = layout_of(links, formulation, n_rhs, generation, dtype=dtype, link_dtype=link_dtype, parity=parity)
    assert lay.why_not(kind) is None
    full, g = term(kind, shape), links.geometry
    used = full.dagger() if dagger else full
    values = {"links": lay.pack_links(links), "scalars": lay.pack_scalars()}
    if parity is None:
        h, a = reference(links, psi, full, dagger)
        values["psi"] = lay.pack(psi)
    else:
        here, there = (g.split_parity(psi, q, lead=1) for q in (parity, 1 - parity))
        only_there = g.join_parity(*((there, None) if parity == 1 else (None, there)), lead=1)
        h, a = reference(links, only_there, dagger=dagger)[0], reference(links, psi, full, dagger)[1]
        h, a = (g.split_parity(v, parity, lead=1) for v in (h, a))
        used = used.on_parity(g, parity)
        values |= {"psi": lay.pack(there), "chi": lay.pack(here)}
    if what == "hop":
        assert error(lay.unpack(launch(ks.hop(lay, dagger), values, generation).outputs[0]), h) < HOP[storage]
        return
    values |= {"diagonal": lay.pack_diagonal(used), "scalars": lay.pack_scalars(used.scalar, used.twist)}
    got = launch(ks.dirac(lay, lay.diagonal_kind(used), dagger), values, generation).outputs[0]
    assert error(lay.unpack(got), a - h) < STORED[storage]


def test_every_pair_of_values_meets():
    cases = pairwise(PARAMETERS)
    for (a, one), (b, other) in itertools.combinations(enumerate(PARAMETERS.values()), 2):
        assert {(c[a], c[b]) for c in cases} == set(itertools.product(one, other))
    assert len(cases) < 60 < np.prod([len(v) for v in PARAMETERS.values()])


@pytest.mark.parametrize("formulation", ("vector", "tensor"))
def test_pairs(formulation):
    for case in pairwise(PARAMETERS):
        try:
            check(formulation, *case)
        except Exception as failure:
            raise AssertionError(f"{formulation}: {dict(zip(PARAMETERS, case, strict=True))}: {failure}") from failure


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("generation", PARAMETERS["generation"])
@pytest.mark.parametrize("storage", PARAMETERS["storage"], ids="-".join)
@pytest.mark.parametrize("n_rhs", PARAMETERS["n_rhs"])
@pytest.mark.parametrize("formulation", ("vector", "tensor"))
def test_everything(formulation, n_rhs, storage, generation):
    # Diagonals, adjoints and parities go round: each group of signs has nearly all of them, all groups together each with each.
    rest = list(itertools.product(*(PARAMETERS[k] for k in ("kind", "dagger", "parity"))))
    first = 5 * n_rhs + 7 * generation + len("".join(storage))
    for k, signs in enumerate(SIGNS):
        for what in PARAMETERS["what"]:
            check(formulation, n_rhs, storage, generation, *signs, what, *rest[(first + k) % len(rest)])

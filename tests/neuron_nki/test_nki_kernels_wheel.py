"""The kernels under ``nki.simulate``: of the stand-in always, of the official package where its wheel is installed."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import nki_sim
from lqcd_backends.neuron.nki import blas_specs as bs
from lqcd_backends.neuron.nki import kernel_specs as ks
from lqcd_backends.neuron.nki.exact import scale_for
from nki_lattice import error, fields, launch_simulated, layout_of, reference, term

from lqcd_core.precision import PRECISIONS

both = pytest.mark.parametrize("formulation", ("vector", "tensor"))


@pytest.fixture(params=["stand-in", pytest.param("official", marks=pytest.mark.nki_wheel)])
def nki(request, monkeypatch):
    """The stand-in, or the official package under its own simulator."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    if request.param == "stand-in":
        if nki_sim.real_wheel():
            pytest.skip("the kernels are made with the official nki wheel here; the other tests have the stand-in")
        return nki_sim.nki
    if not nki_sim.real_wheel():
        pytest.skip("the official nki wheel is not installed here")
    import nki

    return nki


@both
@pytest.mark.parametrize("precision", ("single", "half"))
@pytest.mark.parametrize("kind,dagger", (("scalar", False), ("blocks", True)))
def test_dirac(nki, formulation, precision, kind, dagger):
    p, shape = PRECISIONS[precision], (4, 2, 3, 2)
    links, psi = fields(shape, 2)
    diagonal = term(kind, shape)
    h, a = reference(links, psi, diagonal, dagger)
    used = diagonal.dagger() if dagger else diagonal
    lay = layout_of(links, formulation, 2, dtype=p.spinor_storage, link_dtype=p.link_storage)
    values = {
        "psi": lay.pack(psi),
        "links": lay.pack_links(links),
        "diagonal": lay.pack_diagonal(used),
        "scalars": lay.pack_scalars(used.scalar, used.twist),
    }
    (got,) = launch_simulated(ks.dirac(lay, lay.diagonal_kind(used), dagger), values, nki)
    assert error(lay.unpack(got), a - h) < p.tolerance


@both
@pytest.mark.parametrize("parity", (0, 1))
def test_parity_hop(nki, formulation, parity):
    links, psi = fields((4, 2, 2, 4), 2)
    g = links.geometry
    there = g.split_parity(psi, 1 - parity, lead=1)
    only_there = g.join_parity(*((there, None) if parity == 1 else (None, there)), lead=1)
    h = g.split_parity(reference(links, only_there)[0], parity, lead=1)
    lay = layout_of(links, formulation, 2, parity=parity)
    values = {"psi": lay.pack(there), "links": lay.pack_links(links), "scalars": lay.pack_scalars()}
    (got,) = launch_simulated(ks.hop(lay), values, nki)
    assert error(lay.unpack(got), h) < PRECISIONS["single"].tolerance


@both
def test_updates_and_sums(nki, formulation):
    links, x = fields((4, 2, 2, 4), 2)
    _, y = fields((4, 2, 2, 4), 2, seed=9)
    lay, scale = layout_of(links, formulation, 2), scale_for(200.0)
    x, y = (lay.unpack(lay.pack(v)).astype(complex) for v in (x, y))
    given = {"x": lay.pack(x), "y": lay.pack(y), "scale": bs.pack_scale(lay, scale)}
    given["coefficients"] = bs.pack_coefficients(lay, 0.3 + 0.2j)
    (got,) = launch_simulated(bs.blas(lay, "axpy", real=False), given, nki)
    assert error(lay.unpack(got), y + (0.3 + 0.2j) * x) < PRECISIONS["single"].tolerance
    (sums,) = launch_simulated(bs.blas(lay, "inner"), given, nki)
    want = (x.conj() * y).reshape(2, -1).sum(1)
    np.testing.assert_allclose(bs.fold_sums(lay, sums, scale)[0], want, rtol=2e-6)

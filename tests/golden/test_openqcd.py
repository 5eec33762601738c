"""openQCD's Dirac operator on open boundaries (fields of GPT's repository, tests/qcd/openqcd_dslash).

4^4, kappa = 0.135, csw = 1.978, cF = 1.3, theta = 0. openQCD's operator acts on the interior time slices 1..T-2: the spinor
is zero on the two boundary slices before and after, and the boundary improvement adds cF - 1 to the diagonal at t = 1 and
T - 2 (with T = 4, on both interior slices). All else is our clover operator on links whose last time slice is zero.
"""

import numpy as np
import pytest

from lqcd_core import CloverWilsonDirac
from lqcd_core.io import openqcd

CF = 1.3
PARTS = {  # file -> (part of M = A - H, parity it lands on)
    "Dwee": ("A", 0), "Dwoo": ("A", 1), "Dweo": ("-H", 0), "Dwoe": ("-H", 1),
}  # fmt: skip


def interior(psi):
    out = psi.copy()
    out[0] = out[-1] = 0
    return out


@pytest.fixture(scope="module")
def fields(test_data):
    folder = test_data / "openqcd_dslash"
    file = openqcd.open_gauge(folder / "gauge.bc_0.bin")
    links = file.load(file)
    assert openqcd.is_open_boundary(links)

    def spinor(name):
        return openqcd.read_spinor(folder / f"{name}.bc_0.bin").array

    return links, spinor


@pytest.fixture(scope="module", params=["numpy", "torch"])
def bound(request, fields):
    operator = CloverWilsonDirac(kappa=0.135, csw=1.978, boundary="periodic")
    return operator.bind(fields[0], backend=request.param, check_links=False)


def close(got, want):
    assert np.linalg.norm(got - want) < 1e-14 * np.linalg.norm(want)


def test_the_operator_and_its_adjoint(bound, fields):
    _, spinor = fields
    psi = interior(spinor("src"))
    close(interior(bound(psi)) + (CF - 1) * psi, spinor("dst_Dw_dble"))
    close(interior(bound.dagger(psi)) + (CF - 1) * psi, spinor("dst_Dwdag_dble"))


@pytest.mark.parametrize("name", PARTS)
def test_its_even_odd_parts(bound, fields, name):
    _, spinor = fields
    part, parity = PARTS[name]
    psi = interior(spinor("src"))
    h = bound.hop(psi)
    whole = bound(psi) + h + (CF - 1) * psi if part == "A" else -h
    on = (bound.geometry.site_parity == parity)[..., None, None]
    close(interior(whole) * on, spinor(f"dst_{name}_dble"))

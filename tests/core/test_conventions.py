"""docs/conventions.md is tested: its tables are those of the code, and its formulas are written out here once more."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from lqcd_core import (
    CloverWilsonDirac,
    ColorSpinorField,
    GaugeField,
    LatticeGeometry,
    TwistedMassDirac,
    WilsonDirac,
)
from lqcd_core.gamma import BASES, GAMMA, GAMMA5, GT, GX, GY, GZ, gamma, gamma_in_basis, sigma
from lqcd_core.gauge import field_strength, plaquette
from lqcd_core.precision import PRECISIONS

PAGE = (Path(__file__).parents[2] / "docs" / "conventions.md").read_text(encoding="utf-8")
TOL = PRECISIONS["double"].tolerance
G = LatticeGeometry(T=4, Z=2, Y=3, X=2)  # unequal extents, one of them odd
EVEN = LatticeGeometry(T=2, Z=2, Y=4, X=2)


def rows(title: str) -> list[list[str]]:
    """The table whose header starts with ``title``, cells stripped of backticks."""
    lines = PAGE.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {title} |"))
    out = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        out.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return out


def relative(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def haar(geometry=G, seed=1):
    return GaugeField.random(geometry, seed=seed)


def noise(geometry=G, seed=2):
    return ColorSpinorField.gaussian(geometry, seed=seed)


def dense(apply, shape):
    n = int(np.prod(shape))
    return apply(np.eye(n, dtype=complex).reshape(n, *shape)).reshape(n, n).T


# -- the page ---------------------------------------------------------------------------------------------------------


def test_gamma_matrices_of_the_page_are_those_of_the_code():
    code = {"γ_x": GX, "γ_y": GY, "γ_z": GZ, "γ_t": GT, "γ_5": GAMMA5}
    table = dict(rows("matrix"))
    assert set(table) == set(code)
    for name, text in table.items():
        entry = {"0": 0, "1": 1, "-1": -1, "i": 1j, "-i": -1j}
        matrix = [[entry[v.strip()] for v in row.split(",")] for row in re.findall(r"\[([^\]]*)\]", text)]
        assert np.array_equal(np.array(matrix), code[name])


def test_bases_of_the_page():
    table = {row[0]: row[2:] for row in rows("basis")}
    assert set(table) == set(BASES)
    one, zero = np.eye(2), np.zeros((2, 2))
    forms = {
        "diag(1, 1, -1, -1)": np.diag([1, 1, -1, -1]),
        "diag(-1, -1, 1, 1)": np.diag([-1, -1, 1, 1]),
        "((0, -1), (-1, 0))": np.block([[zero, -one], [-one, zero]]),
        "((0, 1), (1, 0))": np.block([[zero, one], [one, zero]]),
        "off-diagonal": np.block([[zero, one], [one, zero]]),
    }
    for name, (time, five) in table.items():
        assert np.abs(gamma_in_basis(GT, name) - forms[time]).max() < 1e-15
        assert np.abs(gamma_in_basis(GAMMA5, name) - forms[five]).max() < 1e-15


def test_tolerance_table_of_the_page_is_that_of_the_code():
    table = rows("precision")
    assert [row[0] for row in table] == list(PRECISIONS)
    for name, links, spinors, arithmetic, tolerance in table:
        p = PRECISIONS[name]
        assert (links, spinors, arithmetic) == (p.link_storage, p.spinor_storage, p.arithmetic)
        assert tolerance == f"{p.tolerance:.1e}"


# -- gamma matrices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("basis", BASES)
def test_clifford_algebra_in_every_basis(basis):
    g = [gamma_in_basis(GAMMA[mu], basis) for mu in range(4)]
    for mu, nu in product(range(4), repeat=2):
        assert np.abs(g[mu] @ g[nu] + g[nu] @ g[mu] - 2 * (mu == nu) * np.eye(4)).max() < 1e-15
        assert np.abs(g[mu] - g[mu].conj().T).max() < 1e-15


def test_gamma5_of_openqcd_is_minus_the_image_of_ours():
    t, x, y, z = (gamma_in_basis(m, "chiral") for m in (GT, GX, GY, GZ))
    openqcd = np.diag([1, 1, -1, -1])
    assert np.abs(t @ x @ y @ z - openqcd).max() < 1e-15  # 0 = t first
    assert np.abs(gamma_in_basis(GAMMA5, "chiral") + openqcd).max() < 1e-15


def test_numbering_of_chroma():
    for n in range(16):
        want = np.eye(4)
        for bit, matrix in enumerate((GX, GY, GZ, GT)):
            want = want @ matrix if n & 1 << bit else want
        assert np.array_equal(gamma(n), want)


# -- operators ----------------------------------------------------------------------------------------------------------


def written_out(U, psi, mass, boundary, xi0, nu, mu5, csw_r, csw_t):
    """M psi by loops over sites, straight from section 4 of the page."""
    shape = psi.shape[:4]
    out = np.zeros_like(psi)
    strength = {(m, n): field_strength(U, m, n) for m in range(4) for n in range(m + 1, 4)}
    for site in product(*map(range, shape)):
        value = (mass + 1 + 3 * nu / xi0) * psi[site] + 1j * mu5 * GAMMA5 @ psi[site]
        for m in range(4):
            c = 1.0 if m == 0 else nu / xi0
            ahead, behind = list(site), list(site)
            ahead[m] = (site[m] + 1) % shape[m]
            behind[m] = (site[m] - 1) % shape[m]
            ahead, behind = tuple(ahead), tuple(behind)
            forward = U[(*site, m)] * (boundary[m] if site[m] == shape[m] - 1 else 1)
            backward = U[(*behind, m)] * (boundary[m] if behind[m] == shape[m] - 1 else 1)
            value = value - 0.5 * c * (np.eye(4) - GAMMA[m]) @ (psi[ahead] @ forward.T)
            value = value - 0.5 * c * (np.eye(4) + GAMMA[m]) @ (psi[behind] @ backward.conj())
        for (m, n), f in strength.items():
            weight = csw_t / 2 if m == 0 else csw_r / (2 * xi0)
            value = value - weight * (GAMMA[m] @ GAMMA[n]) @ (psi[site] @ f[site].T)
        out[site] = value
    return out


THETA = (-1, np.exp(0.3j), 1, np.exp(-0.7j))


@pytest.mark.parametrize(
    ("definition", "parameters"),
    [
        (WilsonDirac(mass=0.1), dict(mass=0.1)),
        (
            WilsonDirac(mass=-0.2, boundary=THETA, xi0=2.5, nu=0.9),
            dict(mass=-0.2, boundary=THETA, xi0=2.5, nu=0.9),
        ),
        (CloverWilsonDirac(mass=0.1, csw=1.3), dict(mass=0.1, csw_r=1.3, csw_t=1.3)),
        (
            CloverWilsonDirac(mass=0.1, csw_r=0.9, csw_t=1.1, boundary=THETA, xi0=2.5, nu=0.9),
            dict(mass=0.1, csw_r=0.9, csw_t=1.1, boundary=THETA, xi0=2.5, nu=0.9),
        ),
        (TwistedMassDirac(mass=0.1, mu=0.4, csw=1.3), dict(mass=0.1, mu5=0.4, csw_r=1.3, csw_t=1.3)),
    ],
    ids=["wilson", "wilson-anisotropic-theta", "clover", "clover-anisotropic-theta", "twisted-clover"],
)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_operator_is_the_formula_written_out(definition, parameters, backend):
    if backend == "torch":
        pytest.importorskip("torch")
    U, psi = haar(), noise()
    defaults = dict(boundary=(-1, 1, 1, 1), xi0=1.0, nu=1.0, mu5=0.0, csw_r=0.0, csw_t=0.0)
    want = written_out(U.array, psi.array, **(defaults | parameters))
    assert relative(definition.bind(U, backend=backend)(psi).array, want) < TOL


def test_links_lead_from_x_to_x_plus_mu():
    """A gauge transformation g(x) U_mu(x) g(x+mu)^dagger fixes which end of a link is which."""
    U, psi = haar(), noise()
    g = GaugeField.random(G, seed=9).array[..., 0, :, :]
    V = np.stack(
        [g @ U.array[..., mu, :, :] @ np.roll(g, -1, axis=mu).conj().swapaxes(-1, -2) for mu in range(4)], axis=4
    )
    rotated = np.einsum("...ab,...sb->...sa", g, psi.array)
    D = WilsonDirac(mass=0.1)
    assert relative(D(rotated, V), np.einsum("...ab,...sb->...sa", g, D(psi.array, U.array))) < TOL
    assert relative(U.gauge_transform(g).array, V) < TOL


@pytest.mark.parametrize("momentum", [(0, 0, 0, 0), (1, 1, 2, 1), (3, 0, 1, 0)])
def test_plane_waves_are_eigenvectors_of_the_free_operator(momentum):
    mass = 0.3
    site = np.indices(G.shape)
    theta = np.array([np.pi, 0, 0, 0])  # antiperiodic in t
    p = (2 * np.pi * np.array(momentum) + theta) / np.array(G.shape)
    wave = np.exp(1j * np.tensordot(p, site, axes=1))
    spin = noise().array[0, 0, 0, 0]
    matrix = (mass + np.sum(1 - np.cos(p))) * np.eye(4) + 1j * sum(np.sin(p[mu]) * GAMMA[mu] for mu in range(4))
    psi = wave[..., None, None] * spin
    got = WilsonDirac(mass=mass)(psi, GaugeField.cold(G).array)
    assert relative(got, wave[..., None, None] * (matrix @ spin)) < 10 * TOL


def test_sigma_form_of_the_clover_term():
    """csw (i/4) sum_{mu,nu} sigma F, all mu and nu, is the operator's clover term."""
    U, psi, csw = haar(), noise(), 1.3
    want = 0
    for mu, nu in product(range(4), repeat=2):
        if mu != nu:
            want = want + csw * 0.25j * np.einsum(
                "ij,...ab,...jb->...ia", sigma(mu, nu), field_strength(U, mu, nu), psi.array
            )
    got = CloverWilsonDirac(mass=0.1, csw=csw)(psi, U).array - WilsonDirac(mass=0.1)(psi, U).array
    assert relative(got, want) < 10 * TOL


@pytest.mark.parametrize("csw", [0.0, 1.3])
def test_adjoint_of_the_twisted_operator(csw):
    U, psi, phi = haar(), noise(), noise(seed=3)
    plus, minus = (TwistedMassDirac(mass=0.1, mu=mu, csw=csw, boundary=THETA) for mu in (0.4, -0.4))
    five = lambda v: np.einsum("ij,...ja->...ia", GAMMA5, v)  # noqa: E731
    assert relative(plus.dagger(psi, U).array, five(minus(five(psi.array), U.array))) < TOL
    assert phi.inner(plus(psi, U)) == pytest.approx(plus.dagger(phi, U).inner(psi), rel=1e-12)


def test_kappa_normalisation():
    """2 kappa M = 1 - kappa * (sum of eight terms without the half)."""
    U, psi, kappa = haar(), noise(), 0.13
    M = WilsonDirac(kappa=kappa).bind(U)
    assert relative(2 * kappa * M(psi).array, psi.array - 2 * kappa * M.hop(psi).array) < TOL
    assert M.definition.mass == pytest.approx(1 / (2 * kappa) - 4, rel=1e-15)


# -- even-odd -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("definition", [CloverWilsonDirac(mass=0.1, csw=1.3), TwistedMassDirac(mass=0.1, mu=0.3)])
@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("form", ["symmetric", "asymmetric"])
def test_schur_complements_of_the_page(definition, parity, form):
    """Blocks of the dense matrix, put together as the page says."""
    geometry = LatticeGeometry(T=2, Z=2, Y=2, X=2)
    M = definition.bind(haar(geometry), backend="numpy")
    full = dense(M, geometry.spinor_shape)
    where = np.repeat(geometry.site_parity.reshape(-1), 12)
    order = [geometry.split_parity(np.arange(16).reshape(2, 2, 2, 2), k).reshape(-1) for k in (0, 1)]
    index = [(12 * o[:, None] + np.arange(12)).reshape(-1) for o in order]
    assert (where[index[1]] == 1).all()
    p, q = index[parity], index[1 - parity]
    A_p, A_q, H_pq, H_qp = full[np.ix_(p, p)], full[np.ix_(q, q)], -full[np.ix_(p, q)], -full[np.ix_(q, p)]
    inv = np.linalg.inv
    want = A_p - H_pq @ inv(A_q) @ H_qp
    determinant = np.linalg.det(A_q)
    if form == "symmetric":
        want = inv(A_p) @ want
        determinant = determinant * np.linalg.det(A_p)
    S = M.even_odd(parity, form)
    v = S.vectors
    got = dense(lambda b: v.unpack(S.apply(v.pack(b))), geometry.parity_shape(parity))
    assert relative(got, want) < 10 * TOL
    assert determinant * np.linalg.det(got) == pytest.approx(np.linalg.det(full), rel=1e-9)
    # prepare, solve, reconstruct is the solution of the whole
    b = noise(geometry).array[None]
    b_p, b_q = S.split(b)
    x_p = v.pack(
        np.linalg.solve(got, v.unpack(S.prepare(b_p, b_q)).reshape(-1)).reshape(1, *geometry.parity_shape(parity))
    )
    x = S.join(x_p, S.reconstruct(x_p, b_q))
    assert relative(M(x), b) < 1e-12


# -- gauge --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nc", "lowest"), [(2, -1.0), (3, -0.5), (4, -1.0), (5, -np.cos(np.pi / 5))])
def test_plaquette_range_for_any_number_of_colours(nc, lowest):
    """The lowest is met by a centre element z on every plaquette; random group elements never lie below it."""
    k = nc // 2
    z = np.exp(2j * np.pi * k / nc)
    assert z.real == pytest.approx(lowest, abs=1e-15)
    geometry = LatticeGeometry(T=nc, Z=nc, Y=nc, X=nc, nc=nc)
    links = GaugeField.cold(geometry).array.copy()
    coordinates = np.indices(geometry.shape)
    for nu in range(1, 4):
        links[..., nu, :, :] *= (z ** coordinates[:nu].sum(axis=0))[..., None, None]
    assert plaquette(links) == pytest.approx(lowest, abs=1e-13)
    few = GaugeField.random(LatticeGeometry(T=4, Z=4, Y=4, X=4, nc=nc), seed=3).array
    traces = np.einsum("...ii->...", few).real / nc
    assert lowest - 1e-13 <= traces.min() and traces.max() <= 1

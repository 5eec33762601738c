r"""Gradients on torch: through D(psi, U) and through the gauge observables, against central differences in double.

torch's convention for a real L of a complex z is grad = dL/dRe z + i dL/dIm z, so a small change gives
dL = Re sum conj(grad) dz. Every check here compares that with (L(z + h d) - L(z - h d)) / 2h along random directions d.
"""

import numpy as np
import pytest

import lqcd_core as lqcd
from lqcd_core import CloverWilsonDirac, GaugeField, LatticeGeometry, TwistedMassDirac, WilsonDirac
from lqcd_core.gauge import staples
from lqcd_core.observables import (
    energy_density,
    plaquette,
    polyakov_loop,
    rectangle,
    topological_charge,
    wilson_action,
    wilson_loop,
)

torch = pytest.importorskip("torch")

GEOMETRY = LatticeGeometry(T=2, Z=2, Y=4, X=3, nc=3)
STEP = 1e-4


def tensors(geometry=GEOMETRY):
    links = GaugeField.random(geometry, seed=11).tensor.clone()
    psi, phi = (lqcd.ColorSpinorField.gaussian(geometry, seed=s).tensor.clone() for s in (12, 13))
    return links, psi, phi


def direction(like, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, dtype=like.dtype, generator=g)


def check(loss, z, relative=1e-7):
    """The gradient of a real loss at z along two random directions against central differences."""
    z = z.clone().requires_grad_(True)
    loss(z).backward()
    assert torch.isfinite(torch.view_as_real(z.grad)).all()
    assert z.grad.abs().max() > 0
    for seed in (1, 2):
        d = direction(z, seed)
        with torch.no_grad():
            difference = (loss(z + STEP * d) - loss(z - STEP * d)) / (2 * STEP)
        predicted = (z.grad.conj() * d).real.sum()
        scale = float(z.grad.norm() * d.norm())
        assert float(abs(predicted - difference)) < relative * scale


OPERATORS = {
    "wilson": WilsonDirac(mass=0.1),
    "wilson, theta angle and anisotropy": WilsonDirac(mass=0.1, boundary=(-1, 1, np.exp(0.3j), 1), xi0=2.0, nu=0.9),
    "clover": CloverWilsonDirac(mass=0.1, csw=1.3),
    "twisted mass": TwistedMassDirac(mass=0.1, mu=0.4),
    "twisted clover": TwistedMassDirac(mass=0.1, mu=0.4, csw=1.3),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("kind", ["M", "dagger", "normal"])
@pytest.mark.parametrize("variable", ["psi", "U"])
def test_gradient_of_an_operator_is_its_derivative(name, kind, variable):
    D = OPERATORS[name]
    apply = D if kind == "M" else getattr(D, kind)
    links, psi, phi = tensors()
    if variable == "psi":
        check(lambda z: (phi.conj() * apply(z, links)).real.sum() + apply(z, links).abs().pow(2).sum(), psi)
    else:
        check(lambda z: (phi.conj() * apply(psi, z)).real.sum() + apply(psi, z).abs().pow(2).sum(), links)


def test_gradient_with_respect_to_the_spinor_is_the_adjoint():
    """L = Re <phi, M psi> has grad_psi = M^dagger phi exactly."""
    links, psi, phi = tensors()
    D = CloverWilsonDirac(mass=0.1, csw=1.3)
    psi.requires_grad_(True)
    (phi.conj() * D(psi, links)).real.sum().backward()
    want = D.dagger(phi, links)
    assert float((psi.grad - want).norm() / want.norm()) < lqcd.PRECISIONS["double"].tolerance


def test_gradients_flow_through_a_batch():
    links, psi, phi = tensors()
    D = WilsonDirac(mass=0.1)
    batch = torch.stack([psi, phi]).requires_grad_(True)
    D(batch, links).abs().pow(2).sum().backward()
    for k, column in enumerate((psi, phi)):
        want = 2 * D.normal(column, links)
        assert float((batch.grad[k] - want).norm() / want.norm()) < 2 * lqcd.PRECISIONS["double"].tolerance


def test_gradients_flow_through_a_bound_operator():
    links, psi, phi = tensors()
    M = CloverWilsonDirac(mass=0.1, csw=1.3).bind(links)
    psi.requires_grad_(True)
    (phi.conj() * M(psi)).real.sum().backward()
    want = M.dagger(phi)
    assert float((psi.grad - want).norm() / want.norm()) < lqcd.PRECISIONS["double"].tolerance


def test_gradient_of_a_solve_by_the_adjoint_identity():
    """L = |x|^2, M x = b: dL = -Re <y, dM x> with M^dagger y = 2 x, so U.grad is that of -Re <y, M x> at fixed x, y."""
    geometry = LatticeGeometry(T=2, Z=2, Y=2, X=2)
    links, b, _ = tensors(geometry)
    D = CloverWilsonDirac(mass=0.3, csw=1.0)
    solver = lqcd.BiCGStab(tol=1e-13)

    def solve(U):
        return solver.solve(lambda v: D(v, U), b).x

    x = solve(links)
    y = solver.solve(lambda v: D.dagger(v, links), 2 * x).x
    U = links.clone().requires_grad_(True)
    (-(y.conj() * D(x, U)).real.sum()).backward()
    d = direction(links, 1)
    up, down = (float(solve(links + s * STEP * d).abs().pow(2).sum()) for s in (1, -1))
    assert (up - down) / (2 * STEP) == pytest.approx(float((U.grad.conj() * d).real.sum()), rel=1e-5)


OBSERVABLES = {
    "plaquette": plaquette,
    "wilson_action": lambda U: wilson_action(U, beta=5.7),
    "topological_charge": topological_charge,
    "polyakov_loop, real part": lambda U: polyakov_loop(U).real,
    "polyakov_loop, modulus squared": lambda U: polyakov_loop(U, "y").abs().pow(2),
    "rectangle": rectangle,
    "wilson_loop": lambda U: wilson_loop(U, 1, 2),
    "energy_density": energy_density,
}


@pytest.mark.parametrize("nc", [2, 3])
@pytest.mark.parametrize("name", OBSERVABLES)
def test_gradient_of_a_gauge_observable_is_its_derivative(name, nc):
    links, _, _ = tensors(LatticeGeometry(T=2, Z=3, Y=2, X=2, nc=nc))
    check(OBSERVABLES[name], links)


@pytest.mark.parametrize("name", OBSERVABLES)
def test_gauge_observables_give_the_same_number_for_numpy_and_torch(name):
    field = GaugeField.random(LatticeGeometry(T=2, Z=3, Y=2, X=2), seed=5)
    observable = OBSERVABLES[name] if "modulus" not in name else lambda U: abs(polyakov_loop(U, "y")) ** 2
    assert float(observable(field.tensor)) == pytest.approx(observable(field), rel=1e-13, abs=1e-14)


def test_gradient_of_the_wilson_action_is_the_staple():
    r"""S = -(beta/Nc) Re tr U A + ..., so grad_U S = -(beta/Nc) A^dagger, where A closes the plaquettes of U."""
    beta, geometry = 5.7, LatticeGeometry(T=4, Z=3, Y=4, X=3)
    field = GaugeField.random(geometry, seed=3)
    links = field.tensor.clone().requires_grad_(True)
    wilson_action(links, beta).backward()
    for mu in range(4):
        a = staples(field)[..., mu, :, :]
        want = -(beta / 3) * a.conj().swapaxes(-1, -2)
        got = links.grad.numpy()[..., mu, :, :]
        # the sign of the orientation of A is part of the law: U A, not U A^dagger, is the plaquette
        assert np.abs(got - want).max() < 1e-12


def test_the_projected_gradient_is_the_steepest_ascent_in_the_group():
    r"""With U -> e^{s w} U: dL/ds = <w, TA(G U^dagger)>, largest along w = TA(G U^dagger), G = U.grad."""

    def projected(x):
        x = 0.5 * (x - x.mH)
        return x - torch.einsum("...ii->...", x)[..., None, None] * torch.eye(3) / 3

    links, _, _ = tensors()
    links.requires_grad_(True)
    topological_charge(links).backward()
    with torch.no_grad():
        ascent = projected(links.grad @ links.mH)
        for w in (ascent, projected(direction(links, 5))):
            up, down = (topological_charge(torch.matrix_exp(s * STEP * w) @ links) for s in (1, -1))
            inner = float((w.conj() * ascent).real.sum())
            assert float(up - down) / (2 * STEP) == pytest.approx(inner, rel=1e-5, abs=1e-9)


def test_gradient_at_the_unit_field_of_the_charge_vanishes():
    """Q is stationary at U = 1: it is quadratic in F, and F = 0 there."""
    links = GaugeField.cold(GEOMETRY).tensor.clone().requires_grad_(True)
    topological_charge(links).backward()
    assert float(links.grad.abs().max()) == 0.0


def test_torch_convention_is_the_one_documented():
    """The page says: grad = 2 dL/dz*, so L = Re z^2 at 1 + 2i has 2 - 4i."""
    z = torch.tensor(1 + 2j, dtype=torch.complex128, requires_grad=True)
    (z * z).real.backward()
    assert complex(z.grad) == 2 - 4j


def test_gradients_are_refused_by_a_backend_without_them():
    links, psi, _ = tensors()
    links.requires_grad_(True)
    with lqcd.use_backend("numpy"), pytest.raises(lqcd.errors.BackendUnavailable, match="numpy"):
        WilsonDirac(mass=0.1)(psi, links)

"""Gradients through the Wilson action and through the Dirac operator: a few steps of descent inside SU(3).

torch's gradient of a real L is G = dL/d(Re U) + i dL/d(Im U). In the group the steepest ascent is TA(G U^dagger), the
traceless anti-Hermitian part, and U <- exp(-step TA(G U^dagger)) U stays unitary.
"""

import torch

import lqcd_core as lqcd
from lqcd_core.observables import plaquette, topological_charge, wilson_action


def traceless_antihermitian(x):
    x = 0.5 * (x - x.mH)
    return x - torch.einsum("...ii->...", x)[..., None, None] * torch.eye(3) / 3


field = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=1)
U = field.tensor.clone()
for step in range(11):
    U.requires_grad_(True)
    action = wilson_action(U, beta=6.0)
    (gradient,) = torch.autograd.grad(action, U)
    if step % 5 == 0:
        with torch.no_grad():
            print(f"step {step:2d}: S = {action:10.3f}, plaquette {plaquette(U):+.4f}, Q {topological_charge(U):+.3f}")
    with torch.no_grad():
        U = torch.matrix_exp(-0.03 * traceless_antihermitian(gradient @ U.mH)) @ U
smooth = lqcd.GaugeField(field.geometry, U)
print(f"off SU(3) by {smooth.unitarity():.1e}\n")

# The same through the operator: the force of a pseudofermion-like term |M psi|^2 on every link and on psi.
psi = lqcd.ColorSpinorField.gaussian(field.geometry, seed=2).tensor.clone().requires_grad_(True)
U = U.clone().requires_grad_(True)
D = lqcd.CloverWilsonDirac(mass=0.1, csw=1.0)
D(psi, U).abs().pow(2).sum().backward()
exact = 2 * D.normal(psi.detach(), U.detach())  # d|M psi|^2 = 2 Re <M^dagger M psi, d psi>
print(f"gradient in psi against 2 M^dagger M psi: {float((psi.grad - exact).norm() / exact.norm()):.1e}")
print(f"force on the links: {float(traceless_antihermitian(U.grad @ U.detach().mH).norm()):.3f}")

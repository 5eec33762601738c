"""Even-odd preconditioning at the level of handles: what lqcd.solve does inside, step by step.

M = [[A_e, -H_eo], [-H_oe, A_o]]. The Schur complement Mhat = 1 - A_e^-1 H_eo A_o^-1 H_oe acts on even sites only and is
better conditioned: solve Mhat x_e = bhat, then x_o = A_o^-1 (b_o + H_oe x_e).
"""

import lqcd_core as lqcd
from lqcd_core.params import EigParam

U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=1)
M = lqcd.CloverWilsonDirac(mass=0.1, csw=1.0).bind(U)
b = lqcd.ColorSpinorField.gaussian(U.geometry, seed=2)

Mhat = M.even_odd(parity=lqcd.EVEN, form="symmetric")
b_e, b_o = Mhat.split(b.batch)  # the door in: from here on, handles only
bhat = Mhat.prepare(b_e, b_o)
solver = lqcd.BiCGStab(tol=1e-10)
x_e, info = solver.solve_handles(Mhat.linear, bhat)
x_o = Mhat.reconstruct(x_e, b_o)
x = lqcd.ColorSpinorField(U.geometry, Mhat.join(x_e, x_o)[0])  # the door out

full, full_info = solver.solve(M, b)
print(f"even-odd : {info.iterations:3d} iterations, |b - M x| / |b| = {(M(x) - b).norm() / b.norm():.1e}")
print(f"full     : {full_info.iterations:3d} iterations, |b - M x| / |b| = {(M(full) - b).norm() / b.norm():.1e}")
print(f"they differ by {(x - full).norm() / full.norm():.1e}")

ends = EigParam(n_kr=24, tol=1e-3)
for name, operator in (("M^dagger M", M), ("Mhat^dagger Mhat", Mhat)):
    print(f"condition number of {name:17s}: {ends.spectral_bounds(operator).condition_number:8.2f}")

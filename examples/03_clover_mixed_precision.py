"""A clover solve in double precision whose iterations run in single: the residual reported is the true, double one."""

import lqcd_core as lqcd

U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=8, Z=4, Y=4, X=4), seed=1)
M = lqcd.CloverWilsonDirac(mass=0.2, csw=1.0).bind(U, precision="double")
b = lqcd.ColorSpinorField.point_source(U.geometry)

# A tolerance that single precision cannot reach is refused before the first iteration.
try:
    M.rebind(precision="single").check_spinor(b)
except lqcd.LQCDError as error:
    print("double source, single operator:", error)
try:
    lqcd.solve(M.rebind(precision="single"), b.to("single"), lqcd.BiCGStab(tol=1e-11))
except lqcd.LQCDError as error:
    print("tol = 1e-11 in single:", error, "\n")

solvers = {
    "double": lqcd.BiCGStab(tol=1e-11),
    "single inside, defect correction": lqcd.MixedPrecision(inner=lqcd.BiCGStab(tol=1e-11), precision="single"),
    "single inside, reliable updates": lqcd.MixedPrecision(
        inner=lqcd.ConjugateGradient(tol=1e-11), precision="single", method="reliable_updates"
    ),
}
for name, solver in solvers.items():
    x, info = lqcd.solve(M, b, solver)
    true = (M(x) - b).norm() / b.norm()
    print(
        f"{name:33s} {info.iterations:4d} iterations, |b - M x| / |b| = {info.final_residual:.2e} (by hand {true:.2e})"
    )

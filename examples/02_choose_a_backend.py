"""Which backend runs, why, and how to say so yourself. Nothing below names a device."""

import lqcd_core as lqcd

U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=1)
D = lqcd.WilsonDirac(mass=0.1)
psi = lqcd.ColorSpinorField.gaussian(U.geometry, seed=2)

# Every registered backend with its reason. Nothing heavy is imported for those that cannot serve.
print(lqcd.explain(D, U, precision="bf16"), "\n")

# For one call, for a block, for the session: a named backend serves or the call raises; it is never replaced.
print(D.bind(U, backend="numpy"))
with lqcd.use_backend("numpy"):
    reference = D(psi, U)
lqcd.prefer_backends("torch", "numpy")  # a wish, not an order: the first that can serve
print(D.bind(U), "\n")

try:
    lqcd.use_backend("nunpy")
except lqcd.LQCDError as error:
    print("asked for 'nunpy':", error)
try:
    D.bind(U, backend="numpy", features=["autograd"])
except lqcd.LQCDError as error:
    print("asked numpy for gradients:", error, "\n")

for name, info in lqcd.backends().items():
    if info.wraps:  # an executor runs another backend: name both, use_backend("sharded", inner="numpy", shards=2)
        continue
    try:
        difference = (D.bind(U, backend=name)(psi) - reference).norm() / reference.norm()
    except lqcd.errors.BackendUnavailable as reason:
        print(f"{name:10s} {reason}")
    else:
        print(f"{name:10s} differs from numpy by {difference:.1e} (allowed {lqcd.PRECISIONS['double'].tolerance:.1e})")

"""Step by step on a NeuronCore: the device, a compiled operator, a solve. Without an instance, in stand-in mode:

python tests/support/neuron_standin.py examples/neuron_quickstart.py
"""

from lqcd_backends.neuron import NeuronCompiler, get_device

import lqcd_core as lqcd
from lqcd_core.errors import BackendUnavailable

# 1. The device, asked without loading any Neuron package.
device = get_device()
print("device:", device.instance_type or "none", "with", device.num_cores, "core(s)")

# 2. A field and an operator.
U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=42)
D = lqcd.WilsonDirac(mass=0.5)

# 3. The operator compiled for its lattice. The first call compiles; the second run of this script reads the cache.
try:
    M = NeuronCompiler(dtype="bfloat16").compile_dslash(D, gauge_field=U)
except BackendUnavailable as reason:
    raise SystemExit(f"cannot run here: {reason}") from None
M.apply.warm_up()
print("compiled:", M.apply.report().partition(" loaded")[0])
print("budget:", M.apply.decision)

# 4. Against the reference: a 16-bit operator is this good, and no better.
psi = lqcd.ColorSpinorField.gaussian(U.geometry, seed=1)
exact = D.bind(U, backend="numpy")(psi).array
error = abs(M(psi.to("bf16")).array - exact).max() / abs(exact).max()
print(f"largest error of M psi: {error:.1e}")

# 5. A double answer: the device iterates in bf16, the host corrects in double.
solver = lqcd.MixedPrecision(inner=lqcd.BiCGStab(tol=1e-12), precision="bf16", backend="neuron-traced")
x, info = lqcd.solve(D.bind(U, backend="numpy"), psi, solver)
print(f"true residual {info.final_residual:.1e} after {info.iterations} iterations on the device")

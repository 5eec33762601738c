"""A quark propagator, the pion correlator and its effective mass.

    python 01_first_propagator.py [configuration]

Without a file (NERSC, ILDG, MILC or openQCD: found by content) a small quenched configuration is made first.
"""

import sys

import lqcd_core as lqcd
from lqcd_core.gauge import generate

if len(sys.argv) > 1:
    U = lqcd.GaugeField.read(sys.argv[1])
else:
    lattice = lqcd.LatticeGeometry(T=8, Z=4, Y=4, X=4)
    _, U, _ = next(generate(lattice, beta=6.0, seed=1, thermalization=10, separation=1, configurations=1))
print(f"{U}: plaquette {lqcd.observables.plaquette(U):.6f}")

M = lqcd.CloverWilsonDirac(kappa=0.12, csw=1.5).bind(U)  # links go into the backend once, here
print(M)
S = lqcd.propagator(M, lqcd.point_source(U.geometry), lqcd.ConjugateGradient(tol=1e-10))  # 12 columns

pion = lqcd.observables.pion_correlator(S)
mass = lqcd.observables.effective_mass(pion, "cosh")
print(" t  C(t)          m_eff(t)")
for t, (c, m) in enumerate(zip(pion, mass)):
    print(f"{t:2d}  {c:.6e}  {m:.4f}")

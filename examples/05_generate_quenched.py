"""Quenched configurations by heatbath and overrelaxation, with their autocorrelation, written as ILDG and NERSC.

    python 05_generate_quenched.py [directory]

The random numbers are keyed by the global site: the same seed gives the same configurations on any machine, and a run
that was interrupted goes on from its checkpoint to the same bits.
"""

import sys
from pathlib import Path

import lqcd_core as lqcd
from lqcd_core.gauge import generate, integrated_autocorrelation

out = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
lattice = lqcd.LatticeGeometry(T=4, Z=4, Y=4, X=4)
thermalization = 20
run = generate(
    lattice,
    beta=5.7,
    seed=1,
    thermalization=thermalization,
    separation=5,
    configurations=4,
    checkpoint=out / "chain.npz",
)
info = None
for index, U, info in run:
    U.write(out / f"cfg_{index}.ildg", format="ildg")
    print(f"configuration {index} after {info.sweep} sweeps: plaquette {info.plaquette:.6f}")
if info is None:
    sys.exit(f"this chain is complete; remove {out / 'chain.npz'} or raise configurations=")

tau = integrated_autocorrelation(info.history[thermalization:])
print(f"plaquette: {tau}")

U.write(out / "last.nersc", format="nersc")
again = lqcd.GaugeField.read(out / "last.nersc")  # checksum, plaquette and link trace are verified here
print(f"read back: {again}, plaquette {lqcd.observables.plaquette(again):.6f}")

"""Peak memory of a 12-column propagator, one process a row: python memory.py BACKEND PRECISION SOLVER TxZxYxX.

Prints the peak resident size above what a small solve left (imports and code pages), beside
links + 12 columns x vectors of the solver, full-lattice vectors.
"""

from __future__ import annotations

import os
import resource
import sys

import lqcd_core as lqcd
from lqcd_core.solvers import memory_estimate


def resident() -> int:
    """Resident bytes now (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def solve(geometry, backend, precision, solver):
    """The bound operator, after a propagator on the unit field that ends at 30 iterations."""
    gauge = lqcd.GaugeField.cold(geometry, precision)
    operator = lqcd.WilsonDirac(mass=0.5).bind(gauge, backend=backend, n_rhs=12)
    lqcd.propagator(operator, lqcd.point_source(geometry), solver, raise_on_failure=False)
    return operator


def main() -> None:
    backend, precision, name, extents = sys.argv[1:]
    solver = {"cg": lqcd.ConjugateGradient, "bicgstab": lqcd.BiCGStab}[name](tol=1e-5, maxiter=30)
    geometry = lqcd.LatticeGeometry.from_shape([int(n) for n in extents.split("x")])
    solve(lqcd.LatticeGeometry(T=4, Z=4, Y=4, X=4), backend, precision, solver)
    before = resident()
    operator = solve(geometry, backend, precision, solver)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    reals = 2 * operator.precision.bytes_per_real * geometry.volume
    links, column = 36 * reals, 12 * reals
    vectors = solver.general.vectors_needed
    bound = links + 12 * vectors * column
    estimate = links + memory_estimate(operator, solver)
    mib = 2**20
    print(
        f"{backend} {precision} {name} {extents}: peak {peak / mib:.0f} MiB; links + 12 x {vectors} vectors = "
        f"{bound / mib:.0f} MiB, ratio {peak / bound:.2f}; estimate {estimate / mib:.0f} MiB, ratio {peak / estimate:.2f}"
    )


if __name__ == "__main__":
    main()

"""What cutting a lattice gains, and what it costs: shards against one, in turn, on this machine.

    python -m lqcd_backends.sharded.measure --inner torch --lattice 32 16 16 16 --n-rhs 12 --executor processes

For the hopping term, M and a few iterations of CG it prints the median wall time of each, the ratio (median over
repeats, the two measured in turn so that a busy machine slows both), the ratio of the shortest times (``best``: what the
machine gave in its quietest moments), and for threads the processor seconds that the cut
lattice needs for every one of the whole: its excess over 1 is all that cutting costs, however busy the machine is.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np


def measure(inner: str, lattice, n_rhs: int, precision: str, executor: str, shards: int, repeats: int) -> None:
    """Print the table; see the module."""
    import lqcd_core as lqcd

    g = lqcd.LatticeGeometry.from_shape(lattice)
    U = lqcd.GaugeField.random(g, seed=1)
    rng = np.random.default_rng(0)
    psi = rng.normal(size=(n_rhs, *g.spinor_shape)) + 1j * rng.normal(size=(n_rhs, *g.spinor_shape))
    bound, start = {}, {}
    for reductions, count in (("exact", 1), ("exact", shards), ("fast", shards)):
        options = {"inner": inner, "shards": count, "executor": executor, "reductions": reductions}
        key = f"{count}" if reductions == "exact" else f"{count} fast"
        bound[key] = lqcd.WilsonDirac(mass=0.4).bind(U, backend=("sharded", options), precision=precision, n_rhs=n_rhs)
        start[key] = bound[key].space.pack(psi)
    solver = lqcd.ConjugateGradient(tol=1e-5, maxiter=5)
    work = {
        "H": lambda k: bound[k].hopping(start[k]),
        "M": lambda k: bound[k].apply(start[k]),
        "CG, 5 iterations": lambda k: solver.solve_handles(bound[k].normal_linear, start[k]),
    }
    print(f"{inner}, {'x'.join(map(str, lattice))}, {n_rhs} right-hand sides, {precision}, {executor}, {shards} shards")
    for name, function in work.items():
        wall = {k: [] for k in bound}
        cpu = {k: [] for k in bound}
        for repeat in range(repeats + 1):
            for key in bound:
                t, c = time.perf_counter(), time.process_time()
                function(key)
                if repeat:  # the first one warms up
                    wall[key].append(time.perf_counter() - t)
                    cpu[key].append(time.process_time() - c)
        for key in list(bound)[1:]:
            ratio = statistics.median(a / b for a, b in zip(wall["1"], wall[key], strict=True))
            line = f"{name:18} {key:7} 1 shard {1e3 * statistics.median(wall['1']):8.1f} ms"
            line += f"  cut {1e3 * statistics.median(wall[key]):8.1f} ms  speed-up {ratio:5.2f}"
            line += f"  best {min(wall['1']) / min(wall[key]):5.2f}"
            if executor == "threads":
                line += f"  processor time {statistics.median(cpu[key]) / statistics.median(cpu['1']):5.2f}"
            print(line, flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inner", default="numpy")
    parser.add_argument("--lattice", type=int, nargs=4, default=(16, 8, 8, 8), metavar=("T", "Z", "Y", "X"))
    parser.add_argument("--n-rhs", type=int, default=12)
    parser.add_argument("--precision", default="single")
    parser.add_argument("--executor", choices=("threads", "processes"), default="threads")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    a = parser.parse_args()
    measure(a.inner, tuple(a.lattice), a.n_rhs, a.precision, a.executor, a.shards, a.repeats)


if __name__ == "__main__":
    main()

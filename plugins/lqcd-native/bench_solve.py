"""Rates of whole solves, in turn with the operators they stand on.

    python bench_solve.py                       # CG iterations against the operator's own rate
    python bench_solve.py --propagator          # a propagator against the same columns one by one in plain double
    python bench_solve.py --gauge               # kernels on links against the core's NumPy

Every line is a median (and range) over ``--repeat`` rounds; what is compared is run in turn within a round, so that a
disturbance does not hit one side alone. With one thread the clock is the thread's own CPU time, else the wall.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from lqcd_core import (
    BiCGStab,
    CloverWilsonDirac,
    ColorSpinorField,
    ConjugateGradient,
    GaugeField,
    LatticeGeometry,
    MixedPrecision,
    WilsonDirac,
    gauge,
    point_source,
    propagator,
    use_backend,
)  # fmt: skip
from lqcd_core.backend import SiteDiagonal
from lqcd_core.solvers import solve

HOP_FLOPS = 1320
"""Per site of one application of H."""
ITERATIONS = 100
"""Of each solve that is measured, with all that a solve does around them."""
CLOVER_FLOPS = 504
"""Per site of two Hermitian 6 x 6 blocks."""


def clock(threads: int):
    return time.thread_time if threads == 1 else time.perf_counter


def spread(values) -> str:
    return f"{statistics.median(values):8.2f} ({min(values):.2f} - {max(values):.2f})"


def smooth_field(geometry: LatticeGeometry, roughness: float = 0.35) -> GaugeField:
    """SU(3) links near the unit matrix: exp of a Gaussian algebra element. Averages 0.5 to 0.6 in the plaquette."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=geometry.gauge_shape) + 1j * rng.normal(size=geometry.gauge_shape)
    a = (a - a.conj().swapaxes(-1, -2)) / 2
    a -= np.trace(a, axis1=-2, axis2=-1)[..., None, None] / 3 * np.eye(3)
    return GaugeField(geometry, gauge.exponential(roughness * a))


def iterations(arguments) -> None:
    """CG (normal equations of the Schur complement) counted in hopping flops, against M and M^dagger alone."""
    print(f"{'lattice':12} {'type':7} {'n':>3} {'thr':>3} {'operator GF/s':>26} {'CG GF/s':>26} {'CG / operator':>22}")
    for shape in arguments.lattices:
        g = LatticeGeometry.from_shape(shape)
        links = smooth_field(g)
        for threads in arguments.threads:
            now = clock(threads)
            for precision in arguments.precisions:
                for n in arguments.columns:
                    M = WilsonDirac(mass=-0.9).bind(
                        links, backend=("native", {"threads": threads}), precision=precision, n_rhs=n
                    )
                    b = ColorSpinorField.gaussian(g, seed=2, n_rhs=n, precision=precision)
                    schur = M.even_odd()
                    x = schur.split(b.array)[0]
                    flops = 2 * 2 * HOP_FLOPS * (g.volume / 2) * n  # per iteration: M and M^dagger, two half hops each
                    solves = max(1, round(arguments.seconds * 20e9 / flops / ITERATIONS))
                    count = solves * ITERATIONS
                    cg = ConjugateGradient(tol=1e-14, maxiter=ITERATIONS, patience=10**6, refuse_unreachable=False)
                    rates: dict[str, list[float]] = {"operator": [], "cg": [], "ratio": []}
                    for k in range(arguments.repeat + 1):
                        start = now()
                        for _ in range(count):
                            schur.apply_dagger(schur.apply(x))
                        operator = now() - start
                        start = now()
                        done = sum(
                            solve(M, b, cg, raise_on_failure=False, device_solve=True).info.iterations
                            for _ in range(solves)
                        )
                        whole = now() - start
                        if k == 0:
                            continue  # warms up
                        assert done == count, f"stopped after {done} of {count} iterations"
                        rates["operator"].append(flops * count / operator / 1e9)
                        rates["cg"].append(flops * count / whole / 1e9)
                        rates["ratio"].append(operator / whole)
                    print(
                        f"{'x'.join(map(str, shape)):12} {precision:7} {n:3} {threads:3} {spread(rates['operator']):>26} "
                        f"{spread(rates['cg']):>26} {spread(rates['ratio']):>22}", flush=True,
                    )  # fmt: skip


def one_propagator(arguments) -> None:
    """Twelve columns, clover, to a true residual of 1e-10 in double: mixed and together against plain and one by one."""
    g = LatticeGeometry.from_shape(arguments.lattices[0] if arguments.lattices_given else (32, 16, 16, 16))
    links = smooth_field(g)
    for threads in arguments.threads:
        now = clock(threads)
        M = CloverWilsonDirac(mass=arguments.mass, csw=1.0).bind(
            links, backend=("native", {"threads": threads}), n_rhs=12
        )
        inner = {"cg": ConjugateGradient, "bicgstab": BiCGStab}[arguments.solver](tol=1e-10)
        mixed = MixedPrecision(inner=inner, method=arguments.method)
        source = point_source(g)
        gains, shares = [], []
        for k in range(arguments.repeat + 1):
            start = now()
            together = propagator(M, source, mixed)
            fast = now() - start
            account = together.provenance["solve"]
            start = now()
            alone = propagator(M, source, inner, columns=list(range(arguments.alone)), batch=1)
            slow = (now() - start) * 12 / arguments.alone
            # The operator's share: as many applications of the same inner operator as the solve made, and nothing else.
            schur = M._rebound[("bound", "single", "None")].even_odd()
            x = schur.split(np.asarray(source.columns(list(range(12)), precision="single")))[0]
            start = now()
            for _ in range(account["applications"]):
                schur.apply(x)
            operator = now() - start
            if k == 0 and arguments.repeat > 1:
                continue
            gains.append(slow / fast), shares.append(operator / fast)
            flops = account["applications"] * 12 * g.volume * (HOP_FLOPS + CLOVER_FLOPS)
            print(
                f"threads {threads}: mixed {arguments.solver}, {arguments.method}: {fast:.2f} s, {account['iterations']} iterations, "
                f"{account['applications']} applications, residual {account['final_residual']:.1e}; {flops / fast / 1e9:.1f} "
                f"GF/s; one by one in double {slow:.2f} s; its operator alone {operator:.2f} s", flush=True,
            )  # fmt: skip
            del together, alone
        print(f"threads {threads}: faster by {spread(gains)}, share of the operator {spread(shares)}", flush=True)


def gauge_kernels(arguments) -> None:
    """Milliseconds of the kernels on links, and of the core's NumPy."""
    for shape in arguments.lattices:
        g = LatticeGeometry.from_shape(shape)
        links = smooth_field(g)
        a = 0.1 * (links.array - links.array.conj().swapaxes(-1, -2))
        term = SiteDiagonal(scalar=4.1, blocks=gauge.clover_term(links, 0.5))
        work = {
            "plaquette": lambda links=links: gauge.plaquette(links),
            "staples": lambda links=links: gauge.staples(links),
            "clover term": lambda links=links: gauge.clover_term(links, 0.5),
            "its inverse": lambda term=term: term.inverse(),
            "exponential": lambda a=a: gauge.exponential(a),
            "unitarize": lambda links=links: links.unitarize(),
        }
        for threads in arguments.threads:
            now = clock(threads)
            for name, run in work.items():
                times: dict[str, list[float]] = {"native": [], "numpy": []}
                for _ in range(arguments.repeat):
                    for backend, options in (("native", {"threads": threads}), ("numpy", {})):
                        with use_backend(backend, **options):
                            start = now()
                            run()
                            times[backend].append(1e3 * (now() - start))
                print(
                    f"{'x'.join(map(str, shape)):12} threads {threads} {name:12} native {spread(times['native']):>26} ms   NumPy "
                    f"{spread(times['numpy']):>26} ms", flush=True,
                )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--propagator", action="store_true")
    parser.add_argument("--gauge", action="store_true")
    parser.add_argument("--lattices", nargs="+", default=["8x8x8x8", "16x16x16x16"], help="T x Z x Y x X")
    parser.add_argument("--precisions", nargs="+", default=["single", "double"])
    parser.add_argument("--columns", nargs="+", type=int, default=[1, 12])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one measurement, about")
    parser.add_argument("--solver", choices=["cg", "bicgstab"], default="bicgstab")
    parser.add_argument("--method", choices=["reliable_updates", "defect_correction"], default="defect_correction")
    parser.add_argument("--mass", type=float, default=-0.5)
    parser.add_argument(
        "--alone", type=int, default=3, help="columns solved one by one, of the twelve that are counted"
    )
    arguments = parser.parse_args()
    arguments.lattices_given = arguments.lattices != parser.get_default("lattices")
    arguments.lattices = [tuple(int(e) for e in text.split("x")) for text in arguments.lattices]
    if arguments.gauge:
        gauge_kernels(arguments)
    elif arguments.propagator:
        one_propagator(arguments)
    else:
        iterations(arguments)


if __name__ == "__main__":
    main()

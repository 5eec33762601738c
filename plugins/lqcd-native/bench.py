"""Rates of the backend ``native`` on this machine, with its measured limits beside them.

    python plugins/lqcd-native/bench.py [--quick] [--threads 1 2] [--lattices 8 16] [--repeat 7]

Flops are counted as 1320 per site and right-hand side for the hopping term (8 x 12 project, 8 x 132 multiply, 8 x 24 - 24
add), whatever else a kernel does. Each figure is the median of interleaved runs, with the range behind it. Run it on an
idle machine: on a shared one the best of the runs says more than the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np
from lqcd_native import _native
from lqcd_native.backend import NativeBackend

from lqcd_core.backend import DiracTerms, Links, SiteDiagonal
from lqcd_core.geometry import EVEN, LatticeGeometry
from lqcd_core.precision import as_precision

FLOPS = 1320


def links_of(geometry):
    """Random SU(3) links."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(*geometry.shape, 4, 3, 3)) + 1j * rng.normal(size=(*geometry.shape, 4, 3, 3))
    q = np.linalg.qr(a)[0]
    u = q / np.linalg.det(q)[..., None, None] ** (1 / 3)
    return Links(geometry, u, digest=f"bench{geometry.shape}")


def spinors(space, n):
    """A handle of n random columns (one drawn column, so that large batches are made quickly)."""
    shape = space.geometry.parity_shape(space.parity)
    rng = np.random.default_rng(2)
    one = (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(space.precision.complex_dtype)
    return space.take(space.pack(one[None]), [0] * n)


def seconds(function, target):
    """Seconds of one call, averaged over calls that fill about ``target`` seconds."""
    start = time.perf_counter()
    function()
    once = max(time.perf_counter() - start, 1e-7)
    count = max(1, int(target / once))
    start = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - start) / count


def cases(arguments):
    """(label, function, sites x columns, flops per site) of every figure."""
    made = []
    for edge in arguments.lattices:
        geometry = LatticeGeometry(T=edge, Z=edge, Y=edge, X=edge)
        links = links_of(geometry)
        for precision in map(as_precision, arguments.precisions):
            for threads in arguments.threads:
                backend = NativeBackend(threads=threads, **arguments.options)
                for n in arguments.n_rhs:
                    space = backend.space(geometry, precision, n)
                    hop, x = backend.hopping(links, space), spinors(space, n)
                    tag = f"{edge}^4 {precision.name:6} n={n:<2} threads={threads}"
                    made.append((f"hop    {tag}", lambda f=hop, x=x: f(x), geometry.volume * n, FLOPS))
                    if not arguments.hop_only:
                        half = backend.space(geometry, precision, n, EVEN)
                        other = spinors(backend.space(geometry, precision, n, 1), n)
                        hop = backend.parity_hopping(links, half)
                        made.append((f"parity {tag}", lambda f=hop, x=other: f(x), geometry.volume * n // 2, FLOPS))
    return made


def clover_cases(arguments):
    """Fused M with clover blocks, counted in sites per second."""
    made = []
    for edge in arguments.lattices:
        geometry = LatticeGeometry(T=edge, Z=edge, Y=edge, X=edge)
        links = links_of(geometry)
        blocks = np.broadcast_to(np.eye(6, dtype=complex), (*geometry.shape, 2, 6, 6)).copy()
        terms = DiracTerms(links=links, diagonal=SiteDiagonal(scalar=4.1, blocks=blocks))
        for precision in map(as_precision, arguments.precisions):
            for threads in arguments.threads:
                backend = NativeBackend(threads=threads, **arguments.options)
                space = backend.space(geometry, precision, 1)
                m, x = backend.fused("M", terms, space), spinors(space, 1)
                tag = f"{edge}^4 {precision.name:6} n=1  threads={threads}"
                made.append((f"clover {tag}", lambda f=m, x=x: f(x), geometry.volume, FLOPS + 504))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lattices", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--n-rhs", type=int, nargs="+", default=[1, 12])
    parser.add_argument("--precisions", nargs="+", default=["single", "double"])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="length of one run")
    parser.add_argument("--hop-only", action="store_true")
    parser.add_argument("--isa")
    parser.add_argument("--block", type=int)
    parser.add_argument("--tile", type=int)
    parser.add_argument("--stores", default="auto")
    arguments = parser.parse_args()
    arguments.options = dict(isa=arguments.isa, block=arguments.block, tile=arguments.tile, stores=arguments.stores)
    print(NativeBackend(**arguments.options).describe())
    for threads in arguments.threads:
        print(
            f"machine, {threads} thread(s):", _native.measure_machine(NativeBackend(**arguments.options).isa, threads)
        )
    made = cases(arguments) + ([] if arguments.hop_only else clover_cases(arguments))
    times = {label: [] for label, *_ in made}
    for _ in range(arguments.repeat):  # interleaved, so that a disturbance hits every figure alike
        for label, function, *_ in made:
            times[label].append(seconds(function, arguments.seconds))
    print(f"{'':40}{'GFLOP/s':>9}{'range':>16}{'Msites/s':>10}")
    for label, _, sites, flops in made:
        rates = sorted(sites * flops / t / 1e9 for t in times[label])
        middle = statistics.median(rates)
        print(f"{label:40}{middle:9.1f}{rates[0]:8.1f}{rates[-1]:8.1f}{middle * 1e3 / flops:10.2f}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

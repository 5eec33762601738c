"""Times of this backend's kernels on this machine: ``python -m lqcd_backends.torch.measure --help``.

The best of several calls, since other programs only ever add time. With one thread the processor time is taken, so a busy
machine hardly matters; with more it is wall time, and the machine should be idle: torch's threads wait for each other after
every operation.
"""

from __future__ import annotations

import argparse
import time

import torch

from lqcd_core.backend import DiracTerms, Links, SiteDiagonal
from lqcd_core.geometry import EVEN, LatticeGeometry
from lqcd_core.precision import as_precision
from lqcd_core.spaces import Vectors

from .backend import TorchBackend

HOPPING_FLOPS, CLOVER_FLOPS = 1320, 552
"""Per site, Nc = 3: the usual counts (Wilson hopping term; two Hermitian 6x6 blocks)."""


def best(function, clock, repeats: int) -> float:
    """Seconds of the fastest call."""
    function()
    times = []
    for _ in range(repeats):
        start = clock()
        function()
        times.append(clock() - start)
    return min(times)


def measure(shape, precision: str, threads: int, n_rhs: int, chunk: int | None, repeats: int) -> None:
    """Print one line per kernel."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    g, p = LatticeGeometry.from_shape(shape), as_precision(precision)
    backend = TorchBackend(chunk=chunk)
    space = backend.space(g, p, n_rhs)
    vectors = Vectors(space)
    links = Links(g, torch.randn(g.gauge_shape, dtype=torch.complex64))
    half = torch.randn(*g.shape, 2, 6, 6, dtype=torch.complex64)
    blocks = half + half.mH
    x = space.pack(torch.randn(n_rhs, *g.spinor_shape, dtype=torch.complex64))
    y, z, w = space.copy(x), space.copy(x), space.copy(x)
    sites = g.volume * n_rhs

    def line(name, function, flops=0):
        seconds = best(function, clock, repeats)
        rate = f"{flops * sites / seconds / 1e9:8.2f} GFLOP/s" if flops else ""
        print(f"{name:34s}{seconds * 1e3:10.2f} ms{seconds / sites * 1e9:8.0f} ns/site{rate}", flush=True)

    print(f"{shape} {precision} n_rhs={n_rhs} threads={threads}; {backend.describe()}")
    hop = backend.hopping(links, space)
    line("hopping", lambda: hop(x), HOPPING_FLOPS)
    for name, term, flops in (
        ("wilson", SiteDiagonal(scalar=4.1), HOPPING_FLOPS),
        ("clover", SiteDiagonal(scalar=4.1, blocks=blocks), HOPPING_FLOPS + CLOVER_FLOPS),
    ):
        fused = backend.fused("M", DiracTerms(links=links, diagonal=term), space)
        a = backend.site_diagonal(term, space)
        line(f"M {name}, fused", lambda m=fused: m(x), flops)
        line(f"M {name}, derived", lambda a=a: vectors.axpy(-1.0, hop(x), a(x)), flops)
    if g.why_no_parity() is None:
        even = backend.space(g, p, n_rhs, EVEN)
        v = even.pack(torch.randn(n_rhs, *g.parity_shape(EVEN), dtype=torch.complex64))
        terms = DiracTerms(links=links, diagonal=SiteDiagonal(scalar=4.1), parity=EVEN)
        schur = backend.fused("schur", terms, even)
        line("schur wilson, fused", lambda: schur(v), HOPPING_FLOPS)
    line("norm2", lambda: space.norm2(x))
    line("cg_update, fused", lambda: space.cg_update(1e-3, x, y, z, w))
    line("cg_update, derived", lambda: Vectors.cg_update(_Plain(space), 1e-3, x, y, z, w))


class _Plain(Vectors):
    """The vector operations derived from the seven alone."""

    axpy_norm2 = Vectors.axpy_norm2

    def __init__(self, space):
        self.axpy, self.norm2 = space.axpy, space.norm2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lattice", type=int, nargs=4, default=(16, 16, 16, 16), metavar=("T", "Z", "Y", "X"))
    parser.add_argument("--precision", default="single")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--n-rhs", type=int, nargs="+", default=(1, 12))
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--repeats", type=int, default=10)
    a = parser.parse_args()
    for n in a.n_rhs:
        measure(tuple(a.lattice), a.precision, a.threads, n, a.chunk, a.repeats)


if __name__ == "__main__":
    main()

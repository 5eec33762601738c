"""What cutting a lattice gains, and what it costs: shards against one, in turn, on this machine.

    python -m lqcd_backends.sharded.measure --inner torch --lattice 32 16 16 16 --n-rhs 12 --executor processes

For the hopping term, M and a few iterations of CG it prints the median wall time of each, the ratio (median over
repeats, the two measured in turn so that a busy machine slows both), the ratio of the shortest times (``best``: what the
machine gave in its quietest moments; each runs once untimed before it is timed), and for threads the processor seconds that the cut
lattice needs for every one of the whole: its excess over 1 is all that cutting costs, however busy the machine is.
Then what one shard costs over the inner backend, exact reductions over fast ones, and how much of the faces' travel the
interior covered (interior seconds / (interior + waiting) over all workers and hops). ``--own-threads`` measures the inner
backend alone with a thread a shard in the same turns: what the machine lets any second core gain. ``--json`` prints every repeat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np


def measure(
    inner: str, lattice, n_rhs: int, precision: str, executor: str, shards: int, repeats: int, own_threads: bool = False
) -> dict[str, Any]:
    """Seconds and ratios by name; see the module and :func:`show`.

    Returns
    -------
    dict
        ``asked``: the arguments. ``work``: by operation and variant (``inner`` without the executor, ``1``, ``<shards>``,
        ``<shards> fast`` and ``threads``) the wall and processor seconds of every repeat. ``one_shard_overhead``: by operation, the
        median of 1 shard / inner, less 1. ``exact_cost``: the median of exact / fast over the iterations of CG, less 1.
        ``overlap``: of the time in which faces travelled, the part that the interior covered.
    """
    import lqcd_core as lqcd

    asked = {
        "inner": inner, "lattice": list(lattice), "n_rhs": n_rhs, "precision": precision, "executor": executor,
        "shards": shards, "repeats": repeats,
    }  # fmt: skip
    g = lqcd.LatticeGeometry.from_shape(lattice)
    U = lqcd.GaugeField.random(g, seed=1)
    rng = np.random.default_rng(0)
    psi = rng.normal(size=(n_rhs, *g.spinor_shape)) + 1j * rng.normal(size=(n_rhs, *g.spinor_shape))
    options = {"inner": inner, "executor": executor}
    backends = {
        "inner": inner,
        "1": ("sharded", {**options, "shards": 1}),
        f"{shards}": ("sharded", {**options, "shards": shards}),
        f"{shards} fast": ("sharded", {**options, "shards": shards, "reductions": "fast"}),
    }
    if own_threads:
        backends["threads"] = (inner, {"threads": shards})
    bound = {
        k: lqcd.WilsonDirac(mass=0.4).bind(U, backend=b, precision=precision, n_rhs=n_rhs) for k, b in backends.items()
    }
    start = {k: M.space.pack(psi) for k, M in bound.items()}
    solver = lqcd.ConjugateGradient(tol=1e-5, maxiter=5)
    work = {
        "H": lambda k: bound[k].hopping(start[k]),
        "M": lambda k: bound[k].apply(start[k]),
        "CG, 5 iterations": lambda k: solver.solve_handles(bound[k].normal_linear, start[k]),
    }
    team = getattr(bound[f"{shards}"].space, "team", None)
    seconds: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, function in work.items():
        seconds[name] = {k: {"wall": [], "cpu": []} for k in bound}
        for repeat in range(repeats + 1):
            if repeat == 1 and team is not None and name == "H":
                team.call("times")  # the first one warms up
            for key in bound:
                function(key)  # untimed: a processor that slept through one shard's turn is slow to begin with
                t, c = time.perf_counter(), time.process_time()
                function(key)
                if repeat:
                    seconds[name][key]["wall"].append(time.perf_counter() - t)
                    seconds[name][key]["cpu"].append(time.process_time() - c)
        if name == "H":
            times = np.sum(team.call("times"), axis=0) if team is not None else np.zeros(2)
    fast, cg = seconds["CG, 5 iterations"][f"{shards} fast"]["wall"], seconds["CG, 5 iterations"][f"{shards}"]["wall"]
    return {
        "asked": asked,
        "work": seconds,
        "one_shard_overhead": {n: _ratio(w["1"]["wall"], w["inner"]["wall"]) - 1 for n, w in seconds.items()},
        "exact_cost": _ratio(cg, fast) - 1,
        "overlap": float(times[0] / times.sum()) if times.sum() else None,
    }


def _ratio(above: list[float], below: list[float]) -> float:
    """Median of the ratios of what was measured in turn."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def show(got: dict[str, Any]) -> None:
    """Print what :func:`measure` gave, as a table."""
    asked = got["asked"]
    shards, threads = asked["shards"], asked["executor"] == "threads"
    size = "x".join(map(str, asked["lattice"]))
    print(
        f"{asked['inner']}, {size}, {asked['n_rhs']} right-hand sides, {asked['precision']}, {asked['executor']}, {shards} shards"
    )
    for name, by in got["work"].items():
        one = by["1"]
        for key in (k for k in by if k not in ("inner", "1")):
            cut = by[key]
            line = f"{name:18} {key:7} 1 shard {1e3 * statistics.median(one['wall']):8.1f} ms"
            line += f"  cut {1e3 * statistics.median(cut['wall']):8.1f} ms  speed-up {_ratio(one['wall'], cut['wall']):5.2f}"
            line += f"  best {min(one['wall']) / min(cut['wall']):5.2f}"
            if threads:
                line += f"  processor time {statistics.median(cut['cpu']) / statistics.median(one['cpu']):5.2f}"
            print(line, flush=True)
        print(f"{name:18} 1 shard over the inner backend {100 * got['one_shard_overhead'][name]:+.1f} %")
    print(f"exact reductions over fast, CG {100 * got['exact_cost']:+.1f} %")
    if got["overlap"] is not None:
        print(f"faces were covered by the interior for {100 * got['overlap']:.0f} % of the time")


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
    parser.add_argument(
        "--own-threads",
        action="store_true",
        help="also the inner backend alone, with a thread a shard (not torch: its threads belong to the process)",
    )
    parser.add_argument("--json", action="store_true", help="print everything that was measured as JSON")
    a = parser.parse_args()
    got = measure(a.inner, tuple(a.lattice), a.n_rhs, a.precision, a.executor, a.shards, a.repeats, a.own_threads)
    if a.json:
        print(json.dumps(got))
    else:
        show(got)


if __name__ == "__main__":
    main()

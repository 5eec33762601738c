"""On an instance: what the kernels of the backend neuron-nki reach, where the vendor's pages leave it open. One JSON file.

    python examples/neuron_nki_microbenchmarks.py results.json [--seconds 2] [--lattice 8,8,8,8] [--rhs 1,12]

For each precision, number of right-hand sides and kernel: first-call cost, launches per second of M, M^dagger M, a vector update, a
sum and a CG update, sites per second, the error of M against the reference, and the cost model's prediction beside them. The
smallest lattice gives the round trip of a launch. Single instructions (their floors, array tiles side by side) are seen through
these only. Please send the file.
"""

import argparse
import json
import platform
import time

import numpy as np

import lqcd_core as lqcd
from lqcd_core.errors import LQCDError
from lqcd_core.registry import REGISTRY


def rate(call, backend, seconds):
    """Median launches per second of five batches; the device has finished when a batch ends."""
    call()
    backend.executor.synchronize()
    start, count = time.perf_counter(), 0
    while count < 1 or time.perf_counter() - start < seconds / 10:
        call()
        count += 1
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            call()
        backend.executor.synchronize()
        rates.append(count / (time.perf_counter() - start))
    return float(np.median(rates))


def measure(U, precision, n_rhs, formulation, seconds):
    D = lqcd.WilsonDirac(mass=0.1)
    chosen = ("neuron-nki", {"formulation": formulation})
    M = D.bind(U, backend=chosen, precision=precision, n_rhs=n_rhs)
    rng = np.random.default_rng(1)
    psi = (rng.normal(size=(n_rhs, *U.geometry.spinor_shape, 2)) @ [1, 1j]).astype(np.complex64)
    v, x = M.vectors, M.vectors.pack(psi)
    start = time.perf_counter()
    y = v.unpack(M.apply(x))
    first = time.perf_counter() - start
    want = D.bind(U, backend="numpy", precision="double", n_rhs=n_rhs)(psi)
    row = {
        "model": str(lqcd.explain(D, U, backend=chosen, precision=precision, n_rhs=n_rhs)).splitlines()[1:4],
        "relative_error": float(np.linalg.norm(y - want) / np.linalg.norm(want)),
        "norm_error": float(
            np.abs(v.norm2(x) / (np.abs(v.unpack(x).astype(complex)) ** 2).reshape(n_rhs, -1).sum(1) - 1).max()
        ),
    }
    if not seconds:
        return row
    h = v.pack(psi)
    calls = {
        "M": lambda: M.apply(x), "MdagM": lambda: M.apply_normal(x), "axpy": lambda: v.axpy(0.5, x, h), "inner": lambda: v.inner(x, h),
        "cg_update": lambda: v.cg_update(0.1, x, h, x, h),
    }  # fmt: skip
    row["first_call_seconds"] = first
    for name, call in calls.items():
        per_second = rate(call, M.backend, seconds)
        row[f"{name}_per_second"] = per_second
        row[f"{name}_site_rhs_per_second"] = per_second * n_rhs * U.geometry.volume
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--seconds", type=float, default=2.0, help="time per measurement")
    parser.add_argument("--lattice", default="8,8,8,8", help="T,Z,Y,X")
    parser.add_argument("--rhs", default="1,12", help="numbers of right-hand sides")
    parser.add_argument("--precision", default="single,half,bf16")
    a = parser.parse_args()
    try:
        machine = dict(REGISTRY.load("neuron-nki").instance.describe())
    except LQCDError as error:
        raise SystemExit(f"nothing to measure: {error}") from None
    stand_in = machine.get("stand_in", "")
    seconds = 0.0 if stand_in else a.seconds  # a pretended device has no times
    U = lqcd.GaugeField.random(lqcd.LatticeGeometry.from_shape([int(n) for n in a.lattice.split(",")]), seed=1)
    tiny = lqcd.GaugeField.cold(lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2))
    cases = [("round trip", tiny, "single", 1, "vector")]
    for precision in a.precision.split(","):
        for n in a.rhs.split(","):
            cases += [("M", U, precision, int(n), formulation) for formulation in ("vector", "tensor")]
    results = []
    for name, field, precision, n, formulation in cases:
        try:
            row = measure(field, precision, n, formulation, seconds)
        except LQCDError as error:
            row = {"error": str(error)}
        what = {
            "case": name,
            "lattice": field.geometry.shape,
            "precision": precision,
            "n_rhs": n,
            "formulation": formulation,
        }
        results.append({**what, **row})
        print(name, precision, n, formulation, row.get("error", "done"), flush=True)
    with open(a.output, "w") as f:
        json.dump(
            {"machine": machine, "stand_in": stand_in, "python": platform.python_version(), "results": results},
            f,
            indent=1,
        )
    print("wrote", a.output)


if __name__ == "__main__":
    main()

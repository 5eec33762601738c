"""Ten minutes on an Inf2, Trn1, Trn2 or Trn3 instance: measure what documentation leaves open, write one JSON file.

    python examples/neuron_first_hour.py results.json [--seconds 2] [--lattice 8,8,8,8]

It measures, through the backend neuron-traced: first-call cost, the round trip of a nearly empty graph, calls per second of M
by formulation, precision and number of right-hand sides, and its error against the reference. What needs kernels of one's
own (single instructions of an engine, DMA runs, array tiles) is not measured here. Please send the file.
"""

import argparse
import json
import platform
import time
from importlib import import_module

import numpy as np

import lqcd_core as lqcd
from lqcd_core.errors import LQCDError
from lqcd_core.registry import REGISTRY


def calls_per_second(function, x, seconds):
    """Median of five batches of calls."""
    function(x)
    start, count = time.perf_counter(), 0
    while count < 1 or time.perf_counter() - start < seconds / 10:
        function(x)
        count += 1
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            y = function(x)
        np.asarray(y.to("cpu").flatten()[:1].float())  # the device has finished when a number is here
        rates.append(count / (time.perf_counter() - start))
    return float(np.median(rates))


def measure(U, precision, n_rhs, options, seconds):
    D = lqcd.WilsonDirac(mass=0.1)
    M = D.bind(U, backend=("neuron-traced", options), precision=precision, n_rhs=n_rhs)
    rng = np.random.default_rng(1)
    psi = (rng.normal(size=(n_rhs, *U.geometry.spinor_shape, 2)) @ [1, 1j]).astype(np.complex64)
    x = M.vectors.pack(psi)
    start = time.perf_counter()
    y = M.vectors.unpack(M.apply(x))
    first = time.perf_counter() - start
    want = D.bind(U, backend="numpy", precision="double", n_rhs=n_rhs)(psi)
    rate = calls_per_second(M.apply, x, seconds)
    row = {
        "decision": str(M.apply.decision),
        "relative_error": float(np.linalg.norm(y - want) / np.linalg.norm(want)),
    }
    if seconds:
        rate = calls_per_second(M.apply, x, seconds)
        row.update(first_call_seconds=first, report=M.apply.report(), calls_per_second=rate)
        row["site_rhs_per_second"] = rate * n_rhs * U.geometry.volume
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--seconds", type=float, default=2.0, help="time per measurement")
    parser.add_argument("--lattice", default="8,8,8,8", help="T,Z,Y,X")
    parser.add_argument("--rhs", default="1,12", help="numbers of right-hand sides")
    a = parser.parse_args()
    try:
        machine = dict(REGISTRY.load("neuron-traced").instance.describe())
    except LQCDError as error:
        raise SystemExit(f"nothing to measure: {error}") from None
    stand_in = bool(getattr(import_module("torch_neuronx"), "STAND_IN", False))
    seconds = 0.0 if stand_in else a.seconds  # a pretended device has no times
    g = lqcd.LatticeGeometry.from_shape([int(n) for n in a.lattice.split(",")])
    counts = [int(n) for n in a.rhs.split(",")]
    tiny = lqcd.GaugeField.cold(lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2))
    U = lqcd.GaugeField.random(g, seed=1)
    cases = [("round trip", tiny, "single", 1, {"formulation": "fused"})]
    for precision in ("single", "bf16", "half"):
        for n in counts:
            for formulation in ("half", "fused"):
                cases.append(("M", U, precision, n, {"formulation": formulation}))
    cases.append(("M baked", U, "bf16", counts[-1], {"gauge": "baked", "formulation": "fused"}))
    cases.append(("M argument", U, "bf16", counts[-1], {"gauge": "argument", "formulation": "fused"}))
    results = []
    for name, field, precision, n, options in cases:
        try:
            row = measure(field, precision, n, options, seconds)
        except LQCDError as error:
            row = {"error": str(error)}
        what = {"case": name, "lattice": field.geometry.shape, "precision": precision, "n_rhs": n, "options": options}
        results.append({**what, **row})
        print(name, precision, n, options, row.get("error", "done"), flush=True)
    with open(a.output, "w") as f:
        json.dump(
            {"machine": machine, "stand_in": stand_in, "python": platform.python_version(), "results": results},
            f,
            indent=1,
        )
    print("wrote", a.output)


if __name__ == "__main__":
    main()

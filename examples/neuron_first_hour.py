"""The first hour on an Inf2, Trn1, Trn2 or Trn3 instance: measure what documentation leaves open, write one JSON file.

    python examples/neuron_first_hour.py results.json [--seconds 2] [--lattice 8,8,8,8] [--rhs 1,12] [--parts traced,...]

Three parts, each run where the machine offers it; one that cannot run says why.

traced
    Graphs of the backend neuron-traced: first-call cost, round trip of a nearly empty graph, calls of M by formulation, precision
    and number of right-hand sides, error against the reference.
nki_launches
    Whole kernels of neuron-nki: first-call cost, launches of M, M^dagger M, a vector update, a sum and a CG update, errors, and the
    cost model's prediction beside them.
nki_instructions
    Single instructions of neuron-nki, from the difference of two repetition counts: tensor_tensor, scalar_tensor_tensor, nc_matmul,
    tiles of the array side by side, dma_copy, the round trip of an empty kernel, fori_loop.

Please send the file. A stand-in is checked and never timed.
"""

import argparse
import json
import platform
import time
from importlib import import_module

import numpy as np
from lqcd_backends.neuron.nki.microbenchmark_specs import launch_seconds, measure_instructions

import lqcd_core as lqcd
from lqcd_core.errors import LQCDError
from lqcd_core.registry import REGISTRY

BACKENDS = {"traced": "neuron-traced", "nki_launches": "neuron-nki", "nki_instructions": "neuron-nki"}


def label_of(name, backend):
    """What a stand-in calls itself; '' on hardware."""
    if name == "traced":
        return "STAND-IN" if getattr(import_module("torch_neuronx"), "STAND_IN", False) else ""
    return backend.label


def bound(U, chosen, precision, n_rhs):
    """(M, a vector, that vector packed, the first call's seconds, the error of M against the reference)."""
    D = lqcd.WilsonDirac(mass=0.1)
    M = D.bind(U, backend=chosen, precision=precision, n_rhs=n_rhs)
    rng = np.random.default_rng(1)
    psi = (rng.normal(size=(n_rhs, *U.geometry.spinor_shape, 2)) @ [1, 1j]).astype(np.complex64)
    x = M.vectors.pack(psi)
    start = time.perf_counter()
    y = M.vectors.unpack(M.apply(x))
    first = time.perf_counter() - start
    want = D.bind(U, backend="numpy", precision="double", n_rhs=n_rhs)(psi)
    return M, psi, x, first, float(np.linalg.norm(y - want) / np.linalg.norm(want))


def measure_graph(U, precision, n_rhs, options, seconds):
    M, _, x, first, error = bound(U, ("neuron-traced", options), precision, n_rhs)
    row = {"decision": str(M.apply.decision), "relative_error": error}
    if seconds:
        last = [M.apply(x)]

        def call():
            last[0] = M.apply(x)

        def synchronize():  # the device has finished when a number is here
            np.asarray(last[0].to("cpu").flatten()[:1].float())

        rate = 1 / launch_seconds(call, synchronize, seconds)
        row.update(first_call_seconds=first, report=M.apply.report(), calls_per_second=rate)
        row["site_rhs_per_second"] = rate * n_rhs * U.geometry.volume
    return row


def measure_kernels(U, precision, n_rhs, options, seconds):
    chosen = ("neuron-nki", options)
    M, psi, x, first, error = bound(U, chosen, precision, n_rhs)
    v = M.vectors
    norms = (np.abs(v.unpack(x).astype(complex)) ** 2).reshape(n_rhs, -1).sum(1)
    explained = str(lqcd.explain(lqcd.WilsonDirac(mass=0.1), U, backend=chosen, precision=precision, n_rhs=n_rhs))
    row = {
        "model": explained.splitlines()[1:4],
        "relative_error": error,
        "norm_error": float(np.abs(v.norm2(x) / norms - 1).max()),
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
        per_second = 1 / launch_seconds(call, M.backend.executor.synchronize, seconds)
        row[f"{name}_per_second"] = per_second
        row[f"{name}_site_rhs_per_second"] = per_second * n_rhs * U.geometry.volume
    return row


def cases(part, U, precisions, counts):
    """(case, gauge field, precision, right-hand sides, options) of a part."""
    formulations = ("half", "fused") if part == "traced" else ("vector", "tensor")
    if part == "traced":  # the empty kernel of nki_instructions is the other route's
        tiny = lqcd.GaugeField.cold(lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2))
        yield "round trip", tiny, "single", 1, {"formulation": "fused"}
    for precision in precisions:
        for n in counts:
            for formulation in formulations:
                yield "M", U, precision, n, {"formulation": formulation}
    if part == "traced":
        for gauge in ("baked", "argument"):
            yield f"M {gauge}", U, "bf16", counts[-1], {"gauge": gauge, "formulation": "fused"}


def measure_cases(part, U, precisions, counts, seconds):
    measure = measure_graph if part == "traced" else measure_kernels
    for name, field, precision, n, options in cases(part, U, precisions, counts):
        row = {"case": name, "lattice": field.geometry.shape, "precision": precision, "n_rhs": n, "options": options}
        try:
            row.update(measure(field, precision, n, options, seconds))
        except LQCDError as error:
            row["error"] = str(error)
        print(part, name, precision, n, options, row.get("error", "done"), flush=True)
        yield row


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--seconds", type=float, default=2.0, help="time per measurement")
    parser.add_argument("--lattice", type=numbers, default="8,8,8,8", help="T,Z,Y,X")
    parser.add_argument("--rhs", type=numbers, default="1,12", help="numbers of right-hand sides")
    parser.add_argument("--precision", default="single,half,bf16")
    parser.add_argument("--parts", default=",".join(BACKENDS), help="what to measure")
    a = parser.parse_args()
    if a.seconds <= 0:
        parser.error(f"--seconds {a.seconds:g}: must be positive")
    asked = a.parts.split(",")
    if unknown := [part for part in asked if part not in BACKENDS]:
        parser.error(f"--parts {','.join(unknown)}: there are {', '.join(BACKENDS)}")
    parts, backends = {}, {}
    for part in asked:
        try:
            backends[part] = REGISTRY.load(BACKENDS[part]).instance
            parts[part] = {
                "stand_in": label_of(part, backends[part]), "machine": dict(backends[part].describe()), "results": []
            }  # fmt: skip
        except LQCDError as error:
            backends.pop(part, None)
            parts[part] = {"unavailable": str(error)}
            print(f"{part}: not available: {error}", flush=True)
    if not backends:
        why = "\n".join(dict.fromkeys(p["unavailable"] for p in parts.values()))
        raise SystemExit(f"nothing to measure: {why}")
    stand_in = next((parts[p]["stand_in"] for p in backends if parts[p]["stand_in"]), "")
    seconds = 0.0 if stand_in else a.seconds  # a pretended device has no times
    try:
        U = lqcd.GaugeField.random(lqcd.LatticeGeometry.from_shape(a.lattice), seed=1)
    except LQCDError as error:
        parser.error(f"--lattice: {error}")
    counts, precisions = a.rhs, a.precision.split(",")
    for part, backend in backends.items():
        if part == "nki_instructions":
            rows = measure_instructions(backend, seconds)
            print(part, len(rows), "instructions,", sum("error" in r for r in rows), "failed", flush=True)
        else:
            rows = list(measure_cases(part, U, precisions, counts, seconds))
        parts[part]["results"] = rows
    with open(a.output, "w") as f:
        json.dump({"stand_in": stand_in, "python": platform.python_version(), "parts": parts}, f, indent=1)
    print("wrote", a.output)


if __name__ == "__main__":
    main()

"""Every microkernel issues the instructions it claims, computes the right numbers, and no stand-in is ever timed."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lqcd_backends.neuron.nki import microbenchmark_specs as mb
from nki_lattice import count, launch
from nki_machine import machine

from lqcd_core.registry import REGISTRY

CASES = mb.microbenchmarks()
every = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.question}, {c.n} {c.dtype}")


@pytest.mark.parametrize(
    ("generation", "case"),
    [(g, c) for g in (2, 3, 4) for c in mb.microbenchmarks(g)],
    ids=lambda v: getattr(v, "question", v),
)
def test_the_instructions_are_those_claimed_and_the_results_right(generation, case):
    arrays = case.arrays()
    for repetitions in mb.CHECKED if case.repeats else (1,):
        done = launch(case.spec(repetitions), arrays, generation)
        assert {k: v for k, v in done.report.ops.items() if v} == case.instructions(repetitions)
        assert done.report.loop_turns == (repetitions if case.kernel == "loop" else 0)
        for got, want in zip(done.outputs, case.expected(repetitions, arrays), strict=True):
            assert np.array_equal(got.astype(np.float64), want)


@every
def test_two_counts_differ_in_the_repeated_instruction_alone(case):
    if not case.repeats:
        assert case.instructions(1) == {"dma_copy": 2}
        return
    few, many = (case.instructions(n) for n in case.counts)
    changed = {name: many[name] - few[name] for name in many if many[name] != few[name]}
    extra = {"tensor_tensor": 256} if case.kernel == "dma_copy" else {}  # one column, on another engine
    assert changed == {case.instruction: case.counts[1] - case.counts[0], **extra}


@pytest.mark.parametrize(("generation", "tiles"), ((2, 2), (3, 4)))
def test_tiles_side_by_side_are_all_those_of_the_diagonal(generation, tiles):
    for case in mb.microbenchmarks(generation):
        if case.options.get("slots", 1) > 1:
            assert case.options["slots"] == tiles and case.options["tile"] * tiles == 128
            arrays = case.arrays()
            products = [arrays["stationary"][k : k + 24].T for k in range(0, 128, case.options["tile"])]
            assert len({p.tobytes() for p in products}) == tiles  # a product on a wrong tile would be another


def test_a_wrong_result_is_seen():
    case = next(c for c in CASES if c.kernel == "nc_matmul")
    arrays = case.arrays()
    (got,) = launch(case.spec(16), arrays).outputs
    assert not np.array_equal(got, case.expected(17, arrays)[0])


def test_the_runs_are_those_asked_for():
    for case in CASES:
        if case.kernel == "dma_copy":
            few, many = (launch(case.spec(n), case.arrays()).report for n in mb.CHECKED)
            more = mb.CHECKED[1] - mb.CHECKED[0]
            assert many.dma_bytes - few.dma_bytes == more * 128 * 4 * case.n
            assert many.dma_descriptors - few.dma_descriptors == more * 128


def test_the_counts_that_are_timed_fit_the_machine():
    for case in CASES:
        if case.repeats:
            assert 2 * sum(case.instructions(max(case.counts)).values()) < 5_000_000  # nc_matmul is two
    spec = next(c for c in CASES if c.kernel == "nc_matmul").spec(260)
    assert count(spec).static_instructions >= 2 * 260  # unrolled


@pytest.mark.parametrize(("instance", "lnc"), (("trn2.3xlarge", 2), ("inf2.xlarge", 1)))
def test_they_run_through_the_runtime_and_a_stand_in_is_not_timed(instance, lnc):
    with machine(instance, lnc=lnc):
        rows = mb.measure_instructions(REGISTRY.load("neuron-nki").instance, seconds=1.0)
    assert len(rows) == len(CASES) and "second" not in json.dumps(rows)
    assert all(row["exact"] is True and "error" not in row for row in rows)


def test_a_time_per_instruction_is_the_slope(monkeypatch):
    case = next(c for c in CASES if c.kernel == "tensor_tensor" and c.ring == 1)

    class Device:
        """Runs nothing: gives back what is right, and a clock that has a start and a slope."""

        def place(self, array, name):
            return array

        def launch(self, spec):
            self.count = spec.constants["repetitions"]
            return lambda *given: case.expected(self.count, case.arrays())

        def fetch(self, array, shape, dtype):
            return array

        def synchronize(self):
            pass

    device = Device()
    monkeypatch.setattr(mb, "launch_seconds", lambda call, synchronize, seconds: 5e-5 + 6e-8 * device.count)
    row = mb.measure(device, case, seconds=1.0)
    assert row["exact"] and row["seconds_per_instruction"] == pytest.approx(6e-8)

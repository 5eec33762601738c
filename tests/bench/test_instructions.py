"""Instructions per site of the native kernels may not grow by more than 3 % over the record, `asv_benchmarks/instructions.json`.

Counted under callgrind, so that neither the clock nor another program plays a part. A kernel that must grow brings its new record in the
same commit: ``make instructions-record``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "asv_benchmarks" / "instructions.py"
spec = importlib.util.spec_from_file_location("lqcd_instructions", PROGRAM)
instructions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(instructions)


def test_native_kernels_need_no_more_instructions_than_recorded():
    reason = instructions.why_not()
    if reason:
        pytest.skip(reason)
    record, compiler = instructions.recorded(), instructions.compiler()
    if compiler not in record:
        pytest.skip(
            f"no record for {compiler} (there are {', '.join(record) or 'none'}): make instructions-record makes one"
        )
    grown = instructions.compare(instructions.count(), record[compiler])
    assert not grown, "; ".join(grown) + ". If it must be so: make instructions-record, in the same commit."


def test_the_guard_sees_growth_and_what_has_no_record():
    record = {"hop double n_rhs=1": 1000.0}
    assert instructions.compare({"hop double n_rhs=1": 1029.0}, record) == []
    (grown,) = instructions.compare({"hop double n_rhs=1": 1031.0}, record)
    assert "3.1 %" in grown
    assert "no record" in instructions.compare({"new": 1.0}, record)[0]


def test_the_record_holds_every_case():
    for compiler, record in instructions.recorded().items():
        assert set(record) == set(map(instructions.name_of, instructions.CASES)), compiler

"""``lqcd bench``: rows that stay, resuming, baselines, paired runs, pictures. Times are never judged, only what is made of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import attrs
import numpy as np
import pytest

from lqcd_core.bench import machine, sweep, table
from lqcd_core.bench.against import Foreign, ForeignError
from lqcd_core.bench.case import Case, bound
from lqcd_core.bench.machine import Cache, Limit, Limits
from lqcd_core.bench.work import WORK, work
from lqcd_core.bench.worker import Worker, WorkerLost
from lqcd_core.errors import ParameterError
from lqcd_core.precision import as_precision

QUICK = (
    "--backends",
    "numpy",
    "--precision",
    "double",
    "--rounds",
    "2",
    "--seconds",
    "0.001",
    "--limit-seconds",
    "0.01",
    "--threads",
    "1",
)
LIMITS = Limits(
    1, (Limit("single", 100.0, "a test"), Limit("double", 50.0, "a test")),
    (Limit("L2", 80.0, "a test", 1e6), Limit("memory", 10.0, "a test")),
)  # fmt: skip


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- counts and limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hop", "wilson", "clover"])
def test_counted_bytes_are_those_of_the_canonical_arrays(name):
    """Links, vector in, vector out, as NumPy stores them; the two Hermitian blocks of clover are 72 reals."""
    function, x, space, made = bound(name, (4, 2, 2, 2), "double", 3, "numpy")
    fields = made.links.array.nbytes + space.unpack(x).nbytes + space.unpack(function(x)).nbytes
    blocks = 72 * 8 * made.geometry.volume if name == "clover" else 0
    case = Case(operator=name, lattice=(4, 2, 2, 2), precision="double", n_rhs=3, backend="numpy", threads=1)
    assert case.bytes == fields + blocks


def test_parity_and_schur_count_two_half_hops():
    assert 2 * WORK["parity"].flops == WORK["hop"].flops == 1320
    # The symmetric form reads its argument once more and subtracts: 12 reals a site of the full lattice, 24 flops with the scaling.
    assert WORK["schur"].flops == 2 * WORK["parity"].flops + 24
    assert WORK["schur"].per_column == 2 * WORK["parity"].per_column + 12


@pytest.mark.parametrize("name", list(WORK))
def test_every_counted_operator_runs(name):
    function, x, space, made = bound(name, (4, 2, 2, 2), "double", 2, "numpy")
    assert (
        np.isfinite(made.vectors.norm2(function(x))).all()
        if name in ("hop", "wilson", "clover")
        else np.isfinite(space.norm2(function(x))).all()
    )


def test_the_roof_is_the_lower_of_peak_and_bandwidth():
    double = as_precision("double")
    assert LIMITS.roof(1e6, 1e6, double) == (50.0, "multiply-adds")  # 1 flop a byte x 80 GB/s in L2
    assert LIMITS.roof(0.5e6, 1e6, double) == (40.0, "L2")
    assert LIMITS.roof(2e6, 2e6, double) == (10.0, "memory")
    assert LIMITS.roof(1e6, 1e6, as_precision("bf16")) == (80.0, "L2")


def test_limits_survive_json_and_are_never_below_those_of_fewer_threads():
    from lqcd_core.cli.screen import plain

    assert Limits.from_plain(json.loads(json.dumps(plain(attrs.asdict(LIMITS))))) == LIMITS
    two = Limits(2, (Limit("single", 10.0, "x"), Limit("double", 90.0, "x")), LIMITS.levels).at_least(LIMITS)
    assert [p.value for p in two.peaks] == [100.0, 90.0] and "1 thread" in two.peaks[0].by


def test_working_sets_of_private_caches_grow_with_threads_and_end_in_memory():
    found = machine.working_sets(2, [Cache(1, 2**15, False), Cache(2, 2**19, False), Cache(3, 2**25, True)])
    assert [(name, holds) for name, holds, _ in found] == [
        ("L1", 2**16),
        ("L2", 2**20),
        ("L3", 2**25),
        ("memory", float("inf")),
    ]
    assert [size for *_, size in found] == [2**15, 2**19, 2**24, 2**27]


def test_a_nearer_level_is_never_slower_than_a_farther_one():
    slow, fast = Limit("L1", 5.0, "x", 1e3), Limit("L2", 9.0, "y", 1e6)
    first, second = machine._nearer_is_faster([slow, fast])
    assert (first.name, first.value, first.holds) == ("L1", 9.0, 1e3) and second == fast


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bandwidth_probe_really_adds(threads):
    assert machine.sum_bandwidth(2**15, threads, 0.01) > 0
    found = machine.measure(threads, budget=0.005)
    assert all(np.isfinite(x.value) and x.value > 0 and "NumPy" in x.by for x in (*found.peaks, *found.levels))


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_are_printed_and_kept_with_the_machine_first(lqcd, tmp_path):
    out = lqcd(
        "bench", "--lattice", "2x2x2x2", "--lattice", "4x2x2x2", "--batch", "1,3", *QUICK, "-o", tmp_path / "a.jsonl"
    )
    head, *rows = lines_of(tmp_path / "a.jsonl")
    assert head["format"] == sweep.FORMAT and head["machine"]["processors"] and set(head["limits"]) == {"1"}
    assert [(r["lattice"], r["batch"]) for r in rows] == [
        ([2, 2, 2, 2], 1),
        ([2, 2, 2, 2], 3),
        ([4, 2, 2, 2], 1),
        ([4, 2, 2, 2], 3),
    ]
    for row in rows:
        cells = {c["column"]: c for c in row["cells"]}
        volume, middle = np.prod(row["lattice"]), np.median(cells["single"]["seconds"])
        assert cells["single"]["gflops"] == pytest.approx(1320 * volume / middle / 1e9)
        assert cells["single"]["gbytes"] == pytest.approx((72 + 48) * 8 * volume / middle / 1e9)
        assert cells["single"]["fraction"] == pytest.approx(cells["single"]["gflops"] / cells["single"]["roof"])
        assert ("gflops" in cells["batched"]) == (row["batch"] > 1) and "why" in cells["multicore"]
        assert len(cells["single"]["seconds"]) == 2 and row["speed_up"] >= 1
    assert "1320 flops a site" in out.stdout and out.stdout.count(table.separator(["numpy"])) == 2
    assert out.stdout.count("GFLOP/s") >= 4 and "best speed-up" in out.stdout


def test_ratios_are_medians_of_each_rounds_own(tmp_path):
    plan = sweep.Plan(
        operator="hop", lattices=((2, 2, 2, 2),), precisions=("double",), batches=(2,), backends=("numpy",), threads=1
    )
    measuring = sweep.Sweep(plan, {1: LIMITS})
    cases = measuring.cases((2, 2, 2, 2), "double", 2)
    times = {("numpy", "single"): [1.0, 8.0, 2.0], ("numpy", "batched"): [1.0, 4.0, 4.0]}
    found = measuring._speed_up(cases, times)
    assert (
        found["speed_up"] == 2.0 and found["speed_up_range"] == [1.0, 4.0] and found["fastest"] == ["numpy", "batched"]
    )


def test_a_killed_sweep_keeps_its_rows_and_goes_on(lqcd, start_lqcd, tmp_path):
    path = tmp_path / "a.jsonl"
    words = [
        "bench",
        *(w for n in range(1, 9) for w in ("--lattice", f"{2 * n}x2x2x2")),
        "--batch",
        "1",
        *QUICK,
        "-o",
        str(path),
    ]
    process = start_lqcd(*words)
    end = time.monotonic() + 120
    while not (path.exists() and path.read_text().count("\n") >= 3):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = path.read_text()
    whole = kept[: kept.rfind("\n") + 1]
    path.write_text(whole + '{"kind": "row", "operator')  # what a kill in the middle of a line leaves
    assert lqcd(*words, code=2).stderr.count("--resume") == 1
    lqcd(*words, "--resume")
    assert path.read_text().startswith(whole) and [r["lattice"][0] for r in lines_of(path)[1:]] == list(range(2, 17, 2))


def test_resume_refuses_another_machine(lqcd, tmp_path):
    path = tmp_path / "a.jsonl"
    words = ["bench", "--lattice", "2x2x2x2", "--batch", "1", *QUICK, "-o", path]
    lqcd(*words)
    path.write_text(path.read_text().replace('"caches": "', '"caches": "other '))
    assert "measured otherwise: caches" in lqcd(*words, "--resume", code=2).stderr


def test_a_baseline_is_set_beside_each_row(lqcd, tmp_path):
    path = tmp_path / "a.jsonl"
    lqcd("bench", "--lattice", "2x2x2x2", "--batch", "1", *QUICK, "-o", path)
    out = lqcd(
        "bench", "--lattice", "2x2x2x2", "--lattice", "4x2x2x2", "--batch", "1", *QUICK, "--baseline", path
    ).stdout
    (line,) = (x for x in out.splitlines() if x.strip().startswith("before"))
    assert line.split()[1].endswith("x") and float(line.split()[1][:-1]) > 0


def test_pictures_are_drawn(lqcd, tmp_path):
    pytest.importorskip("matplotlib")
    lqcd("bench", "--lattice", "2x2x2x2", "--lattice", "4x2x2x2", "--batch", "1,2", *QUICK, "--plot", tmp_path / "p")
    for name in ("roofline", "volume", "n_rhs"):
        assert (tmp_path / "p" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        svg = (tmp_path / "p" / f"{name}.svg").read_text()
        assert "numpy" in svg or "<path" in svg


def test_a_backend_that_cannot_serve_says_why_and_the_row_goes_on(lqcd, tmp_path):
    out = lqcd(
        "bench", "--lattice", "2x2x2x2", "--batch", "1", *QUICK, "--backends", "sharded,numpy", "-o", tmp_path / "a.jsonl"
    )  # fmt: skip
    assert "sharded" in out.stderr and "inner" in out.stderr
    row = lines_of(tmp_path / "a.jsonl")[1]
    assert row["over"] == ["numpy", "single"]


def test_a_row_without_a_number_is_a_failure(lqcd):
    lqcd("bench", "--lattice", "2x2x2x2", "--batch", "1", *QUICK, "--precision", "fixed16", code=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--backends", "nunpy"), "numpy"),
        (("--batch", "0"), "at least 1"),
        (("--batch", "one"), "at least 1"),
        (("--precision", "dubble"), "double"),
        (("--lattice", "4x4x4"), "TxZxYxX"),
        (("--lattice", "0x4x4x4"), "at least"),
        (("--resume",), "--output"),
        (("--work", "1"), "--against"),
        (("--baseline", "no_such_file"), "no_such_file"),
        (("--against", "true"), "exactly one"),
        (("--against", "true", "--work", "-1"), "positive"),
        (("--against", "true", "--rate-pattern", "x("), "regular expression"),
        (("--against", "true", "--rate-pattern", "x"), "group"),
        (("--against", "true", "--work", "1", "--batch", "1,2"), "one batch"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(lqcd, words, said):
    out = lqcd("bench", "--lattice", "2x2x2x2", *QUICK, *words, code=2)
    assert said in out.stderr and len(out.stderr.strip().splitlines()) == 1


# -- workers -----------------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_a_reason():
    worker = Worker(1)
    try:
        os.kill(worker._process.pid, signal.SIGKILL)
        worker._process.wait()
        with pytest.raises(WorkerLost, match=r"signal 9 \(SIGKILL\)"):
            worker.ask(do="drop")
        assert not worker.alive
    finally:
        worker.close()


def test_threads_reach_the_libraries_of_a_worker(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    worker = Worker(3)
    try:
        environment = (
            open(f"/proc/{worker._process.pid}/environ").read() if os.path.exists("/proc/self/environ") else None
        )
        worker.ask(do="drop")
        environment = open(f"/proc/{worker._process.pid}/environ").read() if environment is not None else None
    finally:
        worker.close()
    if environment is None:
        pytest.skip("this system has no /proc")
    assert "OMP_NUM_THREADS=3\0" in environment and "OPENBLAS_NUM_THREADS=3\0" in environment


# -- against -----------------------------------------------------------------------------------------------------------


def test_paired_runs_report_the_median_of_the_ratios(lqcd, tmp_path):
    counter = tmp_path / "count"
    counter.write_text("0")
    program = tmp_path / "foreign.py"
    program.write_text(
        f"p = {str(counter)!r}\nn = int(open(p).read()) + 1\nopen(p, 'w').write(str(n))\nprint('warm 1')\nprint('rate', 1000 * n, 'MFLOP/s')\n"
    )
    out = lqcd(
        "bench", "--lattice", "2x2x2x2", "--batch", "1", *QUICK, "--rounds", "3", "--against", f"{sys.executable} {program}",
        "--rate-pattern", r"rate (\S+)", "--rate-unit", "MFLOP/s", "-o", tmp_path / "a.jsonl",
    ).stdout  # fmt: skip
    row = lines_of(tmp_path / "a.jsonl")[1]
    assert row["kind"] == "against" and row["theirs"] == [2.0, 3.0, 4.0], "one run warms up, each round runs once"
    ratios = [a / b for a, b in zip(row["ours"], row["theirs"])]
    assert row["ratio"] == pytest.approx(np.median(ratios)) and row["ratio_range"] == pytest.approx(
        [min(ratios), max(ratios)]
    )
    assert out.count("round ") == 3 and "paired rounds" in out


def test_a_declared_work_is_divided_by_the_wall_time():
    begin = time.perf_counter()
    rate = Foreign(command=f"{sys.executable} -c 'import time; time.sleep(0.3)'", work=3.0).run()
    whole = time.perf_counter() - begin
    assert 3.0 / whole <= rate <= 3.0 / 0.3


@pytest.mark.parametrize(
    ("foreign", "said"),
    [
        (dict(command="no-such-program-anywhere", work=1.0), "cannot be started"),
        (dict(command=f"{sys.executable} -c 'print(1); raise SystemExit(3)'", work=1.0), "code 3"),
        (dict(command=f"{sys.executable} -c 'print(1)'", pattern="rate (.*)"), "found nothing"),
        (dict(command=f"{sys.executable} -c 'print(\"rate x\")'", pattern="rate (.*)"), "no number"),
        (dict(command=f"{sys.executable} -c 'print(\"rate -1\")'", pattern="rate (.*)"), "positive"),
        (dict(command=f"{sys.executable} -c 'import time; time.sleep(9)'", work=1.0, timeout=0.2), "took more than"),
    ],
)
def test_a_foreign_program_that_fails_says_how(foreign, said):
    with pytest.raises(ForeignError, match=said):
        Foreign(**foreign).run()


def test_an_unknown_operator_has_no_count():
    with pytest.raises(ParameterError, match="hop"):
        work("hopp")


def test_a_damaged_line_is_named_and_a_torn_first_line_is_begun_again(lqcd, tmp_path):
    path = tmp_path / "rows.jsonl"
    words = ("bench", "--backends", "numpy", "--lattice", "2x2x2x2", "--batch", "1", "--precision", "double", "--rounds", "1",
             "--seconds", "0.01", "--limit-seconds", "0.01", "--threads", "1", "-o", path)  # fmt: skip
    lqcd(*words[:-1], tmp_path / "nowhere" / "rows.jsonl", code=2)
    path.write_text('{"format": "lqcd-be')
    lqcd(*words, "--resume")
    whole = path.read_text()
    assert len(whole.splitlines()) == 2
    path.write_text(whole + "garbage\n")
    assert "line 3 of" in (said := lqcd(*words, "--resume", code=2).stderr) and "remove the line" in said
    for other in ('{"kind": "row"}\n', whole + "{}\n"):
        path.write_text(other)
        assert "no record of 'lqcd bench'" in lqcd(*words, "--resume", code=2).stderr
    path.write_text(whole)
    assert "rounds (1 there, 2 here)" in lqcd(*words, "--resume", "--rounds", "2", code=2).stderr
    assert "made anew" in lqcd(*words, "--resume", "--against", "true", "--work", "1", code=2).stderr
    assert path.read_text() == whole

"""``lqcd bench``: the speed of every backend on this machine, beside what the machine can do."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import attrs
import click

from ..errors import ParameterError
from .exclusive import exclusive
from .program import DONE, FAILED, LQCDCommand
from .screen import facts, remark
from .settings import LATTICE

OPERATORS = ("hop", "wilson", "clover", "parity", "schur")


class Words(click.ParamType):
    """``a,b,c``: a list of names, or of whole numbers of at least 1; a list in a TOML file."""

    def __init__(self, name: str, number: bool = False):
        self.name, self.number = name, number

    def get_metavar(self, param, ctx=None):
        return f"{self.name.upper()},..."

    def convert(self, value, param, ctx):
        parts = value if isinstance(value, (list, tuple)) else str(value).split(",")
        parts = [p.strip() if isinstance(p, str) else p for p in parts]
        if self.number:
            try:
                parts = [int(str(p)) for p in parts]
            except ValueError:
                parts = [0]
            if min(parts, default=0) < 1:
                self.fail(f"{value!r}: write whole numbers of at least 1 as 1,8,32", param, ctx)
        elif not parts or not all(parts):
            self.fail(f"{value!r}: write names as a,b", param, ctx)
        return tuple(dict.fromkeys(parts))


@click.command("bench", cls=LQCDCommand)
@click.option(
    "--lattice", "lattices", type=LATTICE, multiple=True, default=["16x8x8x8"], help="Lattice; may be repeated."
)
@click.option(
    "--batch", "batches", type=Words("n", number=True), default="1,8", help="Right-hand sides of the batched cells."
)
@click.option(
    "--backends", type=Words("name"), help="Backends; all that start here if not given. Speed-ups are over the first."
)
@click.option("--precision", "precisions", type=Words("name"), default="single,double", help="Precisions.")
@click.option("--threads", type=click.IntRange(1), help="Threads of the multicore cells; all processors if not given.")
@click.option("--operator", type=click.Choice(OPERATORS), default="hop", help="What is applied.")
@click.option("--rounds", type=click.IntRange(1), default=7, help="Interleaved rounds; their median is shown.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=0.1, help="Length of one timing.")
@click.option(
    "--limit-seconds",
    type=click.FloatRange(0, min_open=True),
    default=0.5,
    help="Length of one measurement of the machine.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="JSON lines: the machine, then a row each.")
@click.option("--resume", is_flag=True, help="Go on in --output: rows that are there are not measured again.")
@click.option("--force", is_flag=True, help="Replace an old --output.")
@click.option(
    "--baseline", type=click.Path(dir_okay=False), help="An --output of before: each row is set beside its row there."
)
@click.option("--plot", type=click.Path(file_okay=False), help="Folder for the pictures, PNG and SVG.")
@click.option(
    "--against",
    metavar="COMMAND",
    help="Measure a foreign program in turn with ours: one lattice, batch and precision.",
)
@click.option(
    "--work", type=float, metavar="GFLOP", help="Work of one run of COMMAND: its rate is this over its wall time."
)
@click.option("--rate-pattern", metavar="REGEX", help="Its rate is the last number that this finds in its output.")
@click.option(
    "--rate-unit", type=click.Choice(["GFLOP/s", "MFLOP/s", "TFLOP/s"]), default="GFLOP/s", help="Unit of that number."
)
def command(lattices, batches, backends, precisions, threads, operator, rounds, seconds, limit_seconds, output, resume, force,
            baseline, plot, against, work, rate_pattern, rate_unit):  # fmt: skip
    """Sweep lattices, precisions and batch sizes over backends; every number is beside the machine's measured limit.

    GFLOP/s count 1320 per site and right-hand side for the hopping term; GB/s count each link and spinor once. Cells of a
    backend: single (one right-hand side, one thread), batched (one thread), multicore (all threads). With --against, the ratio to
    another program instead, on --threads threads (1 if not given).
    """
    from ..bench import sweep
    from ..machine import usable_processors
    from ..precision import as_precision
    from ..registry import REGISTRY
    from .outputs import check_outputs

    precisions = tuple(as_precision(p).name for p in precisions)
    for name in backends or ():
        REGISTRY.record(name)
    if resume and against is not None:
        raise ParameterError("--resume goes on in a sweep; a comparison with --against is one row, and is made anew.")
    if resume and not output:
        raise ParameterError("--resume goes on in a file: name it with --output.")
    if against is None and (work is not None or rate_pattern is not None):
        raise ParameterError("--work and --rate-pattern say how to read a foreign program: name it with --against.")
    if output and not resume and not force and Path(output).exists() and Path(output).stat().st_size:
        raise ParameterError(f"{output!r} is there already: --resume goes on in it, --force replaces it.")
    if output:
        check_outputs([output], [])
    backends = backends or _present()
    plan = sweep.Plan(
        operator=operator, lattices=tuple(dict.fromkeys(map(tuple, lattices))), precisions=precisions, batches=batches, backends=backends,
        threads=threads or (1 if against is not None else usable_processors()), rounds=rounds, seconds=seconds,
    )  # fmt: skip
    for lattice in plan.lattices:
        from ..geometry import LatticeGeometry

        LatticeGeometry.from_shape(lattice)  # a wrong one is said before anything is measured
    with exclusive(output) if output else contextlib.nullcontext():
        if against is not None:
            return _against(plan, against, work, rate_pattern, rate_unit, output)
        return _sweep(plan, limit_seconds, output, resume, baseline, plot)


def _present() -> tuple[str, ...]:
    """Backends that start here and wrap no other, slowest first by rank; the others are named with their reason."""
    from ..errors import LQCDError
    from ..registry import REGISTRY

    found, records = [], REGISTRY.records()
    for name in sorted((n for n in records if not records[n].wraps), key=lambda n: (records[n].rank, n)):
        try:
            REGISTRY.load(name, {})
            found.append(name)
        except LQCDError as error:
            remark(f"not measured: {name}: {' '.join(str(error).split())}")
    return tuple(found)


def _sweep(plan, limit_seconds, output, resume, baseline, plot) -> int:
    from ..bench import machine, sweep, table
    from ..bench import plot as pictures
    from ..bench.work import work
    from .screen import plain

    earlier = {sweep.key_of(r): r for r in sweep.read(baseline)[1]} if baseline else {}
    head = {
        "machine": machine.describe(), **machine.moment(), "command": ["lqcd", *sys.argv[1:]],
        "settings": {
            "backends": list(plan.backends), "threads": plan.threads, "rounds": plan.rounds, "seconds": plan.seconds,
        },
    }  # fmt: skip
    rows, limits = [], None
    if resume and sweep.begun(output):
        before, rows = sweep.read(output)
        sweep.check_same(before, head, output)
        head = before
        limits = {int(t): machine.Limits.from_plain(v) for t, v in head["limits"].items()}
    begins = limits is None
    if begins:
        counts = sorted({1, plan.threads})
        limits = {t: sweep.measure_limits(t, limit_seconds, plan.backends) for t in counts}
        limits[plan.threads] = limits[plan.threads].at_least(limits[1])
        head["limits"] = {str(t): plain(attrs.asdict(v)) for t, v in limits.items()}
    counted = work(plan.operator)
    facts([
        *((f"{k}", v) for k, v in head["machine"].items()), ("date", head["date"]), ("load", head["load"]),
        *((f"limit {x.name}, {t} thread{'s' if t > 1 else ''}", f"{x.value:.1f} {unit} ({x.by})")
          for t, v in limits.items() for unit, group in (("GFLOP/s", v.peaks), ("GB/s", v.levels)) for x in group),
        ("operator", f"{plan.operator}: {counted.summary}"),
        ("counted", f"{counted.flops:g} flops a site and right-hand side; {counted.once:g} reals a site once, "
                    f"{counted.per_column:g} a right-hand side"),
        ("roof", f"share of min(peak, flops/byte x bandwidth where the fields live); multicore: {plan.threads} threads"),
    ])  # fmt: skip
    print(flush=True)
    print(table.header(plan.backends, plan.threads), flush=True)
    done, said, previous = {sweep.key_of(r): r for r in rows}, set(), None
    rows, failed = [], False
    with sweep.Sweep(plan, limits) as measuring, sweep.record(output, head if begins else None) as record:
        for lattice, precision, batch in plan.rows():
            row = done.get((plan.operator, lattice, precision, batch))
            if row is None:
                row = plain(measuring.row(lattice, precision, batch))
                if record:
                    record.append(row)
            if previous not in (None, lattice):
                print(table.separator(plan.backends))
            previous = lattice
            print(table.row(row, plan.backends, earlier.get(sweep.key_of(row))), flush=True)
            for sentence in table.reasons(row):
                if sentence not in said:
                    said.add(sentence)
                    remark(sentence)
            rows.append(row)
            failed |= not any("gflops" in c for c in row["cells"])
    best = max((r for r in rows if "speed_up" in r), key=lambda r: r["speed_up"], default=None)
    if best is not None:
        low, high = best["speed_up_range"]
        print(
            f"\nbest speed-up {best['speed_up']:.2f} ({low:.2f} to {high:.2f}): {' '.join(best['fastest'])} over {' '.join(best['over'])}, "
            f"{'x'.join(map(str, best['lattice']))} {best['precision']}, {best['batch']} right-hand side{'s' if best['batch'] > 1 else ''}"
        )
    if plot:
        for path in pictures.draw(plot, head, rows):
            print(f"written: {path}")
    if failed:
        remark("a row has no number: see the reasons above.")
    return FAILED if failed else DONE


def _against(plan, text, work, pattern, unit, output) -> int:
    from ..bench import machine, sweep
    from ..bench.against import Foreign, ForeignError, pair
    from ..bench.case import Case
    from ..bench.worker import WorkerLost
    from .screen import plain

    foreign = Foreign(command=text, work=work, pattern=pattern, unit=unit)
    rows = list(plan.rows())
    if len(rows) != 1:
        raise ParameterError(
            f"--against compares one lattice, one precision and one batch, got {len(rows)} combinations."
        )
    (lattice, precision, batch) = rows[0]
    head = {
        "machine": machine.describe(),
        **machine.moment(),
        "command": ["lqcd", *sys.argv[1:]],
        "settings": {},
        "limits": {},
    }
    how = f"{work:g} GFLOP over its wall time" if pattern is None else f"{pattern!r} in its output, {unit}"
    facts(
        [*head["machine"].items(), ("date", head["date"]), ("load", head["load"]), ("foreign", text), ("its rate", how)]
    )
    with sweep.record(output, head) as record:
        for backend in plan.backends:
            case = Case(
                operator=plan.operator,
                lattice=lattice,
                precision=precision,
                n_rhs=batch,
                backend=backend,
                threads=plan.threads,
            )

            def heard(k, ours, theirs, backend=backend):
                print(
                    f"{backend} round {k + 1}: ours {ours:.3g}, foreign {theirs:.3g} GFLOP/s, ratio {ours / theirs:.3g}",
                    flush=True,
                )

            try:
                found = pair(case, foreign, plan.rounds, plan.seconds, heard)
            except (WorkerLost, ForeignError) as error:
                remark(f"{backend}: {error}")
                return FAILED
            low, high = min(found.ratios), max(found.ratios)
            print(
                f"{backend}, {plan.operator}, {'x'.join(map(str, lattice))} {precision}, {batch} right-hand side{'s' if batch > 1 else ''}, "
                f"{plan.threads} thread{'s' if plan.threads > 1 else ''}: ratio {found.ratio:.3g} ({low:.3g} to {high:.3g}) over {plan.rounds} paired rounds"
            )
            if record:
                record.append(plain({
                    "kind": "against", "case": attrs.asdict(case), "foreign": attrs.asdict(foreign), "ours": found.ours,
                    "theirs": found.theirs, "ratio": found.ratio, "ratio_range": [low, high], **machine.moment(),
                }))  # fmt: skip
    return DONE


__all__ = ["command"]

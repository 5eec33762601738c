"""``lqcd monitor``: what the cores of an accelerator do, from the stream of its vendor's monitor."""

from __future__ import annotations

import importlib.metadata
import sys

import click

from .program import DONE, FAILED, LQCDCommand
from .screen import as_json, bytes_text, console, table

GROUP = "lqcd.monitors"


def sources() -> dict:
    """Entry points of everything that understands a stream, by name."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


@click.command("monitor", cls=LQCDCommand)
@click.argument("file", type=click.File("r"), default="-")
@click.option("--source", help="Who understands the stream, by name; needed only where several do.")
@click.option("--once", is_flag=True, help="Stop after the first reading.")
@click.option("--json", is_flag=True, help="One JSON document a reading.")
def command(file, source, once, json):
    """Utilisation per core, memory, errors and latencies, from a vendor's stream on standard input or in FILE.

    Lines that hold no reading are passed over and counted.
    """
    known = sources()
    if source is None and len(known) == 1:
        source = next(iter(known))
    if source not in known:
        listed = ", ".join(sorted(known)) or "none: no installed backend brings one"
        raise click.UsageError(f"--source must name one of: {listed}")
    read, seen, strange = known[source].load(), 0, 0
    for line in file:
        reading = read(line)
        if reading is None:
            strange += bool(line.strip())
            continue
        seen += 1
        as_json(_plain(reading)) if json else show(reading)
        if once:
            break
    if strange:
        click.echo(f"lqcd: {strange} line(s) held no reading", err=True)
    if not seen:
        click.echo("lqcd: the stream held no reading at all", err=True)
        return FAILED
    return DONE


def _plain(reading) -> dict:
    names = ("title", "cores", "memory", "errors", "latencies", "remarks")
    return {name: getattr(reading, name) for name in names}


def show(reading) -> None:
    """Print a reading; on a terminal it replaces the one before."""
    if sys.stdout.isatty():
        console().clear()
    if reading.cores:
        rows = [
            (core, f"{used:5.1f} %", "#" * round(min(max(used, 0), 100) / 5)) for core, used in reading.cores.items()
        ]
        table(reading.title, ("core", "in use", ""), rows)
    if reading.memory:
        table(
            "" if reading.cores else reading.title,
            ("memory", "used"),
            [(k, bytes_text(v)) for k, v in reading.memory.items()],
        )
    if reading.latencies:
        points = list(dict.fromkeys(p for times in reading.latencies.values() for p in times))
        rows = [(what, *(_ms(times.get(p)) for p in points)) for what, times in reading.latencies.items()]
        table("", ("latency, ms", *points), rows)
    wrong = {k: v for k, v in reading.errors.items() if v}
    print("errors: " + (", ".join(f"{k} {v}" for k, v in wrong.items()) if wrong else "none"), flush=True)
    for remark in reading.remarks:
        print(f"remark: {remark}", flush=True)


def _ms(seconds) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.3f}"


__all__ = ["GROUP", "command", "show", "sources"]

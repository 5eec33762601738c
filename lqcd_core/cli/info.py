"""``lqcd info CFG``: what a configuration says of itself beside what its links give."""

from __future__ import annotations

import attrs
import click

from .program import DONE, FAILED, LQCDCommand
from .screen import as_json, console, facts
from .settings import LATTICE


@click.command("info", cls=LQCDCommand)
@click.argument("configurations", metavar="CFG...", nargs=-1, required=True, type=click.Path())
@click.option("--json", is_flag=True, help="Machine-readable output.")
@click.option("--lattice", type=LATTICE, help="Insist on a lattice, or supply it where the file does not say.")
@click.option("--nc", type=int, default=3, help="Colours that go with --lattice.")
@click.option("--format", help="Insist on a format: nersc, ildg, scidac, milc, openqcd, npy.")
@click.option("--header", is_flag=True, help="Print the header records in full.")
def command(configurations, json, lattice, nc, format, header):
    """Header, stored and recomputed checksums, plaquette, link trace, Polyakov loops, unitarity.

    Exit code 1 if anything that a file stores about itself disagrees with its links, or links are not in SU(Nc).
    """
    from ..geometry import LatticeGeometry
    from ..io import inspect_gauge

    geometry = None if lattice is None else LatticeGeometry.from_shape(lattice, nc=nc)
    reports = []
    for path in configurations:
        report = inspect_gauge(path, format=format, geometry=geometry)
        reports.append(report)
        if not json:
            _show(report, header, gap=len(configurations) > 1)
    if json:
        data = [_data(r) for r in reports]
        as_json(data[0] if len(data) == 1 else data)
    return DONE if all(r.ok and _unitary(r) for r in reports) else FAILED


def _unitary(report) -> bool:
    return report.unitarity <= (1e-6 if report.precision == "double" else 2e-5)  # NaN compares false


def _data(report) -> dict:
    g = report.geometry
    out = attrs.asdict(report, recurse=False)
    out["geometry"] = {"T": g.T, "Z": g.Z, "Y": g.Y, "X": g.X, "nc": g.nc}
    out["checks"] = [attrs.asdict(c) for c in report.checks]
    return {**out, "ok": report.ok, "unitary": _unitary(report)}


def _show(report, header: bool, gap: bool) -> None:
    g = report.geometry
    facts([
        ("file", report.path),
        ("format", f"{report.format}, {report.precision} precision"),
        ("lattice", f"T={g.T} Z={g.Z} Y={g.Y} X={g.X}, Nc={g.nc}"),
    ])  # fmt: skip
    if report.header:
        print("header")
        for name, value in report.header.items():
            text = str(value) if header else " ".join(str(value).split())
            if not header and len(text) > 100:
                text = text[:97] + "..."
            print(f"  {name}: {text}")
    print("checks")
    out = console()
    for c in report.checks:
        verdict, style = {True: ("ok", "green"), False: ("WRONG", "bold red"), None: ("-", "dim")}[c.ok]
        stored = "nothing" if c.stored is None else _number(c.stored)
        note = f"  ({c.note})" if c.note else ""
        line = f"  {c.name:<12} stored {stored:<18} found {_number(c.found):<18} {verdict}{note}"
        out.print(line, style=style, soft_wrap=True)
    facts([
        ("plaquette", f"{report.plaquette:.12f}"),
        ("  spatial", f"{report.plaquette_ss:.12f}"),
        ("  temporal", f"{report.plaquette_st:.12f}"),
        ("link trace", f"{report.link_trace:.12f}"),
        *((f"Polyakov {d}", f"{v.real:+.12f} {v.imag:+.12f}i") for d, v in report.polyakov.items()),
        ("unitarity", f"{report.unitarity:.3g}{'' if _unitary(report) else '  NOT in SU(Nc)'}"),
        ("digest", report.digest),
        *(("note", n) for n in report.notes),
    ])  # fmt: skip
    if gap:
        print()


def _number(value) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)

"""``lqcd convert A B``: a configuration or a propagator into another format."""

from __future__ import annotations

import click

from .program import DONE, LQCDCommand
from .screen import remark
from .settings import LATTICE, Assignment


@click.command("convert", cls=LQCDCommand)
@click.argument("source", metavar="A", type=click.Path())
@click.argument("target", metavar="B", type=click.Path())
@click.option("--to", "format", help="Format of B; by its suffix if not given.")
@click.option("--precision", help="Precision of the numbers in B, double or single; that of A if not given.")
@click.option("--from", "source_format", help="Insist on the format of A; found from its content if not given.")
@click.option("--lattice", type=LATTICE, help="Insist on a lattice, or supply it where A does not say.")
@click.option("--nc", type=int, default=3, help="Colours that go with --lattice.")
@click.option("--check", type=click.Choice(["error", "warn", "off"]), default="error", help="If A contradicts itself.")
@click.option("--accept-links", is_flag=True, help="Accept links that are not in SU(Nc).")
@click.option("--option", "options", type=Assignment(), multiple=True, help="Option of the writer, e.g. rows=2.")
@click.option("--force", is_flag=True, help="Replace B if it exists.")
def command(source, target, format, precision, source_format, lattice, nc, check, accept_links, options, force):
    """Convert the configuration or propagator A to B. Checks A, and reads B back to compare its links.

    Formats of configurations: nersc (.nersc, .cfg), ildg (.ildg, .lime), scidac, milc, openqcd, npy. Propagators: HDF5 (.h5)
    and SciDAC (.scidac, .lime).
    """
    from pathlib import Path

    from ..errors import FileError

    if Path(target).exists() and not force:
        raise FileError(f"{target!r} exists; pass --force to replace it, or choose another name.")
    if _is_gauge(source, source_format):
        _convert_gauge(
            source, target, format, precision, source_format, lattice, nc, check, not accept_links, dict(options)
        )
    else:
        _convert_propagator(source, target, format, precision, check)
    return DONE


def _is_gauge(source, source_format) -> bool:
    from ..io import sniff
    from ..io.sniff import GAUGE_FORMATS

    if source_format is not None:
        return source_format in GAUGE_FORMATS or source_format not in ("hdf5", "scidac-propagator")
    return sniff(source) in GAUGE_FORMATS


def _convert_gauge(source, target, format, precision, source_format, lattice, nc, check, check_links, options) -> None:
    from ..geometry import LatticeGeometry
    from ..io import inspect_gauge, read_gauge, write_gauge

    geometry = None if lattice is None else LatticeGeometry.from_shape(lattice, nc=nc)
    U = read_gauge(source, check=check, check_links=check_links, format=source_format, geometry=geometry)
    write_gauge(U, target, format=format, precision=precision, check_links=check_links, **options)
    report = inspect_gauge(target, geometry=geometry)
    remark(
        f"{source} ({U.origin['format']}, {U.precision}) -> {target} ({report.format}, {report.precision}), "
        f"{U.geometry}, plaquette {report.plaquette:.12f}"
    )


def _convert_propagator(source, target, format, precision, check) -> None:
    from ..io import read_propagator, write_propagator

    S = read_propagator(source)
    write_propagator(S, target, format=format, precision=precision)
    remark(f"{source} -> {target}, {S!r}")

"""``lqcd plan --scaling``: what a cluster would give, from a few numbers measured here."""

from __future__ import annotations

import importlib.metadata

import attrs
import click

from ..errors import ParameterError
from .program import DONE, LQCDCommand
from .screen import as_json, plain, table
from .settings import LATTICE

GROUP = "lqcd.planners"


def planner():
    """The module that knows how a cut lattice scales, from whichever distribution brings it.

    Raises
    ------
    ParameterError
        If none does.
    """
    found = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if "scaling" not in found:
        raise ParameterError(
            "no installed package brings a model of scaling (entry point 'scaling' of the group lqcd.planners)."
        )
    return found["scaling"].load()


@click.command("plan", cls=LQCDCommand)
@click.option("--scaling", is_flag=True, help="Predict a hop and a CG iteration on 1 to 64 hosts.")
@click.option(
    "--lattice", type=LATTICE, default="32x16x16x16", help="Lattice: of one host with --weak, else the whole."
)
@click.option("--weak/--strong", default=True, help="The lattice grows with the hosts in T, or is cut.")
@click.option("--n-rhs", type=click.IntRange(1), default=12, help="Right-hand sides.")
@click.option("--precision", default="single", help="Precision.")
@click.option("--inner", default="numpy", help="Backend on each slab, for --measure.")
@click.option(
    "--measure", is_flag=True, help="Measure this machine with one and two processes, and set the model beside them."
)
@click.option("--repeats", type=click.IntRange(3), default=7, help="Repeats of a measurement; medians are shown.")
@click.option("--site-ns", type=float, help="Nanoseconds of a hop per site and right-hand side, instead of measuring.")
@click.option(
    "--vector-ns", type=float, help="The same of the vector updates of a CG iteration, with --site-ns. [default: 0]"
)
@click.option(
    "--command-us", type=float, help="Microseconds of a command of the executor, with --site-ns. [default: 20]"
)
@click.option(
    "--latency-us",
    type=float,
    help="Latency between hosts, microseconds. [default: 20 with --site-ns, else this host's]",
)
@click.option("--bandwidth-gb", type=float, help="GB/s between hosts. [default: 10 with --site-ns, else this host's]")
@click.option("--json", is_flag=True, help="Machine-readable output.")
def command(
    scaling,
    lattice,
    weak,
    n_rhs,
    precision,
    inner,
    measure,
    repeats,
    site_ns,
    vector_ns,
    command_us,
    latency_us,
    bandwidth_gb,
    json,
):
    """Predict how a lattice that is cut along T scales over hosts.

    The model: interior of a slab while the faces travel, then its first and last slice; an exact sum is a gather and a spread. Its
    numbers are measured here (--measure) or given (--site-ns); latency and bandwidth of the network are yours to give.
    """
    from ..geometry import LatticeGeometry
    from ..precision import as_precision

    if not scaling:
        raise ParameterError("what shall be planned? There is --scaling.")
    if measure == (site_ns is not None):
        raise ParameterError(
            "give either --measure, to measure this machine, or --site-ns with the number that you know."
        )
    if measure and (vector_ns is not None or command_us is not None):
        raise ParameterError("--vector-ns and --command-us go with --site-ns; --measure measures them.")
    model, geometry = planner(), LatticeGeometry.from_shape(lattice)
    precision = as_precision(precision)
    found = None
    if measure:
        found = model.measure(inner, geometry, n_rhs, precision, repeats)
        machine = found.machine
    else:
        machine = model.Machine(
            1e-9 * site_ns, 1e-9 * (vector_ns or 0.0), 1e-6 * (20.0 if command_us is None else command_us), 20e-6, 10e9
        )
    network = {}
    if latency_us is not None:
        network["latency"] = 1e-6 * latency_us
    if bandwidth_gb is not None:
        network["bandwidth"] = 1e9 * bandwidth_gb
    machine = attrs.evolve(machine, **network)
    points = model.scaling(geometry, n_rhs, precision, machine, weak)
    if json:
        as_json({
            "machine": attrs.asdict(machine), "weak": weak, "points": [attrs.asdict(p) for p in points],
            "checked": plain({"hop": found.hop, "iteration": found.iteration}) if found else None,
        })  # fmt: skip
        return DONE
    print(
        f"a hop takes {1e9 * machine.site_seconds:.3g} ns per site and right-hand side, vectors {1e9 * machine.vector_seconds:.3g} ns, a command "
        f"{1e6 * machine.command_seconds:.3g} us; network {1e6 * machine.latency:.3g} us, {1e-9 * machine.bandwidth:.3g} GB/s"
    )
    if found:
        table("this host, processes: the model beside what was measured", ("shards", "what", "model ms", "measured ms", "model / measured"), [
            (shards, what, f"{1e3 * a:.3f}", f"{1e3 * b:.3f}", f"{a / b:.2f}")
            for what, each in (("hop", found.hop), ("CG iteration", found.iteration)) for shards, (a, b) in each.items()
        ])  # fmt: skip
    title = f"{'weak' if weak else 'strong'} scaling of {'x'.join(map(str, lattice))}, {n_rhs} right-hand sides, {precision}: predicted"
    table(title, ("hosts", "slices each", "hop ms", "CG iteration ms", "exchange hidden", "efficiency"), [
        (p.hosts, p.slices, f"{1e3 * p.hop:.3f}", f"{1e3 * p.iteration:.3f}", f"{100 * p.hidden:.0f} %", f"{100 * p.efficiency:.0f} %")
        for p in points
    ])  # fmt: skip
    return DONE


__all__ = ["GROUP", "command", "planner"]

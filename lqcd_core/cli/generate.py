"""``lqcd generate``: quenched configurations, with a checkpoint that resumes to the same bits."""

from __future__ import annotations

from pathlib import Path

import click

from .program import DONE, LQCDCommand
from .progress import Progress
from .screen import remark
from .settings import LATTICE

_SUFFIX = {"ildg": "ildg", "nersc": "nersc"}
CHECKPOINT = "checkpoint.npz"


@click.command("generate", cls=LQCDCommand)
@click.option("--lattice", type=LATTICE, help="Extents, e.g. 16x8x8x8.")
@click.option("-T", "--T", "extent_t", type=int, help="Temporal extent; with -L instead of --lattice.")
@click.option("-L", "--L", "extent_l", type=int, help="The three spatial extents; with -T instead of --lattice.")
@click.option("--nc", type=int, default=3, help="Number of colours.")
@click.option("--beta", type=float, required=True, help="Coupling 2 Nc / g^2.")
@click.option("--seed", type=int, required=True, help="Seed in [0, 2^64).")
@click.option("--thermalization", type=int, required=True, help="Sweeps before the first configuration.")
@click.option("--separation", type=int, default=10, help="Sweeps between configurations.")
@click.option("--configurations", type=int, default=1, help="How many configurations.")
@click.option("--overrelaxation", type=int, default=4, help="Microcanonical sweeps after each heatbath sweep.")
@click.option("--start", type=click.Choice(["cold", "hot"]), default="cold", help="Unit field or Haar-random field.")
@click.option("--format", type=click.Choice(list(_SUFFIX)), default="ildg", help="Format of the configurations.")
@click.option("--precision", type=click.Choice(["double", "single"]), default="double", help="Precision of the files.")
@click.option("--name", default="cfg", help="First part of the file names, NAME_000000.ildg and so on.")
@click.option("--checkpoint-every", type=int, default=50, help="Sweeps between checkpoints.")
@click.option("--output", "-o", required=True, metavar="DIR", type=click.Path(file_okay=False), help="Where they go.")
@click.option("--resume", is_flag=True, help="Go on from DIR/checkpoint.npz (same bits as an undisturbed run).")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def command(
    lattice, extent_t, extent_l, nc, beta, seed, thermalization, separation, configurations, overrelaxation, start,
    format, precision, name, checkpoint_every, output, resume, quiet,
):  # fmt: skip
    """Generate quenched configurations of the Wilson plaquette action.

    A sweep is one heatbath and --overrelaxation microcanonical sweeps. DIR gets the configurations, plaquette.csv (the mean
    plaquette after every sweep) and checkpoint.npz, from which --resume continues; --configurations may grow then.
    """
    from ..errors import FileError
    from ..gauge import generate
    from .exclusive import exclusive

    geometry = _geometry(lattice, extent_t, extent_l, nc)
    directory = Path(output)
    _make(directory)
    checkpoint = directory / CHECKPOINT
    with exclusive(checkpoint):
        if checkpoint.exists() and not resume:
            raise FileError(
                f"{str(checkpoint)!r} exists: pass --resume to go on with that chain, or choose another --output."
            )
        if resume and not checkpoint.exists():
            remark(f"there is no {checkpoint} yet: the chain starts at the beginning")
        total = max(thermalization + (configurations - 1) * separation, 1)
        bar = Progress("sweeps", total, quiet=quiet)
        first = True

        def watch(report):
            nonlocal first
            if first:
                bar.first, first = report.sweep - 1, False
            stage = "" if report.thermalized else "  (thermalizing)"
            bar.update(report.sweep, f"sweep {report.sweep}/{report.total}  plaquette {report.plaquette:.6f}{stage}")

        chain = generate(
            geometry, beta, seed, thermalization=thermalization, separation=separation, configurations=configurations,
            overrelaxation=overrelaxation, start=start, checkpoint=checkpoint, checkpoint_every=checkpoint_every,
            callback=watch,
        )  # fmt: skip
        last = None
        try:
            with bar:
                for index, U, last in chain:
                    path = directory / f"{name}_{index:06d}.{_SUFFIX[format]}"
                    U.write(path, format=format, precision=precision)
                    bar.say(f"{path}  sweep {last.sweep}  plaquette {last.plaquette:.8f}")
                    _write_history(directory / "plaquette.csv", last.history, thermalization)
        except KeyboardInterrupt:
            if checkpoint.exists():
                remark(f"the chain is kept in {checkpoint}; add --resume to the same command to go on")
            raise
    if last is None:
        _all_there(directory, name, format, configurations)
        remark(f"all {configurations} configurations of this chain were made before")
        return DONE
    for line in _autocorrelation(last.history[thermalization:]):
        print(line)
    return DONE


def _geometry(lattice, t, space, nc):
    from ..errors import ParameterError
    from ..geometry import LatticeGeometry

    if (lattice is None) == (t is None and space is None) or (lattice is None and (t is None or space is None)):
        raise ParameterError("give the lattice either as --lattice TxZxYxX or as -T and -L.")
    return LatticeGeometry.from_shape(lattice or (t, space, space, space), nc=nc)


def _make(directory: Path) -> None:
    from ..io.atomic import explain_os_error

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_os_error("make the directory", directory, error) from error


def _all_there(directory: Path, name: str, format: str, configurations: int) -> None:
    """Raise if a configuration that the chain has passed is not in the directory: a chain cannot go back."""
    from ..errors import FileError

    paths = [directory / f"{name}_{k:06d}.{_SUFFIX[format]}" for k in range(configurations)]
    missing = [str(p) for p in paths if not p.exists()]
    if missing:
        raise FileError(
            f"{missing[0]!r} is missing, and {str(directory / CHECKPOINT)!r} is past it; remove that file to make the chain "
            "again from its beginning (it gives the same bits)."
        )


def _write_history(path: Path, history, thermalization: int) -> None:
    from ..io.atomic import replacing

    lines = ["sweep,thermalized,plaquette"]
    lines += [f"{k},{int(k > thermalization)},{float(p)!r}" for k, p in enumerate(history, start=1)]
    with replacing(path) as f:
        f.write(("\n".join(lines) + "\n").encode())


def _autocorrelation(series) -> list[str]:
    """What the plaquette after thermalization says about its autocorrelation; a short series says so."""
    from ..errors import ParameterError
    from ..gauge import integrated_autocorrelation

    try:
        a = integrated_autocorrelation(series)
    except ParameterError as error:
        return [f"no autocorrelation estimate from {len(series)} sweeps after thermalization: {error}"]
    out = [
        f"plaquette {a.mean:.8f} +- {a.mean_error:.8f} over {len(series)} sweeps after thermalization",
        f"integrated autocorrelation time {a.time:.2f} +- {a.error:.2f} sweeps (window {a.window})",
    ]
    if len(series) < 50 * a.time:
        out.append("the series is shorter than 50 autocorrelation times: take these numbers as rough")
    return out

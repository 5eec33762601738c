"""``lqcd propagator CFG``: solve for a quark propagator, batch by batch, so that a kill loses at most one batch."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import click

from .exclusive import exclusive
from .memory import compare
from .outputs import check_outputs
from .program import DONE, LQCDCommand
from .progress import Progress, residual_fraction
from .screen import remark, seconds_text
from .settings import MOMENTUM, SITE, Assignment, Boundary, Numbers, backend_choice, stored_settings

SOURCES = ("point", "wall", "z2", "z4", "gaussian")
SOLVERS = ("cg", "bicgstab", "gcr", "mixed")


@click.command("propagator", cls=LQCDCommand)
@click.argument("configuration", metavar="CFG", type=click.Path())
@click.option("--kappa", type=float, help="Hopping parameter, 1/(8 + 2 mass); or give --mass.")
@click.option("--mass", type=float, help="Bare quark mass, lattice units; or give --kappa.")
@click.option("--csw", type=float, help="Clover coefficient: makes the operator a clover one.")
@click.option("--csw-r", type=float, help="Clover coefficient of spatial planes, with --csw-t.")
@click.option("--csw-t", type=float, help="Clover coefficient of temporal planes, with --csw-r.")
@click.option("--mu", type=float, help="Twisted mass, lattice units: adds i mu gamma5.")
@click.option("--xi0", type=float, default=1.0, help="Bare anisotropy.")
@click.option("--nu", type=float, default=1.0, help="Bare fermion velocity.")
@click.option(
    "--boundary",
    type=Boundary(),
    default="antiperiodic",
    help="Fermion phases: antiperiodic (in t), periodic, or four.",
)
@click.option(
    "--source", type=click.Choice(SOURCES), default="point", help="Kind; z2, z4 and gaussian are noise on one slice."
)
@click.option("--source-position", type=SITE, default="0,0,0,0", help="Site of a point; of the others t counts.")
@click.option("--source-momentum", type=MOMENTUM, default="0,0,0", help="Of a wall, in units of 2 pi / L.")
@click.option("--source-seed", type=int, help="Seed of a noise source.")
@click.option(
    "--smearing", type=Numbers("smearing", "width,steps", convert=float), help="Gaussian smearing of the source."
)
@click.option("--solver", type=click.Choice(SOLVERS), default="cg", help="cg works on the normal equations.")
@click.option("--tol", type=float, default=1e-10, help="True relative residual |b - M x| / |b| to reach.")
@click.option("--maxiter", type=int, default=10000, help="Most iterations per batch.")
@click.option("--inner", type=click.Choice(SOLVERS[:3]), default="cg", help="Solver inside mixed.")
@click.option("--inner-precision", default="single", help="Precision inside mixed.")
@click.option("--precision", default="double", help="Precision of the solve: double, single, ...")
@click.option(
    "--store", type=click.Choice(["double", "single"]), help="Precision in the file; that of the solve if not given."
)
@click.option(
    "--even-odd/--no-even-odd", default=None, help="Solve on one parity. [default: where the lattice allows it]"
)
@click.option("--parity", type=click.Choice(["even", "odd"]), default="even", help="The parity solved on.")
@click.option(
    "--form", type=click.Choice(["symmetric", "asymmetric"]), default="symmetric", help="Of the Schur complement."
)
@click.option("--backend", help="Backend to use, strictly; the best that can serve if not given.")
@click.option("--option", "options", type=Assignment(), multiple=True, help="Option of that backend (may be repeated).")
@click.option(
    "--batch",
    type=int,
    default=4,
    help="Columns solved together, and saved together. 12 is fastest, 4 saves more often.",
)
@click.option(
    "--check", type=click.Choice(["error", "warn", "off"]), default="error", help="If CFG contradicts itself."
)
@click.option("--accept-links", is_flag=True, help="Accept links that are not in SU(Nc).")
@click.option(
    "--output", "-o", required=True, metavar="PROP.h5", type=click.Path(dir_okay=False), help="The propagator."
)
@click.option("--resume", is_flag=True, help="Go on from PROP.h5.partial.")
@click.option("--force", is_flag=True, help="Replace an old output, and solve even if the memory looks too small.")
@click.option("--dry-run", is_flag=True, help="Print the plan and the memory, solve nothing.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@click.pass_context
def command(ctx, configuration, output, resume, force, dry_run, quiet, **settings):
    """Solve M S = source for all spins and colours of the source on the configuration CFG.

    Finished batches of columns are kept in PROP.h5.partial, which becomes PROP.h5 at the end; after a kill the same command with
    --resume goes on and gives the same numbers. The propagator has mass normalisation, M = (4 + m) - hopping term.
    """
    from .. import __version__
    from ..io import read_gauge
    from ..solvers import memory_estimate

    path = Path(output)
    stored = stored_settings(ctx)
    check_outputs([path, _partial(path)], [configuration])
    if not dry_run and _finished(path, resume, force, stored):
        return DONE
    definition = operator_of(**{k: settings[k] for k in _OPERATOR})
    solver = solver_of(**{k: settings[k] for k in _SOLVER})
    backend = backend_choice(settings["backend"], settings["options"])
    U = read_gauge(configuration, check=settings["check"], check_links=not settings["accept_links"])
    source = source_of(U, **{k: settings[k] for k in _SOURCE})
    batch = _batch(settings["batch"], source.n_columns)
    even_odd = _even_odd(settings["even_odd"], settings["parity"], settings["form"], U.geometry)
    if not quiet:
        _announce(U, configuration, definition, source, solver, settings)
    M = definition.bind(
        U, backend=backend, precision=settings["precision"], n_rhs=batch, check_links=not settings["accept_links"]
    )
    if not quiet:
        for name, reason in M.choice.reasons:  # ranked before the one that serves: the user should know why not
            remark(f"passed over   {name}: {reason}")
        remark(f"backend       {M.choice.name} ({M.choice.why}), {M.precision}, batches of {_columns(batch)}")
    (solver.general if solver.needs_positive else solver).check(
        M.linear
    )  # as the solve does, but before any file is made
    needed = memory_estimate(M, solver, batch, even_odd["even_odd"])
    compare(needed, f"a batch of {_columns(batch)}", force or dry_run, quiet)
    if dry_run:
        return DONE
    provenance = {
        **M.provenance(), "solver": solver.parameters(), "preconditioning": even_odd, "version": __version__,
        "batch": batch, "settings": json.loads(stored),
    }  # fmt: skip
    with exclusive(path):
        return _run(path, M, source, solver, even_odd, provenance, settings["store"], resume, force, quiet)


# -- what the options mean ---------------------------------------------------------------------------------------------

_OPERATOR = ("kappa", "mass", "csw", "csw_r", "csw_t", "mu", "xi0", "nu", "boundary")
_SOURCE = ("source", "source_position", "source_momentum", "source_seed", "smearing")
_SOLVER = ("solver", "tol", "maxiter", "inner", "inner_precision")


def operator_of(kappa, mass, csw, csw_r, csw_t, mu, xi0, nu, boundary):
    """The operator's definition: twisted with --mu, clover with --csw, else Wilson."""
    from ..errors import ParameterError
    from ..operators import CloverWilsonDirac, TwistedMassDirac, WilsonDirac

    given = dict(kappa=kappa, mass=mass, xi0=xi0, nu=nu, boundary=boundary)
    if mu is not None:
        if csw_r is not None or csw_t is not None:
            raise ParameterError("--mu takes --csw, not --csw-r and --csw-t.")
        return TwistedMassDirac(mu=mu, csw=csw or 0.0, **given)
    if csw is not None or csw_r is not None or csw_t is not None:
        return CloverWilsonDirac(csw=csw, csw_r=csw_r, csw_t=csw_t, **given)
    return WilsonDirac(**given)


def source_of(U, source, source_position, source_momentum, source_seed, smearing):
    """The source as a recipe of columns."""
    from ..errors import ParameterError
    from ..hadrons import noise_source, point_source, smeared_source, wall_source

    t, z, y, x = source_position
    if any(source_momentum) and source != "wall":
        raise ParameterError(f"--source-momentum belongs to --source wall, not {source}.")
    if (source_seed is not None) != (source in ("z2", "z4", "gaussian")):
        need = "needs --source-seed" if source_seed is None else "takes no --source-seed"
        raise ParameterError(f"--source {source} {need}.")
    if source == "point":
        out = point_source(U.geometry, t, z, y, x)
    elif source == "wall":
        out = wall_source(U.geometry, t, source_momentum)
    else:
        out = noise_source(U.geometry, source_seed, source, t=t)
    if smearing is not None:
        width, steps = smearing
        if steps != int(steps):
            raise ParameterError(f"--smearing WIDTH,STEPS takes a whole number of steps, got {steps!r}.")
        out = smeared_source(out, U, width, int(steps))
    return out


def solver_of(solver, tol, maxiter, inner, inner_precision):
    """The solver."""
    from ..solvers import GCR, BiCGStab, ConjugateGradient, MixedPrecision

    kinds = {"cg": ConjugateGradient, "bicgstab": BiCGStab, "gcr": GCR}
    if solver == "mixed":
        return MixedPrecision(inner=kinds[inner](tol=tol, maxiter=maxiter), precision=inner_precision)
    return kinds[solver](tol=tol, maxiter=maxiter)


def _batch(batch: int, columns: int) -> int:
    from ..errors import ParameterError

    if batch < 1:
        raise ParameterError(f"--batch must be at least 1, got {batch}.")
    return min(batch, columns)


def _even_odd(wanted, parity, form, geometry) -> dict[str, Any]:
    """Arguments of the solve that say whether and how one parity is eliminated."""
    from ..errors import GeometryError

    reason = geometry.why_no_parity()
    if wanted and reason:
        raise GeometryError(f"--even-odd cannot be done: {reason}.")
    if wanted is False or reason:
        return {"even_odd": False}
    return {"even_odd": True, "form": form, "parity": ("even", "odd").index(parity)}


def _announce(U, configuration, definition, source, solver, settings) -> None:
    g = U.geometry
    what = {k: v for k, v in definition.parameters().items() if v is not None and k not in ("operator", "boundary")}
    where = source.parameters.get("position")
    at = f" at (t,z,y,x) = {tuple(where)}" if where else ""
    smeared = "".join(
        f", smeared (width {r['width']:g}, {r['steps']} steps)" for r in source.parameters.get("smearing", ())
    )
    remark(f"configuration {configuration}: T={g.T} Z={g.Z} Y={g.Y} X={g.X}, Nc={g.nc}, {U.origin.get('format', '?')}")
    remark(f"operator      {definition.name}: " + ", ".join(f"{k} = {v:.10g}" for k, v in what.items()))
    remark(f"source        {source.kind}{at}{smeared}, {_columns(len(source))}")
    remark(f"solver        {settings['solver']} to |b - M x| <= {solver.tol:g} |b|")


def _columns(n: int) -> str:
    return f"{n} column{'s' if n != 1 else ''}"


# -- the run -----------------------------------------------------------------------------------------------------------


def _finished(path: Path, resume: bool, force: bool, stored: str) -> bool:
    """True if --resume finds the output complete and made with these settings; refuses to overwrite anything else."""
    from ..errors import FileError, ParameterError
    from ..io.hdf5 import open_h5, read_tree
    from ..io.metadata import differences

    if not path.exists():
        return False
    if resume:
        with open_h5(path) as f:
            found = read_tree(f, "provenance").get("settings") if "provenance_json" in f else None
        differ = differences(json.loads(stored), found or {})
        if differ:
            raise ParameterError(f"{str(path)!r} is finished, with other settings: {'; '.join(differ[:4])}.")
        remark(f"{path} is finished already")
        return True
    if not force:
        raise FileError(f"{str(path)!r} exists; pass --force to replace it, or choose another --output.")
    return False


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _run(path: Path, M, source, solver, even_odd, provenance, store, resume, force, quiet) -> int:
    from ..errors import FileError
    from ..io import PropagatorFile

    partial = _partial(path)
    if partial.exists() and not resume:
        if not force:
            raise FileError(f"{str(partial)!r} exists: pass --resume to go on with it, or --force to start again.")
        os.unlink(partial)
    began = time.perf_counter()
    store = store or ("double" if M.precision.name == "double" else "single")
    with PropagatorFile.resume(path, M.geometry, source.describe(), provenance, precision=store) as file:
        if resume and not quiet:
            remark(f"resume        {len(file.done)} of {file.n_columns} columns are done")
        try:
            _solve_batches(file, M, source, solver, even_odd, quiet)
        except BaseException as error:
            # A signal may strike between a column's mark on the disk and its mark in memory: then more is kept than is known.
            interrupted = isinstance(error, KeyboardInterrupt)
            if file.done or interrupted:
                remark(
                    f"finished columns are kept in {partial} (at least {len(file.done)} of {file.n_columns}); add --resume to go on"
                )
            else:
                partial.unlink(missing_ok=True)
            raise
        infos = file.column_info()
        seconds = time.perf_counter() - began
        file.finish({"timing": {"seconds": seconds, "host": platform.node(), "finished": time.strftime("%F %T %z")}})
    residual = max(i["residual"] for i in infos)
    iterations = max(i["iterations"] for i in infos)
    remark(
        f"wrote {path}: {len(infos)} columns, true residual {residual:.2e}, at most {iterations} iterations, "
        f"{seconds_text(seconds)}"
    )
    return DONE


def _solve_batches(file, M, source, solver, even_odd, quiet) -> None:
    """Solve and store what is missing. The partition into batches is fixed, so that a run that was interrupted solves the
    same columns together as one that was not."""
    from ..solvers import solve

    total, width = source.n_columns, M.n_rhs
    with Progress("columns", total, done=len(file.done), quiet=quiet) as bar:
        for begin in range(0, total, width):
            columns = range(begin, min(begin + width, total))
            if set(columns) <= set(file.done):
                continue
            watch = _watch(bar, begin, len(columns), total, solver.tol)
            b = source.columns(columns, precision=M.precision)
            x, info = solve(M, b, solver, callback=watch, **even_odd)
            file.write_columns(columns, x, _accounts(info))
            del b, x
            note = f"|r|/|b| {info.final_residual:.1e}, {info.iterations} iterations, saved {columns[-1] + 1}/{total} columns"
            bar.update(columns[-1] + 1, note, always=True)


def _watch(bar: Progress, begin: int, count: int, total: int, tol: float):
    """A callback that moves the bar by how far the slowest column of the batch has come."""

    def tell(progress) -> None:
        worst = float(progress.residuals.max())
        done = begin + count * residual_fraction(worst, 1.0, tol)
        # The residual first: a narrow terminal cuts the end.
        bar.update(
            done, f"|r|/|b| {worst:.1e}, iteration {progress.iteration}, columns {begin + 1}-{begin + count}/{total}"
        )

    return tell


def _accounts(info) -> list[dict[str, Any]]:
    """What is kept about each column; no times, so that a resumed run keeps the same."""
    return [
        {"iterations": int(n), "residual": float(r), "reason": reason.name.lower()}
        for n, r, reason in zip(info.column_iterations, info.column_residuals, info.column_reasons)
    ]

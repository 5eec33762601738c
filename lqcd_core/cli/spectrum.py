"""``lqcd spectrum``: correlators and effective masses of an ensemble of propagators, as text, CSV, HDF5 and a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import click
import numpy as np

from .channels import CHANNELS, chosen, correlators
from .outputs import check_outputs
from .program import DONE, LQCDCommand
from .progress import Progress
from .screen import remark, table
from .settings import MOMENTUM, stored_settings

_PLOTS = ("png", "pdf", "svg")
_DEFAULT = ("pion", "rho", "a1", "nucleon", "delta")


@attrs.frozen(eq=False)
class Result:
    """One channel at one momentum, over the ensemble."""

    channel: str
    """Name of the channel."""
    momentum: tuple[int, int, int]
    """(n_x, n_y, n_z) in units of 2 pi / L."""
    label: str
    """What people read."""
    samples: np.ndarray
    """Complex correlators, ``(configurations, T)``, lattice units; t = 0 at the source."""
    mean: np.ndarray
    """Real part of the ensemble mean, ``(T,)``."""
    error: np.ndarray | None
    """Its jackknife error; None without an ensemble."""
    mass_kind: str
    """Kind of effective mass."""
    mass: np.ndarray
    """Effective mass, lattice units, ``(T,)``; NaN where it is not defined."""
    mass_error: np.ndarray | None
    """Its jackknife error; None without an ensemble."""


@click.command("spectrum", cls=LQCDCommand)
@click.argument("propagators", metavar="PROP.h5...", nargs=-1, required=True, type=click.Path())
@click.option("--channel", "-c", "channel_names", multiple=True, help=f"May be repeated; of {', '.join(CHANNELS)}. "
              f"[default: {', '.join(_DEFAULT)}]")  # fmt: skip
@click.option("--momentum", "-p", "momenta", type=MOMENTUM, multiple=True, help="In units of 2 pi / L; may be repeated. "
              "[default: 0,0,0]")  # fmt: skip
@click.option("--mass-kind", type=click.Choice(["log", "cosh", "sinh", "acosh"]), help="Effective mass of every channel; "
              "if not given, cosh for mesons and log for baryons.")  # fmt: skip
@click.option("--bin-size", type=int, default=1, help="Configurations per jackknife bin.")
@click.option("--output", "-o", default="spectrum", metavar="NAME", help="Files NAME.h5, NAME.csv and the plot.")
@click.option("--csv", "csv_path", metavar="FILE.csv", type=click.Path(dir_okay=False), help="Instead of NAME.csv.")
@click.option(
    "--plot", default="png", metavar="png|pdf|svg|none|FILE", help="Format of the plot NAME.FORMAT, or its file."
)
@click.option("--title", help="Headline of the plot.")
@click.option("--force", is_flag=True, help="Replace files of that name.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no table.")
@click.pass_context
def command(
    ctx, propagators, channel_names, momenta, mass_kind, bin_size, output, csv_path, plot, title, force, quiet
):  # fmt: skip
    """Correlators and effective masses of the propagators given, one configuration or an ensemble.

    Files of one configuration (equal digest of the links) with sources at different places are averaged first; the ensemble axis
    is the configurations, in the order given. Errors are jackknife errors over them; with one configuration there are none.
    """
    from ..errors import FileError

    channels = chosen(channel_names or _DEFAULT)
    momenta = tuple(dict.fromkeys(tuple(p) for p in momenta)) or ((0, 0, 0),)
    paths = _outputs(output, csv_path, plot)
    check_outputs(paths.values(), propagators)
    for path in paths.values():
        if path.exists() and not force:
            raise FileError(f"{str(path)!r} exists; pass --force to replace it, or choose another --output.")
    _check_bin(bin_size, len(propagators))
    if "plot" in paths:
        _need_matplotlib()
    ensemble, about = _measure(propagators, channels, momenta, quiet)
    results = _estimates(ensemble, channels, momenta, mass_kind, bin_size)
    count = len(ensemble)
    _write_csv(paths["csv"], results)
    _write_h5(paths["h5"], results, {**about, "settings": stored_settings(ctx), "bin_size": bin_size})
    bins = count // bin_size
    note = (
        f"{count} configurations, jackknife errors" + (f" over {bins} bins" if bin_size > 1 else "")
        if results[0].error is not None
        else "one configuration: no statistical errors"
        if count == 1
        else f"{count} configurations in one bin: no errors"
    )
    if "plot" in paths:
        from .plot import plot_spectrum

        plot_spectrum(paths["plot"], results, title or about["title"], note)
    if not quiet:
        _print(results, note)
    remark("wrote " + ", ".join(str(p) for p in paths.values()))
    return DONE


def _need_matplotlib() -> None:
    """Said before the contractions, not after them."""
    from ..errors import FileError, how_to_install

    try:
        import matplotlib  # noqa: F401 (asked for, not used here)
    except ImportError as error:
        text = f"the picture needs matplotlib; {how_to_install('matplotlib')}, or pass --plot none."
        raise FileError(text) from error


def _outputs(output: str, csv_path: str | None, plot: str) -> dict[str, Path]:
    """The files to write: h5, csv, and plot unless it is ``none``."""
    from ..errors import ParameterError

    stem = Path(output)
    if stem.suffix.lstrip(".") in ("h5", "hdf5", "csv", *_PLOTS):
        stem = stem.with_suffix("")
    paths = {"h5": stem.with_name(stem.name + ".h5"), "csv": Path(csv_path or stem.with_name(stem.name + ".csv"))}
    if plot == "none":
        return paths
    paths["plot"] = stem.with_name(f"{stem.name}.{plot}") if plot in _PLOTS else Path(plot)
    if paths["plot"].suffix.lstrip(".").lower() not in _PLOTS:
        raise ParameterError(f"--plot takes {', '.join(_PLOTS)}, none, or a file with such a suffix; got {plot!r}.")
    return paths


# -- measured ----------------------------------------------------------------------------------------------------------


def _measure(paths, channels, momenta, quiet) -> tuple[list[dict], dict[str, Any]]:
    """Correlators by (channel, momentum) for each configuration, sources averaged; and what they have in common."""
    from ..io import read_propagator

    groups: dict[str, list] = {}
    sources: dict[tuple, str] = {}
    first: dict[str, Any] | None = None
    first_path = ""
    with Progress("contractions", len(paths) * len(momenta), quiet=quiet) as bar:
        for k, path in enumerate(paths):
            S = read_propagator(path)
            found = _identity(S)
            if first is None:
                first, first_path = found, str(path)
            _same_calculation(first, first_path, found, str(path))
            digest = S.provenance.get("links_digest")
            key = digest or f"file {path}"
            place = (key, str(S.source.get("position")), str(S.source.get("seed")), str(S.source.get("sample")))
            if place in sources:
                _refuse_twice(sources[place], str(path))
            sources[place] = str(path)
            measured = {}
            for j, p in enumerate(momenta):
                for name, values in correlators(S, channels, p).items():
                    measured[name, p] = values
                bar.update(k * len(momenta) + j + 1, Path(path).name)
            groups.setdefault(key, []).append((str(path), digest, measured))
    ensemble = [
        {name: np.mean([m[name] for _, _, m in members], axis=0) for name in members[0][2]}
        for members in groups.values()
    ]
    about = {
        "ensemble": [{"files": [f for f, _, _ in m], "links_digest": m[0][1]} for m in groups.values()],
        "propagator": first,
        "title": _title(first, len(groups)),
    }
    return ensemble, about


def _identity(S) -> dict[str, Any]:
    """What must be equal in every propagator of an ensemble: lattice, operator, source up to its place."""
    g = S.geometry
    source = {k: v for k, v in S.source.items() if k not in ("position", "time", "seed", "sample")}
    if source.get("smearing"):  # its links belong to the configuration
        source["smearing"] = [{k: v for k, v in s.items() if k != "links_digest"} for s in source["smearing"]]
    operator = S.provenance.get("operator")
    return {
        "lattice": {"T": g.T, "Z": g.Z, "Y": g.Y, "X": g.X, "nc": g.nc}, "operator": operator, "source": source,
        "sink_smearing": S.provenance.get("sink_smearing"),
    }  # fmt: skip


def _same_calculation(first, first_path, found, path) -> None:
    from ..errors import ParameterError
    from ..io.metadata import differences

    differ = differences(first, found)
    if differ:
        text = "; ".join(d.replace("asked", "there").replace("found", "here") for d in differ[:4])
        raise ParameterError(
            f"{path!r} is no part of the same ensemble as {first_path!r}: {text}. Give one ensemble a time."
        )


def _refuse_twice(one: str, other: str) -> None:
    from ..errors import ParameterError

    raise ParameterError(
        f"{one!r} and {other!r} are the same configuration with the same source: counted twice they would make the "
        "errors too small; give one of them."
    )


def _title(identity, count: int) -> str:
    lattice = identity["lattice"]
    operator = identity["operator"] if isinstance(identity["operator"], dict) else {}
    parts = [f"{lattice['T']}x{lattice['Z']}x{lattice['Y']}x{lattice['X']} (TxZxYxX)"]
    if operator:
        parts.append(str(operator.get("operator", "")).replace("_", " "))
        if operator.get("kappa") is not None:
            parts.append(f"kappa = {operator['kappa']:.6g}")
        if operator.get("csw") is not None:
            parts.append(f"csw = {operator['csw']:.4g}")
        if operator.get("mu"):
            parts.append(f"mu = {operator['mu']:.4g}")
    return ", ".join(p for p in parts if p)


def _check_bin(bin_size: int, count: int) -> None:
    from ..errors import ParameterError

    if bin_size < 1 or bin_size > count:
        raise ParameterError(f"a bin of {bin_size} does not fit into {count} configuration(s).")


def _estimates(ensemble, channels, momenta, mass_kind, bin_size) -> list[Result]:
    from ..hadrons import effective_mass, effective_mass_jackknife, jackknife

    _check_bin(bin_size, len(ensemble))
    errors = len(ensemble) // bin_size >= 2
    out = []
    for name, channel in channels.items():
        kind = mass_kind or channel.mass_kind
        for p in momenta:
            samples = np.stack([c[name, p] for c in ensemble])
            label = (
                channel.label if len(momenta) == 1 and not any(p) else f"{channel.label}, p = ({p[0]},{p[1]},{p[2]})"
            )
            if errors:
                c, m = (
                    jackknife(samples.real, bin_size=bin_size),
                    effective_mass_jackknife(samples.real, kind, bin_size),
                )
                values = (c.value, c.error, kind, m.value, m.error)
            else:
                mean = samples.real.mean(axis=0)
                values = (mean, None, kind, effective_mass(mean, kind), None)
            out.append(Result(name, p, label, samples, *values))
    return out


# -- written -----------------------------------------------------------------------------------------------------------


def _column(values) -> list[str]:
    return ["" if v is None or not math.isfinite(v) else repr(float(v)) for v in values]


def _write_csv(path: Path, results) -> None:
    from ..io.atomic import replacing

    lines = ["channel,nx,ny,nz,t,correlator,correlator_error,effective_mass,effective_mass_error,mass_kind"]
    for r in results:
        n = len(r.mean)
        blank = [None] * n
        columns = [_column(r.mean), _column(blank if r.error is None else r.error), _column(r.mass),
                   _column(blank if r.mass_error is None else r.mass_error)]  # fmt: skip
        for t in range(n):
            lines.append(",".join([r.channel, *map(str, r.momentum), str(t), *(c[t] for c in columns), r.mass_kind]))
    with replacing(path) as f:
        f.write(("\n".join(lines) + "\n").encode())


def _write_h5(path: Path, results, about) -> None:
    from ..io import StoredCorrelator, write_correlators

    records = {}
    for r in results:
        attributes = {
            "channel": r.channel, "momentum": list(r.momentum), "axes": "configuration t", "t": "from the source slice on",
            "units": "lattice units", "mean": r.mean, "effective_mass": r.mass, "effective_mass_kind": r.mass_kind,
        }  # fmt: skip
        structures = getattr(CHANNELS[r.channel], "structures", None)
        if structures:
            attributes |= {"gamma": list(structures), "gamma_bar": "adjoint"}
        if r.error is not None:
            attributes |= {"error": r.error, "effective_mass_error": r.mass_error, "errors": "jackknife"}
        name = f"{r.channel}/p_{'_'.join(map(str, r.momentum))}"
        records[name] = StoredCorrelator(r.samples, attributes)
    write_correlators(path, records, about)


def _print(results, note: str) -> None:
    print(f"effective masses in lattice units; {note}")
    half = len(results[0].mean) // 2 + 1
    last = max((int(np.flatnonzero(np.isfinite(r.mass))[-1]) for r in results if np.isfinite(r.mass).any()), default=0)
    rows = [
        (t, *(_with_error(r.mass[t], None if r.mass_error is None else r.mass_error[t]) for r in results))
        for t in range(min(last + 1, max(half, 2)))
    ]
    table("", ("t", *(f"{r.label} [{r.mass_kind}]" for r in results)), rows)


def _with_error(value: float, error: float | None) -> str:
    """0.3456(12): the error in units of the last digits shown, two of them.

    >>> _with_error(0.34567, 0.00123), _with_error(0.34567, None), _with_error(12.3, 4.5)
    ('0.3457(12)', '0.345670', '12.3(45)')
    """
    if not math.isfinite(value):
        return "-"
    if error is None:
        return f"{value:.6f}"
    if not math.isfinite(error):
        return f"{value:.4f}(?)"
    if error == 0:
        return f"{value:.6f}(0)"
    digits = max(1 - math.floor(math.log10(error)), 0)
    scaled = round(error * 10**digits)
    if scaled >= 100:  # 0.0995 rounds up to three digits
        digits, scaled = max(digits - 1, 0), round(error * 10 ** max(digits - 1, 0))
    if digits == 0:
        return f"{value:.0f}({error:.0f})"
    return f"{value:.{digits}f}({scaled})"

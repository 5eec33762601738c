"""The plan of a campaign: a TOML file, checked whole before anything runs.

.. code-block:: toml

    [campaign]
    configurations = ["cfg/*.ildg"]        # files or patterns, relative to the plan
    masses = [0.1, 0.05]                   # or kappas = [...]
    output = "results"                     # a folder, relative to the plan
    channels = ["pion", "rho"]             # correlators that go to results.jsonl; ["pion"] if not given
    momenta = [[0, 0, 0]]
    retries = 2                            # runs of a task beyond the first whose worker died

    [[campaign.sources]]                   # options of lqcd propagator; one point at the origin if there is none
    source = "point"
    source-position = [0, 0, 0, 0]

    [resources]                            # of one task; positive whole numbers
    num_cpus = 1

    [propagator]                           # options of lqcd propagator for every task
    csw = 1.0
    tol = 1e-10
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ..errors import FileError, ParameterError, refuse_unknown

_CAMPAIGN = ("configurations", "masses", "kappas", "output", "channels", "momenta", "retries", "sources")
_TABLES = ("campaign", "resources", "propagator")
RAY_NAMES = {name: name.removeprefix("num_").removesuffix("s").upper() for name in ("num_cpus", "num_gpus")}
"""What Ray calls the resources of a node that tasks ask for by another name."""
_RAYS_OWN = {**{theirs: ours for ours, theirs in RAY_NAMES.items()}, "object_store_memory": "memory"}
_OWN = ("mass", "kappa", "output", "o", "resume", "force", "dry_run", "quiet", "q", "config")


@attrs.frozen
class Task:
    """One propagator to compute."""

    name: str
    """Unique in the campaign; the stem of its file."""
    configuration: str
    """Absolute path of the gauge field."""
    output: str
    """Absolute path of the propagator."""
    words: tuple[str, ...]
    """Words of ``lqcd propagator`` after the configuration, without the output."""
    channels: tuple[str, ...]
    """Correlators wanted of it."""
    momenta: tuple[tuple[int, int, int], ...]
    """Their momenta, in units of 2 pi / L."""

    @property
    def digest(self) -> str:
        """Digest of all that decides the numbers, apart from the contents of the configuration."""
        text = json.dumps([self.configuration, self.words, self.channels, self.momenta])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@attrs.frozen
class Plan:
    """A campaign that has been checked."""

    tasks: tuple[Task, ...]
    """In the order of the plan: configurations slow, then sources, then masses."""
    output: Path
    """Folder of everything that is written."""
    resources: Mapping[str, int] = attrs.field(hash=False)
    """What one task holds on the cluster; ``num_cpus`` and custom resources."""
    retries: int
    """Runs of a task beyond the first whose worker died."""


def read_plan(path: str | Path) -> Plan:
    """Read and check a plan file.

    Raises
    ------
    FileFormatError
        If it is no TOML.
    UnknownOptionError
        For a table, key or option that does not exist, with the nearest one.
    ParameterError
        For a value that makes no sense, two tasks of one name, or a list that is empty.
    FileError
        If a pattern matches no file.
    """
    from ..cli.settings import read_toml

    path = Path(path)
    return make_plan(read_toml(str(path)), path.resolve().parent, repr(str(path)))


def make_plan(document: Mapping[str, Any], folder: Path, where: str = "the plan") -> Plan:
    """The plan of a document, checked whole; raises as :func:`read_plan` does.

    Parameters
    ----------
    document
        What the TOML file says.
    folder
        Where relative paths begin; ``~`` is the home of the user.
    where
        Name of the plan in messages.
    """
    _known(document, _TABLES, where, "table")
    campaign, resources, propagator = (_table(document, name, where) for name in _TABLES)
    _known(campaign, _CAMPAIGN, f"[campaign] of {where}", "key")
    configurations = _configurations(_texts(campaign, "configurations", where), folder)
    masses = _masses(campaign, where)
    sources = campaign.get("sources", [{}])
    if not isinstance(sources, list) or not sources or not all(isinstance(s, dict) for s in sources):
        raise ParameterError(f"sources of {where} are tables [[campaign.sources]], at least one; got {sources!r}.")
    channels, momenta = _channels(campaign, where)
    retries = campaign.get("retries", 2)
    if not _is_whole(retries) or retries < 0:
        raise ParameterError(f"retries of {where} must be a whole number, 0 or more; got {retries!r}.")
    output = campaign.get("output", "campaign")
    if not isinstance(output, str) or not output:
        raise ParameterError(f"output of {where} is the name of a folder; got {output!r}.")
    output = os.path.expanduser(output)
    for table in (propagator, *sources):
        for key in table:
            if key.replace("-", "_").lower() in _OWN:
                raise ParameterError(
                    f"{key!r} of {where} is set by the campaign itself; see masses, kappas, configurations, output."
                )
    common = propagator_words(propagator, f"[propagator] of {where}")
    placed = [propagator_words(s, f"[[campaign.sources]] of {where}") for s in sources]
    tasks = []
    for configuration, (k, source), (kind, value) in itertools.product(configurations, enumerate(placed), masses):
        stem = configuration.name if configuration.suffix.lstrip(".").isdigit() else configuration.stem
        name = f"{_plain_name(stem)}_s{k}_{kind}{value!r}"
        tasks.append(
            Task(
                name=name,
                configuration=str(configuration),
                output=str(folder / output / f"{name}.h5"),
                words=(*common, *source, f"--{kind}", repr(value)),
                channels=channels,
                momenta=momenta,
            )
        )
    _once([t.name for t in tasks], where)
    for words in {t.words for t in tasks}:
        _check_words(words, where)
    return Plan(tuple(tasks), folder / output, check_resources(resources, _backends(tasks), where), retries)


def propagator_words(table: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Options of ``lqcd propagator`` in a TOML table as words of its command line.

    >>> propagator_words({"csw": 1.0, "source-position": [1, 0, 0, 0], "even-odd": False}, "here")
    ('--csw', '1.0', '--source-position', '1,0,0,0', '--no-even-odd')
    """
    from ..cli.propagator import command
    from ..cli.settings import settle

    out: list[str] = []
    settled = settle(table, command.params, where)
    for parameter in command.params:
        if parameter.name not in settled:
            continue
        value, option = (
            settled[parameter.name],
            parameter.opts[0] if parameter.opts[0].startswith("--") else parameter.opts[-1],
        )
        if getattr(parameter, "is_flag", False):
            if value or parameter.secondary_opts:
                out.append(option if value else parameter.secondary_opts[0])
        elif getattr(parameter, "multiple", False):
            for item in value:
                out += [option, "=".join(map(str, item)) if isinstance(item, (tuple, list)) else str(item)]
        else:
            out += [option, ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)]
    return tuple(out)


def _backends(tasks: Sequence[Task]) -> list[str]:
    """Backends that tasks name, in the common options or in a source's."""
    pairs = (pair for t in tasks for pair in zip(t.words, t.words[1:]))
    return list(dict.fromkeys(value for option, value in pairs if option == "--backend"))


def _check_words(words: Sequence[str], where: str) -> None:
    """Refuse values that ``lqcd propagator`` would refuse, now rather than on every worker."""
    import click

    from ..cli.propagator import command

    try:
        command.make_context("propagator", ["configuration", *words, "--output", "output"])
    except click.ClickException as error:
        raise ParameterError(f"{where}: lqcd propagator {' '.join(words)}: {error.format_message()}") from None


def check_resources(
    resources: Mapping[str, Any], backends: Sequence[str] = (), where: str = "the plan"
) -> dict[str, int]:
    """What one task holds: one CPU and what the records of its backends say, each unless the plan says more or less.

    A scheduler hands out whole cores, so fractions are refused: two tasks on one device core would take turns at best.

    Raises
    ------
    ParameterError
        For anything but positive whole numbers, and for names that are Ray's own.

    Examples
    --------
    >>> check_resources({"num_cpus": 2})
    {'num_cpus': 2}
    """
    from ..registry import REGISTRY

    out = {"num_cpus": 1}
    for backend in backends:
        for name, count in REGISTRY.record(backend).resources.items():
            out[name] = max(count, out.get(name, 0))
    for name, count in resources.items():
        if name in _RAYS_OWN:
            raise ParameterError(f"{name!r} of [resources] of {where} is called {_RAYS_OWN[name]!r} here.")
        if not re.fullmatch(r"[A-Za-z_][\w-]*", name):
            raise ParameterError(f"{name!r} of [resources] of {where} is no name of a resource.")
        if not _is_whole(count) or count < 1:
            raise ParameterError(f"{name} of [resources] of {where} must be a positive whole number, got {count!r}.")
        out[name] = count
    return out


# -- parts of the file ---------------------------------------------------------------------------------------------------


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _known(found: Mapping[str, Any], known: Sequence[str], where: str, what: str) -> None:
    for key in found:
        if key not in known:
            refuse_unknown([key], known, f"{where}, as a {what},")


def _table(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise ParameterError(f"[{name}] of {where} must be a table, got {found!r}.")
    return found


def _texts(campaign: Mapping[str, Any], name: str, where: str) -> list[str]:
    found = campaign.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(t, str) and t for t in found):
        raise ParameterError(f"{name} of {where} must be a list of file names or patterns, got {found!r}.")
    return found


def _configurations(patterns: Sequence[str], folder: Path) -> list[Path]:
    out: list[Path] = []
    for pattern in patterns:
        named = folder / os.path.expanduser(pattern)
        found = [named] if named.is_file() else []  # a name goes before a pattern: there are names with brackets
        found = found or sorted(folder / p for p in glob.glob(os.path.expanduser(pattern), root_dir=folder))
        found = [p for p in found if p.is_file()]
        if not found:
            raise FileError(f"no configuration matches {pattern!r} in {str(folder)!r}.")
        out += found
    seen: dict[str, Path] = {}
    twice = {str(p) for p in out if seen.setdefault(os.path.realpath(p), p) is not p}  # links are the same file
    if twice:
        raise ParameterError(
            f"a configuration is named twice: {', '.join(sorted(twice))}; counted twice it would make errors too small."
        )
    return out


def _masses(campaign: Mapping[str, Any], where: str) -> list[tuple[str, float]]:
    given = [(kind, campaign[kind]) for kind in ("masses", "kappas") if kind in campaign]
    if len(given) != 1:
        raise ParameterError(f"{where} takes either masses or kappas, got {'both' if given else 'none'}.")
    kind, values = given[0]
    if (
        not isinstance(values, list)
        or not values
        or not all(isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) < 1e300 for v in values)
    ):
        raise ParameterError(f"{kind} of {where} must be a list of numbers, all finite; got {values!r}.")
    return [({"masses": "mass", "kappas": "kappa"}[kind], float(v)) for v in values]


def _channels(campaign: Mapping[str, Any], where: str):
    from ..cli.channels import chosen

    channels = campaign.get("channels", ["pion"])
    if not isinstance(channels, list) or not channels or not all(isinstance(c, str) for c in channels):
        raise ParameterError(f"channels of {where} must be a list of names, at least one; got {channels!r}.")
    momenta = campaign.get("momenta", [[0, 0, 0]])
    if (
        not isinstance(momenta, list)
        or not momenta
        or not all(isinstance(p, list) and len(p) == 3 and all(_is_whole(n) for n in p) for p in momenta)
    ):
        raise ParameterError(f"momenta of {where} must be lists of three whole numbers, at least one; got {momenta!r}.")
    return tuple(chosen(channels)), tuple(tuple(p) for p in momenta)


def _plain_name(text: str) -> str:
    return re.sub(r"[^\w.+-]", "_", text)


def _once(names: Sequence[str], where: str) -> None:
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ParameterError(
            f"two tasks of {where} would write {twice[0] + '.h5'!r}: configurations need different names, and masses, "
            "kappas and sources may each be given once."
        )


__all__ = ["Plan", "Task", "check_resources", "make_plan", "propagator_words", "read_plan"]

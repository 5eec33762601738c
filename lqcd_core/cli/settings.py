"""Values on the command line and in TOML files: sites, momenta, lattices, phases, backend options."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from ..errors import FileFormatError, ParameterError, UnknownOptionError, nearest

NOT_SETTINGS = frozenset(
    {"config", "debug", "help", "output", "csv_path", "plot", "title", "resume", "force", "quiet", "json", "dry_run"}
)
"""Options that say where and how a command runs, not what it computes: they are not stored with its results."""


# -- values ------------------------------------------------------------------------------------------------------------


class Numbers(click.ParamType):
    """A fixed number of values with separators: ``0,0,0,0`` or ``16x8x8x8``; a list in a TOML file."""

    def __init__(self, name: str, order: str, separator: str = ",", convert=int):
        self.name, self.order, self.separator, self.number = name, order, separator, convert
        self.count = len(order.split(separator))

    def get_metavar(self, param, ctx=None):
        return self.order

    def convert(self, value, param, ctx):
        if isinstance(value, str):
            parts: Any = value.lower().replace(" ", "").split(self.separator)
        elif isinstance(value, (list, tuple)):
            parts = value
        else:
            parts = [value]
        try:
            if any(isinstance(p, bool) or (self.number is int and isinstance(p, float)) for p in parts):
                raise ValueError
            numbers = tuple(self.number(p) for p in parts)
        except (TypeError, ValueError):
            numbers = ()
        if len(numbers) != self.count:
            kind = "whole numbers" if self.number is int else "numbers"
            self.fail(f"{value!r} is no {self.name}: write {self.count} {kind} as {self.order}", param, ctx)
        return numbers


SITE = Numbers("site", "t,z,y,x")
MOMENTUM = Numbers("momentum", "nx,ny,nz")
LATTICE = Numbers("lattice", "TxZxYxX", "x")


class Boundary(click.ParamType):
    """``antiperiodic`` (in t), ``periodic``, or four phases in the order t,z,y,x, such as ``-1,1,1,1``."""

    name = "boundary"

    def get_metavar(self, param, ctx=None):
        return "antiperiodic|periodic|t,z,y,x"

    def convert(self, value, param, ctx):
        if isinstance(value, str) and "," not in value:
            return value  # the operator knows the names
        numbers = Numbers("boundary", "t,z,y,x", convert=_phase).convert(value, param, ctx)
        return tuple(n.real if n.imag == 0 else n for n in numbers)


def _phase(value) -> complex:
    return complex(value.replace("i", "j")) if isinstance(value, str) else complex(value)


class Assignment(click.ParamType):
    """``name=value``, the value a number, true, false or text; a table in a TOML file."""

    name = "assignment"

    def get_metavar(self, param, ctx=None):
        return "NAME=VALUE"

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name.strip():
            self.fail(f"{value!r} is no option of a backend: write NAME=VALUE", param, ctx)
        return name.strip().replace("-", "_"), _literal(text.strip())


def _literal(text: str):
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def backend_choice(backend: str | None, options) -> Any:
    """What ``backend=`` takes, from ``--backend`` and the ``--option`` given."""
    options = dict(options or ())
    if backend is None:
        if options:
            raise ParameterError("--option sets an option of the backend named by --backend; name one.")
        return None
    return (backend, options) if options else backend


# -- files -------------------------------------------------------------------------------------------------------------


def read_toml(path: str) -> dict[str, Any]:
    """A TOML file as a dictionary; its errors carry the file's name and the line."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    from ..io.layout import read_head

    data = read_head(path, 1 << 20)
    try:
        return tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FileFormatError(f"{path!r} is no TOML file: {error}.") from error


def read_settings_file(ctx: click.Context, parameter, path: str | None) -> None:
    """Make the file's values the defaults of this command.

    Keys are the long options, with - or _. Those at the top level belong to the command that runs; a table named for a
    command, such as ``[propagator]``, belongs to that command, so that one file can hold a whole job.

    Raises
    ------
    UnknownOptionError
        For a key that is no option, naming the nearest one; also in the tables of other commands.
    """
    if path is None or ctx.resilient_parsing:
        return
    from .program import COMMANDS

    document = read_toml(path)
    own = {k: v for k, v in document.items() if not (isinstance(v, dict) and k in COMMANDS)}
    table = document.get(ctx.command.name)
    table = table if isinstance(table, dict) else {}
    for name in COMMANDS:
        if isinstance(document.get(name), dict) and name != ctx.command.name:
            other = ctx.find_root().command.get_command(ctx, name)
            settle(document[name], other.params, f"[{name}] of {path!r}")
    values = settle(own, ctx.command.params, repr(path)) | settle(
        table, ctx.command.params, f"[{ctx.command.name}] of {path!r}"
    )
    ctx.default_map = {**(ctx.default_map or {}), **values}


def settle(given: Mapping[str, Any], parameters, where: str) -> dict[str, Any]:
    """Values by parameter name, checked against the parameters of a command."""
    known = {}
    for p in parameters:
        if p.name in {"config", "debug", "help"}:
            continue
        for spelling in (p.name, *(o.lstrip("-").replace("-", "_") for o in p.opts if o.startswith("--"))):
            known[spelling] = p
    from .program import COMMANDS  # there the settings are read; imported on use, or it would go in a circle

    out = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in known:
            tables = COMMANDS if isinstance(value, dict) else ()  # a misspelt [table] is a misspelt command
            hint = nearest(name, [*tables, *known])
            raise UnknownOptionError(f"{where} has the key {key!r}, which is no option; {hint}")
        p = known[name]
        if isinstance(value, bool) != bool(getattr(p, "is_flag", False)):
            kind = "true or false" if getattr(p, "is_flag", False) else "no true or false"
            raise ParameterError(f"{where}: {key} takes {kind}, got {value!r}.")
        if isinstance(value, dict):
            if not isinstance(p.type, Assignment):
                raise ParameterError(f"{where}: {key} takes a value, not a table.")
            value = list(value.items())
        elif (getattr(p, "multiple", False) or p.nargs == -1) and not _is_list_of_values(value, p):
            value = [value]
        several = value if getattr(p, "multiple", False) or p.nargs == -1 else [value]
        for v in (
            () if getattr(p, "is_flag", False) else several
        ):  # a flag was looked at above, whatever click calls its type
            wanted = _what_it_takes(p.type, v)
            if wanted:
                raise ParameterError(f"{where}: {key} takes {wanted}, got {v!r}.")
        out[p.name] = value
    return out


def _what_it_takes(kind: click.ParamType, value: Any) -> str | None:
    """None if a TOML value has the type of an option, else what it takes.

    click converts with int() and float(), made for the text of a command line: 1.5 would become 1 in silence.
    """
    if isinstance(kind, (Numbers, Boundary, Assignment)) or kind is click.BOOL:
        return None  # they look for themselves
    if isinstance(kind, click.types.IntParamType):
        return None if isinstance(value, int) else "a whole number"
    if isinstance(kind, click.types.FloatParamType):
        return None if isinstance(value, (int, float)) else "a number"
    return None if isinstance(value, str) else "text in quotes"


def _is_list_of_values(value, parameter) -> bool:
    """True if a list holds several values of an option that may be repeated, not the parts of one."""
    if not isinstance(value, list):
        return False
    return not isinstance(parameter.type, Numbers) or all(isinstance(v, (list, str)) for v in value)


def stored_settings(ctx: click.Context) -> str:
    """The settings that define a result, as JSON with sorted keys, for its file."""
    kept = {}
    for p in ctx.command.params:
        if p.name in ctx.params and p.name not in NOT_SETTINGS:
            kept[p.name] = _plain(ctx.params[p.name])
    return json.dumps({"command": ctx.command.name, **kept}, sort_keys=True)


def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, complex):
        return [value.real, value.imag]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


__all__ = [
    "LATTICE", "MOMENTUM", "SITE", "Assignment", "Boundary", "Numbers", "backend_choice", "read_settings_file",
    "settle", "stored_settings",
]  # fmt: skip

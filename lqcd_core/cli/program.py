"""The program: its subcommands, and what becomes of an error.

A user's mistake is one line on stderr and exit code 2; a computation that failed is code 1; Ctrl-C is 130 (SIGTERM
143). A traceback is printed only with ``--debug``, and for errors that nobody raised on purpose: those are our bugs.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
import warnings
from typing import Any

import click

from ..errors import LQCDError, NotConvergedError, how_to_install, nearest
from .settings import read_settings_file

COMMANDS = {
    "backends": "which backends are installed, what they can do, and why not",
    "info": "header, checks and plaquette of a configuration",
    "convert": "a configuration or propagator into another format",
    "generate": "quenched configurations by heatbath and overrelaxation",
    "propagator": "solve for a quark propagator",
    "spectrum": "correlators and effective masses of propagators",
    "campaign": "many configurations, sources and masses as tasks on a cluster",
    "plan": "how a lattice that is cut scales over hosts",
    "selftest": "known numbers and laws on every backend of this machine",
    "cache": "what backends keep on disk between runs: list it, clear it",
    "bench": "speed of every backend beside the machine's measured limits; ratios to other programs",
    "bench-job": "'lqcd bench' on a rented instance that ends itself: submit, list, tail, fetch, cancel",
    "monitor": "utilisation, memory, errors and latencies of cores, from a vendor's stream",
}
"""Subcommands by name; ``name`` lives in the module of that name (``-`` is ``_``), as ``command``."""

DONE, FAILED, MISTAKE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, as batch systems send it before they kill: handled like Ctrl-C."""


class LQCDCommand(click.Command):
    """A subcommand: every one takes ``--config`` and ``--debug``."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["--config"], type=click.Path(dir_okay=False), is_eager=True, expose_value=False,
                callback=read_settings_file, metavar="FILE.toml",
                help="Read options from a TOML file; the command line goes before it.",
            )
        )  # fmt: skip
        self.params.append(
            click.Option(
                ["--debug"], is_flag=True, is_eager=True, expose_value=False, callback=_remember_debug,
                help="Show the traceback of an error.",
            )
        )  # fmt: skip

    def main(self, *args, **kwargs):  # a subcommand alone, as tests call it, behaves as under the program
        raise NotImplementedError("call the program: main(['name', ...])")


def _remember_debug(ctx: click.Context, parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(dict)["debug"] = True


class Program(click.Group):
    """The group of subcommands, each imported when it is asked for."""

    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        if name not in COMMANDS:
            return None
        return importlib.import_module(f".{name.replace('-', '_')}", __package__).command

    def resolve_command(self, ctx, args):
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(f"there is no command {args[0]!r}; {nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):  # from the table above: help imports no subcommand
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, args=None, prog_name="lqcd", standalone_mode=True, **extra):
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by the caller (>&-): what would go there goes nowhere
                setattr(sys, name, open(os.devnull, "w"))
        state: dict[str, Any] = extra.setdefault("obj", {})
        previous = _catch_sigterm()
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                code = super().main(args=args, prog_name=prog_name, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of a pipe (head, less) has gone: nothing to say, and nobody to say it to
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = FAILED
        except BaseException as error:
            code = _report(error, debug=bool(state.get("debug")))
        finally:
            if previous is not None:
                signal.signal(signal.SIGTERM, previous)
        sys.exit(code if isinstance(code, int) else DONE)


def _catch_sigterm():
    def stop(number, frame):
        raise Terminated

    try:
        return signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: leave signals alone
        return None


def _show_warning(message, category, filename, lineno, file=None, line=None):
    print(f"lqcd: warning: {' '.join(str(message).split())}", file=sys.stderr, flush=True)


_IN_OUR_WORDS = {
    "(read_gauge takes check_links=False)": "",
    "pass check_links=False to accept": "pass --accept-links to accept",
    "Pass check_links=False to read": "Pass --accept-links to read",
    "call U.unitarize(), or ": "",
    "check='warn' or check='off' reads": "--check warn or --check off reads",
    "mass= or kappa=": "--mass or --kappa",
    "or pass format=": "or name the format",
    "; pass format= if it is one of them": "",
    "pass precision='single' to round it": "pass --precision single to round it",
    "drop format=": "leave out --format or --from",
    "by backend=": "by --backend",
    "use_backend('sharded', inner='numpy', shards=2)": "--backend sharded --option inner=numpy --option shards=2",
}
"""What the library's remedies are called on the command line."""


_OPTIONAL = ("rich", "h5py", "matplotlib", "psutil", "tomli", "boto3", "ray")
"""Packages that a part of the command needs and an installation may lack."""


def _say(text: str) -> None:
    for theirs, ours in _IN_OUR_WORDS.items():
        text = text.replace(theirs, ours)
    print(f"lqcd: {text.rstrip()}", file=sys.stderr, flush=True)


def _report(error: BaseException, debug: bool) -> int:
    """Say it on stderr, once, and return the exit code."""
    if debug and not isinstance(error, SystemExit):
        traceback.print_exception(error)
    if isinstance(error, SystemExit):
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":  # not in every click that serves
        error.show()
        return MISTAKE
    if isinstance(error, click.ClickException):
        where = getattr(getattr(error, "ctx", None), "command_path", "lqcd")
        print(f"{where}: {error.format_message()} (see '{where} --help')", file=sys.stderr, flush=True)
        return MISTAKE
    if isinstance(error, click.Abort) and error.__cause__ is not None:  # click's wrapping of KeyboardInterrupt
        error = error.__cause__
    if isinstance(error, Terminated):
        _say("stopped by SIGTERM")
        return TERMINATED
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        _say("interrupted")
        return INTERRUPTED
    if isinstance(error, NotConvergedError):
        _say(str(error))
        return FAILED
    if isinstance(error, MemoryError):
        _say("out of memory: use a smaller --batch or a lower --precision.")
        return FAILED
    if isinstance(error, LQCDError):
        _say(str(error))
        return MISTAKE
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OPTIONAL:
        package = error.name.partition(".")[0]
        _say(f"this needs the package {package!r}; {how_to_install(package)}")
        return MISTAKE
    if isinstance(error, OSError):
        name = f" {error.filename!r}" if error.filename else ""
        _say(f"{error.strerror or error}{name}")
        return MISTAKE
    if not debug:
        traceback.print_exception(error)
    _say("this is a bug in lqcd: please report it with the lines above and the output of 'lqcd selftest'.")
    return FAILED


def _version() -> str:
    from ..io.layout import program as name

    return name().replace("lqcd_core", "lqcd (lqcd_core)", 1)


def _print_version(ctx, parameter, value):
    if value and not ctx.resilient_parsing:
        click.echo(_version())
        ctx.exit()


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@click.option("--debug", is_flag=True, expose_value=False, callback=_remember_debug, help="Show tracebacks.")
def program():
    """Lattice QCD from real configuration files: propagators, correlators, masses, on any installed backend.

    Sites are written t,z,y,x, lattices TxZxYxX, momenta nx,ny,nz. 'lqcd COMMAND --help' shows the options of one.
    """


__all__ = ["COMMANDS", "LQCDCommand", "program"]

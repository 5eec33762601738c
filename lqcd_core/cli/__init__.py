"""The ``lqcd`` command. ``click`` and ``rich`` are imported inside :func:`main`, never when the library is."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave by :class:`SystemExit`.

    The exit code is 0 (done), 1 (it ran and failed: not converged, a check failed), 2 (the user's mistake or bad
    input) or 130 (Ctrl-C).

    Parameters
    ----------
    arguments
        Words after ``lqcd``; those of the process if None.

    Examples
    --------
    >>> try:
    ...     main(["--version"])
    ... except SystemExit as leave:
    ...     print("code", leave.code)  # doctest: +ELLIPSIS
    lqcd...
    code 0
    """
    try:
        from .program import program
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        print(
            f"lqcd: the command needs the package {error.name!r}; install what it needs with: pip install 'lqcd-core[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    program.main(args=arguments, prog_name="lqcd")


__all__ = ["main"]

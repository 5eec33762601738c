"""Every error this package raises on purpose.

Each class derives from :class:`LQCDError`, so that ``except LQCDError`` catches all of them, and from the builtin
that a caller would expect (``ValueError`` for a wrong value, ``LookupError`` for an unknown name, ...). A message says
what was asked, what was found, and what to change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class LQCDError(Exception):
    """Base of every error raised on purpose by lqcd_core and its backends."""


class ParameterError(LQCDError, ValueError):
    """A physics or algorithm parameter has a value that makes no sense."""


class UnknownOptionError(LQCDError, TypeError):
    """An option was given that does not exist; the message names the nearest one that does."""


class GeometryError(LQCDError, ValueError):
    """Lattice extents, or a combination of them, that the request cannot use."""


class FieldShapeError(LQCDError, ValueError):
    """An array does not have the shape that the lattice asks for."""


class FieldTypeError(LQCDError, TypeError):
    """An array has an element type (or is an object) that no field can hold."""


class NonUnitaryLinksError(LQCDError, ValueError):
    """Links that are not finite or not in SU(Nc) within the tolerance asked for."""


class ToleranceError(ParameterError):
    """A tolerance that the working precision cannot reach."""


class NotConvergedError(LQCDError, ArithmeticError):
    """A solve ended without reaching its tolerance. ``.solution`` carries what was reached."""

    def __init__(self, message: str, solution=None):
        super().__init__(message)
        self.solution = solution


class BackendError(LQCDError, RuntimeError):
    """Something is wrong with a backend or its registration."""


class UnknownBackendError(BackendError, LookupError):
    """No backend of that name is registered."""


class DuplicateBackendError(BackendError):
    """Two plugins registered one name."""


class BackendUnavailable(BackendError):
    """The backend is registered but cannot serve: the message is the reason."""


class NoBackendError(BackendError):
    """No registered backend can serve the request; the message lists every reason."""


class StaleGaugeError(LQCDError, RuntimeError):
    """The links were changed after an operator was bound to them."""


class FileError(LQCDError, OSError):
    """A file could not be read or written."""


class FileFormatError(FileError, ValueError):
    """The bytes of a file do not follow the format."""


class TruncatedFileError(FileFormatError):
    """A file is shorter (or longer) than its header says."""


class ChecksumError(FileFormatError):
    """A stored checksum, plaquette or link trace disagrees with the data."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that lists the known names, led by the nearest match, for the end of an error message.

    >>> nearest("nunpy", ["numpy", "torch"])
    "did you mean 'numpy'? Known: 'numpy', 'torch'."
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    listed = ", ".join(repr(n) for n in names) if names else "none"
    return f"did you mean {close[0]!r}? Known: {listed}." if close else f"Known: {listed}."


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise :class:`UnknownOptionError` if ``given`` holds a name that is not ``known``."""
    known = list(known)
    for name in given:
        if name not in known:
            raise UnknownOptionError(f"{what} has no option {name!r}; {nearest(name, known)}")


def how_to_install(package: str) -> str:
    """How to get a missing package, for the end of an error message: by the extra that brings it, where there is one.

    The extras are those of the installed distributions that register backends, so strangers' are found too.

    >>> how_to_install("h5py"), how_to_install("surely_not_there")
    ("install it with: pip install 'lqcd-core[io]'", "install the package 'surely_not_there'")
    """
    from importlib import metadata  # only when something is missing

    for entry in metadata.entry_points(group="lqcd"):
        extras: dict[str, list[str]] = {}
        for line in (entry.dist.requires if entry.dist else None) or ():
            found = re.match(r"([\w.-]+).*;.*extra == [\"'](.+?)[\"']", line)
            if found:
                extras.setdefault(found[2], []).append(found[1].replace("-", "_"))
        for extra in sorted(extras, key=lambda e: len(extras[e])):  # the smallest that brings it
            if package in extras[extra]:
                return f"install it with: pip install '{entry.dist.name}[{extra}]'"
    return f"install the package {package!r}"

"""Outputs that would destroy an input, or that have no place to go: found before any work is done."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import FileError
from ..io.atomic import check_replaceable


def check_outputs(outputs: Iterable[Path], inputs: Iterable) -> None:
    """Refuse outputs that are one of the inputs (also through links), twice the same file, or in no directory.

    ``--force`` replaces an old result; it is never meant to replace what is being read.

    Raises
    ------
    FileError
        Naming the output.
    """
    outputs, inputs = [Path(p) for p in outputs], [Path(p) for p in inputs]
    for k, path in enumerate(outputs):
        if not path.parent.is_dir():
            raise FileError(f"cannot write {str(path)!r}: the directory does not exist; create it first.")
        check_replaceable(path)
        for other in inputs:
            if _same(path, other):
                raise FileError(f"{str(path)!r} is an input of this command; choose another output.")
        if any(_same(path, other) for other in outputs[:k]):
            raise FileError(f"{str(path)!r} is named for two outputs; choose another name for one of them.")


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist (yet)
        return os.path.abspath(one) == os.path.abspath(other)


__all__ = ["check_outputs"]

"""What the machine has, as far as the standard library can say: facts for records, reports and defaults."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import metadata


def usable_processors() -> int:
    """Processors that this process may run on, at least 1.

    >>> usable_processors() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version(package: str) -> str | None:
    """Version of an installed package, None if it is not installed.

    >>> version("no-such-package")
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(packages: Iterable[str]) -> str:
    """Those of some packages that are installed, with their versions, as one line.

    >>> versions(["no-such-package"])
    ''
    """
    return ", ".join(f"{p} {v}" for p in packages if (v := version(p)))


__all__ = ["usable_processors", "version", "versions"]

"""Memory: what a solve will take, beside what the machine has."""

from __future__ import annotations

import os

from ..errors import ParameterError
from .screen import bytes_text, remark


def total_memory() -> int | None:
    """Bytes of main memory, None if the system does not say."""
    return _memory()[0]


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, None if the system does not say."""
    return _memory()[1]


def _memory() -> tuple[int | None, int | None]:
    try:
        import psutil

        m = psutil.virtual_memory()
        total, free = int(m.total), int(m.available)
    except ImportError:
        try:
            page = os.sysconf("SC_PAGE_SIZE")
            total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            return None, None
    limit = _container_limit()
    return min(total, limit), min(free, limit)


def _container_limit() -> float:
    """The limit of the control group this process lives in (containers, batch systems); infinite without one."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as f:
                return int(f.read())
        except (OSError, ValueError):
            continue
    return float("inf")


def compare(needed: int, what: str, force: bool, quiet: bool = False) -> None:
    """Print the estimate beside what is available; refuse what does not fit unless ``force``.

    Raises
    ------
    ParameterError
        If more is needed than available and ``force`` is false.
    """
    free = available_memory()
    have = "unknown" if free is None else bytes_text(free)
    if not quiet:
        remark(f"memory        about {bytes_text(needed)} for {what}; available {have}")
    if free is not None and needed > free and not force:
        raise ParameterError(
            f"the solve needs about {bytes_text(needed)} and {have} are available: use a smaller --batch, a lower "
            "--precision, or --force to try anyway."
        )


__all__ = ["available_memory", "compare", "total_memory"]

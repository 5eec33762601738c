"""One setting of the C library that keeps a long solve's memory flat.

Every application of an operator makes a new vector and drops an old one. glibc serves blocks below a threshold from its
heap, and raises that threshold, up to 32 MiB, each time a larger block is freed: vectors of some 10 MiB then lie between small
objects that outlive them, and the heap grew to 12 vectors' worth where 5 were alive (twelve columns, 16x16x8x8, double).
With a fixed threshold they are mapped one by one and go back to the system when dropped.
"""

from __future__ import annotations

import ctypes
import os
import sys

M_MMAP_THRESHOLD = -3  # malloc.h
LARGE = 1 << 20
"""Blocks from this size are mapped, bytes: below it a fresh mapping's page faults cost more than they save."""


def map_large_blocks() -> None:
    """Fix glibc's threshold at :data:`LARGE`, for the whole process. Leaves other C libraries, and a user's own
    ``MALLOC_MMAP_THRESHOLD_``, alone."""
    if not sys.platform.startswith("linux") or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)

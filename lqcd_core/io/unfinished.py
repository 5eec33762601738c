"""What a killed process leaves in a cache: folders that were being filled, found by locks that nobody holds.

.. code-block:: text

    <cache>/<key>             an entry, put there by one rename
    <cache>/.<key>.<any>      being filled, or being removed
    <cache>/.<key>.lock       locked (flock) by the process that fills; the system lets go of it when that process dies
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"
"""Last part of the name of a lock."""


@contextmanager
def locked(folder: Path, key: str, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a key inside the block; gives True, or False if another holds it and ``wait`` is false."""
    import fcntl

    # The lock file stays: removing it would let two processes hold locks on two files of one name.
    with open(folder / f".{key}.{LOCK}", "a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def remove_unfinished(folder: Path, older: float = 0.0) -> list[Path]:
    """Remove what dead processes left directly in a folder; gives what was removed.

    A hidden folder goes only if the lock file of its key exists and nobody holds it, so no work of a living process, of this
    one or of another, is touched; nor is anything that is not named like the work of a cache.

    Parameters
    ----------
    folder
        The folder that has the entries.
    older
        Only what nobody has written to for so many seconds.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     (folder / ".a1.x").mkdir()
    ...     (folder / ".a1.lock").touch()
    ...     [p.name for p in remove_unfinished(folder)]
    ['.a1.x']
    """
    removed = []
    try:
        hidden = sorted(p for p in folder.glob(".*.*") if p.is_dir() and not p.is_symlink())
    except OSError:  # a folder that cannot be listed has nothing to offer
        return removed
    for work in hidden:
        key = work.name[1:].partition(".")[0]
        if not key or not (folder / f".{key}.{LOCK}").is_file():
            continue
        try:
            with locked(folder, key, wait=False) as mine:
                if mine and time.time() - work.stat().st_mtime >= older:
                    shutil.rmtree(work)
                    removed.append(work)
        except OSError:  # read-only, of another user, or removed by another process just now
            continue
    return removed


def hide_and_remove(folder: Path) -> bool:
    """Out of sight by one rename, then away: a reader never meets half an entry. False if it was gone."""
    gone = folder.with_name(f".{folder.name}.gone.{os.getpid()}")
    try:
        os.replace(folder, gone)
    except FileNotFoundError:  # somebody else was faster
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


__all__ = ["hide_and_remove", "locked", "remove_unfinished"]

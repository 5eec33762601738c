"""One writer per output: an advisory lock that the operating system drops when its owner dies, however it dies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import FileError
from ..io.atomic import explain_os_error


@contextlib.contextmanager
def exclusive(path) -> Iterator[None]:
    """Hold the lock of an output file; it lives in a hidden file beside it, which is removed at the end.

    Raises
    ------
    FileError
        If another process holds it, or the directory cannot be written.
    """
    try:
        import fcntl
    except ImportError:  # no flock on this system: the writers' own temporary names still keep each file whole
        yield
        return
    target = Path(path)
    lock = target.parent / f".{target.name}.lock"
    handle = _locked(lock, target, fcntl)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock)  # while it is still held: whoever waits notices and makes a new one
        os.close(handle)


def _locked(lock: Path, target: Path, fcntl) -> int:
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise explain_os_error("write", target, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 32).decode(errors="replace").strip()
            os.close(handle)
            raise FileError(
                f"{str(target)!r} is being written by another process{f' ({owner})' if owner else ''}; "
                "wait for it, or choose another output."
            ) from None
        except OSError:  # a file system without locks
            return handle
        # The file may have been removed between open and lock; only the one that has the name counts.
        with contextlib.suppress(OSError):
            if os.stat(lock).st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)


__all__ = ["exclusive"]

"""Writing so that a file is either the old one or the whole new one.

Bytes go to a new name in the same directory, are flushed to the disk and then renamed over the target, which the
file system does in one step. A writer that dies leaves the old file as it was (and a hidden ``.tmp`` file beside it); two
writers of one name each have their own temporary file, and the last rename wins as a whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import FileError

_REMEDY = {
    errno.ENOSPC: "the disk is full; free some space or write elsewhere",
    errno.EDQUOT: "the disk quota is used up; free some space or write elsewhere",
    errno.EFBIG: "the file would exceed the size limit of this process or file system (ulimit -f)",
    errno.EACCES: "no permission there; choose a directory that you can write",
    errno.EPERM: "no permission there; choose a directory that you can write",
    errno.EROFS: "the file system is read-only; choose another directory",
    errno.ENOENT: "the directory does not exist; create it first",
    errno.ENOTDIR: "a part of the path is a file, not a directory",
    errno.EISDIR: "that is a directory; name a file in it",
}


def explain_os_error(action: str, path, error: BaseException) -> FileError:
    """A :class:`FileError` of one line from what the operating system said."""
    code = getattr(error, "errno", None)
    remedy = _REMEDY.get(code) or getattr(error, "strerror", None) or str(error).splitlines()[0]
    out = FileError(f"cannot {action} {str(path)!r}: {remedy}.")
    out.errno = code
    return out


def _sync_directory(directory: Path) -> None:
    with contextlib.suppress(
        OSError
    ):  # some network file systems refuse fsync on a directory; the rename stands anyway
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def pwrite_all(handle: int, data, offset: int) -> None:
    """Write all of ``data`` at ``offset`` of an open file, however few bytes the system takes at a time."""
    view = memoryview(data).cast("B")
    while len(view):
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


def check_replaceable(path) -> None:
    """Refuse a target that a file must not take the place of: a directory, a device, a pipe.

    Raises
    ------
    FileError
        Naming it.
    """
    path = Path(path)
    if path.is_dir():
        raise explain_os_error("write", path, IsADirectoryError(errno.EISDIR, "is a directory"))
    if path.exists() and not path.is_file():  # a rename would take /dev/null away from everybody
        raise FileError(
            f"cannot write {str(path)!r}: it is a device or a pipe, and only a file can be replaced; name a file."
        )


@contextlib.contextmanager
def replacing_path(path, size: int = 0) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success flush it and rename it to ``path``, else remove it.

    Parameters
    ----------
    path
        The target. A symbolic link is followed, so the file it points to is replaced.
    size
        Bytes about to be written, if known: a disk with less free space is refused at once.

    Raises
    ------
    FileError
        If the file cannot be written; the old file is then untouched.
    """
    target = Path(os.path.realpath(path))
    temporary = target.parent / f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        check_replaceable(target)
        # os.open, unlike tempfile, gives the permissions that the user's umask asks for
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        if size > shutil.disk_usage(target.parent).free:
            raise OSError(errno.ENOSPC, "no space")
        yield temporary
        with open(temporary, "rb+") as f:
            os.fsync(f.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
        _sync_directory(target.parent)
    except FileError:
        raise
    except OSError as error:
        raise explain_os_error("write", path, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


@contextlib.contextmanager
def replacing(path, size: int = 0) -> Iterator[BinaryIO]:
    """Like :func:`replacing_path`, yielding the temporary file open for binary writing (and seeking).

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     with replacing(Path(d) / "a.bin") as f:
    ...         _ = f.write(b"whole or not at all")
    ...     (Path(d) / "a.bin").read_bytes()
    b'whole or not at all'
    """
    with replacing_path(path, size) as temporary, open(temporary, "rb+") as f:
        yield f
        f.flush()

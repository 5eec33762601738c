"""Records that only grow: JSON objects, a line each, on the disk before the next thing is done.

A line is written by one call and flushed. A writer that dies in the middle of a line leaves a line without an end, which
counts as not written: the next writer cuts it off.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FileFormatError
from .atomic import explain_os_error


def read_lines(path) -> list[dict[str, Any]]:
    """Records of a file, without a last line that has no end.

    Raises
    ------
    FileError
        If the file cannot be read.
    FileFormatError
        If a line is no JSON object; the message has its number.
    """
    return _read(path)[0]


def _read(path) -> tuple[list[dict[str, Any]], int]:
    """Records, and the bytes that the lines with an end take."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise explain_os_error("read", path, error) from error
    whole, found = data.rfind(b"\n") + 1, []
    for number, line in enumerate(data[:whole].split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise FileFormatError(
                f"line {number} of {str(path)!r} is no JSON object, as every line of such a file is: remove the line, or "
                "name another file."
            )
        found.append(record)
    return found, whole


class LineFile:
    """A file of JSON lines, opened for appending.

    Parameters
    ----------
    path
        The file; it is made if it is not there.
    new
        Begin again: what the file holds is dropped, whatever it is.

    Raises
    ------
    FileError
        If the file cannot be written.
    FileFormatError
        If a line is no JSON object; nothing has been changed then.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     path = Path(d) / "lines.jsonl"
    ...     _ = path.write_text('{"a": 1}\\n{"a": ')
    ...     with LineFile(path) as lines:
    ...         lines.append({"a": 2})
    ...         lines.records
    [{'a': 1}, {'a': 2}]
    """

    def __init__(self, path, new: bool = False):
        self.path = Path(path)
        found, whole = ([], 0) if new or not self.path.exists() else _read(path)
        self.records: list[Mapping[str, Any]] = found
        """All lines, those found and those appended."""
        try:
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            if os.fstat(self._handle).st_size > whole:
                os.ftruncate(self._handle, whole)
        except OSError as error:
            raise explain_os_error("write", path, error) from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line; it is on the disk when this returns.

        Raises
        ------
        FileError
            If the disk is full or gone. Of a line that was written in part nothing counts.
        """
        line = (json.dumps(record) + "\n").encode()
        try:
            done = os.write(self._handle, line)
            if done != len(line):  # what is there is cut off by the next writer
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._handle)
        except OSError as error:
            raise explain_os_error("write", self.path, error) from error
        self.records.append(record)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *exc) -> None:
        self.close()


__all__ = ["LineFile", "read_lines"]

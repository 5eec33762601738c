"""What ran where, and the results: two files of JSON lines that only grow, written by the driver alone.

``manifest.jsonl`` gets a line for every start and every end of a task; ``results.jsonl`` one for every finished task. A
line is written by one call and flushed to the disk. A driver that dies in the middle of a line leaves a line without an end,
which the next one cuts off.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from ..errors import FileFormatError
from ..io.atomic import explain_os_error


class LineFile:
    """A file of JSON lines, opened for appending.

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

    def __init__(self, path: Path):
        self.path = path
        text = path.read_bytes() if path.exists() else b""
        whole = text.rfind(b"\n") + 1
        self.records: list[dict[str, Any]] = [
            _record(line, number, path)
            for number, line in enumerate(text[:whole].split(b"\n"), start=1)
            if line.strip()
        ]
        """All lines, those found and those appended."""
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            if whole < len(text):
                os.ftruncate(self._handle, whole)
        except OSError as error:
            raise explain_os_error("write", path, error) from error

    def append(self, record: dict[str, Any]) -> None:
        """Add a line; it is on the disk when this returns.

        Raises
        ------
        FileError
            If the disk is full or gone. Of a line that was written in part nothing counts.
        """
        line = (json.dumps(record) + "\n").encode()
        try:
            done = os.write(self._handle, line)
            if done != len(line):  # what is there is cut off by the next driver
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


def _record(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise FileFormatError(
            f"line {number} of {str(path)!r} is no JSON object, and no line of a campaign's own looks so: "
            "remove the line, or choose another output."
        )
    return found


__all__ = ["LineFile"]

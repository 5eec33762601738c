"""What ran where, and the results: two files of JSON lines that only grow, written by the driver alone.

``manifest.jsonl`` gets a line for every start and every end of a task; ``results.jsonl`` one for every finished task. A
line is written by one call and flushed to the disk. A driver that dies in the middle of a line leaves a line without an end,
which the next one cuts off.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


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
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        text = path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.ftruncate(self._handle, whole)
        self.records: list[dict[str, Any]] = [json.loads(line) for line in text[:whole].splitlines() if line.strip()]
        """All lines, those found and those appended."""

    def append(self, record: dict[str, Any]) -> None:
        """Add a line; it is on the disk when this returns."""
        line = (json.dumps(record) + "\n").encode()
        done = os.write(self._handle, line)
        if done != len(line):  # a full disk: what is there is cut off by the next driver
            raise OSError(f"only {done} of {len(line)} bytes could be written to {str(self.path)!r}")
        os.fsync(self._handle)
        self.records.append(record)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *exc) -> None:
        self.close()


__all__ = ["LineFile"]

"""LIME: a file of typed records, the container of ILDG and SciDAC files.

A record is a header of 144 bytes, big-endian (magic 0x456789AB, version 1, flags, length, type of 128 characters), the
payload, and zeros up to a multiple of 8 bytes. Flags bit 15 marks the first record of a message, bit 14 the last. Real
files set these flags in several ways, so the reader does not depend on them; the writer sets them by the rule.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import attrs

from ..errors import FileFormatError, TruncatedFileError
from .atomic import explain_os_error

MAGIC = 0x456789AB
_HEADER = struct.Struct(">IHHQ128s")
_MESSAGE_BEGIN, _MESSAGE_END = 0x8000, 0x4000
_TEXT_LIMIT = 1 << 24  # no metadata record is larger; a longer one is refused rather than loaded as text


@attrs.frozen
class LimeRecord:
    """One record: what it is and where its payload lies."""

    type: str
    """Record type, for instance ``ildg-binary-data``."""
    offset: int
    """Position of the payload in the file, bytes."""
    length: int
    """Length of the payload, bytes; known to lie inside the file."""
    begins: bool
    """True if the record opens a message."""
    ends: bool
    """True if the record closes a message."""


def scan(path) -> list[LimeRecord]:
    """Every record of a LIME file. Only headers are read, and each length is held against the file's size first.

    Raises
    ------
    TruncatedFileError
        If a record reaches past the end of the file.
    FileFormatError
        If something that is no LIME record stands where one must (wrong magic or version, trailing bytes).
    """
    records: list[LimeRecord] = []
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as f:
            position = 0
            while position < size:
                f.seek(position)
                raw = f.read(_HEADER.size)
                where = f"record {len(records)} of {str(path)!r} (byte {position})"
                if len(raw) >= 4 and struct.unpack(">I", raw[:4])[0] != MAGIC:
                    what = (
                        "is not a LIME file"
                        if not records
                        else "has bytes after its last record that are no LIME record"
                    )
                    raise FileFormatError(f"{str(path)!r} {what}: magic 0x{raw[:4].hex()} at byte {position}.")
                if len(raw) < _HEADER.size:
                    raise TruncatedFileError(
                        f"{where}: the header needs {_HEADER.size} bytes, the file has {len(raw)} left; it was cut short."
                    )
                _, version, flags, length, name = _HEADER.unpack(raw)
                if version != 1:
                    raise FileFormatError(f"{where} has LIME version {version}; only version 1 exists.")
                start = position + _HEADER.size
                kind = name.split(b"\0", 1)[0].decode("ascii", "replace")
                if length > size - start:
                    raise TruncatedFileError(
                        f"{where}, type {kind!r}, claims {length} bytes, but the file has {size - start} left; "
                        "it was cut short or its header is damaged."
                    )
                records.append(
                    LimeRecord(kind, start, length, bool(flags & _MESSAGE_BEGIN), bool(flags & _MESSAGE_END))
                )
                position = start + -(-length // 8) * 8
    except FileFormatError:
        raise
    except OSError as error:
        raise explain_os_error("read", path, error) from error
    return records


def read_text(path, record: LimeRecord) -> str:
    """The payload of a metadata record as text, without trailing NULs and blanks.

    Raises
    ------
    FileFormatError
        If the record is larger than 16 MiB, which no metadata is.
    """
    if record.length > _TEXT_LIMIT:
        raise FileFormatError(f"record {record.type!r} of {str(path)!r} has {record.length} bytes of text; damaged?")
    with open(path, "rb") as f:
        f.seek(record.offset)
        return f.read(record.length).decode("utf-8", "replace").rstrip("\0 \n\r\t")


def xml_value(text: str, name: str) -> str | None:
    """Text of the first element ``name``, whatever its namespace, stripped; None if there is none.

    Examples
    --------
    >>> xml_value("<a><x:precision> 32 </x:precision></a>", "precision")
    '32'
    """
    found = re.search(rf"<(?:[\w.-]+:)?{name}(?:\s[^>]*)?>(.*?)</(?:[\w.-]+:)?{name}\s*>", text, re.DOTALL)
    return found.group(1).strip() if found else None


@attrs.frozen
class Stream:
    """A payload too large to hold: its length, and the chunks that make it up."""

    length: int
    """Bytes in all."""
    chunks: Iterable
    """Objects with the buffer protocol, in order."""


Payload = bytes | Stream | Callable[[], bytes]


def write_message(f: BinaryIO, records: list[tuple[str, Payload]]) -> None:
    """Append one message: the first record carries the begin flag, the last the end flag, padding is zeros.

    A payload may be a function; it is called when its turn comes, so a checksum can follow the data it sums.

    Raises
    ------
    FileFormatError
        If a stream does not yield the bytes it announced, or a type does not fit in 128 ASCII characters.
    """
    for i, (kind, payload) in enumerate(records):
        name = kind.encode("ascii")
        if len(name) > 127:
            raise FileFormatError(f"LIME record type {kind!r} is longer than 127 characters.")
        flags = (_MESSAGE_BEGIN if i == 0 else 0) | (_MESSAGE_END if i == len(records) - 1 else 0)
        if callable(payload):
            payload = payload()
        length, chunks = (payload.length, payload.chunks) if isinstance(payload, Stream) else (len(payload), [payload])
        f.write(_HEADER.pack(MAGIC, 1, flags, length, name))
        written = sum(f.write(chunk) for chunk in _as_bytes(chunks))
        if written != length:
            raise FileFormatError(f"record {kind!r} announced {length} bytes and got {written}.")
        f.write(b"\0" * (-length % 8))


def _as_bytes(chunks: Iterable) -> Iterator[memoryview]:
    for chunk in chunks:
        yield memoryview(chunk).cast("B")

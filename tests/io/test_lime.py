"""The LIME container: by its rules when written, without trust when read."""

import struct

import pytest

from lqcd_core import errors
from lqcd_core.io.lime import Stream, read_text, scan, write_message, xml_value

HEADER = struct.Struct(">IHHQ128s")


def header(length, kind=b"x", flags=0xC000, magic=0x456789AB, version=1):
    return HEADER.pack(magic, version, flags, length, kind)


def test_messages_open_and_close_once_and_pad_with_zeros(tmp_path):
    path = tmp_path / "a.lime"
    with open(path, "wb") as f:
        write_message(f, [("one", b"12345"), ("two", Stream(8, [b"1234", b"5678"])), ("three", lambda: b"late")])
        write_message(f, [("only", b"")])
    records = scan(path)
    assert [(r.type, r.length, r.begins, r.ends) for r in records] == [
        ("one", 5, True, False),
        ("two", 8, False, False),
        ("three", 4, False, True),
        ("only", 0, True, True),
    ]
    raw = path.read_bytes()
    assert len(raw) % 8 == 0 and raw[144 + 5 : 144 + 8] == b"\0\0\0"
    assert HEADER.unpack(raw[:144])[:4] == (0x456789AB, 1, 0x8000, 5)
    assert read_text(path, records[2]) == "late"


def test_stream_must_yield_what_it_announced(tmp_path):
    with open(tmp_path / "a", "wb") as f, pytest.raises(errors.FileFormatError, match="announced 8 bytes and got 4"):
        write_message(f, [("x", Stream(8, [b"1234"]))])


def test_reader_does_not_depend_on_message_flags(tmp_path):
    path = tmp_path / "flags.lime"
    for flags in (0x0000, 0x4000, 0x8000, 0xC000):
        path.write_bytes((header(8, b"abc", flags) + b"8 bytes.") * 2)
        assert [r.type for r in scan(path)] == ["abc", "abc"]


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1, 2**64 - 144])
def test_huge_length_is_refused_before_anything_is_allocated(tmp_path, length):
    import tracemalloc

    path = tmp_path / "huge.lime"
    path.write_bytes(header(length) + b"\0" * 64)
    tracemalloc.start()
    with pytest.raises(errors.TruncatedFileError, match=str(length)):
        scan(path)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_damage_is_named(tmp_path):
    path = tmp_path / "bad.lime"
    cases = [
        (header(0, magic=0x12345678), errors.FileFormatError, "not a LIME file"),
        (header(0, version=2), errors.FileFormatError, "version 2"),
        (header(8) + b"12345678" + b"garbage!", errors.FileFormatError, "after its last record"),
        (header(8) + b"12345678" + header(8)[:100], errors.TruncatedFileError, "header needs 144"),
        (header(8) + b"1234", errors.TruncatedFileError, "claims 8 bytes"),
    ]
    for raw, error, words in cases:
        path.write_bytes(raw)
        with pytest.raises(error, match=words):
            scan(path)


def test_last_padding_may_be_missing(tmp_path):
    path = tmp_path / "short.lime"
    path.write_bytes(header(5) + b"12345")
    assert scan(path)[0].length == 5


def test_xml_values_ignore_blanks_and_namespaces():
    assert xml_value("<ildg:a x='1'>\n 7 </ildg:a>", "a") == "7"
    assert xml_value("<lx>4</lx>", "ly") is None
    assert xml_value("<dims>4 4 4 8 </dims>", "dims") == "4 4 4 8"

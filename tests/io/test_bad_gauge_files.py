"""Damaged, mislabelled and impossible configurations: each is refused with the reason, and the way out where one exists."""

import re
import struct

import numpy as np
import pytest

from lqcd_core import errors
from lqcd_core.fields import GaugeField
from lqcd_core.gauge import plaquette
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import FileCheckWarning, convert_gauge, inspect_gauge, read_gauge, sniff, write_gauge
from lqcd_core.io.lime import scan

GEOMETRY = LatticeGeometry(T=4, Z=2, Y=2, X=4)
FORMATS = ("nersc", "ildg", "scidac", "milc", "openqcd", "npy")


@pytest.fixture(scope="module")
def field():
    return GaugeField.random(GEOMETRY, seed=3)


@pytest.fixture(params=FORMATS)
def written(request, tmp_path, field):
    """A good file of each format: (path, position of the first byte of data)."""
    path = tmp_path / f"good.{request.param}"
    write_gauge(field, path, precision="single" if request.param == "milc" else None)
    return path, data_offset(path)


def data_offset(path):
    kind, raw = sniff(path), path.read_bytes()
    if kind == "nersc":
        return raw.index(b"END_HEADER\n") + 11
    if kind in ("ildg", "scidac"):
        return next(r.offset for r in scan(path) if "binary" in r.type)
    return {"milc": 96, "openqcd": 24, "npy": 128}[kind]


def test_missing_file_and_directory(tmp_path):
    for path, words in ((tmp_path / "no.ildg", "no such file"), (tmp_path, "directory")):
        with pytest.raises(errors.FileError, match=words) as caught:
            read_gauge(path)
        assert isinstance(caught.value, OSError) and "\n" not in str(caught.value)
    with pytest.raises(errors.ParameterError, match="file name"):
        read_gauge(None)


def test_truncation_at_any_place_is_noticed(written):
    path, offset = written
    raw = path.read_bytes()
    for keep in (len(raw) - 9, len(raw) // 2, offset + 10, offset, offset - 3, 20, 4, 1, 0):
        path.write_bytes(raw[:keep])
        with pytest.raises(errors.FileFormatError):
            read_gauge(path, check="off", check_links=False)


def test_truncation_names_both_sizes(tmp_path, field):
    path = write_gauge(field, tmp_path / "a.nersc")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(errors.TruncatedFileError, match=rf"needs {size} bytes, found {size - 100}"):
        read_gauge(path)


def test_trailing_garbage_is_noticed(written):
    path, _ = written
    with open(path, "ab") as f:
        f.write(b"garbage at the end, 31 bytes...")
    with pytest.raises(errors.FileFormatError):
        read_gauge(path, check="off", check_links=False)


def test_one_flipped_bit_in_the_data_is_noticed(written):
    path, offset = written
    raw = bytearray(path.read_bytes())
    # sign bit of one real in the middle: big-endian files have it in the first byte of a word, little-endian in the last
    at = offset + (4096 + (7 if path.suffix in (".openqcd", ".npy") else 0))
    raw[at] ^= 0x80
    path.write_bytes(bytes(raw))
    with pytest.raises((errors.ChecksumError, errors.NonUnitaryLinksError)):
        read_gauge(path)
    if path.suffix != ".npy":  # npy stores nothing to compare with
        assert not inspect_gauge(path).ok
        with pytest.warns(FileCheckWarning, match="stored"):
            read_gauge(path, check="warn", check_links=False)
    damaged = read_gauge(path, check="off", check_links=False)
    assert damaged.unitarity() > 1e-3


def test_lowest_bit_is_noticed_where_there_is_a_checksum(tmp_path, field):
    for format in ("nersc", "ildg", "scidac", "milc"):
        path = write_gauge(field.to("single"), tmp_path / f"a.{format}", format=format)
        raw = bytearray(path.read_bytes())
        raw[data_offset(path) + 4096 + 3] ^= 0x01  # last bit of a big-endian float32: 6e-8 of its size
        path.write_bytes(bytes(raw))
        with pytest.raises(errors.ChecksumError, match="WRONG"):
            read_gauge(path)


def test_flipped_bit_in_a_lime_header_never_passes_for_a_good_file(tmp_path, field):
    path = write_gauge(field, tmp_path / "a.ildg")
    raw = path.read_bytes()
    data = next(r for r in scan(path) if r.type == "ildg-binary-data")
    for at in (0, 5, *range(8, 16)):  # magic, version, length of the data record
        bad = bytearray(raw)
        bad[data.offset - 144 + at] ^= 0x40
        path.write_bytes(bytes(bad))
        with pytest.raises(errors.FileFormatError):
            read_gauge(path)


def test_wrong_byte_order_in_a_nersc_header_is_named(tmp_path, field):
    path = write_gauge(field, tmp_path / "a.nersc", byteorder="little")
    path.write_bytes(path.read_bytes().replace(b"IEEE64LITTLE", b"IEEE64BIG   "))
    with pytest.raises(errors.ChecksumError, match="right for the other byte order"):
        read_gauge(path)


def test_wrong_dimensions_are_refused(tmp_path, field):
    path = write_gauge(field, tmp_path / "a.nersc")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"DIMENSION_1 = 4", b"DIMENSION_1 = 8"))
    with pytest.raises(errors.TruncatedFileError, match="truncated"):
        read_gauge(path)
    path.write_bytes(raw.replace(b"DIMENSION_1 = 4", b"DIMENSION_1 = 2"))
    with pytest.raises(errors.TruncatedFileError, match="too long"):
        read_gauge(path)
    # the same volume in another shape: only the plaquette can tell
    path.write_bytes(
        raw.replace(b"DIMENSION_1 = 4", b"DIMENSION_1 = 2").replace(b"DIMENSION_2 = 2", b"DIMENSION_2 = 4")
    )
    with pytest.raises(errors.ChecksumError, match="plaquette"):
        read_gauge(path)
    for bad in (b"0", b"x", b"-4"):
        path.write_bytes(raw.replace(b"DIMENSION_1 = 4", b"DIMENSION_1 = " + bad))
        with pytest.raises(errors.FileFormatError, match="no lattice"):
            read_gauge(path)


def test_astronomic_extents_are_refused_without_allocation(tmp_path):
    import tracemalloc

    files = {
        "a.nersc": b"BEGIN_HEADER\nDATATYPE = 4D_SU3_GAUGE\n"
        + b"".join(b"DIMENSION_%d = 100000\n" % i for i in (1, 2, 3, 4))
        + b"FLOATING_POINT = IEEE64BIG\nEND_HEADER\n",
        "a.milc": struct.pack("<5i64siII", 20103, *4 * [2**30], b"now", 0, 0, 0) + bytes(100),
        "a.npy": b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<c16', 'fortran_order': False, 'shape': (4, 99999, 99999, 99999, 99999, 3, 3), }".ljust(117)
        + b"\n",
    }
    tracemalloc.start()
    for name, raw in files.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(errors.TruncatedFileError, match="needs"):
            read_gauge(tmp_path / name)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def refused_with(field, path, old, new, words):
    """A file with one text of its header changed is refused in these words."""
    whole = write_gauge(field, path).read_bytes()
    assert old in whole
    path.write_bytes(whole.replace(old, new))
    with pytest.raises(errors.FileFormatError, match=words):
        read_gauge(path)


def test_header_without_an_end_or_a_key(tmp_path, field):
    for old, new, words in (
        (b"END_HEADER", b"END_HEEDER", "no END_HEADER"),
        (b"FLOATING_POINT", b"FLOATING_PAINT", "lacks FLOATING_POINT"),
        (b"IEEE64BIG", b"IEEE80BIG", "IEEE80BIG"),
        (b"4D_SU3_GAUGE_3x3", b"4D_SU3_SPINOR   ", "DATATYPE"),
    ):
        refused_with(field, tmp_path / "a.nersc", old, new, words)


def test_ildg_records_that_contradict_each_other(tmp_path, field):
    for old, new, words in (
        (b"<precision>64</precision>", b"<precision>32</precision>", "contradict"),
        (b"<lx>4</lx>", b"<lx>8</lx>", "contradict"),
        (b"su3gauge", b"su5gauge", "needs"),
        (b"su3gauge", b"fermions", "fermions"),
        (b"<lt>4</lt>", b"<lT>4</lT>", "lacks lt"),
    ):
        refused_with(field, tmp_path / "a.ildg", old, new, words)


def test_format_asked_for_is_held_against_the_content(tmp_path, field):
    path = write_gauge(field, tmp_path / "a.ildg")
    assert read_gauge(path, format="ildg").array.tobytes() == field.array.tobytes()
    with pytest.raises(errors.FileFormatError, match="was to be read as 'nersc', but its content is 'ildg'"):
        read_gauge(path, format="nersc")
    with pytest.raises(errors.ParameterError, match="did you mean 'nersc'"):
        read_gauge(path, format="nerc")
    misnamed = path.rename(tmp_path / "a.nersc")  # the name does not matter, the content does
    assert read_gauge(misnamed).origin["format"] == "ildg"


def test_unknown_content_lists_what_was_looked_for(tmp_path):
    path = tmp_path / "a.ildg"
    path.write_bytes(b"a text, not a configuration" * 10)
    with pytest.raises(errors.FileFormatError, match=r"NERSC.*LIME.*MILC.*openQCD"):
        read_gauge(path)


def test_old_header_with_twice_the_plaquette_needs_the_opt_out(tmp_path, field):
    path = write_gauge(field, tmp_path / "a.nersc")
    stored, twice = (f"{f * plaquette(field):.16g}".encode() for f in (1, 2))
    raw = path.read_bytes()
    path.write_bytes(re.sub(rb"PLAQUETTE = " + re.escape(stored), b"PLAQUETTE = " + twice, raw))
    with pytest.raises(errors.ChecksumError, match="stored is 2 times"):
        read_gauge(path)
    with pytest.warns(FileCheckWarning, match="plaquette"):
        read_gauge(path, check="warn")
    U = read_gauge(path, check="off")
    assert U.array.tobytes() == field.array.tobytes()
    assert U.origin["plaquette"]["stored"] == twice.decode() and U.origin["plaquette"]["computed"] is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_number_that_is_not_finite_is_found_though_the_checksum_is_right(tmp_path, field, value):
    links = field.array.copy()
    links[1, 1, 0, 2, 3, 0, 1] = value
    with np.errstate(all="ignore"):
        bad = GaugeField(GEOMETRY, links)
        for format in ("nersc", "ildg", "scidac"):
            with pytest.raises(errors.NonUnitaryLinksError, match="not finite"):
                write_gauge(bad, tmp_path / "a", format=format)
            assert not (tmp_path / "a").exists()
            path = write_gauge(bad, tmp_path / f"nan.{format}", format=format, check_links=False)
            with pytest.raises((errors.NonUnitaryLinksError, errors.ChecksumError)):
                read_gauge(path)
            with pytest.raises(errors.NonUnitaryLinksError, match="1 links are not finite"):
                read_gauge(path, check="off")
            V = read_gauge(path, check="off", check_links=False)
            assert np.array_equal(V.array, links, equal_nan=True)
            report = inspect_gauge(path)
            checks = {c.name: c.ok for c in report.checks}
            assert np.isnan(report.unitarity)
            assert all(checks[k] for k in checks if k in ("checksum", "suma", "sumb"))


def test_links_off_su3_are_refused_and_accepted_by_argument(tmp_path, field):
    bad = GaugeField(GEOMETRY, 1.01 * field.array)
    with pytest.raises(errors.NonUnitaryLinksError):
        write_gauge(bad, tmp_path / "a.ildg")
    path = write_gauge(bad, tmp_path / "a.ildg", check_links=False)
    with pytest.raises(errors.NonUnitaryLinksError, match="check_links=False"):
        read_gauge(path)
    assert read_gauge(path, check_links=False).array.tobytes() == bad.array.tobytes()
    assert convert_gauge(path, tmp_path / "b.nersc", check_links=False).exists()


def test_another_lattice_than_asked(tmp_path, field):
    path = write_gauge(field, tmp_path / "a.ildg")
    for other in (LatticeGeometry(T=4, Z=2, Y=4, X=2), LatticeGeometry(T=4, Z=2, Y=2, X=4, nc=2)):
        with pytest.raises(errors.GeometryError, match="asked for"):
            read_gauge(path, geometry=other)


def test_milc_site_lists_are_refused(tmp_path, field):
    path = write_gauge(field, tmp_path / "a.milc", precision="single")
    raw = bytearray(path.read_bytes())
    raw[84:88] = struct.pack(">i", 1)
    path.write_bytes(bytes(raw))
    with pytest.raises(errors.FileFormatError, match="coordinate list"):
        read_gauge(path)


def test_what_a_format_cannot_hold_is_refused(tmp_path, field):
    su2 = GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=2), seed=1, precision="single")
    odd = GaugeField.random(LatticeGeometry(T=3, Z=2, Y=2, X=2), seed=1)
    for U, format, error, words in (
        (su2, "milc", errors.ParameterError, "Nc = 2"),
        (su2, "openqcd", errors.ParameterError, "Nc = 2"),
        (odd, "openqcd", errors.GeometryError, "T=3 is odd"),
    ):
        with pytest.raises(error, match=words):
            write_gauge(U, tmp_path / "a", format=format)
    assert read_gauge(write_gauge(odd, tmp_path / "odd.ildg")).array.tobytes() == odd.array.tobytes()


def test_options_and_names_are_checked(tmp_path, field):
    with pytest.raises(errors.UnknownOptionError, match="did you mean 'byteorder'"):
        write_gauge(field, tmp_path / "a.nersc", byte_order="big")
    with pytest.raises(errors.UnknownOptionError, match="did you mean 'check'"):
        read_gauge(tmp_path / "a.nersc", chek="off")
    with pytest.raises(errors.ParameterError, match=r"\.nersc"):
        write_gauge(field, tmp_path / "a.dat")
    with pytest.raises(errors.ParameterError, match="did you mean 'ildg'"):
        write_gauge(field, tmp_path / "a", format="idlg")
    with pytest.raises(errors.ParameterError, match="check must be"):
        read_gauge(tmp_path / "a", check="maybe")
    for bad in ({"rows": 1}, {"byteorder": "middle"}, {"header": {"A": "b\nc"}}):
        with pytest.raises(errors.ParameterError):
            write_gauge(field, tmp_path / "a.nersc", **bad)
    with pytest.raises(errors.ParameterError, match="GaugeField"):
        write_gauge(field.array, tmp_path / "a.nersc")
    assert list(tmp_path.iterdir()) == []


def test_propagator_is_not_taken_for_a_configuration(tmp_path):
    from lqcd_core.fields import Propagator
    from lqcd_core.io import write_propagator

    S = Propagator(GEOMETRY, np.ones((*GEOMETRY.shape, 4, 4, 3, 3), complex))
    for name in ("s.h5", "s.lime"):
        with pytest.raises(errors.FileFormatError, match="read_propagator"):
            read_gauge(write_propagator(S, tmp_path / name))

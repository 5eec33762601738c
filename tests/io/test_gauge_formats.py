"""Laws of every configuration format: what is written comes back, and a site stays where it was."""

import struct
import warnings

import numpy as np
import pytest

from lqcd_core import errors
from lqcd_core.fields import GaugeField
from lqcd_core.gauge import link_trace, plaquette
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import (
    FileCheckWarning,
    check_gauge_parts,
    convert_gauge,
    inspect_gauge,
    read_gauge,
    read_gauge_part,
    read_gauge_slab,
    sniff,
    write_gauge,
)
from lqcd_core.io.configuration import _open

# extents all different, so that no two axes can be confused
GEOMETRY = LatticeGeometry(T=8, Z=6, Y=4, X=2)
FORMATS = ("nersc", "ildg", "scidac", "milc", "openqcd", "npy")


@pytest.fixture(scope="module")
def double():
    return GaugeField.random(GEOMETRY, seed=11)


@pytest.fixture(scope="module")
def single(double):
    return double.to("single")


@pytest.mark.parametrize("format", ["nersc", "ildg", "scidac", "openqcd", "npy"])
def test_double_comes_back_bit_by_bit(tmp_path, double, format):
    path = write_gauge(double, tmp_path / f"a.{format}", format=format)
    V = read_gauge(path)
    assert sniff(path) == format and V.origin["format"] == format
    assert V.precision.name == "double" and V.array.tobytes() == double.array.tobytes()
    assert double.origin == {"kind": "random (Haar)", "seed": 11}  # writing does not touch the field


@pytest.mark.parametrize("format", ["nersc", "ildg", "scidac", "milc"])
def test_single_comes_back_bit_by_bit(tmp_path, double, single, format):
    path = write_gauge(double, tmp_path / f"a.{format}", format=format, precision="single")
    V = read_gauge(path)
    assert V.precision.name == "single" and V.array.tobytes() == single.array.tobytes()
    again = write_gauge(V, tmp_path / f"b.{format}", format=format)
    assert read_gauge(again).array.tobytes() == V.array.tobytes()


@pytest.mark.parametrize("byteorder", ["big", "little"])
@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("precision", ["double", "single"])
def test_nersc_variants(tmp_path, double, single, byteorder, rows, precision):
    path = write_gauge(double, tmp_path / "a.nersc", rows=rows, byteorder=byteorder, precision=precision)
    U = double if precision == "double" else single
    V = read_gauge(path)
    header = V.origin["header"]
    assert header["FLOATING_POINT"] == f"IEEE{64 if precision == 'double' else 32}{byteorder.upper()}"
    assert header["DATATYPE"] == "4D_SU3_GAUGE" + ("_3x3" if rows == 3 else "")
    assert (V.array[..., :2, :] == U.array[..., :2, :]).all()
    assert np.abs(V.array - U.array).max() <= (0 if rows == 3 else 8 * U.precision.epsilon)
    again = read_gauge(write_gauge(V, tmp_path / "b.nersc", rows=rows, byteorder=byteorder))
    assert again.array.tobytes() == V.array.tobytes()


@pytest.mark.parametrize("nc", [2, 3, 4])
@pytest.mark.parametrize("format", ["nersc", "ildg", "scidac", "npy"])
def test_any_number_of_colours(tmp_path, nc, format):
    g = LatticeGeometry(T=2, Z=2, Y=2, X=4, nc=nc)
    U = GaugeField.random(g, seed=nc)
    path = write_gauge(U, tmp_path / f"a.{format}", format=format)
    V = read_gauge(path)
    assert V.geometry == g and V.array.tobytes() == U.array.tobytes()
    if format == "nersc":
        assert V.origin["header"]["DATATYPE"] == f"4D_SU{nc}_GAUGE_{nc}x{nc}"
        W = read_gauge(write_gauge(U, tmp_path / "short.nersc", rows=nc - 1))
        assert W.origin["header"]["DATATYPE"] == f"4D_SU{nc}_GAUGE"
        assert np.abs(W.array - U.array).max() < 1e-13
        # divided by Nc, not by 3
        assert float(V.origin["header"]["LINK_TRACE"]) == pytest.approx(link_trace(U), abs=1e-14)
    if format == "ildg":
        assert f"<field>su{nc}gauge</field>" in V.origin["header"]["ildg-format"]
        assert f"QDP_D{nc}_ColorMatrix" in V.origin["header"]["scidac-private-record-xml"]


def test_su2_one_row_form_is_a_b_then_minus_b_star_a_star(tmp_path):
    U = GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=2), seed=5)
    path = write_gauge(U, tmp_path / "a.nersc", rows=1)
    a, b = read_gauge(path).array[..., 0, 0], read_gauge(path).array[..., 0, 1]
    V = read_gauge(path).array
    assert np.abs(V[..., 1, 0] + b.conj()).max() < 1e-15 and np.abs(V[..., 1, 1] - a.conj()).max() < 1e-15


def site_of_file(raw, offset, real, site, nc=3):
    """The four links of one site of a site-major file, by its definition: mu = x, y, z, t; rows; columns; re, im."""
    values = np.frombuffer(raw, real, 4 * nc * nc * 2, offset + site * 4 * nc * nc * 2 * np.dtype(real).itemsize)
    out = np.empty((4, nc, nc), complex)
    k = 0
    for mu in range(4):
        for row in range(nc):
            for column in range(nc):
                out[mu, row, column] = complex(values[k], values[k + 1])
                k += 2
    return out


def test_bytes_of_a_site_lie_where_the_format_says(tmp_path, double):
    g, (t, z, y, x) = GEOMETRY, (5, 4, 3, 1)
    site = ((t * g.Z + z) * g.Y + y) * g.X + x
    want = double.array[t, z, y, x][::-1]  # ours t, z, y, x; theirs x, y, z, t
    nersc = write_gauge(double, tmp_path / "a.nersc").read_bytes()
    assert (site_of_file(nersc, nersc.index(b"END_HEADER\n") + 11, ">f8", site) == want).all()
    from lqcd_core.io.lime import scan

    path = write_gauge(double, tmp_path / "a.ildg")
    data = next(r for r in scan(path) if r.type == "ildg-binary-data")
    assert (site_of_file(path.read_bytes(), data.offset, ">f8", site) == want).all()
    milc = write_gauge(double, tmp_path / "a.milc", precision="single", byteorder="little").read_bytes()
    assert np.abs(site_of_file(milc, 96, "<f4", site) - want).max() < 1e-7


def test_openqcd_lists_the_links_around_odd_sites(tmp_path, double):
    raw = write_gauge(double, tmp_path / "a.openqcd").read_bytes()
    g, U = GEOMETRY, double.array
    assert struct.unpack("<4id", raw[:24]) == pytest.approx((8, 2, 4, 6, 3 * plaquette(double)))
    links = np.frombuffer(raw, "<c16", offset=24).reshape(-1, 8, 3, 3)
    k = 0
    for t in range(g.T):
        for x in range(g.X):
            for y in range(g.Y):
                for z in range(g.Z):
                    if (t + x + y + z) % 2 == 0:
                        continue
                    backward = [
                        U[t - 1, z, y, x, 0], U[t, z, y, x - 1, 3], U[t, z, y - 1, x, 2], U[t, z - 1, y, x, 1],
                    ]  # fmt: skip
                    for mu, ours in enumerate((0, 3, 2, 1)):
                        assert (links[k, 2 * mu] == U[t, z, y, x, ours]).all()
                        assert (links[k, 2 * mu + 1] == backward[mu]).all()
                    k += 1
    assert k == g.volume // 2


@pytest.mark.parametrize("format", ["nersc", "ildg", "scidac"])
def test_header_carries_plaquette_link_trace_and_checksum(tmp_path, double, format):
    report = inspect_gauge(write_gauge(double, tmp_path / "a", format=format))
    checks = {c.name: c for c in report.checks}
    assert all(c.ok is True for c in report.checks) and report.ok and not report.failures
    assert checks["plaquette"].stored == pytest.approx(plaquette(double), abs=1e-14)
    assert checks["link_trace"].stored == pytest.approx(link_trace(double), abs=1e-14)
    assert {"checksum"} <= set(checks) if format == "nersc" else {"suma", "sumb"} <= set(checks)
    text = str(report)
    assert "plaquette" in text and "Polyakov t" in text and report.digest in text


@pytest.mark.parametrize("format", ["nersc", "ildg", "scidac", "milc"])
def test_slabs_are_the_parts_of_the_whole(tmp_path, double, format):
    path = write_gauge(double, tmp_path / "a", format=format, precision="single" if format == "milc" else None)
    whole = read_gauge(path).array
    for start, stop in ((0, 2), (2, 8), (7, 8)):
        assert read_gauge_slab(path, start, stop).tobytes() == whole[start:stop].tobytes()
    for start, stop in ((-1, 2), (3, 3), (6, 9)):
        with pytest.raises(errors.ParameterError, match="time slices"):
            read_gauge_slab(path, start, stop)


@pytest.mark.parametrize("format", ["nersc", "ildg", "scidac", "milc"])
def test_checksums_of_parts_make_up_that_of_the_whole(tmp_path, double, format):
    path = write_gauge(double, tmp_path / "a", format=format, precision="single" if format == "milc" else None)
    parts = [read_gauge_part(path, *between) for between in ((2, 5), (0, 2), (5, 8))]
    compared = check_gauge_parts(path, [p.without_links() for p in parts])
    assert compared and set(compared) == set(parts[0].stored)
    with pytest.raises(errors.ParameterError, match="do not make up its 8 time slices"):
        check_gauge_parts(path, parts[:2])
    raw = bytearray(path.read_bytes())
    where = (
        _open(path, format, None).offset + 4 * double.geometry.spatial_volume * (288 if format == "milc" else 576) + 6
    )
    raw[where] ^= 1  # a low bit in slice 4, so that the links stay in SU(3)
    path.write_bytes(raw)
    damaged = [read_gauge_part(path, *between, check_links=False) for between in ((0, 2), (2, 5), (5, 8))]
    with pytest.raises(errors.ChecksumError, match=compared[0]):
        check_gauge_parts(path, damaged)


def test_slabs_of_openqcd_are_refused_with_the_way_out(tmp_path, double):
    path = write_gauge(double, tmp_path / "a.openqcd")
    with pytest.raises(errors.FileFormatError, match="convert it to 'ildg'"):
        read_gauge_slab(path, 0, 2)


def test_conversion_chain_ends_where_it_began(tmp_path, double):
    path = write_gauge(double, tmp_path / "0.ildg")
    for i, format in enumerate(("nersc", "openqcd", "scidac", "npy", "ildg"), 1):
        path = convert_gauge(path, tmp_path / f"{i}.{format}")
    assert read_gauge(path).array.tobytes() == double.array.tobytes()
    convert_gauge(path, path, format="nersc")  # in place
    assert sniff(path) == "nersc" and read_gauge(path).array.tobytes() == double.array.tobytes()


def test_precision_is_not_lowered_in_silence(tmp_path, double):
    with pytest.raises(errors.FieldTypeError, match="precision='single'"):
        write_gauge(double, tmp_path / "a.milc")
    with pytest.raises(errors.ParameterError, match="double only"):
        write_gauge(double, tmp_path / "a.openqcd", precision="single")
    with pytest.raises(errors.ParameterError, match="double or single"):
        write_gauge(double, tmp_path / "a.ildg", precision="half")
    assert list(tmp_path.iterdir()) == []


def test_reading_in_another_precision(tmp_path, double, single):
    path = write_gauge(double, tmp_path / "a.ildg")
    assert read_gauge(path, precision="single").array.tobytes() == single.array.tobytes()
    path = write_gauge(single, tmp_path / "b.nersc", rows=2)
    wide = read_gauge(path, precision="double")
    assert wide.precision.name == "double"
    # the last row is made in double, so it is orthogonal to the others to double rounding
    rows = wide.array
    assert np.abs(np.einsum("...a,...a->...", rows[..., 0, :].conj(), rows[..., 2, :])).max() < 1e-15
    half = read_gauge(path, precision="half")
    assert half.precision.name == "half"


@pytest.mark.parametrize("precision", ["half", "bf16"])
def test_sixteen_bit_fields_are_widened_exactly(tmp_path, double, precision):
    U = double.to(precision)
    V = read_gauge(write_gauge(U, tmp_path / "a.ildg"), check_links=False)
    assert V.array.tobytes() == U.array.tobytes()


def plain_ieee(tmp_path, field, byteorder):
    path = write_gauge(field, tmp_path / f"{byteorder}.nersc", rows=2, byteorder=byteorder)
    raw = path.read_bytes()
    for bits in (b"32", b"64"):
        raw = raw.replace(b"IEEE" + bits + byteorder.upper().encode(), b"IEEE" + bits)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("precision", ["double", "single"])
def test_plain_ieee_is_big_endian_unless_the_checksum_says_little(tmp_path, double, precision):
    U = double.to(precision)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        big = read_gauge(plain_ieee(tmp_path, U, "big"))
    with pytest.warns(FileCheckWarning, match="little-endian"):
        little = read_gauge(plain_ieee(tmp_path, U, "little"))
    assert big.array.tobytes() == little.array.tobytes()


def test_ildg_without_a_checksum_is_read_with_a_note(tmp_path, double):
    from lqcd_core.io.lime import scan

    path = write_gauge(double, tmp_path / "a.ildg")
    last = scan(path)[-1]
    assert last.type == "scidac-checksum"
    path.write_bytes(path.read_bytes()[: last.offset - 144])
    U = read_gauge(path)
    assert U.array.tobytes() == double.array.tobytes()
    assert any("no scidac-checksum" in n for n in U.origin["notes"])
    assert any("may have been cut" in n for n in U.origin["notes"])  # the record that closed the message is gone


def test_bare_binary_record_needs_the_lattice(tmp_path):
    from lqcd_core.io.lime import write_message

    for nc in (2, 3, 4):
        g = LatticeGeometry(T=2, Z=2, Y=2, X=2, nc=nc)
        U = GaugeField.random(g, seed=1)
        path = tmp_path / f"bare{nc}.ildg"
        with open(path, "wb") as f:
            write_message(f, [("ildg-binary-data", U.array[..., ::-1, :, :].astype(">c16").tobytes())])
        assert read_gauge(path, geometry=g).array.tobytes() == U.array.tobytes()
        with pytest.raises(errors.FileFormatError, match=r"no ildg-format record.*geometry="):
            read_gauge(path)


def test_second_gauge_record_and_its_checksum_do_not_disturb_the_first(tmp_path):
    g = LatticeGeometry(T=2, Z=2, Y=2, X=2)
    U, V = (GaugeField.random(g, seed=s) for s in (1, 2))
    a, b = (write_gauge(f, tmp_path / n, format="scidac") for f, n in ((U, "a"), (V, "b")))
    both = tmp_path / "both"
    both.write_bytes(a.read_bytes() + b.read_bytes())
    assert read_gauge(both).array.tobytes() == U.array.tobytes()


def test_header_with_few_digits_is_not_wrong(tmp_path, double):
    path = write_gauge(double, tmp_path / "a.nersc")
    raw = path.read_bytes()
    full = f"{plaquette(double):.16g}".encode()
    # pad after the number so that the header keeps its length; blanks around a value do not count
    path.write_bytes(raw.replace(full, f"{plaquette(double):.4f}".encode().ljust(len(full))))
    assert read_gauge(path).array.tobytes() == double.array.tobytes()


def test_logical_file_name_and_user_text_go_into_the_file(tmp_path, double):
    path = write_gauge(double, tmp_path / "a.ildg", lfn="lfn://us/run<7>", info="beta = 6 & more")
    header = read_gauge(path).origin["header"]
    assert header["ildg-data-lfn"] == "lfn://us/run<7>" and "beta = 6 &amp; more" in header["scidac-record-xml"]
    header = read_gauge(write_gauge(double, tmp_path / "a.nersc", header={"BETA": "6.0"})).origin["header"]
    assert header["BETA"] == "6.0" and header["CREATOR"].startswith("lqcd_core")


def test_old_milc_files_have_a_short_header(tmp_path, single):
    for order in "<>":
        links = single.array[..., ::-1, :, :].astype(order + "c8").tobytes()
        path = tmp_path / "old.milc"
        path.write_bytes(struct.pack(order + "I4i2f", 59354, 2, 4, 6, 8, 6.0, 0.1) + links)
        U = read_gauge(path)
        assert U.array.tobytes() == single.array.tobytes() and U.origin["header"]["version"] == "1-4"


def test_pyquda_array_has_directions_outermost(tmp_path, double):
    path = write_gauge(double, tmp_path / "a.npy")
    a = np.load(path)
    assert a.shape == (4, 8, 6, 4, 2, 3, 3) and a.dtype == np.dtype("<c16")
    assert (a[0, 5, 4, 3, 1] == double.array[5, 4, 3, 1, 3]).all()  # their 0 is x, our 3


def test_scidac_sums_in_a_nersc_header_are_verified_and_zero_means_absent(tmp_path, double):
    # Grid stores the sums of the sites as they lie in the file; PyQUDA fills the same keys with zero
    from lqcd_core.io.checksum import ScidacChecksum
    from lqcd_core.io.layout import encoded_slices

    sums = ScidacChecksum(576)
    assert len(list(encoded_slices(double.array, np.dtype(">f8"), 3, [sums]))) == 8
    right = {f"SCIDAC_CHECKSUM{k[-1].upper()}": f"{v:>10}" for k, v in sums.result().items()}
    report = inspect_gauge(write_gauge(double, tmp_path / "grid.nersc", header=right))
    assert [c.name for c in report.checks if c.ok] == ["checksum", "suma", "sumb", "plaquette", "link_trace"]
    wrong = {**right, "SCIDAC_CHECKSUMA": "12345678"}
    with pytest.raises(errors.ChecksumError, match="suma"):
        read_gauge(write_gauge(double, tmp_path / "wrong.nersc", header=wrong))
    zero = dict.fromkeys(right, f"{0:10x}")
    U = read_gauge(write_gauge(double, tmp_path / "zero.nersc", header=zero))
    assert set(U.origin["checksums"]) == {"checksum"}


def test_private_record_of_zeros_beside_ildg_data_is_ignored(tmp_path, double):
    # GPT writes such a record; what it does not say comes from ildg-format, or from Grid's own record
    from lqcd_core.io.lime import write_message

    g = GEOMETRY
    zeros = (
        "<scidacRecord><version>1</version><date/><recordtype>0</recordtype><datatype>0</datatype><precision>0</precision>"
        "<colors>0</colors><spins>0</spins><typesize>0</typesize><datacount>0</datacount></scidacRecord>"
    )
    extents = "".join(f"<elem>{n}</elem>" for n in (g.X, g.Y, g.Z, g.T))
    grid = f"<FieldMetaData><nd>4</nd><dimension>{extents}</dimension></FieldMetaData>"
    data = double.array[..., ::-1, :, :].astype(">c16").tobytes()
    path = tmp_path / "gpt.lime"
    with open(path, "wb") as f:
        records = {"grid-format": grid.encode(), "scidac-private-record-xml": zeros.encode(), "ildg-binary-data": data}
        write_message(f, list(records.items()))
    assert read_gauge(path).array.tobytes() == double.array.tobytes()


def test_reading_makes_no_second_copy_of_the_links(tmp_path):
    import tracemalloc

    g = LatticeGeometry(T=16, Z=8, Y=8, X=8)
    U = GaugeField.cold(g, precision="single")
    for format in ("nersc", "ildg", "scidac", "milc"):
        path = write_gauge(U, tmp_path / "a", format=format)
        read_gauge(path)  # what is imported on first use is not counted
        tracemalloc.start()
        V = read_gauge(path, check="off", check_links=False)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.2 * V.nbytes  # the field and one time slice of the file

"""ILDG and SciDAC gauge configurations in LIME.

The links are one record, ``ildg-binary-data`` or ``scidac-binary-data``: big-endian, all rows. What describes them comes
from ``ildg-format`` or from the SciDAC private records, whichever is there; a file with neither needs the lattice from
the caller. The ``scidac-checksum`` that follows the data is verified where it exists; it is optional.
"""

from __future__ import annotations

import re
import time
from xml.sax.saxutils import escape

import numpy as np

from ..errors import FileFormatError, GeometryError
from ..fields import GaugeField
from ..geometry import LatticeGeometry
from .atomic import replacing
from .checksum import ScidacChecksum
from .layout import GaugeFile, check_size, encoded_slices, geometry_of, program, same_geometry
from .lime import LimeRecord, Stream, read_text, scan, write_message, xml_value

BINARY = ("ildg-binary-data", "scidac-binary-data")


_FILE_LEVEL = ("scidac-private-file-xml", "scidac-file-xml", "xlf-info", "ildg-format")


def group_of(path, records: list[LimeRecord], data: LimeRecord) -> dict[str, str]:
    """The metadata that belong to a binary record, by type.

    What stands between the previous data and this one describes it, except a checksum, which closes the previous; after
    the data come its checksum and file name. File-level records count from anywhere before.
    """
    at = records.index(data)
    before = next((i for i in range(at - 1, -1, -1) if records[i].type in BINARY), -1)
    after = next((i for i in range(at + 1, len(records)) if records[i].type in BINARY), len(records))
    group: dict[str, str] = {}
    for i, record in enumerate(records):
        if record.type in BINARY:
            continue
        if i < at:
            belongs = record.type in _FILE_LEVEL or (i > before and record.type != "scidac-checksum")
        else:
            closes = record.type in ("scidac-checksum", "ildg-data-lfn")
            belongs = i < after and (closes or after == len(records))
        if belongs:
            group[record.type] = read_text(path, record)
    return group


def is_gauge(data: LimeRecord, group: dict[str, str]) -> bool:
    """True unless the SciDAC private record says that this is another kind of field.

    ``ildg-binary-data`` is always links; some writers (GPT) fill the private record beside it with zeros.
    """
    private = group.get("scidac-private-record-xml")
    if private is None or data.type == "ildg-binary-data":
        return True
    datatype = xml_value(private, "datatype") or ""
    links = re.search(r"colou?r_?matrix", datatype, re.IGNORECASE) is not None
    return links and xml_value(private, "datacount") in (None, "4")


def open_gauge(path, geometry: LatticeGeometry | None = None) -> GaugeFile:
    """Find the gauge record and what describes it; no link is read.

    Raises
    ------
    FileFormatError
        If there is no gauge record, its length fits neither precision, or nothing says what lattice it is.
    """
    records = scan(path)
    found = [(r, group_of(path, records, r)) for r in records if r.type in BINARY]
    gauge = [(r, group) for r, group in found if is_gauge(r, group)]
    if not gauge:
        kinds = ", ".join(
            sorted({xml_value(g.get("scidac-private-record-xml", ""), "datatype") or r.type for r, g in found})
        )
        raise FileFormatError(
            f"{str(path)!r} is a LIME file without a gauge field (it has {kinds or 'no binary record'}); "
            "propagators are read with read_propagator."
        )
    data, group = gauge[0]
    g, bits = _describe(path, data, group, geometry)
    fits = {64: g.volume * 4 * g.nc**2 * 16, 32: g.volume * 4 * g.nc**2 * 8}
    if bits is None:
        bits = next((b for b, n in fits.items() if n == data.length), None)
        if bits is None:
            raise FileFormatError(
                f"record {data.type!r} of {str(path)!r} has {data.length} bytes, but {g} needs {fits[64]} (double) or "
                f"{fits[32]} (single): check the extents and nc given."
            )
    check_size(path, fits[bits], data.length, f"record {data.type!r} in {bits} bits on {g}")
    checksum_text = group.get("scidac-checksum")
    checksums = {}
    if checksum_text is not None:
        for name in ("suma", "sumb"):
            value = xml_value(checksum_text, name)
            if value is None:
                raise FileFormatError(f"the scidac-checksum of {str(path)!r} has no {name}: {checksum_text!r}.")
            checksums[name] = value
    plaq, trace = _stored_numbers(group)
    notes = [] if checksums else ["the file has no scidac-checksum record (it is optional)"]
    if not checksums and not records[-1].ends:
        notes.append("its last record does not close the message: the file may have been cut after it")
    file = GaugeFile(
        path=str(path),
        format="ildg" if data.type == "ildg-binary-data" else "scidac",
        geometry=g,
        offset=data.offset,
        real=np.dtype(">f8" if bits == 64 else ">f4"),
        rows=g.nc,
        header=group,
        checksums=checksums,
        plaquette=plaq,
        link_trace=trace,
        notes=tuple(notes),
    )
    import attrs

    return attrs.evolve(file, accumulators=(lambda: ScidacChecksum(file.site_bytes),))


def _describe(path, data: LimeRecord, group: dict[str, str], asked: LatticeGeometry | None):
    """Lattice and bits per real from ildg-format and the private records, which must agree with each other."""
    claims: dict[str, tuple] = {}
    bits: dict[str, int] = {}
    nc = 3
    text = group.get("ildg-format")
    if text is not None:
        values = {k: xml_value(text, k) for k in ("lx", "ly", "lz", "lt", "precision", "field")}
        missing = [k for k, v in values.items() if v is None]
        if missing:
            raise FileFormatError(f"the ildg-format record of {str(path)!r} lacks {', '.join(missing)}.")
        group_name = re.fullmatch(r"su(\d+)gauge", values["field"])
        if group_name is None or values["precision"] not in ("32", "64"):
            raise FileFormatError(
                f"the ildg-format record of {str(path)!r} has field {values['field']!r} in {values['precision']!r} bits; "
                "readable are su<N>gauge in 32 or 64."
            )
        nc = int(group_name[1])
        claims["ildg-format"] = (values["lx"], values["ly"], values["lz"], values["lt"])
        bits["ildg-format"] = int(values["precision"])
    private_file = group.get("scidac-private-file-xml")
    if private_file is not None and xml_value(private_file, "dims"):
        dims = xml_value(private_file, "dims").split()
        if len(dims) != 4 or xml_value(private_file, "spacetime") not in (None, "4"):
            raise FileFormatError(f"{str(path)!r} is not on a 4d lattice: dims {dims}.")
        if xml_value(private_file, "volfmt") not in (None, "0"):
            raise FileFormatError(f"{str(path)!r} is one part of a multi-file SciDAC volume; join the parts first.")
        claims["scidac-private-file-xml"] = tuple(dims)
    private = group.get("scidac-private-record-xml")
    if private is not None:
        precision = xml_value(private, "precision")
        if precision in ("F", "D"):
            bits["scidac-private-record-xml"] = 32 if precision == "F" else 64
        colors = xml_value(private, "colors") or ""
        if colors.isdigit() and int(colors) > 0 and text is None:
            nc = int(colors)
    grid = xml_value(group.get("grid-format", ""), "dimension")
    if grid and not claims:
        claims["grid-format"] = tuple(re.findall(r"<elem>\s*(\d+)\s*</elem>", grid))
        if len(claims["grid-format"]) != 4:
            raise FileFormatError(f"{str(path)!r} is not on a 4d lattice: dimension {claims['grid-format']}.")
    if len({tuple(int(n) for n in c if n.isdigit()) for c in claims.values()}) > 1 or len(set(bits.values())) > 1:
        raise FileFormatError(f"the records of {str(path)!r} contradict each other: extents {claims}, bits {bits}.")
    if claims:
        g = geometry_of(path, *next(iter(claims.values())), nc)
        same_geometry(path, g, asked)
    elif asked is not None:
        g = asked
    else:
        raise FileFormatError(
            f"{str(path)!r} has no ildg-format record, so the lattice is not in the file (record {data.type!r} has "
            f"{data.length} bytes); pass geometry=LatticeGeometry(T=, Z=, Y=, X=, nc=)."
        )
    return g, next(iter(bits.values()), None)


def _stored_numbers(group: dict[str, str]) -> tuple[str | None, str | None]:
    """Plaquette and link trace from usqcdInfo or tmLQCD's xlf-info, as printed."""
    plaq = trace = None
    for user in (group.get("scidac-record-xml", ""), group.get("usqcdInfo", "")):
        if "usqcdInfo" in user:
            plaq, trace = xml_value(user, "plaq") or plaq, xml_value(user, "linktr") or trace
    xlf = re.search(r"plaquette\s*=\s*(\S+)", group.get("xlf-info", ""))
    return plaq or (xlf[1] if xlf else None), trace


def checksum_xml(checksum: ScidacChecksum) -> bytes:
    """Payload of a ``scidac-checksum`` record."""
    sums = checksum.result()
    return (
        '<?xml version="1.0" encoding="UTF-8"?><scidacChecksum><version>1.0</version>'
        f"<suma>{sums['suma']}</suma><sumb>{sums['sumb']}</sumb></scidacChecksum>"
    ).encode()


def private_file_xml(g: LatticeGeometry) -> bytes:
    """Payload of a ``scidac-private-file-xml`` record."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><scidacFile><version>1.1</version><spacetime>4</spacetime>'
        f"<dims>{g.X} {g.Y} {g.Z} {g.T} </dims><volfmt>0</volfmt></scidacFile>"
    ).encode()


def private_record_xml(datatype: str, precision: str, colors: int, spins: int, typesize: int, datacount: int) -> bytes:
    """Payload of a ``scidac-private-record-xml`` record."""
    date = time.strftime("%a %b %d %H:%M:%S %Y UTC", time.gmtime())
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><scidacRecord><version>1.1</version><date>{date}</date>'
        f"<recordtype>0</recordtype><datatype>{datatype}</datatype><precision>{precision}</precision>"
        f"<colors>{colors}</colors><spins>{spins}</spins><typesize>{typesize}</typesize>"
        f"<datacount>{datacount}</datacount></scidacRecord>"
    ).encode()


def write_gauge(
    U: GaugeField,
    path,
    *,
    plaquette: float,
    link_trace: float,
    scidac: bool = False,
    lfn: str | None = None,
    info: str = "",
) -> None:
    """Write an ILDG file (or a plain SciDAC one) in the field's own precision, as QIO lays it out.

    Parameters
    ----------
    U
        The links, double or single.
    path
        The file.
    plaquette, link_trace
        Numbers of this field for the usqcdInfo record, unit field 1.
    scidac
        Leave out the ILDG records and call the data ``scidac-binary-data``.
    lfn
        Logical file name for the ``ildg-data-lfn`` record; no record without it.
    info
        Free text for the usqcdInfo record.
    """
    g, nc = U.geometry, U.geometry.nc
    if scidac and lfn is not None:
        raise GeometryError("a plain SciDAC file has no logical file name; write format='ildg' or drop lfn=.")
    double = U.precision.name == "double"
    real = np.dtype(">f8" if double else ">f4")
    link_bytes = nc * nc * 2 * real.itemsize
    checksum = ScidacChecksum(4 * link_bytes)
    total = g.volume * 4 * link_bytes
    file_xml = f'<?xml version="1.0" encoding="UTF-8"?><title>{escape(program())} gauge configuration</title>'
    record_xml = (
        '<?xml version="1.0" encoding="UTF-8"?><usqcdInfo><version>1.0</version>'
        f"<plaq>{plaquette:.16g}</plaq><linktr>{link_trace:.16g}</linktr><info>{escape(info)}</info></usqcdInfo>"
    )
    letter = "D" if double else "F"
    records: list = [
        (
            "scidac-private-record-xml",
            private_record_xml(f"QDP_{letter}{nc}_ColorMatrix", letter, nc, 4, link_bytes, 4),
        ),
        ("scidac-record-xml", record_xml.encode()),
    ]
    if not scidac:
        records.append((
            "ildg-format",
            (
                '<?xml version="1.0" encoding="UTF-8"?><ildgFormat xmlns="http://www.lqcd.org/ildg" '
                'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
                'xsi:schemaLocation="http://www.lqcd.org/ildg/filefmt.xsd"><version>1.0</version>'
                f"<field>su{nc}gauge</field><precision>{8 * real.itemsize}</precision>"
                f"<lx>{g.X}</lx><ly>{g.Y}</ly><lz>{g.Z}</lz><lt>{g.T}</lt></ildgFormat>"
            ).encode(),
        ))  # fmt: skip
        if lfn is not None:
            records.append(("ildg-data-lfn", lfn.encode()))
    records += [
        (
            "scidac-binary-data" if scidac else "ildg-binary-data",
            Stream(total, encoded_slices(U.array, real, nc, [checksum])),
        ),
        ("scidac-checksum", lambda: checksum_xml(checksum)),
    ]
    with replacing(path, total) as f:
        write_message(f, [("scidac-private-file-xml", private_file_xml(g)), ("scidac-file-xml", file_xml.encode())])
        write_message(f, records)

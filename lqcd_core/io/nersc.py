"""NERSC archive: a text header between ``BEGIN_HEADER`` and ``END_HEADER``, then the links.

``DATATYPE`` 4D_SU3_GAUGE stores rows 0 and 1 (Nc - 1 rows in general), 4D_SU3_GAUGE_3x3 all of them. The plain
FLOATING_POINT names IEEE32 and IEEE64 mean big-endian in the archive; some codes write them little-endian, so the
checksum decides, and big-endian wins if it decides nothing.
"""

from __future__ import annotations

import re
import time

import numpy as np

from ..errors import FileFormatError, ParameterError, TruncatedFileError
from ..fields import GaugeField
from ..geometry import LatticeGeometry
from .atomic import replacing
from .checksum import NerscChecksum, ScidacChecksum, same_hex
from .layout import (
    GaugeFile,
    check_size,
    encoded_slices,
    file_size,
    geometry_of,
    program,
    read_head,
    same_geometry,
    time_slices,
)

_FLOATING = {
    "IEEE32": ">f4", "IEEE64": ">f8", "IEEE32BIG": ">f4", "IEEE64BIG": ">f8", "IEEE32LITTLE": "<f4", "IEEE64LITTLE": "<f8",
}  # fmt: skip
_HEADER_LIMIT = 1 << 16


def parse_header(path) -> tuple[dict[str, str], int]:
    """The ``KEY = VALUE`` pairs and the position of the first byte of data.

    Raises
    ------
    FileFormatError, TruncatedFileError
        If the file does not begin with BEGIN_HEADER, or END_HEADER never comes.
    """
    head = read_head(path, _HEADER_LIMIT)
    if not re.match(rb"BEGIN_HEADER\r?\n", head):
        raise FileFormatError(f"{str(path)!r} is no NERSC file: it does not begin with BEGIN_HEADER.")
    end = re.search(rb"^END_HEADER[ \t]*\r?\n", head, re.MULTILINE)
    if end is None:
        kind = TruncatedFileError if len(head) < _HEADER_LIMIT else FileFormatError
        raise kind(f"{str(path)!r} has BEGIN_HEADER but no END_HEADER in its first {len(head)} bytes.")
    header = {}
    for line in head[: end.start()].decode("latin-1").splitlines()[1:]:
        key, equals, value = line.partition("=")
        if equals:
            header[key.strip()] = value.strip()
    return header, end.end()


def open_gauge(path, geometry: LatticeGeometry | None = None) -> GaugeFile:
    """Read the header and hold the file's length against it; no link is read unless the byte order is in doubt."""
    header, offset = parse_header(path)
    needed = ("DATATYPE", "DIMENSION_1", "DIMENSION_2", "DIMENSION_3", "DIMENSION_4", "FLOATING_POINT")
    missing = [k for k in needed if k not in header]
    if missing:
        raise FileFormatError(f"the NERSC header of {str(path)!r} lacks {', '.join(missing)}.")
    kind = re.fullmatch(r"4D_SU\(?(\d+)\)?_GAUGE(?:_(\d+)[xX](\d+))?", header["DATATYPE"])
    if kind is None or (kind[2] and not kind[1] == kind[2] == kind[3]):
        raise FileFormatError(
            f"{str(path)!r} has DATATYPE {header['DATATYPE']!r}; known are 4D_SU<N>_GAUGE and 4D_SU<N>_GAUGE_<N>x<N>."
        )
    floating = header["FLOATING_POINT"].upper()
    if floating not in _FLOATING:
        raise FileFormatError(
            f"{str(path)!r} has FLOATING_POINT {header['FLOATING_POINT']!r}; known are {', '.join(_FLOATING)}."
        )
    nc = int(kind[1])
    g = geometry_of(path, *(header[f"DIMENSION_{i}"] for i in (1, 2, 3, 4)), nc)
    same_geometry(path, g, geometry)
    file = GaugeFile(
        path=str(path),
        format="nersc",
        geometry=g,
        offset=offset,
        real=np.dtype(_FLOATING[floating]),
        rows=nc if kind[2] else nc - 1,
        header=header,
        checksums=_stored_checksums(header),
        plaquette=header.get("PLAQUETTE"),
        link_trace=header.get("LINK_TRACE"),
    )
    check_size(path, offset + file.data_bytes, file_size(path), f"{header['DATATYPE']} in {floating} on {g}")
    if floating in ("IEEE32", "IEEE64") and "checksum" in file.checksums:
        file = _settle_order(file, floating)
    return with_order(file, file.real)


def with_order(file: GaugeFile, real: np.dtype) -> GaugeFile:
    """The same file read as reals of another byte order."""
    import attrs

    real = np.dtype(real)
    order = ">" if real.str[0] == ">" else "<"
    makers = [lambda: NerscChecksum(order)]
    if "suma" in file.checksums:
        makers.append(lambda: ScidacChecksum(file.site_bytes))
    return attrs.evolve(file, real=real, accumulators=tuple(makers))


def _stored_checksums(header: dict[str, str]) -> dict[str, str]:
    """CHECKSUM, and Grid's SCIDAC_CHECKSUMA and B over the sites as stored; writers that leave those out put zero."""
    out = {"checksum": header["CHECKSUM"]} if "CHECKSUM" in header else {}
    pair = {"suma": header.get("SCIDAC_CHECKSUMA", "0"), "sumb": header.get("SCIDAC_CHECKSUMB", "0")}
    if not all(same_hex(v, "0") for v in pair.values()):
        out.update(pair)
    return out


def _settle_order(file: GaugeFile, floating: str) -> GaugeFile:
    """Big-endian for the plain names, unless only the little-endian checksum is right."""
    import attrs

    sums = NerscChecksum(">")
    sums.both = True
    for _, data in time_slices(file):
        sums.update(data)
    stored = file.checksums["checksum"]
    if not same_hex(sums.result()["checksum"], stored) and same_hex(sums.swapped(), stored):
        note = f"FLOATING_POINT {floating} means big-endian, but the checksum is right for little-endian: read as that"
        return attrs.evolve(file, real=file.real.newbyteorder("<"), notes=(*file.notes, note))
    return file


def swapped_checksum(file: GaugeFile) -> str:
    """The checksum with every word in the other byte order, for the error message of a wrong header."""
    sums = NerscChecksum(">" if file.real.str[0] == ">" else "<")
    sums.both = True
    for _, data in time_slices(file):
        sums.update(data)
    return sums.swapped()


def write_gauge(
    U: GaugeField,
    path,
    *,
    plaquette: float,
    link_trace: float,
    rows: int | None = None,
    byteorder: str = "big",
    ensemble_id: str = "lqcd_core",
    ensemble_label: str = "",
    sequence_number: int = 0,
    header: dict[str, str] | None = None,
) -> None:
    """Write a NERSC file in the field's own precision (double or single).

    Parameters
    ----------
    U
        The links, double or single.
    path
        The file.
    plaquette, link_trace
        Header numbers of this field, unit field 1.
    rows
        Nc (default) or Nc - 1: without the last row a third is saved, and reading it back is exact to rounding only.
    byteorder
        ``big`` or ``little``.
    ensemble_id, ensemble_label, sequence_number
        Free text of the header.
    header
        Further ``KEY: value`` lines.
    """
    g, nc = U.geometry, U.geometry.nc
    rows = nc if rows is None else rows
    if rows not in (nc, nc - 1):
        raise ParameterError(f"rows must be {nc} or {nc - 1} for Nc = {nc}, got {rows!r}.")
    if byteorder not in ("big", "little"):
        raise ParameterError(f"byteorder must be 'big' or 'little', got {byteorder!r}.")
    size = 8 if U.precision.name == "double" else 4
    real = np.dtype(f"{'>' if byteorder == 'big' else '<'}f{size}")
    now = time.strftime("%a %b %d %H:%M:%S %Y UTC", time.gmtime())
    lines = {
        "HDR_VERSION": "1.0",
        "DATATYPE": f"4D_SU{nc}_GAUGE" + (f"_{nc}x{nc}" if rows == nc else ""),
        "STORAGE_FORMAT": "1.0",
        **{f"DIMENSION_{i}": str(n) for i, n in enumerate((g.X, g.Y, g.Z, g.T), 1)},
        "LINK_TRACE": f"{link_trace:.16g}",
        "PLAQUETTE": f"{plaquette:.16g}",
        **{f"BOUNDARY_{i}": "PERIODIC" for i in (1, 2, 3, 4)},
        "CHECKSUM": "00000000",
        "ENSEMBLE_ID": ensemble_id,
        "ENSEMBLE_LABEL": ensemble_label,
        "SEQUENCE_NUMBER": str(sequence_number),
        "CREATOR": program(),
        "CREATION_DATE": now,
        "ARCHIVE_DATE": now,
        **(header or {}),
        "FLOATING_POINT": f"IEEE{8 * size}{byteorder.upper()}",
    }
    for key, value in lines.items():
        if "\n" in f"{key}{value}" or "=" in key:
            raise ParameterError(f"a NERSC header line holds one KEY = VALUE, got {key!r} = {value!r}.")

    def text() -> bytes:
        body = "".join(f"{k} = {v}\n" for k, v in lines.items())
        return f"BEGIN_HEADER\n{body}END_HEADER\n".encode("latin-1", "replace")

    total = g.volume * 4 * rows * nc * 2 * size
    with replacing(path, total + len(text())) as f:
        f.write(text())
        checksum = NerscChecksum(real.str[0])
        for data in encoded_slices(U.array, real, rows, [checksum]):
            f.write(data)
        # the checksum has eight digits whatever it is, so the header keeps its length
        lines["CHECKSUM"] = checksum.result()["checksum"]
        f.seek(0)
        f.write(text())

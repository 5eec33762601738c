"""SciDAC (QIO) propagators in LIME: one record of type ``QDP_{D,F}<Nc>_DiracPropagator``, as Chroma and QDP++ write it.

Per site a 4x4 spin matrix (sink, source) of Nc x Nc colour matrices (sink, source), big-endian, x fastest, DeGrand-Rossi. That
is our own canonical order, byte-swapped.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, unescape

import numpy as np

from ..errors import FileFormatError
from ..fields import Propagator
from ..geometry import LatticeGeometry
from .atomic import explain_os_error, replacing
from .checksum import ScidacChecksum
from .hdf5 import MASS_NORMALIZATION, _compare, storage_dtype
from .ildg import BINARY, checksum_xml, group_of, private_file_xml, private_record_xml
from .layout import as_path, check_size, geometry_of, program, read_exactly
from .lime import Stream, scan, write_message, xml_value
from .metadata import to_json


def read_propagator(path, check: str = "error") -> tuple[np.ndarray, dict[str, Any]]:
    """The array ``(T, Z, Y, X, 4, 4, Nc, Nc)`` and what the file says about it; the checksum is verified.

    Raises
    ------
    FileFormatError, TruncatedFileError, ChecksumError
        If there is no propagator record, its length is wrong, or its checksum.
    """
    records = scan(path)
    groups = [(r, group_of(path, records, r)) for r in records if r.type in BINARY]
    kinds = [xml_value(g.get("scidac-private-record-xml", ""), "datatype") or r.type for r, g in groups]
    wanted = [i for i, k in enumerate(kinds) if "DiracPropagator" in k]
    if not wanted:
        raise FileFormatError(
            f"{str(path)!r} has no DiracPropagator record (it has {', '.join(sorted(set(kinds))) or 'no data'}); files of "
            "single DiracFermion records are not read."
        )
    data, group = groups[wanted[0]]
    private = group["scidac-private-record-xml"]
    dims = (xml_value(group.get("scidac-private-file-xml", ""), "dims") or "").split()
    if len(dims) != 4:
        raise FileFormatError(f"{str(path)!r} is not on a 4d lattice: dims {dims}.")
    named = re.search(r"_([FD])(\d+)_DiracPropagator", kinds[wanted[0]])
    letter = xml_value(private, "precision") or (named[1] if named else None)
    if letter not in ("F", "D"):
        raise FileFormatError(f"the propagator of {str(path)!r} has precision {letter!r}; readable are F and D.")
    colors = xml_value(private, "colors") or (named[2] if named else "3")
    if xml_value(private, "spins") not in (None, "4") or xml_value(private, "datacount") not in (None, "1"):
        raise FileFormatError(f"the propagator of {str(path)!r} does not have one 4-spin matrix a site: {private!r}.")
    g = geometry_of(path, *dims, colors)
    nc = g.nc
    disk = np.dtype(">c16" if letter == "D" else ">c8")
    site = 16 * nc * nc * disk.itemsize
    check_size(path, g.volume * site, data.length, f"the propagator record in precision {letter} on {g}")
    array = np.empty((*g.shape, 4, 4, nc, nc), disk.newbyteorder("="))
    sums = ScidacChecksum(site)
    buffer = np.empty(g.spatial_volume * site, np.uint8)
    try:
        with open(path, "rb", buffering=0) as f:
            f.seek(data.offset)
            for t in range(g.T):
                read_exactly(f, buffer, path)
                if check != "off":
                    sums.update(buffer)
                array[t] = buffer.view(disk).reshape(array.shape[1:])
    except FileFormatError:
        raise
    except OSError as error:
        raise explain_os_error("read", path, error) from error
    text = group.get("scidac-checksum")
    if text is not None and check != "off":
        stored = {name: xml_value(text, name) or "" for name in ("suma", "sumb")}
        _compare(path, stored, sums.result(), check)
    info: dict[str, Any] = {"geometry": g, "basis": None, "source": {}, "provenance": {}}
    user = group.get("scidac-record-xml", "")
    if "<lqcdPropagator>" in user:
        info["basis"] = xml_value(user, "basis")
        for name in ("source", "provenance"):
            try:
                info[name] = json.loads(unescape(xml_value(user, name) or "{}"))
            except ValueError as error:
                raise FileFormatError(f"the {name} of {str(path)!r} is no JSON: {error}.") from error
    else:
        info["provenance"] = {"file": str(path), "record_xml": user, "file_xml": group.get("scidac-file-xml", "")}
    return array, info


def write_propagator(S: Propagator, path, precision=None) -> Path:
    """Write one propagator record with its checksum, in DeGrand-Rossi whatever the basis in memory."""
    path = as_path(path)
    S = S if S.basis == "degrand-rossi" else S.to_basis("degrand-rossi")
    g: LatticeGeometry = S.geometry
    native = storage_dtype(S, precision)
    disk = native.newbyteorder(">")
    letter = "D" if native.itemsize == 16 else "F"
    site = 16 * g.nc**2 * disk.itemsize
    sums = ScidacChecksum(site)

    def chunks():
        for block in S.array:
            data = np.ascontiguousarray(block, disk).reshape(-1).view(np.uint8)
            sums.update(data)
            yield data

    record_xml = (
        '<?xml version="1.0" encoding="UTF-8"?><lqcdPropagator><version>1</version><basis>degrand-rossi</basis>'
        f"<normalization>{escape(MASS_NORMALIZATION)}</normalization>"
        f"<source>{escape(to_json(S.source))}</source><provenance>{escape(to_json(S.provenance))}</provenance>"
        "</lqcdPropagator>"
    )
    file_xml = f'<?xml version="1.0" encoding="UTF-8"?><title>{escape(program())} propagator</title>'
    private = private_record_xml(f"QDP_{letter}{g.nc}_DiracPropagator", letter, g.nc, 4, site, 1)
    with replacing(path, g.volume * site) as f:
        write_message(f, [("scidac-private-file-xml", private_file_xml(g)), ("scidac-file-xml", file_xml.encode())])
        write_message(
            f,
            [
                ("scidac-private-record-xml", private),
                ("scidac-record-xml", record_xml.encode()),
                ("scidac-binary-data", Stream(g.volume * site, chunks())),
                ("scidac-checksum", lambda: checksum_xml(sums)),
            ],
        )
    return path

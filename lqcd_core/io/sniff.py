"""What a file is, by its content; names and suffixes are not asked."""

from __future__ import annotations

import struct

from ..errors import FileFormatError, TruncatedFileError
from . import milc, openqcd
from .layout import file_size, read_head
from .lime import MAGIC, scan

GAUGE_FORMATS = ("nersc", "ildg", "scidac", "milc", "openqcd", "npy")
"""Formats that :func:`lqcd_core.io.read_gauge` reads."""


def sniff(path) -> str:
    """Name of the format of a file.

    Returns
    -------
    str
        A gauge format: ``nersc``, ``ildg``, ``scidac``, ``milc``, ``openqcd``, ``npy``; or ``scidac-propagator``, ``lime``
        (LIME with neither), ``hdf5``, ``openqcd-spinor``. ``npy`` and ``hdf5`` do not say here what they hold.

    Raises
    ------
    FileError
        If the file cannot be read.
    FileFormatError
        If nothing matches; the message says what was looked for.
    TruncatedFileError
        If the file is empty.
    """
    head = read_head(path, 256)
    if not head:
        raise TruncatedFileError(f"{str(path)!r} is empty.")
    if head.startswith(b"BEGIN_HEADER"):
        return "nersc"
    if len(head) >= 4 and struct.unpack(">I", head[:4])[0] == MAGIC:
        return _lime_kind(path)
    if milc.magic_order(head):
        return "milc"
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return "hdf5"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    size = file_size(path)
    if openqcd.gauge_size(head) == size:
        return "openqcd"
    if openqcd.spinor_size(head) == size:
        return "openqcd-spinor"
    hint = ""
    for kind, expected in (("configuration", openqcd.gauge_size(head)), ("spinor", openqcd.spinor_size(head))):
        if expected is not None:
            hint = f" As an openQCD {kind} it would have {expected} bytes, but it has {size}: truncated or damaged?"
            break
    if hint:
        raise TruncatedFileError(f"{str(path)!r} is in no format known here (it begins with 0x{head[:8].hex()}).{hint}")
    raise FileFormatError(
        f"{str(path)!r} is in no format known here: it begins with 0x{head[:8].hex()}, which is none of NERSC "
        "(BEGIN_HEADER), LIME (0x456789ab), MILC (20103 or 59354), HDF5, NPY or openQCD; pass format= if it is one of them."
    )


def _lime_kind(path) -> str:
    from .ildg import BINARY, group_of, is_gauge
    from .lime import xml_value

    records = scan(path)
    for record in records:
        if record.type in BINARY:
            group = group_of(path, records, record)
            if record.type == "ildg-binary-data":
                return "ildg"
            datatype = xml_value(group.get("scidac-private-record-xml", ""), "datatype") or ""
            if "DiracPropagator" in datatype:
                return "scidac-propagator"
            if is_gauge(record, group):
                return "scidac"
    return "lime"

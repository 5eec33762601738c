"""MILC gauge configurations: version 5 (read and write, either byte order) and versions 1 to 4 (read).

Links are float32 always. The magic number tells the byte order. Version 5 carries two rotated-XOR checksums; older files
carry none.
"""

from __future__ import annotations

import struct
import time

import numpy as np

from ..errors import FieldTypeError, FileFormatError, ParameterError
from ..fields import GaugeField
from ..geometry import LatticeGeometry
from .atomic import replacing
from .checksum import MilcChecksum
from .layout import GaugeFile, check_size, encoded_slices, file_size, geometry_of, read_head, same_geometry

MAGIC_V5, MAGIC_OLD = 20103, 59354
_V5 = "4i64sI2I"  # dims, time stamp, order, sum29, sum31, after the magic
_OLD = "4i2f"  # dims and two action parameters, after the magic


def magic_order(head: bytes) -> tuple[int, str] | None:
    """(magic, byte order) if the first four bytes are a MILC gauge magic in either order."""
    for order in "<>":
        if len(head) >= 4 and struct.unpack(order + "I", head[:4])[0] in (MAGIC_V5, MAGIC_OLD):
            return struct.unpack(order + "I", head[:4])[0], order
    return None


def open_gauge(path, geometry: LatticeGeometry | None = None) -> GaugeFile:
    """Read the header and hold the file's length against it; no link is read."""
    head = read_head(path, 96)
    known = magic_order(head)
    if known is None:
        raise FileFormatError(f"{str(path)!r} is no MILC gauge file: it begins with 0x{head[:4].hex()}.")
    magic, order = known
    layout = struct.Struct(order + (_V5 if magic == MAGIC_V5 else _OLD))
    check_size(
        path, 4 + layout.size, max(len(head), 0) if len(head) < 4 + layout.size else 4 + layout.size, "the header"
    )
    fields = layout.unpack(head[4 : 4 + layout.size])
    g = geometry_of(path, *fields[:4], 3)
    same_geometry(path, g, geometry)
    checksums, accumulators = {}, ()
    if magic == MAGIC_V5:
        stamp, site_order, sum29, sum31 = fields[4:]
        header = {"version": 5, "time_stamp": stamp.split(b"\0")[0].decode("latin-1"), "order": site_order}
        if site_order:
            raise FileFormatError(
                f"{str(path)!r} stores its sites in the order of a coordinate list (order = {site_order}); only natural "
                "order (0) is readable: save it again with MILC's save_serial."
            )
        checksums = {"sum29": f"{sum29:08x}", "sum31": f"{sum31:08x}"}
        accumulators = (lambda: MilcChecksum(order),)
    else:
        header = {"version": "1-4", "parameters": list(fields[4:])}
    header.update(magic=magic, byteorder="little" if order == "<" else "big")
    file = GaugeFile(
        path=str(path),
        format="milc",
        geometry=g,
        offset=4 + layout.size,
        real=np.dtype(order + "f4"),
        rows=3,
        header=header,
        checksums=checksums,
        accumulators=accumulators,
        notes=() if checksums else ("MILC files before version 5 have no checksum",),
    )
    check_size(path, file.offset + file.data_bytes, file_size(path), f"a MILC file on {g}")
    return file


def write_gauge(U: GaugeField, path, *, byteorder: str = "big") -> None:
    """Write version 5. The format has single precision and Nc = 3 only; a field of another kind is refused.

    Raises
    ------
    FieldTypeError
        If the field is double: round it yourself, so that no digits are lost unasked.
    """
    g = U.geometry
    if g.nc != 3:
        raise ParameterError(f"MILC files hold SU(3) links, the field has Nc = {g.nc}; write 'ildg' or 'nersc'.")
    if U.precision.name != "single":
        raise FieldTypeError(
            f"MILC files hold single precision only and the field is {U.precision}; pass precision='single' to round it."
        )
    if byteorder not in ("big", "little"):
        raise ParameterError(f"byteorder must be 'big' or 'little', got {byteorder!r}.")
    order = ">" if byteorder == "big" else "<"
    stamp = time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime()).encode()

    def header(sums) -> bytes:
        return struct.pack(
            order + "I" + _V5, MAGIC_V5, g.X, g.Y, g.Z, g.T, stamp, 0, int(sums["sum29"], 16), int(sums["sum31"], 16)
        )

    checksum = MilcChecksum(order)
    with replacing(path, 96 + g.volume * 288) as f:
        f.write(header(checksum.result()))
        for data in encoded_slices(U.array, np.dtype(order + "f4"), 3, [checksum]):
            f.write(data)
        f.seek(0)
        f.write(header(checksum.result()))

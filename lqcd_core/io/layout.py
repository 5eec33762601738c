"""The site-major layout that NERSC, ILDG, SciDAC and MILC share, and what a format's header has to tell.

On disk x is the fastest site index, then y, z, t; inside a site the directions are x, y, z, t, inside a link the matrix
is row-major, re before im. Our canonical order has the same sites with directions t, z, y, x, so a time slice of the file
is a time slice in memory, its direction axis reversed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ..errors import FileError, FileFormatError, GeometryError, ParameterError, TruncatedFileError
from ..fields import last_row
from ..geometry import LatticeGeometry
from ..machine import version
from .atomic import explain_os_error


@attrs.frozen
class GaugeFile:
    """What the header of a configuration says: where the links lie and what can be verified."""

    path: str
    """The file."""
    format: str
    """``nersc``, ``ildg``, ``scidac``, ``milc``, ``openqcd`` or ``npy``."""
    geometry: LatticeGeometry
    """The lattice and Nc."""
    offset: int
    """Position of the first link, bytes."""
    real: np.dtype
    """Type of one stored real number, byte order included."""
    rows: int
    """Rows stored of every link: Nc, or Nc - 1 where the last one follows from det U = 1."""
    header: dict[str, Any] = attrs.field(factory=dict)
    """What the file says of itself, by the file's own names."""
    checksums: dict[str, str] = attrs.field(factory=dict)
    """Stored checksums by name, hexadecimal."""
    accumulators: tuple[Callable[[], Any], ...] = ()
    """Makers of the accumulators that recompute them (see :mod:`lqcd_core.io.checksum`)."""
    plaquette: str | None = None
    """Stored mean plaquette as printed (its digits set the tolerance), unit field 1."""
    link_trace: str | None = None
    """Stored link trace as printed."""
    exact_header: bool = False
    """True if the plaquette is stored in binary, to all digits."""
    notes: tuple[str, ...] = ()
    """Oddities that are no errors."""
    load: Callable | None = None
    """Reader for formats that are not site-major: ``load(file) -> links`` in canonical order."""

    @property
    def precision(self) -> str:
        """``double`` or ``single``."""
        return "double" if self.real.itemsize == 8 else "single"

    @property
    def site_bytes(self) -> int:
        """Bytes of the four links of one site."""
        return 4 * self.rows * self.geometry.nc * 2 * self.real.itemsize

    @property
    def data_bytes(self) -> int:
        """Bytes of all links."""
        return self.geometry.volume * self.site_bytes


def geometry_of(path, x, y, z, t, nc: int = 3) -> LatticeGeometry:
    """The lattice of extents found in a header.

    Raises
    ------
    FileFormatError
        If they are no lattice.
    """
    try:
        return LatticeGeometry(T=int(t), Z=int(z), Y=int(y), X=int(x), nc=int(nc))
    except (GeometryError, ValueError, TypeError) as error:
        raise FileFormatError(
            f"the header of {str(path)!r} gives no lattice (x={x}, y={y}, z={z}, t={t}): {error}"
        ) from error


def same_geometry(path, found: LatticeGeometry, asked: LatticeGeometry | None) -> None:
    """Raise :class:`GeometryError` if the caller asked for another lattice than the file holds."""
    if asked is not None and asked != found:
        raise GeometryError(f"{str(path)!r} holds {found}, but the caller asked for {asked}.")


def file_size(path) -> int:
    """Size of a file in bytes; a :class:`FileError` if it cannot be had."""
    try:
        if os.path.isdir(path):
            raise FileError(f"cannot read {str(path)!r}: it is a directory.")
        return os.path.getsize(path)
    except FileError:
        raise
    except FileNotFoundError as error:
        raise FileError(f"cannot read {str(path)!r}: there is no such file.") from error
    except OSError as error:
        raise explain_os_error("read", path, error) from error


def steadily(path, read: Callable[[], Any]) -> Any:
    """The result of ``read()``, called again if the file was replaced meanwhile.

    A reader looks at a file several times (what is it, what does its header say, its data); a writer that renames a new
    file into place between two looks must not make it see the header of one and the data of the other.

    Raises
    ------
    FileError
        If the file is replaced again and again.
    """
    for _ in range(100):
        before = _identity(path)
        try:
            out = read()
        except FileError:
            if _identity(path) == before:
                raise
            continue
        if _identity(path) == before:
            return out
    raise FileError(f"{str(path)!r} is replaced faster than it can be read; stop the programs that write it.")


def _identity(path) -> tuple[int, ...] | None:
    try:
        s = os.stat(path)
    except OSError:
        return None
    return s.st_dev, s.st_ino, s.st_mtime_ns, s.st_size


def check_size(path, expected: int, found: int, what: str) -> None:
    """Raise :class:`TruncatedFileError` unless a file (or record) has the length its header asks for."""
    if found < expected:
        raise TruncatedFileError(
            f"{str(path)!r} is truncated: {what} needs {expected} bytes, found {found} ({expected - found} missing)."
        )
    if found > expected:
        raise TruncatedFileError(
            f"{str(path)!r} is too long: {what} needs {expected} bytes, found {found} "
            f"({found - expected} bytes of something else at the end)."
        )


def read_exactly(f, buffer: np.ndarray, path) -> None:
    """Fill a uint8 array from a file; the file may have been cut since its size was checked."""
    got = f.readinto(memoryview(buffer))
    if got != buffer.size:
        raise TruncatedFileError(f"{str(path)!r} ended {buffer.size - got} bytes early while it was read.")


def time_slices(file: GaugeFile, t_start: int = 0, t_stop: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
    """Pairs (t, bytes of that time slice as uint8); one buffer is reused, so take what you need before the next."""
    g = file.geometry
    t_stop = g.T if t_stop is None else t_stop
    size = g.spatial_volume * file.site_bytes
    buffer = np.empty(size, np.uint8)
    try:
        with open(file.path, "rb", buffering=0) as f:
            f.seek(file.offset + t_start * size)
            for t in range(t_start, t_stop):
                read_exactly(f, buffer, file.path)
                yield t, buffer
    except FileFormatError:
        raise
    except OSError as error:
        raise explain_os_error("read", file.path, error) from error


def native_dtype(file: GaugeFile) -> np.dtype:
    """Complex type in memory that holds the stored numbers exactly."""
    return np.dtype("complex128" if file.real.itemsize == 8 else "complex64")


def decode_slice(file: GaugeFile, data: np.ndarray, out: np.ndarray) -> None:
    """Bytes of a time slice to links ``(Z, Y, X, 4, Nc, Nc)`` in canonical direction order, into ``out``."""
    g, nc = file.geometry, file.geometry.nc
    stored = data.view(np.dtype(f"{file.real.str[0]}c{2 * file.real.itemsize}"))
    stored = stored.reshape(g.Z, g.Y, g.X, 4, file.rows, nc)
    out[..., : file.rows, :] = stored[..., ::-1, :, :]
    if file.rows < nc:
        # the last row in double, so that it is the rounded true one whatever the stored precision
        out[..., nc - 1, :] = last_row(out[..., : nc - 1, :].astype(np.complex128))


def read_links(file: GaugeFile, t_start: int = 0, t_stop: int | None = None, accumulators=(), dtype=None) -> np.ndarray:
    """Links of the time slices ``[t_start, t_stop)``, streaming; every accumulator sees the bytes once, in order."""
    g = file.geometry
    t_stop = g.T if t_stop is None else t_stop
    out = np.empty((t_stop - t_start, *g.gauge_shape[1:]), native_dtype(file) if dtype is None else dtype)
    for t, data in time_slices(file, t_start, t_stop):
        for accumulator in accumulators:
            accumulator.update(data)
        decode_slice(file, data, out[t - t_start])
    return out


def encode_slice(links: np.ndarray, real: np.dtype, rows: int) -> np.ndarray:
    """One time slice of links, canonical, to the bytes of a site-major file (uint8)."""
    order = np.dtype(f"{np.dtype(real).str[0]}c{2 * np.dtype(real).itemsize}")
    part = links[..., ::-1, :rows, :]
    return np.ascontiguousarray(part, dtype=order).reshape(-1).view(np.uint8)


def encoded_slices(links: np.ndarray, real, rows: int, accumulators=()) -> Iterator[np.ndarray]:
    """Bytes of all time slices in file order, shown to the accumulators on the way."""
    for block in links:
        data = encode_slice(block, real, rows)
        for accumulator in accumulators:
            accumulator.update(data)
        yield data


def slab_range(geometry: LatticeGeometry, t_start: int, t_stop: int) -> None:
    """Raise :class:`ParameterError` unless ``0 <= t_start < t_stop <= T``."""
    if not 0 <= t_start < t_stop <= geometry.T:
        raise ParameterError(f"time slices [{t_start}, {t_stop}) lie outside 0..{geometry.T} of {geometry}.")


def read_head(path, count: int) -> bytes:
    """The first ``count`` bytes of a file (fewer if it is shorter)."""
    file_size(path)
    try:
        with open(path, "rb") as f:
            return f.read(count)
    except OSError as error:
        raise explain_os_error("read", path, error) from error


def program() -> str:
    """``lqcd_core`` and its version, for headers."""
    return " ".join(filter(None, ("lqcd_core", version("lqcd-core"))))


def as_path(path) -> Path:
    """A :class:`pathlib.Path`, or :class:`ParameterError` for something that names no file."""
    try:
        return Path(path)
    except TypeError as error:
        raise ParameterError(f"a file name must be a string or a path, got {path!r}.") from error

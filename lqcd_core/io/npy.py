"""NumPy ``.npy`` files in PyQUDA's layout.

Gauge ``(4, T, Z, Y, X, Nc, Nc)``, directions x, y, z, t outermost; propagator ``(T, Z, Y, X, 4, 4, Nc, Nc)``, which is our own
order. Complex128, no header beyond NumPy's, no checksum.
"""

from __future__ import annotations

import tokenize

import numpy as np

from ..errors import FileFormatError, ParameterError
from ..fields import GaugeField
from ..geometry import LatticeGeometry
from .atomic import explain_os_error, replacing
from .layout import GaugeFile, check_size, file_size, geometry_of, same_geometry


def read_header(path) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape, element type and position of the data; the file's length is held against them.

    Raises
    ------
    FileFormatError, TruncatedFileError
        If it is no plain array of complex numbers in C order, or has another length.
    """
    file_size(path)
    try:
        with open(path, "rb") as f:
            version = np.lib.format.read_magic(f)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(f)
            offset = f.tell()
    except OSError as error:
        raise explain_os_error("read", path, error) from error
    except (ValueError, SyntaxError, TypeError, tokenize.TokenError) as error:  # the header is a Python literal
        raise FileFormatError(f"{str(path)!r} has a damaged NPY header: {error}.") from error
    if any(n < 0 for n in shape):
        raise FileFormatError(f"{str(path)!r} has a damaged NPY header: shape {shape}.")
    if dtype.kind != "c" or fortran:
        raise FileFormatError(
            f"{str(path)!r} holds {dtype} (Fortran order: {fortran}); a field is complex, in C order."
        )
    total = dtype.itemsize
    for n in shape:
        total *= int(n)
    check_size(path, offset + total, file_size(path), f"an array of shape {shape}")
    return shape, dtype, offset


def open_gauge(path, geometry: LatticeGeometry | None = None) -> GaugeFile:
    """Read the header; no link is read."""
    shape, dtype, offset = read_header(path)
    if len(shape) != 7 or shape[0] != 4 or shape[5] != shape[6]:
        raise FileFormatError(f"{str(path)!r} has shape {shape}; a PyQUDA gauge field has (4, T, Z, Y, X, Nc, Nc).")
    g = geometry_of(path, shape[4], shape[3], shape[2], shape[1], shape[5])
    same_geometry(path, g, geometry)
    return GaugeFile(
        path=str(path),
        format="npy",
        geometry=g,
        offset=offset,
        real=np.dtype(f"{dtype.str[0]}f{dtype.itemsize // 2}"),
        rows=g.nc,
        header={"shape": list(shape), "dtype": dtype.str},
        notes=("NPY files have no checksum",),
        load=load_links,
    )


def load_links(file: GaugeFile) -> np.ndarray:
    """Links in canonical order."""
    g = file.geometry
    data = np.memmap(
        file.path, f"{file.real.str[0]}c{2 * file.real.itemsize}", "r", file.offset, (4, *g.shape, g.nc, g.nc)
    )
    out = np.empty(g.gauge_shape, np.complex128 if file.precision == "double" else np.complex64)
    for mu in range(4):
        out[..., 3 - mu, :, :] = data[mu]
    return out


def write_gauge(U: GaugeField, path) -> None:
    """Write PyQUDA's layout, complex128 (the only type it reads back)."""
    a = np.ascontiguousarray(np.moveaxis(U.array[..., ::-1, :, :], 4, 0), dtype="<c16")
    with replacing(path, a.nbytes + 128) as f:
        np.lib.format.write_array(f, a, version=(1, 0))


def read_propagator_array(path) -> np.ndarray:
    """A propagator ``(T, Z, Y, X, 4, 4, Nc, Nc)`` as stored."""
    shape, _, _ = read_header(path)
    if len(shape) != 8 or shape[4:6] != (4, 4) or shape[6] != shape[7]:
        raise FileFormatError(f"{str(path)!r} has shape {shape}; a PyQUDA propagator has (T, Z, Y, X, 4, 4, Nc, Nc).")
    return np.load(path, allow_pickle=False)


def write_propagator_array(array: np.ndarray, path) -> None:
    """Write a propagator as PyQUDA does, complex128."""
    if array.ndim != 8:
        raise ParameterError(f"a propagator array has 8 axes, got shape {array.shape}.")
    a = np.ascontiguousarray(array, dtype="<c16")
    with replacing(path, a.nbytes + 128) as f:
        np.lib.format.write_array(f, a, version=(1, 0))

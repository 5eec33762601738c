r"""openQCD: exported gauge fields and exported spinor fields (``sarchive``). Little-endian, double, SU(3).

A gauge file holds, for every *odd* site in lexicographic order with z fastest, then y, x, t, the eight links that touch it:
:math:`U_0(x), U_0(x-\hat 0), U_1(x), U_1(x-\hat 1), \dots`, directions 0..3 = t, x, y, z. The header's plaquette is the
sum of Re tr over all plaquettes / (6 V), three times ours. Boundary conditions are not in the file; with open ones the
time links of the last slice are zero.

Spinors are in openQCD's chiral basis and are converted: psi_chiral = S psi_DeGrand-Rossi, S = -gamma_y.
"""

from __future__ import annotations

import struct

import numpy as np

from ..errors import ChecksumError, FileFormatError, GeometryError, ParameterError
from ..fields import ColorSpinorField, GaugeField
from ..gamma import basis_rotation
from ..geometry import LatticeGeometry
from .atomic import explain_os_error, replacing
from .layout import GaugeFile, check_size, file_size, geometry_of, read_exactly, read_head, same_geometry, steadily

_GAUGE = struct.Struct("<4id")
_SPINOR = struct.Struct("<5id")
_MU = (0, 3, 2, 1)  # their direction 0..3 = t, x, y, z at our 0..3 = t, z, y, x (its own inverse)


def gauge_size(head: bytes) -> int | None:
    """Bytes that a gauge file with this header must have; None if it cannot be one."""
    if len(head) < _GAUGE.size:
        return None
    t, x, y, z, plaquette = _GAUGE.unpack(head[: _GAUGE.size])
    if not all(1 <= n <= 1 << 14 for n in (t, x, y, z)) or not abs(plaquette) <= 3.0001:
        return None
    return _GAUGE.size + t * x * y * z * 576


def spinor_size(head: bytes) -> int | None:
    """Bytes that a spinor file with this header must have; None if it cannot be one."""
    if len(head) < _SPINOR.size:
        return None
    t, x, y, z, _, _ = _SPINOR.unpack(head[: _SPINOR.size])
    return _SPINOR.size + t * x * y * z * 192 if all(1 <= n <= 1 << 14 for n in (t, x, y, z)) else None


def open_gauge(path, geometry: LatticeGeometry | None = None) -> GaugeFile:
    """Read the header and hold the file's length against it; no link is read."""
    head = read_head(path, _GAUGE.size)
    check_size(path, _GAUGE.size, len(head), "the header")
    t, x, y, z, plaquette = _GAUGE.unpack(head)
    g = geometry_of(path, x, y, z, t, 3)
    same_geometry(path, g, geometry)
    check_size(path, _GAUGE.size + g.volume * 576, file_size(path), f"an openQCD configuration on {g}")
    if g.why_no_parity():
        raise FileFormatError(f"{str(path)!r} cannot be an openQCD configuration: {g.why_no_parity()}.")
    return GaugeFile(
        path=str(path),
        format="openqcd",
        geometry=g,
        offset=_GAUGE.size,
        real=np.dtype("<f8"),
        rows=3,
        header={"N0": t, "N1": x, "N2": y, "N3": z, "plaquette_times_3": plaquette},
        plaquette=repr(plaquette / 3),
        exact_header=True,
        notes=("the format has no checksum; the plaquette, stored to all digits, is compared instead",),
        load=load_links,
    )


def _touching_sites(g: LatticeGeometry):
    """Index arrays (t, x, y, z) of the odd sites in file order, and of their backward neighbours by direction."""
    odd = np.argwhere(np.indices((g.T, g.X, g.Y, g.Z)).sum(axis=0) % 2 == 1).T
    extents = np.array([g.T, g.X, g.Y, g.Z])
    neighbours = []
    for mu in range(4):
        back = odd.copy()
        back[mu] = (back[mu] - 1) % extents[mu]
        neighbours.append(tuple(back))
    return tuple(odd), neighbours


def load_links(file: GaugeFile) -> np.ndarray:
    """Links in canonical order ``(T, Z, Y, X, 4, 3, 3)``."""
    g = file.geometry
    data = np.empty(file.data_bytes, np.uint8)
    try:
        with open(file.path, "rb") as f:
            f.seek(file.offset)
            read_exactly(f, data, file.path)
    except FileFormatError:
        raise
    except OSError as error:
        raise explain_os_error("read", file.path, error) from error
    links = data.view("<c16").reshape(g.volume // 2, 8, 3, 3)
    out = np.empty(g.gauge_shape, np.complex128)
    view = out.transpose(0, 3, 2, 1, 4, 5, 6)  # the same memory indexed t, x, y, z
    here, behind = _touching_sites(g)
    for mu in range(4):
        view[(*here, _MU[mu])] = links[:, 2 * mu]
        view[(*behind[mu], _MU[mu])] = links[:, 2 * mu + 1]
    return out


def is_open_boundary(links: np.ndarray) -> bool:
    """True if every time link of the last slice is exactly zero, as openQCD's open boundaries leave them."""
    return not links[-1, ..., 0, :, :].any()


def write_gauge(U: GaugeField, path, *, plaquette: float) -> None:
    """Write an exported configuration (double; a single field is widened, exactly).

    Raises
    ------
    GeometryError, ParameterError
        If an extent is odd, or Nc is not 3.
    """
    g = U.geometry
    if g.nc != 3:
        raise ParameterError(f"openQCD files hold SU(3) links, the field has Nc = {g.nc}; write 'ildg' or 'nersc'.")
    if g.why_no_parity():
        raise GeometryError(f"an openQCD file lists the odd sites, and {g.why_no_parity()}.")
    view = U.array.transpose(0, 3, 2, 1, 4, 5, 6)
    here, behind = _touching_sites(g)
    links = np.empty((g.volume // 2, 8, 3, 3), "<c16")
    for mu in range(4):
        links[:, 2 * mu] = view[(*here, _MU[mu])]
        links[:, 2 * mu + 1] = view[(*behind[mu], _MU[mu])]
    with replacing(path, _GAUGE.size + links.nbytes) as f:
        f.write(_GAUGE.pack(g.T, g.X, g.Y, g.Z, 3 * plaquette))
        f.write(memoryview(links).cast("B"))


def read_spinor(path, *, basis: str = "degrand-rossi", check: str = "error") -> ColorSpinorField:
    r"""Read an exported spinor field.

    Parameters
    ----------
    path
        The file.
    basis
        Gamma basis of the result; the file is in ``chiral``.
    check
        ``error``, ``warn`` or ``off``: what to do if the stored :math:`|\psi|^2` is not that of the data.

    Returns
    -------
    ColorSpinorField
        ``(T, Z, Y, X, 4, 3)``, double.

    Raises
    ------
    FileFormatError, TruncatedFileError, ChecksumError
        If the file is not a spinor on all sites, has another length, or another norm than it says.
    """
    import warnings

    from .report import FileCheckWarning

    if check not in ("error", "warn", "off"):
        raise ParameterError(f"check must be 'error', 'warn' or 'off', got {check!r}.")
    rotation = basis_rotation("chiral", basis)
    g, norm2, data = steadily(path, lambda: _spinor_bytes(path))
    psi = data.view("<c16").reshape(g.T, g.X, g.Y, g.Z, 4, 3).transpose(0, 3, 2, 1, 4, 5)
    found = float(np.vdot(psi, psi).real)
    if check != "off" and not abs(found - norm2) <= 1e-10 * abs(norm2):
        text = f"{str(path)!r} says that its norm squared is {norm2!r}, but the data give {found!r}; it is damaged."
        if check == "error":
            raise ChecksumError(text)
        warnings.warn(text, FileCheckWarning, stacklevel=2)
    return ColorSpinorField(g, np.ascontiguousarray(np.einsum("ij,...jc->...ic", rotation, psi)))


def _spinor_bytes(path) -> tuple[LatticeGeometry, float, np.ndarray]:
    head = read_head(path, _SPINOR.size)
    check_size(path, _SPINOR.size, len(head), "the header")
    t, x, y, z, eo, norm2 = _SPINOR.unpack(head)
    if eo != 0:
        raise FileFormatError(
            f"{str(path)!r} holds a spinor on one parity (flag {eo}); only whole-lattice spinors are read."
        )
    g = geometry_of(path, x, y, z, t, 3)
    check_size(path, _SPINOR.size + g.volume * 192, file_size(path), f"an openQCD spinor on {g}")
    data = np.empty(g.volume * 192, np.uint8)
    try:
        with open(path, "rb") as f:
            f.seek(_SPINOR.size)
            read_exactly(f, data, path)
    except FileFormatError:
        raise
    except OSError as error:
        raise explain_os_error("read", path, error) from error
    return g, norm2, data


def write_spinor(psi: ColorSpinorField, path, *, basis: str = "degrand-rossi") -> None:
    """Write one spinor field as openQCD exports it.

    Parameters
    ----------
    psi
        One spinor on the whole lattice, Nc = 3.
    path
        The file.
    basis
        Gamma basis of ``psi``; the file gets ``chiral``.
    """
    g = psi.geometry
    if psi.n_rhs is not None or psi.parity is not None or g.nc != 3:
        raise ParameterError(f"an openQCD file holds one SU(3) spinor on the whole lattice, got {psi!r}.")
    rotation = basis_rotation(basis, "chiral")
    a = np.einsum("ij,...jc->...ic", rotation, psi.array.astype(np.complex128))
    data = np.ascontiguousarray(a.transpose(0, 3, 2, 1, 4, 5), dtype="<c16")
    with replacing(path, _SPINOR.size + data.nbytes) as f:
        f.write(_SPINOR.pack(g.T, g.X, g.Y, g.Z, 0, float(np.vdot(data, data).real)))
        f.write(memoryview(data).cast("B"))

"""Reading and writing propagators of any format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileFormatError, ParameterError, nearest
from ..fields import Propagator
from ..gamma import BASES
from ..precision import as_precision
from . import hdf5, npy, scidac
from .layout import as_path, geometry_of, steadily
from .sniff import sniff

PROPAGATOR_FORMATS = ("hdf5", "scidac", "npy")
_SUFFIXES = {".h5": "hdf5", ".hdf5": "hdf5", ".lime": "scidac", ".scidac": "scidac", ".npy": "npy"}


def read_propagator(
    path,
    *,
    dataset: str | None = None,
    check: str = "error",
    basis: str | None = None,
    normalization: str = "mass",
    kappa: float | None = None,
    precision=None,
) -> Propagator:
    r"""Read a propagator: HDF5 (ours, QDP++ and lalibe, PyQUDA), SciDAC (Chroma, QDP++), or PyQUDA's npy.

    Parameters
    ----------
    path
        The file; the format is found from the content.
    dataset
        Which one, if an HDF5 file holds several.
    check
        ``error``, ``warn`` or ``off``: what to do if a stored checksum is wrong.
    basis
        Gamma basis of the numbers in a file that does not say so; ``degrand-rossi`` if not given. Contradicting a file that
        does say so is an error.
    normalization
        ``mass`` (inverse of M) or ``kappa`` (inverse of 2 kappa M): files of other codes do not say. Kappa-normalised
        numbers are multiplied by :math:`2\kappa`, since :math:`M^{-1} = 2\kappa\,(2\kappa M)^{-1}`.
    kappa
        Hopping parameter, needed for ``normalization="kappa"``.
    precision
        ``double`` or ``single``; default that of the file.

    Returns
    -------
    Propagator
        ``(T, Z, Y, X, 4, 4, Nc, Nc)``, mass normalisation, lattice units.

    Raises
    ------
    FileError, FileFormatError, TruncatedFileError, ChecksumError
        If the file is missing, no propagator, cut short, or damaged.
    ParameterError
        If the arguments contradict each other or the file.
    """
    if check not in ("error", "warn", "off"):
        raise ParameterError(f"check must be 'error', 'warn' or 'off', got {check!r}.")
    if normalization not in ("mass", "kappa") or (normalization == "kappa") != (kappa is not None):
        raise ParameterError(
            f"normalization is 'mass', or 'kappa' together with kappa=; got {normalization!r} with kappa={kappa!r}."
        )
    if basis is not None and basis not in BASES:
        raise ParameterError(f"gamma basis {basis!r} is unknown; {nearest(basis, BASES)}")
    path = as_path(path)
    array, info = steadily(path, lambda: _read(path, dataset, check))
    if info["basis"] is not None and basis not in (None, info["basis"]):
        raise ParameterError(
            f"{str(path)!r} says its basis is {info['basis']!r}, the caller said {basis!r}; drop basis=."
        )
    if not np.isfinite(array).all():
        raise FileFormatError(f"{str(path)!r} holds numbers that are not finite; the propagator is damaged.")
    if kappa is not None:
        array *= array.dtype.type(2 * kappa)
    if precision is not None:
        p = as_precision(precision)
        if p.is_split:
            raise ParameterError(f"a propagator is double or single, not {p}.")
        array = array.astype(p.complex_dtype, copy=False)
    return Propagator(
        info["geometry"],
        array,
        basis=info["basis"] or basis or "degrand-rossi",
        source=info["source"],
        provenance=info["provenance"],
    )


def _read(path: Path, dataset: str | None, check: str) -> tuple[np.ndarray, dict[str, Any]]:
    kind = sniff(path)
    if dataset is not None and kind != "hdf5":
        raise ParameterError(f"dataset= chooses inside an HDF5 file, but {str(path)!r} is {kind!r}; drop it.")
    if kind == "hdf5":
        return hdf5.read_propagator(path, dataset, check)
    if kind == "npy":
        array = npy.read_propagator_array(path)
        g = geometry_of(path, *array.shape[3::-1], array.shape[-1])
        return array, {"geometry": g, "basis": None, "source": {}, "provenance": {"file": str(path)}}
    if kind in ("scidac-propagator", "lime"):
        return scidac.read_propagator(path, check)
    raise FileFormatError(f"{str(path)!r} is {kind!r}, not a propagator; configurations are read with read_gauge.")


def write_propagator(S: Propagator, path, *, format: str | None = None, precision=None) -> Path:
    """Write a propagator, whole or not at all.

    Parameters
    ----------
    S
        The propagator; ``S.source`` and ``S.provenance`` go with it (not into npy, which has no place for them).
    path
        The file; an old one is replaced in one step.
    format
        ``hdf5``, ``scidac`` or ``npy``; default by suffix (``.h5 .hdf5``, ``.lime .scidac``, ``.npy``).
    precision
        ``double`` or ``single``; default that of the array. npy is double only.

    Returns
    -------
    pathlib.Path
        The file written.

    Raises
    ------
    FileError
        If it cannot be written; an old file is then untouched.
    ParameterError
        If the format is unknown.

    Examples
    --------
    >>> import tempfile
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> g = LatticeGeometry(T=2, Z=2, Y=2, X=2)
    >>> S = Propagator(g, np.ones((*g.shape, 4, 4, 3, 3), complex), source={"kind": "point"})
    >>> with tempfile.TemporaryDirectory() as d:
    ...     R = read_propagator(write_propagator(S, f"{d}/s.lime"))
    >>> bool((R.array == S.array).all()), R.source
    (True, {'kind': 'point'})
    """
    path = as_path(path)
    if format is None:
        format = _SUFFIXES.get(path.suffix.lower())
        if format is None:
            known = ", ".join(f"{s} ({f})" for s, f in _SUFFIXES.items())
            raise ParameterError(
                f"the suffix {path.suffix!r} names no propagator format; use {known}, or pass format=."
            )
    if format not in PROPAGATOR_FORMATS:
        raise ParameterError(f"propagator format {format!r} is unknown; {nearest(str(format), PROPAGATOR_FORMATS)}")
    if not isinstance(S, Propagator):
        raise ParameterError(f"write_propagator writes a Propagator, got {type(S).__name__}.")
    if format == "npy":
        if precision is not None and as_precision(precision).name != "double":
            raise ParameterError(f"'npy' files are double only, precision={precision!r} was asked for; drop it.")
        npy.write_propagator_array((S if S.basis == "degrand-rossi" else S.to_basis("degrand-rossi")).array, path)
        return path
    return (hdf5 if format == "hdf5" else scidac).write_propagator(S, path, precision)


__all__ = ["read_propagator", "write_propagator"]

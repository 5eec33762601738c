r"""A propagator file that several writers fill at once, each its time slices.

One of them makes the file with :func:`lay_out_propagator`: all of HDF5's structure, and room for the numbers at a known
place. Then each writes its slices there by plain writes (:meth:`PropagatorLayout.write`), which need no HDF5 and no lock; when
all are on the disk the first one adds the digest (:meth:`PropagatorLayout.seal`). Who makes it appear under its name in one
step is the caller's part, with :func:`~lqcd_core.io.atomic.replacing_path`.

The digest of a whole file is a chain over its bytes that no two writers can share. Files made here say ``schema_version`` 2
and hold the digest of the digests of the time slices instead; :func:`~lqcd_core.io.read_propagator` checks either.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from ..errors import FieldShapeError, FileError, ParameterError
from ..geometry import LatticeGeometry
from .atomic import explain_os_error, pwrite_all
from .hdf5 import (
    BY_SLICES_VERSION,
    allocated_dataset,
    digest_of_slices,
    file_written_by_h5py,
    mark_propagator,
    slice_digest,
)
from .layout import slab_range


@attrs.frozen
class PropagatorLayout:
    """Where the numbers of a propagator lie in a file that has been laid out. Plain data: send it to the other writers."""

    path: str
    """The file."""
    geometry: LatticeGeometry
    """The whole lattice."""
    dtype: str
    """Type of the stored numbers, ``<c16`` or ``<c8``."""
    offset: int
    """Position of the first number, bytes."""

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """Shape of one time slice, ``(Z, Y, X, 4, 4, Nc, Nc)``."""
        return (*self.geometry.shape[1:], 4, 4, self.geometry.nc, self.geometry.nc)

    def write(self, t_start: int, slices: np.ndarray) -> list[bytes]:
        """Write the time slices from ``t_start`` on; when this returns they are on the disk.

        Parameters
        ----------
        t_start
            The first slice.
        slices
            Complex ``(t, Z, Y, X, 4, 4, Nc, Nc)``.

        Returns
        -------
        list of bytes
            A digest of each slice, for :meth:`seal`.

        Raises
        ------
        FileError
            If the file is not there or cannot be written.
        FieldShapeError, ParameterError
            If the slices do not fit, or are not finite.
        """
        a = np.asarray(slices)
        if a.shape[1:] != self.slice_shape or a.dtype.kind != "c":
            raise FieldShapeError(
                f"slices must be complex (t, {', '.join(map(str, self.slice_shape))}), got {a.shape}."
            )
        slab_range(self.geometry, t_start, t_start + len(a))
        out, dtype = [], np.dtype(self.dtype)
        size = int(np.prod(self.slice_shape, dtype=object)) * dtype.itemsize
        try:
            handle = os.open(self.path, os.O_RDWR)
        except FileNotFoundError as error:
            raise FileError(
                f"{self.path!r}, made by another writer, is not there; all need the same file system."
            ) from error
        except OSError as error:
            raise explain_os_error("write", self.path, error) from error
        try:
            for t, block in enumerate(a, t_start):
                if not np.isfinite(block).all():
                    raise ParameterError(f"time slice {t} is not finite; it is not stored.")
                data = np.ascontiguousarray(block, dtype).reshape(-1).view(np.uint8)
                pwrite_all(handle, data, self.offset + t * size)
                out.append(slice_digest(data))
            os.fsync(handle)
        except OSError as error:
            raise explain_os_error("write", self.path, error) from error
        finally:
            os.close(handle)
        return out

    def seal(self, digests: Iterable[bytes]) -> None:
        """Add the digest of all slices, once all writers are done.

        Raises
        ------
        ParameterError
            Unless there is a digest for every time slice.
        FileError
            If the file cannot be written.
        """
        digests = list(digests)
        if len(digests) != self.geometry.T:
            raise ParameterError(f"{len(digests)} slices were written of {self.geometry.T}.")
        with file_written_by_h5py(self.path, self.path, "r+") as f:
            f["propagator"].attrs["digest"] = digest_of_slices(digests)


def lay_out_propagator(
    path, geometry: LatticeGeometry, dtype, *, basis: str, source: Mapping[str, Any], provenance: Mapping[str, Any],
    name=None,
) -> PropagatorLayout:  # fmt: skip
    """Make a propagator file with room for every slice.

    Parameters
    ----------
    path
        The file, overwritten: a temporary name.
    geometry
        The whole lattice.
    dtype
        complex128 or complex64.
    basis, source, provenance
        Of the propagator.
    name
        The final name, for messages; that of ``path`` if not given.

    Raises
    ------
    FileError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from lqcd_core.io import read_propagator, replacing_path
    >>> g = LatticeGeometry(T=4, Z=2, Y=2, X=2)
    >>> numbers = np.ones((*g.shape, 4, 4, 3, 3), complex)
    >>> with tempfile.TemporaryDirectory() as d:
    ...     with replacing_path(f"{d}/s.h5") as temporary:
    ...         layout = lay_out_propagator(temporary, g, complex, basis="degrand-rossi", source={}, provenance={})
    ...         late, early = layout.write(2, numbers[2:]), layout.write(0, numbers[:2])  # in any order, by anyone
    ...         layout.seal(early + late)
    ...     S = read_propagator(f"{d}/s.h5")
    >>> bool((S.array == numbers).all())
    True
    """
    dtype = np.dtype(dtype).newbyteorder("<")
    with file_written_by_h5py(path, path if name is None else name, "w") as f:
        shape = (*geometry.shape, 4, 4, geometry.nc, geometry.nc)
        d = allocated_dataset(f, "propagator", shape, dtype, fill=False)
        mark_propagator(f, d, geometry, basis, source, provenance, BY_SLICES_VERSION)
        f.flush()
        offset = d.id.get_offset()
    if offset is None:
        raise FileError(f"{str(path)!r}: the HDF5 library gave the dataset no place; write the file by one writer.")
    return PropagatorLayout(str(path), geometry, dtype.str, int(offset))


__all__ = ["PropagatorLayout", "lay_out_propagator"]

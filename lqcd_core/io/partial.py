"""A propagator that is written column by column and survives a kill.

The file ``<name>.partial`` is HDF5, laid out whole at the start: ``columns`` (Ns*Nc, T, Z, Y, X, Ns, Nc), ``done``, ``crc32``,
``info`` and ``parameters_json``. After that no HDF5 structure is touched again: a column goes to its place by a plain write,
is flushed, and only then marked done (and flushed again). A process killed at any moment therefore leaves a readable file
whose finished columns are whole, and a marked column whose checksum is wrong is simply computed again.
:meth:`PropagatorFile.finish` makes the final file in one step and removes the partial one.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ..errors import FieldShapeError, FileError, FileFormatError, ParameterError, TruncatedFileError
from ..geometry import LatticeGeometry
from ..precision import as_precision
from .atomic import explain_os_error, pwrite_all
from .hdf5 import SCHEMA_VERSION, allocated_dataset, load_h5py, open_h5, write_slices
from .layout import as_path, file_size, program
from .metadata import differences, plain, to_json
from .report import FileCheckWarning

try:
    import fcntl
except ImportError:  # a system without POSIX locks: the check for a second writer is lost, nothing else
    fcntl = None

COLUMNS_FORMAT = "lqcd_core propagator columns"
_INFO_BYTES = 4096  # room for what the solver says about one column, as JSON


@attrs.frozen
class _Places:
    """Where the datasets lie in the partial file."""

    columns: int
    """Position of ``columns``, bytes."""
    done: int
    """Position of ``done``, one byte a column."""
    crc32: int
    """Position of ``crc32``, four bytes a column, little-endian."""
    info: int
    """Position of ``info``, 4096 bytes a column."""


class PropagatorFile:
    """Column-by-column storage of a propagator; made by :meth:`create`, :meth:`open` or :meth:`resume`.

    The file is locked while the object lives, so two processes cannot write one propagator.

    Examples
    --------
    >>> import tempfile
    >>> from lqcd_core.io import read_propagator
    >>> g = LatticeGeometry(T=2, Z=2, Y=2, X=2)
    >>> parameters = {"operator": {"kind": "wilson", "kappa": 0.12}}
    >>> with tempfile.TemporaryDirectory() as d:
    ...     with PropagatorFile.create(f"{d}/s.h5", g, {"kind": "point"}, parameters) as f:
    ...         f.write_columns(range(4), np.ones((4, *g.spinor_shape), complex))
    ...     with PropagatorFile.resume(f"{d}/s.h5", g, {"kind": "point"}, parameters) as f:
    ...         done, missing = f.done, f.missing
    ...         f.write_columns(missing, np.ones((8, *g.spinor_shape), complex))
    ...         path = f.finish()
    ...     S = read_propagator(path)
    >>> done, S.array.shape
    ((0, 1, 2, 3), (2, 2, 2, 2, 4, 4, 3, 3))
    """

    def __init__(self, path: Path, partial: Path, handle: int):
        # reached through the class methods only: they lock the file first
        self.path, self.partial, self._handle = path, partial, handle
        with open_h5(partial, locking=False) as f:
            if f.attrs.get("format") != COLUMNS_FORMAT or int(f.attrs.get("schema_version", 0)) != SCHEMA_VERSION:
                raise FileFormatError(
                    f"{str(partial)!r} is no unfinished propagator of this program; remove or rename it."
                )
            self.parameters: dict[str, Any] = json.loads(bytes(f["parameters_json"][()]))
            self.geometry = LatticeGeometry(**self.parameters["geometry"])
            self.dtype = f["columns"].dtype
            offsets = [f[name].id.get_offset() for name in ("columns", "done", "crc32", "info")]
            self.n_columns = f["columns"].shape[0]
        if None in offsets:
            raise FileFormatError(f"{str(partial)!r} has datasets without storage; remove it and start again.")
        self._places = _Places(*offsets)
        self._column_bytes = int(np.prod(self.geometry.spinor_shape, dtype=object)) * self.dtype.itemsize
        if file_size(partial) < self._places.columns + self.n_columns * self._column_bytes:
            raise TruncatedFileError(f"{str(partial)!r} is truncated; remove it and start again.")
        self._done = self._verified()

    # -- opened -------------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path,
        geometry: LatticeGeometry,
        source: Mapping[str, Any],
        provenance: Mapping[str, Any],
        *,
        precision="double",
        basis: str = "degrand-rossi",
    ) -> PropagatorFile:
        """Start ``<path>.partial``, with room for every column.

        Parameters
        ----------
        path
            The final file.
        geometry
            The lattice; there are Ns * Nc columns, source spin slow, source colour fast.
        source, provenance
            What decides the numbers: source, operator, boundary, solver, configuration digest. No timings: they must be equal
            for a resume.
        precision
            ``double`` or ``single``: storage of the columns.
        basis
            Gamma basis of the columns.

        Raises
        ------
        FileError
            If the partial file exists (use :meth:`open`), or cannot be written, for instance because the disk is too full.
        """
        h5py = load_h5py()
        path = as_path(path)
        partial = path.with_name(path.name + ".partial")
        dtype = as_precision(precision).complex_dtype.newbyteorder("<")
        if as_precision(precision).is_split:
            raise ParameterError(f"columns are stored in double or single, not {precision}.")
        n = 4 * geometry.nc
        parameters = _parameters(geometry, source, provenance, dtype, basis)
        temporary = partial.with_name(f".{partial.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            if os.path.exists(partial):
                raise FileExistsError(errno.EEXIST, "exists")
            with h5py.File(temporary, "w") as f:
                f.attrs["format"], f.attrs["schema_version"], f.attrs["program"] = (
                    COLUMNS_FORMAT,
                    SCHEMA_VERSION,
                    program(),
                )
                f.create_dataset("parameters_json", data=np.bytes_(to_json(parameters).encode()), track_times=False)
                for name, shape, kind in (
                    ("columns", (n, *geometry.spinor_shape), dtype),
                    ("done", (n,), np.dtype("u1")),
                    ("crc32", (n,), np.dtype("<u4")),
                    ("info", (n,), np.dtype(f"S{_INFO_BYTES}")),
                ):
                    allocated_dataset(f, name, shape, kind)
            with open(temporary, "rb+") as f:
                os.fsync(f.fileno())
            os.link(temporary, partial)  # unlike a rename this fails if another process was first
        except FileExistsError as error:
            raise FileError(
                f"{str(partial)!r} exists: another run writes it or left it unfinished; resume it, or remove it."
            ) from error
        except (OSError, RuntimeError) as error:
            raise explain_os_error("write", partial, _with_errno(error)) from error
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
        return cls._locked(path, partial)

    @classmethod
    def open(
        cls,
        path,
        geometry: LatticeGeometry,
        source: Mapping[str, Any],
        provenance: Mapping[str, Any],
        *,
        precision="double",
        basis: str = "degrand-rossi",
    ) -> PropagatorFile:
        """Open an unfinished file; arguments as for :meth:`create`.

        Raises
        ------
        FileError
            If there is none, or another process has it open.
        ParameterError
            If it was made with other parameters; the message names each that differs.
        """
        path = as_path(path)
        partial = path.with_name(path.name + ".partial")
        self = cls._locked(path, partial)
        dtype = as_precision(precision).complex_dtype.newbyteorder("<")
        differing = differences(_parameters(geometry, source, provenance, dtype, basis), self.parameters)
        if differing:
            self.close()
            raise ParameterError(
                f"{str(partial)!r} was made with other parameters: {'; '.join(differing)}. Use those, or remove the file."
            )
        return self

    @classmethod
    def resume(cls, path, geometry, source, provenance, **options) -> PropagatorFile:
        """:meth:`open` if there is a partial file, else :meth:`create`."""
        path = as_path(path)
        exists = path.with_name(path.name + ".partial").exists()
        return (cls.open if exists else cls.create)(path, geometry, source, provenance, **options)

    @classmethod
    def _locked(cls, path: Path, partial: Path) -> PropagatorFile:
        file_size(partial)
        try:
            handle = os.open(partial, os.O_RDWR)
        except OSError as error:
            raise explain_os_error("open", partial, error) from error
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                os.close(handle)
                raise FileError(
                    f"{str(partial)!r} is being written by another process; wait for it or stop it."
                ) from error
            # a file system without locks: the two-writers check is lost, the data are as safe as before
        try:
            return cls(path, partial, handle)
        except BaseException:
            os.close(handle)
            raise

    # -- asked --------------------------------------------------------------------------------------------------------

    @property
    def done(self) -> tuple[int, ...]:
        """Indices of the finished columns, ascending."""
        return tuple(sorted(self._done))

    @property
    def missing(self) -> tuple[int, ...]:
        """Indices of the columns still to be computed, ascending."""
        return tuple(i for i in range(self.n_columns) if i not in self._done)

    def column_info(self) -> list[dict[str, Any] | None]:
        """What was stored with each column by :meth:`write_columns`; None where nothing was."""
        out: list[dict[str, Any] | None] = []
        for i in range(self.n_columns):
            raw = self._pread(_INFO_BYTES, self._places.info + i * _INFO_BYTES).rstrip(b"\0")
            out.append(json.loads(raw) if raw and i in self._done else None)
        return out

    def read_columns(self, indices: Iterable[int]) -> np.ndarray:
        """Finished columns, shape ``(len(indices), T, Z, Y, X, Ns, Nc)``.

        Raises
        ------
        ParameterError
            If one of them is not finished.
        """
        indices = self._indices(indices)
        not_done = [i for i in indices if i not in self._done]
        if not_done:
            raise ParameterError(f"columns {not_done} of {str(self.partial)!r} are not finished; done are {self.done}.")
        blocks = [self._read_column(i) for i in indices]
        shape = (len(indices), *self.geometry.spinor_shape)
        return np.frombuffer(b"".join(blocks), self.dtype).astype(self.dtype.newbyteorder("=")).reshape(shape)

    # -- written ------------------------------------------------------------------------------------------------------

    def write_columns(self, indices: Iterable[int], array, info: Iterable[Mapping[str, Any]] | None = None) -> None:
        """Store finished columns; when this returns they are on the disk.

        Parameters
        ----------
        indices
            Column numbers, source spin * Nc + source colour.
        array
            Complex ``(len(indices), T, Z, Y, X, Ns, Nc)``, basis as created.
        info
            What the solver says of each (iterations, residual, ...), up to 4 kB of JSON; comes back from
            :meth:`column_info` and goes into the final provenance as ``columns``.

        Raises
        ------
        FieldShapeError, ParameterError
            If shapes or indices do not fit, or the numbers are not finite.
        FileError
            If the disk is full.
        """
        indices = self._indices(indices)
        a = np.asarray(array)
        want = (len(indices), *self.geometry.spinor_shape)
        if a.shape != want:
            raise FieldShapeError(f"columns have shape {a.shape}, but indices {indices} need {want}.")
        if a.dtype.kind != "c" or not np.isfinite(a).all():
            raise ParameterError(f"columns must be finite complex numbers, got {a.dtype}; they are not stored.")
        infos = [None] * len(indices) if info is None else [to_json(i) for i in info]
        if len(infos) != len(indices):
            raise ParameterError(f"{len(infos)} infos for {len(indices)} columns.")
        for text in infos:
            if text is not None and len(text) > _INFO_BYTES:
                raise ParameterError(f"the info of a column has {len(text)} bytes of JSON, at most {_INFO_BYTES} fit.")
        try:
            sums = []
            for i, column in zip(indices, a):
                data = np.ascontiguousarray(column, self.dtype).reshape(-1).view(np.uint8)
                # a column that is rewritten is not done while its bytes are half new
                if i in self._done:
                    self._pwrite(b"\0", self._places.done + i)
                    os.fsync(self._handle)
                    self._done.discard(i)
                self._pwrite(data, self._places.columns + i * self._column_bytes)
                sums.append(zlib.crc32(data))
            os.fsync(self._handle)
            for i, crc, text in zip(indices, sums, infos):
                self._pwrite(crc.to_bytes(4, "little"), self._places.crc32 + 4 * i)
                self._pwrite((text or "").encode().ljust(_INFO_BYTES, b"\0"), self._places.info + i * _INFO_BYTES)
                self._pwrite(b"\1", self._places.done + i)
            os.fsync(self._handle)
        except OSError as error:
            raise explain_os_error("write", self.partial, error) from error
        self._done.update(indices)

    def finish(self, provenance: Mapping[str, Any] | None = None) -> Path:
        """Make the final propagator file in one step and remove the partial one.

        Parameters
        ----------
        provenance
            Entries to add to those given at creation: timings, threads, host, ...

        Returns
        -------
        pathlib.Path
            The final file. Its dataset has the same bytes however often the run was interrupted.

        Raises
        ------
        ParameterError
            If columns are missing.
        """
        if self.missing:
            raise ParameterError(f"columns {list(self.missing)} of {str(self.partial)!r} are still missing.")
        g, nc = self.geometry, self.geometry.nc
        shape = (4, nc, *g.shape, 4, nc)
        columns = np.memmap(self.partial, self.dtype, "r", self._places.columns, shape)

        def slices():
            for t in range(g.T):
                # (source spin, source colour, Z, Y, X, sink spin, sink colour) -> Z Y X sink, source spin, sink, source colour
                yield np.moveaxis(columns[:, :, t], (0, 1), (4, 6))

        merged = {**self.parameters["provenance"], **plain(provenance or {})}
        infos = self.column_info()
        if any(i is not None for i in infos):
            merged["columns"] = infos
        path = write_slices(
            self.path,
            g,
            self.dtype,
            slices(),
            basis=self.parameters["basis"],
            source=self.parameters["source"],
            provenance=merged,
        )
        os.unlink(self.partial)
        self.close()
        return path

    def close(self) -> None:
        """Release the file; what was written stays."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> PropagatorFile:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PropagatorFile({str(self.partial)!r}, {len(self._done)} of {self.n_columns} columns)"

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _indices(self, indices: Iterable[int]) -> list[int]:
        out = [int(i) for i in indices]
        if not out or len(set(out)) != len(out) or not all(0 <= i < self.n_columns for i in out):
            raise ParameterError(f"column indices must be distinct numbers in 0..{self.n_columns - 1}, got {out}.")
        return out

    def _pwrite(self, data, offset: int) -> None:
        pwrite_all(self._handle, data, offset)

    def _pread(self, size: int, offset: int) -> bytes:
        parts = []
        while size:
            part = os.pread(self._handle, size, offset)
            if not part:
                raise TruncatedFileError(f"{str(self.partial)!r} ended early; remove it and start again.")
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)

    def _read_column(self, i: int) -> bytes:
        return self._pread(self._column_bytes, self._places.columns + i * self._column_bytes)

    def _verified(self) -> set[int]:
        """Columns marked done whose bytes are what their checksum says."""
        marks = self._pread(self.n_columns, self._places.done)
        crcs = np.frombuffer(self._pread(4 * self.n_columns, self._places.crc32), "<u4")
        good = set()
        for i, mark in enumerate(marks):
            if mark == 0:
                continue
            if zlib.crc32(self._read_column(i)) == int(crcs[i]):
                good.add(i)
            else:
                warnings.warn(
                    f"column {i} of {str(self.partial)!r} is damaged (its checksum is wrong); it counts as not done.",
                    FileCheckWarning,
                    stacklevel=4,
                )
        return good


def _parameters(geometry, source, provenance, dtype, basis) -> dict[str, Any]:
    return {
        "geometry": {n: getattr(geometry, n) for n in ("T", "Z", "Y", "X", "nc")},
        "precision": "double" if dtype.itemsize == 16 else "single",
        "basis": basis,
        "source": plain(dict(source)),
        "provenance": plain(dict(provenance)),
    }


def _with_errno(error: BaseException) -> BaseException:
    """HDF5 hides the errno in its text; bring the two that matter back."""
    text = " ".join(str(error).split())
    for code in (errno.ENOSPC, errno.EFBIG):
        if f"errno = {code}" in text:
            return OSError(code, os.strerror(code))
    return error

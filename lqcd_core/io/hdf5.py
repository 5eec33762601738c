"""HDF5: propagators and correlators, ours and other codes'.

A propagator file of ours holds the dataset ``propagator``, shape ``(T, Z, Y, X, 4, 4, Nc, Nc)`` [sink spin, source spin, sink
colour, source colour], complex as the compound {r, i}. Around it: root attributes ``format``, ``schema_version``,
``program``; attributes of the dataset that say how to read it (``index_order``, ``basis``, ``normalization``, ``digest``); and the
groups ``source`` and ``provenance``, whose sub-groups and attributes are the metadata for people, with the same as JSON in
``source_json`` and ``provenance_json`` for programs. ``digest`` is a chain over all bytes in version 1, the digest of the time
slices' digests in version 2 (:mod:`.parts`).

Also read: QDP++ and lalibe (elements are nested arrays), PyQUDA (groups with ``sum29`` and ``sum31``), plain arrays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ..errors import ChecksumError, FileError, FileFormatError, LQCDError, ParameterError, TruncatedFileError
from ..fields import Propagator
from ..geometry import LatticeGeometry
from .atomic import explain_os_error, replacing_path
from .checksum import SiteXorChecksum, same_hex
from .layout import as_path, file_size, geometry_of, program
from .metadata import plain, to_json
from .report import FileCheckWarning

SCHEMA_VERSION = 1
BY_SLICES_VERSION = 2
"""Of propagator files whose digest is that of the time slices' digests (:mod:`.parts`); all else is as in version 1."""
PROPAGATOR_FORMAT, CORRELATOR_FORMAT = "lqcd_core propagator", "lqcd_core correlators"
MASS_NORMALIZATION = "mass: columns of the inverse of M = (4 + m) - H, H = 1/2 of the eight hopping terms"
_ATTRIBUTE_LIMIT = 60_000  # HDF5 keeps an attribute in the object header, which ends at 64 KiB


def load_h5py():
    """The module h5py, or a :class:`FileError` that says how to get it."""
    try:
        import h5py
    except ImportError as error:
        raise FileError("HDF5 files need the package h5py: install lqcd-core[io].") from error
    return h5py


@contextlib.contextmanager
def open_h5(path, locking: bool | None = None) -> Iterator[Any]:
    """An HDF5 file open for reading; what the library finds wrong with it becomes an error of ours.

    ``locking=False`` keeps the library from locking the file: for one that this process has locked itself.

    Raises
    ------
    FileError, FileFormatError, TruncatedFileError
        If it is missing, no HDF5, shorter than its superblock says, or damaged in its structure.
    """
    h5py = load_h5py()
    file_size(path)
    try:
        f = h5py.File(path, "r", locking=locking)
    except (OSError, RuntimeError) as error:
        text = " ".join(str(error).split())
        if "truncated" in text:
            raise TruncatedFileError(f"{str(path)!r} is truncated: {text}.") from error
        if "signature not found" in text:
            raise FileFormatError(f"{str(path)!r} is no HDF5 file.") from error
        raise FileError(f"cannot read {str(path)!r}: {text}.") from error
    with f:
        try:
            yield f
        except LQCDError:
            raise
        except (OSError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, MemoryError) as error:
            # a bit flipped in the structure of the file surfaces as any of these
            text = " ".join(str(error).split())
            raise FileFormatError(f"{str(path)!r} is a damaged HDF5 file, or lacks a part: {text}.") from error


def read_dataset(path, d) -> np.ndarray:
    """All of a dataset; one that claims more than the file holds is refused before memory is asked for."""
    claimed, stored = int(np.prod(d.shape, dtype=object)) * d.dtype.itemsize, d.id.get_storage_size()
    if d.chunks is None and stored < claimed:
        raise TruncatedFileError(
            f"dataset {d.name!r} of {str(path)!r} claims {claimed} bytes, but {stored} are stored."
        )
    if d.chunks is not None and claimed > 1100 * stored + (1 << 20):  # more than deflate can compress
        raise TruncatedFileError(f"dataset {d.name!r} of {str(path)!r} claims {claimed} bytes from {stored} stored.")
    return d[()]


def _attributes(group, tree: Mapping[str, Any]) -> None:
    """A plain tree as sub-groups and attributes, names in order, for people who look with h5dump or h5py."""
    h5py = load_h5py()
    for key, value in tree.items():
        name = str(key).replace("/", "|")
        if isinstance(value, dict):
            _attributes(group.create_group(name), value)
            continue
        if value is None:
            value = h5py.Empty("S1")
        elif isinstance(value, list):
            flat = value and all(type(v) in (int, float, bool) for v in value)
            value = np.array(value) if flat else json.dumps(value, sort_keys=True)
        if len(value) > _ATTRIBUTE_LIMIT if isinstance(value, str) else getattr(value, "nbytes", 0) > _ATTRIBUTE_LIMIT:
            continue  # too large for an attribute; the JSON has it
        group.attrs[name] = value


def write_tree(f, name: str, tree: Mapping[str, Any]) -> None:
    """Store a metadata dictionary twice: as a group of attributes, and exactly, as JSON."""
    _attributes(f.create_group(name), plain(tree))
    text = to_json(tree).encode()
    f.create_dataset(f"{name}_json", data=np.bytes_(text), track_times=False)


def read_tree(f, name: str) -> dict[str, Any]:
    """What :func:`write_tree` stored."""
    try:
        return json.loads(bytes(f[f"{name}_json"][()]))
    except (KeyError, ValueError) as error:
        raise FileFormatError(f"{f.filename!r} has no readable {name!r} metadata: {error}") from error


@contextlib.contextmanager
def file_written_by_h5py(path, name, mode: str) -> Iterator[Any]:
    """An HDF5 file open for writing; the library's errors become ours, about ``name``."""
    h5py = load_h5py()
    try:
        with h5py.File(path, mode, track_order=False) as f:
            yield f
    except FileError:
        raise
    except (OSError, RuntimeError) as error:
        # a full disk comes out of the library as RuntimeError or as an OSError whose errno is only in the text
        text = " ".join(str(error).split())
        if "errno = 28" in text or "No space" in text:
            error = OSError(28, text)
        elif "errno = 27" in text:
            error = OSError(27, text)
        raise explain_os_error("write", name, error) from error


def _guarded(path, size: int, write: Callable[[Any], None]) -> Path:
    """Write an HDF5 file whole or not at all."""
    load_h5py()
    path = as_path(path)
    with replacing_path(path, size) as temporary, file_written_by_h5py(temporary, path, "w") as f:
        write(f)
    return path


def allocated_dataset(f, name: str, shape, dtype, fill: bool = True):
    """A contiguous dataset whose bytes have their place in the file at once, so that later writes change no structure.

    They are zeros; with ``fill=False`` whatever the file system gives.
    """
    h5py = load_h5py()
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    options.set_fill_time(h5py.h5d.FILL_TIME_ALLOC if fill else h5py.h5d.FILL_TIME_NEVER)
    options.set_obj_track_times(False)
    kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
    h5py.h5d.create(f.id, name.encode(), kind, h5py.h5s.create_simple(shape), options)
    return f[name]


def mark_propagator(f, d, geometry: LatticeGeometry, basis: str, source, provenance, version: int) -> None:
    """Everything in a propagator file but the numbers and their digest."""
    f.attrs["format"] = PROPAGATOR_FORMAT
    f.attrs["schema_version"] = version
    f.attrs["program"] = program()
    d.attrs["index_order"] = Propagator.INDEX_ORDER
    d.attrs["basis"] = basis
    d.attrs["normalization"] = MASS_NORMALIZATION
    d.attrs["units"] = "lattice units"
    for name, extent in zip("TZYX", geometry.shape):
        d.attrs[name] = extent
    d.attrs["nc"] = geometry.nc
    write_tree(f, "source", source)
    write_tree(f, "provenance", provenance)


def write_slices(
    path,
    geometry: LatticeGeometry,
    dtype,
    slices: Iterable[np.ndarray],
    *,
    basis: str,
    source: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Path:
    """Write a propagator file from its time slices ``(Z, Y, X, 4, 4, Nc, Nc)``, one in memory at a time."""
    g = geometry
    shape = (*g.shape, 4, 4, g.nc, g.nc)
    dtype = np.dtype(dtype).newbyteorder("<")

    def write(f):
        d = f.create_dataset("propagator", shape, dtype, track_times=False)
        digest = hashlib.blake2b(digest_size=16)
        for t, block in enumerate(slices):
            block = np.ascontiguousarray(block, dtype)
            digest.update(block.reshape(-1).view(np.uint8))
            d[t] = block
        d.attrs["digest"] = digest.hexdigest()
        mark_propagator(f, d, g, basis, source, provenance, SCHEMA_VERSION)

    return _guarded(path, int(np.prod(shape, dtype=object)) * dtype.itemsize, write)


def write_propagator(S: Propagator, path, precision=None) -> Path:
    """Write one propagator file; ``precision`` is ``double`` or ``single``, default that of the array."""
    dtype = storage_dtype(S, precision)
    return write_slices(path, S.geometry, dtype, S.array, basis=S.basis, source=S.source, provenance=S.provenance)


def storage_dtype(S: Propagator, precision) -> np.dtype:
    """complex128 or complex64, as asked or as the array is.

    Raises
    ------
    ParameterError
        For a 16-bit precision.
    """
    from ..precision import as_precision

    p = as_precision(precision if precision is not None else np.asarray(S.array).dtype)
    if p.is_split:
        raise ParameterError(f"propagators are stored in double or single, not {p}.")
    return p.complex_dtype


@attrs.frozen
class _Found:
    """A propagator dataset in a file."""

    name: str
    """Path inside the file."""
    nested: bool
    """True if the spin and colour axes are inside the element type."""


def _complex_base(dtype: np.dtype) -> np.dtype:
    while dtype.subdtype is not None:
        dtype = dtype.subdtype[0]
    return dtype


def _is_complex(dtype: np.dtype) -> bool:
    base = _complex_base(dtype)
    return base.kind == "c" or (base.names is not None and tuple(base.names) in _PAIRS)


_PAIRS = (("r", "i"), ("real", "imag"), ("re", "im"))


def _as_complex(a: np.ndarray) -> np.ndarray:
    """Complex numbers from any of the compounds in use; complex arrays pass."""
    if a.dtype.names is None:
        return a
    re, im = a.dtype.names
    single = a.dtype[0].itemsize == 4
    out = np.empty(a.shape, np.complex64 if single else np.complex128)
    out.real, out.imag = a[re], a[im]
    return out


def _find_propagators(f) -> list[_Found]:
    h5py = load_h5py()
    found = []

    def visit(name, obj):
        if not isinstance(obj, h5py.Dataset) or not _is_complex(obj.dtype):
            return
        inner = obj.dtype.subdtype
        if inner is not None and len(obj.shape) == 4:
            spin, color = inner[1], (inner[0].subdtype[1] if inner[0].subdtype else ())
            if spin == (4, 4) and len(color) == 2 and color[0] == color[1]:
                found.append(_Found(name, True))
        elif len(obj.shape) == 8 and obj.shape[4:6] == (4, 4) and obj.shape[6] == obj.shape[7]:
            found.append(_Found(name, False))

    f.visititems(visit)
    return found


def read_propagator(path, dataset: str | None = None, check: str = "error") -> tuple[np.ndarray, dict[str, Any]]:
    """The array ``(T, Z, Y, X, 4, 4, Nc, Nc)`` and what the file says about it.

    Returns
    -------
    array, info
        ``info`` has ``geometry``, ``source``, ``provenance``, and ``basis`` (None where the file does not say).

    Raises
    ------
    FileFormatError
        If there is no propagator, or several and ``dataset`` does not choose.
    ChecksumError
        If a stored digest or checksum is wrong and ``check="error"``.
    """
    with open_h5(path) as f:
        ours = f.attrs.get("format") == PROPAGATOR_FORMAT
        version = int(f.attrs["schema_version"]) if ours else 0
        if version > BY_SLICES_VERSION:
            raise FileFormatError(
                f"{str(path)!r} has schema version {version}; this program reads up to {BY_SLICES_VERSION}: use a newer one."
            )
        if f.attrs.get("format") == "lqcd_core propagator columns":
            raise FileFormatError(f"{str(path)!r} is an unfinished propagator; resume the run that writes it.")
        found = {p.name: p for p in _find_propagators(f)}
        if not found:
            raise FileFormatError(f"{str(path)!r} holds no propagator (no dataset with 4x4 spins and square colours).")
        if dataset is None and len(found) > 1:
            raise FileFormatError(f"{str(path)!r} holds several propagators, {', '.join(found)}; choose with dataset=.")
        name = next(iter(found)) if dataset is None else dataset.strip("/")
        if name not in found:
            raise FileFormatError(f"{str(path)!r} has no propagator {dataset!r}; it has {', '.join(found)}.")
        d = f[name]
        array = _as_complex(read_dataset(path, d))
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        g = geometry_of(path, array.shape[3], array.shape[2], array.shape[1], array.shape[0], array.shape[-1])
        info: dict[str, Any] = {"geometry": g, "basis": None, "source": {}, "provenance": {}}
        if ours:
            info.update(
                basis=str(d.attrs["basis"]), source=read_tree(f, "source"), provenance=read_tree(f, "provenance")
            )
            if check != "off":
                _compare(path, {"digest": str(d.attrs["digest"])}, {"digest": _digest(array, version)}, check)
        else:
            texts = {k: _text(v) for k, v in d.attrs.items() if not k.endswith("_formatted")}
            info["provenance"] = {"file": str(path), "dataset": name, "attributes": texts}
            if check != "off" and {"sum29", "sum31"} <= set(d.attrs):
                sums = SiteXorChecksum(16 * g.nc**2 * array.dtype.itemsize)
                sums.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8))
                _compare(path, {k: _text(d.attrs[k]) for k in ("sum29", "sum31")}, sums.result(), check)
    return array, info


def _text(value) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def slice_digest(data: np.ndarray) -> bytes:
    """blake2b (128 bits) of the bytes of a time slice as stored."""
    return hashlib.blake2b(data, digest_size=16).digest()


def digest_of_slices(digests: Iterable[bytes]) -> str:
    """The digest of a propagator from those of its time slices, in order (version 2)."""
    return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()


def _digest(array: np.ndarray, version: int) -> str:
    stored = (np.ascontiguousarray(b, b.dtype.newbyteorder("<")).reshape(-1).view(np.uint8) for b in array)
    if version == BY_SLICES_VERSION:
        return digest_of_slices(slice_digest(block) for block in stored)
    h = hashlib.blake2b(digest_size=16)
    for block in stored:
        h.update(block)
    return h.hexdigest()


def _compare(path, stored: dict[str, str], found: dict[str, str], check: str) -> None:
    wrong = [f"{k}: stored {v}, found {found[k]}" for k, v in stored.items() if not same_hex(v, found[k])]
    if not wrong:
        return
    text = f"{str(path)!r} is damaged: {'; '.join(wrong)}. check='warn' or check='off' reads it anyway."
    if check == "error":
        raise ChecksumError(text)
    warnings.warn(text, FileCheckWarning, stacklevel=4)


# -- correlators ---------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class StoredCorrelator:
    """A correlator as a file holds it."""

    values: np.ndarray
    """Complex or real, last axis T (lattice units)."""
    attributes: dict[str, Any] = attrs.field(factory=dict)
    """What it is: gamma structures, momentum, source time, ..."""


def write_correlators(path, correlators: Mapping[str, Any], provenance: Mapping[str, Any] | None = None) -> Path:
    """Write correlators, one group each: the dataset ``values`` and its attributes.

    Parameters
    ----------
    path
        The file; replaced in one step.
    correlators
        By name (a ``/`` in a name makes nested groups): an array, a :class:`StoredCorrelator`, or a pair (array, attributes).
    provenance
        Operator, configuration checksum, solver, versions, ...

    Raises
    ------
    ParameterError
        If there is none, a name is empty, or values are no numbers.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     _ = write_correlators(f"{d}/c.h5", {"pion": (np.array([3.0, 1.0, 0.5, 1.0]), {"gamma": 15})}, {"kappa": 0.125})
    ...     read, info = read_correlators(f"{d}/c.h5")
    >>> read["pion"].values.tolist(), read["pion"].attributes, info
    ([3.0, 1.0, 0.5, 1.0], {'gamma': 15}, {'kappa': 0.125})
    """
    if not correlators:
        raise ParameterError("there is no correlator to write.")
    records = {}
    for name, c in correlators.items():
        if not str(name).strip("/"):
            raise ParameterError(f"a correlator needs a name, got {name!r}.")
        if not isinstance(c, StoredCorrelator):
            c = StoredCorrelator(*c) if isinstance(c, tuple) else StoredCorrelator(c)
        values = np.asarray(c.values)
        if values.dtype.kind not in "fc" or values.ndim < 1:
            raise ParameterError(
                f"correlator {name!r} must be an array of real or complex numbers, got {values.dtype}."
            )
        records[str(name).strip("/")] = (values, dict(c.attributes))

    def write(f):
        f.attrs["format"] = CORRELATOR_FORMAT
        f.attrs["schema_version"] = SCHEMA_VERSION
        f.attrs["program"] = program()
        top = f.create_group("correlators")
        for name, (values, attributes) in records.items():
            group = top.require_group(name)
            group.create_dataset("values", data=values, track_times=False)
            _attributes(group, {k: v for k, v in plain(attributes).items() if not isinstance(v, dict)})
            group.create_dataset("attributes_json", data=np.bytes_(to_json(attributes).encode()), track_times=False)
        write_tree(f, "provenance", provenance or {})

    return _guarded(path, sum(v.nbytes for v, _ in records.values()), write)


def read_correlators(path) -> tuple[dict[str, StoredCorrelator], dict[str, Any]]:
    """Correlators by name, and the provenance. From another code's file: every one-dimensional complex dataset.

    Raises
    ------
    FileFormatError
        If there is no correlator in the file.
    """
    h5py = load_h5py()
    out: dict[str, StoredCorrelator] = {}
    with open_h5(path) as f:
        if f.attrs.get("format") == CORRELATOR_FORMAT:
            if int(f.attrs["schema_version"]) > SCHEMA_VERSION:
                raise FileFormatError(f"{str(path)!r} has a newer schema than {SCHEMA_VERSION}: use a newer program.")

            def visit(name, obj):
                if isinstance(obj, h5py.Dataset) and name.rpartition("/")[2] == "values":
                    group = obj.parent
                    attributes = json.loads(bytes(group["attributes_json"][()]))
                    out[name.rpartition("/")[0]] = StoredCorrelator(read_dataset(path, obj), attributes)

            f["correlators"].visititems(visit)
            return out, read_tree(f, "provenance")

        def visit_foreign(name, obj):
            if (
                isinstance(obj, h5py.Dataset)
                and len(obj.shape) == 1
                and _is_complex(obj.dtype)
                and not obj.dtype.subdtype
            ):
                out[name] = StoredCorrelator(
                    _as_complex(read_dataset(path, obj)), {k: _text(v) for k, v in obj.attrs.items()}
                )

        f.visititems(visit_foreign)
    if not out:
        raise FileFormatError(f"{str(path)!r} holds no correlator.")
    return out, {}

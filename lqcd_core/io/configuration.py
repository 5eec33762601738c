"""Reading, checking, writing and converting gauge configurations of any format."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ..errors import (
    ChecksumError,
    FileFormatError,
    NonUnitaryLinksError,
    ParameterError,
    UnknownOptionError,
    nearest,
    refuse_unknown,
)
from ..fields import GaugeField, max_unitarity_violation
from ..geometry import DIRECTIONS, LatticeGeometry
from ..precision import as_precision
from . import ildg, milc, nersc, npy, openqcd
from .checksum import join_checksums, same_hex
from .layout import GaugeFile, as_path, read_links, slab_range, steadily
from .report import Check, FileCheckWarning, GaugeReport
from .sniff import GAUGE_FORMATS, sniff

_OPEN = {
    "nersc": nersc.open_gauge,
    "ildg": ildg.open_gauge,
    "scidac": ildg.open_gauge,
    "milc": milc.open_gauge,
    "openqcd": openqcd.open_gauge,
    "npy": npy.open_gauge,
}
_SUFFIXES = {
    ".nersc": "nersc", ".cfg": "nersc", ".ildg": "ildg", ".lime": "ildg", ".scidac": "scidac", ".milc": "milc",
    ".openqcd": "openqcd", ".npy": "npy",
}  # fmt: skip
_WRITE_OPTIONS = {
    "nersc": ("rows", "byteorder", "ensemble_id", "ensemble_label", "sequence_number", "header"),
    "ildg": ("lfn", "info"),
    "scidac": ("info",),
    "milc": ("byteorder",),
    "openqcd": (),
    "npy": (),
}
_DOUBLE_ONLY = ("openqcd", "npy")


def _open(path, format: str | None, geometry: LatticeGeometry | None) -> GaugeFile:
    if format is not None and format not in GAUGE_FORMATS:
        raise ParameterError(f"gauge format {format!r} is unknown; {nearest(str(format), GAUGE_FORMATS)}")
    try:
        found = sniff(path)
    except FileFormatError:
        if format != "openqcd":
            raise
        found = "openqcd"  # the one format without a magic number: let its reader say what is wrong
    if format is not None and format != found:
        raise FileFormatError(
            f"{str(path)!r} was to be read as {format!r}, but its content is {found!r}; drop format=."
        )
    if found not in _OPEN:
        raise FileFormatError(
            f"{str(path)!r} is {found!r}, not a gauge configuration; propagators are read with read_propagator, "
            "openQCD spinors with read_spinor."
        )
    return _OPEN[found](path, geometry)


def _load(file: GaugeFile, dtype=None) -> tuple[np.ndarray, dict[str, str]]:
    """Links in canonical order, in the file's precision unless told, and the checksums computed on the way."""
    if file.load is not None:
        return file.load(file), {}
    accumulators = [make() for make in file.accumulators]
    links = read_links(file, accumulators=accumulators, dtype=dtype)
    return links, {k: v for a in accumulators for k, v in a.result().items()}


def header_tolerance(text: str, precision: str) -> float:
    """Largest difference allowed between a printed and a computed plaquette or link trace.

    1e-5 for single and 1e-6 for double files, as the field has it, or half a unit of the last printed digit if that is
    more: a header with few digits is not wrong.

    Examples
    --------
    >>> header_tolerance("0.994765", "double"), header_tolerance("0.99", "double")
    (1e-06, 0.0051)
    """
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2]) - (int(exponent) if exponent.lstrip("+-").isdigit() else 0)
    return max(1e-5 if precision == "single" else 1e-6, 0.51 * 10.0**-digits)


def _number_check(name: str, stored: str | None, found: float, file: GaugeFile) -> Check:
    if stored is None:
        return Check(name, None, found, None)
    try:
        value = float(stored)
    except ValueError:
        return Check(name, stored, found, False, None, "the stored text is no number")
    tolerance = 1e-10 if file.exact_header else header_tolerance(stored, file.precision)
    ok = bool(abs(value - found) <= tolerance)
    note = ""
    nc = file.geometry.nc
    if not ok and math.isfinite(found) and abs(value - nc * found) <= nc * tolerance and name == "plaquette":
        if file.format in ("ildg", "scidac"):
            # MILC and others print Re tr P, not divided by Nc, in free-form records; the number itself is right
            return Check(name, value, found, True, tolerance, f"stored without the factor 1/{nc}")
        note = f"stored without the factor 1/{nc}"
    elif not ok and found and math.isfinite(found):
        note = f"stored is {value / found:.6g} times what the data give"
    return Check(name, value, found, ok, tolerance, note)


def _verify(file: GaugeFile, computed: dict[str, str], links: np.ndarray) -> tuple[Check, ...]:
    from ..gauge.loops import link_trace, plaquette

    checks = []
    for name, found in computed.items():
        stored = file.checksums.get(name)
        ok = None if stored is None else same_hex(stored, found)
        note = ""
        if ok is False and name == "checksum" and same_hex(stored, nersc.swapped_checksum(file)):
            note = f"it is right for the other byte order: FLOATING_POINT {file.header['FLOATING_POINT']} is wrong"
        checks.append(Check(name, stored, found, ok, None, note))
    with np.errstate(all="ignore"):  # damaged files hold NaN and infinities, which the comparison then reports
        checks.append(_number_check("plaquette", file.plaquette, float(plaquette(links)), file))
        checks.append(_number_check("link_trace", file.link_trace, float(link_trace(links)), file))
    return tuple(checks)


def _refuse(path, failures, check: str) -> None:
    if not failures:
        return
    text = (
        f"{str(path)!r} does not hold what it says: {'; '.join(str(c) for c in failures)}. "
        "The file is damaged or was written wrongly; check='warn' or check='off' reads it anyway."
    )
    if check == "error":
        raise ChecksumError(text)
    warnings.warn(text, FileCheckWarning, stacklevel=4)


def read_gauge(
    path,
    *,
    check: str = "error",
    check_links: bool = True,
    format: str | None = None,
    geometry: LatticeGeometry | None = None,
    precision=None,
    **unknown,
) -> GaugeField:
    """Read a gauge configuration; the format is found from the content.

    Parameters
    ----------
    path
        NERSC, ILDG, SciDAC, MILC, openQCD, or a PyQUDA ``.npy``.
    check
        What to do if a stored checksum, plaquette or link trace disagrees with the data: ``error`` (default), ``warn``, or
        ``off`` (nothing is computed). The length of the file is always checked, before any link is read.
    check_links
        Refuse links that are not finite or not in SU(Nc). False accepts them as they are.
    format
        Insist on a format: ``nersc``, ``ildg``, ``scidac``, ``milc``, ``openqcd``, ``npy``.
    geometry
        Insist on a lattice; needed for ILDG files that hold nothing but the ``ildg-binary-data`` record.
    precision
        Precision of the field; default that of the file.

    Returns
    -------
    GaugeField
        Links ``(T, Z, Y, X, 4, Nc, Nc)``, directions t, z, y, x. ``.origin`` says where they come from and what was checked.

    Raises
    ------
    FileError
        If the file is missing or unreadable.
    FileFormatError, TruncatedFileError
        If its bytes do not follow the format, or its length is not what the header asks for.
    ChecksumError
        If what it stores about itself is wrong and ``check="error"``.
    NonUnitaryLinksError
        If links are not finite or not unitary and ``check_links`` is true.
    GeometryError
        If ``geometry`` is given and the file holds another lattice.

    Examples
    --------
    >>> import tempfile
    >>> from lqcd_core.io import write_gauge
    >>> U = GaugeField.random(LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=1)
    >>> with tempfile.TemporaryDirectory() as d:
    ...     _ = write_gauge(U, f"{d}/random.ildg")
    ...     V = read_gauge(f"{d}/random.ildg")
    >>> bool((V.array == U.array).all()), V.origin["format"]
    (True, 'ildg')
    """
    _refuse_options(unknown, ("check", "check_links", "format", "geometry", "precision"), "read_gauge")
    if check not in ("error", "warn", "off"):
        raise ParameterError(f"check must be 'error', 'warn' or 'off', got {check!r}.")
    wanted = None if precision is None else as_precision(precision)
    # asked for double, a two-row single file gets its last row in double rather than a rounded one
    dtype = np.complex128 if wanted is not None and wanted.name == "double" else None
    path = as_path(path)

    def read():
        file = _open(path, format, geometry)
        links, computed = _load(file if check != "off" else attrs.evolve(file, accumulators=()), dtype)
        return file, links, computed, () if check == "off" else _verify(file, computed, links)

    file, links, computed, checks = steadily(path, read)
    _refuse(path, [c for c in checks if c.ok is False], check)
    for note in file.notes:
        if "read as that" in note:  # the byte order was decided against the header: say it aloud
            warnings.warn(f"{str(path)!r}: {note}.", FileCheckWarning, stacklevel=2)
    U = GaugeField(file.geometry, links)
    unitarity = None
    if check_links:
        unitarity = _check_links(U, file)
    elif check != "off":
        unitarity = max_unitarity_violation(links)
    if wanted is not None and wanted != U.precision:
        U = U.to(wanted)
    U.origin = _origin(file, checks, computed, unitarity, U.digest())
    return U


def _check_links(U: GaugeField, file: GaugeFile) -> float:
    limit = 1e-6 if file.precision == "double" else 2e-5  # the file's precision: widening makes no link more unitary
    found = max_unitarity_violation(U.array)
    if found <= limit:
        return found
    if file.format == "openqcd" and openqcd.is_open_boundary(U.array):
        raise NonUnitaryLinksError(
            f"{file.path!r} has open boundary conditions: the time links of its last slice are zero, so they are not in "
            "SU(3). Pass check_links=False to read it as it is."
        )
    try:
        U.check_unitary(limit)
    except NonUnitaryLinksError as error:
        raise NonUnitaryLinksError(f"{file.path!r}: {error} (read_gauge takes check_links=False)") from error
    return found


def _origin(file: GaugeFile, checks, computed, unitarity, digest) -> dict[str, Any]:
    by_name = {c.name: c for c in checks}

    def pair(name, stored):
        c = by_name.get(name)
        return {"stored": stored, "computed": None if c is None else c.found, "ok": None if c is None else c.ok}

    return {
        "kind": "file",
        "path": file.path,
        "format": file.format,
        "precision": file.precision,
        "header": dict(file.header),
        "checksums": {name: pair(name, file.checksums.get(name)) for name in sorted({*file.checksums, *computed})},
        "plaquette": pair("plaquette", file.plaquette),
        "link_trace": pair("link_trace", file.link_trace),
        "unitarity": unitarity,
        "digest": digest,
        "notes": list(file.notes),
    }


def inspect_gauge(path, *, format: str | None = None, geometry: LatticeGeometry | None = None) -> GaugeReport:
    """Everything a configuration says of itself, beside what its data give. Wrong checks are reported, not raised.

    Parameters
    ----------
    path
        A configuration of any format.
    format, geometry
        As for :func:`read_gauge`.

    Raises
    ------
    FileError, FileFormatError, TruncatedFileError
        If the file cannot be read at all.

    Examples
    --------
    >>> import tempfile
    >>> from lqcd_core.io import write_gauge
    >>> with tempfile.TemporaryDirectory() as d:
    ...     _ = write_gauge(GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2)), f"{d}/unit.nersc")
    ...     report = inspect_gauge(f"{d}/unit.nersc")
    >>> report.ok, report.plaquette, report.polyakov["t"]
    (True, 1.0, (1+0j))
    """
    from ..gauge.loops import plaquette_ss, plaquette_st, polyakov_loop

    path = as_path(path)

    def read():
        file = _open(path, format, geometry)
        links, computed = _load(file, np.complex128)
        return file, links, _verify(file, computed, links)

    file, links, checks = steadily(path, read)
    with np.errstate(all="ignore"):
        ss, st = float(plaquette_ss(links)), float(plaquette_st(links))
        polyakov = {d: complex(polyakov_loop(links, mu)) for mu, d in enumerate(DIRECTIONS)}
    notes = file.notes
    if file.format == "openqcd" and openqcd.is_open_boundary(links):
        notes = (*notes, "open boundary conditions: the time links of the last slice are zero")
    found = {c.name: c.found for c in checks}
    return GaugeReport(
        path=file.path,
        format=file.format,
        geometry=file.geometry,
        precision=file.precision,
        header=dict(file.header),
        checks=checks,
        notes=notes,
        plaquette=found["plaquette"],
        plaquette_ss=ss,
        plaquette_st=st,
        link_trace=found["link_trace"],
        polyakov=polyakov,
        unitarity=max_unitarity_violation(links),
        digest=GaugeField(file.geometry, links, file.precision).digest(),
    )


def read_gauge_slab(
    path, t_start: int, t_stop: int, *, format: str | None = None, geometry: LatticeGeometry | None = None,
    check_links: bool = True,
) -> np.ndarray:  # fmt: skip
    """The time slices ``[t_start, t_stop)`` only, read at their offset, so that many readers share one file.

    Parameters
    ----------
    path
        NERSC, ILDG, SciDAC or MILC (in openQCD files the links of a slice lie in two places).
    t_start, t_stop
        Range of time slices, within 0..T.
    format, geometry
        As for :func:`read_gauge`.
    check_links
        Refuse links that are not finite or not in SU(Nc). Checksums need the whole file and are not verified here.

    Returns
    -------
    numpy.ndarray
        Links ``(t_stop - t_start, Z, Y, X, 4, Nc, Nc)`` in the file's precision, equal to that part of the full read.

    Raises
    ------
    ParameterError
        If the range lies outside the lattice.
    FileFormatError
        If the format does not allow it.
    """
    return _read_part(path, t_start, t_stop, format, geometry, check_links, sums=False).links


@attrs.frozen
class GaugePart:
    """Some time slices of a configuration file with their part of its checksums."""

    links: np.ndarray
    """Links ``(t_stop - t_start, Z, Y, X, 4, Nc, Nc)`` in the file's precision."""
    t_start: int
    """First time slice."""
    t_stop: int
    """One past the last time slice."""
    geometry: LatticeGeometry
    """The whole lattice."""
    sums: dict[str, str]
    """Checksums of these slices alone, by name, hexadecimal."""
    stored: dict[str, str]
    """Checksums that the file states of the whole."""

    def without_links(self) -> GaugePart:
        """The same without the links: what a reader tells the others."""
        return attrs.evolve(self, links=None)


def read_gauge_part(
    path, t_start: int, t_stop: int, *, format: str | None = None, geometry: LatticeGeometry | None = None,
    check_links: bool = True,
) -> GaugePart:  # fmt: skip
    """Like :func:`read_gauge_slab`, with the slab's part of the checksums: each byte is read once, by one reader.

    Give the parts of all readers to :func:`check_gauge_parts`. Parameters and errors are those of
    :func:`read_gauge_slab`. (A NERSC file whose header leaves the byte order open is read whole by each, to settle it.)

    Examples
    --------
    >>> import tempfile
    >>> from lqcd_core.io import write_gauge
    >>> U = GaugeField.random(LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=1)
    >>> with tempfile.TemporaryDirectory() as d:
    ...     _ = write_gauge(U, f"{d}/random.ildg")
    ...     parts = [read_gauge_part(f"{d}/random.ildg", t, t + 2) for t in (0, 2)]
    >>> check_gauge_parts(f"random.ildg", parts)
    ('suma', 'sumb')
    """
    return _read_part(path, t_start, t_stop, format, geometry, check_links, sums=True)


def _read_part(path, t_start, t_stop, format, geometry, check_links, sums: bool) -> GaugePart:
    path = as_path(path)

    def read():
        file = _open(path, format, geometry)
        slab_range(file.geometry, t_start, t_stop)
        if file.load is not None:
            raise FileFormatError(
                f"{str(path)!r} is {file.format!r}, which cannot be read by time slices; convert it to 'ildg' first."
            )
        accumulators = [make() for make in file.accumulators] if sums else []
        for accumulator in accumulators:
            accumulator.skip(t_start * file.geometry.spatial_volume * file.site_bytes)
        links = read_links(file, t_start, t_stop, accumulators)
        return file, links, {k: v for a in accumulators for k, v in a.result().items()}

    file, links, computed = steadily(path, read)
    if check_links:
        slab = LatticeGeometry(**{**attrs.asdict(file.geometry), "T": t_stop - t_start})
        _check_links(GaugeField(slab, links), file)
    return GaugePart(links, t_start, t_stop, file.geometry, computed, dict(file.checksums))


def check_gauge_parts(path, parts) -> tuple[str, ...]:
    """Hold the checksums of all parts together against what the file states; the names of those that were compared.

    Parameters
    ----------
    path
        The file, for messages.
    parts
        A :class:`GaugePart` of every reader, in any order; together the whole lattice.

    Raises
    ------
    ParameterError
        If the parts do not make up the lattice, or are of different files.
    ChecksumError
        If a checksum is wrong.
    """
    parts = sorted(parts, key=lambda p: p.t_start)
    edges = [p.t_start for p in parts] + [parts[-1].geometry.T]
    if edges[0] != 0 or any(p.t_stop != after for p, after in zip(parts, edges[1:], strict=True)):
        ranges = ", ".join(f"[{p.t_start}, {p.t_stop})" for p in parts)
        raise ParameterError(f"the parts {ranges} of {str(path)!r} do not make up its {edges[-1]} time slices.")
    if any(p.stored != parts[0].stored or p.geometry != parts[0].geometry for p in parts):
        raise ParameterError(f"the parts of {str(path)!r} come from different files: their headers differ.")
    found = join_checksums([p.sums for p in parts])
    checks = [Check(k, v, found[k], same_hex(v, found[k])) for k, v in parts[0].stored.items() if k in found]
    _refuse(path, [c for c in checks if not c.ok], "error")
    return tuple(c.name for c in checks)


def format_of_name(path) -> str:
    """The gauge format that a file name's suffix asks for.

    Examples
    --------
    >>> format_of_name("run7.cfg"), format_of_name("run7.lime")
    ('nersc', 'ildg')
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(f"{s} ({f})" for s, f in _SUFFIXES.items())
        raise ParameterError(
            f"the suffix {suffix!r} of {str(path)!r} names no gauge format; use {known}, or pass format=."
        )
    return _SUFFIXES[suffix]


def write_gauge(
    U: GaugeField, path, *, format: str | None = None, precision=None, check_links: bool = True, **options
) -> Path:
    """Write a gauge configuration, whole or not at all.

    The header carries the plaquette and the link trace, and every format that has a checksum gets one. A double field is
    read back bit by bit; a single one too.

    Parameters
    ----------
    U
        The links. 16-bit fields are widened to single, which is exact.
    path
        The file; an old one is replaced in one step.
    format
        ``nersc``, ``ildg``, ``scidac``, ``milc``, ``openqcd`` or ``npy``; default by suffix (``.nersc .cfg .ildg .lime .scidac
        .milc .openqcd .npy``).
    precision
        ``double`` or ``single``; default the field's own. MILC has single only and asks for it by name; openQCD and npy
        have double only.
    check_links
        Refuse links that are not finite or not in SU(Nc).
    options
        nersc: ``rows``, ``byteorder``, ``ensemble_id``, ``ensemble_label``, ``sequence_number``, ``header``; ildg: ``lfn``,
        ``info``; scidac: ``info``; milc: ``byteorder``.

    Returns
    -------
    pathlib.Path
        The file written.

    Raises
    ------
    FileError
        If it cannot be written (no directory, no permission, disk full); an old file is then untouched.
    ParameterError, UnknownOptionError
        If the format or an option is unknown, or the format cannot hold the field.
    NonUnitaryLinksError
        If the links are no configuration and ``check_links`` is true.
    """
    from ..gauge.loops import link_trace, plaquette

    path = as_path(path)
    format = format_of_name(path) if format is None else format
    if format not in _WRITE_OPTIONS:
        raise ParameterError(f"gauge format {format!r} is unknown; {nearest(str(format), _WRITE_OPTIONS)}")
    refuse_unknown(options, _WRITE_OPTIONS[format], f"writing {format!r}")
    if not isinstance(U, GaugeField):
        raise ParameterError(f"write_gauge writes a GaugeField, got {type(U).__name__}.")
    stored = as_precision(precision) if precision is not None else None
    if stored is not None and stored.is_split:
        raise ParameterError(f"configurations are stored in double or single, not {stored}.")
    if format in _DOUBLE_ONLY:
        if stored is not None and stored.name != "double":
            raise ParameterError(f"{format!r} files are double only, precision={stored} was asked for; drop it.")
        stored = as_precision("double")
    elif stored is None:
        stored = as_precision("double" if U.precision.name == "double" else "single")
    if check_links:
        U.check_unitary()
    V = U if stored == U.precision else U.to(stored)
    with np.errstate(all="ignore"):
        numbers = {"plaquette": float(plaquette(V)), "link_trace": float(link_trace(V))}
    if format == "nersc":
        nersc.write_gauge(V, path, **numbers, **options)
    elif format in ("ildg", "scidac"):
        ildg.write_gauge(V, path, scidac=format == "scidac", **numbers, **options)
    elif format == "milc":
        milc.write_gauge(V, path, **options)
    elif format == "openqcd":
        openqcd.write_gauge(V, path, plaquette=numbers["plaquette"])
    else:
        npy.write_gauge(V, path)
    return path


def convert_gauge(
    source,
    target,
    *,
    format: str | None = None,
    precision=None,
    check: str = "error",
    check_links: bool = True,
    source_format: str | None = None,
    geometry: LatticeGeometry | None = None,
    **options,
) -> Path:
    """Read one configuration and write it in another format.

    Parameters
    ----------
    source, target
        The files; they may be the same, since the old one is replaced only when the new one is complete.
    format, precision, options
        Of the target, as for :func:`write_gauge`.
    check, check_links, source_format, geometry
        Of the source, as for :func:`read_gauge`.

    Returns
    -------
    pathlib.Path
        The file written.
    """
    U = read_gauge(source, check=check, check_links=check_links, format=source_format, geometry=geometry)
    return write_gauge(U, target, format=format, precision=precision, check_links=check_links, **options)


def _refuse_options(given: dict, known, what: str) -> None:
    for name in given:
        raise UnknownOptionError(f"{what} has no option {name!r}; {nearest(name, known)}")


__all__ = [
    "GaugePart",
    "check_gauge_parts",
    "convert_gauge",
    "format_of_name",
    "header_tolerance",
    "inspect_gauge",
    "read_gauge",
    "read_gauge_part",
    "read_gauge_slab",
    "write_gauge",
]

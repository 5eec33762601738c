r"""Sources: recipes of columns that a propagator solve asks for one batch at a time.

A :class:`Source` holds how to make its columns, not the columns: twelve spinors of a 32^3 x 64 lattice are 4.8 GB in
double, a recipe is a few numbers. Column index = source spin * Nc + source colour, the order of
:meth:`Propagator.from_columns`.

Normalisation and signs: nothing is normalised; a wall is 1 at each site; a momentum :math:`(p_x,p_y,p_z)`, given as three
whole numbers n with :math:`p_i=2\pi n_i/L_i`, multiplies by :math:`e^{+i\vec p\cdot(\vec x-\vec x_0)}`, :math:`x_0` the
origin unless said otherwise. Numbers drawn depend on the seed and the global site only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from .. import random as rng
from ..errors import FieldShapeError, ParameterError, nearest
from ..fields import ColorSpinorField, GaugeField, Propagator, same_lattice
from ..gamma import basis_rotation, gamma
from ..geometry import LatticeGeometry
from ..io.layout import slab_range
from ..precision import as_precision
from .smearing import check_smearing, smear_spinors, smearing_record

NOISE_KINDS = ("z2", "z4", "gaussian")
"""Noise by name: z2 is +1 or -1, z4 is a power of i, gaussian has real and imaginary parts N(0, 1/2)."""

DILUTIONS = ("time", "spin", "color")
"""Indices over which a noise source may be split into separate columns."""

_SAMPLE_SHIFT = 16  # streams of one purpose differ in the bits above these, as in ColorSpinorField.gaussian


@attrs.frozen(eq=False)
class Source:
    """A recipe of source columns, frozen and cheap; :meth:`columns` makes the arrays asked for.

    Examples
    --------
    >>> s = point_source(LatticeGeometry(T=4, Z=2, Y=2, X=2), t=1)
    >>> len(s), s.columns([0, 11]).shape
    (12, (2, 4, 2, 2, 2, 4, 3))
    >>> s.describe()["position"]
    [1, 0, 0, 0]
    """

    geometry: LatticeGeometry
    """The lattice."""
    kind: str
    """``point``, ``wall``, ``momentum``, ``noise`` or ``sequential``."""
    parameters: dict[str, Any]
    """Plain numbers, strings and lists that say everything about the source, kept with results. ``position`` (t, z, y,
    x) is the origin of momentum phases and ``time`` the time slice, where the source has them."""
    build: Callable[[int], np.ndarray] = attrs.field(repr=False)
    """Column index -> complex128 array ``(T, Z, Y, X, Ns, Nc)``, the same numbers at every call."""
    n_columns: int = attrs.field(kw_only=True)
    """Number of columns, at least 1; Ns * Nc (12 for SU(3)) where they make a propagator."""
    makes_propagator: bool = attrs.field(default=True, kw_only=True)
    """True if column i belongs to source spin i // Nc and colour i % Nc, so that the solutions form a propagator."""
    build_slab: Callable[[int, int, int], np.ndarray] | None = attrs.field(default=None, kw_only=True, repr=False)
    """(column, first, one past the last time slice) -> those slices of ``build(column)`` without the others being made;
    None cuts them out of the whole column."""

    def __len__(self) -> int:
        return self.n_columns

    def columns(self, indices: int | Iterable[int] | None = None, precision="double") -> np.ndarray:
        """The columns asked for, as a batch ``(n, T, Z, Y, X, Ns, Nc)``; all of them for None.

        Raises
        ------
        ParameterError
            If an index is no column of this source, or none is asked for.
        """
        if indices is None:
            indices = range(self.n_columns)
        elif isinstance(indices, (int, np.integer)):
            indices = [indices]
        wanted = list(indices)
        if not wanted:
            raise ParameterError("an empty list of columns was asked for; a batch needs at least one.")
        for i in wanted:
            if isinstance(i, bool) or not isinstance(i, (int, np.integer)) or not 0 <= i < self.n_columns:
                raise ParameterError(
                    f"column {i!r} was asked for, but this source has columns 0..{self.n_columns - 1}."
                )
        out = np.empty((len(wanted), *self.geometry.spinor_shape), as_precision(precision).complex_dtype)
        for k, i in enumerate(wanted):
            out[k] = self.build(int(i))
        return out

    def slab(self, t_start: int, t_stop: int) -> Source:
        """The slices t_start .. t_stop-1 of every column, as a source on a lattice of that many time slices.

        It says of itself what the whole source says, positions included.

        Raises
        ------
        ParameterError
            If these are no time slices of the lattice.

        Examples
        --------
        >>> s = point_source(LatticeGeometry(T=4, Z=2, Y=2, X=2), t=1)
        >>> [bool(s.slab(a, a + 2).columns().any()) for a in (0, 2)]
        [True, False]
        """
        slab_range(self.geometry, t_start, t_stop)

        def build(i):
            if self.build_slab is not None:
                return self.build_slab(i, t_start, t_stop)
            return self.build(i)[t_start:t_stop].copy()  # a copy: the slices alone stay in memory

        return attrs.evolve(
            self, geometry=attrs.evolve(self.geometry, T=t_stop - t_start), build=build, build_slab=None
        )

    def column(self, index: int, precision="double") -> ColorSpinorField:
        """One column as a field."""
        return ColorSpinorField(self.geometry, self.columns([index])[0], precision)

    def describe(self) -> dict[str, Any]:
        """Everything about the source as plain values (the ``source`` of a :class:`Propagator`); a new dictionary."""
        return {"kind": self.kind, **_plain(self.parameters), "n_columns": self.n_columns}

    def make_propagator(self, solutions: np.ndarray, **info) -> Propagator:
        """A :class:`Propagator` from the solutions of all Ns * Nc columns, in order.

        Raises
        ------
        FieldShapeError
            If the columns do not run over source spin and colour (:attr:`makes_propagator`).
        """
        if not self.makes_propagator:
            raise FieldShapeError(
                f"the {self.n_columns} columns of this source do not run over spin and colour and make no propagator; "
                "dilute noise in ('spin', 'color')."
            )
        return Propagator.from_columns(self.geometry, solutions, source=self.describe(), **info)


def point_source(geometry: LatticeGeometry, t: int = 0, z: int = 0, y: int = 0, x: int = 0) -> Source:
    r"""Point source of every spin and colour: column (s, c) is :math:`\delta_{x,x_0}\delta_{\alpha s}\delta_{ac}`.

    Raises
    ------
    ParameterError
        If the site lies outside the lattice.

    Examples
    --------
    >>> float(abs(point_source(LatticeGeometry(T=2, Z=2, Y=2, X=2)).columns()).sum())
    12.0
    """
    site = _site(geometry, (t, z, y, x))

    def slices(i, first, last):
        out = _zeros(geometry, last - first)
        if first <= site[0] < last:
            out[(site[0] - first, *site[1:], *divmod(i, geometry.nc))] = 1
        return out

    return _by_slices(geometry, "point", {"position": list(site), "time": site[0]}, slices)


def wall_source(geometry: LatticeGeometry, t: int, momentum: Sequence[int] = (0, 0, 0)) -> Source:
    r"""Wall source: column (s, c) is :math:`e^{i\vec p\cdot\vec x}\delta_{x_0,t}\delta_{\alpha s}\delta_{ac}`.

    Fix the gauge (Coulomb) first: the columns are not gauge covariant.

    Parameters
    ----------
    geometry
        The lattice.
    t
        Time slice.
    momentum
        (n_x, n_y, n_z), whole numbers, :math:`p_i=2\pi n_i/L_i`.

    Raises
    ------
    ParameterError
        If the slice lies outside the lattice, or the momentum is not three whole numbers.
    """
    return momentum_source(geometry, momentum, t=t)


def momentum_source(
    geometry: LatticeGeometry, momentum: Sequence[int], t: int | None = None, frequency: float = 0.0
) -> Source:
    r"""Plane wave on one time slice, or on the whole lattice: :math:`e^{i\vec p\cdot\vec x+i\omega x_0}` per spin and colour.

    Parameters
    ----------
    geometry
        The lattice.
    momentum
        (n_x, n_y, n_z), whole numbers, :math:`p_i=2\pi n_i/L_i`.
    t
        Time slice; None for the whole lattice.
    frequency
        n_t with :math:`\omega=2\pi n_t/T`, for the whole lattice only; a half-odd number suits antiperiodic quarks.

    Raises
    ------
    ParameterError
        If the slice lies outside the lattice, the momentum is not three whole numbers, or a frequency comes with a slice.

    Examples
    --------
    >>> s = momentum_source(LatticeGeometry(T=2, Z=2, Y=2, X=4), momentum=(1, 0, 0), t=0)
    >>> bool(np.allclose(s.columns([0])[0, 0, 0, 0, :, 0, 0], [1, 1j, -1, -1j]))
    True
    """
    n = whole_momentum(momentum)
    if not np.isfinite(frequency):
        raise ParameterError(f"frequency must be finite, got {frequency!r}.")
    if t is not None and frequency:
        raise ParameterError("a source on one time slice has no frequency; leave out t or frequency.")
    parameters: dict[str, Any] = {"momentum": list(n)}
    if t is None:
        parameters["frequency"] = float(frequency)
    else:
        t = _site(geometry, (t, 0, 0, 0))[0]
        parameters |= {"position": [t, 0, 0, 0], "time": t}

    def slices(i, first, last):
        wave = momentum_phase(geometry, n)
        out = _zeros(geometry, last - first)
        spin, color = divmod(i, geometry.nc)
        if t is None:
            omega = 2 * np.pi * frequency / geometry.T
            out[..., spin, color] = np.exp(1j * omega * np.arange(first, last))[:, None, None, None] * wave
        elif first <= t < last:
            out[t - first, ..., spin, color] = wave
        return out

    kind = "momentum" if t is None or any(n) else "wall"
    return _by_slices(geometry, kind, parameters, slices)


def noise_source(
    geometry: LatticeGeometry,
    seed: int,
    kind: str,
    t: int | None = None,
    dilution: Sequence[str] = ("spin", "color"),
    sample: int = 0,
) -> Source:
    r"""Stochastic source, :math:`\langle\eta_i\eta_j^*\rangle=\delta_{ij}`, optionally split into columns by dilution.

    Columns run over the diluted indices in the order time (slowest), spin, colour. A diluted spin or colour carries the
    *same* numbers in each of its columns, so that with both diluted the Ns * Nc columns
    :math:`\xi(x)\delta_{\alpha s}\delta_{ac}` are what the one-end trick needs and form a propagator; an index that is
    not diluted draws its own numbers.

    Parameters
    ----------
    geometry
        The lattice.
    seed
        In [0, 2^64).
    kind
        ``z2``, ``z4`` or ``gaussian``.
    t
        Time slice; None for the whole lattice.
    dilution
        Any of ``time``, ``spin``, ``color``; () for one column.
    sample
        Number of the independent sample of this seed, at least 0.

    Raises
    ------
    ParameterError
        For an unknown kind or dilution, a slice outside the lattice, or time dilution of a single slice.

    Examples
    --------
    >>> g = LatticeGeometry(T=4, Z=2, Y=2, X=2)
    >>> len(noise_source(g, seed=1, kind="z2")), len(noise_source(g, 1, "z4", dilution=("time", "spin")))
    (12, 16)
    """
    _check_kind(kind)
    dilution = tuple(dilution)
    for d in dilution:
        if d not in DILUTIONS:
            raise ParameterError(f"dilution {d!r} is unknown; {nearest(str(d), DILUTIONS)}")
    if t is not None:
        t = _site(geometry, (t, 0, 0, 0))[0]
        if "time" in dilution:
            raise ParameterError("a source on one time slice cannot be diluted in time; leave out t or 'time'.")
    rng.uniform(seed, "spinor", 1, 1)  # refuse a bad seed now, not at the first column
    if isinstance(sample, bool) or not isinstance(sample, (int, np.integer)) or sample < 0:
        raise ParameterError(f"sample must be a whole number of at least 0, got {sample!r}.")
    by_time, by_spin, by_color = (d in dilution for d in DILUTIONS)
    counts = (geometry.T if by_time else 1, 4 if by_spin else 1, geometry.nc if by_color else 1)

    def slices(i, first, last):
        block, spin, color = np.unravel_index(i, counts)
        slice_ = block if by_time else t
        shape = (1 if by_spin else 4, 1 if by_color else geometry.nc)
        out = _zeros(geometry, last - first)
        begin, end = (first, last) if slice_ is None else (max(first, int(slice_)), min(last, int(slice_) + 1))
        if begin >= end:
            return out
        at = (
            slice(begin - first, end - first), slice(None), slice(None), slice(None),
            slice(spin, spin + 1) if by_spin else slice(None), slice(color, color + 1) if by_color else slice(None),
        )  # fmt: skip
        sites = range(begin * geometry.spatial_volume, end * geometry.spatial_volume)
        out[at] = noise_numbers(kind, seed, sample, sites, shape[0] * shape[1]).reshape(
            end - begin, *geometry.shape[1:], *shape
        )
        return out

    parameters: dict[str, Any] = {
        "noise": kind, "seed": int(seed), "sample": int(sample),
        "dilution": [d for d in DILUTIONS if d in dilution],
    }  # fmt: skip
    if t is not None:
        parameters |= {"position": [t, 0, 0, 0], "time": t}
    linked = set(dilution) == {"spin", "color"}
    n_columns = int(np.prod(counts))
    return _by_slices(geometry, "noise", parameters, slices, n_columns=n_columns, makes_propagator=linked)


def smeared_source(source: Source, U: GaugeField, width: float, steps: int) -> Source:
    r"""Every column of a source smeared by :func:`gaussian_smear`, :math:`(1+\frac{w^2}{4n}\Delta)^n`, when it is asked for.

    The links are those of ``U`` at the time of the call of :meth:`Source.columns`: do not change them in between.

    Raises
    ------
    ParameterError, FieldShapeError
        For a bad width or number of steps, or links of another lattice.
    """
    width, steps = check_smearing(width, steps)
    same_lattice("smeared_source", source.geometry, U.geometry)
    parameters = dict(source.parameters)
    parameters["smearing"] = [*parameters.get("smearing", []), smearing_record(U, width, steps)]

    def build(i):
        return smear_spinors(source.build(i), U, width, steps)

    def slices(i, first, last):  # smearing stays inside a time slice
        return smear_spinors(source.slab(first, last).build(i), U, width, steps, first)

    return attrs.evolve(source, parameters=parameters, build=build, build_slab=slices)


def sequential_source(
    propagator: Propagator, gamma_insertion: int | np.ndarray, t_sink: int, momentum: Sequence[int] = (0, 0, 0)
) -> Source:
    r"""Sequential source: column j is :math:`\delta_{x_0,t_\mathrm{snk}}\,e^{i\vec p\cdot(\vec x-\vec x_0)}\,\Gamma\,S(x)_{\cdot j}`.

    Solving for it gives :math:`\sum_{\vec x} M^{-1}(y,x)\,\Gamma e^{i\vec p(\vec x-\vec x_0)}S(x,x_0)`, a quark line that
    passes the operator Gamma at ``t_sink``. Columns keep the spin and colour of the original source, in its basis
    DeGrand-Rossi.

    Parameters
    ----------
    propagator
        S; its ``source["position"]`` is x_0 (the origin, where it has none).
    gamma_insertion
        Chroma's number 0..15 of the structure, or a 4x4 matrix in DeGrand-Rossi.
    t_sink
        Time slice, absolute.
    momentum
        (n_x, n_y, n_z), whole numbers.

    Raises
    ------
    ParameterError
        If the slice lies outside the lattice, or Gamma or the momentum make no sense.
    """
    g = propagator.geometry
    t = _site(g, (t_sink, 0, 0, 0))[0]
    n = whole_momentum(momentum)
    matrix = spin_matrix(gamma_insertion)
    x0 = source_position(propagator) or (0, 0, 0, 0)
    back = basis_rotation(propagator.basis, "degrand-rossi")

    def build(i):
        spin, color = divmod(i, g.nc)
        # Both spin indices go to DeGrand-Rossi: S_DR = R S R^dagger, of which one column is needed.
        psi = np.einsum("ij,zyxjka,k->zyxia", back, propagator.array[t][..., color], back.conj()[spin], optimize=True)
        out = _zeros(g)
        out[t] = np.einsum("ij,zyxja,zyx->zyxia", matrix, psi, momentum_phase(g, n, x0), optimize=True)
        return out

    first = {k: v for k, v in propagator.source.items() if k != "n_columns"}
    parameters = {
        "sink_time": t,
        "insertion": int(gamma_insertion) if np.ndim(gamma_insertion) == 0 else matrix.view(float).ravel().tolist(),
        "momentum": list(n),
        "first_source": first,
    }
    position = source_position(propagator)
    if position is not None:
        parameters |= {"position": list(position), "time": position[0]}
    return Source(g, "sequential", parameters, build, n_columns=4 * g.nc)


# -- single spinors (ColorSpinorField.z2, .z4, .wall, .momentum) -------------------------------------------------------


def z2_spinor(geometry: LatticeGeometry, seed: int, n_rhs: int | None = None, precision="double") -> ColorSpinorField:
    """Every component +1 or -1 with probability 1/2. Column k of a batch is sample k of the seed."""
    return _noise_spinor("z2", geometry, seed, n_rhs, precision)


def z4_spinor(geometry: LatticeGeometry, seed: int, n_rhs: int | None = None, precision="double") -> ColorSpinorField:
    """Every component 1, i, -1 or -i with probability 1/4. Column k of a batch is sample k of the seed."""
    return _noise_spinor("z4", geometry, seed, n_rhs, precision)


def wall_spinor(
    geometry: LatticeGeometry, t: int, spin: int = 0, color: int = 0, momentum=(0, 0, 0), precision="double"
) -> ColorSpinorField:
    """One spin and colour of :func:`wall_source`."""
    return wall_source(geometry, t, momentum).column(_component(geometry, spin, color), precision)


def momentum_spinor(
    geometry: LatticeGeometry, momentum, spin: int = 0, color: int = 0, frequency: float = 0.0, precision="double"
) -> ColorSpinorField:
    """One spin and colour of :func:`momentum_source` on the whole lattice."""
    source = momentum_source(geometry, momentum, frequency=frequency)
    return source.column(_component(geometry, spin, color), precision)


def noise_numbers(kind: str, seed: int, sample: int, sites: range, count: int) -> np.ndarray:
    """Noise of the consecutive global sites, ``(len(sites), count)`` complex128."""
    _check_kind(kind)
    if kind == "gaussian":
        n = rng.normal(seed, rng.STREAMS["spinor"] + (sample << _SAMPLE_SHIFT), sites, 2 * count)
        return (n[:, 0::2] + 1j * n[:, 1::2]) * np.sqrt(0.5)
    u = rng.uniform(seed, rng.STREAMS[kind] + (sample << _SAMPLE_SHIFT), sites, count)
    values = np.array([1, -1]) if kind == "z2" else np.array([1, 1j, -1, -1j])
    return values.astype(complex)[(u * len(values)).astype(np.int64)]


# -- what contractions share -------------------------------------------------------------------------------------------


def spin_matrix(structure) -> np.ndarray:
    """A 4x4 spin matrix in DeGrand-Rossi from Chroma's number 0..15 or from the matrix itself."""
    if isinstance(structure, (int, np.integer)) and not isinstance(structure, bool):
        return gamma(int(structure))
    m = np.asarray(structure)
    if m.shape != (4, 4) or m.dtype.kind not in "cfi":
        raise ParameterError(f"a gamma structure is a number 0..15 or a 4x4 matrix, got {structure!r}.")
    return np.ascontiguousarray(m, dtype=complex)


def whole_momentum(momentum) -> tuple[int, int, int]:
    """(n_x, n_y, n_z) as Python integers, or ParameterError."""
    try:
        n = tuple(int(v) for v in momentum)
        ok = len(n) == 3 and all(float(v) == w for v, w in zip(momentum, n))
    except (TypeError, ValueError, OverflowError):
        ok = False
    if not ok:
        raise ParameterError(
            f"a momentum is three whole numbers (n_x, n_y, n_z) in units of 2 pi / L, got {momentum!r}."
        )
    return n


def momentum_phase(geometry: LatticeGeometry, momentum, position=(0, 0, 0, 0)) -> np.ndarray:
    r""":math:`e^{+i\vec p\cdot(\vec x-\vec x_0)}` of one time slice, ``(Z, Y, X)``; momentum (n_x, n_y, n_z), position
    (t, z, y, x)."""
    nx, ny, nz = whole_momentum(momentum)
    out = np.ones(1, complex)
    for n, length, x0 in zip((nz, ny, nx), geometry.shape[1:], position[1:]):
        wave = np.exp(2j * np.pi * ((n * (np.arange(length) - x0)) % length) / length)
        out = out[..., None] * wave
    return out[0]


def source_position(propagator: Propagator) -> tuple[int, int, int, int] | None:
    """(t, z, y, x) of the source, None if it has no place (noise or a plane wave on the whole lattice)."""
    position = propagator.source.get("position")
    if position is None:
        return None
    return tuple(int(v) for v in position)


def _noise_spinor(kind, geometry, seed, n_rhs, precision):
    if n_rhs is not None and (isinstance(n_rhs, bool) or not isinstance(n_rhs, (int, np.integer)) or n_rhs < 1):
        raise ParameterError(f"n_rhs must be a whole number of at least 1, got {n_rhs!r}.")
    samples = range(1 if n_rhs is None else n_rhs)
    sites, count = range(geometry.volume), 4 * geometry.nc
    columns = [noise_numbers(kind, seed, k, sites, count).reshape(geometry.spinor_shape) for k in samples]
    return ColorSpinorField(geometry, columns[0] if n_rhs is None else np.stack(columns), precision)


def _zeros(geometry, slices: int | None = None):
    return np.zeros((geometry.T if slices is None else slices, *geometry.spinor_shape[1:]), complex)


def _by_slices(geometry, kind, parameters, slices, *, n_columns: int | None = None, **more) -> Source:
    """A source whose columns can be made some time slices at a time."""
    n_columns = 4 * geometry.nc if n_columns is None else n_columns
    return Source(
        geometry, kind, parameters, lambda i: slices(i, 0, geometry.T), n_columns=n_columns, build_slab=slices, **more
    )  # fmt: skip


def _component(geometry, spin, color) -> int:
    for name, value, limit in (("spin", spin, 4), ("color", color, geometry.nc)):
        if value not in range(limit):
            raise ParameterError(f"{name}={value!r} lies outside 0..{limit - 1} on {geometry}.")
    return spin * geometry.nc + color


def _site(geometry, site) -> tuple[int, int, int, int]:
    for name, value, limit in zip("tzyx", site, geometry.shape):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < limit:
            raise ParameterError(f"{name}={value!r} lies outside 0..{limit - 1} on {geometry}.")
    return tuple(int(v) for v in site)


def _check_kind(kind) -> None:
    if kind not in NOISE_KINDS:
        raise ParameterError(f"noise {kind!r} is unknown; {nearest(str(kind), NOISE_KINDS)}")


def _plain(value):
    """A deep copy of nested dictionaries and lists."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


__all__ = [
    "Source", "momentum_source", "momentum_spinor", "noise_source", "point_source", "sequential_source",
    "smeared_source", "wall_source", "wall_spinor", "z2_spinor", "z4_spinor",
]  # fmt: skip

r"""Host fields in canonical order: gauge links, spinors and propagators.

Links are ``(T, Z, Y, X, 4, Nc, Nc)``, spinors ``([n_rhs,] T, Z, Y, X, Ns, Nc)``, complex, C order, directions t, z,
y, x. ``double`` and ``single`` fields store complex numbers. ``half`` and ``bf16`` fields store real and imaginary
parts on a trailing axis of 2, each rounded to nearest even; their ``.array`` is a complex64 copy of what is stored.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from . import random as rng
from .arrays import from_numpy, is_complex, library_of, to_numpy
from .errors import FieldShapeError, FieldTypeError, GeometryError, NonUnitaryLinksError, ParameterError
from .gamma import basis_rotation
from .geometry import FULL, LatticeGeometry
from .precision import Precision, as_precision


def to_storage(array: np.ndarray, precision: Precision) -> np.ndarray:
    """Complex numbers as a precision stores them: a complex array, or reals with a trailing axis of 2 (re, im)."""
    if not precision.is_split:
        return np.ascontiguousarray(array, dtype=precision.complex_dtype)
    pairs = np.stack([array.real, array.imag], axis=-1)
    return pairs.astype(np.float32).astype(precision.storage_dtype)


def from_storage(storage: np.ndarray, precision: Precision) -> np.ndarray:
    """The complex numbers that :func:`to_storage` stored; the stored array itself where it is complex already."""
    if not precision.is_split:
        return storage
    wide = storage.astype(np.float32)
    return np.ascontiguousarray(wide).view(np.complex64)[..., 0]


def _lattice(geometry: Any) -> LatticeGeometry:
    if not isinstance(geometry, LatticeGeometry):
        raise GeometryError(f"a field needs a LatticeGeometry first, got {type(geometry).__name__}.")
    return geometry


def _complex_input(array: Any, what: str) -> np.ndarray:
    a = to_numpy(array)
    if a.dtype.kind != "c":
        raise FieldTypeError(
            f"{what} must be complex (complex128 or complex64), got {a.dtype}; convert with .astype('complex128')."
        )
    return a


class _HostField:
    """Storage and conversion shared by gauge and spinor fields. Not a public base: fields are final."""

    geometry: LatticeGeometry
    precision: Precision
    storage: np.ndarray

    __array_priority__ = 1000  # numpy scalars leave "2.0 * field" to us, or it would come back as a bare array

    @property
    def array(self) -> np.ndarray:
        """Complex numbers in canonical order: the storage itself, or a complex64 copy for 16-bit fields."""
        return from_storage(self.storage, self.precision)

    @property
    def tensor(self) -> Any:
        """A torch tensor of the field that shares its memory (double and single; a copy for 16-bit fields)."""
        return from_numpy(self.array, "torch")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the complex array."""
        return self.storage.shape[:-1] if self.precision.is_split else self.storage.shape

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return self.storage.nbytes

    def numpy(self) -> np.ndarray:
        """Same as ``.array``."""
        return self.array

    def __array__(self, dtype=None, copy=None):
        a = self.array
        return a if dtype is None else a.astype(dtype)

    def to(self, precision=None, *, dtype=None):
        """A new field of another precision: a name, a record, or a dtype of NumPy or torch (``dtype=`` also works).

        Examples
        --------
        >>> GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2)).to("single").array.dtype
        dtype('complex64')
        """
        if (precision is None) == (dtype is None):
            raise ParameterError("to() takes one of precision= and dtype=.")
        return self._like(self.array, as_precision(precision if precision is not None else dtype))

    def copy(self):
        """A deep copy."""
        return self._like(self.array.copy(), self.precision)


class GaugeField(_HostField):
    r"""SU(Nc) links :math:`U_\mu(x)`, dimensionless.

    Parameters
    ----------
    geometry
        The lattice.
    array
        Complex links ``(T, Z, Y, X, 4, Nc, Nc)``, directions t, z, y, x. Kept without a copy where its type fits.
    precision
        Defaults to that of the array.

    Raises
    ------
    FieldShapeError, FieldTypeError
        If the array does not fit the lattice, or is not complex.

    Notes
    -----
    NaN and links off SU(Nc) are accepted here and refused where they matter: when read from a file and at bind.
    """

    def __init__(self, geometry: LatticeGeometry, array, precision=None):
        a = _complex_input(array, "links")
        _lattice(geometry).check_links(a.shape)
        self.geometry = geometry
        self.precision = as_precision(precision if precision is not None else a.dtype)
        self.storage = to_storage(a, self.precision)
        self.origin: dict[str, Any] = {}
        """Where the field came from: file, format, checksums, seed, ... (kept with results)."""

    def _like(self, array, precision) -> GaugeField:
        out = GaugeField(self.geometry, array, precision)
        out.origin = dict(self.origin)
        return out

    # -- made ---------------------------------------------------------------------------------------------------------

    @classmethod
    def cold(cls, geometry: LatticeGeometry, precision="double") -> GaugeField:
        """The unit field, U = 1."""
        p = as_precision(precision)
        a = np.empty(_lattice(geometry).gauge_shape, p.complex_dtype)
        a[...] = np.eye(geometry.nc)
        return cls(geometry, a, p)

    @classmethod
    def random(cls, geometry: LatticeGeometry, seed: int, precision="double") -> GaugeField:
        r"""Every link Haar-distributed on SU(Nc), independently.

        Nc - 1 complex Gaussian rows are orthonormalised by Gram-Schmidt; the last row is the conjugate of their
        generalised cross product, so det U = 1 to rounding and the measure is Haar [1]_.

        Parameters
        ----------
        geometry
            The lattice.
        seed
            In [0, 2^64). A link depends on the seed and its global site only.
        precision
            Precision of the result; the numbers are made in double and rounded.

        References
        ----------
        .. [1] F. Mezzadri, Notices AMS 54 (2007) 592, arXiv:math-ph/0609050.

        Examples
        --------
        >>> U = GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=2), seed=1)
        >>> U.unitarity() < 1e-13
        True
        """
        out = cls(geometry, haar_links(geometry, seed, range(_lattice(geometry).volume)), precision)
        out.origin = {"kind": "random (Haar)", "seed": seed}
        return out

    @classmethod
    def read(cls, path, *, check: str = "error", **options) -> GaugeField:
        """Read a configuration; the format is found from the content. See :func:`lqcd_core.io.read_gauge`."""
        from . import io  # imported on use: files are not part of the core's start-up

        return io.read_gauge(path, check=check, **options)

    def write(self, path, format: str | None = None, **options):
        """Write a configuration (``nersc``, ``ildg``, ...; by suffix if None). See :func:`lqcd_core.io.write_gauge`."""
        from . import io

        return io.write_gauge(self, path, format=format, **options)

    # -- asked --------------------------------------------------------------------------------------------------------

    def unitarity(self) -> float:
        r"""The larger of :math:`\max|U^\dagger U-1|` (entry by entry) and :math:`\max|\det U-1|`; NaN if any link is."""
        return max_unitarity_violation(self.array)

    def digest(self) -> str:
        """blake2b of the links, for comparing fields and keeping provenance."""
        from .backend import digest_of

        return digest_of(self.storage)

    def check_unitary(self, tolerance: float | None = None) -> None:
        """Raise :class:`NonUnitaryLinksError` if links are not finite or not in SU(Nc).

        The default tolerance is 1e-5 for double (it may hold a 32-bit file), 2e-5 for single, 1e-2 for half and 1e-1 for bf16 storage.
        """
        limits = {"double": 1e-5, "single": 2e-5, "half": 1e-2, "bf16": 1e-1}
        limit = limits[self.precision.name] if tolerance is None else tolerance
        found = self.unitarity()
        if not np.isfinite(found):
            bad = int(np.sum(~np.isfinite(self.array).all(axis=(-1, -2))))
            raise NonUnitaryLinksError(f"{bad} links are not finite; the configuration is damaged.")
        if found > limit:
            raise NonUnitaryLinksError(
                f"links are off SU({self.geometry.nc}) by {found:.3g} (allowed {limit:.3g}); "
                "call U.unitarize(), or pass check_links=False to accept them as they are."
            )

    # -- changed ------------------------------------------------------------------------------------------------------

    def unitarize(self) -> GaugeField:
        r"""A new field projected onto SU(Nc): the closest unitary matrix :math:`U(U^\dagger U)^{-1/2}`, its phase removed.

        Raises
        ------
        NonUnitaryLinksError
            If a link is not finite or singular.
        """
        return self._like(project_su(self.array.astype(np.complex128)), self.precision)

    def gauge_transform(self, g: np.ndarray) -> GaugeField:
        r"""A new field :math:`g(x)\,U_\mu(x)\,g^\dagger(x+\hat\mu)`; g has shape ``(T, Z, Y, X, Nc, Nc)``."""
        g = _gauge_rotation(g, self.geometry)
        out = np.empty(self.geometry.gauge_shape, np.result_type(self.array, np.complex64))
        for mu in range(4):
            out[..., mu, :, :] = g @ self.array[..., mu, :, :] @ np.roll(g, -1, axis=mu).conj().swapaxes(-1, -2)
        return self._like(out, self.precision)

    def __repr__(self) -> str:
        return f"GaugeField({self.geometry.shape}, nc={self.geometry.nc}, {self.precision})"


class ColorSpinorField(_HostField):
    r"""One spinor or a batch of them.

    Parameters
    ----------
    geometry
        The lattice.
    array
        Complex ``([n_rhs,] T, Z, Y, X, Ns, Nc)``, or ``X/2`` sites per row for a field on one parity.
    precision
        Defaults to that of the array.
    parity
        None (full lattice), 0 (even) or 1 (odd).

    Raises
    ------
    FieldShapeError, FieldTypeError
        If the array does not fit, is an empty batch, or is not complex.
    """

    def __init__(self, geometry: LatticeGeometry, array, precision=None, parity=FULL):
        a = _complex_input(array, "a spinor")
        _lattice(geometry)
        if parity is not FULL:
            if parity not in (0, 1):
                raise ParameterError(f"parity must be None (full lattice), 0 (even) or 1 (odd), got {parity!r}.")
            geometry._need_parity()
        self.n_rhs = geometry.check_spinor(a.shape, parity)
        self.geometry, self.parity = geometry, parity
        self.precision = as_precision(precision if precision is not None else a.dtype)
        self.storage = to_storage(a, self.precision)

    def _like(self, array, precision=None) -> ColorSpinorField:
        return ColorSpinorField(self.geometry, array, precision or self.precision, self.parity)

    @property
    def batch(self) -> np.ndarray:
        """The array with its batch axis always present, ``(n, T, Z, Y, X, Ns, Nc)``."""
        a = self.array
        return a if self.n_rhs is not None else a[None]

    # -- made ---------------------------------------------------------------------------------------------------------

    @classmethod
    def zeros(cls, geometry: LatticeGeometry, n_rhs: int | None = None, precision="double") -> ColorSpinorField:
        """The zero spinor (or a batch of ``n_rhs``)."""
        p = as_precision(precision)
        return cls(geometry, np.zeros(_batched(_lattice(geometry).spinor_shape, n_rhs), p.complex_dtype), p)

    @classmethod
    def point_source(
        cls, geometry: LatticeGeometry, t=0, z=0, y=0, x=0, spin=0, color=0, precision="double"
    ) -> ColorSpinorField:
        r"""One at one site, spin and colour: :math:`\delta_{x,x_0}\delta_{\alpha,s}\delta_{a,c}`.

        Raises
        ------
        ParameterError
            If the site, spin or colour lies outside the lattice.
        """
        _lattice(geometry)
        limits = {"t": (t, geometry.T), "z": (z, geometry.Z), "y": (y, geometry.Y), "x": (x, geometry.X),
                  "spin": (spin, 4), "color": (color, geometry.nc)}  # fmt: skip
        for name, (value, limit) in limits.items():
            if value not in range(limit):
                raise ParameterError(f"{name}={value!r} lies outside 0..{limit - 1} on {geometry}.")
        out = cls.zeros(geometry, precision=precision)
        a = out.array
        a[t, z, y, x, spin, color] = 1
        return out._like(a)

    @classmethod
    def gaussian(
        cls, geometry: LatticeGeometry, seed: int, n_rhs: int | None = None, precision="double"
    ) -> ColorSpinorField:
        r"""Gaussian noise: real and imaginary parts independent N(0, 1/2), so :math:`\langle|\psi_a|^2\rangle = 1`.

        Column k of a batch is the field of the same seed with stream k, whatever the batch size. (For Gaussian
        *smearing* see :func:`lqcd_core.hadrons.smearing.gaussian_smear`.)
        """
        per_site = 4 * _lattice(geometry).nc
        _batched((), n_rhs)  # an empty batch is refused before numpy complains about it

        def column(k):
            n = rng.normal(seed, rng.STREAMS["spinor"] + (k << 16), geometry.volume, 2 * per_site)
            c = (n[:, 0::2] + 1j * n[:, 1::2]) * np.sqrt(0.5)
            return c.reshape(geometry.spinor_shape)

        a = column(0) if n_rhs is None else np.stack([column(k) for k in range(n_rhs)])
        return cls(geometry, a, precision)

    @classmethod
    def z2(cls, geometry: LatticeGeometry, seed: int, n_rhs: int | None = None, precision="double") -> ColorSpinorField:
        """Noise +1 or -1 in every component; see :func:`lqcd_core.hadrons.sources.z2_spinor`."""
        from .hadrons.sources import z2_spinor  # sources stand on fields, so they are imported on use

        return z2_spinor(geometry, seed, n_rhs, precision)

    @classmethod
    def z4(cls, geometry: LatticeGeometry, seed: int, n_rhs: int | None = None, precision="double") -> ColorSpinorField:
        """Noise 1, i, -1 or -i in every component; see :func:`lqcd_core.hadrons.sources.z4_spinor`."""
        from .hadrons.sources import z4_spinor

        return z4_spinor(geometry, seed, n_rhs, precision)

    @classmethod
    def wall(
        cls, geometry: LatticeGeometry, t: int, spin=0, color=0, momentum=(0, 0, 0), precision="double"
    ) -> ColorSpinorField:
        """A plane wave (n_x, n_y, n_z) on one time slice; see :func:`lqcd_core.hadrons.sources.wall_source`."""
        from .hadrons.sources import wall_spinor

        return wall_spinor(geometry, t, spin, color, momentum, precision)

    @classmethod
    def momentum(
        cls, geometry: LatticeGeometry, momentum, spin=0, color=0, frequency=0.0, precision="double"
    ) -> ColorSpinorField:
        """A plane wave on the whole lattice; see :func:`lqcd_core.hadrons.sources.momentum_source`."""
        from .hadrons.sources import momentum_spinor

        return momentum_spinor(geometry, momentum, spin, color, frequency, precision)

    # -- arithmetic ---------------------------------------------------------------------------------------------------

    def _binary(self, other, op, symbol):
        if isinstance(other, ColorSpinorField):
            if (other.geometry, other.parity, other.shape) != (self.geometry, self.parity, self.shape):
                raise FieldShapeError(
                    f"cannot {symbol} spinors of shapes {self.shape} and {other.shape} "
                    f"(parities {self.parity} and {other.parity}); both must match."
                )
            if other.precision != self.precision:
                raise FieldTypeError(
                    f"cannot {symbol} {self.precision} and {other.precision} spinors; convert one with .to(...)."
                )
            return self._like(op(self.array, other.array))
        # NotImplemented would let numpy convert the field and broadcast the other operand against it
        raise FieldTypeError(
            f"cannot {symbol} a spinor and {type(other).__name__}; wrap an array in ColorSpinorField(geometry, array)."
        )

    def __add__(self, other):
        return self._binary(other, np.add, "add")

    def __sub__(self, other):
        return self._binary(other, np.subtract, "subtract")

    def __radd__(self, other):
        return self._binary(other, np.add, "add")  # an array on the left: refused in the same words

    def __rsub__(self, other):
        return self._binary(other, np.subtract, "subtract")

    def __mul__(self, scalar):
        return self._like(self.array * self.array.dtype.type(_scalar(scalar)))

    __rmul__ = __mul__

    def __truediv__(self, scalar):
        return self * (1.0 / _scalar(scalar))

    def __neg__(self):
        return self * -1

    def inner(self, other: ColorSpinorField):
        r""":math:`\langle\psi,\phi\rangle=\sum\psi^*\phi`, in double; one number, or one per column of a batch."""
        if not isinstance(other, ColorSpinorField):
            raise FieldTypeError(
                f"inner product of a spinor and {type(other).__name__}; wrap an array in ColorSpinorField(geometry, array)."
            )
        a, b = self.batch, other.batch
        if (self.geometry, self.parity, a.shape) != (other.geometry, other.parity, b.shape):
            raise FieldShapeError(
                f"inner product of spinors of shapes {self.shape} and {other.shape} "
                f"(parities {self.parity} and {other.parity}); both must match."
            )
        out = np.array([_double_vdot(x, y) for x, y in zip(a, b)])
        return complex(out[0]) if self.n_rhs is None else out

    def norm2(self):
        r""":math:`\sum|\psi|^2`, in double; one number, or one per column of a batch."""
        out = np.real(self.inner(self))
        return float(out) if self.n_rhs is None else out

    def norm(self):
        r""":math:`\sqrt{\sum|\psi|^2}`."""
        out = np.sqrt(self.norm2())
        return float(out) if self.n_rhs is None else out

    def gauge_transform(self, g: np.ndarray) -> ColorSpinorField:
        r"""A new field :math:`g(x)\psi(x)`; g has shape ``(T, Z, Y, X, Nc, Nc)``."""
        g = _gauge_rotation(g, self.geometry)
        if self.parity is not FULL:
            g = self.geometry.split_parity(g, self.parity)
        return self._like(np.einsum("...ab,...sb->...sa", g, self.array))

    def __repr__(self) -> str:
        where = {FULL: "", 0: ", even", 1: ", odd"}[self.parity]
        batch = "" if self.n_rhs is None else f", n_rhs={self.n_rhs}"
        return f"ColorSpinorField({self.geometry.shape}, nc={self.geometry.nc}, {self.precision}{batch}{where})"


@attrs.define(eq=False)
class Propagator:
    r"""A quark propagator :math:`S(x)_{\alpha a,\beta b}=\langle\psi_{\alpha a}(x)\,\bar\psi_{\beta b}(\text{source})\rangle`.

    Columns of :math:`M^{-1}`: ``array[..., alpha, beta, a, b]`` is component (alpha, a) of the solution whose source
    has spin beta and colour b. Mass normalisation, :math:`M=(4+m)-\dots`.
    """

    geometry: LatticeGeometry
    """The lattice."""
    array: np.ndarray
    """``(T, Z, Y, X, Ns, Ns, Nc, Nc)``: sink spin, source spin, sink colour, source colour; lattice units."""
    basis: str = "degrand-rossi"
    """Gamma basis of both spin indices."""
    source: dict[str, Any] = attrs.field(factory=dict)
    """What the source was: kind, position, momentum, smearing."""
    provenance: dict[str, Any] = attrs.field(factory=dict)
    """Operator, boundary, solver, backend, versions, configuration checksum."""

    INDEX_ORDER = "T Z Y X sink_spin source_spin sink_color source_color"

    def __attrs_post_init__(self):
        g = self.geometry
        want = (*g.shape, 4, 4, g.nc, g.nc)
        if tuple(self.array.shape) != want:
            raise FieldShapeError(f"propagator has shape {tuple(self.array.shape)}, but {g} needs {want}.")
        if not is_complex(self.array):
            raise FieldTypeError(f"a propagator must be complex, got {self.array.dtype}.")

    @classmethod
    def from_columns(cls, geometry, columns: np.ndarray, **info) -> Propagator:
        """From solutions ``(Ns*Nc, T, Z, Y, X, Ns, Nc)``, column 4... = source spin * Nc + source colour."""
        nc = geometry.nc
        if np.shape(columns) != (4 * nc, *geometry.spinor_shape):
            raise FieldShapeError(
                f"a propagator on {geometry} needs {4 * nc} columns, shape {(4 * nc, *geometry.spinor_shape)}, "
                f"got {np.shape(columns)}."
            )
        c = np.reshape(columns, (4, nc, *geometry.shape, 4, nc))
        return cls(geometry, np.ascontiguousarray(np.moveaxis(c, (0, 1), (5, 7))), **info)

    def columns(self) -> np.ndarray:
        """The solutions as a batch ``(Ns*Nc, T, Z, Y, X, Ns, Nc)``, source spin slow, source colour fast."""
        a = np.moveaxis(self.array, (5, 7), (0, 1))
        return np.ascontiguousarray(a).reshape(4 * self.geometry.nc, *self.geometry.spinor_shape)

    def to_basis(self, basis: str) -> Propagator:
        """The same propagator with both spin indices in another gamma basis, S -> R S R^dagger."""
        r = basis_rotation(self.basis, basis)
        a = np.einsum("ij,...jkab,lk->...ilab", r, self.array, r.conj(), optimize=True)
        return attrs.evolve(self, array=np.ascontiguousarray(a), basis=basis)

    def __repr__(self) -> str:
        return f"Propagator({self.geometry.shape}, nc={self.geometry.nc}, basis={self.basis!r})"


# --------------------------------------------------------------------------------------------------------------------


def _scalar(value):
    if not isinstance(value, (int, float, complex, np.number)):
        raise FieldTypeError(f"a spinor is multiplied by one number, not by {type(value).__name__}.")
    return value


def _batched(shape, n_rhs):
    if n_rhs is None:
        return shape
    if isinstance(n_rhs, bool) or not isinstance(n_rhs, (int, np.integer)) or n_rhs < 1:
        raise ParameterError(f"n_rhs must be a whole number of at least 1, got {n_rhs!r}.")
    return (n_rhs, *shape)


def _double_vdot(x: np.ndarray, y: np.ndarray) -> complex:
    """sum conj(x) y with double accumulation, slice by slice so that no double copy of a field is made."""
    return sum(np.vdot(a.astype(np.complex128), b.astype(np.complex128)) for a, b in zip(x, y))


def _gauge_rotation(g, geometry) -> np.ndarray:
    g = np.asarray(g)
    want = (*geometry.shape, geometry.nc, geometry.nc)
    if g.shape != want:
        raise FieldShapeError(f"a gauge rotation has shape {g.shape}, but {geometry} needs {want}.")
    return g


def random_gauge_rotation(geometry: LatticeGeometry, seed: int) -> np.ndarray:
    """Haar-distributed g(x), shape ``(T, Z, Y, X, Nc, Nc)``."""
    return haar(geometry.nc, seed, "transformation", range(geometry.volume), 1).reshape(
        *geometry.shape, geometry.nc, geometry.nc
    )


def haar_links(geometry: LatticeGeometry, seed: int, sites: range) -> np.ndarray:
    """Haar links of consecutive global sites; whole time slices come back as ``(slices, Z, Y, X, 4, Nc, Nc)``."""
    nc = geometry.nc
    u = haar(nc, seed, "gauge", sites, 4)
    return u.reshape(-1, *geometry.shape[1:], 4, nc, nc)


def haar(nc: int, seed: int, stream, sites: range, per_site: int) -> np.ndarray:
    """Haar-distributed SU(nc) matrices, shape ``(len(sites), per_site, nc, nc)``."""
    n = rng.normal(seed, stream, sites, per_site * (nc - 1) * nc * 2)
    rows = (n[:, 0::2] + 1j * n[:, 1::2]).reshape(len(sites), per_site, nc - 1, nc)
    return complete_su(rows)


def complete_su(rows: np.ndarray) -> np.ndarray:
    """SU(Nc) matrices from Nc - 1 independent rows ``(..., Nc-1, Nc)``: Gram-Schmidt, then the row that makes det 1."""
    nc = rows.shape[-1]
    out = np.empty((*rows.shape[:-2], nc, nc), rows.dtype)
    for i in range(nc - 1):
        v = rows[..., i, :].copy()
        for _ in range(2):  # twice is enough: the second pass removes what rounding left
            for j in range(i):
                v -= np.sum(out[..., j, :].conj() * v, axis=-1, keepdims=True) * out[..., j, :]
        out[..., i, :] = v / np.linalg.norm(v, axis=-1, keepdims=True)
    out[..., nc - 1, :] = last_row(out[..., : nc - 1, :])
    return out


def last_row(rows: np.ndarray) -> np.ndarray:
    """The row that makes det = 1: conjugate cofactors of Nc - 1 orthonormal rows (Nc = 3: conj(row 0 x row 1))."""
    nc = rows.shape[-1]
    if nc == 3:
        return np.cross(rows[..., 0, :], rows[..., 1, :]).conj()
    cofactors = []
    for k in range(nc):
        minor = np.delete(rows, k, axis=-1)
        cofactors.append((-1) ** (nc - 1 + k) * np.linalg.det(minor))
    return np.stack(cofactors, axis=-1).conj()


def max_unitarity_violation(u: np.ndarray) -> float:
    """max over entries of |U^dagger U - 1| and |det U - 1|, in double, by time slices; NaN if any link is not finite."""
    worst = 0.0
    eye = np.eye(u.shape[-1])
    for block in u.reshape(u.shape[0], -1, *u.shape[-2:]):
        b = block.astype(np.complex128)
        if not np.isfinite(b).all():
            return float("nan")
        gram = b.conj().swapaxes(-1, -2) @ b
        worst = max(worst, float(np.abs(gram - eye).max()), float(np.abs(determinant(b) - 1).max()))
    return worst


def determinant(u: np.ndarray) -> np.ndarray:
    """Determinants of a stack of matrices; 3x3 ones by cofactors, five times faster than an LU factorisation each."""
    if u.shape[-1] != 3:
        return np.linalg.det(u)
    a, b, c = (u[..., i, :] for i in range(3))
    return sum(
        a[..., i] * (b[..., j] * c[..., k] - b[..., k] * c[..., j]) for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1))
    )


def project_su(u: np.ndarray) -> np.ndarray:
    """The nearest unitary matrix (polar decomposition by SVD), its determinant's phase divided out evenly."""
    from .selection import gauge_kernel  # choosing stands on backends, and those on this module's storage

    kernel = gauge_kernel("unitarize", u.shape[-1])
    if kernel is not None:
        return kernel(u)
    if not np.isfinite(u).all():
        raise NonUnitaryLinksError("cannot unitarize: some links are not finite.")
    w, s, vh = np.linalg.svd(u)
    if float(s.min(initial=np.inf)) < 1e-8:
        raise NonUnitaryLinksError("cannot unitarize: some links are singular.")
    unitary = w @ vh
    det = np.linalg.det(unitary)
    return unitary * np.exp(-1j * np.angle(det) / u.shape[-1])[..., None, None]


def same_lattice(what: str, geometry: LatticeGeometry, other: LatticeGeometry) -> None:
    """Raise :class:`FieldShapeError` if two fields live on different lattices."""
    if geometry != other:
        raise FieldShapeError(f"{what}: one field lives on {geometry}, the other on {other}.")


__all__ = ["ColorSpinorField", "GaugeField", "Propagator", "haar", "library_of", "random_gauge_rotation"]

r"""Parameter records under the names of lqcd-neuron, which took them from QUDA: validated, and really used.

A :class:`GaugeParam` describes a configuration, reads and checks one; with a :class:`CloverParam` an
:class:`InvertParam` builds an operator and a solver and solves; an :class:`EigParam` finds the ends of a spectrum;
a :class:`NeuronCompileParam` is the options of a Neuron backend as a record.

Physics parameters (extents, mass or kappa, csw) have no default: in the ancestor those of mass and kappa disagreed.
"""

from __future__ import annotations

import enum
from typing import Any

import attrs
import numpy as np

from .errors import FieldShapeError, FieldTypeError, ParameterError, nearest
from .fields import GaugeField
from .geometry import LatticeGeometry
from .operators import BoundOperator, CloverWilsonDirac, DiracOperator, TwistedMassDirac, WilsonDirac
from .operators.clover import clover_coefficients
from .operators.definition import boundary_phases, mass_and_kappa, positive_number, real_number
from .precision import as_precision


class DslashType(enum.Enum):
    """Operators by the ancestor's names."""

    WILSON = "wilson"
    CLOVER_WILSON = "clover"
    TWISTED_MASS = "twisted_mass"


class InverterType(enum.Enum):
    """Solvers by the ancestor's names."""

    CG = "cg"
    BICGSTAB = "bicgstab"
    GCR = "gcr"


class TBoundary(enum.Enum):
    """Fermion boundary in time."""

    PERIODIC = 1
    ANTI_PERIODIC = -1


class LinkType(enum.Enum):
    """What links are checked against."""

    SU3 = "su3"
    GENERAL = "general"


class Precision(enum.Enum):
    """Precisions by the ancestor's names; everywhere else they are strings, see lqcd_core.precision."""

    FLOAT32 = "single"
    FLOAT64 = "double"
    BFLOAT16 = "bf16"
    FLOAT16 = "half"


def _choice(kind: type[enum.Enum]):
    """A converter from an enum member, its name in any case, or its value, to the member."""

    def convert(value):
        if isinstance(value, kind):
            return value
        for member in kind:
            if value == member.value or (isinstance(value, str) and value.lower() == member.name.lower()):
                return member
        known = [str(m.value) for m in kind]
        raise ParameterError(f"{kind.__name__} {value!r} is unknown; {nearest(str(value), known)}")

    return convert


def _precision_name(value) -> str:
    return as_precision(value.value if isinstance(value, Precision) else value).name


def _optional_precision(value) -> str | None:
    return None if value is None else _precision_name(value)


def _whole(least: int):
    def check(instance, attribute, value):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ParameterError(f"{attribute.name} must be a whole number of at least {least}, got {value!r}.")

    return check


def _flag(instance, attribute, value):
    if not isinstance(value, bool):
        raise ParameterError(f"{attribute.name} must be True or False, got {value!r}.")


def _clover(instance, attribute, value):
    if value is not None and not isinstance(value, CloverParam):
        raise ParameterError(f"clover must be a CloverParam(csw=...), got {value!r}.")


def _positive(instance, attribute, value):
    positive_number(attribute.name, value)


def _extents(value) -> tuple[int, int, int, int]:
    geometry = LatticeGeometry.from_shape(value)
    return geometry.shape


# -- gauge -------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class GaugeParam:
    """A gauge configuration as it should be: lattice, precision, boundary, anisotropy.

    Raises
    ------
    GeometryError, ParameterError
        For extents or values that make no sense.

    Examples
    --------
    >>> p = GaugeParam(lattice_size=(8, 4, 4, 4))
    >>> p.geometry.volume, p.boundary
    (512, (-1, 1, 1, 1))
    >>> p.check(p.random(seed=1))
    """

    lattice_size: tuple[int, int, int, int] = attrs.field(converter=_extents)
    """Extents (T, Z, Y, X), lattice units, at least 1. No default."""
    nc: int = attrs.field(default=3, validator=_whole(2))
    """Number of colours, at least 2."""
    precision: str = attrs.field(default="double", converter=_precision_name)
    """Precision of the links: ``double``, ``single``, ``half``, ``bf16``, or a dtype."""
    link_type: LinkType = attrs.field(default=LinkType.SU3, converter=_choice(LinkType))
    """``su3``: links must be in SU(nc), as they are read and bound; ``general``: they are taken as they are."""
    t_boundary: TBoundary = attrs.field(default=TBoundary.ANTI_PERIODIC, converter=_choice(TBoundary))
    """Fermion boundary in time, -1 (antiperiodic, the default) or 1. It is applied, which the ancestor did not do."""
    anisotropy: float = attrs.field(default=1.0, validator=_positive)
    """Bare anisotropy xi0 = a_s / a_t of the operators built with this record, positive."""

    @property
    def geometry(self) -> LatticeGeometry:
        """The lattice."""
        return LatticeGeometry.from_shape(self.lattice_size, nc=self.nc)

    @property
    def volume(self) -> int:
        """Number of sites."""
        return self.geometry.volume

    @property
    def boundary(self) -> tuple[int, int, int, int]:
        """Fermion phases in the order t, z, y, x."""
        return (self.t_boundary.value, 1, 1, 1)

    @property
    def check_links(self) -> bool:
        """True if links off SU(nc) are refused."""
        return self.link_type is LinkType.SU3

    def cold(self) -> GaugeField:
        """The unit field."""
        return GaugeField.cold(self.geometry, self.precision)

    def random(self, seed: int) -> GaugeField:
        """Haar-distributed links."""
        return GaugeField.random(self.geometry, seed, self.precision)

    def read(self, path, **options) -> GaugeField:
        """Read a configuration and check it against this record; see :meth:`GaugeField.read`.

        Raises
        ------
        FieldShapeError
            If the file holds another lattice.
        """
        gauge = GaugeField.read(path, **options).to(self.precision)
        self.check(gauge)
        return gauge

    def check(self, gauge) -> None:
        """Raise unless a gauge field is what this record says: lattice, colours, precision, and SU(nc) for ``su3``.

        Raises
        ------
        FieldShapeError, FieldTypeError, NonUnitaryLinksError
        """
        field = gauge if hasattr(gauge, "geometry") else GaugeField(self.geometry, gauge)
        if field.geometry != self.geometry:
            raise FieldShapeError(f"the configuration lives on {field.geometry}, the record says {self.geometry}.")
        if field.precision.name != self.precision:
            raise FieldTypeError(
                f"the configuration is in {field.precision} precision, the record says {self.precision}; "
                f"convert it with .to({self.precision!r})."
            )
        if self.check_links:
            field.check_unitary()


# -- fermions ----------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class CloverParam:
    """Coefficients of the clover term. Give ``csw``, or both ``csw_r`` and ``csw_t`` (anisotropic lattices).

    The term itself is made from the links at bind, in double, whatever the working precision.

    Examples
    --------
    >>> CloverParam(csw=1.5).planes
    (1.5, 1.5)
    """

    csw: float | None = None
    """Clover coefficient of every plane, dimensionless; None if the other two are given."""
    csw_r: float | None = None
    """Coefficient of the spatial planes, dimensionless."""
    csw_t: float | None = None
    """Coefficient of the temporal planes, dimensionless."""

    def __attrs_post_init__(self):
        clover_coefficients(self.csw, self.csw_r, self.csw_t)

    @property
    def planes(self) -> tuple[float, float]:
        """(csw_r, csw_t), in whichever form they were given."""
        return clover_coefficients(self.csw, self.csw_r, self.csw_t)


@attrs.frozen(kw_only=True)
class InvertParam:
    r"""A solve of :math:`Mx=b`: operator, solver, tolerance, precisions.

    Parameters
    ----------
    dslash_type
        ``wilson``, ``clover`` or ``twisted_mass``.
    mass, kappa
        Give one; neither has a default.
    clover
        Needed by ``clover``, allowed by ``twisted_mass``, refused by ``wilson``.
    mu
        Needed by ``twisted_mass``.

    Raises
    ------
    ParameterError
        If parameters are missing, doubled, out of range, or do not belong to the operator.
    ToleranceError
        From :meth:`solver` or :meth:`solve`, where the tolerance lies below what the precision can reach.

    Examples
    --------
    >>> p = InvertParam(dslash_type="clover", kappa=0.12, clover=CloverParam(csw=1.0), tol=1e-8)
    >>> p.operator().name
    'clover'
    >>> U = GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=2), seed=1)
    >>> b = ColorSpinorField.gaussian(U.geometry, seed=2)
    >>> x, info = p.solve(U, b)
    >>> bool(info.converged)
    True
    """

    dslash_type: DslashType = attrs.field(default=DslashType.WILSON, converter=_choice(DslashType))
    """The operator."""
    inv_type: InverterType = attrs.field(default=InverterType.CG, converter=_choice(InverterType))
    """The solver: ``cg`` (on the normal equations), ``bicgstab`` or ``gcr``."""
    mass: float | None = None
    """Bare quark mass, lattice units; None if kappa is given (``.operator()`` knows both)."""
    kappa: float | None = None
    """Hopping parameter 1 / (8 + 2 mass), dimensionless; None if mass is given."""
    mu: float | None = None
    """Twisted mass, lattice units; for ``twisted_mass`` only."""
    clover: CloverParam | None = attrs.field(default=None, validator=_clover)
    """Clover coefficients."""
    nu: float = attrs.field(default=1.0, validator=_positive)
    """Bare fermion velocity of anisotropic lattices, dimensionless, positive."""
    tol: float = attrs.field(default=1e-8, validator=_positive)
    """Relative true residual |b - M x| / |b| asked for, positive."""
    maxiter: int = attrs.field(default=1000, validator=_whole(1))
    """Iterations allowed, at least 1."""
    precision: str = attrs.field(default="double", converter=_precision_name)
    """Precision of the solution and its residual."""
    precision_sloppy: str | None = attrs.field(default=None, converter=_optional_precision)
    """Inner precision of a mixed-precision solve; None (or the outer one) for a plain solve."""
    verbosity: int = attrs.field(default=0, validator=_whole(0))
    """0 is silent; from 1 on the solver prints its residual."""

    def __attrs_post_init__(self):
        mass_and_kappa(self.mass, self.kappa)  # not filled in: attrs.evolve would then see both
        kind = self.dslash_type
        if kind is DslashType.CLOVER_WILSON and self.clover is None:
            raise ParameterError("the clover operator needs clover=CloverParam(csw=...): it has no default.")
        if kind is DslashType.WILSON and self.clover is not None:
            raise ParameterError("clover= was given to the Wilson operator; use dslash_type='clover'.")
        if (kind is DslashType.TWISTED_MASS) != (self.mu is not None):
            raise ParameterError(f"mu= belongs to dslash_type='twisted_mass' and is needed there, got mu={self.mu!r}.")
        if self.mu is not None:
            real_number("mu", self.mu)

    def operator(self, gauge_param: GaugeParam | None = None, boundary=None) -> DiracOperator:
        """The operator's definition; boundary phases and anisotropy come from ``gauge_param``.

        Without either, the boundary is antiperiodic in time and the lattice isotropic.
        """
        if boundary is not None and gauge_param is not None:
            raise ParameterError("give boundary= or gauge_param=, not both: the record has its t_boundary.")
        more: dict[str, Any] = {"mass": self.mass, "kappa": self.kappa, "nu": self.nu}
        if gauge_param is not None:
            more |= {"boundary": gauge_param.boundary, "xi0": gauge_param.anisotropy}
        elif boundary is not None:
            more["boundary"] = boundary_phases(boundary)
        if self.dslash_type is DslashType.WILSON:
            return WilsonDirac(**more)
        if self.dslash_type is DslashType.CLOVER_WILSON:
            csw_r, csw_t = self.clover.planes
            return CloverWilsonDirac(**more, csw_r=csw_r, csw_t=csw_t)
        if self.clover is not None:
            csw_r, csw_t = self.clover.planes
            if csw_r != csw_t:
                raise ParameterError(f"twisted clover has one csw for all planes, got csw_r={csw_r}, csw_t={csw_t}.")
            more["csw"] = csw_r
        return TwistedMassDirac(**more, mu=self.mu)

    def solver(self):
        """The solver: of ``inv_type``, wrapped in MixedPrecision where ``precision_sloppy`` differs."""
        from . import solvers

        kinds = {
            InverterType.CG: solvers.ConjugateGradient, InverterType.BICGSTAB: solvers.BiCGStab,
            InverterType.GCR: solvers.GCR,
        }  # fmt: skip
        kind = kinds[self.inv_type]
        verbose = self.verbosity > 0
        inner = kind(tol=self.tol, maxiter=self.maxiter, verbose=verbose)
        if self.precision_sloppy in (None, self.precision):
            return inner
        return solvers.MixedPrecision(inner=inner, precision=self.precision_sloppy)

    def bind(self, gauge, gauge_param: GaugeParam | None = None, **options) -> BoundOperator:
        """The operator on these links in ``precision``; ``options`` go to :meth:`DiracOperator.bind`."""
        if gauge_param is not None:
            gauge_param.check(gauge)
            options.setdefault("check_links", gauge_param.check_links)
        return self.operator(gauge_param).bind(gauge, precision=self.precision, **options)

    def solve(self, gauge, b, gauge_param: GaugeParam | None = None, **options):
        """Solve M x = b on these links.

        Parameters
        ----------
        gauge
            Links, a field or a raw array.
        b
            Right-hand side, a field or a raw array; a batch has its axis first.
        gauge_param
            Lattice, boundary and anisotropy; the links are checked against it.
        **options
            Go to :func:`lqcd_core.solvers.solve`.

        Returns
        -------
        Solution
            Iterable as ``x, info``.

        Raises
        ------
        NotConvergedError
            If the tolerance was not reached.
        """
        from . import solvers

        shape = tuple(b.shape)
        n_rhs = shape[0] if len(shape) == 7 else 1
        return solvers.solve(self.bind(gauge, gauge_param, n_rhs=n_rhs), b, self.solver(), **options)


@attrs.frozen(kw_only=True)
class EigParam:
    r"""Eigenvalues of :math:`M^\dagger M` (or of any Hermitian operator) at one end of the spectrum.

    Examples
    --------
    >>> U = GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2))
    >>> M = WilsonDirac(mass=0.5, boundary="periodic").bind(U, backend="numpy")
    >>> round(EigParam(n_ev=1, n_kr=32).spectral_bounds(M).largest, 6)
    72.25
    """

    n_ev: int = attrs.field(default=1, validator=_whole(1))
    """Eigenpairs wanted, at least 1."""
    n_kr: int = attrs.field(default=64, validator=_whole(3))
    """Lanczos vectors kept, at least n_ev + 2."""
    which: str = "smallest"
    """End of the spectrum: ``smallest`` or ``largest``."""
    tol: float = attrs.field(default=1e-6, validator=_positive)
    """True residuals asked for, relative to the largest eigenvalue met, positive."""
    maxiter: int = attrs.field(default=500, validator=_whole(1))
    """Restarts allowed, at least 1."""
    seed: int = attrs.field(default=0, validator=_whole(0))
    """Of the start vector."""

    def __attrs_post_init__(self):
        if self.n_kr < self.n_ev + 2:
            raise ParameterError(f"n_kr must be at least n_ev + 2 = {self.n_ev + 2}, got {self.n_kr}.")
        if self.which not in ("smallest", "largest"):
            raise ParameterError(f"which must be 'smallest' or 'largest', got {self.which!r}.")

    def solve(self, operator):
        """Eigenpairs of a bound operator; see :func:`lqcd_core.solvers.eigen.lanczos`."""
        from .solvers.eigen import lanczos

        return lanczos(
            operator, self.n_ev, self.which, n_kr=self.n_kr, tol=self.tol, maxiter=self.maxiter, seed=self.seed
        )

    def spectral_bounds(self, operator):
        """Smallest and largest eigenvalue; see :func:`lqcd_core.solvers.eigen.spectral_bounds`."""
        from .solvers.eigen import spectral_bounds

        return spectral_bounds(operator, n_kr=self.n_kr, tol=self.tol, maxiter=self.maxiter, seed=self.seed)


# -- Neuron ------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class NeuronCompileParam:
    """Options of ahead-of-time compilation for Neuron, validated here; the backend itself is a separate package part.

    ``lqcd_core.use_backend("neuron-traced", **p.backend_options())`` hands them over; options that are None are left to
    the backend. A backend that does not declare one of them refuses it by name.

    Examples
    --------
    >>> NeuronCompileParam(dtype="bfloat16", optimize_level=3).backend_options()
    {'dtype': 'bf16', 'optimize_level': 3, 'num_cores': 1, 'inline_weights': False}
    """

    dtype: str = attrs.field(default="single", converter=_precision_name)
    """Precision of the compiled graph: ``single``, ``half`` or ``bf16``."""
    optimize_level: int = attrs.field(default=2, validator=_whole(1))
    """Compiler optimisation level, 1 to 3."""
    compiler_workdir: str | None = attrs.field(default=None, converter=lambda v: None if v is None else str(v))
    """Directory of the compiler's files; None for the backend's cache."""
    num_neuroncores: int = attrs.field(default=1, validator=_whole(1))
    """NeuronCores to use, at least 1."""
    inline_weights: bool = attrs.field(default=False, validator=_flag)
    """Links as constants of the graph: faster, but each configuration compiles anew."""
    sram_threshold_bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(1)))
    """Working set up to which everything is kept on chip, bytes; None for the backend's own."""

    def __attrs_post_init__(self):
        if self.optimize_level > 3:
            raise ParameterError(f"optimize_level must be 1, 2 or 3, got {self.optimize_level!r}.")
        if self.dtype == "double":
            raise ParameterError("Neuron has no double precision; use dtype='single' inside MixedPrecision.")

    def backend_options(self) -> dict[str, Any]:
        """The options by the names that ``use_backend`` takes; those that are None are left out."""
        options = {
            "dtype": self.dtype, "optimize_level": self.optimize_level, "workdir": self.compiler_workdir,
            "num_cores": self.num_neuroncores, "inline_weights": self.inline_weights,
            "sram_threshold_bytes": self.sram_threshold_bytes,
        }  # fmt: skip
        return {k: v for k, v in options.items() if v is not None}


__all__ = [
    "CloverParam", "DslashType", "EigParam", "GaugeParam", "InvertParam", "InverterType", "LinkType",
    "NeuronCompileParam", "Precision", "TBoundary",
]  # fmt: skip

"""The plug: what a backend is, and the records that cross it.

A backend is one plain record (:class:`BackendInfo`) and two methods (:class:`Backend`): ``space`` and ``hopping``. The
core derives everything else from them. Each faster path is a protocol of its own (``Supports...``), found with
``isinstance`` and bound to agree with the derived path by the conformance suite.

Handles
-------
A :class:`Space` hands out *handles*: opaque objects that hold ``n_rhs`` spinors in whatever layout the backend likes.
Only ``pack`` and ``unpack`` cross between host and backend. Two rules make the same solver run on mutable memory and on
immutable arrays:

* **x is never changed, y is consumed**: ``axpy(a, x, y)`` returns the handle of y + a x and may reuse the storage of
  y; the caller goes on with the returned handle and never touches y again. x and y are distinct handles.
* Scalars are one number, or one per column (shape ``(n_rhs,)``), real or complex; they never change the precision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs
import numpy as np

from .errors import refuse_unknown
from .geometry import FULL, LatticeGeometry
from .precision import PRECISIONS, Precision, as_precision

Handle = Any
"""An opaque batch of spinors; only the Space that made it knows what is inside."""


# --------------------------------------------------------------------------------------------------------------------
# Records that go in


@attrs.frozen(eq=False)
class Links:
    """The raw links of one bind, with what the hopping term folds into them. Read-only for backends."""

    geometry: LatticeGeometry
    """The lattice."""
    array: Any
    """Raw links ``(T, Z, Y, X, 4, Nc, Nc)``, complex, directions t, z, y, x; NumPy, or an array library that the
    backend's record lists in ``arrays``."""
    phases: tuple[complex, complex, complex, complex] = (-1, 1, 1, 1)
    """Fermion boundary phase per direction t, z, y, x: multiplies U_mu on the last slice of direction mu."""
    coefficients: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    """Coefficient c_mu of the hops in direction t, z, y, x (anisotropy: 1 for t, nu/xi0 for space)."""
    digest: str = ""
    """blake2b of the raw link bytes: two binds of equal digest hold the same field."""

    def folded(self, dtype=None) -> np.ndarray:
        """A new array of c_mu phase_mu(x) U_mu(x): H needs nothing else (the coefficients are real)."""
        u = np.array(self.array, dtype=dtype or np.result_type(self.array, np.complex64), order="C")
        for mu in range(4):
            if self.coefficients[mu] != 1.0:
                u[..., mu, :, :] *= u.real.dtype.type(self.coefficients[mu])
            if self.phases[mu] != 1:
                last = [slice(None)] * 4
                last[mu] = -1
                u[(*last, mu)] *= u.dtype.type(self.phases[mu])
        return u


def digest_of(array) -> str:
    """blake2b (128 bits, hex) of an array's bytes, shape and type."""
    a = np.ascontiguousarray(array)
    h = hashlib.blake2b(f"{a.shape}{a.dtype}".encode(), digest_size=16)
    h.update(a.reshape(-1).view(np.uint8))
    return h.hexdigest()


@attrs.frozen(eq=False)
class SiteDiagonal:
    r"""The site-diagonal term: :math:`A = s + B(x) + i\mu\gamma_5`, with B two chiral blocks per site.

    ``blocks[..., c, i, j]`` acts on the spins (2c, 2c+1), i = Nc * (spin mod 2) + colour. The inverse of such a term is
    again one (with s = mu = 0 where blocks are needed).
    """

    scalar: complex = 0.0
    """s, dimensionless."""
    blocks: np.ndarray | None = None
    """B, shape ``(T, Z, Y, X, 2, 2Nc, 2Nc)`` (``X/2`` on one parity), complex128; None means B = 0."""
    twist: float = 0.0
    """mu, lattice units."""
    hermitian_blocks: bool = True
    """True if every block equals its conjugate transpose (the clover term; not the inverse of a twisted one)."""

    def full_blocks(self) -> np.ndarray:
        """s + B + i mu gamma5 as blocks alone (a new array)."""
        n = self.blocks.shape[-1]
        signs = np.array([1.0, -1.0])
        return self.blocks + (self.scalar + 1j * self.twist * signs)[:, None, None] * np.eye(n)

    def dagger(self) -> SiteDiagonal:
        """The Hermitian conjugate."""
        blocks = self.blocks
        if blocks is not None and not self.hermitian_blocks:
            blocks = blocks.conj().swapaxes(-1, -2)
        return attrs.evolve(self, scalar=np.conj(self.scalar), blocks=blocks, twist=-self.twist)

    def inverse(self) -> SiteDiagonal:
        """The inverse: in closed form without blocks, by elimination with pivots per block with them.

        Raises
        ------
        numpy.linalg.LinAlgError
            If a block is singular.
        """
        if self.blocks is None:
            norm = self.scalar**2 + self.twist**2
            return SiteDiagonal(scalar=self.scalar / norm, twist=-self.twist / norm)
        hermitian = self.hermitian_blocks and self.twist == 0 and np.imag(self.scalar) == 0
        from .selection import gauge_kernel  # choosing stands on this module

        full = self.full_blocks()
        inverse = gauge_kernel("inverse", full.shape[-1] // 2) or np.linalg.inv
        return SiteDiagonal(blocks=inverse(full), hermitian_blocks=bool(hermitian))

    def on_parity(self, geometry: LatticeGeometry, parity) -> SiteDiagonal:
        """The same term on the sites of one parity."""
        if parity is FULL or self.blocks is None:
            return self
        return attrs.evolve(self, blocks=geometry.split_parity(self.blocks, parity))


@attrs.frozen
class Option:
    """One option that a backend's constructor takes, declared without importing the backend."""

    help: str
    """One line for `lqcd backends -v`, with the range."""
    default: Any = None
    """Value used when the option is not given."""
    check: Callable[[Any], str | None] | None = None
    """None, or a function that returns the sentence saying why a value is refused (None if it is fine)."""


@attrs.frozen(kw_only=True)
class Request:
    """What a bind needs of a backend: plain data, compared with each backend's record."""

    operator: str
    """Operator name, e.g. ``wilson``, ``clover``."""
    precision: Precision
    """Precision of spinors and links."""
    geometry: LatticeGeometry
    """The lattice, with Nc."""
    n_rhs: int = 1
    """Right-hand sides that go through the operator together, at least 1."""
    features: frozenset[str] = frozenset()
    """Features that must be there, by name (see :data:`FEATURES`)."""
    arrays: str = "numpy"
    """Array library of the links and spinors handed in."""

    def __str__(self) -> str:
        rhs = f" with {self.n_rhs} right-hand sides" if self.n_rhs != 1 else ""
        extra = f" needing {', '.join(sorted(self.features))}" if self.features else ""
        arrays = f" on {self.arrays} arrays" if self.arrays != "numpy" else ""
        return f"{self.operator!r} in {self.precision} on {self.geometry.shape} (Nc = {self.geometry.nc}){rhs}{extra}{arrays}"


DERIVED_OPERATORS = frozenset({"wilson", "clover", "twisted_mass", "twisted_clover"})
"""Operators that the core derives from any backend's hopping term."""

FEATURES = {
    "autograd": "gradients flow through pack, the operators and unpack",
    "even_odd": "hops between the two parities without touching the other half (SupportsEvenOdd)",
    "fused_dirac": "M and its relatives as one call (SupportsFusedDirac)",
    "site_diagonal": "applies clover blocks inside the backend (SupportsSiteDiagonal)",
    "fused_blas": "vector updates and norms in one pass (SupportsFusedBLAS)",
    "device_solve": "runs a whole solve inside the backend (SupportsDeviceSolve)",
    "gauge": "computes formulas of links alone: plaquette, staples, clover term, ... (SupportsGauge)",
    "halo": "packs faces and separates interior from exterior (SupportsHalo)",
    "exact_slices": "partial inner products per time slice, independent of layout and threads",
}
"""Names that may stand in ``BackendInfo.features``, with what each promises."""


@attrs.frozen(kw_only=True)
class BackendInfo:
    """What a backend says about itself. Data only: making and asking one imports nothing heavy.

    Examples
    --------
    >>> info = BackendInfo(name="reference", load="pkg.backend:ReferenceBackend", precisions={"double"})
    >>> g = LatticeGeometry(T=4, Z=4, Y=4, X=4)
    >>> info.why_not(Request(operator="wilson", precision=as_precision("bf16"), geometry=g))
    'has no bf16 precision (has double)'
    """

    name: str = attrs.field(validator=attrs.validators.matches_re(r"[a-z][a-z0-9_-]*"))
    """The name users write in use_backend: lower case, digits, ``-`` and ``_``."""
    load: str = attrs.field(validator=attrs.validators.matches_re(r"[\w.]+:\w+"))
    """``package.module:Class``, imported on first use."""
    operators: frozenset[str] = attrs.field(default=DERIVED_OPERATORS, converter=frozenset)
    """Operators it serves; the default is all that the core derives from a hopping term."""
    precisions: frozenset[str] = attrs.field(converter=frozenset)
    """Precision names it serves (see lqcd_core.precision)."""
    device: str = "cpu"
    """What it runs on, a word for the table: ``cpu``, ``cuda``, ``neuron``, ..."""
    features: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    """Optional paths it offers, names from FEATURES."""
    arrays: frozenset[str] = attrs.field(default=frozenset({"numpy"}), converter=frozenset)
    """Array libraries whose arrays it packs without a copy through NumPy."""
    rank: int = 0
    """Preference when the user named none: higher goes first."""
    options: Mapping[str, Option] = attrs.field(factory=dict, hash=False)
    """Constructor options by name; a wrong name is refused before the backend is imported."""
    preset: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    """Options fixed by an alias; the user's options go on top."""
    resources: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    """What a task on a cluster's scheduler holds for it, custom resources by name; none for the CPU alone."""
    wraps: bool = False
    """True for an executor that wraps another backend: never chosen automatically."""
    accepts: Callable[[Request], str | None] | None = attrs.field(default=None, eq=False)
    """None, or a light function that adds a reason of its own (extents, Nc, ...)."""
    summary: str = ""
    """One line for the table of backends."""
    origin: str = ""
    """The distribution or plugin that registered it; filled in by the registry."""

    def __attrs_post_init__(self):
        refuse_unknown(self.precisions, PRECISIONS, f"precisions of backend {self.name!r}")
        refuse_unknown(self.features, FEATURES, f"features of backend {self.name!r}")

    def why_not(self, request: Request) -> str | None:
        """None if this backend can serve the request as far as its record tells, else the reason, a clause."""
        if request.operator not in self.operators:
            return f"has no operator {request.operator!r} (has {', '.join(sorted(self.operators))})"
        if request.precision.name not in self.precisions:
            return f"has no {request.precision} precision (has {', '.join(sorted(self.precisions))})"
        if request.arrays not in self.arrays:
            return f"does not take {request.arrays} arrays (takes {', '.join(sorted(self.arrays))})"
        missing = request.features - self.features
        if missing:
            return f"lacks {', '.join(sorted(missing))}"
        if self.accepts is None:
            return None
        try:
            return self.accepts(request)
        except Exception as error:  # a stranger's code: its failure is its reason, and stops nobody else
            return f"could not answer: {type(error).__name__}: {error}"

    def settle_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Preset and given options, checked against what is declared.

        Raises
        ------
        UnknownOptionError
            If a name is not declared; the nearest one is named.
        ParameterError
            If a value is refused by the option's own check.
        """
        from .errors import ParameterError

        refuse_unknown(options, self.options, f"backend {self.name!r}")
        settled = {**self.preset, **options}
        for name, value in settled.items():
            check = self.options[name].check if name in self.options else None
            reason = check(value) if check else None
            if reason:
                raise ParameterError(f"backend {self.name!r}: option {name}={value!r} {reason}.")
        return settled


# --------------------------------------------------------------------------------------------------------------------
# Protocols


@runtime_checkable
class Space(Protocol):
    """Where the spinors of one lattice, precision and batch size live. The required seven operations."""

    geometry: LatticeGeometry
    precision: Precision
    n_rhs: int
    parity: int | None
    """FULL (None), EVEN (0) or ODD (1)."""
    resizable: bool
    """True if handles with fewer columns than n_rhs are valid here and in every operator bound to this space (then
    ``take`` and ``put`` must exist). False for backends with static shapes: solvers mask columns instead."""

    def pack(self, array) -> Handle:
        """Host array ``(n, T, Z, Y, X, Ns, Nc)`` (X/2 on one parity) to a new handle, rounded to the precision."""

    def unpack(self, handle: Handle) -> np.ndarray:
        """The inverse of pack: a new complex host array in the arithmetic's type, batch axis always present."""

    def zeros(self) -> Handle:
        """A new handle of n_rhs zero columns."""

    def axpy(self, a, x: Handle, y: Handle) -> Handle:
        """y + a x; consumes y."""

    def inner(self, x: Handle, y: Handle) -> np.ndarray:
        """sum conj(x) y per column, accumulated in double over sites, shape ``(n,)`` complex128, on the host."""

    def norm2(self, x: Handle) -> np.ndarray:
        """sum |x|^2 per column, accumulated in double over sites, shape ``(n,)`` float64, on the host."""

    def gamma5(self, x: Handle) -> Handle:
        """A new handle of gamma5 x."""


@runtime_checkable
class Backend(Protocol):
    """An executor. Made once per (name, options) and kept: ``Backend(**options)``.

    Raise :class:`~lqcd_core.errors.BackendUnavailable` in the constructor if the machine cannot run it; the message is
    the reason that users read.
    """

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> Space:
        """A space. A backend without SupportsEvenOdd is only ever asked for FULL."""

    def hopping(self, links: Links, space: Space) -> Callable[[Handle], Handle]:
        r"""The hopping term H, a function of a handle that returns a new one and leaves its argument alone.

        .. math:: H\psi(x) = \tfrac12\sum_\mu c_\mu\left[(1-\gamma_\mu)U_\mu(x)\psi(x+\hat\mu)
                  + (1+\gamma_\mu)U^\dagger_\mu(x-\hat\mu)\psi(x-\hat\mu)\right]

        with the boundary phases folded into U. All work that depends on the links alone happens here.
        """


@runtime_checkable
class SupportsEvenOdd(Protocol):
    """The hop between parities, each half in a space of its own (``space(..., parity=EVEN or ODD)``)."""

    def parity_hopping(self, links: Links, target: Space) -> Callable[[Handle], Handle]:
        """H restricted to land on ``target.parity`` from the other parity."""


@runtime_checkable
class SupportsSiteDiagonal(Protocol):
    """The site-diagonal term inside the backend."""

    def site_diagonal(self, term: SiteDiagonal, space: Space) -> Callable[[Handle], Handle]:
        """A function x -> A x returning a new handle; the blocks are already on the space's parity."""


@runtime_checkable
class SupportsFusedDirac(Protocol):
    """A whole operator as one call."""

    def fused(self, kind: str, terms: DiracTerms, space: Space) -> Callable[[Handle], Handle] | None:
        """The operator ``kind`` (one of FUSED_KINDS) as a function that returns a new handle, or None to derive it."""


FUSED_KINDS = ("M", "Mdag", "MdagM", "schur", "schur_dag", "schur_normal")
"""Operators that SupportsFusedDirac may offer. The last three act on ``terms.parity`` in the form ``terms.form``."""


@attrs.frozen(eq=False, kw_only=True)
class DiracTerms:
    """Everything a fused kernel needs: M = A - H, with A given per parity."""

    links: Links
    """Links with phases and coefficients."""
    diagonal: SiteDiagonal
    """A on the full lattice."""
    parity: int | None = FULL
    """Parity that a Schur complement acts on."""
    form: str = "asymmetric"
    """``asymmetric`` A - H A^-1 H, or ``symmetric`` 1 - A^-1 H A^-1 H."""


class HaloHop(Protocol):
    r"""The hopping term of a slab whose neighbours in t live elsewhere; see :class:`SupportsHalo`.

    Called as ``below, above = exchange(*faces(x))`` while ``partial = interior(x)`` runs, then
    ``exterior(x, partial, below, above)``.
    """

    def faces(self, x: Handle) -> tuple[np.ndarray, np.ndarray]:
        r"""(for the slab before, for the slab after), new contiguous host arrays; x is left alone.

        The slab before needs the half spinors :math:`(1-\gamma_t)\psi` of the first slice and multiplies them by its own
        links; the slab after needs :math:`U_t^\dagger(1+\gamma_t)\psi` of the last slice, multiplied here. 2 Nc complex
        numbers per site and column. Layout and type are the backend's: only its own other slabs read them.
        """

    def interior(self, x: Handle) -> Any:
        """What can be computed without faces; x is left alone. Seen by :meth:`exterior` alone."""

    def exterior(self, x: Handle, partial: Any, below: np.ndarray, above: np.ndarray) -> Handle:
        """H x, a new handle, from the faces of the slab before (``below``) and after (``above``); consumes ``partial``.

        Every site is computed by the arithmetic of ``hopping``, in the same order: cutting a lattice changes no bits.
        ``below`` and ``above`` are not kept.
        """


@runtime_checkable
class SupportsHalo(Protocol):
    """The hopping term of a slab of time slices, with half-spinor faces that somebody else carries."""

    def halo_hopping(self, links: Links, target: Space) -> HaloHop:
        """H on a slab: t is not periodic, its two edges are faces. On a parity, H that lands on ``target.parity``.

        ``links`` are those of the slab. ``links.phases[0]`` multiplies the t links of its last slice, as always: whoever
        cuts the lattice gives 1 to every slab but the last.
        """


@runtime_checkable
class SupportsFusedHalo(Protocol):
    """M and M^dagger of a slab as one call each, with faces."""

    def halo_fused(self, kind: str, terms: DiracTerms, space: Space) -> HaloHop | None:
        """``M`` or ``Mdag`` on a slab (full lattice), or None to derive it; ``terms`` are those of the slab.

        The bits are those of ``fused`` on the uncut lattice.
        """


@runtime_checkable
class SupportsFusedBLAS(Protocol):
    """On a Space: updates and the norm of the result in one pass."""

    def axpy_norm2(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        """(y + a x, its norm2); consumes y."""

    def cg_update(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        """(x + a p, r - a Ap, norm2 of the new r); consumes x and r."""


@runtime_checkable
class SupportsSlices(Protocol):
    """On a Space: partial inner products whose bits do not depend on layout, threads or shards."""

    def inner_slices(self, x: Handle, y: Handle) -> np.ndarray:
        """sum conj(x) y over each time slice, shape ``(n, T)`` complex128; the core adds the slices exactly."""


@runtime_checkable
class SupportsFusedSlices(Protocol):
    """On a Space: the updates of :class:`SupportsFusedBLAS` with the norm left in time slices, for sums over shards.

    Slices are shape ``(n, T)`` float64 and obey the rule of :class:`SupportsSlices`: no bit depends on layout, threads, shards
    or batch.
    """

    def norm2_slices(self, x: Handle) -> np.ndarray:
        """|x|^2 over each time slice."""

    def axpy_norm2_slices(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        """(y + a x, its norm2 by slices); consumes y."""

    def cg_update_slices(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        """(x + a p, r - a Ap, norm2 of the new r by slices); consumes x and r."""


@runtime_checkable
class SupportsColumns(Protocol):
    """On a resizable Space: columns leave and come back, so that a converged one stops costing."""

    def take(self, x: Handle, columns: Sequence[int]) -> Handle:
        """A new handle of these columns, in this order."""

    def put(self, x: Handle, columns: Sequence[int], part: Handle) -> Handle:
        """x with these columns replaced by those of ``part``; consumes x."""


@runtime_checkable
class SupportsConversion(Protocol):
    """On a Space: precision changes without leaving the backend."""

    def convert_from(self, handle: Handle, source: Space) -> Handle | None:
        """A new handle here of a handle of ``source``, or None if that space is foreign (then it goes by the host)."""


@runtime_checkable
class SupportsArrays(Protocol):
    """On a Space of a backend whose record lists another array library: canonical arrays of that library."""

    def to_array(self, handle: Handle) -> Any:
        """Canonical ``(n, T, Z, Y, X, Ns, Nc)`` array of the library, differentiable where the library is."""


@runtime_checkable
class SupportsDeviceSolve(Protocol):
    """A backend that runs whole solves itself. The core recomputes the true residual, whatever it is told."""

    def solve(
        self, bound, inner_bound, b: Handle, x0: Handle | None, parameters: Mapping[str, Any], callback
    ) -> tuple[Handle, Mapping[str, Any]] | None:
        """Solve M x = b on the full lattice, or return None to leave this solve to the core.

        ``bound`` and ``inner_bound`` (for mixed precision, else None) are bound operators; b is left alone and x0 is None
        or a start that is left alone; both live in ``bound.space``. ``parameters`` are the solver's, with ``targets``
        (tolerance per column), ``even_odd``, ``form``, ``parity`` and ``heard`` added. ``callback(iteration, residuals)`` may
        be called with the residuals ``(n,)`` of each iteration; where ``heard`` is false nobody waits for them, and they may
        come all at once as ``history``, ``(iterations, n)``, in the mapping instead. The mapping returned may also hold
        ``iterations`` (a number or one per column), ``reasons`` (per column the name of a
        :class:`~lqcd_core.solvers.solution.Reason`), ``applications`` and ``outer_applications``; what it says of residuals
        decides nothing. KeyboardInterrupt should end the solve.
        """


GAUGE_KINDS = {
    "plaquettes": "links -> sum over sites of Re tr P, (6,) float64, planes as in lqcd_core.gauge.links.PLANES",
    "staple": "(links, mu) -> A_mu of every site, complex128 (T, Z, Y, X, Nc, Nc)",
    "clover": "(links, c_r, c_t) -> the clover term, complex128 (T, Z, Y, X, 2, 2Nc, 2Nc)",
    "inverse": "blocks, complex128 (..., 2Nc, 2Nc) -> their inverses; numpy.linalg.LinAlgError if one is singular",
    "exponential": "anti-Hermitian matrices, complex128 (..., Nc, Nc) -> their exponentials",
    "unitarize": "matrices, complex128 (..., Nc, Nc) -> the nearest in SU(Nc); NonUnitaryLinksError if there is none",
    "checkerboard_staple": "(links[mu][parity], forward[parity][mu], backward[parity][mu], mu, parity) -> A_mu of one "
    "parity, complex128 (Nc, Nc, V/2), all as in lqcd_core.gauge.update.CheckerboardLinks",
}
"""What SupportsGauge may compute, with arguments and result. Links are complex ``(T, Z, Y, X, 4, Nc, Nc)`` host arrays of
either precision and any strides; every result is a new host array, computed in double."""


@runtime_checkable
class SupportsGauge(Protocol):
    """Formulas of links alone. They take and give host arrays: nothing is bound, and no space is needed."""

    def gauge_kernel(self, kind: str, nc: int) -> Callable | None:
        """A function for one of :data:`GAUGE_KINDS`, or None to leave it to the core.

        It agrees with the core's NumPy formula to rounding, leaves its arguments alone, and gives the same bits for any
        number of threads.
        """


@runtime_checkable
class Describes(Protocol):
    """A backend that can say more about the machine (instruction set, threads, device memory)."""

    def describe(self) -> Mapping[str, str]:
        """Short facts by name, for `lqcd backends -v` and provenance."""


@attrs.frozen(kw_only=True)
class BoundBackend:
    """A backend instance with the record and options it was made from."""

    info: BackendInfo
    """Its record."""
    options: Mapping[str, Any] = attrs.field(hash=False)
    """Options it was made with, presets included."""
    instance: Any = attrs.field(eq=False, repr=False)
    """The object with ``space`` and ``hopping``."""

    @property
    def name(self) -> str:
        return self.info.name


def make_request(operator: str, precision, geometry, n_rhs=1, features=(), arrays="numpy") -> Request:
    """A :class:`Request` from loose values.

    Raises
    ------
    UnknownOptionError
        If a feature has no such name; the nearest one is named.
    """
    features = (features,) if isinstance(features, str) else tuple(features)
    refuse_unknown(features, FEATURES, "the list of features")
    return Request(
        operator=operator, precision=as_precision(precision), geometry=geometry, n_rhs=n_rhs,
        features=frozenset(features), arrays=arrays,
    )  # fmt: skip

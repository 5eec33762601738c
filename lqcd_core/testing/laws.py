r"""The laws that every backend obeys, as plain functions of a :class:`Case`. No pytest here.

Each law raises ``AssertionError`` with numbers when it is broken, and :class:`NotApplicable` with a sentence where it
has nothing to say. :mod:`lqcd_core.testing.conformance` turns them into tests.

Tolerances are multiples of :attr:`lqcd_core.precision.Precision.tolerance`, the one table: a law that applies the
operator k times in a row allows k of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from ..backend import (
    DERIVED_OPERATORS,
    FUSED_KINDS,
    GAUGE_KINDS,
    Backend,
    Describes,
    DiracTerms,
    Links,
    SiteDiagonal,
    Space,
    SupportsArrays,
    SupportsColumns,
    SupportsConversion,
    SupportsDeviceSolve,
    SupportsEvenOdd,
    SupportsFusedBLAS,
    SupportsFusedDirac,
    SupportsFusedHalo,
    SupportsFusedSlices,
    SupportsGauge,
    SupportsHalo,
    SupportsSiteDiagonal,
    SupportsSlices,
    digest_of,
    make_request,
)  # fmt: skip
from ..errors import BackendUnavailable, FieldShapeError
from ..geometry import EVEN, FULL, ODD, LatticeGeometry
from ..operators import CloverWilsonDirac, TwistedMassDirac, WilsonDirac
from ..precision import PRECISIONS, Precision, as_precision
from ..registry import REGISTRY
from . import reference

PHASES = (-1, np.exp(0.3j), 1j, np.exp(-1.1j))
"""Boundary phases that differ in every direction, order t, z, y, x."""
COEFFICIENTS = (1.0, 0.4, 0.4, 0.4)
"""An anisotropic set of hop coefficients."""
SIGNS = np.array([1, 1, -1, -1], np.int8)[:, None]  # gamma5 by spin


class NotApplicable(Exception):
    """The law has nothing to say about this case; the message is the reason, a sentence."""


@attrs.frozen(eq=False, kw_only=True)
class Case:
    """One backend in one precision on one lattice."""

    backend: str
    """Registered name."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Constructor options."""
    precision: Precision = attrs.field(converter=as_precision)
    """Precision under test."""
    lattice: tuple[int, int, int, int] = (4, 2, 6, 2)
    """Extents T, Z, Y, X."""
    nc: int = 3
    """Number of colours."""
    n_rhs: int = 3
    """Columns of the spaces made here, at least 2."""

    @property
    def geometry(self) -> LatticeGeometry:
        return LatticeGeometry.from_shape(self.lattice, nc=self.nc)

    @property
    def instance(self) -> Any:
        """The backend's instance (loaded on first use)."""
        return REGISTRY.load(self.backend, self.options).instance

    def why_not(self, operator: str = "wilson") -> str | None:
        """None if the backend serves this case, else its own sentence."""
        request = make_request(operator, self.precision, self.geometry, self.n_rhs)
        reason = REGISTRY.record(self.backend).why_not(request)
        if reason is None:
            try:
                REGISTRY.load(self.backend, self.options)
            except BackendUnavailable as error:
                reason = str(error)
        return reason

    # -- inputs: made in double from a seed, by numpy alone -----------------------------------------------------------

    def links(self, seed: int = 1) -> np.ndarray:
        """Random SU(Nc) links ``(T, Z, Y, X, 4, Nc, Nc)``, complex128."""
        return _random_su(seed, (*self.lattice, 4), self.nc)

    def spinors(self, seed: int = 2, n: int | None = None, parity=FULL) -> np.ndarray:
        """Gaussian spinors ``(n, T, Z, Y, X, Ns, Nc)`` in the precision's arithmetic."""
        rng = np.random.default_rng(seed)
        shape = (self.n_rhs if n is None else n, *self.geometry.parity_shape(parity))
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(self.precision.complex_dtype)

    def stored(self, array: np.ndarray) -> np.ndarray:
        """The numbers that the backend keeps of an array: packed and unpacked."""
        space = self.space(n_rhs=len(array))
        return space.unpack(space.pack(array))

    # -- backend ------------------------------------------------------------------------------------------------------

    def space(self, parity=FULL, n_rhs: int | None = None, precision=None) -> Space:
        """A space of the backend under test."""
        precision = self.precision if precision is None else as_precision(precision)
        return self.instance.space(self.geometry, precision, self.n_rhs if n_rhs is None else n_rhs, parity)

    def record(self, array, phases=(-1, 1, 1, 1), coefficients=(1.0, 1.0, 1.0, 1.0)) -> Links:
        """The links record that a bind would hand over."""
        return Links(self.geometry, array, phases, coefficients, digest_of(array))

    def hop(self, array, psi, **folded) -> np.ndarray:
        """H psi through the backend, host to host."""
        space = self.space(n_rhs=len(psi))
        return space.unpack(self.instance.hopping(self.record(array, **folded), space)(space.pack(psi)))

    def bind(self, definition, links: np.ndarray):
        """The bound operator on raw links, in this case's backend, precision and batch."""
        reason = self.why_not(definition.name)
        if reason:
            raise NotApplicable(f"backend {self.backend!r} {reason}")
        return definition.bind(
            links, backend=(self.backend, dict(self.options)), precision=self.precision, n_rhs=self.n_rhs
        )

    def tolerance(self, applications: float = 1) -> float:
        """Allowed relative L2 error after so many operator applications in a row."""
        return applications * self.precision.tolerance

    def need_parity(self) -> None:
        """Stop here where the lattice has no even-odd."""
        reason = self.geometry.why_no_parity()
        if reason:
            raise NotApplicable(reason)


def _random_su(seed: int, lead: tuple, nc: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(*lead, nc, nc)) + 1j * rng.normal(size=(*lead, nc, nc))
    q = np.linalg.qr(a)[0]
    return q / (np.linalg.det(q) ** (1 / nc))[..., None, None]


def difference(got, want) -> float:
    """Relative L2 difference in double; NaN if anything is not finite."""
    got, want = (np.asarray(a).astype(np.complex128) for a in (got, want))
    assert got.shape == want.shape, f"shape {got.shape} where {want.shape} was expected"
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-300))


def close(got, want, tolerance: float, what: str) -> None:
    """Raise unless the relative L2 difference is within the tolerance."""
    found = difference(got, want)
    assert found <= tolerance, f"{what}: relative difference {found:.3g}, allowed {tolerance:.3g}"


def same_bits(got, want, what: str) -> None:
    """Raise unless two arrays hold the same numbers."""
    assert np.array_equal(np.asarray(got), np.asarray(want), equal_nan=True), f"{what}: the numbers changed"


# --------------------------------------------------------------------------------------------------------------------
# The table


@attrs.frozen
class Law:
    """A law with the protocol it belongs to."""

    name: str
    """Its name, a sentence with underscores."""
    group: str
    """Key of :data:`GROUPS`."""
    check: Callable[[Case], None]
    """The function."""

    @property
    def statement(self) -> str:
        """First line of the docstring."""
        return (self.check.__doc__ or "").strip().partition("\n")[0]


LAWS: dict[str, Law] = {}
"""Every law by name."""

GROUPS: dict[str, tuple[Any, str]] = {
    "required": (Backend, "backend"),
    "even_odd": (SupportsEvenOdd, "backend"),
    "site_diagonal": (SupportsSiteDiagonal, "backend"),
    "fused_dirac": (SupportsFusedDirac, "backend"),
    "fused_blas": (SupportsFusedBLAS, "space"),
    "exact_slices": (SupportsSlices, "space"),
    "fused_slices": (SupportsFusedSlices, "space"),
    "columns": (SupportsColumns, "space"),
    "conversion": (SupportsConversion, "space"),
    "arrays": (SupportsArrays, "space"),
    "device_solve": (SupportsDeviceSolve, "backend"),
    "halo": (SupportsHalo, "backend"),
    "fused_halo": (SupportsFusedHalo, "backend"),
    "gauge": (SupportsGauge, "backend"),
    "describes": (Describes, "backend"),
}
"""Group of laws -> (protocol, who implements it)."""


def law(group: str):
    """Enter a function into :data:`LAWS`."""

    def enter(check):
        LAWS[check.__name__] = Law(check.__name__, group, check)
        return check

    return enter


def lacks(case: Case, group: str) -> str | None:
    """None if the backend implements the group's protocol, else the sentence."""
    protocol, owner = GROUPS[group]
    thing = case.instance if owner == "backend" else case.space()
    if isinstance(thing, protocol):
        if group != "columns" or thing.resizable:
            return None
        return f"backend {case.backend!r} has static spaces: columns are masked, not taken"
    return f"backend {case.backend!r} does not implement {protocol.__name__}: the core derives it"


def check(name: str, case: Case) -> None:
    """Hold a case to one law.

    Raises
    ------
    NotApplicable
        With the backend's or the lattice's own sentence.
    AssertionError
        If the law is broken.
    """
    if not __debug__:
        raise NotApplicable("the laws are assertions: run Python without -O")
    reason = case.why_not()
    if reason:
        raise NotApplicable(f"backend {case.backend!r} {reason}")
    missing = lacks(case, LAWS[name].group)
    if missing:
        raise NotApplicable(missing)
    LAWS[name].check(case)


# --------------------------------------------------------------------------------------------------------------------
# The record and the space


@law("required")
def record_tells_the_truth(case: Case) -> None:
    """Every declared feature has its protocol behind it, and every space says what it is."""
    info, space = REGISTRY.record(case.backend), case.space()
    for feature in info.features & set(GROUPS):
        protocol, owner = GROUPS[feature]
        thing = case.instance if owner == "backend" else space
        assert isinstance(thing, protocol), f"feature {feature!r} is declared, but {protocol.__name__} is missing"
    assert isinstance(space, Space), "space() returned an object without the seven operations"
    got = (space.geometry, space.precision, space.n_rhs, space.parity)
    assert got == (case.geometry, case.precision, case.n_rhs, FULL), f"the space describes itself as {got}"
    assert isinstance(space.resizable, bool), "resizable must be True or False"
    if space.resizable:
        assert isinstance(space, SupportsColumns), "a resizable space must have take and put"


@law("required")
def unpack_inverts_pack(case: Case) -> None:
    """unpack(pack(a)) = a to the storage's rounding, and what was rounded once stays."""
    space, a = case.space(), case.spinors()
    once = space.unpack(space.pack(a))
    assert isinstance(once, np.ndarray) and once.dtype == case.precision.complex_dtype, f"unpack gave {once.dtype}"
    close(once, a, case.tolerance(), "unpack(pack(a))")
    if not case.precision.is_split:
        same_bits(once, a, "unpack(pack(a)) in a precision that stores every number")
    if case.precision.name != "fixed16":  # scaled integers may scale again
        same_bits(space.unpack(space.pack(once)), once, "a second round trip")


@law("required")
def pack_takes_any_strides_and_types(case: Case) -> None:
    """pack reads read-only, transposed and wider arrays alike."""
    space, a = case.space(), case.spinors()
    want = space.unpack(space.pack(a))
    frozen = a.copy()
    frozen.setflags(write=False)
    same_bits(space.unpack(space.pack(frozen)), want, "pack of a read-only array")
    strided = np.asfortranarray(a)
    same_bits(space.unpack(space.pack(strided)), want, "pack of a Fortran-ordered array")
    same_bits(space.unpack(space.pack(a.astype(np.complex128))), want, "pack of the same numbers in complex128")


@law("required")
def pack_refuses_wrong_shapes(case: Case) -> None:
    """An array that does not fit is refused, never broadcast."""
    space, a = case.space(), case.spinors()
    wrong = [a[0], a[:, :, :, :, :, :3], a[..., :1], a[:, :1] if case.lattice[0] > 1 else a[:, :, :, :, :0], a[:0]]
    if case.lattice[0] != case.lattice[1]:
        wrong.append(np.swapaxes(a, 1, 2))
    if not space.resizable:
        wrong.append(a[:1])
    for b in wrong:
        try:
            space.pack(b)
        except FieldShapeError:
            continue
        raise AssertionError(f"pack accepted the shape {b.shape} in a space for {a.shape}")


@law("required")
def unpack_and_pack_share_no_memory(case: Case) -> None:
    """Writing into what went in or came out does not change the handle."""
    space, a = case.space(), case.spinors()
    given = a.copy()
    handle = space.pack(given)
    given[...] = 7
    first = space.unpack(handle)
    close(first, a, case.tolerance(), "after the packed array was overwritten, the handle")
    want = first.copy()
    if first.flags.writeable:
        first[...] = 7
    same_bits(space.unpack(handle), want, "after the unpacked array was overwritten, the handle")


@law("required")
def zeros_are_new_zeros(case: Case) -> None:
    """zeros() gives a new handle of n_rhs zero columns each time."""
    space = case.space()
    first, second = space.zeros(), space.zeros()
    a = case.spinors()
    space.axpy(1.0, space.pack(a), first)
    got = space.unpack(second)
    assert got.shape == a.shape and not got.any(), "a second zeros() was changed through the first"


@law("required")
def axpy_is_y_plus_a_x(case: Case) -> None:
    """axpy(a, x, y) = y + a x for one number or one per column, real or complex."""
    space, x, y = case.space(), case.spinors(2), case.spinors(3)
    n = len(x)
    per_column = np.linspace(-1, 1.5, n)
    for a in (0.5, -2, 1.5j, np.float32(0.25), np.complex128(0.5 - 1j), per_column, per_column * (1 + 2j)):
        hx = space.pack(x)
        got = space.unpack(space.axpy(a, hx, space.pack(y)))
        factor = np.asarray(a)
        factor = factor.reshape(-1, *(1,) * 6) if factor.ndim else factor
        want = y.astype(np.complex128) + factor * x
        close(got, want, case.tolerance(), f"axpy with a = {a!r}")
        assert got.dtype == case.precision.complex_dtype, f"a scalar {a!r} changed the type to {got.dtype}"
        same_bits(space.unpack(hx), case.stored(x), f"x after axpy with a = {a!r}")


@law("required")
def results_do_not_alias(case: Case) -> None:
    """A handle that was returned does not change when the operation is used again or its argument is consumed."""
    space, links = case.space(), case.links()
    hop = case.instance.hopping(case.record(links), space)
    x, w = space.pack(case.spinors(2)), space.pack(case.spinors(3))
    first = hop(x)
    kept = space.unpack(first)
    hop(w)
    same_bits(space.unpack(first), kept, "H x after H w")
    for name, make in (("gamma5 x", space.gamma5), ("0 + x", lambda h: space.axpy(1.0, h, space.zeros()))):
        before = space.unpack(x)
        space.axpy(1.0, w, make(x))
        same_bits(space.unpack(x), before, f"x after {name} was consumed")


@law("required")
def inner_products_are_right(case: Case) -> None:
    """inner(x, y) = sum conj(x) y and norm2(x) = inner(x, x), per column, on the host, in double."""
    space, a, b = case.space(), case.stored(case.spinors(2)), case.stored(case.spinors(3))
    x, y = space.pack(a), space.pack(b)
    inner, norm2 = space.inner(x, y), space.norm2(x)
    n = len(a)
    for got, kind in ((inner, np.complex128), (norm2, np.float64)):
        assert isinstance(got, np.ndarray) and got.shape == (n,) and got.dtype == kind, (
            f"got {got!r}, want {(n,)} {kind}"
        )
    wide = [v.astype(np.complex128).reshape(n, -1) for v in (a, b)]
    scale = np.linalg.norm(wide[0], axis=1) * np.linalg.norm(wide[1], axis=1)
    # Single arithmetic is allowed within a site (12 terms), double over sites.
    limit = 4 * case.precision.epsilon if case.precision.name != "double" else 1e-13
    error = np.abs(inner - np.einsum("ni,ni->n", wide[0].conj(), wide[1])) / scale
    assert (error <= limit).all(), f"inner is off by {error} of |x| |y|, allowed {limit:.3g}"
    error = np.abs(norm2 / np.linalg.norm(wide[0], axis=1) ** 2 - 1)
    assert (error <= limit).all(), f"norm2 is off by {error}, allowed {limit:.3g}"
    same_bits(space.unpack(x), a, "x after inner and norm2")


@law("required")
def reductions_accumulate_in_double(case: Case) -> None:
    """Sums over sites keep what single precision loses: 2^24 on one site, ones on an odd number of others."""
    space = case.space()
    a = np.zeros((case.n_rhs, *case.geometry.spinor_shape), case.precision.complex_dtype)
    flat = a.reshape(case.n_rhs, case.geometry.volume, 4, case.nc)
    others = case.geometry.volume - 1 - case.geometry.volume % 2  # odd
    for n in range(case.n_rhs):
        big = (5 * n) % case.geometry.volume
        sites = [s for s in range(case.geometry.volume) if s != big][:others]
        flat[n, sites, n % 4, 0] = 1
        flat[n, big, 1, case.nc - 1] = 4096
    x, want = space.pack(a), 2.0**24 + others
    for name, got in (("norm2", space.norm2(x)), ("inner", space.inner(x, x).real)):
        error = np.abs(got / want - 1).max()
        assert error < 1e-9, f"{name} of 2^24 + {others} ones is off by {error:.2g}: it was not accumulated in double"
    y = space.axpy(1j, x, space.zeros())
    error = np.abs(space.inner(x, y) / (1j * want) - 1).max()
    assert error < 1e-9, f"the imaginary part of inner is off by {error:.2g}"


@law("required")
def gamma5_is_diagonal(case: Case) -> None:
    """gamma5 = diag(1, 1, -1, -1) on spin, a new handle."""
    space, a = case.space(), case.stored(case.spinors())
    x = space.pack(a)
    same_bits(space.unpack(space.gamma5(x)), SIGNS * a, "gamma5 x")
    same_bits(space.unpack(x), a, "x after gamma5")


# --------------------------------------------------------------------------------------------------------------------
# The hopping term


@law("required")
def hopping_agrees_with_loops(case: Case) -> None:
    """H psi equals explicit loops over sites, antiperiodic in t."""
    u, psi = case.links(), case.spinors()
    close(case.hop(u, psi), reference.hopping(u, psi, (-1, 1, 1, 1)), case.tolerance(), "H psi against loops")


@law("required")
def boundary_phases_sit_on_the_edge(case: Case) -> None:
    """A phase in one direction, complex or zero, multiplies the links that leave the last slice, and no others."""
    u, psi = case.links(), case.spinors()
    choices = [tuple(np.exp(0.7j) if d == mu else 1 for d in range(4)) for mu in range(4)] + [PHASES, (0, 1, 1, 1)]
    for phases in choices:
        want = reference.hopping(u, psi, phases)
        close(case.hop(u, psi, phases=phases), want, case.tolerance(), f"H psi with phases {phases}")


@law("required")
def hop_coefficients_scale_directions(case: Case) -> None:
    """c_mu multiplies both hops of direction mu (anisotropic lattices)."""
    u, psi = case.links(), case.spinors()
    for c in (COEFFICIENTS, (0.5, 1.0, 1.5, 2.0)):
        want = reference.hopping(u, psi, PHASES, c)
        close(case.hop(u, psi, phases=PHASES, coefficients=c), want, case.tolerance(), f"H psi with coefficients {c}")


@law("required")
def hopping_is_linear(case: Case) -> None:
    """H (x + a y) = H x + a H y with a complex."""
    u, x, y = case.links(), case.spinors(2), case.spinors(3)
    a = 0.75 - 0.5j
    together = case.hop(u, (x + a * y).astype(x.dtype))
    close(together, case.hop(u, x) + a * case.hop(u, y), case.tolerance(2), "H (x + a y)")


@law("required")
def hopping_is_gamma5_hermitian(case: Case) -> None:
    """<x, gamma5 H gamma5 y> = <H x, y> for any phases and coefficients, by inner products inside the backend."""
    space, u = case.space(), case.links()
    hop = case.instance.hopping(case.record(u, PHASES, COEFFICIENTS), space)
    x, y = space.pack(case.spinors(2)), space.pack(case.spinors(3))
    left = space.inner(x, space.gamma5(hop(space.gamma5(y))))
    right = space.inner(hop(x), y)
    scale = np.sqrt(space.norm2(x) * space.norm2(hop(y)))
    error = (np.abs(left - right) / scale).max()
    assert error <= case.tolerance(), (
        f"<x, g5 H g5 y> and <H x, y> differ by {error:.3g}, allowed {case.tolerance():.3g}"
    )


@law("required")
def hopping_is_gauge_covariant(case: Case) -> None:
    """H[U^g] (g psi) = g H[U] psi for a random g(x)."""
    u, psi = case.links(), case.spinors()
    g = _random_su(9, case.lattice, case.nc)
    turned = np.empty_like(u)
    for mu in range(4):
        turned[..., mu, :, :] = g @ u[..., mu, :, :] @ np.roll(g, -1, axis=mu).conj().swapaxes(-1, -2)

    def rotate(v):
        return np.einsum("tzyxab,ntzyxsb->ntzyxsa", g, v)

    got = case.hop(turned, rotate(psi).astype(psi.dtype))
    close(got, rotate(case.hop(u, psi)), case.tolerance(2), "H[U^g] g psi")


@law("required")
def free_plane_waves_are_eigenvectors(case: Case) -> None:
    r"""On U = 1, H e^{ipx} w = sum_mu (cos p_mu - i gamma_mu sin p_mu) e^{ipx} w, p_mu = (2 pi n_mu + theta_mu) / L_mu."""
    u = np.zeros((*case.lattice, 4, case.nc, case.nc), complex)
    u[...] = np.eye(case.nc)
    rng = np.random.default_rng(5)
    w = rng.normal(size=(4, case.nc)) + 1j * rng.normal(size=(4, case.nc))
    modes = [tuple((k + 1 + n) % e for k, e in enumerate(case.lattice)) for n in range(case.n_rhs)]
    waves, wants = [], []
    for mode in modes:
        p = [(2 * np.pi * k + np.angle(f)) / e for k, f, e in zip(mode, PHASES, case.lattice)]
        wave = np.exp(1j * sum(p[d] * c for d, c in enumerate(np.indices(case.lattice))))
        spin = sum(np.cos(p[d]) * np.eye(4) - 1j * np.sin(p[d]) * reference.GAMMAS[d] for d in range(4))
        waves.append(wave[..., None, None] * w)
        wants.append(wave[..., None, None] * (spin @ w))
    psi = np.array(waves).astype(case.precision.complex_dtype)
    # Free waves can nearly cancel: the error is measured against the eight terms, not against their sum.
    got, want = case.hop(u, psi, phases=PHASES), np.array(wants)
    error = np.linalg.norm(got - want) / (4 * np.linalg.norm(psi))
    assert error <= case.tolerance(), f"a free plane wave is off by {error:.3g}, allowed {case.tolerance():.3g}"


@law("required")
def hopping_flips_parity(case: Case) -> None:
    """A spinor on even sites lands on odd sites exactly, and the other way round."""
    case.need_parity()
    u, psi, even = case.links(), case.spinors(), case.geometry.site_parity == 0
    for on in (even, ~even):
        half = psi * on[..., None, None]
        got = case.hop(u, half)
        assert not got[:, on].any(), "H left something on the parity it came from"
        assert got[:, ~on].any(), "H gave nothing on the other parity"


@law("required")
def columns_are_independent(case: Case) -> None:
    """A batch gives what its columns give one by one."""
    u, psi = case.links(), case.spinors()
    together = case.hop(u, psi)
    for n in range(case.n_rhs):
        close(case.hop(u, psi[n : n + 1])[0], together[n], case.tolerance(), f"column {n} alone")
    space = case.space()
    x = space.pack(psi)
    norms = [case.space(n_rhs=1).norm2(case.space(n_rhs=1).pack(psi[n : n + 1]))[0] for n in range(case.n_rhs)]
    close(space.norm2(x), norms, 4 * case.precision.epsilon, "norms of a batch")


@law("required")
def binds_share_no_state(case: Case) -> None:
    """Two hopping terms bound in turn to different links do not disturb each other."""
    space, psi = case.space(), case.spinors()
    u, w = case.links(1), case.links(11)
    first = case.instance.hopping(case.record(u), space)
    second = case.instance.hopping(case.record(w, PHASES), space)
    x = space.pack(psi)
    for got, want in (
        (first(x), reference.hopping(u, psi, (-1, 1, 1, 1))),
        (second(x), reference.hopping(w, psi, PHASES)),
        (first(x), reference.hopping(u, psi, (-1, 1, 1, 1))),
    ):
        close(space.unpack(got), want, case.tolerance(), "H of one bind after another bind")


@law("required")
def inputs_are_unchanged(case: Case) -> None:
    """H changes neither its argument nor the links; links changed after the bind do not reach it."""
    space, psi, u = case.space(), case.spinors(), case.links()
    original, x = u.copy(), space.pack(psi)
    before = space.unpack(x)
    hop = case.instance.hopping(case.record(u, PHASES, COEFFICIENTS), space)
    want = space.unpack(hop(x))
    same_bits(u, original, "the links after bind and H")
    same_bits(space.unpack(x), before, "psi after H")
    u[...] = 0
    same_bits(space.unpack(hop(x)), want, "H psi after the caller overwrote its links")


@law("required")
def nan_passes_through(case: Case) -> None:
    """A NaN in one column reaches its neighbours and its norm, and no other column."""
    space, psi = case.space(), case.spinors()
    psi[1, 0, 0, 0, 0, 0, 0] = np.nan
    x = space.pack(psi)
    y = case.instance.hopping(case.record(case.links()), space)(x)
    norm2, got = space.norm2(y), space.unpack(y)
    bad = np.isnan(norm2)
    assert bad[1] and not np.delete(bad, 1).any(), f"norm2 of a batch with a NaN in column 1 is {norm2}"
    assert np.isnan(space.inner(x, y)[1]), "inner lost a NaN"
    for mu in range(4):
        for by in (1, -1):
            site, _ = reference.step((0, 0, 0, 0), mu, by, case.lattice)
            assert np.isnan(got[(1, *site)]).any(), f"a neighbour of a NaN at {site} is finite"


@law("required")
def two_threads_bind_and_apply(case: Case) -> None:
    """Two Python threads that bind and apply at once get what each gets alone."""
    psi = case.spinors()
    links = [case.links(1), case.links(11)]
    want = [case.hop(u, psi) for u in links]
    got: list[list[np.ndarray]] = [[], []]
    failures: list[BaseException] = []
    start = threading.Barrier(2)

    def work(k: int) -> None:
        try:
            start.wait(30)
            for _ in range(4):
                got[k].append(case.hop(links[k], psi))
        except BaseException as error:  # reported in the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, f"a thread failed: {failures[0]!r}"
    for k in range(2):
        for result in got[k]:
            close(result, want[k], case.tolerance(), f"H psi in thread {k}")


# --------------------------------------------------------------------------------------------------------------------
# Operators that the core derives, or the backend fuses


def definitions() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Operator name -> (definition, the same parameters for :func:`lqcd_core.testing.reference.dirac`)."""
    common = dict(mass=0.13, boundary=PHASES, xi0=2.0, nu=0.9)
    explicit = dict(mass=0.13, phases=PHASES, xi0=2.0, nu=0.9)
    return {
        "wilson": (WilsonDirac(**common), explicit),
        "clover": (CloverWilsonDirac(csw_r=1.1, csw_t=0.8, **common), {**explicit, "csw_r": 1.1, "csw_t": 0.8}),
        "twisted_mass": (TwistedMassDirac(mu=0.21, **common), {**explicit, "mu": 0.21}),
        "twisted_clover": (
            TwistedMassDirac(mu=0.21, csw=1.1, **common), {**explicit, "mu": 0.21, "csw_r": 1.1, "csw_t": 1.1}
        ),
    }  # fmt: skip


def served(case: Case) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The definitions that the backend serves in this case."""
    return {name: pair for name, pair in definitions().items() if case.why_not(name) is None}


@law("required")
def operators_agree_with_loops(case: Case) -> None:
    """M psi of every operator served equals explicit loops: mass, phases, anisotropy, clover, twist."""
    u, psi = case.links(), case.spinors()
    for name, (definition, explicit) in served(case).items():
        close(case.bind(definition, u)(psi), reference.dirac(u, psi, **explicit), case.tolerance(2), f"M psi of {name}")


@law("required")
def dagger_is_the_adjoint(case: Case) -> None:
    """<x, M y> = <M^dagger x, y>, and normal is M^dagger M."""
    u, a, b = case.links(), case.spinors(2), case.spinors(3)
    for name, (definition, _) in served(case).items():
        m = case.bind(definition, u)
        v = m.vectors
        x, y = v.pack(a), v.pack(b)
        left, right = v.inner(x, m.apply(y)), v.inner(m.apply_dagger(x), y)
        scale = np.sqrt(v.norm2(x) * v.norm2(m.apply(y)))
        error = (np.abs(left - right) / scale).max()
        assert error <= case.tolerance(2), f"{name}: <x, M y> and <M^dagger x, y> differ by {error:.3g}"
        close(
            v.unpack(m.apply_normal(x)), v.unpack(m.apply_dagger(m.apply(x))), case.tolerance(3), f"{name}: M^dagger M"
        )


@law("required")
def clover_without_csw_is_wilson(case: Case) -> None:
    """csw = 0 gives back the Wilson operator."""
    u, psi = case.links(), case.spinors()
    clover = case.bind(CloverWilsonDirac(mass=0.1, csw=0.0), u)
    close(clover(psi), case.bind(WilsonDirac(mass=0.1), u)(psi), case.tolerance(), "clover with csw = 0")


@law("required")
def twisted_dagger_flips_mu(case: Case) -> None:
    """M(mu)^dagger = gamma5 M(-mu) gamma5, and M(mu) - M(-mu) = 2 i mu gamma5."""
    u, psi = case.links(), case.spinors()
    for csw in (0.0, 1.2):
        plus, minus = (TwistedMassDirac(mass=0.1, mu=mu, csw=csw) for mu in (0.3, -0.3))
        if case.why_not(plus.name):
            continue
        plus, minus = case.bind(plus, u), case.bind(minus, u)
        g5 = SIGNS * psi
        close(plus.dagger(psi), SIGNS * minus(g5), case.tolerance(2), f"M(mu)^dagger with csw = {csw}")
        twist = 0.6j * g5
        error = np.linalg.norm(plus(psi) - minus(psi) - twist) / np.linalg.norm(plus(psi))
        assert error <= case.tolerance(2), f"M(mu) - M(-mu) with csw = {csw} is off by {error:.3g}"


@law("required")
def schur_complement_eliminates_a_parity(case: Case) -> None:
    """With b = M x: Mhat x_p = bhat, and reconstruct gives x_q. Both forms, both parities, every operator."""
    case.need_parity()
    u, x = case.links(), case.spinors()
    for name, (definition, explicit) in served(case).items():
        m = case.bind(definition, u)
        b = reference.dirac(u, x, **explicit).astype(x.dtype)
        for form in ("symmetric", "asymmetric"):
            for parity in (EVEN, ODD):
                s = m.even_odd(parity, form)
                what = f"{form} Schur complement of {name} on parity {parity}"
                x_p, _ = s.split(x)
                b_p, b_q = s.split(b)
                bhat = s.vectors.unpack(s.prepare(b_p, b_q))
                close(s.vectors.unpack(s.apply(x_p)), bhat, case.tolerance(8), what)
                back = s.join(x_p, s.reconstruct(x_p, b_q))
                close(back, x, case.tolerance(8), f"reconstruction by the {what}")


@law("required")
def schur_dagger_is_the_adjoint(case: Case) -> None:
    """<x, Mhat y> = <Mhat^dagger x, y> on either parity, and the normal operator is their product."""
    case.need_parity()
    u, a, b = case.links(), case.spinors(2), case.spinors(3)
    for name, (definition, _) in served(case).items():
        m = case.bind(definition, u)
        for form in ("symmetric", "asymmetric"):
            for parity in (EVEN, ODD):
                s = m.even_odd(parity, form)
                v = s.vectors
                x, y = s.split(a)[0], s.split(b)[0]
                left, right = v.inner(x, s.apply(y)), v.inner(s.apply_dagger(x), y)
                error = (np.abs(left - right) / np.sqrt(v.norm2(x) * v.norm2(s.apply(y)))).max()
                what = f"{form} Schur complement of {name} on parity {parity}"
                assert error <= case.tolerance(6), f"{what}: <x, Mhat y> and <Mhat^dagger x, y> differ by {error:.3g}"
                normal = v.unpack(s.apply_dagger(s.apply(x)))
                close(v.unpack(s.apply_normal(x)), normal, case.tolerance(8), f"normal {what}")


@law("required")
def solution_has_the_true_residual(case: Case) -> None:
    """M M^-1 = 1: the residual of a solve, recomputed by explicit loops in double, is what was asked for."""
    from ..solvers import ConjugateGradient, solve

    u, b = case.links(), case.spinors()
    definition, explicit = definitions()["wilson"]
    tolerance = {"double": 1e-10, "single": 1e-4}.get(case.precision.name)
    if tolerance is None:
        raise NotApplicable(f"a solve in {case.precision} alone has no true residual to speak of; MixedPrecision does")
    m = case.bind(definition, u)
    x, info = solve(m, b, ConjugateGradient(tol=tolerance, maxiter=2000))
    for n in range(case.n_rhs):
        r = b[n : n + 1] - reference.dirac(u, x[n : n + 1], **explicit)
        true = np.linalg.norm(r) / np.linalg.norm(b[n])
        assert true <= 1.5 * tolerance, (
            f"column {n}: the true residual is {true:.3g}, asked for {tolerance:.3g} ({info})"
        )


# --------------------------------------------------------------------------------------------------------------------
# Optional protocols, each held to the derived path


@law("even_odd")
def parity_hops_are_parts_of_the_full_hop(case: Case) -> None:
    """H_oe + H_eo = H: each parity hop equals the full hopping term between the two halves."""
    case.need_parity()
    g, u, psi = case.geometry, case.links(), case.spinors()
    full = reference.hopping(u, psi, PHASES, COEFFICIENTS)
    record = case.record(u, PHASES, COEFFICIENTS)
    for target in (EVEN, ODD):
        here, there = case.space(parity=target), case.space(parity=1 - target)
        assert here.parity == target, f"space(parity={target}) says parity {here.parity}"
        x = there.pack(g.split_parity(psi, 1 - target, lead=1))
        before = there.unpack(x)
        got = here.unpack(case.instance.parity_hopping(record, here)(x))
        close(got, g.split_parity(full, target, lead=1), case.tolerance(), f"the hop onto parity {target}")
        same_bits(there.unpack(x), before, "the argument of a parity hop")


@law("even_odd")
def parity_spaces_are_spaces(case: Case) -> None:
    """The seven operations on one parity: round trip, axpy, inner, gamma5; full-lattice arrays are refused."""
    case.need_parity()
    for parity in (EVEN, ODD):
        space, a, b = case.space(parity=parity), case.spinors(2, parity=parity), case.spinors(3, parity=parity)
        x = space.pack(a)
        a = space.unpack(x)
        close(space.unpack(space.axpy(0.5j, x, space.pack(b))), b + 0.5j * a, case.tolerance(), "axpy on one parity")
        same_bits(space.unpack(space.gamma5(x)), SIGNS * a, "gamma5 on one parity")
        want = (np.abs(a.astype(np.complex128)) ** 2).reshape(len(a), -1).sum(1)
        close(space.norm2(x), want, max(4 * case.precision.epsilon, 1e-13), "norm2 on one parity")
        assert not space.unpack(space.zeros()).any(), "zeros on one parity"
        try:
            space.pack(case.spinors())
        except FieldShapeError:
            continue
        raise AssertionError("a space on one parity packed a full-lattice array")


def _terms(case: Case, parity=FULL) -> dict[str, SiteDiagonal]:
    """Site-diagonal terms of every kind: scalar, twist, Hermitian blocks, both, and an inverse."""
    sites = case.geometry.parity_shape(parity)[:4]
    rng = np.random.default_rng(6)
    shape = (*sites, 2, 2 * case.nc, 2 * case.nc)
    b = 0.2 * (rng.normal(size=shape) + 1j * rng.normal(size=shape))
    b = b + b.conj().swapaxes(-1, -2)
    clover = SiteDiagonal(scalar=4.1, blocks=b)
    both = SiteDiagonal(scalar=4.1, blocks=b, twist=0.3)
    return {
        "scalar": SiteDiagonal(scalar=4.1), "twist": SiteDiagonal(scalar=4.1, twist=0.3), "blocks": clover,
        "blocks and twist": both, "inverse of blocks": clover.inverse(), "inverse of blocks and twist": both.inverse(),
        "adjoint inverse": both.inverse().dagger(),
    }  # fmt: skip


def _apply_term(term: SiteDiagonal, psi: np.ndarray) -> np.ndarray:
    """A psi entry by entry in double."""
    psi = psi.astype(np.complex128)
    out = (term.scalar + 1j * term.twist * SIGNS) * psi
    if term.blocks is not None:
        nc = psi.shape[-1]
        blocks = term.blocks.reshape(*term.blocks.shape[:-3], 2, 2, nc, 2, nc)
        for c in range(2):
            half = psi[..., 2 * c : 2 * c + 2, :]
            out[..., 2 * c : 2 * c + 2, :] += np.einsum("tzyxiajb,ntzyxjb->ntzyxia", blocks[..., c, :, :, :, :], half)
    return out


@law("site_diagonal")
def site_terms_agree_with_the_host(case: Case) -> None:
    """A x for scalar, twisted, Hermitian and general blocks, on the full lattice and on each parity."""
    parities = [FULL]
    if isinstance(case.instance, SupportsEvenOdd) and case.geometry.why_no_parity() is None:
        parities += [EVEN, ODD]
    for parity in parities:
        space, psi = case.space(parity=parity), case.spinors(parity=parity)
        for name, term in _terms(case, parity).items():
            x = space.pack(psi)
            before = space.unpack(x)
            got = space.unpack(case.instance.site_diagonal(term, space)(x))
            close(got, _apply_term(term, psi), case.tolerance(), f"A psi with {name}, parity {parity}")
            same_bits(space.unpack(x), before, f"psi after A with {name}")


@law("fused_dirac")
def fused_operators_agree_with_derived(case: Case) -> None:
    """Each fused kind equals M = A - H and its relatives put together from loops in double."""
    u, psi = case.links(), case.spinors()
    offered: set[str] = set()
    operators = served(case)
    for name, (definition, explicit) in operators.items():
        term = definition.site_diagonal(u)
        record = case.record(u, definition.boundary, definition.hop_coefficients)
        terms = DiracTerms(links=record, diagonal=term)
        space = case.space()

        def m(v, sign=1, explicit=explicit):
            return reference.dirac(u, v, **{**explicit, "mu": sign * explicit.get("mu", 0.0)})

        def m_dagger(v, m=m):
            return SIGNS * m(SIGNS * v, -1)

        for kind, want in (("M", m), ("Mdag", m_dagger), ("MdagM", lambda v, m=m, d=m_dagger: d(m(v)))):
            function = case.instance.fused(kind, terms, space)
            if function is None:
                continue
            offered.add(kind)
            x = space.pack(psi)
            before = space.unpack(x)
            close(space.unpack(function(x)), want(psi), case.tolerance(len(kind) - 1 or 1), f"fused {kind} of {name}")
            same_bits(space.unpack(x), before, f"psi after fused {kind}")
        richest = name == list(operators)[-1]  # one set of Schur complements is enough, the one with every term
        if richest and case.geometry.why_no_parity() is None and isinstance(case.instance, SupportsEvenOdd):
            offered |= _check_fused_schur(case, name, terms, psi)
    assert offered <= set(FUSED_KINDS)
    if not offered:
        raise NotApplicable(f"backend {case.backend!r} fuses nothing in this case")


def _check_fused_schur(case: Case, name: str, terms: DiracTerms, psi: np.ndarray) -> set[str]:
    g, links, offered = case.geometry, terms.links, set()
    halves = {k: g.split_parity(psi, k, lead=1) for k in (EVEN, ODD)}
    a = {k: terms.diagonal.on_parity(g, k) for k in (EVEN, ODD)}

    def hop(v, target):
        full = g.join_parity(*((None, v) if target == EVEN else (v, None)), lead=1)
        return g.split_parity(reference.hopping(links.array, full, links.phases, links.coefficients), target, lead=1)

    for p in (EVEN, ODD):
        q = 1 - p
        for form in ("asymmetric", "symmetric"):

            def schur(v, dagger, p=p, q=q, form=form):
                a_p, inv_p, inv_q = (t.dagger() if dagger else t for t in (a[p], a[p].inverse(), a[q].inverse()))
                g5 = SIGNS if dagger else 1
                if form == "symmetric" and dagger:
                    inner = _apply_term(inv_p, v)
                    return v - g5 * hop(_apply_term(inv_q, hop(g5 * inner, q)), p)
                around = g5 * hop(_apply_term(inv_q, hop(g5 * v, q)), p)
                return v - _apply_term(inv_p, around) if form == "symmetric" else _apply_term(a_p, v) - around

            evolved = attrs.evolve(terms, parity=p, form=form)
            space = case.space(parity=p)
            for kind in ("schur", "schur_dag", "schur_normal"):
                function = case.instance.fused(kind, evolved, space)
                if function is None:
                    continue
                offered.add(kind)
                got = space.unpack(function(space.pack(halves[p])))
                want = schur(halves[p], kind == "schur_dag")
                want = schur(want, True) if kind == "schur_normal" else want
                close(got, want, case.tolerance(8), f"fused {form} {kind} of {name} on parity {p}")
    return offered


@law("fused_blas")
def fused_updates_agree_with_axpy(case: Case) -> None:
    """axpy_norm2 and cg_update equal axpy followed by norm2, with one number or one per column."""
    space = case.space()
    p, ap, x, r = (case.spinors(seed) for seed in (2, 3, 4, 5))
    for a in (0.4, np.linspace(-1, 1, case.n_rhs), np.linspace(-1, 1, case.n_rhs) * (1 - 1j)):
        hp, hap = space.pack(p), space.pack(ap)
        y, norm2 = space.axpy_norm2(a, hp, space.pack(r))
        want = space.axpy(a, hp, space.pack(r))
        close(space.unpack(y), space.unpack(want), case.tolerance(), "axpy_norm2, the vector")
        close(norm2, space.norm2(y), 4 * case.precision.epsilon, "axpy_norm2, the norm")
        new_x, new_r, rr = space.cg_update(a, hp, hap, space.pack(x), space.pack(r))
        close(space.unpack(new_x), space.unpack(space.axpy(a, hp, space.pack(x))), case.tolerance(), "cg_update, x")
        minus = space.axpy(-np.asarray(a), hap, space.pack(r))
        close(space.unpack(new_r), space.unpack(minus), case.tolerance(), "cg_update, r")
        close(rr, space.norm2(new_r), 4 * case.precision.epsilon, "cg_update, the norm")
        same_bits(space.unpack(hp), case.stored(p), "p after cg_update")
        same_bits(space.unpack(hap), case.stored(ap), "A p after cg_update")


@law("exact_slices")
def slices_sum_to_the_inner_product(case: Case) -> None:
    """inner_slices(x, y)[n, t] is the sum over slice t; the bits of a column do not depend on its batch."""
    space, a, b = case.space(), case.stored(case.spinors(2)), case.stored(case.spinors(3))
    x, y = space.pack(a), space.pack(b)
    got = space.inner_slices(x, y)
    assert got.shape == (case.n_rhs, case.lattice[0]) and got.dtype == np.complex128, f"slices: {got.shape} {got.dtype}"
    terms = (a.astype(np.complex128).conj() * b).reshape(case.n_rhs, case.lattice[0], -1)
    error = np.abs(got - terms.sum(-1)) / np.abs(terms).sum(-1)
    assert error.max() <= 4 * case.precision.epsilon, f"a slice is off by {error.max():.3g}"
    one = case.space(n_rhs=1)
    for n in range(case.n_rhs):
        alone = one.inner_slices(one.pack(a[n : n + 1]), one.pack(b[n : n + 1]))
        same_bits(alone[0], got[n], f"slices of column {n} alone")


@law("fused_slices")
def fused_slices_agree_with_axpy(case: Case) -> None:
    """The sliced updates leave axpy's vectors and the new one's norm by slices; a column's bits do not depend on its batch."""
    space, one = case.space(), case.space(n_rhs=1)
    p, ap, x, r = (case.spinors(seed) for seed in (2, 3, 4, 5))
    shape, a = (case.n_rhs, case.lattice[0]), np.linspace(-1, 1, case.n_rhs) + 0.5

    def norms(vector, got, what):
        assert got.shape == shape and got.dtype == np.float64, f"{what}: {got.shape} {got.dtype}"
        squares = (np.abs(space.unpack(vector).astype(np.complex128)) ** 2).reshape(*shape, -1).sum(-1)
        close(got, squares, 4 * case.precision.epsilon, f"{what}, a slice")
        same_bits(space.norm2_slices(vector), got, f"{what} and norm2_slices of its vector")

    hp, hap = space.pack(p), space.pack(ap)
    y, axpy_slices = space.axpy_norm2_slices(a, hp, space.pack(r))
    close(space.unpack(y), space.unpack(space.axpy(a, hp, space.pack(r))), case.tolerance(), "axpy_norm2_slices")
    norms(y, axpy_slices, "axpy_norm2_slices")
    new_x, new_r, cg_slices = space.cg_update_slices(a, hp, hap, space.pack(x), space.pack(r))
    close(space.unpack(new_x), space.unpack(space.axpy(a, hp, space.pack(x))), case.tolerance(), "cg_update_slices, x")
    close(
        space.unpack(new_r), space.unpack(space.axpy(-a, hap, space.pack(r))), case.tolerance(), "cg_update_slices, r"
    )
    norms(new_r, cg_slices, "cg_update_slices")
    same_bits(space.unpack(hp), case.stored(p), "p after cg_update_slices")
    same_bits(space.unpack(hap), case.stored(ap), "A p after cg_update_slices")
    for n in range(case.n_rhs):
        column = [one.pack(v[n : n + 1]) for v in (p, ap, x, r)]
        *_, alone = one.cg_update_slices(a[n], *column)
        same_bits(alone[0], cg_slices[n], f"slices of column {n} alone")


@law("columns")
def columns_leave_and_come_back(case: Case) -> None:
    """take gives these columns in this order, put replaces them, and every operation works on fewer columns."""
    space, psi, u = case.space(), case.spinors(), case.links()
    x = space.pack(psi)
    full = space.unpack(x)
    columns = [case.n_rhs - 1, 0]
    part = space.take(x, columns)
    same_bits(space.unpack(part), full[columns], "take")
    hop = case.instance.hopping(case.record(u), space)
    few, all_of_them = hop(part), hop(x)
    close(space.unpack(few), space.unpack(all_of_them)[columns], case.tolerance(), "H on fewer columns")
    close(space.norm2(few), space.norm2(all_of_them)[columns], 4 * case.precision.epsilon, "norm2 on fewer columns")
    moved = space.axpy(np.array([2.0, 3.0]), part, space.take(x, [1, 1]))
    want = full[[1, 1]] + np.array([2.0, 3.0]).reshape(2, *(1,) * 6) * full[columns]
    close(space.unpack(moved), want, case.tolerance(), "axpy with one number per column on fewer columns")
    same_bits(space.unpack(space.gamma5(part)), SIGNS * full[columns], "gamma5 on fewer columns")
    put = space.put(space.pack(psi), columns, part)
    same_bits(space.unpack(put), full, "put of what was taken")
    other = space.unpack(space.put(space.pack(psi), [1], space.take(x, [0])))
    same_bits(other[1], full[0], "the column that put replaced")
    same_bits(np.delete(other, 1, 0), np.delete(full, 1, 0), "the columns that put left alone")
    same_bits(space.unpack(x), full, "x after take")


@law("columns")
def derived_operators_work_on_fewer_columns(case: Case) -> None:
    """M, M^dagger and the Schur complement of every operator accept fewer columns than were bound."""
    u, psi = case.links(), case.spinors()
    for name, (definition, _) in served(case).items():
        m = case.bind(definition, u)
        operators = [("M", m.vectors, m.apply, m.apply_dagger, m.vectors.pack(psi))]
        if case.geometry.why_no_parity() is None:
            for form in ("symmetric", "asymmetric"):
                s = m.even_odd(EVEN, form)
                operators.append((f"{form} Mhat", s.vectors, s.apply, s.apply_dagger, s.split(psi)[0]))
        for what, v, forward, backward, x in operators:
            if not v.resizable:
                continue
            for function in (forward, backward):
                want = v.unpack(function(x))[[1]]
                close(v.unpack(function(v.take(x, [1]))), want, case.tolerance(), f"{what} of {name} on one column")


class _Foreign:
    """A space that no backend knows."""

    def __init__(self, like: Space):
        self.geometry, self.precision, self.n_rhs, self.parity = like.geometry, like.precision, like.n_rhs, like.parity
        self.resizable = False


@law("conversion")
def conversion_rounds_once(case: Case) -> None:
    """convert_from gives what the host way gives, for every precision served; a foreign space is left to the host."""
    here, info = case.space(), REGISTRY.record(case.backend)
    for name in sorted(info.precisions & set(PRECISIONS) - {"fixed16"}):
        there = case.space(precision=name)
        psi = case.spinors().astype(PRECISIONS[name].complex_dtype)
        x = there.pack(psi)
        kept = there.unpack(x)
        got = here.convert_from(x, there)
        assert got is not None, f"a handle of the same backend in {name} was called foreign"
        same_bits(here.unpack(got), here.unpack(here.pack(kept)), f"conversion from {name}")
        here.axpy(1.0, here.pack(case.spinors()), got)
        same_bits(there.unpack(x), kept, f"the {name} handle after its conversion was consumed")
    assert here.convert_from(object(), _Foreign(here)) is None, "a handle of a foreign space was not left to the host"


@law("arrays")
def arrays_are_canonical(case: Case) -> None:
    """to_array gives the canonical array of the backend's own library, equal to unpack."""
    space = case.space()
    x = space.pack(case.spinors())
    array = space.to_array(x)
    assert tuple(array.shape) == (case.n_rhs, *case.geometry.spinor_shape), f"to_array gave the shape {array.shape}"
    from ..arrays import library_of, to_numpy

    allowed = REGISTRY.record(case.backend).arrays
    assert library_of(array) in allowed, (
        f"to_array gave a {library_of(array)} array; the record lists {sorted(allowed)}"
    )
    same_bits(to_numpy(array), space.unpack(x), "to_array and unpack")


def record_of(seen: list) -> Callable[[int, Any], None]:
    """A callback that keeps what it is told."""
    return lambda iteration, residuals: seen.append(np.array(residuals))


@law("device_solve")
def device_solve_reaches_its_target(case: Case) -> None:
    """A solve inside the backend leaves b and x0 alone and gives x with the true residual asked for, or says None."""
    u, b, start = case.links(), case.spinors(2), case.spinors(3)
    target = {"double": 1e-9}.get(case.precision.name, 1e-4)
    offered = False
    for name, (definition, explicit) in served(case).items():
        m = case.bind(definition, u)
        for x0 in (None, start):
            handles = [m.space.pack(a) for a in (b, start)]
            kept = [m.space.unpack(h) for h in handles]
            parameters = {
                "solver": "ConjugateGradient", "tol": target, "maxiter": 2000, "targets": [target] * case.n_rhs,
                "even_odd": False, "form": "symmetric", "parity": EVEN,
            }  # fmt: skip
            seen: list[np.ndarray] = []
            answer = case.instance.solve(
                m,
                None,
                handles[0],
                None if x0 is None else handles[1],
                parameters,
                record_of(seen),
            )
            if answer is None:
                continue
            offered = True
            x, said = answer
            assert isinstance(said, Mapping), f"solve() said {said!r}, not a mapping"
            assert all(r.shape == (case.n_rhs,) for r in seen), "callback was called with another shape than (n,)"
            x = m.space.unpack(x)
            for n in range(case.n_rhs):
                r = kept[0][n : n + 1] - reference.dirac(u, x[n : n + 1], **explicit)
                true = np.linalg.norm(r) / np.linalg.norm(b[n])
                assert true <= 2 * target, f"{name}, column {n}: the true residual is {true:.3g}, target {target:.3g}"
            for handle, before in zip(handles, kept):
                same_bits(m.space.unpack(handle), before, "b or x0 after a solve")
    if not offered:
        raise NotApplicable(f"backend {case.backend!r} leaves this solve to the core")


@law("halo")
def slabs_with_faces_are_the_whole(case: Case) -> None:
    """H of two slabs that exchange faces equals H of the lattice, in full and from parity to parity."""
    if case.lattice[0] < 4:
        raise NotApplicable(f"cutting T = {case.lattice[0]} leaves a slab of fewer than two slices")
    u, psi = case.links(), case.spinors()
    cut = 2
    ranges = (slice(0, cut), slice(cut, case.lattice[0]))
    phases = [(1, *PHASES[1:]), PHASES]
    parities = [FULL]
    if isinstance(case.instance, SupportsEvenOdd) and case.geometry.why_no_parity() is None:
        parities += [EVEN, ODD]
    for parity in parities:
        source = psi if parity is FULL else case.geometry.split_parity(psi, 1 - parity, lead=1)
        want = reference.hopping(u, _embed(case, source, parity), PHASES, COEFFICIENTS)
        want = want if parity is FULL else case.geometry.split_parity(want, parity, lead=1)
        hops, handles, spaces = [], [], []
        for piece, phase in zip(ranges, phases):
            g = attrs.evolve(case.geometry, T=piece.stop - piece.start)
            target = case.instance.space(g, case.precision, case.n_rhs, parity)
            other = case.instance.space(g, case.precision, case.n_rhs, FULL if parity is FULL else 1 - parity)
            slab = u[piece]
            hops.append(case.instance.halo_hopping(Links(g, slab, phase, COEFFICIENTS, digest_of(slab)), target))
            handles.append(other.pack(source[:, piece]))
            spaces.append((target, other))
        faces = [hop.faces(x) for hop, x in zip(hops, handles)]
        for down, up in faces:
            limit = (
                case.n_rhs
                * np.prod(case.geometry.parity_shape(parity)[1:])
                // 2
                * 2
                * case.precision.real_dtype.itemsize
            )
            assert down.nbytes <= limit and up.nbytes <= limit, "a face is larger than the half spinors of a slice"
        for k, (hop, x) in enumerate(zip(hops, handles)):
            before = spaces[k][1].unpack(x)
            got = hop.exterior(x, hop.interior(x), faces[1 - k][1].copy(), faces[1 - k][0].copy())
            close(spaces[k][0].unpack(got), want[:, ranges[k]], case.tolerance(), f"slab {k}, parity {parity}")
            same_bits(spaces[k][1].unpack(x), before, f"psi of slab {k} after H")


@law("fused_halo")
def fused_slabs_are_the_whole(case: Case) -> None:
    """M and M^dagger of two slabs that exchange faces equal those of the lattice, for every operator served."""
    if case.lattice[0] < 4:
        raise NotApplicable(f"cutting T = {case.lattice[0]} leaves a slab of fewer than two slices")
    u, psi = case.links(), case.spinors()
    ranges, offered = (slice(0, 2), slice(2, case.lattice[0])), False
    for name, (definition, explicit) in served(case).items():
        term = definition.site_diagonal(u)
        twisted = {**explicit, "mu": -explicit.get("mu", 0.0)}
        wants = {"M": reference.dirac(u, psi, **explicit), "Mdag": SIGNS * reference.dirac(u, SIGNS * psi, **twisted)}
        for kind, want in wants.items():
            hops, handles, spaces = [], [], []
            for k, piece in enumerate(ranges):
                g = attrs.evolve(case.geometry, T=piece.stop - piece.start)
                phases = (definition.boundary[0] if k else 1, *definition.boundary[1:])
                slab = u[piece]
                blocks = None if term.blocks is None else term.blocks[piece]
                terms = DiracTerms(
                    links=Links(g, slab, phases, definition.hop_coefficients, digest_of(slab)),
                    diagonal=attrs.evolve(term, blocks=blocks),
                )
                spaces.append(case.instance.space(g, case.precision, case.n_rhs))
                hops.append(case.instance.halo_fused(kind, terms, spaces[-1]))
                handles.append(spaces[-1].pack(psi[:, piece]))
            if None in hops:
                continue
            offered = True
            faces = [hop.faces(x) for hop, x in zip(hops, handles)]
            for k, (hop, x) in enumerate(zip(hops, handles)):
                got = hop.exterior(x, hop.interior(x), faces[1 - k][1].copy(), faces[1 - k][0].copy())
                close(spaces[k].unpack(got), want[:, ranges[k]], case.tolerance(2), f"{kind} of {name} on slab {k}")
                same_bits(spaces[k].unpack(x), _kept(spaces[k], psi[:, ranges[k]]), f"psi of slab {k} after {kind}")
    if not offered:
        raise NotApplicable(f"backend {case.backend!r} fuses nothing on slabs in this case")


def _kept(space: Space, array: np.ndarray) -> np.ndarray:
    """The numbers that a space keeps of an array."""
    return space.unpack(space.pack(array))


def _embed(case: Case, half: np.ndarray, target) -> np.ndarray:
    """A spinor on the parity that hops to ``target`` as one on the full lattice (itself for FULL)."""
    if target is FULL:
        return half
    return case.geometry.join_parity(*((None, half) if target == EVEN else (half, None)), lead=1)


@law("describes")
def description_is_plain_data(case: Case) -> None:
    """describe() gives short strings by name, fit for files."""
    facts = case.instance.describe()
    assert facts and all(isinstance(k, str) and isinstance(v, str) for k, v in facts.items()), (
        f"describe() gave {facts!r}"
    )


@law("gauge")
def gauge_kernels_agree_with_the_formulas(case: Case) -> None:
    """Each formula of links that the backend offers agrees with the core's NumPy and leaves its arguments alone."""
    from .. import gauge
    from ..fields import project_su
    from ..gauge.links import PLANES, links_of
    from ..gauge.loops import plane_sum
    from ..gauge.update import CheckerboardLinks
    from ..selection import use_backend

    rng = np.random.default_rng(7)
    offered = False

    def agree(kind: str, kernel, arguments: tuple, want, what: str = "", tolerance: float = 1e-11) -> None:
        before = [np.copy(a) for a in arguments if isinstance(a, np.ndarray)]
        got = kernel(*arguments)
        assert isinstance(got, np.ndarray) and got.shape == want.shape, f"{kind}{what} gave shape {np.shape(got)}"
        assert got.dtype == want.dtype, f"{kind}{what} gave {got.dtype}, not {want.dtype}"
        error = np.abs(got - want).max() / np.abs(want).max()
        assert error <= tolerance, f"{kind}{what} differs from the formula by {error:.3g}"
        for a, kept in zip([a for a in arguments if isinstance(a, np.ndarray)], before):
            same_bits(a, kept, f"an argument of {kind}")

    nc, shape = case.nc, case.geometry.gauge_shape
    u = case.links().astype(np.complex128)
    strided = np.asfortranarray(u)
    single = u.astype(np.complex64)
    a = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    a = (a - a.conj().swapaxes(-1, -2)) / 2
    with use_backend("numpy"):  # the core's own formulas
        for kind in GAUGE_KINDS:
            kernel = case.instance.gauge_kernel(kind, nc)
            if kernel is None:
                continue
            offered = True
            for links, what, tolerance in (
                (u, "", 1e-11),
                (strided, " of strided links", 1e-11),
                (single, " of single", 1e-5),
            ):
                if kind == "plaquettes":
                    want = np.array([plane_sum(links_of(u), *plane) * nc for plane in PLANES.values()])
                    agree(kind, kernel, (links,), want, what, tolerance * case.geometry.volume)
                elif kind == "staple":
                    for mu in range(4):
                        agree(kind, kernel, (links, mu), gauge.staple(u, mu), what, tolerance)
                elif kind == "clover":
                    agree(kind, kernel, (links, 0.7, 0.4), gauge.clover_term(u, 0.7, 0.4), what, tolerance)
            if kind == "inverse":
                blocks = gauge.clover_term(u, 0.7, 0.4) + (4.1 + 0.3j) * np.eye(2 * nc)
                agree(kind, kernel, (blocks,), np.linalg.inv(blocks))
            elif kind == "exponential":
                for size in (1e-9, 0.03, 1.0, 6.0):  # small angles, and large ones
                    agree(kind, kernel, (size * a,), gauge.exponential(size * a), f" of size {size:g}")
            elif kind == "unitarize":
                agree(kind, kernel, (u + 0.1 * a,), project_su(u + 0.1 * a))
            elif kind == "checkerboard_staple" and case.geometry.why_no_parity() is None:
                from ..fields import GaugeField

                half = CheckerboardLinks(GaugeField(case.geometry, u))
                for mu in range(4):
                    for parity in (EVEN, ODD):
                        want = half.staple(mu, parity, slice(None))
                        agree(kind, kernel, (half.links, half.forward, half.backward, mu, parity), want)
    if not offered:
        raise NotApplicable(f"backend {case.backend!r} leaves the formulas of links to the core for Nc = {nc}")


assert {law.group for law in LAWS.values()} == set(GROUPS), "every group has a law, every law a group"
assert {"wilson", "clover", "twisted_mass", "twisted_clover"} == set(definitions()) == DERIVED_OPERATORS

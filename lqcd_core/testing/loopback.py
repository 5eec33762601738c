r"""A fake backend that differs from a real one only where the core must not look.

Handles are sealed objects, the sites inside are in a scrambled order, columns come last, and a handle that was consumed
is poisoned. A core or a solver that indexes a handle, adds two of them, or goes on using one that ``axpy`` consumed,
fails here on any laptop. ``pack`` and ``unpack`` are counted.

Three records:

``loopback``
    the required protocol and nothing else, static (``resizable = False``): everything is derived by the core;
``loopback-full``
    every optional protocol but whole solves, resizable;
``loopback-solves``
    that, and whole solves inside the backend (apart, so that the core's solvers still run on ``loopback-full``).

They are never found by name unless they were asked for::

    from lqcd_core.testing.loopback import register_loopback

    with register_loopback():
        M = WilsonDirac(mass=0.1).bind(U, backend="loopback")

The hopping term is written independently of the NumPy backend (neighbour tables and full 4x4 spin matrices instead of
rolls and half spinors), so the two check each other.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np

from ..backend import BackendInfo, DiracTerms, Handle, Links, SiteDiagonal, Space
from ..fields import from_storage, to_storage
from ..gamma import GAMMA
from ..geometry import FULL, LatticeGeometry
from ..hookspecs import hookimpl
from ..precision import Precision
from ..registry import registered
from ..spaces import check_batch


def _sealed(self, *args, **kwargs):
    raise AssertionError("a handle was looked into: only the Space that made it knows what is inside")


class LoopbackHandle:
    """A sealed batch of spinors. Every way to look inside or to compute with it raises ``AssertionError``."""

    __slots__ = ("__array", "__poison", "__tag", "__weakref__")

    def __init__(self, array: np.ndarray, tag: tuple):
        self.__array, self.__tag, self.__poison = array, tag, ""

    def _open(self, tag: tuple) -> np.ndarray:
        """The array, for the backend alone."""
        assert not self.__poison, f"a handle was used after {self.__poison} consumed it"
        assert tag == self.__tag, f"a handle of the space {self.__tag} was given to the space {tag}"
        return self.__array

    def _consume(self, tag: tuple, by: str) -> np.ndarray:
        array = self._open(tag)
        self.__poison, self.__array = by, None
        return array

    def __repr__(self) -> str:
        return "<loopback handle, consumed>" if self.__poison else "<loopback handle>"

    __array__ = __array_interface__ = property(_sealed)
    __getitem__ = __setitem__ = __iter__ = __len__ = __contains__ = __bool__ = _sealed
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _sealed
    __iadd__ = __isub__ = __imul__ = __itruediv__ = __neg__ = __abs__ = __matmul__ = __rmatmul__ = _sealed
    __copy__ = __deepcopy__ = __reduce_ex__ = _sealed


@attrs.define
class Crossings:
    """How often spinors crossed between host and backend."""

    pack: int = 0
    """Host to backend, calls."""
    unpack: int = 0
    """Backend to host, calls."""
    lock: Any = attrs.field(factory=threading.Lock, repr=False, eq=False)
    """Guards both counts: conformance tests run in two threads."""

    def count(self, door: str) -> None:
        """One more call of ``pack`` or ``unpack``."""
        with self.lock:
            setattr(self, door, getattr(self, door) + 1)

    @property
    def total(self) -> int:
        """Both doors."""
        return self.pack + self.unpack

    @contextmanager
    def none_allowed(self) -> Iterator[None]:
        """Raise ``AssertionError`` if a spinor crosses inside the block."""
        before = (self.pack, self.unpack)
        yield
        packs, unpacks = self.pack - before[0], self.unpack - before[1]
        assert not packs and not unpacks, f"{packs} pack and {unpacks} unpack calls where no spinor may cross"


class Scramble:
    """The order of the sites inside a handle: position j holds canonical site ``sites[j]``, a fixed permutation.

    Canonical site numbers count t, z, y, x with x fastest over the whole lattice, on one parity too.
    """

    def __init__(self, geometry: LatticeGeometry, parity):
        canonical = np.arange(geometry.volume).reshape(geometry.shape)
        self.rows = canonical.reshape(-1) if parity is FULL else geometry.split_parity(canonical, parity).reshape(-1)
        rng = np.random.default_rng(geometry.volume + 7 * (0 if parity is FULL else parity + 1))
        self.order = rng.permutation(len(self.rows))
        self.sites = self.rows[self.order]
        self.position = np.full(geometry.volume, -1)
        self.position[self.sites] = np.arange(len(self.sites))

    def scatter(self, array: np.ndarray) -> np.ndarray:
        """``(n, T, Z, Y, X, Ns, Nc)`` to ``(sites, Nc, Ns, n)``: scrambled, transposed, columns last."""
        n, ns, nc = array.shape[0], *array.shape[-2:]
        flat = array.reshape(n, len(self.rows), ns, nc)[:, self.order]
        return np.ascontiguousarray(flat.transpose(1, 3, 2, 0))

    def gather(self, array: np.ndarray, shape: tuple) -> np.ndarray:
        """The inverse of :meth:`scatter`; ``shape`` is ``(T, Z, Y, X, Ns, Nc)``."""
        flat = np.empty_like(array)
        flat[self.order] = array
        return np.ascontiguousarray(flat.transpose(3, 0, 2, 1)).reshape(array.shape[-1], *shape)


def neighbours(geometry: LatticeGeometry) -> tuple[np.ndarray, np.ndarray]:
    """Canonical site numbers of x + mu and x - mu, two tables of shape ``(4, volume)``."""
    shape = geometry.shape
    coordinates = np.array(np.unravel_index(np.arange(geometry.volume), shape))
    tables = []
    for step in (+1, -1):
        rows = []
        for mu in range(4):
            moved = coordinates.copy()
            moved[mu] = (moved[mu] + step) % shape[mu]
            rows.append(np.ravel_multi_index(tuple(moved), shape))
        tables.append(np.array(rows))
    return tables[0], tables[1]


class LoopbackSpace:
    """The required seven operations on sealed handles; static."""

    resizable = False

    def __init__(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int, parity, crossings: Crossings):
        self.geometry, self.precision, self.n_rhs, self.parity = geometry, precision, n_rhs, parity
        self.scramble = Scramble(geometry, parity)
        self._crossings = crossings
        self._tag = (geometry, precision.name, n_rhs, parity)

    # -- for this file only -------------------------------------------------------------------------------------------

    def seal(self, array: np.ndarray) -> LoopbackHandle:
        """A handle of a complex array, rounded to what the precision stores."""
        return LoopbackHandle(from_storage(to_storage(array, self.precision), self.precision), self._tag)

    def open(self, handle: LoopbackHandle) -> np.ndarray:
        """The array of a handle that stays valid."""
        return handle._open(self._tag)

    def consume(self, handle: LoopbackHandle, by: str) -> np.ndarray:
        """The array of a handle that is poisoned from here on."""
        return handle._consume(self._tag, by)

    def scalars(self, a, columns: int) -> np.ndarray:
        """A number, or one per column, in the arithmetic's type."""
        a = np.asarray(a)
        assert a.shape in ((), (columns,)), f"scalars of shape {a.shape} for {columns} columns"
        return a.astype(self.precision.complex_dtype)

    # -- the seven ----------------------------------------------------------------------------------------------------

    def pack(self, array) -> Handle:
        array = np.asarray(array)
        check_batch(self, array.shape)
        self._crossings.count("pack")
        return self.seal(self.scramble.scatter(array.astype(self.precision.complex_dtype)))

    def unpack(self, handle: Handle) -> np.ndarray:
        array = self.open(handle)
        self._crossings.count("unpack")
        return self.scramble.gather(array, self.geometry.parity_shape(self.parity))

    def zeros(self) -> Handle:
        shape = (len(self.scramble.sites), self.geometry.nc, 4, self.n_rhs)
        return self.seal(np.zeros(shape, self.precision.complex_dtype))

    def axpy(self, a, x: Handle, y: Handle) -> Handle:
        assert x is not y, "axpy needs two distinct handles"
        ax = self.open(x)
        ay = self.consume(y, "axpy")
        return self.seal(ay + self.scalars(a, ax.shape[-1]) * ax)

    def inner(self, x: Handle, y: Handle) -> np.ndarray:
        ax, ay = (self.open(h).astype(np.complex128) for h in (x, y))
        return np.einsum("scin,scin->n", ax.conj(), ay)

    def norm2(self, x: Handle) -> np.ndarray:
        return self.inner(x, x).real.copy()

    def gamma5(self, x: Handle) -> Handle:
        return self.seal(self.open(x) * np.array([1, 1, -1, -1], self.precision.real_dtype)[:, None])


class FullLoopbackSpace(LoopbackSpace):
    """With every optional operation, resizable."""

    resizable = True

    def copy(self, x: Handle) -> Handle:
        return self.seal(self.open(x).copy())

    def scale(self, a, x: Handle) -> Handle:
        array = self.consume(x, "scale")
        return self.seal(self.scalars(a, array.shape[-1]) * array)

    def xpay(self, x: Handle, a, y: Handle) -> Handle:
        ax = self.open(x)
        return self.seal(ax + self.scalars(a, ax.shape[-1]) * self.consume(y, "xpay"))

    def axpy_norm2(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        new = self.axpy(a, x, y)
        return new, self.norm2(new)

    def cg_update(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        columns = self.open(p).shape[-1]
        a = self.scalars(a, columns)
        new_x = self.seal(self.consume(x, "cg_update") + a * self.open(p))
        new_r = self.seal(self.consume(r, "cg_update") - a * self.open(ap))
        return new_x, new_r, self.norm2(new_r)

    def inner_slices(self, x: Handle, y: Handle) -> np.ndarray:
        ax, ay = (self.open(h).astype(np.complex128) for h in (x, y))
        # One site after the other in canonical order: the bits depend on neither the scramble nor the batch.
        by_site = np.einsum("scin,scin->sn", ax.conj(), ay)
        out = np.zeros((ax.shape[-1], self.geometry.T), np.complex128)
        slices = self.scramble.sites // self.geometry.spatial_volume
        for s in np.argsort(self.scramble.sites):
            out[:, slices[s]] += by_site[s]
        return out

    def norm2_slices(self, x: Handle) -> np.ndarray:
        return self.inner_slices(x, x).real.copy()

    def axpy_norm2_slices(self, a, x: Handle, y: Handle) -> tuple[Handle, np.ndarray]:
        new = self.axpy(a, x, y)
        return new, self.norm2_slices(new)

    def cg_update_slices(self, a, p: Handle, ap: Handle, x: Handle, r: Handle) -> tuple[Handle, Handle, np.ndarray]:
        new_x, new_r, _ = self.cg_update(a, p, ap, x, r)
        return new_x, new_r, self.norm2_slices(new_r)

    def take(self, x: Handle, columns: Sequence[int]) -> Handle:
        return self.seal(self.open(x)[..., list(columns)].copy())

    def put(self, x: Handle, columns: Sequence[int], part: Handle) -> Handle:
        array = self.consume(x, "put").copy()
        array[..., list(columns)] = self.open(part)
        return self.seal(array)

    def convert_from(self, handle: Handle, source: Space) -> Handle | None:
        if not isinstance(source, LoopbackSpace) or source.parity != self.parity or source.geometry != self.geometry:
            return None
        return self.seal(source.open(handle).astype(self.precision.complex_dtype))


class LoopbackBackend:
    """The required protocol: full lattice, hopping term."""

    space_class = LoopbackSpace

    def __init__(self):
        self.crossings = Crossings()
        """Counts of every space this instance made."""

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> LoopbackSpace:
        assert parity is FULL, "a backend without SupportsEvenOdd was asked for a parity"
        return self.space_class(geometry, precision, n_rhs, parity, self.crossings)

    def hopping(self, links: Links, space: LoopbackSpace) -> Callable[[Handle], Handle]:
        return _hop(links, space, space)


class FullLoopbackBackend(LoopbackBackend):
    """With every optional protocol; each is written on its own, not through the core's derived path."""

    space_class = FullLoopbackSpace

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> LoopbackSpace:
        return self.space_class(geometry, precision, n_rhs, parity, self.crossings)

    def parity_hopping(self, links: Links, target: LoopbackSpace) -> Callable[[Handle], Handle]:
        source = self.space(target.geometry, target.precision, target.n_rhs, 1 - target.parity)
        return _hop(links, source, target)

    def site_diagonal(self, term: SiteDiagonal, space: LoopbackSpace) -> Callable[[Handle], Handle]:
        a = _site_matrices(term, space)
        return lambda x: space.seal(_site_apply(a, space.open(x)))

    def fused(self, kind: str, terms: DiracTerms, space: LoopbackSpace) -> Callable[[Handle], Handle] | None:
        if kind in ("M", "Mdag", "MdagM"):
            m = _sum_of(space, self.site_diagonal(terms.diagonal, space), self.hopping(terms.links, space))
            if kind == "M":
                return m
            hop = self.hopping(terms.links, space)
            m_dagger = _sum_of(
                space, self.site_diagonal(terms.diagonal.dagger(), space), lambda x: space.gamma5(hop(space.gamma5(x)))
            )
            return m_dagger if kind == "Mdag" else (lambda x: m_dagger(m(x)))
        return self._schur(kind, terms, space)

    def _schur(self, kind: str, terms: DiracTerms, space: LoopbackSpace) -> Callable[[Handle], Handle]:
        p, q = terms.parity, 1 - terms.parity
        other = self.space(space.geometry, space.precision, space.n_rhs, q)
        down, up = self.parity_hopping(terms.links, other), self.parity_hopping(terms.links, space)
        a_p, a_q = (terms.diagonal.on_parity(space.geometry, k) for k in (p, q))

        def one(dagger: bool) -> Callable[[Handle], Handle]:
            adjoint = SiteDiagonal.dagger if dagger else (lambda term: term)
            inv_p, inv_q = (adjoint(a.inverse()) for a in (a_p, a_q))
            inv_p, inv_q = self.site_diagonal(inv_p, space), self.site_diagonal(inv_q, other)
            a = self.site_diagonal(adjoint(a_p), space)
            g5, g5q = (space.gamma5, other.gamma5) if dagger else (lambda x: x, lambda x: x)

            def around(x):  # H A_q^-1 H, or its adjoint
                return g5(up(g5q(inv_q(g5q(down(g5(x)))))))

            if terms.form == "asymmetric":
                return _sum_of(space, a, around)
            if dagger:
                return _sum_of(space, space.copy, lambda x: around(inv_p(x)))
            return _sum_of(space, space.copy, lambda x: inv_p(around(x)))

        if kind == "schur":
            return one(False)
        if kind == "schur_dag":
            return one(True)
        forward, backward = one(False), one(True)
        return lambda x: backward(forward(x))

    def describe(self) -> dict[str, str]:
        return {"handles": "opaque", "sites": "scrambled"}


class SolvingLoopbackBackend(FullLoopbackBackend):
    """With whole solves: conjugate gradient on the normal equations, columns frozen as they converge. And plaquettes."""

    def gauge_kernel(self, kind: str, nc: int) -> Callable | None:
        if kind != "plaquettes":
            return None

        def plaquettes(links) -> np.ndarray:
            u = np.moveaxis(np.asarray(links, np.complex128), 4, 0)
            sums = []
            for m, n in ((3, 2), (3, 1), (2, 1), (3, 0), (2, 0), (1, 0)):
                ahead = np.roll(u[n], -1, m), np.roll(u[m], -1, n)
                sums.append(
                    np.einsum(
                        "tzyxab,tzyxbc,tzyxdc,tzyxad->", u[m], ahead[0], ahead[1].conj(), u[n].conj(), optimize=True
                    ).real
                )
            return np.array(sums)

        return plaquettes

    def solve(self, bound, inner_bound, b: Handle, x0: Handle | None, parameters, callback):
        if inner_bound is not None:
            return None  # mixed precision is left to the core
        v, targets = bound.vectors, np.asarray(parameters["targets"], float)
        x = v.zeros() if x0 is None else v.copy(x0)
        norm_b = np.sqrt(v.norm2(b))
        r = bound.apply_dagger(v.axpy(-1.0, bound.apply(x), v.copy(b)))
        p, rr, iterations = v.copy(r), v.norm2(r), np.zeros(len(targets), int)
        for k in range(int(parameters["maxiter"]) + 1):
            true = np.sqrt(v.norm2(v.axpy(-1.0, bound.apply(x), v.copy(b)))) / np.where(norm_b > 0, norm_b, 1.0)
            live = true > 0.9 * targets
            if k:
                callback(k, true)
            if not live.any() or k == int(parameters["maxiter"]):
                break
            ap = bound.apply_normal(p)
            pap = v.inner(p, ap).real
            alpha = np.where(live & (pap > 0), rr / np.where(pap > 0, pap, 1.0), 0.0)
            x, r, new = v.cg_update(alpha, p, ap, x, r)
            p = v.xpay(r, np.where(live & (rr > 0), new / np.where(rr > 0, rr, 1.0), 0.0), p)
            rr, iterations = new, iterations + live
        return x, {"iterations": iterations, "applications": 2 * int(iterations.max(initial=0))}


def _sum_of(space: LoopbackSpace, a, h) -> Callable[[Handle], Handle]:
    return lambda x: space.axpy(-1.0, h(x), a(x))


def _hop(links: Links, source: LoopbackSpace, target: LoopbackSpace) -> Callable[[Handle], Handle]:
    r"""H by neighbour tables: each target site gathers (1 - gamma) c U psi(x+mu) + (1 + gamma) c U^dagger psi(x-mu)."""
    geometry, dtype = target.geometry, target.precision.complex_dtype
    forward, backward = neighbours(geometry)
    u = np.array(links.array, dtype=np.complex128).reshape(geometry.volume, 4, geometry.nc, geometry.nc)
    coordinates = np.unravel_index(np.arange(geometry.volume), geometry.shape)
    for mu in range(4):
        # The phase sits on the link that crosses the edge: out of the last slice.
        edge = coordinates[mu] == geometry.shape[mu] - 1
        u[:, mu] *= (links.coefficients[mu] * np.where(edge, links.phases[mu], 1.0))[:, None, None]
    u = from_storage(to_storage(u, target.precision), target.precision).astype(dtype)
    sites = target.scramble.sites
    legs = []
    for mu in range(4):
        ahead, behind = forward[mu][sites], backward[mu][sites]
        legs.append((u[sites, mu], source.scramble.position[ahead], (np.eye(4) - GAMMA[mu]).astype(dtype)))
        to_here = u[behind, mu].conj().swapaxes(-1, -2)
        legs.append((to_here, source.scramble.position[behind], (np.eye(4) + GAMMA[mu]).astype(dtype)))
    half = target.precision.real_dtype.type(0.5)

    def hop(x: Handle) -> Handle:
        psi = source.open(x)  # (sites, Nc, Ns, n)
        out = np.zeros((len(sites), *psi.shape[1:]), dtype)
        for link, position, spin in legs:
            out += np.einsum("sab,ij,sbjn->sain", link, spin, psi[position], optimize=["einsum_path", (0, 2), (0, 1)])
        return target.seal(half * out)

    return hop


def _site_matrices(term: SiteDiagonal, space: LoopbackSpace) -> np.ndarray:
    """A as full matrices ``(sites, Nc, Ns, Nc, Ns)``, scrambled."""
    nc, count = space.geometry.nc, len(space.scramble.sites)
    a = np.zeros((count, nc, 4, nc, 4), np.complex128)
    for spin, sign in enumerate((1, 1, -1, -1)):
        for colour in range(nc):
            a[:, colour, spin, colour, spin] += term.scalar + 1j * term.twist * sign
    if term.blocks is not None:
        blocks = term.blocks.reshape(count, 2, 2, nc, 2, nc)[space.scramble.order]
        for chirality in range(2):
            for s in range(2):
                for r in range(2):
                    a[:, :, 2 * chirality + s, :, 2 * chirality + r] += blocks[:, chirality, s, :, r, :]
    return a.astype(space.precision.complex_dtype)


def _site_apply(a: np.ndarray, psi: np.ndarray) -> np.ndarray:
    return np.einsum("scirj,srjn->scin", a, psi)


_ALL = {"double", "single", "half", "bf16"}
MINIMAL = BackendInfo(
    name="loopback", load=f"{__name__}:LoopbackBackend", precisions=_ALL, rank=-100,
    summary="for tests: opaque handles, scrambled sites, the required protocol only",
)  # fmt: skip
FULL_FEATURED = BackendInfo(
    name="loopback-full", load=f"{__name__}:FullLoopbackBackend", precisions=_ALL, rank=-101,
    features={"even_odd", "fused_dirac", "site_diagonal", "fused_blas", "exact_slices"},
    summary="for tests: opaque handles, scrambled sites, every optional protocol",
)  # fmt: skip
SOLVING = attrs.evolve(
    FULL_FEATURED, name="loopback-solves", load=f"{__name__}:SolvingLoopbackBackend", rank=-102,
    features=FULL_FEATURED.features | {"device_solve", "gauge"},
    summary="for tests: loopback-full that also solves inside",
)  # fmt: skip


@hookimpl
def lqcd_register_backends():
    return [MINIMAL, FULL_FEATURED, SOLVING]


@contextmanager
def register_loopback() -> Iterator[tuple[str, str, str]]:
    """The fake backends by name inside the block; yields their names. Harmless if they are registered already."""
    with registered(sys.modules[__name__]):
        yield (MINIMAL.name, FULL_FEATURED.name, SOLVING.name)

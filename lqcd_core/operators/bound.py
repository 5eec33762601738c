r"""An operator bound to links in a backend. All that depends on the links alone has happened when this exists.

Derived from the hopping term H and the site-diagonal A (unless the backend has a fused path, which must agree):

.. math:: M = A - H,\quad M^\dagger = A^\dagger - \gamma_5 H\gamma_5,\quad M^\dagger M,\quad \gamma_5 M
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import library_of, raw, to_numpy
from ..backend import (
    FULL,
    DiracTerms,
    Handle,
    Links,
    SiteDiagonal,
    SupportsArrays,
    SupportsFusedDirac,
    SupportsSiteDiagonal,
    digest_of,
    make_request,
)  # fmt: skip
from ..errors import FieldShapeError, FieldTypeError, ParameterError, StaleGaugeError
from ..fields import ColorSpinorField, GaugeField
from ..geometry import EVEN, LatticeGeometry
from ..precision import Precision, as_precision
from ..selection import Choice, Explanation, choose, explain_request
from ..spaces import Vectors
from .linear import LinearOperator


def geometry_of(gauge) -> LatticeGeometry:
    """The lattice of a gauge field or a raw link array.

    Raises
    ------
    FieldShapeError
        If the array has no shape ``(T, Z, Y, X, 4, Nc, Nc)``.
    """
    if hasattr(gauge, "geometry"):
        return gauge.geometry
    shape = tuple(getattr(gauge, "shape", ()))
    if len(shape) != 7 or shape[4] != 4 or shape[5] != shape[6]:
        raise FieldShapeError(f"links need the shape (T, Z, Y, X, 4, Nc, Nc), got {shape or type(gauge).__name__}.")
    return LatticeGeometry.from_shape(shape[:4], nc=shape[5])


def apply_blocks(blocks: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Chiral blocks ``(sites, 2, 2Nc, 2Nc)`` on spinors ``(n, sites, Ns, Nc)``, on the host."""
    halves = batch.reshape(*batch.shape[:-2], 2, -1)
    return np.einsum("...cij,n...cj->n...ci", blocks, halves).reshape(batch.shape)


def diagonal_function(term: SiteDiagonal, vectors: Vectors, backend) -> Callable[[Handle], Handle]:
    """x -> A x as a function of handles: the backend's own, or derived (through the host where there are blocks)."""
    if isinstance(backend, SupportsSiteDiagonal) and (term.blocks is not None or term.twist):
        return backend.site_diagonal(term, vectors.space)
    if term.blocks is None:

        def scalar(x: Handle) -> Handle:
            y = vectors.scale(term.scalar, vectors.copy(x))  # not zeros(): x may hold any number of columns
            return vectors.axpy(1j * term.twist, vectors.gamma5(x), y) if term.twist else y

        return scalar
    blocks = term.full_blocks()

    def through_host(x: Handle) -> Handle:
        # The derived path for backends without SupportsSiteDiagonal: two crossings an application, correct and slow.
        wide = apply_blocks(blocks, vectors.unpack(x).astype(np.complex128))
        return vectors.pack(wide)

    return through_host


class BoundOperator:
    """See the module. Made by ``definition.bind(U, ...)`` or :func:`bind`; never by hand.

    Attributes
    ----------
    definition
        The operator's parameters.
    choice
        The backend that serves, and why.
    precision, n_rhs, geometry
        What it was bound for.
    space, vectors
        Where its handles live, and the operations on them.
    """

    def __init__(self, definition, gauge, links: Links, diagonal: SiteDiagonal, choice: Choice, precision, n_rhs: int):
        self.definition, self.choice = definition, choice
        self.precision: Precision = precision
        self.n_rhs, self.geometry = n_rhs, links.geometry
        self.links, self.diagonal = links, diagonal
        self._gauge = gauge
        self.backend = choice.backend.instance
        self.space = self.backend.space(self.geometry, precision, n_rhs)
        self.vectors = Vectors(self.space)
        self.hopping = self.backend.hopping(links, self.space)
        self._bind_full()
        self._schur: dict[tuple, Any] = {}

    def _bind_full(self) -> None:
        v, hop = self.vectors, self.hopping
        a = diagonal_function(self.diagonal, v, self.backend)
        a_dagger = diagonal_function(self.diagonal.dagger(), v, self.backend) if self.diagonal.twist else a

        def m(x):
            return v.axpy(-1.0, hop(x), a(x))

        def m_dagger(x):
            return v.axpy(-1.0, v.gamma5(hop(v.gamma5(x))), a_dagger(x))

        self.apply = self._fused("M") or m
        self.apply_dagger = self._fused("Mdag") or m_dagger
        self.apply_normal = self._fused("MdagM") or (lambda x: self.apply_dagger(self.apply(x)))

    def _fused(self, kind: str, space=None, **more):
        if not isinstance(self.backend, SupportsFusedDirac):
            return None
        terms = DiracTerms(links=self.links, diagonal=self.diagonal, **more)
        return self.backend.fused(kind, terms, space or self.space)

    # -- as linear operators ------------------------------------------------------------------------------------------

    @property
    def linear(self) -> LinearOperator:
        """M as a solver sees it."""
        return LinearOperator(
            vectors=self.vectors, apply=self.apply, apply_dagger=self.apply_dagger, name=f"M of {self.definition.name}",
            rebind=lambda **k: self.rebind(**k).linear, owner=self,
        )  # fmt: skip

    @property
    def normal_linear(self) -> LinearOperator:
        """M^dagger M as a solver sees it."""
        return LinearOperator(
            vectors=self.vectors, apply=self.apply_normal, apply_dagger=self.apply_normal, hermitian=True, positive=True,
            name=f"M^dagger M of {self.definition.name}", rebind=lambda **k: self.rebind(**k).normal_linear, owner=self,
        )  # fmt: skip

    @property
    def hermitian_linear(self) -> LinearOperator:
        """gamma5 M as a solver sees it (Hermitian unless there is a twist, indefinite)."""
        v = self.vectors

        def g5m(x):
            return v.gamma5(self.apply(x))

        return LinearOperator(
            vectors=v, apply=g5m, apply_dagger=lambda x: self.apply_dagger(v.gamma5(x)),
            hermitian=self.diagonal.twist == 0, name=f"gamma5 M of {self.definition.name}",
            rebind=lambda **k: self.rebind(**k).hermitian_linear, owner=self,
        )  # fmt: skip

    def even_odd(self, parity: int = EVEN, form: str = "symmetric"):
        """The Schur complement on one parity; see :class:`~lqcd_core.operators.even_odd.SchurOperator`."""
        from .even_odd import SchurOperator

        key = (parity, form)
        if key not in self._schur:
            self._check_fresh()  # the parity hops pack the links now: they must be those of the bind
            self._schur[key] = SchurOperator(self, parity, form)
        return self._schur[key]

    def rebind(self, *, precision=None, backend=None, n_rhs: int | None = None) -> BoundOperator:
        """The same definition, links and backend choice at another precision, backend or batch size.

        Raises
        ------
        StaleGaugeError
            If the links were changed since the first bind: the two operators would belong to different fields.
        BackendUnavailable
            If the backend that was chosen cannot serve the new precision.
        """
        self._check_fresh()
        if backend is None:
            backend = (self.choice.name, dict(self.choice.backend.options))
        return bind_operator(
            self.definition, self._gauge, backend=backend, precision=precision or self.precision,
            n_rhs=n_rhs or self.n_rhs, check_links=False, frozen=(self.links, self.diagonal),
        )  # fmt: skip

    def _check_fresh(self) -> None:
        if digest_of(to_numpy(raw(self._gauge))) != self.links.digest:
            raise StaleGaugeError("the links were changed after bind; bind the operator again to the new links.")

    # -- on host fields -----------------------------------------------------------------------------------------------

    def __call__(self, psi):
        """M psi on a host field or array (a batch of any size); the same kind comes back."""
        return self._on_host(self.apply, psi)

    __matmul__ = __call__

    def dagger(self, psi):
        """M^dagger psi on a host field or array."""
        return self._on_host(self.apply_dagger, psi)

    def normal(self, psi):
        """M^dagger M psi on a host field or array."""
        return self._on_host(self.apply_normal, psi)

    def gamma5(self, psi):
        """gamma5 M psi on a host field or array."""
        return self._on_host(lambda x: self.vectors.gamma5(self.apply(x)), psi)

    def hop(self, psi):
        """H psi on a host field or array."""
        return self._on_host(self.hopping, psi)

    def check_spinor(self, psi) -> None:
        """Raise if a host field does not fit: lattice, parity, or a precision that would be lowered in silence."""
        array = raw(psi)
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            raise FieldTypeError(f"a spinor must be a field or an array, got {type(psi).__name__}.")
        if hasattr(psi, "geometry") and psi.geometry != self.geometry:
            raise FieldShapeError(f"the spinor lives on {psi.geometry}, the operator on {self.geometry}.")
        if getattr(psi, "parity", FULL) is not FULL:
            raise FieldShapeError("M acts on the full lattice; for a field on one parity use M.even_odd(parity).")
        self.geometry.check_spinor(array.shape)
        if "complex" not in str(array.dtype):
            raise FieldTypeError(f"a spinor must be complex, got {array.dtype}.")
        given = psi.precision if hasattr(psi, "geometry") else as_precision(array.dtype)
        if given.bytes_per_real > self.precision.bytes_per_real and self.precision.bytes_per_real > 2:
            raise FieldTypeError(
                f"a {given} spinor would be lowered to {self.precision} in silence; bind with precision={given.name!r}, "
                f"or convert it with .to({self.precision.name!r})."
            )

    def _on_host(self, function, psi):
        self.check_spinor(psi)
        array = raw(psi)
        single = len(array.shape) == 6
        batch = array[None] if single else array
        library = library_of(array)
        if library != "numpy":
            if not isinstance(self.space, SupportsArrays):
                raise FieldTypeError(f"backend {self.choice.name!r} takes NumPy arrays, not {library} ones.")
            out = self.space.to_array(function(self.space.pack(batch)))
        else:
            out = self.map_batches(lambda part: self.space.unpack(function(self.space.pack(part))), batch)
        out = out[0] if single else out
        return ColorSpinorField(self.geometry, out) if hasattr(psi, "geometry") else out

    def map_batches(self, function, batch: np.ndarray) -> np.ndarray:
        """``function`` over a batch of any size; a static space gets pieces of n_rhs, the last one padded with zeros."""
        n = len(batch)
        if self.space.resizable or n == self.n_rhs:
            return function(batch)
        out = []
        for start in range(0, n, self.n_rhs):
            part = batch[start : start + self.n_rhs]
            missing = self.n_rhs - len(part)
            if missing:
                part = np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)])
            out.append(function(part)[: self.n_rhs - missing])
        return np.concatenate(out)

    # -- said ---------------------------------------------------------------------------------------------------------

    def provenance(self) -> dict[str, Any]:
        """Operator, backend and links as plain data, for files."""
        describe = getattr(self.backend, "describe", None)
        return {
            "operator": self.definition.parameters(),
            "normalisation": "mass",
            "precision": self.precision.name,
            "backend": self.choice.name,
            "backend_options": {k: str(v) for k, v in self.choice.backend.options.items()},
            "backend_facts": dict(describe()) if callable(describe) else {},
            "backend_why": self.choice.why,
            "links_digest": self.links.digest,
            "configuration": dict(getattr(self._gauge, "origin", {}) or {}),
        }

    def __repr__(self) -> str:
        return (
            f"<{self.definition.name} on {self.geometry.shape} in {self.precision}, n_rhs={self.n_rhs}, "
            f"backend {self.choice.name!r} ({self.choice.why})>"
        )


def bind_operator(
    definition, gauge, *, backend=None, precision=None, n_rhs=1, features=(), check_links=True, frozen=None
) -> BoundOperator:
    """See :meth:`DiracOperator.bind`; ``frozen`` carries links and site term over from an earlier bind."""
    geometry = geometry_of(gauge)
    array = raw(gauge)
    geometry.check_links(array.shape)
    if "complex" not in str(array.dtype):
        raise FieldTypeError(f"links must be complex, got {array.dtype}.")
    if isinstance(n_rhs, bool) or not isinstance(n_rhs, (int, np.integer)) or n_rhs < 1:
        raise ParameterError(f"n_rhs must be a whole number of at least 1, got {n_rhs!r}.")
    if precision is None:
        precision = gauge.precision if hasattr(gauge, "geometry") else array.dtype
    precision = as_precision(precision)
    request = make_request(definition.name, precision, geometry, int(n_rhs), features, library_of(array))
    choice = choose(request, backend)
    if frozen is None:
        if check_links:
            field = gauge if hasattr(gauge, "check_unitary") else GaugeField(geometry, to_numpy(array))
            field.check_unitary()
        if isinstance(array, np.ndarray):
            array = array.view()
            array.setflags(write=False)
        links = Links(geometry, array, definition.boundary, definition.hop_coefficients, digest_of(to_numpy(array)))
        frozen = links, definition.site_diagonal(gauge)
    return BoundOperator(definition, gauge, *frozen, choice, precision, int(n_rhs))


def bind(definition, gauge, **options) -> BoundOperator:
    """``definition.bind(gauge, ...)`` as a function; see :meth:`DiracOperator.bind`."""
    return definition.bind(gauge, **options)


def explain(
    definition, gauge, *, precision=None, n_rhs=1, features=(), backend=None, start_all: bool = False
) -> Explanation:
    """Every backend with its reason for or against serving this operator; nothing is bound.

    Backends behind the chosen one are judged by their records alone; ``start_all`` starts each to learn if it can run.

    Examples
    --------
    >>> from lqcd_core.operators.wilson import WilsonDirac
    >>> U = GaugeField.cold(LatticeGeometry(T=4, Z=4, Y=4, X=4))
    >>> explain(WilsonDirac(mass=0.1), U, backend="numpy").chosen
    'numpy'
    """
    geometry = geometry_of(gauge)
    if precision is None:
        precision = gauge.precision if hasattr(gauge, "geometry") else gauge.dtype
    request = make_request(definition.name, precision, geometry, n_rhs, features, library_of(raw(gauge)))
    return explain_request(request, backend, start_all)

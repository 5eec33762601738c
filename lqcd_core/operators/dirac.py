"""What every fermion operator is: a frozen definition that knows its site-diagonal term and how to bind to links."""

from __future__ import annotations

import abc
import threading
from collections import OrderedDict
from typing import Any

import attrs

from ..arrays import library_of, raw
from ..backend import SiteDiagonal
from ..errors import FieldTypeError, ParameterError
from ..precision import as_precision

_KEPT = 4  # bound operators that one definition keeps for D(psi, U)


class DiracOperator(abc.ABC):
    """A Dirac operator M = A - H as a definition: parameters only, no links, no backend.

    Subclasses are frozen records with ``mass``, ``kappa``, ``boundary``, ``xi0``, ``nu`` and say what A is.
    """

    name: str
    """Name of the operator in requests, e.g. ``wilson``."""

    @abc.abstractmethod
    def site_diagonal(self, gauge) -> SiteDiagonal:
        """A on the full lattice for these links (a field or a raw array), in double."""

    @property
    def diagonal(self) -> float:
        """The scalar part of A, m + 1 + 3 nu / xi0."""
        return self.mass + 1.0 + 3.0 * self.nu / self.xi0

    @property
    def hop_coefficients(self) -> tuple[float, float, float, float]:
        """c_mu in the order t, z, y, x."""
        c = self.nu / self.xi0
        return (1.0, c, c, c)

    def parameters(self) -> dict[str, Any]:
        """Name and parameters as plain data, for files."""
        return {"operator": self.name, **attrs.asdict(self)}

    # -- binding ------------------------------------------------------------------------------------------------------

    def bind(self, gauge, *, backend=None, precision=None, n_rhs: int = 1, features=(), check_links: bool = True):
        """The operator on these links, in a backend: the links go in once, here.

        Parameters
        ----------
        gauge
            A :class:`~lqcd_core.fields.GaugeField`, or raw links ``(T, Z, Y, X, 4, Nc, Nc)``.
        backend
            A name, or ``(name, options)``. None: the session's choice, else the best that can serve.
        precision
            Defaults to that of the links.
        n_rhs
            Right-hand sides that will go through together.
        features
            Features the backend must have (see :data:`lqcd_core.backend.FEATURES`).
        check_links
            Refuse links that are not finite or not in SU(Nc). False accepts them as they are.

        Returns
        -------
        BoundOperator

        Raises
        ------
        BackendUnavailable, NoBackendError
            If the named backend, or every backend, cannot serve.
        NonUnitaryLinksError
            See ``check_links``.
        """
        from .bound import bind_operator

        return bind_operator(
            self, gauge, backend=backend, precision=precision, n_rhs=n_rhs, features=features, check_links=check_links
        )

    # -- on fields directly -------------------------------------------------------------------------------------------

    def set_gauge(self, gauge):
        """Remember links for calls without them, ``D(psi)``. A call that names links uses those. Returns self."""
        object.__setattr__(self, "_gauge", gauge)
        return self

    def __call__(self, psi, gauge=None):
        """M psi: a field for a field, an array for an array (NumPy or torch; there gradients flow)."""
        return self._bound(psi, gauge)(psi)

    def dagger(self, psi, gauge=None):
        """M^dagger psi."""
        return self._bound(psi, gauge).dagger(psi)

    def normal(self, psi, gauge=None):
        """M^dagger M psi."""
        return self._bound(psi, gauge).normal(psi)

    def _bound(self, psi, gauge):
        if gauge is None:
            gauge = getattr(self, "_gauge", None)
            if gauge is None:
                raise ParameterError(
                    f"{type(self).__name__}(psi) needs links: pass them, D(psi, U), or D.set_gauge(U)."
                )
        spinor, links = raw(psi), raw(gauge)
        if not hasattr(spinor, "dtype") or not hasattr(links, "dtype"):
            raise FieldTypeError(
                f"expected fields or arrays, got {type(psi).__name__} and {type(gauge).__name__} (order: D(psi, U))."
            )
        for what, array in (("a spinor", spinor), ("links", links)):
            if "complex" not in str(array.dtype):
                raise FieldTypeError(f"{what} must be complex, got {array.dtype}.")
        precision = psi.precision if hasattr(psi, "geometry") else as_precision(spinor.dtype)
        grads = bool(getattr(spinor, "requires_grad", False) or getattr(links, "requires_grad", False))
        n_rhs = spinor.shape[0] if len(spinor.shape) == 7 else 1
        if library_of(links) != library_of(spinor) and library_of(links) == "numpy":
            from ..arrays import from_numpy

            gauge = from_numpy(links, library_of(spinor))  # a field beside tensors: the spinor decides
        options = dict(
            precision=precision, n_rhs=max(n_rhs, 1), features=("autograd",) if grads else (),
            check_links=hasattr(gauge, "geometry"),
        )  # fmt: skip
        if grads:  # a graph belongs to one call: nothing of it is kept
            return self.bind(gauge, **options)
        return _recent(self).get(self, gauge, options)


@attrs.define(eq=False)
class _Recent:
    """The last few operators bound by D(psi, U), by the links' digest: a changed field never meets an old bind."""

    kept: OrderedDict = attrs.field(factory=OrderedDict)
    lock: Any = attrs.field(factory=threading.Lock)

    def get(self, definition, gauge, options):
        from ..arrays import to_numpy
        from ..backend import digest_of
        from ..selection import current_backend, preferred_backends

        named = current_backend()
        chosen = (named.name, repr(sorted(named.options.items()))) if named else preferred_backends()
        key = (
            digest_of(to_numpy(raw(gauge))), library_of(raw(gauge)), chosen, options["precision"].name,
            options["n_rhs"], options["check_links"],
        )  # fmt: skip
        with self.lock:
            if key in self.kept:
                self.kept.move_to_end(key)
                return self.kept[key]
        bound = definition.bind(gauge, **options)
        with self.lock:
            self.kept[key] = bound
            while len(self.kept) > _KEPT:
                self.kept.popitem(last=False)
        return bound


def _recent(definition) -> _Recent:
    found = definition.__dict__.get("_kept")
    if found is None:
        found = definition.__dict__.setdefault("_kept", _Recent())
    return found

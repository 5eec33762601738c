"""What one worker does: the commands of the executor on one slab, with the inner backend.

Objects (spaces, links, functions, handles) live here under numbers that the executor gives; the executor holds the
numbers only. The same class runs in a thread and in a process of its own.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lqcd_core.backend import (
    DiracTerms,
    Links,
    SiteDiagonal,
    SupportsColumns,
    SupportsConversion,
    SupportsEvenOdd,
    SupportsFusedHalo,
    SupportsFusedSlices,
    SupportsHalo,
    SupportsSiteDiagonal,
    SupportsSlices,
)
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.precision import Precision
from lqcd_core.spaces import Vectors

from .faces import Faces
from .ghost import GhostHop


class Shard:
    """One slab's worker.

    Parameters
    ----------
    backend
        The inner backend's instance.
    faces
        The exchange with the two neighbours.
    """

    def __init__(self, backend: Any, faces: Faces):
        self.backend, self.faces = backend, faces
        self.objects: dict[int, Any] = {}
        # What tells where a NaN came from: whether the last sum was finite, and which way the first NaN went.
        self.finite, self.first_nan = True, None
        self.interior_seconds = self.waiting_seconds = 0.0

    def run(self, freed: list[int], command: str, arguments: tuple) -> Any:
        """Forget what the executor no longer holds, then do one command."""
        for number in freed:
            self.objects.pop(number, None)
        return getattr(self, command)(*arguments)

    def abilities(self) -> dict[str, Any]:
        """What the inner backend offers, and what it says of itself."""
        describe = getattr(self.backend, "describe", None)
        return {
            "even_odd": isinstance(self.backend, SupportsEvenOdd),
            "site_diagonal": isinstance(self.backend, SupportsSiteDiagonal),
            "halo": isinstance(self.backend, SupportsHalo),
            "fused_halo": isinstance(self.backend, SupportsFusedHalo),
            "facts": dict(describe()) if callable(describe) else {},
        }

    # -- made once ----------------------------------------------------------------------------------------------------

    def space(self, new: int, geometry: LatticeGeometry, precision: Precision, n_rhs: int, parity) -> dict[str, bool]:
        space = self.backend.space(geometry, precision, n_rhs, parity)
        self.objects[new] = Vectors(space)
        return {
            "resizable": bool(space.resizable and isinstance(space, SupportsColumns)),
            "converts": isinstance(space, SupportsConversion),
            "slices": isinstance(space, SupportsSlices),
        }

    def links(self, new: int, links: Links) -> None:
        self.objects[new] = links

    def hopping(self, new: int, links: int, source: int, target: int, first: bool) -> int:
        """Make a hopping term; returns the bytes of a face per column."""
        o, source, target = self.objects, self.objects[source].space, self.objects[target].space
        if isinstance(self.backend, SupportsHalo):
            hop = self.backend.halo_hopping(o[links], target)
        else:
            hop = GhostHop(self.backend, o[links], source, target, first)
        o[new] = hop
        return _face_bytes(hop, source)

    def fused(self, new: int, kind: str, links: int, term: SiteDiagonal, space: int) -> int | None:
        """Make M or M^dagger; the bytes of a face per column, None if the inner backend leaves it to be derived."""
        space = self.objects[space].space
        made = self.backend.halo_fused(kind, DiracTerms(links=self.objects[links], diagonal=term), space)
        if made is None:
            return None
        self.objects[new] = made
        return _face_bytes(made, space)

    def site_diagonal(self, new: int, term: SiteDiagonal, space: int) -> None:
        self.objects[new] = self.backend.site_diagonal(term, self.objects[space].space)

    # -- functions of handles -----------------------------------------------------------------------------------------

    def hop(self, new: int, hop: int, x: int) -> None:
        hop, x = self.objects[hop], self.objects[x]
        try:
            faces = hop.faces(x)
            self._look(faces, "sent")
            self.faces.post(*faces)
            began = time.perf_counter()
            partial = hop.interior(x)  # while the faces travel
            done = time.perf_counter()
            below, above = self.faces.receive()
            self.interior_seconds += done - began
            self.waiting_seconds += time.perf_counter() - done
            self._look((below, above), "received")
            self.objects[new] = hop.exterior(x, partial, below, above)
        except BaseException:
            self.faces.abort()  # the neighbours wait for nothing else
            raise

    def _look(self, faces: tuple[np.ndarray, np.ndarray], way: str) -> None:
        if self.first_nan is None and any(np.isnan(face).any() for face in faces):
            self.first_nan = way

    def blame(self) -> tuple[bool, str | None]:
        """(was the last sum finite, which way the first NaN in a face went: ``sent``, ``received`` or None)."""
        return self.finite, self.first_nan

    def times(self) -> tuple[float, float]:
        """(seconds in the interior, seconds spent waiting for faces after it) since last asked."""
        out = self.interior_seconds, self.waiting_seconds
        self.interior_seconds = self.waiting_seconds = 0.0
        return out

    def apply(self, new: int, function: int, x: int) -> None:
        self.objects[new] = self.objects[function](self.objects[x])

    # -- vectors ------------------------------------------------------------------------------------------------------

    def pack(self, space: int, new: int, array: np.ndarray) -> None:
        self.objects[new] = self.objects[space].pack(array)

    def unpack(self, space: int, x: int) -> np.ndarray:
        return self.objects[space].unpack(self.objects[x])

    def zeros(self, space: int, new: int) -> None:
        self.objects[new] = self.objects[space].space.zeros()

    def gamma5(self, space: int, new: int, x: int) -> None:
        self.objects[new] = self.objects[space].gamma5(self.objects[x])

    def copy(self, space: int, new: int, x: int) -> None:
        self.objects[new] = self.objects[space].copy(self.objects[x])

    def axpy(self, space: int, new: int, a, x: int, y: int) -> None:
        o = self.objects
        o[new] = o[space].axpy(a, o[x], o.pop(y))

    def scale(self, space: int, new: int, a, x: int) -> None:
        o = self.objects
        o[new] = o[space].scale(a, o.pop(x))

    def xpay(self, space: int, new: int, x: int, a, y: int) -> None:
        o = self.objects
        o[new] = o[space].xpay(o[x], a, o.pop(y))

    def take(self, space: int, new: int, x: int, columns: list[int]) -> None:
        self.objects[new] = self.objects[space].take(self.objects[x], columns)

    def put(self, space: int, new: int, x: int, columns: list[int], part: int) -> None:
        o = self.objects
        o[new] = o[space].put(o.pop(x), columns, o[part])

    def convert(self, space: int, new: int, x: int, source: int) -> bool:
        o = self.objects
        got = o[space].space.convert_from(o[x], o[source].space)
        if got is not None:
            o[new] = got
        return got is not None

    # -- reductions: (n, T) slices when exact, one number per column and shard (n, 1) when fast -----------------------

    def inner(self, space: int, exact: bool, x: int, y: int) -> np.ndarray:
        return self._seen(self._inner(self.objects[space], exact, self.objects[x], self.objects[y]))

    def _seen(self, parts: np.ndarray) -> np.ndarray:
        self.finite = not np.isnan(parts).any()
        if self.finite:
            self.first_nan = None
        return parts

    def axpy_norm2(self, space: int, exact: bool, new: int, a, x: int, y: int) -> np.ndarray:
        o, inside = self.objects, self.objects[space].space
        if exact and isinstance(inside, SupportsFusedSlices):
            o[new], slices = inside.axpy_norm2_slices(a, o[x], o.pop(y))
            return self._seen(slices)
        if not exact:
            o[new], rr = self.objects[space].axpy_norm2(a, o[x], o.pop(y))
            return self._seen(rr[:, None])
        self.axpy(space, new, a, x, y)
        return self.inner(space, exact, new, new)

    def cg_update(
        self, space: int, exact: bool, new_x: int, new_r: int, a, p: int, ap: int, x: int, r: int
    ) -> np.ndarray:
        o, v = self.objects, self.objects[space]
        if exact and isinstance(v.space, SupportsFusedSlices):
            o[new_x], o[new_r], slices = v.space.cg_update_slices(a, o[p], o[ap], o.pop(x), o.pop(r))
            return self._seen(slices)
        if exact:
            self.axpy(space, new_x, a, p, x)
            return self.axpy_norm2(space, exact, new_r, -np.asarray(a), ap, r)
        o[new_x], o[new_r], rr = v.cg_update(a, o[p], o[ap], o.pop(x), o.pop(r))
        return self._seen(rr[:, None])

    @staticmethod
    def _inner(v: Vectors, exact: bool, x, y) -> np.ndarray:
        space = v.space
        if not exact:
            return (space.norm2(x) if x is y else space.inner(x, y))[:, None]
        if isinstance(space, SupportsSlices):
            return space.inner_slices(x, y)
        # Derived for a backend without slices: on the host, the same sum for any cut of the lattice.
        a, b = (space.unpack(h).astype(np.complex128) for h in (x, y))
        return (a.conj() * b).reshape(len(a), a.shape[1], -1).sum(axis=-1)


def _face_bytes(hop, source) -> int:
    """Bytes of a face per column."""
    return -(-max(face.nbytes for face in hop.faces(source.zeros())) // source.n_rhs)

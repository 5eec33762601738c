"""The lattice: extents, shapes, site order and parity.

Axis order of every host array is t, z, y, x (x fastest), and direction index 0, 1, 2, 3 is t, z, y, x: the axis that
the direction moves along.
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np

from .errors import FieldShapeError, GeometryError

DIRECTIONS = ("t", "z", "y", "x")
"""Names of the four directions by index."""

FULL, EVEN, ODD = None, 0, 1
"""Parities: the whole lattice, the sites with t+z+y+x even, and those with it odd."""


def _extent(instance, attribute, value):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise GeometryError(f"extent {attribute.name} must be a whole number, got {value!r} ({type(value).__name__}).")
    if value < 1:
        raise GeometryError(f"extent {attribute.name} must be at least 1, got {value}.")


def _colors(instance, attribute, value):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 2:
        raise GeometryError(f"nc (number of colours) must be a whole number of at least 2, got {value!r}.")


@attrs.define(frozen=True, slots=False, kw_only=True)
class LatticeGeometry:
    """A periodic four-dimensional lattice of ``T x Z x Y x X`` sites and SU(nc) links.

    Raises
    ------
    GeometryError
        If an extent is not a positive whole number, or nc is below 2.

    Examples
    --------
    >>> g = LatticeGeometry(T=8, Z=4, Y=4, X=4)
    >>> g.volume, g.gauge_shape
    (512, (8, 4, 4, 4, 4, 3, 3))
    """

    T: int = attrs.field(validator=_extent)
    """Temporal extent, lattice units, at least 1."""
    Z: int = attrs.field(validator=_extent)
    """Extent in z, lattice units, at least 1."""
    Y: int = attrs.field(validator=_extent)
    """Extent in y, lattice units, at least 1."""
    X: int = attrs.field(validator=_extent)
    """Extent in x (the fastest axis in memory), lattice units, at least 1."""
    nc: int = attrs.field(default=3, validator=_colors)
    """Number of colours Nc, at least 2."""

    ns = 4
    """Number of spin components."""

    @classmethod
    def from_shape(cls, shape, nc: int = 3) -> LatticeGeometry:
        """Geometry of the extents ``(T, Z, Y, X)``."""
        shape = tuple(shape)
        if len(shape) != 4:
            raise GeometryError(f"a lattice has four extents (T, Z, Y, X), got {shape}.")
        return cls(T=shape[0], Z=shape[1], Y=shape[2], X=shape[3], nc=nc)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(T, Z, Y, X)``."""
        return (self.T, self.Z, self.Y, self.X)

    @property
    def volume(self) -> int:
        """Number of sites."""
        return self.T * self.Z * self.Y * self.X

    @property
    def spatial_volume(self) -> int:
        """Number of sites of one time slice."""
        return self.Z * self.Y * self.X

    @property
    def gauge_shape(self) -> tuple[int, ...]:
        """Shape of a link array: ``(T, Z, Y, X, 4, Nc, Nc)``."""
        return (*self.shape, 4, self.nc, self.nc)

    @property
    def spinor_shape(self) -> tuple[int, ...]:
        """Shape of one spinor array: ``(T, Z, Y, X, Ns, Nc)``."""
        return (*self.shape, self.ns, self.nc)

    def parity_shape(self, parity) -> tuple[int, ...]:
        """Spinor shape on one parity, ``(T, Z, Y, X/2, Ns, Nc)``; the full shape for ``FULL``."""
        return self.spinor_shape if parity is FULL else (*self.shape[:3], self.X // 2, self.ns, self.nc)

    def why_no_parity(self) -> str | None:
        """None if even-odd works here, else the sentence that says why it cannot."""
        odd = [f"{n}={e}" for n, e in zip("TZYX", self.shape, strict=True) if e % 2]
        if odd:
            return (
                f"even-odd needs four even extents, but {', '.join(odd)} is odd: across the periodic boundary two "
                "neighbouring sites would have the same parity"
            )
        return None

    @cached_property
    def site_parity(self) -> np.ndarray:
        """Parity (t+z+y+x) mod 2 of every site, shape ``(T, Z, Y, X)``, int8."""
        t, z, y, x = np.indices(self.shape, sparse=True)
        out = ((t + z + y + x) % 2).astype(np.int8)
        out.setflags(write=False)
        return out

    def split_parity(self, array: np.ndarray, parity: int, lead: int = 0) -> np.ndarray:
        """The sites of one parity of an array whose axes ``lead .. lead+3`` are T, Z, Y, X.

        The x axis becomes X/2: entry k of row (t, z, y) is the site x = 2k + ((t+z+y+parity) mod 2).

        Raises
        ------
        GeometryError
            If an extent is odd.
        """
        self._need_parity()
        head, tail = array.shape[:lead], array.shape[lead + 4 :]
        pairs = array.reshape(*head, self.T, self.Z, self.Y, self.X // 2, 2, *tail)
        index = self._pair_index(parity).reshape((1,) * lead + (self.T, self.Z, self.Y, 1, 1) + (1,) * len(tail))
        return np.take_along_axis(pairs, index, axis=lead + 4).squeeze(lead + 4)

    def join_parity(self, even: np.ndarray | None, odd: np.ndarray | None, lead: int = 0) -> np.ndarray:
        """The inverse of :meth:`split_parity`; a missing half is filled with zeros."""
        self._need_parity()
        some = even if even is not None else odd
        head, tail = some.shape[:lead], some.shape[lead + 4 :]
        out = np.zeros((*head, *self.shape, *tail), np.result_type(*(h for h in (even, odd) if h is not None)))
        pairs = out.reshape(*head, self.T, self.Z, self.Y, self.X // 2, 2, *tail)
        for parity, half in ((EVEN, even), (ODD, odd)):
            if half is not None:
                index = self._pair_index(parity).reshape(
                    (1,) * lead + (self.T, self.Z, self.Y, 1, 1) + (1,) * len(tail)
                )
                np.put_along_axis(pairs, index, half[(slice(None),) * (lead + 4) + (None,)], axis=lead + 4)
        return out

    def _pair_index(self, parity) -> np.ndarray:
        t, z, y = np.indices(self.shape[:3], sparse=True)
        return (t + z + y + parity) % 2

    def _need_parity(self) -> None:
        reason = self.why_no_parity()
        if reason:
            raise GeometryError(reason + ".")

    def check_links(self, shape) -> None:
        """Raise :class:`FieldShapeError` unless ``shape`` is that of a link array on this lattice."""
        if tuple(shape) != self.gauge_shape:
            raise FieldShapeError(
                f"links have shape {tuple(shape)}, but {self} needs (T, Z, Y, X, 4, Nc, Nc) = {self.gauge_shape}."
            )

    def check_spinor(self, shape, parity=FULL) -> int | None:
        """The batch size of a spinor array, None for a single one.

        Raises
        ------
        FieldShapeError
            Unless the shape is ``([n_rhs,] T, Z, Y, X, Ns, Nc)`` with n_rhs at least 1.
        """
        shape, want = tuple(shape), self.parity_shape(parity)
        if shape == want:
            return None
        if len(shape) == 7 and shape[1:] == want and shape[0] >= 1:
            return shape[0]
        if len(shape) == 7 and shape[1:] == want:
            raise FieldShapeError(f"an empty batch of spinors (shape {shape}); n_rhs must be at least 1.")
        raise FieldShapeError(
            f"spinor has shape {shape}, but {self} needs ([n_rhs,] T, Z, Y, X, Ns, Nc) = ([n_rhs,] {want})."
        )

    def __str__(self) -> str:
        return f"a {self.T}x{self.Z}x{self.Y}x{self.X} lattice (T, Z, Y, X) with Nc = {self.nc}"

"""Link arrays as the gauge formulas see them: one direction, one shift, one dagger, one sum over sites.

Formulas are written once over an array namespace. A :class:`~lqcd_core.fields.GaugeField` or a NumPy array gives plain
Python numbers; a torch tensor gives 0-d tensors through which gradients flow. Sums over sites are always double. For NumPy
a backend that offers a formula (:class:`~lqcd_core.backend.SupportsGauge`) computes it, to the same rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from ..arrays import is_complex, namespace, raw
from ..errors import FieldShapeError, FieldTypeError, ParameterError
from ..geometry import DIRECTIONS
from ..selection import gauge_kernel

PLANES = {"xy": (3, 2), "xz": (3, 1), "yz": (2, 1), "xt": (3, 0), "yt": (2, 0), "zt": (1, 0)}
"""The six planes, oriented as x, y, z, t are ordered, with the direction indices (mu, nu) of each."""

SPATIAL_PLANES = ("xy", "xz", "yz")
TEMPORAL_PLANES = ("xt", "yt", "zt")


@attrs.frozen(eq=False)
class LinkArray:
    """Links with the library that computes on them."""

    array: Any
    """Complex ``(T, Z, Y, X, 4, Nc, Nc)``, directions t, z, y, x."""
    xp: Any
    """Namespace of the array: numpy, torch, ..."""

    @property
    def nc(self) -> int:
        """Number of colours."""
        return self.array.shape[-1]

    @property
    def volume(self) -> int:
        """Number of sites."""
        t, z, y, x = self.array.shape[:4]
        return t * z * y * x

    def link(self, mu: int) -> Any:
        """U_mu(x), shape ``(T, Z, Y, X, Nc, Nc)``."""
        return self.array[..., mu, :, :]

    def shift(self, a: Any, mu: int, step: int) -> Any:
        """a(x + step mu), periodic; the site axes of ``a`` come first."""
        return self.xp.roll(a, -step, mu)

    def site_sum(self, a: Any) -> Any:
        """Sum of all elements, accumulated in double precision."""
        return self.xp.sum(a, dtype=self.xp.complex128 if is_complex(a) else self.xp.float64)

    def real_trace_sum(self, a: Any, b: Any) -> Any:
        """sum over sites of Re tr a b^dagger: element by element, one matrix product less."""
        return self.site_sum((a * b.conj()).real)

    def trace(self, a: Any) -> Any:
        """Colour trace."""
        return self.xp.einsum("...ii->...", a)

    def kernel(self, kind: str) -> Callable | None:
        """A backend's function for a formula (:func:`~lqcd_core.selection.gauge_kernel`); None off NumPy."""
        return gauge_kernel(kind, self.nc) if self.xp is np else None

    def scalar(self, value: Any) -> Any:
        """A Python number for NumPy input; other libraries keep their 0-d array, and its gradient."""
        return value.item() if self.xp is np else value


def links_of(gauge: Any) -> LinkArray:
    """The links of a field or raw array, checked.

    Raises
    ------
    FieldTypeError
        If it is no array of complex numbers.
    FieldShapeError
        Unless the shape is ``(T, Z, Y, X, 4, Nc, Nc)``.
    """
    array = raw(gauge)
    xp = namespace(array)
    shape = tuple(array.shape)
    if len(shape) != 7 or shape[4] != 4 or shape[5] != shape[6] or shape[5] < 2 or 0 in shape:
        raise FieldShapeError(f"links have shape {shape}; gauge formulas need (T, Z, Y, X, 4, Nc, Nc).")
    if not is_complex(array):
        raise FieldTypeError(f"links must be complex, got {array.dtype}.")
    return LinkArray(array, xp)


def dagger(a: Any) -> Any:
    """Hermitian conjugate of the last two axes."""
    return a.conj().swapaxes(-1, -2)


def direction_index(direction: int | str) -> int:
    """0..3 of a direction given by number or by its letter t, z, y, x.

    Raises
    ------
    ParameterError
        If there is no such direction.
    """
    if isinstance(direction, str) and direction in DIRECTIONS:
        return DIRECTIONS.index(direction)
    if isinstance(direction, (int, np.integer)) and not isinstance(direction, bool) and 0 <= direction < 4:
        return int(direction)
    raise ParameterError(f"direction must be 't', 'z', 'y', 'x' or 0..3 in that order, got {direction!r}.")


def plane_indices(mu: int | str, nu: int | str) -> tuple[int, int]:
    """Both direction indices of a plane; they must differ."""
    mu, nu = direction_index(mu), direction_index(nu)
    if mu == nu:
        raise ParameterError(f"a plane needs two different directions, got {DIRECTIONS[mu]!r} twice.")
    return mu, nu

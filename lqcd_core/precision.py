"""Precisions: what is stored for links and spinors, and what arithmetic runs on it.

The one tolerance table of the project is here (:attr:`Precision.tolerance`): the relative L2 error per operator
application against double that any backend may have. Tests, documentation and the conformance suite read it.
"""

from __future__ import annotations

import attrs
import numpy as np

from .errors import ParameterError, nearest


@attrs.frozen
class Precision:
    """A precision is a record, not a dtype: 16-bit storage always goes with single arithmetic."""

    name: str
    """``double``, ``single``, ``half``, ``bf16`` or ``fixed16``."""
    link_storage: str
    """Storage of one real number of a link: ``float64``, ``float32``, ``float16``, ``bfloat16``, ``fixed16``."""
    spinor_storage: str
    """Storage of one real number of a spinor, same names."""
    arithmetic: str
    """Arithmetic inside a site: ``float64`` or ``float32``. Sums over sites are always double."""
    epsilon: float
    """Unit of relative rounding of the arithmetic (dimensionless)."""
    tolerance: float
    """Allowed relative L2 error of one operator application against double (dimensionless)."""
    bytes_per_real: int
    """Storage of one real number of a spinor, bytes."""

    @property
    def complex_dtype(self) -> np.dtype:
        """Complex NumPy type of the arithmetic."""
        return np.dtype("complex128" if self.arithmetic == "float64" else "complex64")

    @property
    def real_dtype(self) -> np.dtype:
        """Real NumPy type of the arithmetic."""
        return np.dtype(self.arithmetic)

    @property
    def storage_dtype(self) -> np.dtype:
        """NumPy type of one stored real of a spinor. ``bfloat16`` needs the package ml_dtypes.

        Raises
        ------
        ParameterError
            For ``fixed16``: scaled integers have no NumPy type of their own; a backend packs them.
        """
        if self.spinor_storage == "bfloat16":
            import ml_dtypes  # only when asked for: the core stays light

            return np.dtype(ml_dtypes.bfloat16)
        if self.spinor_storage == "fixed16":
            raise ParameterError("fixed16 is a backend's packed storage and cannot be a host field; use 'half'.")
        return np.dtype(self.spinor_storage)

    @property
    def is_split(self) -> bool:
        """True if host arrays hold real and imaginary parts on a trailing axis of 2 (no complex 16-bit type exists)."""
        return self.bytes_per_real == 2

    def __str__(self) -> str:
        return self.name


_E64, _E32 = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)

PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("double", "float64", "float64", "float64", _E64, 50 * _E64, 8),
        Precision("single", "float32", "float32", "float32", _E32, 50 * _E32, 4),
        Precision("half", "float16", "float16", "float32", _E32, 5e-4, 2),
        Precision("bf16", "bfloat16", "bfloat16", "float32", _E32, 5e-3, 2),
        Precision("fixed16", "fixed16", "fixed16", "float32", _E32, 1e-4, 2),
    )
}
"""Every precision by name."""

_BY_DTYPE = {
    "complex128": "double", "float64": "double", "complex64": "single", "float32": "single",
    "float16": "half", "bfloat16": "bf16",
}  # fmt: skip


def as_precision(value: str | Precision | np.dtype | type) -> Precision:
    """The :class:`Precision` meant by a name, a record, or a dtype (of NumPy, or anything whose name ends in one).

    Raises
    ------
    ParameterError
        If the name is unknown; the message lists the known ones.

    Examples
    --------
    >>> as_precision("single").complex_dtype
    dtype('complex64')
    >>> as_precision(np.complex128).name
    'double'
    """
    if isinstance(value, Precision):
        return value
    if isinstance(value, str) and value in PRECISIONS:
        return PRECISIONS[value]
    if not isinstance(value, str):
        name = getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)
        name = name.rpartition(".")[2]
    else:
        name = value
    if name in _BY_DTYPE:
        return PRECISIONS[_BY_DTYPE[name]]
    raise ParameterError(f"precision {value!r} is unknown; {nearest(str(name), PRECISIONS)}")

r"""The exponential of the algebra: from momenta and forces to links."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import is_complex, namespace, raw
from ..errors import FieldShapeError, FieldTypeError, ParameterError
from ..selection import gauge_kernel


def exponential(algebra: Any) -> Any:
    r"""Matrix exponential of anti-Hermitian matrices, by their spectrum.

    .. math:: e^{A} = V\,\mathrm{diag}(e^{i\lambda_k})\,V^\dagger,\qquad -iA = V\,\mathrm{diag}(\lambda_k)\,V^\dagger

    A backend may use the analytic form for SU(3) [1]_ instead; both agree to rounding.

    Parameters
    ----------
    algebra
        A, complex ``(..., Nc, Nc)``, anti-Hermitian to rounding, dimensionless; its trace counts.

    Returns
    -------
    array
        Of the shape and type of A; unitary, and in SU(Nc) if A is traceless. Computed in double for NumPy input.

    Raises
    ------
    FieldShapeError, FieldTypeError
        If the argument is no stack of square complex matrices.
    ParameterError
        If a matrix is not anti-Hermitian, or not finite.

    References
    ----------
    .. [1] C. Morningstar and M. Peardon, Phys. Rev. D 69 (2004) 054501, hep-lat/0311018.

    Examples
    --------
    >>> a = 0.5j * np.diag([1.0, 1.0, -2.0])
    >>> bool(np.allclose(exponential(a), np.diag(np.exp(np.diag(a)))))
    True
    """
    a = raw(algebra)
    xp = namespace(a)
    shape = tuple(a.shape)
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < 2:
        raise FieldShapeError(f"an exponential needs matrices (..., Nc, Nc), got shape {shape}.")
    if not is_complex(a):
        raise FieldTypeError(f"matrices of the algebra must be complex, got {a.dtype}.")
    wide = a.astype(np.complex128) if xp is np else a
    adjoint = wide.conj().swapaxes(-1, -2)
    size = float(abs(wide).max()) if 0 not in shape else 0.0
    apart = float(abs(wide + adjoint).max()) if 0 not in shape else 0.0
    tolerance = 1e-12 if "128" in str(a.dtype) else 1e-5
    if not apart <= tolerance * max(size, 1.0):
        raise ParameterError(
            f"the exponential is that of anti-Hermitian matrices, but |A + A^dagger| reaches {apart:.2g} (|A| = {size:.2g}); "
            "pass (A - A^dagger) / 2."
        )
    kernel = gauge_kernel("exponential", shape[-1]) if xp is np else None
    if kernel is not None:
        return kernel(wide).astype(a.dtype, copy=False)
    values, vectors = xp.linalg.eigh(-0.5j * (wide - adjoint))
    out = (vectors * xp.exp(1j * values)[..., None, :]) @ vectors.conj().swapaxes(-1, -2)
    return out.astype(a.dtype, copy=False) if xp is np else out


__all__ = ["exponential"]

r"""Gamma matrices in the DeGrand-Rossi basis, as QUDA, Chroma and Grid use it, and the maps to other bases.

.. math:: \gamma_x=\begin{pmatrix}0&i\sigma_1\\-i\sigma_1&0\end{pmatrix},\;
          \gamma_y=\begin{pmatrix}0&-i\sigma_2\\i\sigma_2&0\end{pmatrix},\;
          \gamma_z=\begin{pmatrix}0&i\sigma_3\\-i\sigma_3&0\end{pmatrix},\;
          \gamma_t=\begin{pmatrix}0&1\\1&0\end{pmatrix},\quad
          \gamma_5=\gamma_x\gamma_y\gamma_z\gamma_t=\mathrm{diag}(1,1,-1,-1).

Each matrix belongs to its physical axis; the direction index 0, 1, 2, 3 is t, z, y, x. openQCD and tmLQCD call
diag(1, 1, -1, -1) *in their own basis* gamma5, which is minus the image of ours: see docs/conventions.md.
"""

from __future__ import annotations

import numpy as np

from .errors import ParameterError, nearest

_0 = np.zeros((2, 2))
_1 = np.eye(2)
_S1 = np.array([[0, 1], [1, 0]])
_S2 = np.array([[0, -1j], [1j, 0]])
_S3 = np.array([[1, 0], [0, -1]])


def _frozen(a) -> np.ndarray:
    a = np.ascontiguousarray(a, dtype=complex)
    a.setflags(write=False)
    return a


GX = _frozen(np.block([[_0, 1j * _S1], [-1j * _S1, _0]]))
GY = _frozen(np.block([[_0, -1j * _S2], [1j * _S2, _0]]))
GZ = _frozen(np.block([[_0, 1j * _S3], [-1j * _S3, _0]]))
GT = _frozen(np.block([[_0, _1], [_1, _0]]))

GAMMA = _frozen(np.stack([GT, GZ, GY, GX]))
"""``GAMMA[mu]``, mu = 0..3 = t, z, y, x; shape (4, 4, 4)."""

GAMMA5 = _frozen(GX @ GY @ GZ @ GT)
"""diag(1, 1, -1, -1)."""

GAMMA5_SIGNS = np.array([1, 1, -1, -1])
"""The diagonal of gamma5 by spin component."""


def gamma(n: int) -> np.ndarray:
    r"""Chroma's numbering of the sixteen products.

    .. math:: \Gamma(n) = \gamma_x^{b_0}\gamma_y^{b_1}\gamma_z^{b_2}\gamma_t^{b_3},\quad n = b_0+2b_1+4b_2+8b_3

    Examples
    --------
    >>> bool((gamma(15) == GAMMA5).all() and (gamma(8) == GT).all())
    True
    """
    if n not in range(16):
        raise ParameterError(f"gamma structure number must be in 0..15, got {n!r}.")
    out = np.eye(4, dtype=complex)
    for bit, g in enumerate((GX, GY, GZ, GT)):
        if n >> bit & 1:
            out = out @ g
    return out


def sigma(mu: int, nu: int) -> np.ndarray:
    r""":math:`\sigma_{\mu\nu} = \frac{i}{2}[\gamma_\mu, \gamma_\nu]`, directions 0..3 = t, z, y, x."""
    return 0.5j * (GAMMA[mu] @ GAMMA[nu] - GAMMA[nu] @ GAMMA[mu])


_R2 = 1 / np.sqrt(2.0)
BASES: dict[str, np.ndarray] = {
    "degrand-rossi": _frozen(np.eye(4)),
    "ukqcd": _frozen(_R2 * np.array([[0, 1, 0, 1], [-1, 0, -1, 0], [0, 1, 0, -1], [-1, 0, 1, 0]])),
    "chiral": _frozen(-GY),
    "dirac-pauli": _frozen(_R2 * np.array([[0, 1, 0, 1], [-1, 0, -1, 0], [0, -1, 0, 1], [1, 0, -1, 0]])),
}
"""Maps S from DeGrand-Rossi: gamma' = S gamma S^dagger, psi' = S psi."""


def basis_rotation(source: str, target: str) -> np.ndarray:
    """The unitary 4x4 matrix S with psi_target = S psi_source.

    Raises
    ------
    ParameterError
        If a basis name is unknown.
    """
    for name in (source, target):
        if name not in BASES:
            raise ParameterError(f"gamma basis {name!r} is unknown; {nearest(name, BASES)}")
    return BASES[target] @ BASES[source].conj().T


def gamma_in_basis(matrix: np.ndarray, basis: str) -> np.ndarray:
    """A DeGrand-Rossi spin matrix written in another basis, S matrix S^dagger."""
    s = basis_rotation("degrand-rossi", basis)
    return s @ matrix @ s.conj().T

r"""Meson two-point functions for all 16 x 16 gamma structures.

With the interpolating operators :math:`O_\Gamma=\bar q_1\Gamma q_2`, one quark line S_2 forward and one, S_1, backward by
gamma5-Hermiticity, :math:`S_1(x_0,x)=\gamma_5S_1^\dagger(x,x_0)\gamma_5`,

.. math:: C(t)=\sum_{\vec x}e^{+i\vec p\cdot(\vec x-\vec x_0)}\,
          \mathrm{tr}\bigl[\gamma_5S_1^\dagger(x,x_0)\gamma_5\,\Gamma_\mathrm{snk}\,S_2(x,x_0)\,\bar\Gamma_\mathrm{src}\bigr],
          \qquad t=x_4-x_{0,4}.

**Gamma-bar.** ``convention="adjoint"`` (the default): :math:`\bar\Gamma=-\gamma_t\Gamma^\dagger\gamma_t`, the sign of the
closed quark loop included. Then C is :math:`\langle O_\mathrm{snk}(t)\,O_\mathrm{src}^\dagger(0)\rangle`, a sum of
:math:`|\langle0|O|n\rangle|^2e^{-E_nt}` with positive weights for equal structures. ``convention="chroma"``:
:math:`\bar\Gamma=\Gamma`, what Chroma's mesons print; on the diagonal it is ours times :func:`adjoint_sign`: equal for the
pion (15) and the rho (1, 2, 4), opposite for the scalar (0) and gamma_x gamma_y gamma_z, that is gamma_5 gamma_t (7).

**Momentum.** :math:`(p_x,p_y,p_z)` are whole numbers in units of :math:`2\pi/L`; the phase is :math:`e^{+ip\cdot(x-x_0)}`,
lalibe's sign; sign = -p for the other.

**Time.** The result starts at the source slice: entry 0 is t = 0 (the boundary phase drops out: a quark and an antiquark
cross together). Disconnected parts of flavour-neutral operators are not included. Sums are in double.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import FieldTypeError, ParameterError, nearest
from ..fields import Propagator, same_lattice
from ..gamma import GAMMA5, GT, gamma
from .sources import momentum_phase, source_position, spin_matrix, whole_momentum

CONVENTIONS = ("adjoint", "chroma")
"""Meanings of Gamma-bar; see the head of this module."""

GAMMA_NAMES = (
    "1", "gx", "gy", "gxgy", "gz", "gxgz", "gygz", "gxgygz",
    "gt", "gxgt", "gygt", "gxgygt", "gzgt", "gxgzgt", "gygzgt", "g5",
)  # fmt: skip
"""Names of the structures in Chroma's numbering, Gamma(n) = gx^b0 gy^b1 gz^b2 gt^b3."""

SIXTEEN = np.stack([gamma(n) for n in range(16)])
SIXTEEN.setflags(write=False)


def gamma_bar(structure, convention: str = "adjoint") -> np.ndarray:
    r"""The source matrix of an operator: :math:`-\gamma_t\Gamma^\dagger\gamma_t`, or :math:`\Gamma` itself for ``chroma``.

    Examples
    --------
    >>> bool((gamma_bar(15) == GAMMA5).all())
    True
    """
    m = spin_matrix(structure)
    if convention not in CONVENTIONS:
        raise ParameterError(f"convention {convention!r} is unknown; {nearest(str(convention), CONVENTIONS)}")
    return m if convention == "chroma" else -GT @ m.conj().T @ GT


def adjoint_sign(n: int) -> int:
    """The sign s with gamma_bar(n) = s Gamma(n): C(adjoint) = s C(chroma) on the diagonal.

    Examples
    --------
    >>> [adjoint_sign(n) for n in (15, 7, 0, 1)]
    [1, -1, -1, 1]
    """
    m = gamma(n)
    return 1 if np.array_equal(gamma_bar(n), m) else -1


def meson_spin_tensor(
    S1: Propagator, S2: Propagator | None = None, momentum: Sequence[int] = (0, 0, 0), position=None
) -> np.ndarray:
    r"""All a meson correlator can need: :math:`W_{\alpha\beta,\alpha'\beta'}(t)=\sum_{\vec x}e^{i\vec p(\vec x-\vec x_0)}
    \sum_{ab}S_1^*{}^{ab}_{\alpha\beta}S_2{}^{ab}_{\alpha'\beta'}`, absolute times, shape ``(T, 4, 4, 4, 4)``.

    One 16 x 16 matrix product of inner length Nc^2 Z Y X per slice: 2048 Nc^2 flops per site whatever the number of
    structures read from it.
    """
    S2 = S1 if S2 is None else S2
    for S in (S1, S2):
        if not isinstance(S, Propagator):
            raise FieldTypeError(f"a meson needs propagators, got {type(S).__name__}.")
    same_lattice("meson correlator", S1.geometry, S2.geometry)
    g = S1.geometry
    n = whole_momentum(momentum)
    phase = None if not any(n) else momentum_phase(g, n, _origin(position, S2, S1)).reshape(-1, 1, 1)
    in_dr = [S if S.basis == "degrand-rossi" else S.to_basis("degrand-rossi") for S in (S1, S2)]
    out = np.empty((g.T, 16, 16), complex)
    for t in range(g.T):
        a, b = (S.array[t].reshape(-1, 16, g.nc**2) for S in in_dr)
        a = np.conj(a).astype(complex, copy=False)
        b = b.astype(complex, copy=False) if phase is None else b * phase
        out[t] = a.swapaxes(0, 1).reshape(16, -1) @ b.swapaxes(0, 1).reshape(16, -1).T
    return out.reshape(g.T, 4, 4, 4, 4)


def meson_correlator(
    S1: Propagator,
    S2: Propagator | None = None,
    gamma_sink=15,
    gamma_source=None,
    momentum: Sequence[int] = (0, 0, 0),
    *,
    convention: str = "adjoint",
    position=None,
    source_time: int | None = None,
) -> np.ndarray:
    r"""One meson two-point function, :math:`\sum_{\vec x}e^{i\vec p(\vec x-\vec x_0)}\mathrm{tr}[\gamma_5S_1^\dagger\gamma_5
    \Gamma_\mathrm{snk}S_2\bar\Gamma_\mathrm{src}]`.

    Parameters
    ----------
    S1
        Propagator of the antiquark's flavour, any gamma basis.
    S2
        Propagator of the quark; S1 if None. Same source.
    gamma_sink, gamma_source
        Chroma's number 0..15 or a 4x4 DeGrand-Rossi matrix; the source is that of the sink if None.
    momentum
        (n_x, n_y, n_z), whole numbers.
    convention
        ``adjoint`` or ``chroma``: what Gamma-bar is (see the head of this module).
    position
        x_0 (t, z, y, x) of the momentum phase; from ``source["position"]`` if None, else the origin.
    source_time
        Slice that becomes t = 0; from the source if None. Give 0 for absolute times.

    Returns
    -------
    numpy.ndarray
        complex128, shape ``(T,)``.

    Raises
    ------
    ParameterError, FieldShapeError, FieldTypeError
        For an unknown structure or convention, propagators of two lattices, or something that is no propagator.

    Examples
    --------
    >>> from lqcd_core.free_field import free_propagator
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> S = free_propagator(LatticeGeometry(T=8, Z=4, Y=4, X=4), mass=0.1)
    >>> float(meson_correlator(S).real[1].round(9))
    0.075815895
    """
    snk = spin_matrix(gamma_sink)
    src = gamma_bar(gamma_sink if gamma_source is None else gamma_source, convention)
    W = meson_spin_tensor(S1, S2, momentum, position)
    C = np.einsum("ij,tikjl,lk->t", GAMMA5 @ snk, W, src @ GAMMA5, optimize=True)
    return _from_source(C, source_time, S1, S2)


def meson_correlators(
    S1: Propagator,
    S2: Propagator | None = None,
    momentum: Sequence[int] = (0, 0, 0),
    *,
    diagonal: bool = False,
    convention: str = "adjoint",
    position=None,
    source_time: int | None = None,
) -> np.ndarray:
    """Every meson two-point function, ``(16 sink, 16 source, T)`` in Chroma's numbering; ``(16, T)`` for ``diagonal``.

    The parameters, errors and conventions are those of :func:`meson_correlator`; all 256 cost what one costs.

    Examples
    --------
    >>> from lqcd_core.free_field import free_propagator
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> S = free_propagator(LatticeGeometry(T=8, Z=4, Y=4, X=4), mass=0.1)
    >>> meson_correlators(S).shape
    (16, 16, 8)
    """
    W = meson_spin_tensor(S1, S2, momentum, position)
    left = GAMMA5 @ SIXTEEN
    right = np.stack([gamma_bar(n, convention) for n in range(16)]) @ GAMMA5
    half = np.einsum("mij,tikjl->mtkl", left, W, optimize=True)
    C = np.einsum("mtkl,nlk->mnt" if not diagonal else "mtkl,mlk->mt", half, right, optimize=True)
    return _from_source(C, source_time, S1, S2)


def pion_correlator(
    S: Propagator, momentum: Sequence[int] = (0, 0, 0), *, position=None, source_time: int | None = None
) -> np.ndarray:
    r"""The pion, :math:`C(t)=\sum_{\vec x}e^{i\vec p\cdot(\vec x-\vec x_0)}\sum_{\alpha\beta ab}|S(x,x_0)|^2`.

    Returns
    -------
    numpy.ndarray
        Shape ``(T,)`` from the source slice on; float64 and positive at zero momentum, complex128 otherwise.

    Examples
    --------
    >>> from lqcd_core.free_field import free_propagator
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> C = pion_correlator(free_propagator(LatticeGeometry(T=8, Z=4, Y=4, X=4), mass=0.1))
    >>> float(C[0].round(9))
    0.843602498
    """
    g, n = S.geometry, whole_momentum(momentum)
    phase = momentum_phase(g, n, _origin(position, S)) if any(n) else None
    C = np.empty(g.T, float if phase is None else complex)
    for t, a in enumerate(S.array):
        density = np.sum(np.square(a.real, dtype=float) + np.square(a.imag, dtype=float), axis=(3, 4, 5, 6))
        C[t] = density.sum() if phase is None else np.sum(density * phase)
    return _from_source(C, source_time, S)


# -- shared with baryons -----------------------------------------------------------------------------------------------


def _origin(position, *propagators) -> tuple[int, int, int, int]:
    """The origin of momentum phases: as given, else the place of the first source that has one, else the origin."""
    if position is not None:
        position = tuple(int(v) for v in position)
        if len(position) != 4:
            raise ParameterError(f"position is a site (t, z, y, x), got {position}.")
        return position
    for S in propagators:
        found = source_position(S)
        if found is not None:
            return found
    return (0, 0, 0, 0)


def _source_time(source_time, *propagators) -> int:
    """The source slice: as given, else from the sources (which must agree), else 0."""
    T = propagators[0].geometry.T
    if source_time is not None:
        if source_time not in range(T):
            raise ParameterError(f"source_time={source_time!r} lies outside 0..{T - 1}.")
        return int(source_time)
    found = {p[0] for S in propagators if (p := source_position(S)) is not None}
    if len(found) > 1:
        raise ParameterError(
            f"the propagators start on different slices, {sorted(found)}: they form no two-point function; "
            "give source_time= if that is meant."
        )
    return found.pop() if found else 0


def _from_source(C: np.ndarray, source_time, *propagators) -> np.ndarray:
    known = [S for S in propagators if S is not None]
    return np.roll(C, -_source_time(source_time, *known), axis=-1)


__all__ = [
    "adjoint_sign", "gamma_bar", "meson_correlator", "meson_correlators", "meson_spin_tensor", "pion_correlator",
]  # fmt: skip

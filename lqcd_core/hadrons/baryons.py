r"""Baryon two-point functions: nucleon, Delta, and any three-quark operator of their form. Nc = 3.

The operator and its adjoint (:math:`\bar\chi=\chi^\dagger\gamma_t`):

.. math:: \chi_\gamma=\epsilon_{abc}\,(q_1^{a\,T}A\,q_2^b)\,(B\,q_3^c)_\gamma,\qquad
          \bar\chi_{\gamma'}=\epsilon_{abc}\,(\bar q_3^cB')_{\gamma'}\,(\bar q_2^bA'\,\bar q_1^{a\,T}),\qquad
          A'=\gamma_tA^\dagger\gamma_t,\;B'=\gamma_tB^\dagger\gamma_t.

A Wick contraction joins sink quark i to source quark :math:`\pi(i)` of its flavour. Its sign is that of the permutation,
and so is the sign gained by naming the source colours after the sink quarks: they cancel. With

.. math:: G_{\alpha\alpha'\beta\beta'\delta\delta'}(t)=\sum_{\vec x}e^{i\vec p(\vec x-\vec x_0)}
          \epsilon_{abc}\epsilon_{a'b'c'}\,S_1{}^{aa'}_{\alpha\alpha'}S_2{}^{bb'}_{\beta\beta'}S_3{}^{cc'}_{\delta\delta'}

every contraction is G with its primed indices permuted, all with a plus sign:

.. math:: \langle\chi_\gamma\bar\chi_{\gamma'}\rangle=\sum_\pi A_{\alpha\beta}B_{\gamma\delta}\,A'_{s_2s_1}B'_{s_3\gamma'}\,
          G_{\alpha s_{\pi(1)}\,\beta s_{\pi(2)}\,\delta s_{\pi(3)}}.

**Charge conjugation** :math:`C=\gamma_t\gamma_y` in DeGrand-Rossi, :math:`C\gamma_\mu C^{-1}=-\gamma_\mu^T`; its sign drops out.

**Parity.** The forward signal of positive parity is in :math:`P_+=(1+\gamma_t)/2`. ``parity=+1`` and ``-1`` give
:math:`\mathrm{tr}[P_\pm\langle\chi\chi^\dagger\rangle]`, that is :math:`\pm\mathrm{tr}[P_\pm\langle\chi\bar\chi\rangle]`, a
positive spectral sum for both; another 4x4 ``projector`` P gives :math:`\mathrm{tr}[P\langle\chi\bar\chi\rangle]`.

**Normalisation.** Operators as written, no factor. lalibe's octet operators
:math:`(u_\uparrow d_\downarrow-u_\downarrow d_\uparrow)u_s/\sqrt2` use the two upper components of the Dirac-Pauli basis only: its
proton, spin up plus down, is one half of :func:`nucleon_correlator` with ``relativistic=False``; its ``_np`` (lower
components) is minus one half of ours with ``parity=-1``; its Delta++, summed over four spins, is 3/2 of the spin-3/2 part of
:math:`C\gamma_i(1+\gamma_t)/2`. Its Sigma+ and Xi0 are 4/3 larger than the proton's rule gives.

**Time.** Entry 0 is the source slice. Three quarks that wrap around time carry the cube of the boundary phase (-1 for
antiperiodic quarks); it is taken from the propagators' provenance, or ``boundary=``, and divided out, so that the
correlator is one continuous function of :math:`0\le t<T`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import attrs
import numpy as np

from ..errors import FieldTypeError, GeometryError, ParameterError
from ..fields import Propagator, same_lattice
from ..gamma import GAMMA, GAMMA5, GT, GX, GY, GZ
from .contractions import _origin, _source_time
from .sources import momentum_phase, spin_matrix, whole_momentum

CHARGE_CONJUGATION = GT @ GY
CHARGE_CONJUGATION.setflags(write=False)

_ONE = np.eye(4, dtype=complex)
_EPSILON = tuple(((a, b, c), 1 if (b - a) % 3 == 1 else -1) for a, b, c in permutations(range(3)))
_CHUNK = 512  # sites whose diquark tensor (37 kB each) is held at once: 19 MB


def _matrix(value):
    return spin_matrix(value)


@attrs.frozen(eq=False)
class BaryonOperator:
    r"""A three-quark operator :math:`\epsilon_{abc}(q_1^{aT}A\,q_2^b)B\,q_3^c`.

    Examples
    --------
    >>> NUCLEON.flavors
    'udu'
    """

    flavors: str
    """Three letters, the flavours of q_1, q_2, q_3; equal letters are identical quarks."""
    diquark: np.ndarray = attrs.field(converter=_matrix)
    """A, 4x4 in DeGrand-Rossi."""
    spinor: np.ndarray = attrs.field(default=_ONE, converter=_matrix)
    """B, 4x4 in DeGrand-Rossi."""

    def __attrs_post_init__(self):
        if not isinstance(self.flavors, str) or len(self.flavors) != 3:
            raise ParameterError(f"a baryon has three flavours, one letter each, got {self.flavors!r}.")


NUCLEON = BaryonOperator("udu", CHARGE_CONJUGATION @ GAMMA5)
r""":math:`\epsilon_{abc}(u^{aT}C\gamma_5d^b)u^c`, the proton; swap u and d for the neutron."""

NUCLEON_UPPER = BaryonOperator("udu", CHARGE_CONJUGATION @ GAMMA5 @ (_ONE + GT) / 2)
r""":math:`\epsilon_{abc}(u^{aT}C\gamma_5\frac{1+\gamma_t}2d^b)u^c`: the diquark of upper (non-relativistic) components."""

NUCLEON_LOWER = BaryonOperator("udu", CHARGE_CONJUGATION @ GAMMA5 @ (_ONE - GT) / 2)
r"""The same of lower components: the proton that moves backward in time."""

DELTA = tuple(BaryonOperator("uuu", CHARGE_CONJUGATION @ g) for g in (GX, GY, GZ))
r""":math:`\epsilon_{abc}(u^{aT}C\gamma_iu^b)u^c`, i = x, y, z: the Delta++."""


def baryon_spin_tensor(
    S1: Propagator, S2: Propagator, S3: Propagator, momentum: Sequence[int] = (0, 0, 0), position=None
) -> np.ndarray:
    r"""G of the head of this module, absolute times, complex128 ``(T, 4, 4, 4, 4, 4, 4)`` in the order
    :math:`\alpha\alpha'\beta\beta'\delta\delta'`.

    Every operator and projector is read from it. Per site: 36 outer products of 16 x 16 and one 256 x 9 x 16 product, 46080
    complex multiply-adds (0.37 MFlop), two thirds of them in matrix products.

    Raises
    ------
    GeometryError
        Unless Nc = 3.
    FieldShapeError, FieldTypeError
        If the propagators do not share a lattice, or are none.
    """
    quarks = (S1, S2, S3)
    for S in quarks:
        if not isinstance(S, Propagator):
            raise FieldTypeError(f"a baryon needs propagators, got {type(S).__name__}.")
        same_lattice("baryon correlator", S1.geometry, S.geometry)
    g = S1.geometry
    if g.nc != 3:
        raise GeometryError(
            f"baryons of three quarks need Nc = 3, got Nc = {g.nc}: with other groups a colour singlet has Nc quarks."
        )
    n = whole_momentum(momentum)
    phase = momentum_phase(g, n, _origin(position, *quarks)).reshape(-1)
    in_dr = {id(S): S if S.basis == "degrand-rossi" else S.to_basis("degrand-rossi") for S in quarks}
    out = np.zeros((g.T, 256, 16), complex)
    for t in range(g.T):
        for start in range(0, g.spatial_volume, _CHUNK):
            sites = slice(start, start + _CHUNK)
            # Colour first, spin last: q[a, a'] is (sites, 16).
            q = {
                k: np.moveaxis(S.array[t].reshape(-1, 16, 3, 3)[sites].astype(complex), (2, 3), (0, 1))
                for k, S in in_dr.items()
            }
            q1, q2, q3 = (q[id(S)] for S in quarks)
            count = q1.shape[2]
            diquark = np.zeros((3, 3, count, 16, 16), complex)
            for (a, b, c), sign in _EPSILON:
                for (a_, b_, c_), sign_ in _EPSILON:
                    diquark[c, c_] += (sign * sign_) * q1[a, a_][:, :, None] * q2[b, b_][:, None, :]
            third = (q3 * phase[sites, None]).reshape(-1, 16)
            out[t] += diquark.reshape(-1, 256).T @ third
    return out.reshape(g.T, 4, 4, 4, 4, 4, 4)


def contract_baryon(
    G: np.ndarray, sink: BaryonOperator, source: BaryonOperator | None = None
) -> np.ndarray:  # fmt: skip
    r""":math:`\langle\chi_\gamma\bar\chi_{\gamma'}\rangle` from the tensor of :func:`baryon_spin_tensor`, ``(T, 4, 4)``.

    The source operator must have the flavours of the sink in some order (the sink operator itself if None).
    """
    source = sink if source is None else source
    if sorted(sink.flavors) != sorted(source.flavors):
        raise ParameterError(
            f"sink flavours {sink.flavors!r} and source flavours {source.flavors!r} differ: the correlator is zero."
        )
    a_bar = GT @ source.diquark.conj().T @ GT
    b_bar = GT @ source.spinor.conj().T @ GT
    slots = "uvw"  # s_1, s_2, s_3
    out = np.zeros((len(G), 4, 4), complex)
    for p in permutations(range(3)):
        if all(sink.flavors[i] == source.flavors[p[i]] for i in range(3)):
            s = [slots[j] for j in p]
            out += np.einsum(
                f"ab,gd,vu,wh,ta{s[0]}b{s[1]}d{s[2]}->tgh",
                sink.diquark, sink.spinor, a_bar, b_bar, G, optimize=True,
            )  # fmt: skip
    return out


def baryon_correlator(
    quarks: Mapping[str, Propagator],
    sink: BaryonOperator,
    source: BaryonOperator | None = None,
    momentum: Sequence[int] = (0, 0, 0),
    *,
    parity: int = +1,
    projector=None,
    boundary=None,
    position=None,
    source_time: int | None = None,
) -> np.ndarray:
    r"""Two-point function of any operator of this form, projected: :math:`\mathrm{tr}[P\langle\chi\bar\chi\rangle](t)`.

    Parameters
    ----------
    quarks
        Propagator of each flavour letter of the operators, any gamma basis, one source.
    sink, source
        Operators; the source is the sink's if None.
    momentum
        (n_x, n_y, n_z), whole numbers; phase :math:`e^{+i\vec p\cdot(\vec x-\vec x_0)}`.
    parity
        +1 or -1, see the head of this module. Ignored if ``projector`` is given.
    projector
        A 4x4 DeGrand-Rossi matrix P (or Chroma's number).
    boundary
        Fermion boundary phases (t, z, y, x), or the one of time. None: from ``provenance["boundary"]``.
    position, source_time
        As for :func:`meson_correlator`.

    Returns
    -------
    numpy.ndarray
        complex128, ``(T,)``, from the source slice on.

    Raises
    ------
    GeometryError
        Unless Nc = 3.
    ParameterError
        For a missing flavour, a parity other than +1 or -1, or a source off slice 0 whose boundary phase is not known.

    Examples
    --------
    >>> from lqcd_core.free_field import free_propagator
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> S = free_propagator(LatticeGeometry(T=8, Z=2, Y=2, X=2), mass=0.5)
    >>> C = baryon_correlator({"u": S, "d": S}, NUCLEON)
    >>> bool((C.real > 0).all() and abs(C.imag).max() < 1e-12)
    True
    """
    sign, P = _projection(parity, projector)
    lines = _lines(quarks, sink)
    G = baryon_spin_tensor(*lines, momentum=momentum, position=position)
    C = sign * np.einsum("ij,tji->t", P, contract_baryon(G, sink, source), optimize=True)
    return _unwrap(C, lines, boundary, source_time)


def nucleon_correlator(
    up: Propagator,
    down: Propagator | None = None,
    momentum: Sequence[int] = (0, 0, 0),
    *,
    parity: int = +1,
    projector=None,
    relativistic: bool = True,
    boundary=None,
    position=None,
    source_time: int | None = None,
) -> np.ndarray:
    r"""The proton, :math:`\chi=\epsilon_{abc}(u^{aT}C\gamma_5d^b)u^c`, two contractions.

    Parameters
    ----------
    up, down
        Propagators; the down quark is the up quark's if None. Exchange them for the neutron.
    relativistic
        False puts :math:`(1\pm\gamma_t)/2` into the diquark too, with the sign of ``parity`` (:data:`NUCLEON_UPPER`,
        :data:`NUCLEON_LOWER`): the operator of lalibe and others.
    momentum, parity, projector, boundary, position, source_time
        As for :func:`baryon_correlator`, as are the errors.

    Returns
    -------
    numpy.ndarray
        complex128, ``(T,)``, from the source slice on.

    Examples
    --------
    >>> from lqcd_core.free_field import free_propagator
    >>> from lqcd_core.geometry import LatticeGeometry
    >>> nucleon_correlator(free_propagator(LatticeGeometry(T=8, Z=2, Y=2, X=2), mass=0.5)).shape
    (8,)
    """
    return baryon_correlator(
        {"u": up, "d": up if down is None else down},
        NUCLEON if relativistic else NUCLEON_LOWER if parity == -1 else NUCLEON_UPPER,
        momentum=momentum, parity=parity, projector=projector, boundary=boundary, position=position,
        source_time=source_time,
    )  # fmt: skip


def delta_correlator(
    quark: Propagator,
    momentum: Sequence[int] = (0, 0, 0),
    *,
    spin: str | None = "3/2",
    parity: int = +1,
    projector=None,
    boundary=None,
    position=None,
    source_time: int | None = None,
) -> np.ndarray:
    r"""The Delta++, :math:`\chi_i=\epsilon_{abc}(u^{aT}C\gamma_iu^b)u^c`, six contractions.

    .. math:: C(t)=\tfrac13\sum_{ij}\mathrm{tr}\bigl[P\,\langle\chi_i\bar\chi_j\rangle\,P^{(J)}_{ji}\bigr],\qquad
              P^{(3/2)}_{ij}=\delta_{ij}-\tfrac13\gamma_i\gamma_j,\quad P^{(1/2)}_{ij}=\tfrac13\gamma_i\gamma_j

    Parameters
    ----------
    quark
        The propagator. In the isospin limit the Delta+ operator
        :math:`[2(uC\gamma_id)u+(uC\gamma_iu)d]/\sqrt3` has the same correlator.
    spin
        ``"3/2"`` or ``"1/2"`` (projectors of a baryon at rest), or None for the plain average over i = j of both.
    momentum, parity, projector, boundary, position, source_time
        As for :func:`baryon_correlator`, as are the errors.

    Returns
    -------
    numpy.ndarray
        complex128, ``(T,)``, from the source slice on.

    Raises
    ------
    ParameterError
        For an unknown spin, or a spin projection at nonzero momentum.
    """
    if spin not in ("3/2", "1/2", None):
        raise ParameterError(f"spin must be '3/2', '1/2' or None, got {spin!r}.")
    if spin is not None and any(whole_momentum(momentum)):
        raise ParameterError(
            f"the projector on spin {spin} is that of a baryon at rest, but the momentum is {tuple(momentum)}; "
            "use spin=None, or baryon_correlator with DELTA and a projector of your own."
        )
    sign, P = _projection(parity, projector)
    lines = (quark,) * 3
    G = baryon_spin_tensor(*lines, momentum=momentum, position=position)
    spatial = GAMMA[[3, 2, 1]]  # x, y, z as in DELTA
    C = np.zeros(len(G), complex)
    for i in range(3):
        for j in range(3):
            half = spatial[j] @ spatial[i] / 3
            weight = {"1/2": half, "3/2": (i == j) * _ONE - half, None: (i == j) * _ONE}[spin]
            if weight.any():
                C += np.einsum("ij,tjk,ki->t", P, contract_baryon(G, DELTA[i], DELTA[j]), weight, optimize=True)
    return _unwrap(sign * C / 3, lines, boundary, source_time)


def boundary_phase(propagator: Propagator) -> complex | None:
    """The fermion phase of time that a propagator's provenance names (``boundary``, order t, z, y, x), else None."""
    record = propagator.provenance
    for place in (record, record.get("operator"), record.get("parameters")):
        if isinstance(place, Mapping) and "boundary" in place:
            return _time_phase(place["boundary"])
    return None


def _time_phase(boundary) -> complex:
    first = boundary if np.isscalar(boundary) else np.asarray(boundary).reshape(-1)[0]
    # a complex number comes back from a file as {"re": ..., "im": ...}
    phase = complex(first["re"], first["im"]) if isinstance(first, Mapping) else complex(first)
    if abs(abs(phase) - 1) > 1e-9:
        raise ParameterError(f"a boundary phase has modulus 1, got {boundary!r}.")
    return phase


def _lines(quarks, operator) -> tuple[Propagator, ...]:
    for f in operator.flavors:
        if f not in quarks:
            raise ParameterError(
                f"the operator has flavours {operator.flavors!r}, but propagators are given for {sorted(quarks)}."
            )
    return tuple(quarks[f] for f in operator.flavors)


def _projection(parity, projector):
    if projector is not None:
        return 1, spin_matrix(projector)
    if parity not in (1, -1):
        raise ParameterError(f"parity must be +1 or -1, got {parity!r}.")
    return parity, (_ONE + parity * GT) / 2


def _unwrap(C: np.ndarray, lines, boundary, source_time) -> np.ndarray:
    t0 = _source_time(source_time, *lines)
    if t0 == 0:
        return C
    phase = 1.0 + 0j
    for S in lines:
        one = boundary_phase(S) if boundary is None else _time_phase(boundary)
        if one is None:
            raise ParameterError(
                f"the source sits on slice {t0}, and the propagator does not say its boundary phase in time, which "
                "three quarks pick up where they wrap; give boundary= (for instance -1, antiperiodic)."
            )
        phase *= one
    # S(t + T) = phase S(t): the slices before the source are those after the wrap.
    C = C.copy()
    C[:t0] *= phase
    return np.roll(C, -t0)


__all__ = [
    "CHARGE_CONJUGATION", "DELTA", "NUCLEON", "NUCLEON_LOWER", "NUCLEON_UPPER", "BaryonOperator", "baryon_correlator",
    "baryon_spin_tensor", "boundary_phase", "contract_baryon", "delta_correlator", "nucleon_correlator",
]  # fmt: skip

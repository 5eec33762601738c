r"""Gauge-covariant Gaussian smearing of sources and of sinks.

.. math:: \psi' = \Bigl(1+\frac{w^2}{4n}\,\Delta\Bigr)^{n}\psi,\qquad
          \Delta\psi(x)=\sum_{i=x,y,z}\bigl[U_i(x)\psi(x+\hat i)+U_i^\dagger(x-\hat i)\psi(x-\hat i)\bigr]-6\,\psi(x)

Chroma's ``GAUGE_INV_GAUSSIAN``: three-dimensional, within each time slice, periodic in space, *not* normalised. The
literature also says Jacobi or Wuppertal smearing. With :math:`s=w^2/4n` and :math:`\alpha=s/(1-6s)` it is the normalised
Wuppertal form :math:`[(1+\alpha H)/(1+6\alpha)]^n` exactly, H the sum of the six hops; UKQCD's Jacobi smearing is a
power series in H and another operator. Gaussian *noise* is a different thing: see :func:`noise_source`.

The links are used as they are: no fermion boundary phase enters. For s > 1/6 (w = 2, n = 5 has s = 0.2) the short waves
change sign at every step; that is allowed, as other codes allow it.
"""

from __future__ import annotations

import numpy as np

from ..arrays import to_numpy
from ..errors import FieldShapeError, FieldTypeError, ParameterError
from ..fields import ColorSpinorField, GaugeField, Propagator, same_lattice
from ..geometry import FULL


def check_smearing(width, steps) -> tuple[float, int]:
    """Width (lattice units, at least 0) and number of steps (at least 0) as numbers, or ParameterError."""
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise ParameterError(f"smearing steps must be a whole number of at least 0, got {steps!r}.")
    if isinstance(width, (bool, complex, str)) or not np.isfinite(width) or width < 0:
        raise ParameterError(f"smearing width must be a finite number of at least 0 (lattice units), got {width!r}.")
    return float(width), int(steps)


def gaussian_smear(field, U: GaugeField, width: float, steps: int):
    r"""Smear a spinor, a batch of them, or the sink of a propagator: :math:`(1+\frac{w^2}{4n}\Delta)^n\psi`.

    Parameters
    ----------
    field
        A :class:`ColorSpinorField`, a complex array ``([n_rhs,] T, Z, Y, X, Ns, Nc)``, or a :class:`Propagator`, of
        which the sink colour is smeared. Not changed.
    U
        The links (usually smeared ones), on the same lattice.
    width
        w, lattice units: a free point becomes a Gaussian of mean square radius 3 w^2 / 2 for any number of steps.
    steps
        n, at least 0; n = 0 or w = 0 changes nothing.

    Returns
    -------
    ColorSpinorField, numpy.ndarray or Propagator
        Of the kind, precision and shape given. Arithmetic is that of the field's precision.

    Raises
    ------
    ParameterError
        For a negative or non-finite width, or steps that are no whole number.
    FieldShapeError, FieldTypeError
        If field and links do not fit, or the field lives on one parity.

    Notes
    -----
    6 Nc^2 complex multiply-adds per site, spin column and step. Time slices without a nonzero entry are passed over, so
    a source on one slice costs one slice.

    References
    ----------
    .. [1] S. Guesken, Nucl. Phys. B (Proc. Suppl.) 17 (1990) 361.
    .. [2] UKQCD, C. R. Allton et al., Phys. Rev. D 47 (1993) 5128, arXiv:hep-lat/9303009.

    Examples
    --------
    On the unit field one step moves s = w^2/4 to each of the six neighbours:

    >>> from lqcd_core.geometry import LatticeGeometry
    >>> g = LatticeGeometry(T=2, Z=4, Y=4, X=4)
    >>> psi = gaussian_smear(ColorSpinorField.point_source(g), GaugeField.cold(g), width=0.5, steps=1)
    >>> complex(psi.array[0, 0, 0, 1, 0, 0]), complex(psi.array[0, 0, 0, 0, 0, 0])
    ((0.0625+0j), (0.625+0j))
    """
    width, steps = check_smearing(width, steps)
    if not isinstance(U, GaugeField):
        raise FieldTypeError(f"smearing needs a GaugeField, got {type(U).__name__}; wrap it: GaugeField(geometry, U).")
    if isinstance(field, Propagator):
        same_lattice("smearing of a sink", U.geometry, field.geometry)
        return _smear_sink(field, U, width, steps)
    if isinstance(field, ColorSpinorField):
        same_lattice("smearing", U.geometry, field.geometry)
        if field.parity is not FULL:
            raise FieldShapeError("smearing mixes the parities: it needs a spinor on the full lattice.")
        return ColorSpinorField(U.geometry, smear_spinors(field.array, U, width, steps), field.precision)
    a = to_numpy(field)
    if a.dtype.kind != "c":
        raise FieldTypeError(f"smearing needs complex numbers, got {a.dtype}.")
    U.geometry.check_spinor(a.shape)
    return smear_spinors(a, U, width, steps)


jacobi_smear = gaussian_smear
"""The name that much of the literature uses for :func:`gaussian_smear`: the same function."""


def smear_spinors(array: np.ndarray, U: GaugeField, width: float, steps: int, t_start: int = 0) -> np.ndarray:
    """:func:`gaussian_smear` of a raw array ``([n_rhs,] T, Z, Y, X, Ns, Nc)``, which may hold the slices from ``t_start``
    on alone; a new array."""
    out = np.array(array, copy=True, order="C")
    links = U.array[t_start:]
    for column in out if out.ndim == 7 else out[None]:
        for t, psi in enumerate(column):
            if psi.any():
                column[t] = _smear_slice(psi.swapaxes(-1, -2), links[t], width, steps).swapaxes(-1, -2)
    return out


def _smear_sink(S: Propagator, U: GaugeField, width: float, steps: int) -> Propagator:
    nc, extents = S.geometry.nc, S.geometry.shape[1:]
    out = np.empty_like(S.array)
    for t in range(S.geometry.T):
        psi = np.moveaxis(S.array[t], 5, 3).reshape(*extents, nc, 16 * nc)  # sink colour, then everything else
        psi = _smear_slice(psi, U.array[t], width, steps).reshape(*extents, nc, 4, 4, nc)
        out[t] = np.moveaxis(psi, 3, 5)
    sink = [*S.provenance.get("sink_smearing", []), smearing_record(U, width, steps)]
    result = Propagator(S.geometry, out, S.basis, dict(S.source), dict(S.provenance))
    result.provenance["sink_smearing"] = sink
    return result


def smearing_record(U: GaugeField, width: float, steps: int) -> dict:
    """What a result keeps of a smearing: kind, width, steps and the digest of the links."""
    return {"kind": "gaussian", "width": float(width), "steps": int(steps), "links_digest": U.digest()}


def _smear_slice(psi: np.ndarray, links: np.ndarray, width: float, steps: int) -> np.ndarray:
    """One time slice: psi ``(Z, Y, X, Nc, K)``, links ``(Z, Y, X, 4, Nc, Nc)`` in directions t, z, y, x."""
    if steps == 0:
        return psi
    s = width * width / (4.0 * steps)
    dtype = psi.dtype
    forward = [np.ascontiguousarray(links[..., mu, :, :], dtype=dtype) for mu in (1, 2, 3)]
    backward = [u.conj().swapaxes(-1, -2) for u in forward]
    psi = np.ascontiguousarray(psi)
    for _ in range(steps):
        hops = np.zeros_like(psi)
        for axis in range(3):
            hops += forward[axis] @ np.roll(psi, -1, axis)
            hops += np.roll(backward[axis] @ psi, 1, axis)
        psi = dtype.type(1 - 6 * s) * psi + dtype.type(s) * hops
    return psi

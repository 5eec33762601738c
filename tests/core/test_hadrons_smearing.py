"""Gaussian smearing: its formula, its covariance, and Chroma's normalisation."""

import struct

import numpy as np
import pytest

from lqcd_core.errors import FieldShapeError, FieldTypeError, ParameterError
from lqcd_core.fields import ColorSpinorField, GaugeField, Propagator, random_gauge_rotation
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.hadrons import gaussian_smear, jacobi_smear, point_source, smeared_source
from lqcd_core.hadrons.sources import momentum_phase

G = LatticeGeometry(T=3, Z=2, Y=4, X=3)
U = GaugeField.random(G, seed=5)
PSI = ColorSpinorField.gaussian(G, seed=6)
EPS = np.finfo(float).eps


def close(a, b, factor=50):
    return np.linalg.norm(np.ravel(a - b)) <= factor * EPS * np.linalg.norm(np.ravel(b))


def test_one_step_is_the_formula_written_out():
    s = 0.9**2 / 4
    out = gaussian_smear(PSI, U, 0.9, 1).array
    t, z, y, x = 1, 1, 3, 2
    u, p = U.array, PSI.array
    # Directions: index 1, 2, 3 = z, y, x.
    hop = u[t, z, y, x, 1] @ p[t, (z + 1) % 2, y, x].T + u[t, z - 1, y, x, 1].conj().T @ p[t, z - 1, y, x].T
    hop = hop + u[t, z, y, x, 2] @ p[t, z, (y + 1) % 4, x].T + u[t, z, y - 1, x, 2].conj().T @ p[t, z, y - 1, x].T
    hop = hop + u[t, z, y, x, 3] @ p[t, z, y, (x + 1) % 3].T + u[t, z, y, x - 1, 3].conj().T @ p[t, z, y, x - 1].T
    want = p[t, z, y, x].T + s * (hop - 6 * p[t, z, y, x].T)
    assert close(out[t, z, y, x], want.T)


def test_gauge_covariance():
    g = random_gauge_rotation(G, seed=7)
    a = gaussian_smear(PSI.gauge_transform(g), U.gauge_transform(g), 1.3, 4).array
    b = gaussian_smear(PSI, U, 1.3, 4).gauge_transform(g).array
    assert close(a, b, 200)


def test_a_free_plane_wave_is_an_eigenvector():
    n = (1, 3, 1)
    wave = momentum_phase(G, n)
    psi = np.zeros(G.spinor_shape, complex)
    psi[1, ..., 2, 1] = wave
    laplacian = 2 * sum(np.cos(2 * np.pi * k / length) for k, length in zip(n, (G.X, G.Y, G.Z))) - 6
    want = (1 + 1.1**2 / (4 * 3) * laplacian) ** 3 * psi
    assert np.abs(gaussian_smear(psi, GaugeField.cold(G), 1.1, 3) - want).max() < 1e-14


def test_mean_square_radius_is_three_halves_of_the_width_squared():
    g = LatticeGeometry(T=1, Z=12, Y=12, X=12)
    out = gaussian_smear(ColorSpinorField.point_source(g, z=6, y=6, x=6), GaugeField.cold(g), 1.7, 5).array
    weight = out[0, ..., 0, 0].real
    r2 = sum((i - 6) ** 2 for i in np.indices((12, 12, 12)))
    assert abs((weight * r2).sum() / weight.sum() - 1.5 * 1.7**2) < 1e-12
    assert abs(weight.sum() - 1) < 1e-13


def test_it_is_hermitian():
    phi = ColorSpinorField.gaussian(G, seed=8)
    a, b = phi.inner(gaussian_smear(PSI, U, 1.0, 2)), gaussian_smear(phi, U, 1.0, 2).inner(PSI)
    assert abs(a - b) < 1e-12 * abs(a)


def test_it_equals_normalised_wuppertal_smearing():
    w, n = 0.8, 4
    s = w * w / (4 * n)
    alpha = s / (1 - 6 * s)
    psi = PSI.array
    for _ in range(n):  # (1 + alpha H) / (1 + 6 alpha), with H psi = (one step of s = 1) + 5 psi
        hops = gaussian_smear(psi, U, 2.0, 1) + 5 * psi
        psi = (psi + alpha * hops) / (1 + 6 * alpha)
    assert close(gaussian_smear(PSI, U, w, n).array, psi, 200)
    assert jacobi_smear is gaussian_smear


def test_sink_of_a_propagator_is_smeared_column_by_column():
    columns = ColorSpinorField.gaussian(G, seed=9, n_rhs=12).array
    S = Propagator.from_columns(G, columns, source={"kind": "point"})
    out = gaussian_smear(S, U, 1.2, 3)
    assert close(out.columns(), gaussian_smear(columns, U, 1.2, 3))
    assert out.provenance["sink_smearing"][0]["steps"] == 3 and "sink_smearing" not in S.provenance


def test_batch_precision_and_inputs_are_kept():
    batch = ColorSpinorField.gaussian(G, seed=9, n_rhs=2)
    before, links = batch.array.copy(), U.digest()
    out = gaussian_smear(batch, U, 1.2, 3)
    assert close(out.array[1], gaussian_smear(batch.array[1], U, 1.2, 3))
    assert (batch.array == before).all() and U.digest() == links
    single = gaussian_smear(batch.to("single"), U, 1.2, 3)
    assert single.array.dtype == np.complex64
    assert np.abs(single.array - out.array).max() < 1e-5
    assert gaussian_smear(PSI.to("bf16"), U, 1.2, 3).precision.name == "bf16"
    assert (gaussian_smear(PSI, U, 0.0, 3).array == PSI.array).all()
    assert (gaussian_smear(PSI, U, 1.0, 0).array == PSI.array).all()


def test_requests_that_make_no_sense_are_refused():
    for width, steps in ((-1.0, 2), (float("nan"), 2), (1.0, -1), (1.0, 2.5)):
        with pytest.raises(ParameterError):
            gaussian_smear(PSI, U, width, steps)
    other = GaugeField.cold(LatticeGeometry(T=2, Z=2, Y=2, X=2))
    with pytest.raises(FieldShapeError):
        gaussian_smear(PSI, other, 1.0, 2)
    with pytest.raises(FieldTypeError):
        gaussian_smear(np.ones(G.spinor_shape), U, 1.0, 2)
    with pytest.raises(FieldTypeError, match="GaugeField"):
        gaussian_smear(PSI, U.array, 1.0, 2)


def test_norm_of_chromas_smeared_source(test_data):
    """Chroma prints 6.63399911108962 for the norm of its source (all twelve columns), w = 2, n = 5 on this field."""
    raw = (test_data / "pyquda" / "weak_field.lime").read_bytes()
    at = 0  # LIME: 144-byte headers, magic, version, flags, 8-byte length, 128-byte type, payload padded to 8
    while at < len(raw):
        length = struct.unpack(">Q", raw[at + 8 : at + 16])[0]
        if raw[at + 16 : at + 144].rstrip(b"\0") == b"ildg-binary-data":
            break
        at += 144 + -(-length // 8) * 8
    links = np.frombuffer(raw, ">c16", 8 * 4**3 * 4 * 9, at + 144).reshape(8, 4, 4, 4, 4, 3, 3)
    g = LatticeGeometry(T=8, Z=4, Y=4, X=4)
    field = GaugeField(g, links[:, :, :, :, ::-1].astype(complex))
    columns = smeared_source(point_source(g), field, 2.0, 5).columns()
    assert abs(np.linalg.norm(columns) ** 2 - 6.63399911108962) < 1e-13

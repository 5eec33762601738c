"""The gauge field and spinor on which Grid's numbers were made, generated from their formulas alone.

All arithmetic is modulo 2^64: s(z) is splitmix64, uni(seed, i) = 2 (s(s(seed) + i) >> 11) / 2^53 - 1. Links have the key
4 site + mu, mu = x, y, z, t, and rows 0, 1 orthonormalised by Gram-Schmidt, row 2 = conj(row 0 x row 1).
"""

import numpy as np


def _splitmix(z):
    with np.errstate(over="ignore"):
        z = np.asarray(z, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uni(seed, i):
    """Uniform numbers in [-1, 1) for an array of counters."""
    with np.errstate(over="ignore"):
        bits = _splitmix(_splitmix(seed) + np.asarray(i, np.uint64))
    return 2.0 * (bits >> np.uint64(11)).astype(np.float64) / 2.0**53 - 1.0


def grid_links(shape):
    """Links ``(T, Z, Y, X, 4, 3, 3)`` in canonical direction order t, z, y, x; ``shape`` is (T, Z, Y, X)."""
    volume = int(np.prod(shape))
    key = np.arange(4 * volume, dtype=np.uint64)
    numbers = uni(1, 18 * key[:, None] + np.arange(12, dtype=np.uint64))
    rows = (numbers[:, 0::2] + 1j * numbers[:, 1::2]).reshape(-1, 2, 3)
    a = rows[:, 0] / np.linalg.norm(rows[:, 0], axis=-1, keepdims=True)
    b = rows[:, 1] - np.sum(a.conj() * rows[:, 1], axis=-1, keepdims=True) * a
    b /= np.linalg.norm(b, axis=-1, keepdims=True)
    u = np.stack([a, b, np.cross(a, b).conj()], axis=1)
    return np.ascontiguousarray(u.reshape(*shape, 4, 3, 3)[..., ::-1, :, :])


def grid_spinor(shape):
    """The spinor ``(T, Z, Y, X, 4, 3)``."""
    volume = int(np.prod(shape))
    numbers = uni(2, np.arange(24 * volume, dtype=np.uint64))
    return (numbers[0::2] + 1j * numbers[1::2]).reshape(*shape, 4, 3)

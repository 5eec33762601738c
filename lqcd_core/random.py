"""Counter-based random numbers: what a site draws depends on (seed, stream, global site, draw) and on nothing else.

Philox4x64-10 (Salmon et al., SC'11, https://doi.org/10.1145/2063384.2063405) as numpy implements it, with key =
(seed, stream) and counter = (global site, draw block). One block gives four 64-bit words per site. A field is therefore
the same for any backend, precision, thread count, or split of the lattice; and there is no generator per site, since
consecutive sites are consecutive counters and numpy walks them in C.
"""

from __future__ import annotations

import numpy as np

from .errors import ParameterError, nearest

WORDS = 4  # 64-bit words that one Philox4x64 block yields

STREAMS = {"gauge": 1, "spinor": 2, "z2": 3, "z4": 4, "heatbath": 5, "transformation": 6, "jackknife": 7, "momentum": 8}
"""Stream numbers: one per purpose, so that a gauge field and a source of the same seed are independent."""


def _check(seed, stream) -> tuple[int, int]:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
        raise ParameterError(f"seed must be a whole number in [0, 2^64), got {seed!r}.")
    if isinstance(stream, str):
        if stream not in STREAMS:
            raise ParameterError(f"random stream {stream!r} is unknown; {nearest(stream, STREAMS)}")
        stream = STREAMS[stream]
    if isinstance(stream, bool) or not isinstance(stream, (int, np.integer)) or not 0 <= stream < 2**64:
        raise ParameterError(f"a random stream must be a name or a whole number in [0, 2^64), got {stream!r}.")
    return int(seed), int(stream)


def raw_words(seed: int, stream: str | int, sites: range, block: int) -> np.ndarray:
    """Four uint64 words for each of the consecutive global sites ``sites``, shape ``(len(sites), 4)``."""
    seed, stream = _check(seed, stream)
    # numpy advances the counter before it draws, so the first site needs the counter one below (it borrows at zero).
    counter = ((block << 64) + sites.start - 1) % 2**256
    bits = np.random.Philox(key=seed + (stream << 64), counter=counter)
    return bits.random_raw(WORDS * len(sites)).reshape(len(sites), WORDS)


def uniform(seed: int, stream: str | int, sites: int | range, count: int, first_draw: int = 0) -> np.ndarray:
    """Uniform doubles in the open interval (0, 1), shape ``(sites, count)``.

    Parameters
    ----------
    seed
        In [0, 2^64).
    stream
        A purpose (see :data:`STREAMS`) or a number.
    sites
        Number of sites counted from 0, or the range of global site indices ((t Z + z) Y + y) X + x.
    count
        Numbers per site.
    first_draw
        Index of the first number of each site; a multiple of 4. Draws ``[a, b)`` and ``[b, c)`` asked for separately
        are the same numbers as ``[a, c)`` asked for at once.

    Examples
    --------
    >>> a = uniform(7, "gauge", range(0, 8), 5)
    >>> bool((a[3:] == uniform(7, "gauge", range(3, 8), 5)).all())
    True
    """
    if first_draw % WORDS:
        raise ParameterError(f"first_draw must be a multiple of {WORDS}, got {first_draw}.")
    sites = range(sites) if isinstance(sites, (int, np.integer)) else sites
    blocks = -(-count // WORDS)
    out = np.empty((len(sites), blocks, WORDS))
    for k in range(blocks):
        words = raw_words(seed, stream, sites, first_draw // WORDS + k)
        # 52 bits and half a step: never 0 (Box-Muller takes its logarithm), never 1 (53 bits and a half round up to it).
        out[:, k] = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return out.reshape(len(sites), -1)[:, :count]


def normal(seed: int, stream: str | int, sites: int | range, count: int, first_draw: int = 0) -> np.ndarray:
    """Normal doubles N(0, 1), shape ``(sites, count)``, by Box-Muller (no rejection: the draw count is fixed)."""
    pairs = -(-count // 2)
    u = uniform(seed, stream, sites, 2 * pairs, first_draw).reshape(-1, pairs, 2)
    r = np.sqrt(-2.0 * np.log(u[..., 0]))
    phi = 2.0 * np.pi * u[..., 1]
    return np.stack([r * np.cos(phi), r * np.sin(phi)], axis=-1).reshape(len(u), -1)[:, :count]

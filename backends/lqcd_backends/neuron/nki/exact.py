r"""Sums that have the same bits for any order: fixed-point limbs on the device, integers on the host.

A product :math:`q = xy`, rounded to float32 like any product on the device, is scaled by a power of two to
:math:`|q'|\le 2^{15}` and written as

.. math:: q' = l_3 + 2^{-16} l_2 + 2^{-32} l_1 + 2^{-48} l_0,\qquad l_k \in \mathbb Z,\ |l_k| \le 2^{15}

Each limb comes from adding and subtracting :math:`1.5\cdot 2^{23}`, which rounds a float32 to an integer; all remainders are exact.
A sum of at most 512 limbs is an integer of at most :math:`2^{24}` and so exact in float32, whatever the order. The host adds those in
64-bit integers and combines the four with Python's integers; the result is rounded once, to double. Tiles, cores and loops may be
cut at will: the bits stay. Nothing below :math:`2^{-64}` of the largest product is kept.

Cost per element: one product, and 4 tile inputs for each limb but the last: about 20 lane-cycles.

No ``nki`` is imported here: kernels hand over its modules, the host needs none.
"""

import math
from fractions import Fraction

LIMBS, BITS, LARGEST = 4, 16, 1 << 15
TILE = 512
"""Limbs in one exact float32 sum."""
ROUND = 1.5 * 2.0**23
NUMBERS = 6
"""Numbers per partial sum: four limb sums, highest first, and the largest and smallest scaled product."""


def limb_sums(nisa, nl, product, limb, rest, sums, segments, length, size, partitions):
    """Limb sums of a tile of scaled products; ``product`` is used up.

    ``product``, ``limb`` and ``rest`` are float32 tiles of ``size`` elements per partition; segment m holds the elements
    m, m + segments, ... if it is a column of right-hand sides (``length`` of them); ``sums`` is (partitions, NUMBERS, segments).
    """

    def all_of(tile):
        return tile.ap([[size, partitions], [1, segments * length]])

    def by_segment(tile):
        return tile.ap([[size, partitions], [1, segments], [segments, length]])

    def reduce(k, op, tile):
        nisa.tensor_reduce(sums[:, k, :], op, by_segment(tile), 2)

    reduce(LIMBS, nl.maximum, product)
    reduce(LIMBS + 1, nl.minimum, product)
    here, other = product, rest
    for k in range(LIMBS):
        factor = 1.0 if k == 0 else 2.0**BITS
        nisa.tensor_scalar(all_of(limb), all_of(here), nl.multiply, factor, False, nl.add, ROUND)
        nisa.tensor_scalar(all_of(limb), all_of(limb), nl.subtract, ROUND)
        reduce(k, nl.add, limb)
        if k < LIMBS - 1:
            nisa.scalar_tensor_tensor(all_of(other), all_of(here), nl.multiply, factor, nl.subtract, all_of(limb))
            here, other = other, here


def scale_for(largest: float) -> float:
    """The power of two that brings products up to ``largest`` into range; 1 for zero or what is not finite.

    >>> scale_for(3.0)
    8192.0
    """
    if not (math.isfinite(largest) and largest > 0):
        return 1.0
    return 2.0 ** max(-110, min(110, 15 - math.frexp(largest)[1]))


def fold(partials, scale):
    """The sums from limb sums ``(..., NUMBERS)``, added over all leading axes.

    Returns
    -------
    (float, float)
        The sum, correctly rounded to double (NaN if a product was out of range or not finite), and the largest |product| seen.

    Examples
    --------
    >>> import numpy as np
    >>> fold(np.array([[2.0, 0, 0, 0, 2, 0], [0, -32768.0, 0, 0, 0, -0.5]]), 0.5)
    (3.0, 4.0)
    """
    import numpy as np

    flat = np.asarray(partials, np.float64).reshape(-1, NUMBERS)
    with np.errstate(invalid="ignore"):
        largest = float(max(flat[:, LIMBS].max(), -flat[:, LIMBS + 1].min()))
    if not np.isfinite(flat).all() or largest > LARGEST:
        return math.nan, largest / scale
    whole = [int(flat[:, k].astype(np.int64).sum()) for k in range(LIMBS)]
    total = sum(v << (BITS * (LIMBS - 1 - k)) for k, v in enumerate(whole))
    return float(Fraction(total, 1 << (BITS * (LIMBS - 1))) / Fraction(scale)), largest / scale

r"""Flops and bytes of the operators, counted per site of the full lattice and right-hand side, Nc = 3.

Hopping term, half-spinor form:

.. math:: \underbrace{8\cdot 12}_{\text{project}} + \underbrace{8\cdot 2\cdot 66}_{\text{SU(3) times colour vectors}}
          + \underbrace{7\cdot 24}_{\text{sum}} = 96 + 1056 + 168 = 1320

Bytes are those that must cross from the place where the fields live, if the caches were perfect: each link once (72 reals), each
input once, each output once (24 reals each). A backend that keeps a link twice, or reads a neighbour twice, moves more; so
GB/s from these counts never flatter. Whatever a kernel really does, its speed is quoted with these counts.
"""

from __future__ import annotations

import attrs

from ..errors import ParameterError, nearest
from ..precision import Precision

HOPPING_FLOPS = 1320
"""Per site and right-hand side; see the module."""
CLOVER_FLOPS = 504
"""Two Hermitian 6 x 6 blocks with real diagonals: 2 x (30 complex products of 6 + 6 of 2 + 30 complex sums of 2)."""


@attrs.frozen
class Work:
    """What one application of an operator needs, per site of the full lattice."""

    name: str
    """Name on the command line."""
    flops: float
    """Per right-hand side."""
    once: float
    """Real numbers read whatever the batch: links, blocks."""
    per_column: float
    """Real numbers of spinors read and written, per right-hand side."""
    summary: str
    """One line."""

    def bytes(self, precision: Precision, n_rhs: int) -> float:
        """Bytes per site of one application to ``n_rhs`` columns; links count with the width of spinors."""
        return (self.once + self.per_column * n_rhs) * precision.bytes_per_real

    def intensity(self, precision: Precision, n_rhs: int) -> float:
        """Flops per byte.

        >>> from lqcd_core.precision import as_precision
        >>> WORK["hop"].intensity(as_precision("double"), 1)
        1.375
        """
        return self.flops * n_rhs / self.bytes(precision, n_rhs)


WORK = {
    w.name: w
    for w in (
        Work("hop", HOPPING_FLOPS, 72, 48, "Wilson hopping term H"),
        Work("wilson", HOPPING_FLOPS + 48, 72, 48, "Wilson M = (4 + m) - H"),
        Work("clover", HOPPING_FLOPS + CLOVER_FLOPS + 24, 72 + 72, 48, "clover M = A - H"),
        Work("parity", HOPPING_FLOPS / 2, 72, 24, "H from odd onto even sites"),
        Work("schur", HOPPING_FLOPS + 24, 144, 60, "Wilson Schur complement on even sites, 1 - A^-1 H A^-1 H"),
    )
}
"""By name. ``parity`` uses every link once for half the sites; ``schur`` is two such hops, the second subtracted."""


def work(name: str) -> Work:
    """The counts of an operator.

    Raises
    ------
    ParameterError
        If the name is unknown.
    """
    if name not in WORK:
        raise ParameterError(f"there is no count for the operator {name!r}; {nearest(name, WORK)}")
    return WORK[name]


__all__ = ["CLOVER_FLOPS", "HOPPING_FLOPS", "WORK", "Work", "work"]

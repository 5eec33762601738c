r"""How kernel B walks the lattice: which spinors stay in SBUF, by the bytes that this leaves to the DMA. No NKI, no NumPy.

A spinor is wanted nine times: by its own site and by eight neighbours. Kernel B keeps two slabs of it in SBUF and sweeps them along
one axis m (t or z): the slab of m - 1, which m + 1 overwrites chunk by chunk as it is used up, and the slab of m. The chunk of m + 1 is
loaded while the one before it is worked on, used, and copied into the slab by the Scalar engine. So a spinor comes from HBM once, and
again only where the window is cut: one slab before the sweep and one after it, and, if a slab is cut into blocks of k rows of y, two
rows beside each block:

.. math:: {\rm reads} = 1 + \frac{2}{N_m} + \frac{2}{k}\,[k < N_y],\qquad {\rm slab} = N_o\,k\,N_x\,n_{\rm rhs}\,w\ \ \text{bytes of a partition}

(o is the other axis of t, z; it is never cut). Without a window each of the four t and z neighbours is another load, and y has ghost
rows in every chunk of r rows: reads = 5 + 2/r.

The walk with the fewest reads that fits SBUF and the instruction limit is taken. Two joined cores halve the swept axis, so an axis
that can be halved is preferred.
"""

from __future__ import annotations

import attrs

from ..budget import INSTRUCTION_LIMIT

SITES = 32
"""Sites of a chunk, about: long enough for a DMA, short enough for the code."""
BANK = 512
"""float32 of a PSUM bank per partition."""
SMALL = 4096
"""Bytes of a partition for what does not grow with the chunk: tables and scaled copies of a bank."""
AXES = ("t", "z")


def divisors(n: int) -> list[int]:
    """All divisors, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


def bodies(extent: int, pairs: bool) -> int:
    """How often the code of one slice is written out when kernel B sweeps an inner axis: both edges, and the body of a loop.

    >>> bodies(1, True), bodies(2, False), bodies(8, False), bodies(8, True)
    (1, 2, 3, 4)
    """
    if extent == 1:
        return 1
    step, between = (2 if pairs else 1), extent - 2
    turns = between // step
    return 2 + (step + between % step if turns > 1 else between)


@attrs.frozen
class Demand:
    """What a walk has to serve: the inner lattice of one virtual node and its storage."""

    inner: tuple[int, int, int, int]
    """Stored sites (t, z, y, x) of one virtual node."""
    n_rhs: int
    """Right-hand sides."""
    width: int
    """Bytes of a real of a spinor."""
    link_width: int
    """Bytes of a real of a block."""
    sub: int
    """Nodes that share an array tile: blocks have 24 sub columns."""
    slots: int
    """Array tiles side by side."""
    halves: bool
    """True on one parity: the target's own spinor is loaded too, and slices come in pairs."""

    @property
    def row(self) -> int:
        """Bytes of a partition for one row of x."""
        return self.inner[3] * self.n_rhs * self.width

    def blocks(self, rows: int) -> int:
        """Bytes of a partition for the blocks of a chunk: eight directions and the site term."""
        return rows * self.inner[3] * 9 * 24 * self.sub * self.link_width


@attrs.frozen
class Walk:
    """One way through the inner lattice."""

    rows: int
    """Rows of x in one chunk; 0 if nothing fits."""
    axis: int | None
    """The swept axis, 0 (t) or 1 (z); None without a window."""
    block: int
    """Rows of y in one block of the window; all of them without a window."""
    reads: float
    """Spinors loaded per site and right-hand side, the target's own on one parity included."""
    sbuf_bytes: int
    """Bytes of a partition of all tiles."""
    bodies: int
    """How often the code of a chunk is written out."""

    @property
    def constants(self) -> tuple[int, int]:
        """(axis, rows of a block) as the kernels take it; axis -1 without a window."""
        return (-1 if self.axis is None else self.axis, self.block)


def plain(d: Demand, rows: int) -> Walk:
    """Every chunk loads its neighbours: two tiles each of own rows with ghosts, four neighbours, the target's own, and the result."""
    t, z, y, _ = d.inner
    need = 2 * ((7 * rows + 2) * d.row + d.blocks(rows)) + SMALL
    written = bodies(t, d.halves) * bodies(z, d.halves) * bodies(y // rows, True)
    return Walk(rows, None, y, 5 + 2 / rows + d.halves, need, written)


def windowed(d: Demand, rows: int, axis: int, block: int) -> Walk:
    """Two slabs of ``block`` rows of y; two tiles each of the chunk ahead, the rows beside the block, the target's own, the result."""
    n, other, y = d.inner[axis], d.inner[1 - axis], d.inner[2]
    cut = block < y
    slabs = 2 * other * block * d.row
    need = slabs + 2 * (((2 + d.halves) * rows + (2 if cut else 0)) * d.row + d.blocks(rows)) + SMALL
    written = bodies(n, True) * bodies(other, d.halves) * bodies(y // block, False) * bodies(block // rows, True)
    return Walk(rows, axis, block, 1 + 2 / n + (2 / block if cut else 0) + d.halves, need, written)


def instructions(d: Demand, walk: Walk, per_site: bool = False) -> int:
    """Instructions of the code of M, hardware loops counted once; a matmul is two (weights, moving).

    ``per_site``: the diagonal has a block per site.
    """
    rows = walk.rows or 1
    sites = rows * d.inner[3]
    products = 2 * (9 if per_site else 8) * sites * d.slots
    loads = 2 if walk.axis is not None else 8  # the window: blocks and the chunk ahead
    copies = (loads + 1 + per_site + d.halves) * d.slots + (1 if walk.axis is not None else 0)
    results = 2 * -(-sites // max(1, min(sites, BANK // d.n_rhs)))
    return walk.bodies * (products + copies + results)


def chunks(d: Demand, of: int) -> list[int]:
    """Rows of a chunk, divisors of ``of`` (even on one parity): those of about SITES sites, or the smallest there is."""
    fits = [r for r in divisors(of) if r % (2 if d.halves else 1) == 0]
    return [r for r in fits if r * d.inner[3] <= SITES] or fits[:1]


def candidates(d: Demand) -> list[Walk]:
    """Every windowed walk, on axes that two cores can share where there is one."""
    unit = 4 if d.halves else 2
    axes = [m for m in (0, 1) if d.inner[m] % unit == 0] or [0, 1]
    return [
        windowed(d, rows, axis, block) for axis in axes for block in divisors(d.inner[2]) for rows in chunks(d, block)
    ]


def choose(d: Demand, sbuf: int, share: float = 0.95) -> Walk:
    """The walk that loads least, of those that fit ``share`` (without a window 0.95) of ``sbuf`` bytes and the instruction limit.

    >>> d = Demand(inner=(8, 8, 16, 16), n_rhs=64, width=2, link_width=2, sub=1, slots=4, halves=False)
    >>> choose(d, 212984).constants, choose(d, 212984).reads, choose(d, 212984, 0).constants
    ((0, 4), 1.75, (-1, 16))
    """
    fit = [
        w for w in candidates(d) if w.sbuf_bytes <= share * sbuf and 2 * instructions(d, w, True) <= INSTRUCTION_LIMIT
    ]
    without = [w for w in (plain(d, rows) for rows in chunks(d, d.inner[2])) if w.sbuf_bytes < 0.95 * sbuf]
    walks = fit + without
    if not walks:
        return Walk(0, None, d.inner[2], 0.0, 0, 0)
    return min(walks, key=lambda w: (w.reads, -w.rows, w.axis or 0))


def described(d: Demand, walk: Walk, sbuf: int) -> str:
    """The walk in words, with the bytes that decided."""
    if walk.axis is not None:
        cut = f", in blocks of {walk.block} of {d.inner[2]} rows of y" if walk.block < d.inner[2] else ""
        return (
            f"a window of two slabs slides along {AXES[walk.axis]}{cut}: a spinor is loaded {walk.reads:.2f} times, "
            f"{walk.sbuf_bytes:,} of {sbuf:,} B of a partition"
        )
    least = min((w.sbuf_bytes for w in candidates(d)), default=0)
    return (
        f"no window: the smallest needs {least:,} of {sbuf:,} B of a partition, so each chunk loads its neighbours again and a spinor "
        f"is loaded {walk.reads:.2f} times"
    )

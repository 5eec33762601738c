"""How the time slices are dealt out."""

from __future__ import annotations

from lqcd_core.errors import GeometryError


def slabs(T: int, shards: int) -> list[tuple[int, int]]:
    """(first, one past the last) time slice of every shard, in order.

    Slabs start on even slices and hold an even number of them (an odd T leaves its odd slice to the last), so the parity
    of a site inside its slab is its parity on the lattice. Lengths differ by one pair at most; longer slabs come first.

    Raises
    ------
    GeometryError
        If T has fewer than one pair of slices a shard.

    Examples
    --------
    >>> slabs(16, 3)
    [(0, 6), (6, 12), (12, 16)]
    """
    pairs = T // 2
    if shards > pairs:
        raise GeometryError(
            f"{shards} shards asked for, but T = {T} has {pairs} pairs of time slices and a shard needs one; "
            f"use shards={max(1, pairs)} or fewer."
        )
    each, more = divmod(pairs, shards)
    out, first = [], 0
    for rank in range(shards):
        last = first + 2 * (each + (rank < more))
        out.append((first, last))
        first = last
    out[-1] = (out[-1][0], T)
    return out

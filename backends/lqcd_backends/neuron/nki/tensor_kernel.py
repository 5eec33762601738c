r"""Kernel B: the Wilson operator on the Tensor engine, for many right-hand sides. Needs ``nki`` and nothing of this project.

.. math:: {\rm out} = s\chi - \sum_d S_d^T\psi(x\pm\hat\mu) + (B + i\mu\gamma_5)\chi,\qquad S_d^T = \tfrac12 c\,(1\mp\gamma_\mu)\otimes U_d

with S a real 24x24 block that holds projector, link and phase. Layouts: see layout.py, ``tensor``. Up to four virtual nodes lie
side by side on the partitions, at stride 32 with one array tile each (gen3 and later), or two by two at stride 24 inside a 64x64
tile whose blocks carry their zeros (gen2). All right-hand sides are the columns of one matmul; eight of them accumulate in PSUM.

A neighbour in another node lies at the other end of the same inner axis: the block leaves the diagonal (gen3: another row of
array tiles; gen2: another row of the tile or its other half), and nothing is moved across partitions. Which sites do so is known
when the kernel is traced: first, last and inner slices of t, z, y have code of their own; the inner ones are hardware loops.

With a window (window.py decides) two slabs of spinors stay in SBUF while t or z is swept: a neighbour on the other axes lies in the
slab of this slice, at an address that a register holds; the slice before is the other slab, whose chunk the slice after replaces when
it has been used. Without one every chunk loads its neighbours.

Rows 24..31 of a tile (48..63) take part in the product: they are set to zero once, and no load touches them.

M^dagger = gamma5 M gamma5 uses the same blocks: their rows get the sign of gamma5 in SBUF, their columns when PSUM is evacuated.

Per site: 8 matmuls in each of the node's tiles, max(n_rhs, 64) cycles each and four (gen2: two halves of two nodes) at a time;
16-bit blocks 9216 bytes (gen2: 18432), spinors (reads + 1) x 48 bytes per right-hand side, reads as window.py has it.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from .blas_kernels import at, meet, real_inner, summed

SHIFTS = ((0, 1), (0, -1), (1, 1), (1, -1), (2, 1), (2, -1), (3, 1), (3, -1))
BANK = 512
"""float32 per partition in a PSUM bank."""
LONGEST = 32768
"""Elements of a partition that one instruction copies; sizes are 16-bit numbers."""


class Slice:
    """One slice of an inner axis: its index (integer or loop variable), and what is known of it while tracing."""

    def __init__(self, index, extent, odd, edge=None):
        self.index, self.odd = index, odd
        self.first, self.last = (
            edge == 0 if edge is not None else False,
            edge == extent - 1 if edge is not None else False,
        )
        self.before = extent - 1 if self.first else index - 1
        self.after = 0 if self.last else index + 1


def sweep(extent, low, high, body, pairs):
    """body(Slice) for slices low .. high - 1: edges by themselves, the others in a hardware loop, two at a time if ``pairs``."""
    i = low
    if i == 0:
        body(Slice(0, extent, False, 0))
        i = 1
    stop = min(high, extent - 1)
    step = 2 if pairs else 1
    turns = (stop - i) // step
    if turns > 1:
        begin = i

        def inside(k):
            for m in range(step):
                body(Slice(k * step + (begin + m), extent, (begin + m) % 2 == 1))

        nl.fori_loop(0, turns, inside)
        i += turns * step
    while i < stop:
        body(Slice(i, extent, i % 2 == 1, i))
        i += 1
    if i < high:
        body(Slice(i, extent, i % 2 == 1, i))


def _apply(psi, chi, links, diagonal, scalars, out, form, dagger, lattice):
    inner, rows, window, nodes, slots, parity, generation = lattice
    per_site = diagonal is not None and diagonal.shape[1] > 1  # else one block for all sites: the twist
    t, z, y, x = inner
    n, sub = slots
    stride, rows_k, columns = 128 // (4 if generation >= 3 else 2), 24 * sub, 24 * sub
    size = 32 if generation >= 3 else 64
    b = psi.shape[-1]
    hops = form != "diag"
    halves = parity >= 0
    sites, row = rows * x, x * b
    axis, high = window if hops else (-1, y)  # swept axis of the window, rows of y in one block of it
    sliding, other = axis >= 0, 0 if axis == 1 else 1
    chunks, cut = high // rows, high < y
    f32 = nl.float32
    full = [z * y * row, y * row, row]
    volume = t * z * y * x

    tables = nl.ndarray((128, 8), f32, nl.sbuf)
    nisa.dma_copy(tables, scalars)
    scalar, sign, negative = tables[:, 0:1], tables[:, 3:4], tables[:, 4:5]

    def cleared(width, dtype):
        tile = nl.ndarray((128, width), dtype, nl.sbuf)
        nisa.memset(tile, 0.0)
        return tile

    def buffers(width, dtype, count=2):
        return [cleared(width, dtype) for _ in range(count)]

    ctr = buffers((rows + 2) * row, psi.dtype) if hops and not sliding else None
    nbr = [buffers(rows * row, psi.dtype, 4) for _ in range(2)] if hops and not sliding else None
    long = inner[other] * high * row
    slabs = buffers(long, psi.dtype) if sliding else None  # slices of even and of odd index along the swept axis
    ahead = buffers(rows * row, psi.dtype) if sliding else None
    beside = [buffers(row, psi.dtype) for _ in range(2)] if sliding and cut else None
    own = buffers(rows * row, chi.dtype) if chi is not None else None
    blocks = buffers(sites * 8 * columns, links.dtype) if hops else None
    extra = buffers((sites if per_site else 1) * columns, diagonal.dtype) if diagonal is not None else None
    result = buffers(rows * row, out.dtype)
    per_bank = max(1, min(sites, BANK // b))
    scaled = buffers(per_bank * b, f32) if dagger and form != "hop" else None
    products = hops or diagonal is not None
    banks = []
    if products:
        banks = [nl.ndarray((128, BANK), f32, nl.psum) for _ in range(8)]
        for bank in banks:
            nisa.memset(bank, 0.0)
    turn = {"buffer": 0, "bank": 0}

    def per_slot(copy):
        for j in range(n):
            copy(slice(stride * j, stride * j + rows_k), rows_k * j)

    def load_rows(tile, offset, tensor, count, ti, zi, yi):
        """``count`` rows of x from (t', z', y') into a tile, for every slot."""
        length = count * row
        pattern = [[volume * b, rows_k], [1, length]]

        def copy(partitions, first):
            terms = ((first, volume * b), (ti, full[0]), (zi, full[1]), (yi, full[2]))
            nisa.dma_copy(tile[partitions, offset : offset + length], at(tensor, pattern, terms))

        per_slot(copy)

    def load_blocks(tile, tensor, width, st, sz, first_row):
        def copy(partitions, first):
            total = tensor.shape[1] * width
            terms = (
                (first, total),
                (st.index, z * y * x * width),
                (sz.index, y * x * width),
                (first_row, x * width),
            )
            nisa.dma_copy(tile[partitions, :], at(tensor, [[total, rows_k], [1, sites * width]], terms))

        per_slot(copy)

    def source(slot, mu):
        """The slot that holds the other half of axis mu."""
        step = 1
        for v in nodes[mu + 1 :]:
            step *= v
        return ((slot * sub) ^ step) // sub

    if diagonal is not None and not per_site:
        per_slot(
            lambda partitions, first: nisa.dma_copy(extra[0][partitions, :], diagonal[first : first + rows_k, 0, :])
        )
        if dagger:
            nisa.tensor_scalar(extra[0], extra[0], nl.multiply, sign)

    def load_slab(tile, index, sb):
        """Slice ``index`` of the swept axis, its rows of y in the block, for every slot."""
        pattern = [[volume * b, rows_k], [full[other], inner[other]], [1, high * row]]

        def copy(partitions, first):
            terms = ((first, volume * b), (index, full[axis]), (sb.index, high * row))
            nisa.dma_copy(tile[partitions, :], at(psi, pattern, terms))

        per_slot(copy)

    def chunk(st, sz, sb, sy):
        k = turn["buffer"]
        turn["buffer"] = 1 - k
        ti, zi, first_row = st.index, sz.index, sb.index * high + sy.index * rows
        swept, crossed = (st, sz) if axis == 0 else (sz, st)
        first, last = sb.first and sy.first, sb.last and sy.last  # the edge of the node in y, as far as it is known
        if hops:
            load_blocks(blocks[k], links, 8 * columns, st, sz, first_row)
            if dagger:
                nisa.tensor_scalar(blocks[k], blocks[k], nl.multiply, sign)

        def place(across, along):
            """Where a chunk lies in a slab: (elements known now, register)."""
            return summed(((across, high * row), (along, rows * row)))

        if sliding:
            slab, behind = slabs[swept.odd], slabs[not swept.odd]
            tn, zn = (st.after, zi) if axis == 0 else (ti, sz.after)
            load_rows(ahead[k], 0, psi, rows, tn, zn, first_row)
            if cut and sy.first:
                load_rows(beside[k][0], 0, psi, 1, ti, zi, y - 1 if sb.first else sb.index * high - 1)
            if cut and sy.last:
                load_rows(beside[k][1], 0, psi, 1, ti, zi, 0 if sb.last else sb.index * high + high)
            middle = place(crossed.index, sy.index)
            after, before = place(crossed.after, sy.index), place(crossed.before, sy.index)
            below, above = place(crossed.index, sy.after), place(crossed.index, sy.before)
        elif hops:
            load_rows(ctr[k], row, psi, rows, ti, zi, first_row)
            load_rows(ctr[k], 0, psi, 1, ti, zi, y - 1 if sy.first else first_row - 1)
            load_rows(ctr[k], (rows + 1) * row, psi, 1, ti, zi, 0 if sy.last else first_row + rows)
            for d, (tn, zn) in enumerate(((st.after, zi), (st.before, zi), (ti, sz.after), (ti, sz.before))):
                load_rows(nbr[k][d], 0, psi, rows, tn, zn, first_row)
        diag = None
        if diagonal is not None:
            diag = extra[k] if per_site else extra[0]
            if per_site:
                load_blocks(diag, diagonal, columns, st, sz, first_row)
                if dagger:
                    nisa.tensor_scalar(diag, diag, nl.multiply, sign)
        if chi is not None:
            here = (own[k], (0, None), 0)
            load_rows(own[k], 0, chi, rows, ti, zi, first_row)
        else:
            here = (slab, middle, 0) if sliding else (ctr[k], (0, None), x)

        def part(held, site, count, start=0, partitions=128):
            """``count`` sites from ``site`` on, of what is held as (tile, its place, first site)."""
            tile, (known, register), base = held
            if register is None:
                begin = known + (base + site) * b
                return tile[start : start + partitions, begin : begin + count * b]
            wide = tile.shape[1]
            return tile.ap(
                [[wide, partitions], [1, count * b]], start * wide + known + (base + site) * b, register, None, 1
            )

        def in_row(r, i, side):
            """The site beside (r, i) of the chunk in x."""
            if not halves:
                return r * x + (i + side) % x
            # One parity: rows that start at even x keep k forward and step back backward; the others step forward.
            odd_row = ((rows % 2 == 1 and sy.odd) + r + st.odd + sz.odd + parity) % 2 == 1
            return r * x + (i + (side if odd_row == (side > 0) else 0)) % x

        def neighbour(d, r, i):
            """(what is held, its site, does the step leave the node) of direction d at row r, site i of the chunk."""
            mu, side = SHIFTS[d]
            leaves = False
            if mu < 2:
                s = (st, sz)[mu]
                leaves = s.last if side > 0 else s.first
            elif mu == 2:
                leaves = (last and r == rows - 1) if side > 0 else (first and r == 0)
            if mu == 3:
                return (slab, middle, 0) if sliding else (ctr[k], (0, None), x), in_row(r, i, side), False
            if not sliding:
                if mu < 2:
                    return (nbr[k][d], (0, None), 0), r * x + i, leaves
                return (ctr[k], (0, None), x), (r + side) * x + i, leaves
            if mu == axis:
                return (ahead[k], (0, None), 0) if side > 0 else (behind, middle, 0), r * x + i, leaves
            if mu == other:
                return (slab, after if side > 0 else before, 0), r * x + i, leaves
            if 0 <= r + side < rows:
                return (slab, middle, 0), (r + side) * x + i, leaves
            if cut and (sy.last if side > 0 else sy.first):
                return (beside[k][1 if side > 0 else 0], (0, None), 0), i, leaves
            return (slab, below if side > 0 else above, 0), (0 if side > 0 else rows - 1) * x + i, leaves

        for begin in range(0, sites, per_bank):
            count = min(per_bank, sites - begin)
            width = count * b
            done = result[k][:, begin * b : begin * b + width]
            mine = part(here, begin, count) if hops or chi is not None else None
            if not products:
                nisa.tensor_scalar(done, mine, nl.multiply, scalar)
                continue
            bank = banks[turn["bank"]]
            turn["bank"] = (turn["bank"] + 1) % 8
            for f in range(begin, begin + count):
                r, i = f // x, f % x
                to = slice((f - begin) * b, (f - begin + 1) * b)
                for j in range(n):
                    fresh = True
                    for d in range(8 if hops else 0):
                        held, site, leaves = neighbour(d, r, i)
                        mu = SHIFTS[d][0]
                        slot = source(j, mu) if leaves and nodes[mu] > 1 else j
                        k_rows = slice(stride * slot, stride * slot + size)
                        nisa.nc_matmul(
                            bank[stride * j : stride * j + columns, to],
                            blocks[k][k_rows, (f * 8 + d) * columns : (f * 8 + d + 1) * columns],
                            part(held, site, 1, stride * slot, size),
                            accumulate=not fresh, tile_position=(size * slot, size * j), tile_size=(size, size),
                        )  # fmt: skip
                        fresh = False
                    if diag is not None:
                        g = f if per_site else 0
                        k_rows = slice(stride * j, stride * j + size)
                        nisa.nc_matmul(
                            bank[stride * j : stride * j + columns, to], diag[k_rows, g * columns : (g + 1) * columns],
                            part(here, f, 1, stride * j, size),
                            accumulate=not fresh, tile_position=(size * j, size * j), tile_size=(size, size),
                        )  # fmt: skip
            acc = bank[:, 0:width]
            even = turn["bank"] % 2 == 0
            if form == "hop" and dagger:
                nisa.activation(done, nl.copy, acc, None, sign) if even else nisa.tensor_scalar(
                    done, acc, nl.multiply, sign
                )
            elif form == "hop":
                nisa.activation(done, nl.copy, acc) if even else nisa.tensor_copy(done, acc, nisa.engine.vector)
            elif dagger:
                times = scaled[turn["bank"] % 2][:, 0:width]
                nisa.activation(times, nl.copy, mine, None, scalar)
                nisa.scalar_tensor_tensor(done, acc, nl.multiply, negative, nl.add, times)
            else:
                nisa.scalar_tensor_tensor(done, mine, nl.multiply, scalar, nl.subtract, acc)

        pattern = [[volume * b, rows_k], [1, rows * row]]

        def store(partitions, first):
            terms = ((first, volume * b), (ti, full[0]), (zi, full[1]), (first_row, full[2]))
            nisa.dma_copy(at(out, pattern, terms), result[k][partitions, :])

        per_slot(store)
        if sliding and not swept.last:
            known, register = middle
            for begin in range(0, rows * row, LONGEST):
                to, count = known + begin, min(LONGEST, rows * row - begin)
                used = (
                    behind[:, to : to + count]
                    if register is None
                    else behind.ap([[long, 128], [1, count]], to, register, None, 1)
                )
                nisa.activation(used, nl.copy, ahead[k][:, begin : begin + count])

    # LNC 2: the cores share the swept axis; without a window t where it can be halved (on slices of both parities), else z; else
    # both do all of it and write the same values.
    cores, core = nl.num_programs(0), nl.program_id(0)
    ranges, unit = [(0, t), (0, z)], 4 if halves else 2
    if cores == 2:
        shared = [m for m in ((axis,) if sliding else (0, 1)) if inner[m] % unit == 0]
        if shared:
            extent = inner[shared[0]]
            ranges[shared[0]] = (core * extent // 2, (core + 1) * extent // 2)

    def along_y(st, sz, sb):
        sweep(chunks, 0, chunks, lambda sy: chunk(st, sz, sb, sy), True)

    if not sliding:
        only = Slice(0, 1, False, 0)
        sweep(t, *ranges[0], lambda st: sweep(z, *ranges[1], lambda sz: along_y(st, sz, only), halves), halves)
        return

    def slide(sb):
        low, stop = ranges[axis]
        begin = Slice(low, inner[axis], low % 2 == 1, low)
        load_slab(slabs[not begin.odd], begin.before, sb)
        load_slab(slabs[begin.odd], low, sb)

        def across(swept):
            def body(crossed):
                along_y(*((swept, crossed) if axis == 0 else (crossed, swept)), sb)

            sweep(inner[other], *ranges[other], body, halves)

        sweep(inner[axis], low, stop, across, True)

    sweep(y // high, 0, y // high, slide, False)


def _applied(psi, chi, links, diagonal, scalars, form, dagger, lattice):
    """A fresh vector in device memory with the result; ``lattice`` is how the vectors lie (see layout.py)."""
    out = nl.ndarray(psi.shape, psi.dtype, nl.shared_hbm)
    _apply(psi, chi, links, diagonal, scalars, out, form, dagger, lattice)
    return out


@nki.jit
def hop(psi, links, scalars, inner, rows, window, nodes, slots, parity, generation, dagger):
    """H psi, or H^dagger psi."""
    return _applied(
        psi, None, links, None, scalars, "hop", dagger, (inner, rows, window, nodes, slots, parity, generation)
    )


@nki.jit
def dirac(psi, links, scalars, inner, rows, window, nodes, slots, parity, generation, dagger):
    """s psi - H psi on the full lattice."""
    return _applied(
        psi, None, links, None, scalars, "dirac", dagger, (inner, rows, window, nodes, slots, parity, generation)
    )


@nki.jit
def dirac_blocks(psi, links, diagonal, scalars, inner, rows, window, nodes, slots, parity, generation, dagger):
    """A psi - H psi on the full lattice; ``diagonal`` holds a block per site, or one for all (the twist)."""
    return _applied(
        psi, None, links, diagonal, scalars, "dirac", dagger, (inner, rows, window, nodes, slots, parity, generation)
    )


@nki.jit
def close(psi, chi, links, scalars, inner, rows, window, nodes, slots, parity, generation, dagger):
    """s chi - H psi, chi on the target's parity and psi on the other."""
    return _applied(
        psi, chi, links, None, scalars, "dirac", dagger, (inner, rows, window, nodes, slots, parity, generation)
    )


@nki.jit
def close_blocks(psi, chi, links, diagonal, scalars, inner, rows, window, nodes, slots, parity, generation, dagger):
    """A chi - H psi with blocks."""
    return _applied(
        psi, chi, links, diagonal, scalars, "dirac", dagger, (inner, rows, window, nodes, slots, parity, generation)
    )


@nki.jit
def site_term(chi, scalars, inner, rows, window, nodes, slots, parity, generation):
    """s chi."""
    return _applied(
        chi, chi, None, None, scalars, "diag", False, (inner, rows, window, nodes, slots, parity, generation)
    )


@nki.jit
def site_term_blocks(chi, diagonal, scalars, inner, rows, window, nodes, slots, parity, generation):
    """A chi with blocks."""
    return _applied(
        chi, chi, None, diagonal, scalars, "diag", False, (inner, rows, window, nodes, slots, parity, generation)
    )


def _normal(psi, links, scalars, lattice):
    """M^dagger M psi, A = s: the vector between stays in device memory, where the other core writes its half."""
    middle = _applied(psi, None, links, None, scalars, "dirac", False, lattice)
    meet(middle)
    return _applied(middle, None, links, None, scalars, "dirac", True, lattice)


@nki.jit
def normal(psi, links, scalars, inner, rows, window, nodes, slots, parity, generation):
    """M^dagger M psi in one launch, A = s."""
    return _normal(psi, links, scalars, (inner, rows, window, nodes, slots, parity, generation))


@nki.jit
def normal_inner(psi, links, scalars, scale, inner, rows, window, nodes, slots, parity, generation, plan):
    """M^dagger M psi, and limb sums of Re psi^dagger M^dagger M psi."""
    out = _normal(psi, links, scalars, (inner, rows, window, nodes, slots, parity, generation))
    meet(out)
    return out, real_inner(psi, out, scale, plan)

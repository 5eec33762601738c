r"""Kernel A: the Wilson operator on the Vector engine, for few right-hand sides. Needs ``nki`` and nothing of this project.

.. math:: {\rm out} = A\chi - \sum_d (1\mp\gamma_\mu)\,U_d(x)\,\psi(x\pm\hat\mu),\qquad A = s + B(x) + i\mu\gamma_5

``links`` hold the factor 1/2 and the phases, backward ones shifted and conjugated. Layouts: see layout.py, ``vector``.

A tile is a block of rows (t, z, y) on up to 128 partitions, ``rows`` rows of x each, S = rows x sites. Spinors are first copied
in HBM into a frame with one ghost row on both sides of t, z and y; then every neighbour in t and z is one more load, a
neighbour in y is an offset in a tile with ghost rows, and a neighbour in x is a copy on ScalarE, which has nothing else to do.
Links and spinors have two buffers each, used in turn, so that loads run beside arithmetic.

Work per site and right-hand side, in elements of two-input VectorE instructions: projection 8 x 12, products 8 x 72, sums
8 x 60, reconstruction 8 x 24 - 24 (the first direction is a copy on ScalarE), diagonal 24: 1344 = 1320 flops of the hop and the
multiply-add of the mass. Bytes per site, float32, one right-hand side: 8 x 72 links, 5 + 2/rows spinors read, 1 written, and
one read and written for the frame.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from .blas_kernels import at, meet, real_inner

# Per direction t, z, y, x: row s of the upper right block of gamma as (column, real part, imaginary part); the lower left
# block is its conjugate transpose. DeGrand-Rossi basis.
UPPER = (
    ((0, 1, 0), (1, 1, 0)),
    ((0, 0, 1), (1, 0, -1)),
    ((1, -1, 0), (0, 1, 0)),
    ((1, 0, 1), (0, 0, 1)),
)
LOWER = (
    ((0, 1, 0), (1, 1, 0)),
    ((0, 0, -1), (1, 0, 1)),
    ((1, 1, 0), (0, -1, 0)),
    ((1, 0, -1), (0, 0, -1)),
)
SHIFTS = ((0, 1), (0, -1), (1, 1), (1, -1), (2, 1), (2, -1), (3, 1), (3, -1))


def once(n, body):
    """A hardware loop, or nothing to loop over."""
    if n == 1:
        body(0)
    else:
        nl.fori_loop(0, n, body)


def in_pairs(n, body):
    """A hardware loop whose body does two steps, so that two sets of buffers take turns."""
    if n >= 4:
        half = n // 2

        def two(i):
            body(i * 2, 0)
            body(i * 2 + 1, 1)

        nl.fori_loop(0, half, two)
        if n % 2:
            body(n - 1, 0)
    else:
        for i in range(n):
            body(i, i % 2)


class _Tile:
    """Views of on-chip tiles by strides: the first pair is always all partitions in use."""

    def __init__(self, tensor, size, partitions):
        self.tensor, self.size, self.p = tensor, size, partitions

    def __call__(self, offset, *pairs):
        return self.tensor.ap([[self.size, self.p], *[list(q) for q in pairs]], offset)


def _tile(partitions, size, dtype):
    return _Tile(nl.ndarray((partitions, size), dtype, nl.sbuf), size, partitions)


def _frame(psi, sites, n_rhs):
    """psi with ghost rows: (n_rhs, T + 2, Z + 2, Y + 2, 24 X) in HBM, edges never read left as they are."""
    t, z, y, x = sites
    row = 24 * x
    frame = nl.ndarray((n_rhs, t + 2, z + 2, y + 2, row), psi.dtype, nl.private_hbm)
    fs = ((t + 2) * (z + 2) * (y + 2) * row, (z + 2) * (y + 2) * row, (y + 2) * row, row)
    ps = (t * z * y * row, z * y * row, y * row, row)
    extents = (t, z, y)

    def copy(b):
        def move(axis, source, target):
            # All of the lattice (axis None), or its slice ``source`` of one axis to the ghost slice ``target``.
            counts = [n if k != axis else 1 for k, n in enumerate(extents)]
            to = sum((target if k == axis else 1) * fs[k + 1] for k in range(3))
            frm = source * ps[axis + 1] if axis is not None else 0
            pattern = [[fs[1], counts[0]], [fs[2], counts[1]], [fs[3], counts[2]], [1, row]]
            origin = [[ps[1], counts[0]], [ps[2], counts[1]], [ps[3], counts[2]], [1, row]]
            nisa.dma_copy(at(frame, pattern, ((to, 1), (b, fs[0]))), at(psi, origin, ((frm, 1), (b, ps[0]))))

        move(None, 0, 0)
        for axis, n in enumerate(extents):
            move(axis, n - 1, 0)
            move(axis, 0, n + 1)

    once(n_rhs, copy)
    return frame, fs


def _apply(psi, chi, links, diagonal, scalars, out, sites, block, link_buffers, form, dagger, diag, parity, n_rhs):
    t, z, y, x = sites
    nt, nz, ny, rows = block
    p, s, row = nt * nz * ny, rows * x, 24 * x
    groups = (t // nt, z // nz, y // (ny * rows))
    hops = form != "diag"
    f32 = nl.float32
    frame, fs = _frame(psi, sites, n_rhs) if hops else (None, None)
    ps = (t * z * y * row, z * y * row, y * row, row)
    tables = nl.ndarray((128, 8), f32, nl.sbuf)
    nisa.dma_copy(tables, scalars)

    def column(k):
        return tables[0:p, k : k + 1]

    # Two buffers for all that is loaded.
    ctr = [_tile(p, (rows + 2) * row, psi.dtype) for _ in range(2)]
    nbr = [[_tile(p, rows * row, psi.dtype) for _ in range(4)] if hops else [] for _ in range(2)]
    own = [_tile(p, rows * row, chi.dtype) for _ in range(2)] if chi is not None else None
    u = [_tile(p, 144 * s, links.dtype) for _ in range(link_buffers)] if hops else None
    blocks = _tile(p, 144 * s, diagonal.dtype) if diag == "blocks" else None
    half, moved = _tile(p, 12 * s, f32), _tile(p, 12 * s, f32)
    one, two, w = _tile(p, 36 * s, f32), _tile(p, 36 * s, f32), _tile(p, 12 * s, f32)
    acc, flat = _tile(p, 24 * s, f32), _tile(p, 24 * s, f32) if diag == "blocks" else None
    result = [_tile(p, rows * row, out.dtype) for _ in range(2)]

    def project(tile, first, mu, sign, dst):
        """dst[ri, spin, colour, site] = upper half of (1 + sign gamma_mu) of a tile whose first row is ``first``."""
        for k in range(2):
            partner, re, im = UPPER[mu][k]
            if re:
                add = nl.add if sign * re > 0 else nl.subtract
                nisa.tensor_tensor(
                    dst(3 * k * s, (6 * s, 2), (s, 3), (x, rows), (1, x)),
                    tile(first * row + 6 * k * x, (3 * x, 2), (x, 3), (row, rows), (1, x)),
                    tile(first * row + 6 * (2 + partner) * x, (3 * x, 2), (x, 3), (row, rows), (1, x)),
                    add,
                )  # fmt: skip
                continue
            for ri in range(2):  # i k (re + i im) = -k im + i k re
                positive = (sign * im > 0) != (ri == 0)
                nisa.tensor_tensor(
                    dst((6 * ri + 3 * k) * s, (s, 3), (x, rows), (1, x)),
                    tile(first * row + (6 * k + 3 * ri) * x, (x, 3), (row, rows), (1, x)),
                    tile(first * row + (6 * (2 + partner) + 3 * (1 - ri)) * x, (x, 3), (row, rows), (1, x)),
                    nl.add if positive else nl.subtract,
                )  # fmt: skip

    def shift_x(side):
        """moved(x) = half(x + side), periodic in x, by ScalarE."""
        body, edge = (1, 0) if side > 0 else (0, x - 1)
        if x > 1:
            nisa.activation(
                moved(1 - body, (x, 12 * rows), (1, x - 1)), nl.copy, half(body, (x, 12 * rows), (1, x - 1))
            )  # fmt: skip
        nisa.activation(moved(x - 1 if side > 0 else 0, (x, 12 * rows)), nl.copy, half(edge, (x, 12 * rows)))

    def choose(side):
        """On one parity the x neighbour of half the rows sits at the same k: ``moved`` becomes the right one of the two.

        Forward: rows that start at even x keep k. Backward: the other way round. The masks are 0 and 1: nothing is rounded.
        """
        for first in range(min(2, rows)):
            count = (rows - first + 1) // 2
            stay = 5 + ((first + (side < 0)) % 2)
            view = (first * x, (s, 12), (2 * x, count), (1, x))
            nisa.activation(half(*view), nl.copy, half(*view), None, column(stay))
            nisa.scalar_tensor_tensor(moved(*view), moved(*view), nl.multiply, column(11 - stay), nl.add, half(*view))

    def multiply(d, links_tile, h):
        """w[ri, a, spin] = sum_b U[a, b] h[spin, b]."""
        for k, (target, left) in enumerate(((one, 0), (two, 1))):
            for ri in range(2):
                # one: Re U re h, Re U im h; two: Im U im h, Im U re h
                from_half = ri if k == 0 else 1 - ri
                nisa.tensor_tensor(
                    target(18 * s * ri, (6 * s, 3), (3 * s, 2), (1, 3 * s)),
                    links_tile((18 * d + 9 * left) * s, (3 * s, 3), (0, 2), (1, 3 * s)),
                    h(6 * s * from_half, (0, 3), (3 * s, 2), (1, 3 * s)),
                    nl.multiply,
                )  # fmt: skip
        nisa.tensor_tensor(one(0, (1, 18 * s)), one(0, (1, 18 * s)), two(0, (1, 18 * s)), nl.subtract)
        nisa.tensor_tensor(one(18 * s, (1, 18 * s)), one(18 * s, (1, 18 * s)), two(18 * s, (1, 18 * s)), nl.add)
        flat_w = w(0, (s, 12), (1, s))
        nisa.tensor_tensor(flat_w, one(0, (3 * s, 12), (1, s)), one(s, (3 * s, 12), (1, s)), nl.add)
        nisa.tensor_tensor(flat_w, flat_w, one(2 * s, (3 * s, 12), (1, s)), nl.add)

    def add_to(dst, src, positive, first):
        if first:
            nisa.activation(dst, nl.copy, src, None, 1.0 if positive else -1.0)
        else:
            nisa.tensor_tensor(dst, dst, src, nl.add if positive else nl.subtract)

    def reconstruct(mu, sign, first):
        add_to(acc(0, (6 * s, 2), (s, 6), (1, s)), w(0, (s, 2), (2 * s, 6), (1, s)), True, first)
        for k in range(2):
            partner, re, im = LOWER[mu][k]
            lower = 6 * (2 + k) * s
            if re:
                add_to(acc(lower, (s, 6), (1, s)), w(partner * s, (2 * s, 6), (1, s)), sign * re > 0, first)
                continue
            for ri in range(2):
                positive = (sign * im > 0) != (ri == 0)
                source = w(((1 - ri) * 6 + partner) * s, (2 * s, 3), (1, s))
                add_to(acc(lower + 3 * ri * s, (s, 3), (1, s)), source, positive, first)

    def subtract_blocks(tile, first):
        """acc -= B chi, two complex 6x6 blocks."""
        for c in range(2):
            for ri in range(2):
                nisa.activation(
                    flat((2 * c + ri) * 6 * s, (3 * s, 2), (s, 3), (x, rows), (1, x)), nl.copy,
                    tile(first * row + (12 * c + 3 * ri) * x, (6 * x, 2), (x, 3), (row, rows), (1, x)),
                )  # fmt: skip
            for ri in range(2):
                for target, left, right in ((one, 0, ri), (two, 1, 1 - ri)):
                    nisa.tensor_tensor(
                        target(0, (6 * s, 6), (1, 6 * s)), blocks((2 * c + left) * 36 * s, (6 * s, 6), (1, 6 * s)),
                        flat((2 * c + right) * 6 * s, (0, 6), (1, 6 * s)), nl.multiply,
                    )  # fmt: skip
                sums = (0, (1, 36 * s))
                nisa.tensor_tensor(one(*sums), one(*sums), two(*sums), nl.subtract if ri == 0 else nl.add)
                here = acc((12 * c + 3 * ri) * s, (6 * s, 2), (s, 3), (1, s))
                for j in range(6):
                    nisa.tensor_tensor(here, here, one(j * s, (18 * s, 2), (6 * s, 3), (1, s)), nl.subtract)

    def subtract_twist(tile, first):
        """acc -= i mu gamma5 chi: re += mu g im, im -= mu g re, g = +1 for spins 0, 1 and -1 for 2, 3."""
        for c in range(2):
            for ri in range(2):
                nisa.scalar_tensor_tensor(
                    acc((12 * c + 3 * ri) * s, (6 * s, 2), (s, 3), (x, rows), (1, x)),
                    tile(first * row + (12 * c + 3 * (1 - ri)) * x, (6 * x, 2), (x, 3), (row, rows), (1, x)),
                    nl.multiply, column(1 if (c == 0) == (ri == 0) else 2), nl.add,
                    acc((12 * c + 3 * ri) * s, (6 * s, 2), (s, 3), (x, rows), (1, x)),
                )  # fmt: skip

    def place(gt, gz, gy, b, strides, more=0):
        return ((gt, nt * strides[1]), (gz, nz * strides[2]), (gy, ny * rows * strides[3]), (b, strides[0]), (more, 1))

    def lattice(strides, count):
        return [[strides[1], nt], [strides[2], nz], [rows * strides[3], ny], [1, count * row]]

    def load_links(gt, gz, gy, k):
        where = (
            (gt, groups[1] * groups[2] * p * 144 * s),
            (gz, groups[2] * p * 144 * s),
            (gy, p * 144 * s),
        )
        if hops:
            nisa.dma_copy(u[k % link_buffers](0, (1, 144 * s)), at(links, [[144 * s, p], [1, 144 * s]], where))
        if diag == "blocks":
            nisa.dma_copy(blocks(0, (1, 144 * s)), at(diagonal, [[144 * s, p], [1, 144 * s]], where))

    def tile(gt, gz, gy, b, k, ku):
        if hops:
            origin = fs[1] + fs[2] + fs[3]
            whole = ctr[k](0, (1, (rows + 2) * row))
            nisa.dma_copy(whole, at(frame, lattice(fs, rows + 2), place(gt, gz, gy, b, fs, origin - fs[3])))
            for d in range(4):
                there = origin + SHIFTS[d][1] * fs[1 + SHIFTS[d][0]]
                source = at(frame, lattice(fs, rows), place(gt, gz, gy, b, fs, there))
                nisa.dma_copy(nbr[k][d](0, (1, rows * row)), source)
        here, first = ctr[k], 1
        if chi is not None:
            here, first = own[k], 0
            nisa.dma_copy(here(0, (1, rows * row)), at(chi, lattice(ps, rows), place(gt, gz, gy, b, ps)))
        if hops:
            for d, (mu, side) in enumerate(SHIFTS):
                sign = -side if not dagger else side
                if mu < 2:
                    project(nbr[k][d], 0, mu, sign, half)
                else:
                    project(ctr[k], 1 + (side if mu == 2 else 0), mu, sign, half)
                h = half
                if mu == 3:
                    shift_x(side)
                    if parity:
                        choose(side)
                    h = moved
                multiply(d, u[ku % link_buffers], h)
                reconstruct(mu, sign, d == 0)
        else:
            nisa.memset(acc(0, (1, 24 * s)), 0.0)
        done = result[k](0, (x, 24), (row, rows), (1, x))
        total = acc(0, (s, 24), (x, rows), (1, x))
        if form == "hop":
            nisa.activation(done, nl.copy, total)
        else:
            if diag == "blocks":
                subtract_blocks(here, first)
            if diag == "twist":
                subtract_twist(here, first)
            own_site = here(first * row, (x, 24), (row, rows), (1, x))
            nisa.scalar_tensor_tensor(done, own_site, nl.multiply, column(0), nl.subtract, total)
        nisa.dma_copy(at(out, lattice(ps, rows), place(gt, gz, gy, b, ps)), result[k](0, (1, rows * row)))

    # LNC 2: the two cores share the first axis of blocks that has an even number of them, else the right-hand sides if those
    # are even; else both do all of it and write the same values.
    cores, core = nl.num_programs(0), nl.program_id(0)
    counts, start, columns, first_column = list(groups), [0, 0, 0], n_rhs, 0
    if cores == 2:
        axis = next((k for k in range(3) if groups[k] % 2 == 0), None)
        if axis is not None:
            counts[axis] //= 2
            start[axis] = core * counts[axis]
        elif n_rhs % 2 == 0:
            columns = n_rhs // 2
            first_column = core * columns
    inner = next((k for k in (2, 1, 0) if counts[k] > 1), 2)
    others = [k for k in range(3) if k != inner]

    def run(i, j):
        def step(m, k):
            g = [0, 0, 0]
            for axis, value in ((others[0], i), (others[1], j), (inner, m)):
                g[axis] = value + start[axis]
            load_links(*g, k)
            if columns == 1:
                tile(*g, first_column, k, k)
            else:
                in_pairs(columns, lambda b, kb: tile(*g, b + first_column, kb, k))

        in_pairs(counts[inner], step)

    once(counts[others[0]], lambda i: once(counts[others[1]], lambda j: run(i, j)))


def _output(sites, n_rhs, like):
    t, z, y, x = sites
    return nl.ndarray((n_rhs, t, z, y, 24, x), like.dtype, nl.shared_hbm)


@nki.jit
def hop(psi, links, scalars, sites, block, link_buffers, dagger, parity, n_rhs):
    """H psi, or H^dagger psi."""
    out = _output(sites, n_rhs, psi)
    _apply(psi, None, links, None, scalars, out, sites, block, link_buffers, "hop", dagger, "scalar", parity, n_rhs)
    return out


@nki.jit
def dirac(psi, links, scalars, sites, block, link_buffers, dagger, diag, n_rhs):
    """A psi - H psi on the full lattice, A = s + i mu gamma5."""
    out = _output(sites, n_rhs, psi)
    _apply(psi, None, links, None, scalars, out, sites, block, link_buffers, "dirac", dagger, diag, False, n_rhs)
    return out


@nki.jit
def dirac_blocks(psi, links, diagonal, scalars, sites, block, link_buffers, dagger, n_rhs):
    """A psi - H psi on the full lattice with blocks per site."""
    out = _output(sites, n_rhs, psi)
    _apply(
        psi, None, links, diagonal, scalars, out, sites, block, link_buffers, "dirac", dagger, "blocks", False, n_rhs
    )
    return out


@nki.jit
def close(psi, chi, links, scalars, sites, block, link_buffers, dagger, diag, n_rhs):
    """A chi - H psi, chi on the target's parity and psi on the other."""
    out = _output(sites, n_rhs, psi)
    _apply(psi, chi, links, None, scalars, out, sites, block, link_buffers, "dirac", dagger, diag, True, n_rhs)
    return out


@nki.jit
def close_blocks(psi, chi, links, diagonal, scalars, sites, block, link_buffers, dagger, n_rhs):
    """A chi - H psi with blocks per site."""
    out = _output(sites, n_rhs, psi)
    _apply(psi, chi, links, diagonal, scalars, out, sites, block, link_buffers, "dirac", dagger, "blocks", True, n_rhs)
    return out


@nki.jit
def site_term(chi, scalars, sites, block, link_buffers, diag, n_rhs):
    """A chi, A = s + i mu gamma5."""
    out = _output(sites, n_rhs, chi)
    _apply(chi, chi, None, None, scalars, out, sites, block, link_buffers, "diag", False, diag, False, n_rhs)
    return out


@nki.jit
def site_term_blocks(chi, diagonal, scalars, sites, block, link_buffers, n_rhs):
    """A chi with blocks per site."""
    out = _output(sites, n_rhs, chi)
    _apply(chi, chi, None, diagonal, scalars, out, sites, block, link_buffers, "diag", False, "blocks", False, n_rhs)
    return out


def _normal(psi, links, scalars, sites, block, link_buffers, diag, n_rhs):
    """M^dagger M psi, A = s + i mu gamma5: the vector between stays in device memory."""
    middle = nl.ndarray(psi.shape, psi.dtype, nl.shared_hbm)  # the other core writes its half
    out = _output(sites, n_rhs, psi)
    _apply(psi, None, links, None, scalars, middle, sites, block, link_buffers, "dirac", False, diag, False, n_rhs)
    meet(middle)
    back = nl.ndarray((128, 8), nl.float32, nl.private_hbm)
    # M^dagger has -mu: columns 1 and 2 change places.
    for to, frm, width in ((0, 0, 1), (1, 2, 1), (2, 1, 1), (3, 3, 5)):
        nisa.dma_copy(back[:, to : to + width], scalars[:, frm : frm + width])
    _apply(middle, None, links, None, back, out, sites, block, link_buffers, "dirac", True, diag, False, n_rhs)
    return out


@nki.jit
def normal(psi, links, scalars, sites, block, link_buffers, diag, n_rhs):
    """M^dagger M psi in one launch, A = s + i mu gamma5."""
    return _normal(psi, links, scalars, sites, block, link_buffers, diag, n_rhs)


@nki.jit
def normal_inner(psi, links, scalars, scale, sites, block, link_buffers, diag, n_rhs, plan):
    """M^dagger M psi, and limb sums of Re psi^dagger M^dagger M psi."""
    out = _normal(psi, links, scalars, sites, block, link_buffers, diag, n_rhs)
    meet(out)
    return out, real_inner(psi, out, scale, plan)

r"""Vector updates and reductions, fused: a CG iteration is three launches. Needs ``nki`` and sibling ``exact`` only.

1. the operator (``normal_inner``: :math:`q = M^\dagger M p` and :math:`p^\dagger q`), 2. ``cg_update``: :math:`x' = x + a p,\ r' = r - a q,\ |r'|^2`,
3. ``axpy`` as :math:`p' = r + \beta p`.

A vector is seen as blocks: layout ``vector`` as (n_rhs, P, R, 4, 2, 3X) with coefficients per right-hand side as [P, 1] columns;
layout ``tensor`` as (rows, sites, n_rhs) with coefficients along the free axis, its imaginary partners one partition apart
(exchanged by ``nc_stream_shuffle``).

``coefficients`` are float32 (128, n_rhs, 4): re a, im a, -im a, and im a with the sign of the partition (see
``blas_specs.pack_coefficients``); ``scale`` has the same shape and holds the powers of two of ``exact`` in its first entry.
Bytes per real: axpy 3w, cg_update 6w; VectorE lane-cycles per real: axpy 2 (one right-hand side per instruction) or 4 (tensor
layout), reductions 21 more.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from .exact import NUMBERS, limb_sums

SWAP = tuple(i ^ 1 for i in range(32))


def summed(terms):
    """A sum of index times stride as (what is known now, the register of the rest or None)."""
    offset, moving = 0, None
    for index, stride in terms:
        if isinstance(index, int):
            offset += index * stride
        else:
            part = index * stride
            moving = part if moving is None else moving + part
    return offset, moving


def at(tensor, pattern, terms):
    """An access at a sum of index times stride, indices being integers or loop variables."""
    offset, moving = summed(terms)
    if moving is None:
        return tensor.ap(pattern, offset)
    return tensor.ap(pattern, offset, moving, None, len(tensor.shape) - 1)


class _View:
    """A vector cut into tiles of [partitions, width]; ``tensor`` true for layout B."""

    def __init__(self, plan):
        self.tensor, self.p, self.tiles, self.width, self.n_rhs, self.x3, self.segments, self.length = plan

    def hbm(self, vector, b, i):
        """Tile i (of right-hand side b) in HBM."""
        row = self.tiles * self.width
        terms = ((i, self.width), (b, self.p * row))
        return at(vector, [[row, self.p], [1, self.width]], terms)

    def every(self, body):
        """body(b, i) for each tile; in layout B a tile holds all right-hand sides and b is 0."""

        def inside(b):
            if self.tiles == 1:
                body(b, 0)
            else:
                nl.fori_loop(0, self.tiles, lambda i: body(b, i))

        if self.tensor or self.n_rhs == 1:
            inside(0)
        else:
            nl.fori_loop(0, self.n_rhs, inside)

    def tile(self, dtype):
        return nl.ndarray((self.p, self.width), dtype, nl.sbuf)

    def load(self, vector, b, i):
        t = self.tile(vector.dtype)
        nisa.dma_copy(t, self.hbm(vector, b, i))
        return t

    def table(self, given):
        t = nl.ndarray((128, self.n_rhs, 4), nl.float32, nl.sbuf)
        nisa.dma_copy(t, given)
        return t

    def column(self, table, b, k):
        """Layout A: coefficient k of right-hand side b as [P, 1]."""
        row = self.n_rhs * 4
        if isinstance(b, int):
            return table.ap([[row, self.p], [1, 1]], 4 * b + k)
        return table.ap([[row, self.p], [1, 1]], k, b, None, 1)

    def along(self, table, k):
        """Layout B: coefficient k along the free axis, the same for every site."""
        return table.ap([[self.n_rhs * 4, self.p], [0, self.width // self.n_rhs], [4, self.n_rhs]], k)

    def sites(self, t):
        """Layout B: [p, sites, n_rhs]."""
        return t.ap([[self.width, self.p], [self.n_rhs, self.width // self.n_rhs], [1, self.n_rhs]])

    def part(self, t, ri):
        """Layout A: real or imaginary parts, [p, rows x spins, 3X]."""
        x3 = self.x3
        return t.ap([[self.width, self.p], [2 * x3, self.width // (2 * x3)], [1, x3]], ri * x3)

    def add_scaled(self, dst, x, table, b, y, real, sign=1):
        """dst = y + sign a x."""
        if self.tensor:
            product, op = self.tile(nl.float32), nl.add if sign > 0 else nl.subtract
            nisa.tensor_tensor(self.sites(product), self.sites(x), self.along(table, 0), nl.multiply)
            if not real:
                swapped, other = self.tile(x.dtype), self.tile(nl.float32)
                nisa.nc_stream_shuffle(swapped, x, SWAP)
                nisa.tensor_tensor(self.sites(other), self.sites(swapped), self.along(table, 3), nl.multiply)
                nisa.tensor_tensor(product, product, other, nl.add)
            nisa.tensor_tensor(dst, y, product, op)
            return
        if sign < 0:  # only cg_update, whose a is real: entry 2 holds -a there
            nisa.scalar_tensor_tensor(dst, x, nl.multiply, self.column(table, b, 2), nl.add, y)
            return
        if real:
            nisa.scalar_tensor_tensor(dst, x, nl.multiply, self.column(table, b, 0), nl.add, y)
            return
        wide = self.tile(nl.float32)
        nisa.scalar_tensor_tensor(wide, x, nl.multiply, self.column(table, b, 0), nl.add, y)
        for ri in range(2):
            nisa.scalar_tensor_tensor(
                self.part(dst, ri), self.part(x, 1 - ri), nl.multiply, self.column(table, b, 2 - ri), nl.add, self.part(wide, ri)
            )  # fmt: skip

    def products(self, q, x, y, scale, b, imaginary):
        """q = scale x y, or scale Im(conj(x) y) by components."""
        if self.tensor:
            if imaginary:
                swapped = self.tile(y.dtype)
                nisa.nc_stream_shuffle(swapped, y, SWAP)
                y = swapped
            nisa.tensor_tensor(self.sites(q), self.sites(x), self.along(scale, 3 if imaginary else 0), nl.multiply)
            nisa.tensor_tensor(q, q, y, nl.multiply)
        elif imaginary:
            for ri in range(2):  # x.re y.im, then - x.im y.re
                nisa.scalar_tensor_tensor(
                    self.part(q, ri), self.part(x, ri), nl.multiply, self.column(scale, b, 2 * ri), nl.multiply, self.part(y, 1 - ri)
                )  # fmt: skip
        else:
            nisa.scalar_tensor_tensor(q, x, nl.multiply, self.column(scale, b, 0), nl.multiply, y)

    def reduce(self, partials, x, y, scale, b, i, imaginary=False):
        q, limb, rest = self.tile(nl.float32), self.tile(nl.float32), self.tile(nl.float32)
        sums = nl.ndarray((self.p, NUMBERS, self.segments), nl.float32, nl.sbuf)
        self.products(q, x, y, scale, b, imaginary)
        limb_sums(nisa, nl, q, limb, rest, sums, self.segments, self.length, self.width, self.p)
        size = NUMBERS * self.segments
        one = self.p * size
        terms = ((i, one), (b, self.tiles * one))
        offset, moving = partials.shape[1] * self.tiles * one * imaginary, None
        for index, stride in terms:
            if isinstance(index, int):
                offset += index * stride
            else:
                moving = index * stride if moving is None else moving + index * stride
        pattern = [[size, self.p], [1, size]]
        target = (
            partials.ap(pattern, offset)
            if moving is None
            else partials.ap(pattern, offset, moving, None, len(partials.shape) - 1)
        )
        nisa.dma_copy(target, sums)

    def partials(self, kinds=1):
        columns = 1 if self.tensor else self.n_rhs
        return nl.ndarray((kinds, columns, self.tiles, self.p, NUMBERS, self.segments), nl.float32, nl.shared_hbm)


def meet(tensor):
    """LNC 2: both cores have written their part of a tensor in shared device memory before either goes on."""
    if nl.num_programs(0) == 2:
        nisa.core_barrier(tensor, (0, 1))


def real_inner(x, y, scale, plan):
    """Limb sums of Re conj(x) y, as a part of another kernel."""
    v = _View(plan)
    sums, powers = v.partials(), v.table(scale)
    v.every(lambda b, i: v.reduce(sums, v.load(x, b, i), v.load(y, b, i), powers, b, i))
    return sums


@nki.jit
def axpy(x, y, coefficients, plan, real):
    """y + a x."""
    v = _View(plan)
    out = nl.ndarray(y.shape, y.dtype, nl.shared_hbm)
    table = v.table(coefficients)

    def body(b, i):
        dst = v.tile(out.dtype)
        v.add_scaled(dst, v.load(x, b, i), table, b, v.load(y, b, i), real)
        nisa.dma_copy(v.hbm(out, b, i), dst)

    v.every(body)
    return out


@nki.jit
def scale(x, coefficients, plan, gamma5):
    """a x with real a, or gamma5 x."""
    v = _View(plan)
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    table = v.table(coefficients)

    def body(b, i):
        dst, t = v.tile(out.dtype), v.load(x, b, i)
        if v.tensor:
            nisa.tensor_tensor(v.sites(dst), v.sites(t), v.along(table, 0), nl.multiply)
        elif gamma5:
            half = 12 * v.x3 // 3  # reals of two spins in a row
            for lower, factor in ((0, 1.0), (1, -1.0)):
                view = [[v.width, v.p], [2 * half, v.width // (2 * half)], [1, half]]
                nisa.activation(dst.ap(view, lower * half), nl.copy, t.ap(view, lower * half), None, factor)
        else:
            nisa.tensor_scalar(dst, t, nl.multiply, v.column(table, b, 0))
        nisa.dma_copy(v.hbm(out, b, i), dst)

    v.every(body)
    return out


@nki.jit
def axpy_norm2(x, y, coefficients, scale, plan, real):
    """y + a x and limb sums of its norm."""
    v = _View(plan)
    out = nl.ndarray(y.shape, y.dtype, nl.shared_hbm)
    sums = v.partials()
    table, powers = v.table(coefficients), v.table(scale)

    def body(b, i):
        dst = v.tile(out.dtype)
        v.add_scaled(dst, v.load(x, b, i), table, b, v.load(y, b, i), real)
        nisa.dma_copy(v.hbm(out, b, i), dst)
        v.reduce(sums, dst, dst, powers, b, i)

    v.every(body)
    return out, sums


@nki.jit
def cg_update(p, q, x, r, coefficients, scale, plan):
    """x + a p, r - a q with real a, and limb sums of the norm of the new r."""
    v = _View(plan)
    new_x = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    new_r = nl.ndarray(r.shape, r.dtype, nl.shared_hbm)
    sums = v.partials()
    table, powers = v.table(coefficients), v.table(scale)

    def body(b, i):
        dx, dr = v.tile(new_x.dtype), v.tile(new_r.dtype)
        v.add_scaled(dx, v.load(p, b, i), table, b, v.load(x, b, i), True)
        v.add_scaled(dr, v.load(q, b, i), table, b, v.load(r, b, i), True, -1)
        nisa.dma_copy(v.hbm(new_x, b, i), dx)
        nisa.dma_copy(v.hbm(new_r, b, i), dr)
        v.reduce(sums, dr, dr, powers, b, i)

    v.every(body)
    return new_x, new_r, sums


@nki.jit
def norm2(x, scale, plan):
    """Limb sums of |x|^2."""
    v = _View(plan)
    sums, powers = v.partials(), v.table(scale)

    def body(b, i):
        t = v.load(x, b, i)
        v.reduce(sums, t, t, powers, b, i)

    v.every(body)
    return sums


@nki.jit
def inner(x, y, scale, plan):
    """Limb sums of the real and of the imaginary part of conj(x) y."""
    v = _View(plan)
    sums, powers = v.partials(2), v.table(scale)

    def body(b, i):
        tx, ty = v.load(x, b, i), v.load(y, b, i)
        v.reduce(sums, tx, ty, powers, b, i)
        v.reduce(sums, tx, ty, powers, b, i, True)

    v.every(body)
    return sums

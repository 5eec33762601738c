r"""The graph: an operator as a ``torch.nn.Module`` in real arithmetic, static shapes, nothing that the compiler refuses.

.. math:: y = D\,x - C\,H^{(\dagger)}z,\qquad
          H\psi(x) = \sum_\mu\left[(1-\gamma_\mu)W_\mu(x)\psi(x+\hat\mu) + (1+\gamma_\mu)W'_\mu(x)\psi(x-\hat\mu)\right]

with :math:`W_\mu = \tfrac12 c_\mu\,\text{phase}\,U_\mu(x)` and :math:`W'_\mu(x) = W_\mu^\dagger(x-\hat\mu)`, both made on the host. The
backward links are stored where they are used: a slab or a parity then needs links of its own sites only, and every
shift moves half spinors. It costs twice the link traffic, which is cheap where element operations are the limit.

Every operator is a chain of such *stages* (:class:`Stage`). Two formulations of H:

* ``half``: project to half spinors, 3x3 products as long element operations, reconstruct;
* ``fused``: projector and link folded into one real 24x24 block per direction, the eight shifted spinors side by side,
  one batched product with K = 8 x 24 that accumulates in fp32 inside.

Vectors are ``(n, 2, Ns, Nc, T, Z, Y, X)``: right-hand sides, then real and imaginary planes, spin, colour, sites. What is
stored may be 16 bits wide; all arithmetic is fp32; a result is rounded once. There is no complex and no float64 type,
no roll (shifts are slices and one concatenation), no index tensor, no control flow on data.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
import torch

from lqcd_core.backend import Links, SiteDiagonal
from lqcd_core.gamma import GAMMA
from lqcd_core.geometry import FULL, LatticeGeometry

FORMULATIONS = ("half", "fused")
"""Names of the two ways to write H."""

STORAGE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Types that stored numbers may have; arithmetic is always float32."""

ALLOWED_OPERATORS = frozenset(
    {
        "add", "sub", "mul", "neg", "gt", "where", "bmm",  # arithmetic
        "slice", "narrow", "select", "unsqueeze", "view", "reshape", "permute",  # no data moves
        "cat", "stack", "clone", "_to_copy", "to",  # copies and conversions
        "_assert_tensor_metadata",  # no operation: what torch.export notes beside a conversion
    }
)  # fmt: skip
"""Every ATen operator (by name) that may appear in an exported graph."""
ALLOWED_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.bool})
"""Every element type that may appear (bool: the comparison that makes the mask of a parity shift)."""


def _rows(block: np.ndarray) -> list[tuple[int, complex]]:
    """The one non-zero (column, value) of each row of a 2x2 block of a gamma matrix."""
    return [(int(np.flatnonzero(row)[0]), complex(row[np.flatnonzero(row)[0]])) for row in block]


UPPER = [_rows(g[:2, 2:]) for g in GAMMA]
LOWER = [_rows(g[2:, :2]) for g in GAMMA]
HOPS = ((0, +1), (0, -1), (1, -1), (1, +1), (2, -1), (2, +1), (3, -1), (3, +1))
"""(mu, sign of gamma_mu) in the order of links and of accumulation. The first reconstructs without a sign."""


@attrs.frozen
class Term:
    """A site-diagonal term as the graph sees it. Its numbers are a weight: a changed mass compiles nothing anew, and no
    Python float (which a tracer writes down as a double) stands in the graph."""

    kind: str = "one"
    """``one``, ``scale`` (one real factor), ``twist`` (a complex factor per spin) or ``blocks``."""
    name: str = ""
    """The weight that holds the numbers."""

    @property
    def is_one(self) -> bool:
        return self.kind == "one"


@attrs.frozen
class Stage:
    """One hop with what surrounds it: y = centre(c) - after(H z), or y = after(H z), or y = centre(c)."""

    hop: bool = True
    """False: the stage is its centre term alone."""
    dagger: bool = False
    """H^dagger = gamma5 H gamma5: the projectors change sign."""
    parity: int | None = FULL
    """Parity the stage lands on."""
    after: Term | None = None
    """Applied to H z."""
    centre: Term | None = None
    """Applied to c; None: nothing is subtracted from."""
    of_input: bool = False
    """c is what entered the group of stages; else it is z, what entered this stage."""


Chain = tuple[tuple[Stage, ...], ...]
"""Groups of stages, one after the other; ``of_input`` means the vector that entered the group."""


@attrs.frozen
class GraphSpec:
    """Everything a graph is made of, but for the numbers in its weights. Plain data: it goes into the cache key."""

    chain: Chain
    """What is computed."""
    sites: tuple[int, int, int, int]
    """Extents T, Z, Y, X of one output (X/2 on a parity)."""
    nc: int
    """Number of colours."""
    n_rhs: int
    """Right-hand sides compiled in."""
    formulation: str = "half"
    """``half`` or ``fused``."""
    link_storage: str = "float32"
    """Type of the stored links."""
    storage_in: str = "float32"
    """Type of the vectors that come in."""
    storage_centre: str = "float32"
    """Type of the second vector of a lone stage."""
    storage_out: str = "float32"
    """Type of the vector that goes out."""
    ghost: bool = False
    """The vector comes with one time slice more at either end (a slab); only for a chain of one stage."""
    weights: tuple[str, ...] = ()
    """Names of the weights, in the order of arguments."""
    as_arguments: bool = False
    """Weights are arguments of the call, not held by the module."""

    @property
    def single(self) -> Stage | None:
        """The one stage, or None for a longer chain."""
        return self.chain[0][0] if len(self.chain) == 1 and len(self.chain[0]) == 1 else None

    @property
    def two_vectors(self) -> bool:
        """True if a lone stage takes the group's input as a second vector."""
        return self.single is not None and self.single.of_input

    def vector_types(self) -> list[torch.dtype]:
        """Types of the vectors that come in."""
        return [STORAGE[self.storage_in]] + ([STORAGE[self.storage_centre]] if self.two_vectors else [])

    def vector_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the vectors that come in."""
        t, *rest = self.sites
        source = (self.n_rhs, 2, 4, self.nc, t + 2 * self.ghost, *rest)
        return [source] + ([(self.n_rhs, 2, 4, self.nc, *self.sites)] if self.two_vectors else [])


# --------------------------------------------------------------------------------------------------------------------
# The module


class Graph(torch.nn.Module):
    """The module of a :class:`GraphSpec`.

    Parameters
    ----------
    spec
        What it computes.
    weights
        Tensors by name. Held as buffers, unless the spec says that they are arguments.
    """

    def __init__(self, spec: GraphSpec, weights: dict[str, torch.Tensor]):
        super().__init__()
        self.spec = spec
        if not spec.as_arguments:
            for name in spec.weights:
                self.register_buffer(name, weights[name])

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        spec = self.spec
        count = 2 if spec.two_vectors else 1
        vectors, given = tensors[:count], tensors[count:]
        w = dict(zip(spec.weights, given)) if spec.as_arguments else {n: getattr(self, n) for n in spec.weights}
        x = _planes(vectors[0])
        if spec.two_vectors:
            x = self._stage(spec.single, x, _planes(vectors[1]), w)
        else:
            for group in spec.chain:
                start = x
                for stage in group:
                    x = self._stage(stage, x, start, w)
        return torch.stack(x, 1).to(STORAGE[spec.storage_out])

    def _stage(self, stage: Stage, z, start, w):
        spec, here = self.spec, z
        if spec.ghost and stage.hop:
            here = tuple(v.narrow(3, 1, spec.sites[0]) for v in z)
        c = start if stage.of_input else here
        if not stage.hop:
            return _site(spec, stage.centre, c, w)
        hop = _half_hop if spec.formulation == "half" else _fused_hop
        y = hop(spec, stage, z, here, w)
        if stage.after is not None:
            y = _site(spec, stage.after, y, w)
        if stage.centre is None:
            return y
        d = _site(spec, stage.centre, c, w)
        return d[0] - y[0], d[1] - y[1]


def _planes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Real and imaginary planes ``(n, Ns, Nc, T, Z, Y, X)`` in fp32."""
    x = x.to(torch.float32)
    return x[:, 0], x[:, 1]


def _site(spec: GraphSpec, term: Term, x, w):
    """A x: one factor, a factor per spin, or two blocks of 2Nc x 2Nc."""
    re, im = x
    if term.is_one:
        return x
    if term.kind == "scale":
        return re * w[term.name], im * w[term.name]
    if term.kind == "twist":
        a, b = w[term.name][0], w[term.name][1]  # (4, 1, 1, 1, 1, 1)
        return re * a - im * b, im * a + re * b
    blocks = w[term.name]  # (2, 2 chiralities, 2Nc, 2Nc, T, Z, Y, X), always fp32: 16 bits would move the mass
    n, nc, sites = spec.n_rhs, spec.nc, spec.sites
    r, i = (v.reshape(n, 2, 2 * nc, *sites) for v in (re, im))
    out_r = out_i = None
    for j in range(2 * nc):
        br, bi = blocks[0, :, :, j].unsqueeze(0), blocks[1, :, :, j].unsqueeze(0)
        vr, vi = r[:, :, j : j + 1], i[:, :, j : j + 1]
        pr, pi = br * vr - bi * vi, br * vi + bi * vr
        out_r, out_i = (pr, pi) if out_r is None else (out_r + pr, out_i + pi)
    return out_r.reshape(n, 4, nc, *sites), out_i.reshape(n, 4, nc, *sites)


def _shift(v: torch.Tensor, axis: int, by: int, extent: int) -> torch.Tensor:
    """v at the neighbour ``by`` = +1 or -1 along a periodic axis: two slices and one concatenation."""
    if extent == 1:
        return v
    cut = 1 if by > 0 else extent - 1
    return torch.cat([v.narrow(axis, cut, extent - cut), v.narrow(axis, 0, cut)], axis)


def _neighbour(spec: GraphSpec, stage: Stage, v: torch.Tensor, mu: int, by: int, w) -> torch.Tensor:
    """v(x + by mu) at the stage's sites; along t with ghosts ``v`` has them still, and the slice is all there is to do."""
    axis = v.dim() - 4 + mu
    if mu == 0 and spec.ghost:
        return v.narrow(axis, 2 if by > 0 else 0, spec.sites[0])
    if mu < 3 or stage.parity is FULL:
        return _shift(v, axis, by, spec.sites[mu])
    # One parity: row (t, z, y) holds x = 2k + r at k, so one of the two neighbours in x sits at k itself.
    even_x = w[f"even_x{stage.parity}"] > 0.5
    moved = _shift(v, axis, by, spec.sites[mu])
    return torch.where(even_x, v, moved) if by > 0 else torch.where(even_x, moved, v)


def _plus(a, b, coefficient: complex, plane: int):
    """Plane (0 real, 1 imaginary) of a + coefficient b, for coefficients 1, -1, i, -i. a may be None."""
    if coefficient.imag:
        source, sign = b[1 - plane], coefficient.imag * (-1 if plane == 0 else 1)
    else:
        source, sign = b[plane], coefficient.real
    if a is None:
        return source if sign > 0 else -source
    return a[plane] + source if sign > 0 else a[plane] - source


def _half_hop(spec: GraphSpec, stage: Stage, z, here, w):
    links = w[_links_name(stage)]  # (8, 2, Nc, Nc, T, Z, Y, X)
    up, low = None, [[None, None], [None, None]]
    order = range(8) if not stage.dagger else (1, 0, *range(2, 8))
    for d in order:
        mu, gamma_sign = HOPS[d]
        by = -gamma_sign  # (1 - gamma) comes from x + mu
        sign = -gamma_sign if stage.dagger else gamma_sign
        re, im = z if (mu == 0 and spec.ghost) else here
        rows = [[], []]
        for s in range(2):
            p, c = UPPER[mu][s]
            for plane in range(2):
                rows[plane].append(_plus((re[:, s], im[:, s]), (re[:, 2 + p], im[:, 2 + p]), sign * c, plane))
        h = torch.stack([torch.stack(rows[0], 1), torch.stack(rows[1], 1)], 1)  # (n, 2, 2 spins, Nc, sites)
        h = _neighbour(spec, stage, h, mu, by, w)
        u = links[d].to(torch.float32)
        hr, hi = h[:, 0], h[:, 1]
        out_r = out_i = None
        for b in range(spec.nc):
            ur, ui = u[0, :, b], u[1, :, b]
            vr, vi = hr[:, :, b : b + 1], hi[:, :, b : b + 1]
            pr, pi = ur * vr - ui * vi, ur * vi + ui * vr
            out_r, out_i = (pr, pi) if out_r is None else (out_r + pr, out_i + pi)
        up = (out_r, out_i) if up is None else (up[0] + out_r, up[1] + out_i)
        for s in range(2):
            p, c = LOWER[mu][s]
            q = (out_r[:, p], out_i[:, p])
            low[s] = [_plus(None if low[s][0] is None else low[s], q, sign * c, plane) for plane in range(2)]
    return tuple(torch.cat([up[k], torch.stack([low[0][k], low[1][k]], 1)], 1) for k in range(2))


def _fused_hop(spec: GraphSpec, stage: Stage, z, here, w):  # here is part of z
    blocks = w[_links_name(stage)]  # (T, Z, Y, X, 2*4*Nc, 8 * 2*4*Nc)
    rows, volume = 8 * spec.nc, math.prod(spec.sites)

    def gamma5(x):
        return torch.cat([x[:, :, :2], -x[:, :, 2:]], 2)

    full = torch.stack(z, 1)
    if stage.dagger:
        full = gamma5(full)
    centre = full.narrow(4, 1, spec.sites[0]) if spec.ghost else full
    shifted = []
    for mu, gamma_sign in HOPS:
        v = full if (mu == 0 and spec.ghost) else centre
        v = _neighbour(spec, stage, v, mu, -gamma_sign, w)
        shifted.append(v.reshape(spec.n_rhs, rows, volume))
    x = torch.cat(shifted, 1).permute(2, 1, 0)
    y = torch.bmm(blocks.reshape(volume, rows, 8 * rows).to(torch.float32), x)
    y = y.permute(2, 1, 0).reshape(spec.n_rhs, 2, 4, spec.nc, *spec.sites)
    if stage.dagger:
        y = gamma5(y)
    return y[:, 0], y[:, 1]


def _links_name(stage: Stage) -> str:
    return "links" if stage.parity is FULL else f"links{stage.parity}"


# --------------------------------------------------------------------------------------------------------------------
# Weights


def link_weight(links: Links, parity, formulation: str, storage: str) -> torch.Tensor:
    """The eight links of every site of ``parity``, phases, coefficients and the 1/2 folded in.

    Returns
    -------
    torch.Tensor
        ``(8, 2, Nc, Nc, T, Z, Y, X)`` for ``half``, ``(T, Z, Y, X, 8Nc, 64Nc)`` for ``fused``, in the storage's type.
    """
    g = links.geometry
    u = 0.5 * links.folded(np.complex128)
    eight = np.empty((8, *g.shape, g.nc, g.nc), np.complex128)
    for d, (mu, sign) in enumerate(HOPS):
        forward = u[..., mu, :, :]
        eight[d] = forward if sign < 0 else np.roll(forward, 1, axis=mu).conj().swapaxes(-1, -2)
    if parity is not FULL:
        eight = g.split_parity(eight, parity, lead=1)
    if formulation == "half":
        planes = np.stack([eight.real, eight.imag], 1)  # (8, 2, T, Z, Y, X, Nc, Nc)
        return _stored(np.moveaxis(planes, (6, 7), (2, 3)), storage)
    rows = 4 * g.nc
    out = np.empty((*eight.shape[1:5], 2, rows, 8, 2, rows))
    for d, (mu, sign) in enumerate(HOPS):
        m = np.einsum("st,TZYXab->TZYXsatb", np.eye(4) + sign * GAMMA[mu], eight[d])
        m = m.reshape(*eight.shape[1:5], rows, rows)
        out[..., 0, :, d, 0, :], out[..., 0, :, d, 1, :] = m.real, -m.imag
        out[..., 1, :, d, 0, :], out[..., 1, :, d, 1, :] = m.imag, m.real
    return _stored(out.reshape(*eight.shape[1:5], 2 * rows, 16 * rows), storage)


def block_weight(term: SiteDiagonal) -> torch.Tensor:
    """Blocks with everything site-diagonal in them, ``(2, 2, 2Nc, 2Nc, T, Z, Y, X)`` fp32."""
    blocks = np.moveaxis(np.asarray(term.full_blocks()), (4, 5, 6), (0, 1, 2))
    return _stored(np.stack([blocks.real, blocks.imag]), "float32")


def mask_weight(geometry: LatticeGeometry, parity: int) -> torch.Tensor:
    """1 where the row (t, z, y) of ``parity`` holds even x, shape ``(T, Z, Y, 1)`` fp32."""
    t, z, y = np.indices(geometry.shape[:3], sparse=True)
    return torch.from_numpy(((t + z + y + parity) % 2 == 0).astype(np.float32)[..., None])


def _stored(array: np.ndarray, storage: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(STORAGE[storage])


def time_axis(name: str, weight: torch.Tensor, formulation: str) -> int | None:
    """The axis of a weight that runs along t; None for constants."""
    if name.startswith("links"):
        return 0 if formulation == "fused" else weight.dim() - 4
    return None if name.startswith(("scale", "twist")) else weight.dim() - 4


def as_term(term: SiteDiagonal, name: str, weights: dict) -> Term:
    """The graph's term; its numbers go into ``weights`` (as a thunk: they are made when they are needed)."""
    if term.blocks is not None:
        name = f"blocks_{name}"
        weights[name] = lambda: block_weight(term)
        return Term("blocks", name)
    factors = complex(term.scalar) + 1j * term.twist * np.array([1, 1, -1, -1])
    if not factors.imag.any():
        name = f"scale_{name}"
        weights[name] = lambda: _stored(factors.real[:1], "float32")
        return Term("scale", name)
    name = f"twist_{name}"
    weights[name] = lambda: _stored(np.stack([factors.real, factors.imag]).reshape(2, 4, 1, 1, 1, 1, 1), "float32")
    return Term("twist", name)


__all__ = [
    "ALLOWED_DTYPES", "ALLOWED_OPERATORS", "FORMULATIONS", "HOPS", "STORAGE", "Chain", "Graph", "GraphSpec", "Stage", "Term",
    "as_term", "block_weight", "link_weight", "mask_weight", "time_axis",
]  # fmt: skip

r"""The hopping term on real planes, block by block.

.. math:: h = \psi_u + \sigma Q_\mu\psi_l,\qquad r = W h,\qquad \text{upper} \mathrel{+}= r,\qquad
          \text{lower} \mathrel{+}= \sigma Q_\mu^T r

for each direction mu and :math:`\sigma = -1` (forward, :math:`W = \frac12 c_\mu U_\mu(x)` with the boundary phase) or
:math:`\sigma = +1` (backward, :math:`W^\dagger(x-\hat\mu)`). In a chiral basis
:math:`\gamma_\mu = \begin{pmatrix}0&B\\B^\dagger&0\end{pmatrix}`, and on the four real planes (re and im of two
spins) B is a signed permutation Q: projecting and reconstructing are additions of whole planes, and a product by a
link is 3 Nc multiply-adds of long rows. The factor 1/2 is folded into the links (exact in binary), so nothing is left
to do at the end.

A block is a few time slices, or a few z planes of one. Neighbours in a direction that the block does not span are just
another block of psi; neighbours inside are a copy of 4 Nc planes at a shifted site index, with the wrapped edge copied
again. Per site and Nc = 3: 1320 flops; 8 x (72 multiply-adds + 12 projection + 24 reconstruction) + 4 x 12 shifted
copies = 912 passes of one real number, each two or three reads and a write, from the second-level cache. Those passes,
and 2 to 3 microseconds to start each of the 130 operations of a block, are the bound: 288 bytes of links and 192 of
spinors (single) per site from memory are not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import attrs
import numpy as np
import torch

from lqcd_core.gamma import GAMMA

BLOCK = 16384
"""Sites x columns of a block, per thread: an operation then lasts some 30 microseconds, ten times what starting it (and
gathering torch's threads again) costs. Larger blocks leave the caches."""


def _signed_permutation(mu: int) -> list[tuple[int, float]]:
    """Row k of Q: its one column and sign; planes 0..3 are re, im of spin 0 and re, im of spin 1."""
    b = GAMMA[mu][:2, 2:]
    q = np.zeros((4, 4))
    for s in range(2):
        for p in range(2):
            q[2 * s : 2 * s + 2, 2 * p : 2 * p + 2] = [[b[s, p].real, -b[s, p].imag], [b[s, p].imag, b[s, p].real]]
    return [(int(np.flatnonzero(row)[0]), float(row[np.flatnonzero(row)[0]])) for row in q]


def _grouped(rows: list[tuple[int, float]]) -> tuple[tuple[slice, slice, float], ...]:
    """Q as few (upper planes, lower planes, sign): planes of one sign whose columns ascend go together."""
    if all(row == (k, rows[0][1]) for k, row in enumerate(rows)):
        return ((slice(0, 4), slice(4, 8), rows[0][1]),)
    groups, left = [], list(range(4))
    while left:
        first = left.pop(0)
        column, sign = rows[first]
        mate = next((k for k in left if rows[k][1] == sign and rows[k][0] > column), None)
        if mate is None:
            groups.append((slice(first, first + 1), slice(4 + column, 5 + column), sign))
            continue
        left.remove(mate)
        upper = slice(first, mate + 1, mate - first)
        lower = slice(4 + column, 5 + rows[mate][0], rows[mate][0] - column)
        groups.append((upper, lower, sign))
    return tuple(groups)


GROUPS = tuple(_grouped(_signed_permutation(mu)) for mu in range(4))
"""Per direction: (planes of h and psi_u, planes of psi_l counted from psi's first, sign)."""

UPPER = slice(0, 4, None)
"""Planes of the upper two spins."""


@attrs.frozen(eq=False)
class Task:
    """One direction of one block, or the part of it on one side of a boundary."""

    mu: int
    """Direction 0..3."""
    forward: bool
    """True for psi(x + mu)."""
    source: int
    """First site of psi that is read."""
    target: int
    """First site that is written."""
    links: int
    """First site of the links used."""
    sites: int
    """Number of sites."""
    shift: tuple[int, int] | None
    """(stride, extent) of a shift inside the block, None where the source is another block."""
    face: bool = False
    """True where the source is a face of half spinors; ``source`` is then a site of the face."""


def _pieces(start: int, count: int, step: int, extent: int) -> Iterator[tuple[int, int, int]]:
    """(source, offset in the block, count) of the range moved by step around a periodic extent."""
    done = 0
    while done < count:
        source = (start + done + step) % extent
        take = min(count - done, extent - source)
        yield source, done, take
        done += take


def _open_pieces(start: int, count: int, step: int, extent: int) -> Iterator[tuple[int | None, int, int]]:
    """As :func:`_pieces` where the direction ends at both edges; source None is what lies beyond one."""
    inside = [k for k in range(start, start + count) if 0 <= k + step < extent]
    if step < 0 and start == 0:
        yield None, 0, 1
    if inside:
        yield inside[0] + step, inside[0] - start, len(inside)
    if step > 0 and start + count == extent:
        yield None, count - 1, 1


def plan(
    sites: tuple[int, ...], budget: int, times: tuple[int, int] | None = None
) -> list[tuple[int, int, list[Task]]]:
    """(first site, sites, tasks) of every block, for about ``budget`` sites a block (at least one z plane).

    With ``times`` only the slices times[0] .. times[1]-1 are covered, and t ends at the edges of ``sites``.
    """
    T, Z, Y, X = sites
    plane, piece = Y * X, Z * Y * X
    begin, end = times or (0, T)
    span = end - begin
    if budget >= piece:
        per = -(-span // -(-span // min(span, budget // piece)))
        blocks = [(t, min(per, end - t), 0, Z) for t in range(begin, end, per)]  # (t, number of t, z, number of z)
    else:
        per = -(-Z // -(-Z // max(1, budget // plane)))
        blocks = [(t, 1, z, min(per, Z - z)) for t in range(begin, end) for z in range(0, Z, per)]
    strides, tasks = (piece, plane, X, 1), []
    for t, nt, z, nz in blocks:
        first, count = t * piece + z * plane, nt * nz * plane
        spans = (nt == T and times is None, nz == Z, True, True)
        block = []
        for mu in range(4):
            cut = mu == 0 and times is not None
            for step in (1, -1):
                if not cut and (sites[mu] == 1 or spans[mu]):
                    shift = None if sites[mu] == 1 else (strides[mu], sites[mu])
                    block.append(Task(mu, step > 0, first, first, first, count, shift))
                    continue
                start, number = ((t, nt), (z, nz))[mu]
                pieces = _open_pieces if cut else _pieces
                for source, offset, take in pieces(start, number, step, sites[mu]):
                    writes = first + offset * strides[mu]
                    taken = take * count // number
                    if source is None:  # a face is one slice: its sites count from its own beginning
                        block.append(Task(0, step > 0, z * plane, writes, writes, taken, None, face=True))
                        continue
                    reads = first + (source - start) * strides[mu]
                    block.append(Task(mu, step > 0, reads, writes, writes if step > 0 else reads, taken, None))
        tasks.append((first, count, block))
    return tasks


class _HalfSpinors:
    """Half spinors of one task, with every view of them: making a view costs as much as a short operation."""

    def __init__(self, n: int, nc: int, sites: int, dtype, device, wide_links: bool):
        shape = (n, 4, nc, sites)
        self.h, self.r, self.g = (_Planes(torch.empty(shape, dtype=dtype, device=device)) for _ in range(3))
        self.links = None
        if wide_links:
            self.links = torch.empty((2, nc, nc, sites), dtype=dtype, device=device)
            self.link_views = {forward: link_views(self.links, forward) for forward in (True, False)}


class _Planes:
    """Four planes and their parts: whole, re, im, by colour, by group of each direction."""

    def __init__(self, v: torch.Tensor):
        self.all, self.re, self.im = v, v[:, 0::2], v[:, 1::2]
        self.colours = [(v[:, :, b, None], self.re[:, :, b, None], self.im[:, :, b, None]) for b in range(v.shape[2])]
        self.upper = [[v[:, upper] for upper, _, _ in groups] for groups in GROUPS]


class _Spinor:
    """Eight planes and the parts that a direction reads or writes; each is made when first asked for."""

    def __init__(self, v: torch.Tensor):
        self.all, self._kept = v, {}

    def __getitem__(self, planes: slice) -> torch.Tensor:
        key = (planes.start, planes.stop, planes.step)
        if key not in self._kept:
            self._kept[key] = self.all[:, planes]
        return self._kept[key]


def link_views(links: torch.Tensor, forward: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(re, im) of each column b of U (forward) or of the transpose (backward), from ``(2, Nc, Nc, sites)``."""
    re, im = links.unbind(0)
    axis = 1 if forward else 0
    return list(zip(re.unbind(axis), im.unbind(axis), strict=True))


class HoppingKernel:
    """H landing on some sites, without gradients.

    Parameters
    ----------
    here, there
        Folded links times 1/2 as planes ``(4, 2, Nc, Nc, sites)`` in storage type, on the sites that are written and
        on the sites that are read (the same tensor on the full lattice).
    sites
        Extents (T, Z, Y, X or X/2).
    even_x
        None on the full lattice; on one parity a mask ``(sites,)``, True where the written site has even x.
    real
        Type of the arithmetic.
    chunk
        Sites x columns per block, None to choose.
    local
        Where buffers of a thread are kept.
    """

    def __init__(self, here, there, sites, even_x, real, chunk: int | None, local: threading.local):
        self.here, self.there, self.sites, self.even_x, self.real = here, there, sites, even_x, real
        self.chunk, self.nc = chunk, here.shape[2]
        self.plans: dict[int, list] = {}
        self.local = local

    def __call__(self, psi: torch.Tensor, dagger: bool = False, start=None, dtype=None) -> torch.Tensor:
        """H psi (H^dagger psi if dagger), a new tensor of planes ``(n, 8, Nc, sites)`` of ``dtype`` (default psi's).

        With ``start`` the result is (start - H psi): ``start(columns, first, block, out)`` fills the buffer ``out`` of
        a block for those columns and sites from ``first`` on, while all is in the cache; ``block`` is psi there.
        """
        n, psi = psi.shape[0], psi.detach()
        result = torch.empty(psi.shape, dtype=dtype or psi.dtype, device=psi.device)
        budget = self.chunk or self._budget(psi.device)
        blocks = self._plan(budget)
        at_once = max(1, min(n, budget // blocks[0][1]))
        for first, count, tasks in blocks:
            for c in range(0, n, at_once):
                columns = slice(c, min(c + at_once, n))
                source, block, out = psi[columns], *self._block_buffers(columns.stop - c, count)
                block.all.copy_(source.narrow(3, first, count))
                if start is not None:
                    start(columns, first, block.all, out.all)
                for task, links in tasks:
                    self._task(task, links, source, block, out, first, dagger, start is None)
                result[columns].narrow(3, first, count).copy_(out.all)
        return result

    def _budget(self, device) -> int:
        return BLOCK * torch.get_num_threads() if device.type == "cpu" else 1 << 20

    def _plan(self, budget: int) -> list:
        if budget not in self.plans:
            same = self.here.dtype == self.real
            self.plans[budget] = [
                (first, count, [(k, link_views(self._links(k), k.forward) if same else None) for k in tasks])
                for first, count, tasks in plan(self.sites, budget)
            ]
        return self.plans[budget]

    def _links(self, task: Task) -> torch.Tensor:
        links = self.here if task.forward else self.there
        return links[task.mu, ..., task.links : task.links + task.sites]

    def _kept(self, kind: str, n: int, sites: int, make):
        """Buffers of this thread, shared by all operators of a backend: no two calls of a thread overlap."""
        kept = self.local.__dict__
        key = (kind, n, sites, self.nc, self.real, self.here.dtype)
        if key not in kept:
            if len(kept) >= 24:
                kept.clear()
            kept[key] = make()
        return kept[key]

    def _block_buffers(self, n: int, sites: int) -> tuple[_Spinor, _Spinor]:
        def make():
            shape = (n, 8, self.nc, sites)
            return tuple(_Spinor(torch.empty(shape, dtype=self.real, device=self.here.device)) for _ in range(2))

        return self._kept("block", n, sites, make)

    def _half_spinors(self, n: int, sites: int) -> _HalfSpinors:
        wide = self.here.dtype != self.real
        return self._kept("half", n, sites, lambda: _HalfSpinors(n, self.nc, sites, self.real, self.here.device, wide))

    def _task(
        self, task: Task, links, psi, block: _Spinor, out: _Spinor, first: int, dagger: bool, fresh: bool
    ) -> None:
        """Add one direction to the block's buffer ``out``."""
        mu, n = task.mu, psi.shape[0]
        work = self._half_spinors(n, task.sites)
        sigma = -1.0 if task.forward != dagger else 1.0
        source = block
        if task.source != first or task.sites != block.all.shape[3]:
            source = _Spinor(psi.narrow(3, task.source, task.sites).to(self.real))
        self._project(source, mu, sigma, work.h)
        h, r = work.h, work.r
        if task.shift and task.forward:
            self._shift(h.all, work.g.all, task)
            h = work.g
        self._multiply(task, links, work, h)
        if task.shift and not task.forward:
            self._shift(r.all, work.g.all, task)
            r = work.g
        self._add(task, sigma, r, out, first, fresh)

    @staticmethod
    def _project(source: _Spinor, mu: int, sigma: float, h: _Planes) -> None:
        """h = psi_u + sigma Q psi_l."""
        for (upper, lower, sign), part in zip(GROUPS[mu], h.upper[mu], strict=True):
            torch.add(source[upper], source[lower], alpha=sigma * sign, out=part)

    def _multiply(self, task: Task, links, work: _HalfSpinors, h: _Planes) -> None:
        """work.r = W h, or W^dagger h for a backward task."""
        r = work.r
        if links is None:
            work.links.copy_(self._links(task))
            links = work.link_views[task.forward]
        turn = 1.0 if task.forward else -1.0
        for b, ((re, im), (h_b, h_re, h_im)) in enumerate(zip(links, h.colours, strict=True)):
            if b == 0:
                torch.mul(re, h_b, out=r.all)
            else:
                r.all.addcmul_(re, h_b)
            r.re.addcmul_(im, h_im, value=-turn)
            r.im.addcmul_(im, h_re, value=turn)

    @staticmethod
    def _add(task: Task, sigma: float, r: _Planes, out: _Spinor, first: int, fresh: bool) -> None:
        """Reconstruct r into the block's buffer; the first direction of a fresh one overwrites it."""
        mu, target = task.mu, out
        if task.sites != out.all.shape[3]:
            target = _Spinor(out.all.narrow(3, task.target - first, task.sites))
        if fresh and mu == 0 and task.forward:
            target[UPPER].copy_(r.all)
            for (_, lower, sign), part in zip(GROUPS[mu], r.upper[mu], strict=True):
                torch.mul(part, sigma * sign, out=target[lower])
            return
        scale = 1.0 if fresh else -1.0
        target[UPPER].add_(r.all, alpha=scale)
        for (_, lower, sign), part in zip(GROUPS[mu], r.upper[mu], strict=True):
            target[lower].add_(part, alpha=scale * sigma * sign)

    def _shift(self, a: torch.Tensor, out: torch.Tensor, task: Task) -> None:
        """out(x) = a(x + mu) or a(x - mu) within the block; both ``(n, 4, Nc, sites)``."""
        stride, extent = task.shift
        forward = task.forward
        rows = (*a.shape[:3], -1, extent, stride)
        edge, other = (extent - 1, 0) if forward else (0, extent - 1)
        if self.even_x is not None and task.mu == 3:
            # On one parity the neighbour in x sits at the same k or at k +- 1, by the parity of the row.
            here = self.even_x.narrow(0, task.target, task.sites)
            if not forward:
                here = ~here
            a_rows = a.view(rows)
            edges = torch.where(here.view(-1, extent)[:, edge], a_rows[..., edge, 0], a_rows[..., other, 0])
            if forward:
                torch.where(here[:-1], a[..., :-1], a[..., 1:], out=out[..., :-1])
            else:
                torch.where(here[1:], a[..., 1:], a[..., :-1], out=out[..., 1:])
            out.view(rows)[..., edge, 0] = edges
            return
        if forward:
            out[..., : task.sites - stride] = a[..., stride:]
        else:
            out[..., stride:] = a[..., : task.sites - stride]
        out.view(rows)[..., edge, :] = a.view(rows)[..., other, :]

r"""Device layouts of the NKI kernels: spinors, links and site-diagonal terms packed on the host, and back. NumPy only.

Two formulations, two layouts:

* ``vector`` (kernel A): ``(n_rhs, T, Z, Y, 24, X)``, component 6 spin + 3 (re, im) + colour before x, so that one instruction
  covers components, rows and x. Partitions are blocks of rows (t, z, y). Eight links per site, backward ones shifted and
  conjugated: ``(groups, P, 8, 18, S)``, S = sites of one partition.
* ``tensor`` (kernel B): ``(24 nodes, T', Z', Y', X, n_rhs)``, component 6 spin + 2 colour + (re, im) on partitions, up to four
  virtual nodes. Per site and direction one real block :math:`S = \frac12 c\,(1\mp\gamma_\mu)\otimes U`, source rows first:
  ``(rows, sites, 8, columns)``.

Directions are numbered 2 mu + (0 forward, 1 backward), mu = t, z, y, x. The factor 1/2, coefficients and boundary phases are
in the links, so any complex phase works and no kernel knows of it.
"""

from __future__ import annotations

import math
from functools import cached_property

import attrs
import numpy as np

from lqcd_core.backend import Links, SiteDiagonal
from lqcd_core.errors import FieldShapeError, GeometryError, ParameterError
from lqcd_core.gamma import GAMMA, GAMMA5_SIGNS
from lqcd_core.geometry import FULL, LatticeGeometry

from . import window
from .compile_worker import array_type
from .window import divisors

PARTITIONS = 128
STORAGE = ("float32", "bfloat16", "float16")
"""Storage types of spinors and links."""
SBUF_BYTES = {2: 180224, 3: 212984, 4: 245752}
"""Usable bytes per partition by generation."""
SHIFTS = tuple((mu, sign) for mu in range(4) for sign in (+1, -1))
"""(direction, side of the neighbour) in the order of the packed links."""


def cast(array: np.ndarray, dtype: str) -> np.ndarray:
    """A contiguous array of a storage type; every rounding to 16 bits on the host is this one."""
    return np.ascontiguousarray(array.astype(np.float32, copy=False).astype(array_type(dtype), copy=False))


def why_not(geometry: LatticeGeometry, n_rhs: int = 1) -> str | None:
    """None if the kernels take this lattice and number of right-hand sides, else the reason, a clause."""
    if geometry.nc != 3:
        return f"has kernels for Nc = 3 only (asked: Nc = {geometry.nc})"
    if not 1 <= n_rhs <= 512:
        return f"takes 1 to 512 right-hand sides, one PSUM bank of float32 (asked: {n_rhs})"
    return None


def real_block(matrix: np.ndarray) -> np.ndarray:
    """Complex ``(..., m, n)`` as real ``(..., 2m, 2n)``, (re, im) innermost on both axes."""
    out = np.empty((*matrix.shape[:-2], matrix.shape[-2], 2, matrix.shape[-1], 2), matrix.real.dtype)
    out[..., 0, :, 0] = out[..., 1, :, 1] = matrix.real
    out[..., 0, :, 1], out[..., 1, :, 0] = -matrix.imag, matrix.imag
    return out.reshape(*matrix.shape[:-2], 2 * matrix.shape[-2], 2 * matrix.shape[-1])


def eight_links(links: Links, target) -> np.ndarray:
    r"""The matrices that a site multiplies its eight neighbours with, ``(8, T, Z, Y, X, 3, 3)``, target's sites only.

    Forward :math:`\frac12 c_\mu U_\mu(x)`, backward :math:`\frac12 c_\mu U_\mu^\dagger(x-\hat\mu)`.
    """
    u = 0.5 * links.folded(np.complex128)
    out = [
        u[..., mu, :, :] if sign > 0 else np.roll(u[..., mu, :, :], 1, axis=mu).conj().swapaxes(-1, -2)
        for mu, sign in SHIFTS
    ]
    return np.stack([a if target is FULL else links.geometry.split_parity(a, target) for a in out])


@attrs.frozen(kw_only=True, slots=False)
class VectorLayout:
    """The layout of one batch of spinors in device memory, and of what acts on it."""

    geometry: LatticeGeometry
    """The whole lattice."""
    parity: int | None = FULL
    """FULL, 0 or 1."""
    n_rhs: int = 1
    """Right-hand sides, at least 1."""
    dtype: str = "float32"
    """Storage of spinors: float32, bfloat16, float16."""
    link_dtype: str = "float32"
    """Storage of links and blocks. float32 goes with float32 spinors only (a rule of the tensor engine)."""
    formulation: str = attrs.field(default="vector", validator=attrs.validators.in_(("vector", "tensor")))
    """``vector`` (kernel A) or ``tensor`` (kernel B)."""
    generation: int = attrs.field(default=3, validator=attrs.validators.in_((2, 3, 4)))
    """NeuronCore generation."""
    window_share: float = 0.95
    """Kernel B: the share of SBUF that a walk with a window may take; 0 for none (see window.py)."""

    def __attrs_post_init__(self):
        for what in (self.dtype, self.link_dtype):
            if what not in STORAGE:
                raise ParameterError(f"no storage type {what!r} on the device; there are {', '.join(STORAGE)}.")
        reason = why_not(self.geometry, self.n_rhs)
        if reason:
            raise GeometryError(f"backend 'neuron-nki' {reason}.")
        if self.parity is not FULL:
            self.geometry._need_parity()
        if self.formulation == "tensor" and (self.dtype == "float32") != (self.link_dtype == "float32"):
            raise ParameterError(
                f"the tensor engine pairs float32 with float32 only; asked: {self.link_dtype} links with {self.dtype} spinors."
            )

    # -- shapes -------------------------------------------------------------------------------------------------------

    @cached_property
    def sites(self) -> tuple[int, int, int, int]:
        """Extents of the stored sites: X is halved on one parity."""
        t, z, y, x = self.geometry.shape
        return (t, z, y, x if self.parity is FULL else x // 2)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the device tensor of a batch."""
        t, z, y, x = self.sites
        if self.formulation == "vector":
            return (self.n_rhs, t, z, y, 24, x)
        return (24 * math.prod(self.nodes), *self.inner, self.n_rhs)

    @cached_property
    def nodes(self) -> tuple[int, int, int, int]:
        """Virtual nodes per axis (kernel B): at most two axes of t, z, y are halved; parity needs even halves."""
        out, step = [1, 1, 1, 1], 2 if self.parity is FULL else 4
        for mu in range(3):
            if self.geometry.shape[mu] % step == 0 and math.prod(out) < 4:
                out[mu] = 2
        return tuple(out)

    @cached_property
    def inner(self) -> tuple[int, int, int, int]:
        """Extents of the stored sites of one virtual node."""
        return tuple(n // v for n, v in zip(self.sites, self.nodes, strict=True))

    @cached_property
    def slots(self) -> tuple[int, int]:
        """(array tiles side by side, nodes in each): one node per 32x32 tile from gen3, up to two per 64x64 tile on gen2."""
        v = math.prod(self.nodes)
        return (v, 1) if self.generation >= 3 else (min(v, 2), max(1, v // 2))

    @cached_property
    def demand(self) -> window.Demand:
        """Kernel B: what its walk has to serve."""
        w, wl = (array_type(d).itemsize for d in (self.dtype, self.link_dtype))
        return window.Demand(
            inner=self.inner, n_rhs=self.n_rhs, width=w, link_width=wl, sub=self.slots[1], slots=self.slots[0],
            halves=self.parity is not FULL,
        )  # fmt: skip

    @cached_property
    def walk(self) -> window.Walk:
        """Kernel B: chunks of rows of x, and the window of spinors in SBUF; 0 rows if nothing fits."""
        return window.choose(self.demand, SBUF_BYTES[self.generation], self.window_share)

    def why_not(self, kind: str = "scalar") -> str | None:
        """None if the kernels of this layout, with a diagonal of this kind, fit the core; else what to change."""
        size = max(self.nbytes, math.prod(self.links_shape) * array_type(self.link_dtype).itemsize)
        if size >= 1 << 32:
            return f"a tensor of {size} B is beyond the 32-bit addresses of a kernel (4294967296 B); use fewer right-hand sides or more shards"
        if self.formulation == "vector":
            need, there = self._need(self.block[3], 1, kind == "blocks"), SBUF_BYTES[self.generation]
            if need > there:
                return f"rows of {self.sites[3]} sites need {need} B of a partition, which has {there} B; cut the lattice in x or use 16-bit storage"
        elif not self.walk.rows:
            return (
                f"{self.n_rhs} right-hand sides of {self.dtype} on rows of {self.inner[3]} sites do not fit "
                f"{SBUF_BYTES[self.generation]} B of a partition twice; use fewer at a time or 16-bit storage"
            )
        return None

    @cached_property
    def block(self) -> tuple[int, int, int, int]:
        """Kernel A: (nt, nz, ny, rows): nt nz ny <= 128 partitions with ``rows`` rows of x each, all dividing the extents."""
        t, z, y, x = self.sites
        even = self.parity is not FULL
        wanted = max(1, 64 // x) if self.generation > 2 else max(1, 32 // x)
        best = None
        for nt in divisors(t):
            for nz in divisors(z):
                for ny in divisors(y):
                    for rows in divisors(y // ny):
                        p = nt * nz * ny
                        if p > PARTITIONS or (even and (nt % 2 or nz % 2 or (ny * rows) % 2)):
                            continue
                        if rows > 1 and self._need(rows) > 0.95 * SBUF_BYTES[self.generation]:
                            continue
                        # Fewest partition-cycles first; among equals, rows of the wanted length, then contiguous y.
                        score = (p * min(rows, wanted), rows <= wanted, rows, -ny)
                        if best is None or score > best[0]:
                            best = (score, (nt, nz, ny, rows))
        return best[1]

    def _need(self, rows: int, link_buffers: int = 2, blocks: bool = True) -> int:
        """Kernel A: bytes per partition of all tiles for so many rows of x."""
        w, wl = (array_type(d).itemsize for d in (self.dtype, self.link_dtype))
        row, s, own = 24 * self.sites[3], rows * self.sites[3], 0 if self.parity is FULL else 1
        spinors = 2 * w * row * ((rows + 2) + 4 * rows + own * rows + rows)
        need = spinors + link_buffers * 144 * s * wl + 4 * s * (36 + 72 + 24) + 64
        return need + (s * (144 * wl + 4 * 24) if blocks else 0)

    @property
    def link_buffers(self) -> int:
        """Kernel A: 2, or 1 where rows of x are so long that two buffers of links do not fit."""
        return 2 if self._need(self.block[3]) <= SBUF_BYTES[self.generation] else 1

    @cached_property
    def groups(self) -> tuple[int, int, int]:
        """Kernel A: blocks per axis t, z, y."""
        (t, z, y, _), (nt, nz, ny, rows) = self.sites, self.block
        return (t // nt, z // nz, y // (ny * rows))

    @property
    def links_shape(self) -> tuple[int, ...]:
        """Shape of the packed links."""
        if self.formulation == "vector":
            nt, nz, ny, rows = self.block
            return (math.prod(self.groups), nt * nz * ny, 8, 18, rows * self.sites[3])
        slots, sub = self.slots
        return (24 * sub * slots, math.prod(self.inner), 8, 24 * sub)

    def diagonal_shape(self, kind: str) -> tuple[int, ...]:
        """Shape of the packed diagonal: ``blocks``, or ``twist`` (kernel B; kernel A has it among the scalars)."""
        if self.formulation == "vector":
            groups, p, _, _, s = self.links_shape
            return (groups, p, 2, 2, 36, s)
        rows, sites, _, columns = self.links_shape
        return (rows, sites if kind == "blocks" else 1, columns)

    @property
    def nbytes(self) -> int:
        """Bytes of one batch."""
        return math.prod(self.shape) * array_type(self.dtype).itemsize

    # -- spinors ------------------------------------------------------------------------------------------------------

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Host ``(n, T, Z, Y, X, 4, 3)`` complex to the device layout, rounded to its storage.

        Raises
        ------
        FieldShapeError
            If the shape is another one.
        """
        array = np.asarray(array)
        want = (self.n_rhs, *self.sites, 4, 3)
        if array.shape != want:
            raise FieldShapeError(
                f"cannot pack an array of shape {array.shape}: this layout holds (n, T, Z, Y, X, 4, 3) = {want}."
            )
        parts = np.stack([array.real, array.imag]).astype(np.float32)  # ri, n, t, z, y, x, s, c
        if self.formulation == "vector":
            return cast(parts.transpose(1, 2, 3, 4, 6, 0, 7, 5).reshape(self.shape), self.dtype)
        site = self._split(parts.transpose(2, 3, 4, 5, 6, 7, 0, 1))  # nodes, inner, s, c, ri, n
        return cast(np.moveaxis(site, (5, 6, 7), (1, 2, 3)).reshape(self.shape), self.dtype)

    def unpack(self, tensor: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`pack`: complex64 ``(n, T, Z, Y, X, 4, 3)``."""
        wide = np.asarray(tensor).astype(np.float32).reshape(self.shape)
        t, z, y, x = self.sites
        if self.formulation == "vector":
            parts = wide.reshape(self.n_rhs, t, z, y, 4, 2, 3, x).transpose(5, 0, 1, 2, 3, 7, 4, 6)
        else:
            split = wide.reshape(math.prod(self.nodes), 4, 3, 2, *self.inner, self.n_rhs)
            parts = self._join(np.moveaxis(split, (1, 2, 3), (5, 6, 7))).transpose(6, 7, 0, 1, 2, 3, 4, 5)
        return np.ascontiguousarray(parts[0] + 1j * parts[1]).astype(np.complex64)

    def _split(self, a: np.ndarray) -> np.ndarray:
        """``(T, Z, Y, X, ...)`` to ``(nodes, T', Z', Y', X', ...)``."""
        pairs = [n for v, m in zip(self.nodes, self.inner, strict=True) for n in (v, m)]
        a = a.reshape(*pairs, *a.shape[4:])
        tail = tuple(range(8, a.ndim))
        return a.transpose(0, 2, 4, 6, 1, 3, 5, 7, *tail).reshape(math.prod(self.nodes), *self.inner, *a.shape[8:])

    def _join(self, a: np.ndarray) -> np.ndarray:
        a = a.reshape(*self.nodes, *self.inner, *a.shape[5:])
        tail = tuple(range(8, a.ndim))
        return a.transpose(0, 4, 1, 5, 2, 6, 3, 7, *tail).reshape(*self.sites, *a.shape[8:])

    # -- operators ----------------------------------------------------------------------------------------------------

    def pack_links(self, links: Links) -> np.ndarray:
        """Packed links of the hop that lands on this layout's sites, for M and M^dagger alike."""
        self.geometry.check_links(links.array.shape)
        eight = eight_links(links, self.parity)
        if self.formulation == "vector":
            parts = np.stack([eight.real, eight.imag])  # ri, dir, t, z, y, x, a, b
            sites = np.moveaxis(parts, (1, 0, 6, 7), (4, 5, 6, 7)).reshape(*self.sites, 8, 18)
            return cast(self._to_groups(sites).reshape(self.links_shape), self.link_dtype)
        out = np.zeros(self.links_shape, np.float32)
        for d, (mu, sign) in enumerate(SHIFTS):
            spin = np.eye(4) - sign * GAMMA[mu]
            s = np.einsum("st,...cd->...sctd", spin, eight[d]).reshape(*self.sites, 12, 12)
            self._place(out[:, :, d], real_block(s).swapaxes(-1, -2), mu, sign)
        return cast(out, self.link_dtype)

    def _to_groups(self, sites: np.ndarray) -> np.ndarray:
        """``(T, Z, Y, X, ...)`` to ``(groups, P, ..., S)``."""
        (gt, gz, gy), (nt, nz, ny, rows), x = self.groups, self.block, self.sites[3]
        k = sites.ndim - 4
        a = sites.reshape(gt, nt, gz, nz, gy, ny, rows, x, *sites.shape[4:])
        a = a.transpose(0, 2, 4, 1, 3, 5, *range(8, 8 + k), 6, 7)
        return a.reshape(gt * gz * gy, nt * nz * ny, *sites.shape[4:], rows * x)

    def _place(self, out: np.ndarray, blocks: np.ndarray, mu: int | None, sign: int) -> None:
        """Put blocks ``(T, Z, Y, X, source 24, target 24)`` at the rows of the node that the neighbour lives in.

        ``out`` is ``(rows, sites, columns)``. Where the neighbour is in another node the block leaves the diagonal: the
        kernel then reads another array tile (gen3), or the block sits off the diagonal of the tile (gen2).
        """
        sub = self.slots[1]
        split = self._split(blocks)  # node, inner, 24, 24
        coordinate = np.indices(self.inner)
        for j in range(math.prod(self.nodes)):
            here = np.array(np.unravel_index(j, self.nodes))
            crosses = np.zeros(self.inner, bool)
            if mu is not None and self.nodes[mu] > 1:
                crosses = coordinate[mu] == (self.inner[mu] - 1 if sign > 0 else 0)
            for crossing in (False, True):
                there = here.copy()
                if crossing:
                    there[mu if mu is not None else 0] ^= 1
                at = (crosses == crossing).reshape(-1)
                if not at.any():
                    continue
                i = int(np.ravel_multi_index(there, self.nodes))
                columns = slice(24 * (j % sub), 24 * (j % sub) + 24)
                out[24 * i : 24 * i + 24, at, columns] = split[j].reshape(-1, 24, 24)[at].transpose(1, 0, 2)

    def diagonal_kind(self, term: SiteDiagonal) -> str:
        """``scalar``, ``twist`` or ``blocks``."""
        if term.blocks is not None:
            return "blocks"
        return "twist" if term.twist else "scalar"

    def pack_diagonal(self, term: SiteDiagonal) -> np.ndarray | None:
        r"""The term without its scalar, or None where the scalars say all.

        Blocks hold :math:`B(x) + i\mu\gamma_5`; the scalar stays out of them, in float32, so that 16-bit storage does not
        round the mass. For :math:`M^\dagger` pack ``term.dagger()``. The blocks are on this layout's parity.
        """
        kind = self.diagonal_kind(term)
        if kind == "scalar" or (kind == "twist" and self.formulation == "vector"):
            return None
        if kind == "blocks":
            want = (*self.sites, 2, 6, 6)
            if term.blocks.shape != want:
                raise FieldShapeError(
                    f"blocks have the shape {term.blocks.shape}, but this layout's sites need {want}; use term.on_parity()."
                )
            chiral = term.blocks + 1j * term.twist * np.array([1.0, -1.0])[:, None, None] * np.eye(6)
            chiral = chiral + 1j * np.imag(term.scalar) * np.eye(6)
        else:
            chiral = np.broadcast_to(
                1j * term.twist * np.array([1.0, -1.0])[:, None, None] * np.eye(6), (*self.sites, 2, 6, 6)
            )
        if self.formulation == "vector":
            parts = np.moveaxis(np.stack([chiral.real, chiral.imag]), 0, 5).reshape(*self.sites, 2, 2, 36)
            return cast(self._to_groups(parts), self.link_dtype)
        full = np.zeros((*self.sites, 12, 12), complex)
        full[..., :6, :6], full[..., 6:, 6:] = chiral[..., 0, :, :], chiral[..., 1, :, :]
        out = np.zeros(self.diagonal_shape("blocks"), np.float32)
        self._place(out, -real_block(full).swapaxes(-1, -2), None, 0)
        return cast(out if kind == "blocks" else out[:, :1], self.link_dtype)

    def pack_scalars(self, scalar: complex = 0.0, twist: float = 0.0) -> np.ndarray:
        """float32 ``(128, 8)``: s, mu, -mu, sign of gamma5, its negative, and (parity) which rows start at even x."""
        out = np.zeros((PARTITIONS, 8), np.float32)
        out[:, 0], out[:, 1], out[:, 2] = np.real(scalar), twist, -twist
        if self.formulation == "vector":
            if self.parity is not FULL:
                nt, nz, ny, rows = self.block
                t, z, y = np.indices((nt, nz, ny))
                even = ((t + z + y * rows + self.parity) % 2 == 0).reshape(-1)
                out[: even.size, 5], out[: even.size, 6] = even, ~even
        else:
            slots, sub = self.slots
            for j in range(slots * sub):
                start = (PARTITIONS // 4 if self.generation >= 3 else PARTITIONS // 2) * (j // sub) + 24 * (j % sub)
                out[start : start + 24, 3] = np.repeat(GAMMA5_SIGNS, 6)
            out[:, 4] = -out[:, 3]
        return out

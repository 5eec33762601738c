r"""The backend ``native``: what the core asks for, put together from compiled kernels.

Every operator is one or two passes of the hopping kernel with an epilogue, so that no field exists that need not:

.. math:: M = A - H,\qquad M^\dagger = A^\dagger - \gamma_5 H\gamma_5
.. math:: \hat M_{\rm asym} = A_p - H_{pq}(A_q^{-1}H_{qp}),\qquad \hat M_{\rm sym} = 1 - A_p^{-1}H_{pq}(A_q^{-1}H_{qp})

where the bracket is one pass and the rest another; gamma5 H gamma5 is the same kernel with the projectors exchanged.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from lqcd_core.backend import DiracTerms, Handle, Links, Request, SiteDiagonal
from lqcd_core.errors import BackendUnavailable, NonUnitaryLinksError
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision

from . import _native, tune
from .plugin import INSTRUCTION_SETS
from .space import NativeSpace

ISA_VARIABLE = "LQCD_NATIVE_ISA"
"""Environment variable that forces an instruction set."""
NARROWER = {"avx512": "avx2"}
"""What waits less for memory: measured on a Zen 4, see PERFORMANCE.md."""
FROM_MEMORY = 2**20
"""Bytes of links a time slice above which they are taken to come from memory."""


class NativeBackend:
    """See the module.

    Parameters
    ----------
    threads, isa, block, tile, stores, prefetch, links
        See ``lqcd backends -v``, or the record in :mod:`lqcd_native.plugin`.

    Raises
    ------
    BackendUnavailable
        If the processor runs none of the instruction sets built, or not the one that is forced.
    """

    def __init__(self, threads=None, isa=None, block=None, tile=None, stores="auto", prefetch="auto", links="full"):
        self.threads = threads or default_threads()
        self.isa = choose_isa(isa)
        forced = isa or os.environ.get(ISA_VARIABLE, "").strip()
        narrower = NARROWER.get(self.isa)
        self._narrow = narrower if not forced and narrower in _native.instruction_sets(True) else None
        self._block, self._tile, self._stores, self._prefetch = block, tile, stores, prefetch
        self._two_rows = links == "two-row"
        self._lock = threading.Lock()
        self._tuned: dict[str, tune.Schedule] = {}
        self._layouts: Any = weakref.WeakValueDictionary()
        self._links: Any = weakref.WeakValueDictionary()
        self._diagonals: Any = weakref.WeakKeyDictionary()
        self._gauge: Any = None

    # -- spaces -------------------------------------------------------------------------------------------------------

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> NativeSpace:
        if parity is not FULL:
            geometry._need_parity()
        return NativeSpace(geometry, precision, n_rhs, parity, self._layout(geometry, precision, parity), self.threads)

    def _layout(self, geometry: LatticeGeometry, precision: Precision, parity) -> Any:
        key = (geometry.shape, precision.name, parity)
        with self._lock:
            layout = self._layouts.get(key)
            if layout is None:
                layout = _native.Layout(
                    list(geometry.shape), -1 if parity is FULL else parity, precision.spinor_storage,
                    self._isa_for(geometry, precision),
                )  # fmt: skip
                self._layouts[key] = layout
            return layout

    def _isa_for(self, geometry: LatticeGeometry, precision: Precision) -> str:
        """The best instruction set, or, for links that come from memory, the narrower one that waits less for them.

        By the size of a time slice, never by T: the bits must not depend on how many slabs there are.
        """
        number = {"float64": 8, "float32": 4}.get(precision.spinor_storage, 2)
        slice_bytes = geometry.volume // geometry.shape[0] * 8 * 18 * number
        return self._narrow if self._narrow and slice_bytes > FROM_MEMORY else self.isa

    # -- operators ----------------------------------------------------------------------------------------------------

    def hopping(self, links: Links, space: NativeSpace) -> Callable[[Handle], Handle]:
        return self._hop(links, space, space, _native.PLAIN)

    def parity_hopping(self, links: Links, target: NativeSpace) -> Callable[[Handle], Handle]:
        return self._hop(links, self._other(target), target, _native.PLAIN)

    def site_diagonal(self, term: SiteDiagonal, space: NativeSpace) -> Callable[[Handle], Handle]:
        packed, apply = self._pack_diagonal(term, space), space.algebra.apply_diagonal
        return lambda x: apply(packed, x)

    def fused(self, kind: str, terms: DiracTerms, space: NativeSpace) -> Callable[[Handle], Handle] | None:
        if kind == "MdagM":
            m, m_dagger = self.fused("M", terms, space), self.fused("Mdag", terms, space)
            return lambda x: m_dagger(m(x))
        if kind in ("M", "Mdag"):
            dagger = kind == "Mdag"
            a = self._diagonal(terms.diagonal, space, dagger=dagger)
            return self._hop(terms.links, space, space, _native.DIAGONAL_MINUS, a, dagger)
        if kind == "schur_normal":
            m, m_dagger = self.fused("schur", terms, space), self.fused("schur_dag", terms, space)
            return lambda x: m_dagger(m(x))
        if kind in ("schur", "schur_dag"):
            return self._schur(terms, space, dagger=kind == "schur_dag")
        return None

    def _schur(self, terms: DiracTerms, space: NativeSpace, dagger: bool) -> Callable[[Handle], Handle]:
        before, down, up = self.schur_passes(terms, space, dagger)
        if before is None:
            return lambda x: up(down(x), x)
        apply = space.algebra.apply_diagonal
        return lambda x: up(down(apply(before, x)), x)

    def schur_passes(self, terms: DiracTerms, space: NativeSpace, dagger: bool) -> tuple[Any, Any, Any]:
        """A Schur complement, or its adjoint, as passes: x -> last(first(before x), x), ``before`` a diagonal or None."""
        other = self._other(space)
        a_q_inverse = self._diagonal(terms.diagonal, other, inverse=True, dagger=dagger)
        down = self._hop(terms.links, space, other, _native.TIMES_DIAGONAL, a_q_inverse, dagger)
        if terms.form == "asymmetric":
            a_p = self._diagonal(terms.diagonal, space, dagger=dagger)
            return None, down, self._hop(terms.links, other, space, _native.DIAGONAL_MINUS, a_p, dagger)
        a_p_inverse = self._diagonal(terms.diagonal, space, inverse=True, dagger=dagger)
        # A number commutes with H, so A^-1 may stay in the last pass of the adjoint too.
        commutes = terms.diagonal.blocks is None and terms.diagonal.twist == 0
        if not dagger or commutes:
            return None, down, self._hop(terms.links, other, space, _native.ONE_MINUS, a_p_inverse, dagger)
        one = space.algebra.scalar_diagonal(1.0, 0.0)
        return a_p_inverse, down, self._hop(terms.links, other, space, _native.DIAGONAL_MINUS, one, dagger)

    def gauge_kernel(self, kind: str, nc: int) -> Callable | None:
        if self._gauge is None:
            from .gauge import GaugeKernels  # stands on the core's gauge formulas, which binding does not need

            self._gauge = GaugeKernels(self.isa, self.threads)
        return self._gauge.find(kind, nc)

    def solve(self, bound, inner_bound, b: Handle, x0: Handle | None, parameters, callback):
        from .solve import solve_inside  # stands on the core's solvers, which binding does not need

        return solve_inside(self, bound, inner_bound, b, x0, parameters, callback)

    def _other(self, space: NativeSpace) -> NativeSpace:
        return self.space(space.geometry, space.precision, space.n_rhs, 1 - space.parity)

    def _hop(self, links: Links, source: NativeSpace, target: NativeSpace, epilogue: int, diagonal=None, dagger=False):
        packed = self._pack_links(links, target)
        s = self._schedule(packed, source, target)
        return _native.Hop(
            packed, source.layout, epilogue, diagonal, dagger, self.threads, s.block, s.tile, int(s.stream), s.prefetch
        )

    def _schedule(self, packed: Any, source: NativeSpace, target: NativeSpace) -> tune.Schedule:
        """The order of work of hops between these spaces; measured where that pays."""
        layout = target.layout
        groups = layout.groups(target.n_rhs)
        footprint = packed.bytes + 2 * groups * layout.group_bytes
        schedule = tune.fixed(layout.per_slice, groups, footprint, CACHE_BYTES)
        settled = {k: v for k, v in (("block", self._block), ("tile", self._tile)) if v is not None}
        if self._stores != "auto":
            settled["stream"] = self._stores == "stream"
        if self._prefetch != "auto":
            settled["prefetch"] = tune.PREFETCH.index(self._prefetch)
        large = layout.vsites * layout.site_lanes * target.n_rhs >= tune.SMALLEST
        if settled or not large or not tune.wanted():
            return attrs.evolve(schedule, **settled)
        shape = "x".join(map(str, target.geometry.shape))
        rows = "two-row" if self._two_rows else "full"
        key = f"{layout.isa} {self.threads} {target.precision.name} {rows} {shape} {target.parity} {groups}"
        if key not in self._tuned:
            x = source.zeros()

            def run(s: tune.Schedule) -> None:
                _native.Hop(
                    packed,
                    source.layout,
                    _native.PLAIN,
                    None,
                    False,
                    self.threads,
                    s.block,
                    s.tile,
                    int(s.stream),
                    s.prefetch,
                )(x)

            options = tune.candidates(schedule, layout.per_slice, groups)
            self._tuned[key] = tune.choose(key, options, run)
        return self._tuned[key]

    # -- slabs --------------------------------------------------------------------------------------------------------

    def halo_hopping(self, links: Links, target: NativeSpace) -> SlabHop:
        source = target if target.parity is FULL else self._other(target)
        return SlabHop(self._hop(links, source, target, _native.PLAIN))

    def halo_fused(self, kind: str, terms: DiracTerms, space: NativeSpace) -> SlabHop | None:
        hop = self.fused(kind, terms, space) if kind in ("M", "Mdag") else None
        return None if hop is None else SlabHop(hop)

    # -- what depends on the links alone ------------------------------------------------------------------------------

    def _pack_links(self, links: Links, space: NativeSpace) -> Any:
        """Links landing on a space; the operators of one bind share them."""
        key = (links.digest, links.phases, links.coefficients, space.geometry.shape, space.precision.name, space.parity)
        with self._lock:
            packed = self._links.get(key) if links.digest else None
        if packed is None:
            array = np.ascontiguousarray(links.array)
            phases, coefficients = [complex(p) for p in links.phases], [float(c) for c in links.coefficients]
            packed = space.algebra.links(array, phases, coefficients, self._two_rows)
            if self._two_rows and not packed.deviation <= space.precision.tolerance:
                raise NonUnitaryLinksError(
                    f"links='two-row' keeps two rows of each link and makes the third from them, but a third row of these links "
                    f"is off by {packed.deviation:.2g} (allowed in {space.precision}: {space.precision.tolerance:.2g}). "
                    "Reunitarise the field, or use links='full'."
                )
            with self._lock:
                self._links[key] = packed
        return packed

    def _diagonal(self, term: SiteDiagonal, space: NativeSpace, inverse=False, dagger=False) -> Any:
        """The full-lattice term, or its inverse or adjoint, on a space; kept as long as the term lives."""
        dagger = dagger and not (term.twist == 0 and term.hermitian_blocks and np.imag(term.scalar) == 0)
        with self._lock:
            kept = self._diagonals.setdefault(term, {})
        key = (space.geometry.shape, space.precision.name, space.parity, inverse, dagger)
        if key not in kept:
            made = term.on_parity(space.geometry, space.parity)
            made = made.inverse() if inverse else made
            kept[key] = self._pack_diagonal(made.dagger() if dagger else made, space)
        return kept[key]

    @staticmethod
    def _pack_diagonal(term: SiteDiagonal, space: NativeSpace) -> Any:
        algebra = space.algebra
        if term.blocks is None:
            return algebra.scalar_diagonal(complex(term.scalar), float(term.twist))
        if term.hermitian_blocks and np.imag(term.scalar) == 0:
            blocks, scalar, twist, hermitian = term.blocks, float(np.real(term.scalar)), float(term.twist), True
        else:
            blocks, scalar, twist, hermitian = term.full_blocks(), 0.0, 0.0, False
        blocks = np.ascontiguousarray(blocks, np.complex128).reshape(-1, 2, 6, 6)
        return algebra.block_diagonal(blocks, scalar, twist, hermitian)

    # -- said ---------------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, str]:
        """Instruction set, lanes, threads and compiler."""
        layout = _native.Layout([2, 2, 2, 2], -1, "float32", self.isa)
        return {
            "instruction set": self.isa
            + (f" ({self._narrow} where a time slice of links exceeds 1 MiB)" if self._narrow else ""),
            "others here": ", ".join(n for n in _native.instruction_sets() if n != self.isa) or "none",
            "lanes": f"{layout.lanes} single, {layout.lanes // 2} double",
            "threads": str(self.threads),
            "huge pages": huge_pages(),
            "compiler": _native.compiler,
        }

    def measure_limits(self, threads: int) -> dict[Any, float]:
        """GFLOP/s of multiply-adds by arithmetic, and GB/s of y += a x by the bytes of its working set."""
        found = _native.measure_machine(self.isa, threads)
        return {
            "single": found["multiply-add single GFLOP/s"],
            "double": found["multiply-add double GFLOP/s"],
            (256 << 10) * threads: found["256 KiB a thread, y += a x GB/s"],
            float("inf"): found["memory, y += a x GB/s"],
        }

    def plan(self, request: Request) -> str:
        """Instruction set, lanes, threads and the cost model's account of a hop, for ``explain``."""
        layout = self._layout(request.geometry, request.precision, FULL)
        cost = tune.cost(layout, request.n_rhs, 12 if self._two_rows else 18, 2)
        solves = "; runs whole solves itself" if request.precision.name in ("double", "single") else ""
        return (
            f"{layout.isa}, {layout.describe()}, {self.threads} thread{'s' if self.threads > 1 else ''}; {cost}{solves}"
        )


class SlabHop:
    """A hop, M or its adjoint on a slab; a :class:`~lqcd_core.backend.HaloHop`.

    A face is ``(n, vector sites of a slice, 12, site lanes)`` in the arithmetic's type: 2 spins x 3 colours x (re, im). Sums run in
    the order of the uncut kernel, which also multiplies the half spinors by the same numbers: no bit depends on the cut.
    """

    def __init__(self, hop: Any):
        self.faces, self.interior, self._exterior = hop.faces, hop.interior, hop.exterior

    def exterior(self, x: Handle, partial: Handle, below: np.ndarray, above: np.ndarray) -> Handle:
        self._exterior(x, partial, np.ascontiguousarray(below), np.ascontiguousarray(above))
        return partial


def choose_isa(wanted: str | None) -> str:
    """The instruction set to use: asked for, else LQCD_NATIVE_ISA, else the best that runs here.

    Raises
    ------
    BackendUnavailable
        If it was not built, or the processor does not run it.
    """
    built, runs = _native.instruction_sets(False), _native.instruction_sets(True)
    by = "isa="
    if wanted is None:
        wanted, by = os.environ.get(ISA_VARIABLE, "").strip() or None, ISA_VARIABLE
    if wanted is None:
        if not runs:
            raise BackendUnavailable(f"this processor runs none of the instruction sets built ({', '.join(built)})")
        return runs[0]
    if wanted not in INSTRUCTION_SETS:
        raise BackendUnavailable(f"{by} names no instruction set {wanted!r} (known: {', '.join(INSTRUCTION_SETS)})")
    if wanted not in runs:
        why = "the processor does not run it" if wanted in built else "it was not built"
        raise BackendUnavailable(f"{by} asks for the instruction set {wanted!r}, but {why} (here: {', '.join(runs)})")
    return wanted


def default_threads() -> int:
    """OMP_NUM_THREADS (its first number), else the processors this process may use."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if said.isdigit() and int(said) >= 1:
        return int(said)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def huge_pages() -> str:
    """The system's setting for transparent huge pages, as a word."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as f:
            setting = f.read()
    except OSError:
        return "not offered"
    return setting.partition("[")[2].partition("]")[0] or "unknown"


def _cache_bytes() -> int:
    """Size of the last-level cache, bytes; 8 MiB where the system does not say."""
    for name in ("SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE"):
        try:
            size = os.sysconf(name)
        except (ValueError, OSError, AttributeError):
            continue
        if size > 0:
            return size
    return 8 << 20


CACHE_BYTES = _cache_bytes()

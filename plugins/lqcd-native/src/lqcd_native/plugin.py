"""Record of the backend ``native``. Imports no kernel: asking what it can do stays light."""

from __future__ import annotations

from lqcd_core import BackendInfo, hookimpl
from lqcd_core.backend import Option, Request

INSTRUCTION_SETS = ("baseline", "avx2", "avx512")
"""Names that the option ``isa`` and the variable LQCD_NATIVE_ISA take: x86-64-v2 (or NEON), AVX2 + FMA, AVX-512."""


def _count(value) -> str | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return None
    return "must be a whole number of at least 1, or None for the backend's own choice"


def _isa(value) -> str | None:
    if value is None or value in INSTRUCTION_SETS:
        return None
    return f"must be one of {', '.join(INSTRUCTION_SETS)}, or None for the best that the processor runs"


def _stores(value) -> str | None:
    return None if value in ("auto", "plain", "stream") else "must be 'auto', 'plain' or 'stream'"


def _prefetch(value) -> str | None:
    return (
        None
        if value in ("auto", "none", "streams", "neighbours")
        else "must be 'none', 'streams', 'neighbours' or 'auto'"
    )


def _links(value) -> str | None:
    return None if value in ("full", "two-row") else "must be 'full' or 'two-row'"


def _accepts(request: Request) -> str | None:
    if request.geometry.nc != 3:
        return f"has kernels for Nc = 3 only (asked for Nc = {request.geometry.nc})"
    if request.geometry.volume >= 2**31:
        return f"numbers sites in 32 bits ({request.geometry.volume} sites asked)"
    return None


INFO = BackendInfo(
    name="native",
    load="lqcd_native.backend:NativeBackend",
    precisions={"double", "single", "half", "bf16", "fixed16"},
    features={
        "even_odd",
        "site_diagonal",
        "fused_dirac",
        "fused_blas",
        "exact_slices",
        "device_solve",
        "gauge",
        "halo",
    },
    rank=100,
    accepts=_accepts,
    options={
        "threads": Option("threads, at least 1; None: OMP_NUM_THREADS, else the processors allowed", None, _count),
        "isa": Option("baseline, avx2 or avx512; None: LQCD_NATIVE_ISA, else the best that runs here", None, _isa),
        "block": Option("right-hand sides that share a link in cache, at least 1; None chooses", None, _count),
        "tile": Option("vector sites that a thread takes at a time, at least 1; None chooses", None, _count),
        "stores": Option("'plain', 'stream' (around the cache) or 'auto' (by the size of the fields)", "auto", _stores),
        "prefetch": Option(
            "what is asked of memory ahead of its use: 'none', 'streams' (links, the next time slice), 'neighbours' or 'auto'",
            "auto",
            _prefetch,
        ),
        "links": Option("'full', or 'two-row' (12 of 18 reals kept; SU(3) links only)", "full", _links),
    },
    summary="C++ SIMD kernels, fused operators and vector updates; Nc = 3, any extents, every precision",
)


@hookimpl
def lqcd_register_backends():
    return [INFO]

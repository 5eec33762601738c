"""Vector updates and reductions as specifications, their coefficients, and their sums on the host."""

from __future__ import annotations

import math

import numpy as np

from lqcd_core.errors import ParameterError
from lqcd_core.gamma import GAMMA5_SIGNS

from .exact import NUMBERS, TILE, fold
from .layout import PARTITIONS, VectorLayout, divisors
from .spec import KernelSpec, TensorArg

MODULE = f"{__package__}.blas_kernels"
OPERATIONS = {
    "axpy": (("x", "y", "coefficients"), ("vector",)),
    "scale": (("x", "coefficients"), ("vector",)),
    "axpy_norm2": (("x", "y", "coefficients", "scale"), ("vector", "sums")),
    "cg_update": (("p", "q", "x", "r", "coefficients", "scale"), ("vector", "vector", "sums")),
    "norm2": (("x", "scale"), ("sums",)),
    "inner": (("x", "y", "scale"), ("sums",)),
}
"""Tensors taken and given by operation. ``axpy`` is y + a x; x + a y is the same with the two exchanged."""
TILE_REALS = 2048
"""Reals per partition in one tile of a vector update."""


def plan(layout: VectorLayout, tile_reals: int = TILE_REALS) -> tuple:
    """(layout B?, partitions, tiles, reals of a tile per partition, n_rhs, 3X, segments, segment length)."""
    n = layout.n_rhs
    if layout.formulation == "tensor":
        p, sites = layout.shape[0], math.prod(layout.inner)
        together = max(d for d in divisors(sites) if d == 1 or (d <= TILE and d * n <= tile_reals))
        return (True, p, sites // together, together * n, n, 0, n, together)
    t, z, y, x = layout.sites
    p = max(d for d in divisors(t * z * y) if d <= PARTITIONS)
    rows, row = t * z * y // p, 24 * x
    together = max(d for d in divisors(rows) if d == 1 or d * row <= tile_reals)
    width = together * row
    length = max(d for d in divisors(width) if d <= TILE)
    return (False, p, rows // together, width, n, 3 * x, width // length, length)


def sums_shape(layout: VectorLayout, cut: tuple, kinds: int = 1) -> tuple[int, ...]:
    """Shape of limb sums: (parts, right-hand sides or 1, tiles, partitions, NUMBERS, segments)."""
    return (kinds, 1 if cut[0] else layout.n_rhs, cut[2], cut[1], NUMBERS, cut[6])


def blas(
    layout: VectorLayout, operation: str, real: bool = True, gamma5: bool = False, tile_reals: int = TILE_REALS
) -> KernelSpec:
    """The kernel of one of OPERATIONS. ``real``: the coefficients of axpy are real. ``gamma5``: scale is gamma5.

    Raises
    ------
    ParameterError
        If there is no such operation.
    """
    if operation not in OPERATIONS:
        raise ParameterError(f"no vector kernel {operation!r}; there are {', '.join(OPERATIONS)}.")
    takes, gives = OPERATIONS[operation]
    cut = plan(layout, tile_reals)
    sums = sums_shape(layout, cut, 2 if operation == "inner" else 1)
    table = (PARTITIONS, layout.n_rhs, 4)
    inputs = [
        TensorArg(a, table, "float32") if a in ("coefficients", "scale") else TensorArg(a, layout.shape, layout.dtype)
        for a in takes
    ]
    outputs = [
        TensorArg(f"output_{k}", sums, "float32")
        if g == "sums"
        else TensorArg(f"output_{k}", layout.shape, layout.dtype)
        for k, g in enumerate(gives)
    ]
    constants = {"plan": cut}
    if operation in ("axpy", "axpy_norm2"):
        constants["real"] = real
    if operation == "scale":
        constants["gamma5"] = gamma5
    return KernelSpec(
        name=f"{operation} on {layout.shape} {layout.dtype}", function=f"{MODULE}:{operation}", inputs=inputs, outputs=outputs, constants=constants
    )  # fmt: skip


def pack_coefficients(layout: VectorLayout, a, gamma5: bool = False) -> np.ndarray:
    """``(128, n_rhs, 4)`` of one number or one per column: re, im, -im (of a real a: -a), im with the partition's sign.

    With ``gamma5`` (tensor layout) the real part carries the sign of gamma5 of its partition.
    """
    a = np.broadcast_to(np.asarray(a, complex), (layout.n_rhs,))
    out = np.zeros((PARTITIONS, layout.n_rhs, 4), np.float32)
    out[..., 0], out[..., 1] = a.real, a.imag
    out[..., 2] = np.where(np.any(a.imag), -a.imag, -a.real)
    out[..., 3] = a.imag * np.where(np.arange(PARTITIONS) % 2, 1.0, -1.0)[:, None]
    if gamma5 and layout.formulation == "tensor":
        nodes = layout.shape[0] // 24
        out[: 24 * nodes, :, 0] *= np.tile(np.repeat(GAMMA5_SIGNS, 6), nodes)[:, None]
    return out


def pack_scale(layout: VectorLayout, scale) -> np.ndarray:
    """``(128, n_rhs, 4)`` of powers of two (``exact.scale_for``): s, 0, -s, and s with the sign that Im(conj(x) y) has on a partition."""
    out = np.zeros((PARTITIONS, layout.n_rhs, 4), np.float32)
    s = np.broadcast_to(np.asarray(scale, np.float32), (layout.n_rhs,))
    out[..., 0], out[..., 2] = s, -s
    out[..., 3] = s * np.where(np.arange(PARTITIONS) % 2, -1.0, 1.0)[:, None]
    return out


def fold_sums(layout: VectorLayout, sums: np.ndarray, scale) -> tuple[np.ndarray, np.ndarray]:
    """Sums of a reduction, ``(n_rhs,)`` (complex if there are two parts), and the largest |product| of each column.

    NaN marks a column whose products left the range of its scale: take ``scale_for(largest)`` and reduce again.
    """
    s = np.broadcast_to(np.asarray(scale, np.float64), (layout.n_rhs,))
    kinds = sums.shape[0]
    out, largest = np.zeros((kinds, layout.n_rhs)), np.zeros(layout.n_rhs)
    for k in range(kinds):
        for b in range(layout.n_rhs):
            part = sums[k, 0, ..., b] if layout.formulation == "tensor" else np.moveaxis(sums[k, b], -2, -1)
            out[k, b], top = fold(part, s[b])
            largest[b] = max(largest[b], top)
    return (out[0] if kinds == 1 else out[0] + 1j * out[1]), largest

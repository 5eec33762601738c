"""What the benchmarks share: literal parameters, fixed fields, and skips that say why."""

from __future__ import annotations

import numpy as np

import lqcd_core as lqcd
from lqcd_core.errors import BackendError

BACKENDS = ["numpy", "torch", "native"]
"""Literal, whatever is installed: a missing backend skips with its reason, and results of machines stay comparable."""
PRECISIONS = ["single", "double"]
VOLUMES = ["8x8x8x8", "16x16x16x16"]
N_RHS = [1, 12]

FLOPS_PER_SITE = 1320
"""Wilson hopping term: projection 96, SU(3) times half spinors 1056, reconstruction 168 (QUDA's count without xpay)."""


def geometry(volume: str) -> lqcd.LatticeGeometry:
    """Lattice of a text TxZxYxX."""
    return lqcd.LatticeGeometry.from_shape([int(n) for n in volume.split("x")])


def bound(definition, volume: str, backend: str, precision: str, n_rhs: int = 1):
    """The operator on a fixed random field; skips the benchmark with the reason if the backend cannot serve."""
    gauge = lqcd.GaugeField.random(geometry(volume), seed=42)
    try:
        return definition.bind(gauge, backend=backend, precision=precision, n_rhs=n_rhs, check_links=False)
    except BackendError as error:
        raise NotImplementedError(str(error)) from None  # asv's way to say: skip


def source(operator):
    """A handle of noise, its pages touched."""
    g, n = operator.geometry, operator.n_rhs
    rng = np.random.default_rng(7)
    shape = (n, *g.spinor_shape)
    batch = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    handle = operator.space.pack(batch.astype(operator.precision.complex_dtype))
    operator.space.norm2(handle)
    return handle

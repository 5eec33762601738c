"""The sharded executor obeys every law that its inner backends obey, and cutting the lattice changes no bits."""

import sys

import numpy as np
import pytest

from lqcd_core.testing import loopback
from lqcd_core.testing.conformance import BackendConformance, HaloConformance

LATTICES = ((4, 2, 6, 2), (5, 2, 1, 3))


class TestNumpyHalo(HaloConformance):
    backend, lattices = "numpy", LATTICES


class TestShardedNumpy(BackendConformance):
    backend, options = "sharded", {"inner": "numpy", "shards": 2}
    precisions, lattices = ("double", "single", "half", "bf16"), LATTICES


class TestShardedLoopbackFull(BackendConformance):
    backend, options, plugin = "sharded", {"inner": "loopback-full", "shards": 2}, loopback
    precisions, lattices, ncs = ("double", "single"), LATTICES, (3,)


class TestShardedLoopback(BackendConformance):
    backend, options, plugin = "sharded", {"inner": "loopback", "shards": 2}, loopback
    precisions, lattices, ncs = ("double",), LATTICES, (3,)


# -- bits -------------------------------------------------------------------------------------------------------------


def problem(T: int, seed: int = 3):
    import lqcd_core as lqcd

    g = lqcd.LatticeGeometry(T=T, Z=2, Y=4, X=2)
    rng = np.random.default_rng(seed)
    psi = rng.normal(size=(3, *g.spinor_shape)) + 1j * rng.normal(size=(3, *g.spinor_shape))
    return lqcd.GaugeField.random(g, seed=seed), psi


def names(inner: str, shards: int, **more):
    return ("sharded", {"inner": inner, "shards": shards, **more})

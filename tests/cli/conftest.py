"""Fixtures of the command's tests: small files to work on."""

from __future__ import annotations

import pytest

pytest.importorskip("click", reason="the command needs click")
pytest.importorskip("rich", reason="the command needs rich")
pytest.importorskip("h5py", reason="the command writes HDF5")

from lqcd_core.fields import GaugeField
from lqcd_core.geometry import LatticeGeometry

GEOMETRY = LatticeGeometry(T=4, Z=2, Y=2, X=2)


@pytest.fixture(scope="session")
def configuration(tmp_path_factory):
    """A random configuration of 4x2x2x2 sites as an ILDG file."""
    path = tmp_path_factory.mktemp("configuration") / "random.ildg"
    GaugeField.random(GEOMETRY, seed=5).write(path)
    return path

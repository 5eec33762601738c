"""Bytes changed at random: a file reads, or is refused with an error of ours; nothing else ever comes out."""

import warnings

import numpy as np
import pytest

from lqcd_core.errors import LQCDError
from lqcd_core.fields import GaugeField, Propagator
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import (
    inspect_gauge,
    read_correlators,
    read_gauge,
    read_propagator,
    write_correlators,
    write_gauge,
    write_propagator,
)

GEOMETRY = LatticeGeometry(T=2, Z=2, Y=2, X=2)
NAMES = ("u.nersc", "u.ildg", "u.scidac", "u.milc", "u.openqcd", "u.npy", "s.h5", "s.lime", "s.npy", "c.h5")


def write(path):
    """A good file of this name, and the calls that read it."""
    if path.name.startswith("u."):
        precision = "single" if path.suffix == ".milc" else None
        write_gauge(GaugeField.random(GEOMETRY, seed=1), path, precision=precision)
        return [
            lambda: read_gauge(path),
            lambda: read_gauge(path, check="off", check_links=False),
            lambda: inspect_gauge(path),
        ]
    if path.name.startswith("s."):
        S = Propagator(GEOMETRY, np.ones((*GEOMETRY.shape, 4, 4, 3, 3), complex), source={"kind": "point"})
        write_propagator(S, path)
        return [lambda: read_propagator(path), lambda: read_propagator(path, check="off")]
    write_correlators(path, {"pion": np.arange(4.0)}, {"kappa": 0.1})
    return [lambda: read_correlators(path)]


def damaged(raw, rng, structure):
    """A copy with one to three bytes replaced, bits flipped or characters mistyped near its start, or cut short."""
    out, how = bytearray(raw), rng.integers(4)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(structure))
        if how == 0:
            out[at] = int(rng.integers(256))
        elif how == 1:
            out[at] ^= 1 << int(rng.integers(8))
        elif how == 2:
            out[at] = ord("0123456789<>-=. \n"[int(rng.integers(17))])
        else:
            return bytes(out[: int(rng.integers(len(out)))])
    return bytes(out)


@pytest.mark.parametrize("name", NAMES)
def test_damage_gives_a_field_or_an_error_of_ours(tmp_path, name):
    path = tmp_path / name
    calls = write(path)
    raw = path.read_bytes()
    rng = np.random.default_rng(NAMES.index(name))
    refused = 0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for _ in range(60):
            path.write_bytes(damaged(raw, rng, len(raw) if path.suffix == ".h5" else min(len(raw), 2000)))
            for call in calls:
                try:
                    call()
                except LQCDError as error:
                    assert str(error) and "\n" not in str(error)
                    refused += 1
    assert refused > 10
    path.write_bytes(raw)
    for call in calls:
        call()

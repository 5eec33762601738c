"""What the fermion operators share as definitions: mass and kappa, boundary phases, anisotropy, and how they bind."""

from __future__ import annotations

import cmath
import difflib
import math
from collections.abc import Mapping
from numbers import Complex, Real
from typing import Any

import numpy as np

from ..errors import ParameterError
from ..geometry import DIRECTIONS

ANTIPERIODIC_T = (-1, 1, 1, 1)
"""The field's default: antiperiodic in t, periodic in space. Order t, z, y, x."""


def real_number(name: str, value: Any) -> float:
    """A finite real number, or :class:`ParameterError` naming the parameter."""
    if isinstance(value, bool) or not isinstance(value, (Real, np.floating, np.integer)):
        raise ParameterError(f"{name} must be a real number, got {value!r} ({type(value).__name__}).")
    if not math.isfinite(value):
        raise ParameterError(f"{name} must be finite, got {value!r}.")
    return float(value)


def positive_number(name: str, value: Any) -> float:
    """A finite real number above zero."""
    value = real_number(name, value)
    if value <= 0:
        raise ParameterError(f"{name} must be positive, got {value!r}.")
    return value


def mass_and_kappa(mass, kappa) -> tuple[float, float]:
    """Both from the one given: kappa = 1 / (8 + 2 m), m = 1 / (2 kappa) - 4.

    Raises
    ------
    ParameterError
        If both are given or neither, or the value is not finite, or m = -4 (kappa infinite).
    """
    if (mass is None) == (kappa is None):
        given = "both" if mass is not None else "neither"
        raise ParameterError(f"give mass= or kappa=, one of them; got {given}. kappa = 1 / (8 + 2 mass).")
    if mass is not None:
        mass = real_number("mass", mass)
        if mass == -4.0:
            raise ParameterError("mass = -4 makes kappa infinite.")
        return mass, 1.0 / (8.0 + 2.0 * mass)
    kappa = real_number("kappa", kappa)
    if kappa == 0.0 or not math.isfinite(0.5 / kappa):  # a subnormal kappa overflows too
        raise ParameterError(f"kappa = {kappa:g} makes the mass infinite.")
    return 1.0 / (2.0 * kappa) - 4.0, kappa


def boundary_phases(value) -> tuple[complex, complex, complex, complex]:
    """Fermion boundary phases in the order t, z, y, x.

    Parameters
    ----------
    value
        Four numbers of modulus 1 (or 0, an open boundary) in the order t, z, y, x; a mapping such as ``{"t": -1}``
        (the rest periodic); or ``"antiperiodic"`` (in t) or ``"periodic"``.

    Raises
    ------
    ParameterError
        For anything else.
    """
    if isinstance(value, str):
        named = {"antiperiodic": ANTIPERIODIC_T, "periodic": (1, 1, 1, 1)}
        if value not in named:
            close = difflib.get_close_matches(value, named, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ParameterError(f"boundary {value!r} is unknown; use 'antiperiodic', 'periodic' or four phases{hint}")
        value = named[value]
    if isinstance(value, Mapping):
        wrong = set(value) - set(DIRECTIONS)
        if wrong:
            raise ParameterError(f"boundary has no direction {sorted(wrong)}; directions are {', '.join(DIRECTIONS)}.")
        value = tuple(value.get(d, 1) for d in DIRECTIONS)
    try:
        phases = tuple(value)
    except TypeError:
        phases = ()
    if len(phases) != 4 or not all(isinstance(p, (Complex, np.number)) for p in phases):
        raise ParameterError(f"boundary needs four phases in the order t, z, y, x, got {value!r}.")
    for d, p in zip(DIRECTIONS, phases):
        modulus = abs(complex(p))
        if not (cmath.isfinite(complex(p)) and (modulus == 0 or abs(modulus - 1) < 1e-12)):
            raise ParameterError(f"boundary phase in {d} must have modulus 1 (or be 0 for open), got {p!r}.")
    simplified = (complex(p).real if complex(p).imag == 0 else complex(p) for p in phases)
    return tuple(simplified)  # type: ignore[return-value]

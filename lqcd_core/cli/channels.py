"""Names of hadrons on the command line and what they stand for.

Mesons are averages over gamma structures in Chroma's numbering, Gamma(n) = gx^b0 gy^b1 gz^b2 gt^b3, equal at source and
sink; the names are Chroma's.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np

from ..errors import ParameterError, nearest


@attrs.frozen
class Meson:
    """A quark-antiquark channel."""

    label: str
    """What people read."""
    structures: tuple[int, ...]
    """Gamma structures averaged over (polarisations)."""
    mass_kind: str = "cosh"
    """Effective mass that suits it: the correlator is symmetric about T/2."""


@attrs.frozen
class Baryon:
    """A three-quark channel."""

    label: str
    """What people read."""
    particle: str
    """``nucleon`` or ``delta``."""
    parity: int
    """+1 or -1."""
    mass_kind: str = "log"
    """Effective mass that suits it: forward and backward states have opposite parity."""


CHANNELS: dict[str, Meson | Baryon] = {
    "pion": Meson("pion", (15,)),
    "pion_2": Meson("pion (g5 gt)", (7,)),
    "rho": Meson("rho", (1, 2, 4)),
    "rho_2": Meson("rho (gi gt)", (9, 10, 12)),
    "a0": Meson("a0", (0,)),
    "a1": Meson("a1", (11, 13, 14)),
    "b1": Meson("b1", (3, 5, 6)),
    "nucleon": Baryon("nucleon", "nucleon", +1),
    "nucleon_minus": Baryon("nucleon, P = -1", "nucleon", -1),
    "delta": Baryon("Delta", "delta", +1),
    "delta_minus": Baryon("Delta, P = -1", "delta", -1),
}
"""By name. Connected parts only: flavour-neutral operators have disconnected ones too."""


def chosen(names: Iterable[str]) -> dict[str, Meson | Baryon]:
    """Channels by name, in the order given, refused with the nearest name if unknown."""
    out = {}
    for name in names:
        if name not in CHANNELS:
            raise ParameterError(f"there is no channel {name!r}; {nearest(name, CHANNELS)}")
        out[name] = CHANNELS[name]
    return out


def correlators(S, channels, momentum) -> dict[str, np.ndarray]:
    """Correlators of one propagator at one momentum by channel name, complex ``(T,)``, t = 0 at the source."""
    from ..hadrons import delta_correlator, meson_correlators, nucleon_correlator

    out = {}
    mesons = None
    for name, channel in channels.items():
        if isinstance(channel, Meson):
            if mesons is None:  # all sixteen cost what one costs
                mesons = meson_correlators(S, momentum=momentum, diagonal=True)
            out[name] = mesons[list(channel.structures)].mean(axis=0)
        elif channel.particle == "nucleon":
            out[name] = nucleon_correlator(S, momentum=momentum, parity=channel.parity)
        else:
            spin = None if any(momentum) else "3/2"
            out[name] = delta_correlator(S, momentum=momentum, parity=channel.parity, spin=spin)
    return out


__all__ = ["CHANNELS", "Baryon", "Meson", "chosen", "correlators"]

"""What was verified about a configuration, and what was found."""

from __future__ import annotations

from typing import Any

import attrs

from ..geometry import LatticeGeometry


class FileCheckWarning(UserWarning):
    """A stored checksum, plaquette or link trace disagrees with the data, and the reader was told to go on."""


@attrs.frozen
class Check:
    """One number that the file stores about itself, beside the one computed from its data."""

    name: str
    """``checksum``, ``suma``, ``sumb``, ``sum29``, ``sum31``, ``plaquette``, ``link_trace`` or ``norm2``."""
    stored: str | float | None
    """What the file says; None if it says nothing."""
    found: str | float | None
    """What the data give; None if it was not computed."""
    ok: bool | None
    """True if they agree, False if not, None if there was nothing to compare."""
    tolerance: float | None = None
    """Largest absolute difference allowed (dimensionless); None for checksums, which must be equal."""
    note: str = ""
    """A hint for the reader, or empty."""

    def __str__(self) -> str:
        verdict = {True: "ok", False: "WRONG", None: "not compared"}[self.ok]
        stored = "nothing" if self.stored is None else self.stored
        text = f"{self.name}: stored {stored}, found {self.found}, {verdict}"
        return f"{text} ({self.note})" if self.note else text


@attrs.frozen
class GaugeReport:
    """Everything that :func:`lqcd_core.io.inspect_gauge` finds out about a configuration."""

    path: str
    """The file."""
    format: str
    """``nersc``, ``ildg``, ``scidac``, ``milc``, ``openqcd`` or ``npy``."""
    geometry: LatticeGeometry
    """The lattice and Nc."""
    precision: str
    """Precision of the stored numbers, ``double`` or ``single``."""
    header: dict[str, Any]
    """What the file says of itself, by the file's own names."""
    checks: tuple[Check, ...]
    """Stored against computed numbers."""
    notes: tuple[str, ...]
    """Oddities that are no errors, one sentence each."""
    plaquette: float
    """Mean Re tr P / Nc over six planes; 1 on the unit field."""
    plaquette_ss: float
    """The same over the three spatial planes."""
    plaquette_st: float
    """The same over the three planes that contain t."""
    link_trace: float
    """Mean Re tr U / Nc."""
    polyakov: dict[str, complex]
    """Mean tr / Nc of the Polyakov loop, by direction t, z, y, x."""
    unitarity: float
    """The larger of max |U^dagger U - 1| and max |det U - 1|; NaN if a link is not finite."""
    digest: str
    """blake2b of the links as :func:`lqcd_core.io.read_gauge` gives them (canonical order, the file's precision)."""

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(c for c in self.checks if c.ok is False)

    @property
    def ok(self) -> bool:
        """True if nothing stored disagrees with the data."""
        return not self.failures

    def lines(self) -> list[str]:
        """The report as text, one fact a line."""
        g = self.geometry
        out = [
            f"file        {self.path}",
            f"format      {self.format}, {self.precision}",
            f"lattice     X={g.X} Y={g.Y} Z={g.Z} T={g.T}, Nc={g.nc}",
            *(f"check       {c}" for c in self.checks),
            f"plaquette   {self.plaquette:.12f} (spatial {self.plaquette_ss:.12f}, temporal {self.plaquette_st:.12f})",
            f"link trace  {self.link_trace:.12f}",
            *(f"Polyakov {d}  {v.real:+.10f} {v.imag:+.10f}i" for d, v in self.polyakov.items()),
            f"unitarity   {self.unitarity:.3g}",
            f"digest      {self.digest}",
            *(f"note        {n}" for n in self.notes),
        ]
        return out

    def __str__(self) -> str:
        return "\n".join(self.lines())

"""What a monitor says at one moment, as plain data: the seam between ``lqcd monitor`` and who understands a stream.

A source is a function of one line of a stream that returns a :class:`Reading`, or None where the line holds none. It is found
through the entry-point group ``lqcd.monitors``.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class Reading:
    """One moment."""

    title: str = ""
    """What is watched: machine and chip, as far as known."""
    cores: Mapping[str, float] = attrs.field(factory=dict)
    """Utilisation by core, per cent."""
    memory: Mapping[str, int] = attrs.field(factory=dict)
    """Bytes by place."""
    errors: Mapping[str, int] = attrs.field(factory=dict)
    """Counts by kind; those that are zero may be left out."""
    latencies: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict)
    """Seconds by percentile, by what was timed."""
    remarks: tuple[str, ...] = ()
    """What the source itself complains of."""


__all__ = ["Reading"]

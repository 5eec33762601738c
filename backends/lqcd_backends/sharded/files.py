"""Files of ranks: each rank reads its own time slices of a configuration, and one writes what all hold.

The script is the same on every rank, so are these calls. Without ranks (threads, processes, one shard) they are the
core's own functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lqcd_core import io
from lqcd_core.errors import BackendError
from lqcd_core.fields import GaugeField
from lqcd_core.registry import REGISTRY

from .ranks import RankTeam
from .slabs import slabs


def _team(backend) -> RankTeam | None:
    name, options = (backend, {}) if isinstance(backend, str) else backend
    team = getattr(REGISTRY.load(name, options).instance, "team", None)
    return team if isinstance(team, RankTeam) else None


def _attempt(function) -> tuple[bool, Any]:
    """(True, result), or (False, error): a failure of one rank must reach the others as an answer, not as silence."""
    try:
        return True, function()
    except BackendError:
        raise
    except Exception as error:
        return False, error


def _settled(team: RankTeam, said: list[tuple[bool, Any]]) -> list[Any]:
    for rank, (fine, value) in enumerate(said):
        if not fine:
            value.__cause__ = None
            raise value from BackendError(f"on {team.name_of(rank)}")
    return [value for _, value in said]


def read_gauge(path, backend) -> GaugeField:
    """A configuration of which every rank reads its slab, at its offset; the rest comes from the other ranks.

    So the file is read once in all, however many ranks there are. The checksums of the slabs are joined and held against
    the file's; the stored plaquette is not looked at where there are ranks. Links must be finite and in SU(Nc).

    Parameters
    ----------
    path
        A NERSC, ILDG, SciDAC or MILC file that every rank can open.
    backend
        ``("sharded", options)`` as given to ``bind``.

    Returns
    -------
    GaugeField
        The whole field ``(T, Z, Y, X, 4, Nc, Nc)``, on every rank.

    Raises
    ------
    FileError, ChecksumError, NonUnitaryLinksError
        On every rank, if any rank meets it.

    Examples
    --------
    >>> import tempfile
    >>> import lqcd_core as lqcd
    >>> U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=1)
    >>> with tempfile.TemporaryDirectory() as d:
    ...     _ = lqcd.write_gauge(U, f"{d}/a.ildg")
    ...     V = read_gauge(f"{d}/a.ildg", ("sharded", {"inner": "numpy", "shards": 2}))
    >>> V.digest() == U.digest()
    True
    """
    team = _team(backend)
    if team is None:
        return io.read_gauge(path)

    def mine():
        # The extents come with the first slice's header; reading one slice twice is cheaper than a word between ranks.
        whole = io.read_gauge_part(path, 0, 1, check_links=False).geometry
        return io.read_gauge_part(path, *slabs(whole.T, team.shards)[team.rank])

    parts = _settled(team, team.exchange("read_gauge", _attempt(mine)))
    checked = io.check_gauge_parts(path, parts)
    U = GaugeField(parts[0].geometry, np.concatenate([part.links for part in parts]))
    U.origin = {"path": str(path), "read by": f"{team.shards} ranks", "checksums": ", ".join(checked) or "none stored"}
    return U


def write_propagator(S, path, backend, **options) -> None:
    """Write a propagator that all ranks hold: rank 0 writes it, whole or not at all, and the others wait for that.

    Parameters
    ----------
    S
        The propagator, equal on every rank.
    path, options
        As for :func:`lqcd_core.io.write_propagator`.
    backend
        ``("sharded", options)`` as given to ``bind``.

    Raises
    ------
    FileError
        On every rank, if rank 0 cannot write.
    """
    team = _team(backend)
    if team is None:
        io.write_propagator(S, path, **options)
        return
    outcome = _attempt(lambda: io.write_propagator(S, path, **options) and None) if team.rank == 0 else (True, None)
    _settled(team, team.exchange("write_propagator", outcome))

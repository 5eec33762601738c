"""Files of ranks: each rank reads its own time slices of a configuration and writes its own of a propagator.

The script is the same on every rank, so are these calls. Without ranks (threads, processes, one shard) they are the
core's own functions.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from lqcd_core import io
from lqcd_core.errors import BackendError, FileError, ParameterError
from lqcd_core.fields import GaugeField, Propagator
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.hadrons.propagator import propagator as solve_propagator
from lqcd_core.io.hdf5 import load_h5py, storage_dtype
from lqcd_core.registry import REGISTRY

from .ranks import RankTeam
from .slab import on_slab
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


def propagator(M, source, solver, path, *, precision=None, **options) -> Path:
    """Solve for a propagator and write it, HDF5: every rank makes, holds and writes its slab of every column alone.

    Source, solution and the propagator of a rank are 1 / ranks of the lattice; what stays whole on every rank are the
    links. The numbers are those of :func:`lqcd_core.propagator` with the same backend. Without ranks that is what runs.

    Parameters
    ----------
    M
        A bound operator, equal on every rank.
    source
        A source of Ns * Nc columns on the whole lattice; point, wall, momentum, noise and smeared ones are made slab by slab.
    solver
        The solver.
    path
        The file (.h5 or .hdf5) on a file system that all ranks share. An old one is replaced in one step once every slab is
        on the disk; if any rank fails before, it stays as it was and nothing else is left.
    precision
        ``double`` or ``single``: of the numbers stored; default that of the solve.
    options
        As for :func:`lqcd_core.propagator`, without ``columns``.

    Returns
    -------
    pathlib.Path
        The file; it is there on return, on every rank.

    Raises
    ------
    ParameterError
        If the source makes no propagator, columns are named, or the path names no HDF5 file.
    FileError
        On every rank, if any rank cannot write.
    NotConvergedError
        If a column missed the tolerance; nothing is written.

    Examples
    --------
    >>> import tempfile
    >>> import lqcd_core as lqcd
    >>> U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=1)
    >>> M = lqcd.WilsonDirac(mass=0.5).bind(U, backend=("sharded", {"inner": "numpy", "shards": 2}), n_rhs=12)
    >>> with tempfile.TemporaryDirectory() as d:
    ...     path = propagator(M, lqcd.point_source(U.geometry), lqcd.ConjugateGradient(tol=1e-8), f"{d}/S.h5")
    ...     S = lqcd.read_propagator(path)
    >>> S.source["kind"]
    'point'
    """
    path, g = Path(path), M.geometry
    if path.suffix.lower() not in (".h5", ".hdf5"):
        raise ParameterError(
            f"ranks write propagators as HDF5; give a path that ends in .h5 or .hdf5, not {path.name!r}."
        )
    if "columns" in options:
        raise ParameterError("a propagator is written whole; leave columns out.")
    if not source.makes_propagator or source.n_columns != 4 * g.nc:
        raise ParameterError(
            f"the {source.n_columns} columns of this source make no propagator ({4 * g.nc} are needed)."
        )
    team = M.space.team if isinstance(getattr(M.space, "team", None), RankTeam) else None
    if team is None:
        return io.write_propagator(
            solve_propagator(M, source, solver, **options), path, format="hdf5", precision=precision
        )
    team.agree("the propagator", {"source": repr(source.describe()), "lattice of the source": str(source.geometry)})
    team.agree("the propagator", {"path": str(path), "solver": repr(solver), "precision": str(precision)})
    _settled(team, team.exchange("file", _attempt(lambda: _refuse_path(path))))  # before hours of solving, not after
    slab = on_slab(M)
    if options.get("even_odd") is None:  # a slab of an odd lattice may be even
        options["even_odd"] = g.why_no_parity() is None
    S = solve_propagator(slab, source.slab(slab.space.t_start, slab.space.t_stop), solver, **options)
    _write_slabs(team, S, path, g, slab.space.t_start, storage_dtype(S, precision))
    return path


def _refuse_path(path: Path) -> None:
    load_h5py()
    if path.is_dir() or not path.parent.is_dir():
        raise FileError(f"cannot write {str(path)!r}: it must name a file in a directory that is there.")


def _write_slabs(team: RankTeam, S: Propagator, path: Path, whole: LatticeGeometry, t_start: int, dtype) -> None:
    """Rank 0 makes the file under another name, all write, rank 0 seals and renames it."""
    size = 16 * whole.nc**2 * whole.volume * np.dtype(dtype).itemsize
    layout = None

    def first(function):
        """What rank 0 alone does; the outcome, known to all."""
        mine = _attempt(function) if team.rank == 0 else (True, None)
        return _settled(team, team.exchange("write_propagator", mine))[0]

    with contextlib.ExitStack() as stack:

        def lay_out():
            temporary = stack.enter_context(io.replacing_path(path, size))
            return io.lay_out_propagator(
                temporary, whole, dtype, basis=S.basis, source=S.source, provenance=S.provenance, name=path
            )

        try:
            layout = first(lay_out)
            said = team.exchange("write_propagator", _attempt(lambda: layout.write(t_start, S.array)))
            digests = [digest for part in _settled(team, said) for digest in part]
            first(lambda: layout.seal(digests))
            first(lambda: stack.pop_all().close())
        except BaseException:
            # Rank 0 removes what it made; if it is rank 0 that died, another one does. There is no harm in doing it twice.
            if layout is not None:
                with contextlib.suppress(OSError):
                    os.unlink(layout.path)
            raise

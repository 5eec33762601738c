"""Quenched configurations: heatbath and overrelaxation with checkpoints that resume to the same bits."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ..errors import FileError, FileFormatError, GeometryError, ParameterError
from ..fields import GaugeField
from ..geometry import LatticeGeometry
from .update import CheckerboardLinks, check_beta

_UNITARIZE_EVERY = 10  # sweeps; rounding grows by some 1e-16 a sweep, so links stay within 1e-14 of SU(Nc)
_SCHEMA = 1


@attrs.frozen(eq=False)
class SweepReport:
    """What a callback sees after each sweep."""

    sweep: int
    """Sweeps done, from 1."""
    total: int
    """Sweeps of the whole run."""
    thermalized: bool
    """True once the thermalization sweeps are over."""
    plaquette: float
    """Average plaquette after this sweep, unit field 1."""
    seconds: float
    """Wall time of this process so far."""


@attrs.frozen(eq=False)
class ConfigurationInfo:
    """What comes with each configuration."""

    index: int
    """Number of the configuration, from 0."""
    sweep: int
    """Sweeps done before it."""
    plaquette: float
    """Its average plaquette, unit field 1."""
    history: np.ndarray
    """Average plaquette after every sweep so far, thermalization included; feed the part after ``thermalization`` to
    :func:`~lqcd_core.gauge.integrated_autocorrelation`."""
    parameters: dict[str, Any]
    """What defines the chain: lattice, beta, seed, sweeps, start."""


def generate(
    geometry: LatticeGeometry,
    beta: float,
    seed: int,
    *,
    thermalization: int,
    separation: int,
    configurations: int,
    overrelaxation: int = 4,
    start: str = "cold",
    checkpoint: str | os.PathLike | None = None,
    checkpoint_every: int = 50,
    callback: Callable[[SweepReport], Any] | None = None,
) -> Iterator[tuple[int, GaugeField, ConfigurationInfo]]:
    r"""Quenched configurations of the Wilson action, one after the other.

    .. math:: p(U)\propto\exp\Bigl[\frac{\beta}{N_c}\sum_P\mathrm{Re\,tr}\,U_P\Bigr]

    A sweep is one heatbath sweep and ``overrelaxation`` microcanonical sweeps. Configuration i comes after
    ``thermalization + i * separation`` sweeps. On one
    machine the bits depend on these arguments alone, not on interruptions.

    Parameters
    ----------
    geometry
        A lattice with even extents; any Nc.
    beta
        Coupling 2 Nc / g^2, dimensionless.
    seed
        In [0, 2^64).
    thermalization, separation
        Sweeps before configuration 0, and between configurations (at least 0 and 1).
    configurations
        How many to make, at least 1.
    overrelaxation
        Microcanonical sweeps after each heatbath sweep, at least 0.
    start
        ``"cold"`` (unit field) or ``"hot"`` (Haar-random with the same seed).
    checkpoint
        File that holds the state of the chain. If it exists the run goes on from there, and the arguments that define
        the chain must agree; ``configurations`` may grow. It is replaced atomically. A configuration counts as
        delivered when the caller asks for the next one, so after an interruption the last may come again, with the same
        bits.
    checkpoint_every
        Sweeps between checkpoints, at least 1; one more is written before each configuration and at the end.
    callback
        Called with a :class:`SweepReport` after each sweep, for a progress bar.

    Yields
    ------
    index, field, info
        Number, a double-precision :class:`~lqcd_core.fields.GaugeField` and its :class:`ConfigurationInfo`.

    Raises
    ------
    GeometryError
        If an extent is odd.
    ParameterError
        If an argument makes no sense, or disagrees with the checkpoint.
    FileError, FileFormatError
        If the checkpoint cannot be read or written.

    Examples
    --------
    >>> g = LatticeGeometry(T=2, Z=2, Y=2, X=2)
    >>> run = generate(g, beta=5.7, seed=1, thermalization=2, separation=1, configurations=2)
    >>> [(i, info.sweep) for i, U, info in run]
    [(0, 2), (1, 3)]
    """
    # Checked here and not in the generator below, whose body does not run before the first next().
    check_beta(beta)
    reason = geometry.why_no_parity()
    if reason:
        raise GeometryError(f"cannot generate: {reason}.")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
        raise ParameterError(f"seed must be a whole number in [0, 2^64), got {seed!r}.")
    for name, value, least in (
        ("thermalization", thermalization, 0),
        ("separation", separation, 1),
        ("configurations", configurations, 1),
        ("overrelaxation", overrelaxation, 0),
        ("checkpoint_every", checkpoint_every, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ParameterError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if start not in ("cold", "hot"):
        raise ParameterError(f"start must be 'cold' or 'hot', got {start!r}.")
    parameters = {
        "action": "wilson",
        "shape": list(geometry.shape),
        "nc": int(geometry.nc),
        "beta": float(beta),
        "seed": int(seed),
        "thermalization": int(thermalization),
        "separation": int(separation),
        "overrelaxation": int(overrelaxation),
        "start": start,
    }
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and not os.access(path.parent, os.W_OK):  # said now, not after the first fifty sweeps
        raise FileError(f"cannot write checkpoints to {str(path.parent)!r}; name a directory that you can write.")
    state = _load(path, geometry, parameters) if path is not None and path.exists() else None
    return _chain(geometry, parameters, configurations, path, state, checkpoint_every, callback)


def _chain(geometry, parameters, configurations, path, state, checkpoint_every, callback):
    began = time.perf_counter()
    beta, seed = parameters["beta"], parameters["seed"]
    thermalization, separation = parameters["thermalization"], parameters["separation"]
    total = thermalization + (configurations - 1) * separation
    if state is None:
        first = GaugeField.cold(geometry) if parameters["start"] == "cold" else GaugeField.random(geometry, seed)
        sweep, index, history = 0, 0, []
        work = CheckerboardLinks(first)
        del first
    else:
        work, sweep, index, history = state

    while index < configurations:
        target = thermalization + index * separation
        while sweep < target:
            work.heatbath(beta, seed, sweep)
            for _ in range(parameters["overrelaxation"]):
                work.overrelax()
            sweep += 1
            if sweep % _UNITARIZE_EVERY == 0:
                work.unitarize()
            history.append(work.plaquette())
            if callback is not None:
                seconds = time.perf_counter() - began
                callback(SweepReport(sweep, total, sweep > thermalization, history[-1], seconds))
            if path is not None and sweep % checkpoint_every == 0 and sweep < target:
                _save(path, work, parameters, sweep, index, history)
        if path is not None:
            _save(path, work, parameters, sweep, index, history)
        field = work.field()
        value = history[-1] if history else work.plaquette()
        field.origin = {"kind": "quenched heatbath", "sweep": sweep, "plaquette": value, **parameters}
        yield index, field, ConfigurationInfo(index, sweep, value, np.array(history), dict(parameters))
        index += 1
    if path is not None:
        _save(path, work, parameters, sweep, index, history)


# -- checkpoint: a NumPy .npz with the links in canonical order and the chain's parameters as JSON --------------------


def _save(path: Path, work: CheckerboardLinks, parameters: dict, sweep: int, index: int, history: list[float]) -> None:
    from ..io.atomic import replacing  # files are not part of the start-up of the gauge formulas

    field = work.field()
    header = {"schema": _SCHEMA, "sweep": sweep, "index": index, "digest": field.digest(), "parameters": parameters}
    with replacing(path, size=field.nbytes) as f:
        np.savez(f, header=np.array(json.dumps(header)), links=field.array, history=np.array(history, float))


def _load(path: Path, geometry: LatticeGeometry, parameters: dict):
    try:
        with np.load(path, allow_pickle=False) as f:
            header = json.loads(str(f["header"]))
            links, history = f["links"], f["history"].tolist()
        found, sweep, index = header["parameters"], int(header["sweep"]), int(header["index"])
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as e:
        raise FileFormatError(
            f"{str(path)!r} is no checkpoint of lqcd_core.gauge.generate or is damaged ({e}); "
            "remove it to start the chain again."
        ) from e
    except OSError as e:
        from ..io.atomic import explain_os_error

        raise explain_os_error("read the checkpoint", path, e) from e
    if header.get("schema") != _SCHEMA:
        raise FileFormatError(
            f"{str(path)!r} has checkpoint schema {header.get('schema')!r}; this version reads {_SCHEMA}."
        )
    differ = [f"{k} is {found.get(k)!r} there and {v!r} here" for k, v in parameters.items() if found.get(k) != v]
    if differ:
        raise ParameterError(
            f"the checkpoint {str(path)!r} belongs to another chain: {'; '.join(differ)}. "
            "Give the same arguments, or another checkpoint file."
        )
    field = GaugeField(geometry, links)
    if field.digest() != header["digest"] or len(history) != sweep:
        raise FileFormatError(f"the links in {str(path)!r} do not match their digest; remove it to start again.")
    return CheckerboardLinks(field), sweep, index, history


__all__ = ["ConfigurationInfo", "SweepReport", "generate"]

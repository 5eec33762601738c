"""``neuron-sharded``: slabs over NeuronCores, one process and one core a slab, with the best Neuron backend inside.

Each process is shown one core alone (``NEURON_RT_VISIBLE_CORES``, read by the runtime when it starts), so two never meet.
"""

from __future__ import annotations

import os

from lqcd_core.errors import BackendUnavailable, ParameterError
from lqcd_core.registry import REGISTRY

from . import ranks
from .backend import ShardedBackend

VISIBLE = "NEURON_RT_VISIBLE_CORES"
"""The runtime's variable."""
BEST_FIRST = ("neuron-nki", "neuron-traced")
"""Inner backends, in the order they are tried."""


def neuron_sharded(
    inner: str | None = None, shards: int | None = None, executor: str = "auto", reductions: str = "exact",
    timeout: float = 300.0,
) -> ShardedBackend:  # fmt: skip
    """The sharded executor over NeuronCores; see :func:`~.backend.sharded` for the options.

    Parameters
    ----------
    inner
        A Neuron backend's name, or ``(name, options)``; None takes the first of neuron-nki, neuron-traced that is there.
    shards
        Slabs; None takes one a visible core.
    executor
        ``processes``, ``torch.distributed``, ``mpi``, or ``auto``: what launched the script, else processes.
    reductions, timeout
        As for :func:`~.backend.sharded`.

    Raises
    ------
    BackendUnavailable
        If there is no Neuron device, or no Neuron backend is installed.
    ParameterError
        If more shards are asked for than there are cores.
    """
    from lqcd_backends.neuron.device import require_device

    device = require_device()
    name, options = _inner(inner)
    if executor == "auto":
        executor = ranks.launched() or "processes"
    if executor == "threads":
        raise ParameterError("backend 'neuron-sharded' needs a process for every core; use executor='processes'.")
    cores = visible_cores(os.environ.get(VISIBLE, ""), device.num_cores)
    if executor == "processes":
        shards = len(cores) if shards is None else shards
        if shards > len(cores):
            raise ParameterError(
                f"backend 'neuron-sharded': shards={shards} asked for, but {len(cores)} NeuronCores are visible "
                f"({device.source}); use shards={len(cores)} or fewer."
            )
        environments = [{VISIBLE: str(core)} for core in cores[:shards]]
        return ShardedBackend(name, options, shards, executor, reductions == "exact", float(timeout), environments)
    size = ranks.world_size(executor)
    if shards not in (None, size):
        raise ParameterError(f"backend 'neuron-sharded': shards={shards} asked for, but {size} ranks were launched.")
    local = int(os.environ.get("LOCAL_RANK", os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")))
    os.environ[VISIBLE] = str(cores[local % len(cores)])  # the runtime has not started yet: the inner backend starts it
    return ShardedBackend(name, options, size, executor, reductions == "exact", float(timeout))


def _inner(inner) -> tuple[str, dict]:
    if inner is not None:
        name, options = (inner, {}) if isinstance(inner, str) else inner
        if REGISTRY.record(name).device != "neuron":
            raise ParameterError(
                f"backend 'neuron-sharded': inner={name!r} does not run on NeuronCores; use 'sharded'."
            )
        return name, dict(options)
    there = [name for name in BEST_FIRST if name in REGISTRY.records()]
    if not there:
        raise BackendUnavailable(f"needs one of the backends {', '.join(BEST_FIRST)}, and none is registered.")
    return there[0], {}


def visible_cores(said: str, count: int) -> list[int]:
    """Indices of the cores left to this process.

    Parameters
    ----------
    said
        What ``NEURON_RT_VISIBLE_CORES`` holds: numbers and ranges, or nothing.
    count
        Cores that the device reports as visible.

    Examples
    --------
    >>> visible_cores("", 2), visible_cores("4-6,9", 4)
    ([0, 1], [4, 5, 6, 9])
    """
    cores: list[int] = []
    for part in filter(None, (p.strip() for p in said.split(","))):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return list(range(count))
        cores += range(int(first), int(last or first) + 1)
    return cores or list(range(count))

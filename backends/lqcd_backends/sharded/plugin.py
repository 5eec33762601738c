"""Record of the sharded executor. Imports nothing heavy: the inner backend is loaded when the executor is."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lqcd_core import BackendInfo, hookimpl
from lqcd_core.backend import Option

from ..options import one_of, whole

EXECUTORS = ("auto", "threads", "processes", "torch.distributed", "mpi")
REDUCTIONS = ("exact", "fast")


def _inner(value) -> str | None:
    if isinstance(value, str):
        return None
    if (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], Mapping)
    ):
        return None
    return "must be the name of a backend, or (name, options)"


_shards = whole(1, none="one a usable core (one a rank under a launcher)")


def _timeout(value) -> str | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return None if number and math.isfinite(value) and value > 0 else "must be a positive number of seconds"


INFO = BackendInfo(
    name="sharded",
    load="lqcd_backends.sharded.backend:sharded",
    # What it can do is what the inner backend can: that is asked of the inner record when a lattice is known.
    precisions={"double", "single", "half", "bf16", "fixed16"},
    rank=0,
    wraps=True,
    options={
        "inner": Option("the backend that works on each slab, a name or (name, options); must be given", None, _inner),
        "shards": Option(
            "slabs of the lattice, at least 1; None takes one a usable core, or one a rank", None, _shards
        ),
        "executor": Option(
            "'threads' in this process, 'processes' on this host, 'torch.distributed' or 'mpi' over the ranks of a "
            "launch; 'auto' takes what torchrun or mpirun started, else threads",
            "auto",
            one_of(*EXECUTORS),
        ),
        "reductions": Option(
            "'exact': the same bits for any number of shards; 'fast': one number a shard", "exact", one_of(*REDUCTIONS)
        ),
        "timeout": Option("seconds after which a worker that does not answer counts as hung", 300.0, _timeout),
    },
    summary="executor: splits the lattice along T over threads, processes or hosts, each with an inner backend",
)

NEURON = BackendInfo(
    name="neuron-sharded",
    load="lqcd_backends.sharded.neuron:neuron_sharded",
    precisions={"single", "half", "bf16"},
    device="neuron",
    resources={"neuron_cores": 1},
    rank=-20,
    wraps=True,
    options={
        **INFO.options,
        "inner": Option(
            "a Neuron backend, a name or (name, options); None takes neuron-nki, else neuron-traced", None,
            lambda value: None if value is None else _inner(value),
        ),
        "shards": Option("slabs of the lattice, at least 1; None takes one a visible NeuronCore", None, _shards),
        "executor": Option(
            "'processes' on this host, or 'torch.distributed' or 'mpi' over the ranks of a launch; 'auto' takes what "
            "launched the script, else processes", "auto", one_of("auto", *EXECUTORS[2:]),
        ),
    },
    summary="`sharded` over the NeuronCores of this host, one process a core; not yet run on hardware",
)  # fmt: skip


@hookimpl
def lqcd_register_backends():
    return [INFO, NEURON]

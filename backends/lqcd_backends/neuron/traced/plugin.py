"""Record of the traced Neuron backend. Imports neither torch nor a Neuron package."""

from __future__ import annotations

from lqcd_core import BackendInfo, hookimpl
from lqcd_core.backend import Option


def _one_of(*allowed):
    listed = ", ".join(map(repr, allowed))
    return lambda value: None if value in allowed and not isinstance(value, bool) else f"must be one of {listed}"


def _whole(least: int, most: int | None = None, none: bool = False):
    def check(value) -> str | None:
        fine = (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value >= least
            and (most is None or value <= most)
        )
        if fine or (none and value is None):
            return None
        upto = f" to {most}" if most is not None else " or more"
        return f"must be a whole number, {least}{upto}" + (", or None" if none else "")

    return check


def _flag(value) -> str | None:
    return None if isinstance(value, bool) else "must be True or False"


def _path(value) -> str | None:
    return None if value is None or isinstance(value, str) else "must be a path as text, or None"


INFO = BackendInfo(
    name="neuron-traced",
    load="lqcd_backends.neuron.traced.backend:TracedBackend",
    precisions={"single", "half", "bf16"},
    device="neuron",
    resources={"neuron_cores": 1},
    features={"even_odd", "site_diagonal", "fused_dirac", "exact_slices"},
    # Below every CPU backend: nobody has run it on the hardware yet, so nobody should get it without asking.
    rank=-10,
    options={
        "gauge": Option(
            "where links live: 'resident' (weights, replaced without a recompile), 'baked' (constants, a compile per "
            "field) or 'argument' (sent with every call)", "resident", _one_of("resident", "baked", "argument")
        ),
        "inline_weights": Option("True means gauge='baked'", False, _flag),
        "formulation": Option("'half', 'fused', or 'auto' by the cost model", "auto", _one_of("auto", "half", "fused")),
        "dtype": Option(
            "serve this precision only: 'single', 'half' or 'bf16'; None for any", None,
            _one_of(None, "single", "half", "bf16"),
        ),
        "bf16_links": Option("link storage of the precision bf16", "bfloat16", _one_of("bfloat16", "float16")),
        "half_spinors": Option("spinor storage of the precision half", "float16", _one_of("float16", "float32")),
        "optimize_level": Option("the compiler's optimisation level, 1 to 3", 2, _whole(1, 3)),
        "num_cores": Option("NeuronCores that share the right-hand sides, at least 1", 1, _whole(1)),
        "slabs": Option("slabs along t, at least 1; None: as the budget asks", None, _whole(1, none=True)),
        "instruction_limit": Option("instructions allowed in a graph, at least 1", 5_000_000, _whole(1)),
        "sram_threshold_bytes": Option(
            "working set above which every stage is a launch of its own, bytes; None: never", None, _whole(1, none=True)
        ),
        "workdir": Option("folder for the compiler's own files; None for a temporary one", None, _path),
    },
    summary="operators compiled ahead of time through torch-neuronx (Inf2, Trn1, Trn2, Trn3); not yet run on hardware",
)  # fmt: skip


@hookimpl
def lqcd_register_backends():
    return [INFO]

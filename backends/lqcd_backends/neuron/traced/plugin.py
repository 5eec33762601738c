"""Record of the traced Neuron backend. Imports neither torch nor a Neuron package."""

from __future__ import annotations

from lqcd_core import BackendInfo, hookimpl
from lqcd_core.backend import Option

from ...options import flag, one_of, path, whole

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
            "field) or 'argument' (sent with every call)", "resident", one_of("resident", "baked", "argument")
        ),
        "inline_weights": Option("True means gauge='baked'", False, flag),
        "formulation": Option("'half', 'fused', or 'auto' by the cost model", "auto", one_of("auto", "half", "fused")),
        "dtype": Option(
            "serve this precision only: 'single', 'half' or 'bf16'; None for any", None,
            one_of(None, "single", "half", "bf16"),
        ),
        "bf16_links": Option("link storage of the precision bf16", "bfloat16", one_of("bfloat16", "float16")),
        "half_spinors": Option("spinor storage of the precision half", "float16", one_of("float16", "float32")),
        "optimize_level": Option("the compiler's optimisation level, 1 to 3", 2, whole(1, 3)),
        "num_cores": Option("NeuronCores that share the right-hand sides, at least 1", 1, whole(1)),
        "slabs": Option("slabs along t, at least 1; None: as the budget asks", None, whole(1, none=True)),
        "instruction_limit": Option("instructions allowed in a graph, at least 1", 5_000_000, whole(1)),
        "sram_threshold_bytes": Option(
            "working set above which every stage is a launch of its own, bytes; None: never", None, whole(1, none=True)
        ),
        "workdir": Option("folder for the compiler's own files; None for a temporary one", None, path),
        "target": Option(
            "the chip that is compiled for; None: this machine's", None, one_of(None, "inf2", "trn1", "trn1n", "trn2")
        ),
        "cpu_backend": Option("trace without a device (a build machine); needs target and the XLA package", False, flag),
    },
    summary="operators compiled ahead of time through torch-neuronx (Inf2, Trn1, Trn2, Trn3); not yet run on hardware",
)  # fmt: skip


@hookimpl
def lqcd_register_backends():
    return [INFO]

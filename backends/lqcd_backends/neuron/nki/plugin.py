"""Record of the NKI backend. Imports neither NKI, nor torch, nor a Neuron library."""

from __future__ import annotations

from lqcd_core import BackendInfo, hookimpl
from lqcd_core.backend import Option

from ...options import flag, one_of, path, whole


def _accepts(request) -> str | None:
    from .layout import why_not  # NumPy only

    return why_not(request.geometry, request.n_rhs)


def _release(value) -> str | None:
    fine = value is None or (isinstance(value, str) and all(part.isdigit() for part in value.split(".")))
    return None if fine else "must be a release such as '0.7', or None"


def _seconds(value) -> str | None:
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return None if fine else "must be a positive number of seconds"


INFO = BackendInfo(
    name="neuron-nki",
    load="lqcd_backends.neuron.nki.backend:NKIBackend",
    precisions={"single", "half", "bf16"},
    device="neuron",
    resources={"neuron_cores": 1},
    features={"even_odd", "site_diagonal", "fused_dirac", "fused_blas"},
    # Below every CPU backend: nobody has run it on the hardware yet, so nobody should get it without asking.
    rank=-11,
    accepts=_accepts,
    options={
        "formulation": Option(
            "'vector' (kernel A, few right-hand sides), 'tensor' (kernel B, many), or 'auto' by the cost model", "auto",
            one_of("auto", "vector", "tensor"),
        ),
        "route": Option("'libnrt' (every chip) or 'torch' (native tensors, Trn2 and Trn3)", "libnrt", one_of("libnrt", "torch")),
        "core": Option("index of the logical core among the visible ones, at least 0", 0, whole(0)),
        "target": Option(
            "compiler target: 'trn1', 'inf2', 'trn2' or 'trn3'; None: that of this machine", None, one_of(None, "trn1", "inf2", "trn2", "trn3")
        ),
        "lnc": Option("physical cores per logical one that is expected, 1 or 2; None: as the runtime is set", None, whole(1, 2, none=True)),
        "asynchronous": Option("schedule launches (nrta_*) and wait only for numbers", False, flag),
        "python": Option("interpreter of the compiler's environment; None: $LQCD_NEURON_PYTHON, else this one", None, path),
        "nki_version": Option("NKI release that must be found, such as '0.7'; None: the one the kernels are written for", None, _release),
        "compile_timeout": Option("seconds for one kernel, above 0", 3600.0, _seconds),
    },
    summary="fused kernels for the NeuronCore, compiled once and run through libnrt (Inf2, Trn1, Trn2, Trn3); not yet run on hardware",
)  # fmt: skip


@hookimpl
def lqcd_register_backends():
    return [INFO]

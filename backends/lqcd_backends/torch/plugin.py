"""Record of the torch backend. Imports no torch: asking what the backend can do stays light."""

from __future__ import annotations

import re

from lqcd_core import BackendInfo, hookimpl
from lqcd_core.backend import Option

from ..options import whole


def _device(value) -> str | None:
    if isinstance(value, str) and re.fullmatch(r"cpu|cuda(:\d+)?", value):
        return None
    return "must be 'cpu', 'cuda' or 'cuda:N'"


INFO = BackendInfo(
    name="torch",
    load="lqcd_backends.torch.backend:TorchBackend",
    precisions={"double", "single", "half", "bf16"},
    features={"autograd", "even_odd", "site_diagonal", "fused_dirac", "fused_blas", "exact_slices", "halo"},
    arrays={"numpy", "torch"},
    rank=10,
    options={
        "threads": Option(
            "threads of torch in this process, at least 1; None leaves torch's setting alone",
            None,
            whole(1, none="torch's own setting"),
        ),
        "device": Option("'cpu', 'cuda' or 'cuda:N'", "cpu", _device),
        "chunk": Option(
            "sites x right-hand sides worked on at a time, at least 1; None chooses",
            None,
            whole(1, none="the backend's own choice"),
        ),
    },
    summary="cache-blocked real arithmetic, differentiable; any Nc, any extents, every precision but fixed16",
)


@hookimpl
def lqcd_register_backends():
    return [INFO]

"""Record of the torch backend. Imports no torch: asking what the backend can do stays light."""

from __future__ import annotations

import re

from lqcd_core import BackendInfo, hookimpl
from lqcd_core.backend import Option


def _threads(value) -> str | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return None
    return "must be a whole number of at least 1, or None for torch's own setting"


def _device(value) -> str | None:
    if isinstance(value, str) and re.fullmatch(r"cpu|cuda(:\d+)?", value):
        return None
    return "must be 'cpu', 'cuda' or 'cuda:N'"


def _chunk(value) -> str | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return None
    return "must be a whole number of at least 1, or None for the backend's own choice"


INFO = BackendInfo(
    name="torch",
    load="lqcd_backends.torch.backend:TorchBackend",
    precisions={"double", "single", "half", "bf16"},
    features={"autograd", "even_odd", "site_diagonal", "fused_dirac", "fused_blas", "exact_slices", "halo"},
    arrays={"numpy", "torch"},
    rank=10,
    options={
        "threads": Option(
            "threads of torch in this process, at least 1; None leaves torch's setting alone", None, _threads
        ),
        "device": Option("'cpu', 'cuda' or 'cuda:N'", "cpu", _device),
        "chunk": Option("sites x right-hand sides worked on at a time, at least 1; None chooses", None, _chunk),
    },
    summary="cache-blocked real arithmetic, differentiable; any Nc, any extents, every precision but fixed16",
)


@hookimpl
def lqcd_register_backends():
    return [INFO]

"""Record of the NumPy backend."""

from lqcd_core import BackendInfo, hookimpl

INFO = BackendInfo(
    name="numpy",
    load="lqcd_backends.numpy.backend:NumpyBackend",
    precisions={"double", "single", "half", "bf16"},
    features={"even_odd", "site_diagonal", "exact_slices", "halo"},
    rank=0,
    summary="reference: any Nc, any extents, every precision but fixed16; one thread",
)


@hookimpl
def lqcd_register_backends():
    return [INFO]

"""The ancestor's explicit interface: a compiler object whose results are bound operators.

Everything here is ``definition.bind(U, backend=("neuron-traced", options))`` under other names; scripts that do not need those
names are better off with :func:`lqcd_core.use_backend`.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from lqcd_core.errors import FieldShapeError, ParameterError
from lqcd_core.operators.bound import BoundOperator, geometry_of
from lqcd_core.precision import as_precision

from ..device import require_device


class NeuronCompiler:
    """Compiles operators for a NeuronCore.

    Parameters
    ----------
    dtype
        ``float32`` (single), ``bfloat16`` (bf16) or ``float16`` (half), by either name.
    optimize_level
        The compiler's optimisation level, 1 to 3.
    workdir
        Folder for the compiler's own files, a subfolder a graph; None for a temporary one. The cache of results is elsewhere (docs/neuron.md).
    sram_threshold_bytes
        Working set above which every stage of a chain is a launch of its own, bytes; None: never.
    target, cpu_backend
        ``target="trn1", cpu_backend=True`` compiles on a machine without a device: ``warm_up()`` of a result fills the cache,
        calling it raises. The package must be the one whose ``trace`` has ``cpu_backend``.
    gauge, formulation, bf16_links, half_spinors, instruction_limit
        As the options of the backend ``neuron-traced``.

    Raises
    ------
    ParameterError
        For a precision that Neuron lacks.
    """

    def __init__(
        self, *, dtype: str = "float32", optimize_level: int = 2, workdir: str | None = None,
        sram_threshold_bytes: int | None = None, **options: Any,
    ):  # fmt: skip
        self.precision = as_precision(dtype)
        if self.precision.name not in ("single", "half", "bf16"):
            raise ParameterError(
                f"Neuron has no {self.precision} precision; use dtype='float32', 'bfloat16' or 'float16' inside MixedPrecision."
            )
        self.options = {
            "optimize_level": optimize_level,
            "workdir": workdir,
            "sram_threshold_bytes": sram_threshold_bytes,
        }
        self.options.update(options)

    def compile_dslash(self, D, lattice_shape=None, nc: int | None = None, gauge_field=None) -> BoundOperator:
        """D on one right-hand side.

        Parameters
        ----------
        D
            A definition: ``WilsonDirac``, ``CloverWilsonDirac``, ``TwistedMassDirac``, ...
        lattice_shape, nc
            Extents ``(T, Z, Y, X)`` and colours; None: those of the field. Given, they must be.
        gauge_field
            Links, a field or an array ``(T, Z, Y, X, 4, Nc, Nc)``.

        Returns
        -------
        BoundOperator
            What solvers take; ``result.apply.warm_up()`` compiles at once, the first call otherwise.

        Raises
        ------
        BackendUnavailable
            Without a Neuron device.
        """
        return self._bind(D, lattice_shape, nc, gauge_field, 1)

    def compile_dslash_batched(
        self, D, lattice_shape=None, nc=None, gauge_field=None, *, batch_size: int
    ) -> BoundOperator:
        """D on ``batch_size`` right-hand sides at once; a shorter last batch is padded."""
        return self._bind(D, lattice_shape, nc, gauge_field, batch_size)

    def compile_dslash_multicore(
        self, D, lattice_shape=None, nc=None, gauge_field=None, *, num_cores: int | None = None, per_core_batch_size: int = 1
    ) -> BoundOperator:  # fmt: skip
        """D on ``num_cores * per_core_batch_size`` right-hand sides, so many on each core. None: every core there is."""
        cores = require_device().num_cores if num_cores is None else num_cores
        for name, count in (("num_cores", cores), ("per_core_batch_size", per_core_batch_size)):
            if not isinstance(count, Integral) or count < 1:
                raise ParameterError(f"{name} must be a whole number of at least 1, got {count!r}.")
        return self._bind(D, lattice_shape, nc, gauge_field, cores * per_core_batch_size, num_cores=cores)

    def compile_dslash_sharded(
        self, D, lattice_shape=None, nc=None, gauge_field=None, *, num_shards: int, batch_size: int = 1
    ) -> BoundOperator:  # fmt: skip
        """D in ``num_shards`` slabs along t, one after the other on a core: for lattices beyond one graph's limits."""
        return self._bind(D, lattice_shape, nc, gauge_field, batch_size, slabs=num_shards)

    def _bind(self, D, lattice_shape, nc, gauge_field, n_rhs: int, **more) -> BoundOperator:
        if gauge_field is None:
            raise ParameterError("an operator is compiled for its links: pass gauge_field= (a field or an array).")
        geometry = geometry_of(gauge_field)
        for name, given, found in (("lattice_shape", lattice_shape, geometry.shape), ("nc", nc, geometry.nc)):
            if given is not None and not np.array_equal(given, found):
                raise FieldShapeError(f"{name}={given!r} was asked for, but the links have {found!r}.")
        options = {k: v for k, v in {**self.options, **more}.items() if v is not None}
        return D.bind(gauge_field, backend=("neuron-traced", options), precision=self.precision, n_rhs=n_rhs)


__all__ = ["NeuronCompiler"]

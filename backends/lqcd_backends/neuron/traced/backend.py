r"""The backend ``neuron-traced``: every operator is a graph compiled ahead of time by torch-neuronx.

.. math:: M = A - H,\qquad M^\dagger,\qquad M^\dagger M,\qquad A_p - H_{pq}A_q^{-1}H_{qp}

each as one static graph in real arithmetic (:mod:`.graph`). The solver's loop runs on the host; a call is one launch, or as
many as the budget asks for (:mod:`.run`). Without a Neuron device the constructor raises: there is no path by the CPU.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from ..native_cache import VARIABLE as _SET_BEFORE_TORCH  # noqa: F401 - the import itself is what matters

# isort: split
import torch

from lqcd_core.backend import DiracTerms, Handle, Links, Request, SiteDiagonal
from lqcd_core.errors import BackendUnavailable, ParameterError
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision

from ..budget import INSTRUCTION_LIMIT
from ..device import NeuronDevice, device_of_target, generation_of, get_device, require_device
from . import cost
from .adapters import CompileOptions, find_adapter, versions
from .graph import FORMULATIONS, GraphSpec, Stage, Term, link_weight
from .program import Program, dirac_program, hop_program, site_program
from .run import Executable, Settings, need_of
from .space import TracedSpace


class TracedBackend:
    """See the module; the options are those of the record (:mod:`.plugin`).

    Raises
    ------
    BackendUnavailable
        If there is no Neuron device (and no ``cpu_backend``), no torch-neuronx for it, or one that lacks what the options need.
    ParameterError
        If options contradict each other.
    """

    def __init__(
        self, gauge: str = "resident", inline_weights: bool = False, formulation: str = "auto", dtype: str | None = None,
        bf16_links: str = "bfloat16", half_spinors: str = "float16", optimize_level: int = 2, num_cores: int = 1,
        slabs: int | None = None, instruction_limit: int = INSTRUCTION_LIMIT, sram_threshold_bytes: int | None = None,
        workdir: str | None = None, target: str | None = None, cpu_backend: bool = False,
    ):  # fmt: skip
        self.device, runs = self._device(target, cpu_backend)
        self.adapter = find_adapter(self.device, build_only=not runs)
        if inline_weights and gauge == "argument":
            raise ParameterError("inline_weights=True bakes the links into the graph; it contradicts gauge='argument'.")
        if runs and num_cores > self.device.num_cores:
            raise ParameterError(f"num_cores={num_cores}, but this process sees {self.device.num_cores} NeuronCore(s).")
        self.gauge = "baked" if inline_weights else gauge
        self.formulation, self.dtype, self.slabs = formulation, dtype, slabs
        self.bf16_links, self.half_spinors = bf16_links, half_spinors
        self.instruction_limit, self.sram_threshold = instruction_limit, sram_threshold_bytes
        self.compiler = CompileOptions(
            optimize_level=optimize_level, workdir=workdir, num_cores=num_cores, target=target or "", cpu_backend=cpu_backend
        )  # fmt: skip
        if reason := self.adapter.why_not(self.gauge, self.compiler):
            raise BackendUnavailable(reason)
        self._packed: weakref.WeakKeyDictionary[Links, dict] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    @staticmethod
    def _device(target: str | None, cpu_backend: bool) -> tuple[NeuronDevice, bool]:
        """(what is compiled for, whether it is here to run on)."""
        if not cpu_backend:
            found = require_device()
            if target is not None and found.generation and generation_of(target) != found.generation:
                raise ParameterError(
                    f"target={target!r}, but this machine has a {found.generation} device ({found.instance_type or 'unnamed'}), "
                    "which cannot run that; leave target out, or compile for another machine with cpu_backend=True."
                )
            return found, True
        if target is None:
            raise ParameterError(
                "cpu_backend=True compiles without asking a device: name the machine, e.g. target='trn1'."
            )
        found = get_device()
        if found.is_neuron and found.generation == generation_of(target):
            return found, True
        return device_of_target(target), False

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> TracedSpace:
        if self.dtype is not None and precision.name != self.dtype:
            raise ParameterError(
                f"the backend was set up with dtype={self.dtype!r}, and an operator was bound in {precision}; bind with "
                f"precision={self.dtype!r}, or leave dtype out."
            )
        return TracedSpace(geometry, precision, n_rhs, parity, self._storage(precision)[1], self.adapter)

    def hopping(self, links: Links, space: TracedSpace) -> Callable[[Handle], Handle]:
        return self._executable(lambda form, store: hop_program(links, FULL, form, store), links, space, 1, (FULL,))

    def parity_hopping(self, links: Links, target: TracedSpace) -> Callable[[Handle], Handle]:
        p = target.parity
        return self._executable(lambda form, store: hop_program(links, p, form, store), links, target, 1, (p,))

    def site_diagonal(self, term: SiteDiagonal, space: TracedSpace) -> Callable[[Handle], Handle]:
        g, p = space.geometry, space.parity
        settings = self._settings(space, "half")  # no hop: nothing to choose
        return Executable(lambda: site_program(term, g, p), lambda name: None, settings, self.adapter, self.device)

    def fused(self, kind: str, terms: DiracTerms, space: TracedSpace) -> Callable[[Handle], Handle]:
        parities = (FULL,) if kind in ("M", "Mdag", "MdagM") else (0, 1)
        hops = {"MdagM": 2, "schur": 2, "schur_dag": 2, "schur_normal": 4}.get(kind, 1)
        return self._executable(
            lambda form, store: dirac_program(kind, terms, form, store), terms.links, space, hops, parities
        )

    def _executable(
        self, program: Callable[[str, str], Program], links: Links, space, hops: int, parities
    ) -> Executable:
        form = self._formulation(space.geometry, space.precision, space.n_rhs)
        settings = self._settings(space, form)
        # Links are copied now: what the caller does to its array later is not seen by an operator that is bound.
        kept = self._frozen_links(links, form, settings.links, parities)
        make = lambda: program(form, settings.links)  # noqa: E731
        return Executable(make, kept.get, settings, self.adapter, self.device)

    def _frozen_links(self, links: Links, form: str, storage: str, parities) -> dict[str, torch.Tensor]:
        with self._lock:
            packed = self._packed.setdefault(links, {})
            for parity in parities:
                key = (form, storage, parity)
                if key not in packed:
                    packed[key] = link_weight(links, parity, form, storage)
            return {"links" if p is FULL else f"links{p}": packed[form, storage, p] for p in parities}

    def _storage(self, precision: Precision) -> tuple[str, str]:
        """(links, vectors). An option may only store more than the precision promises."""
        links = self.bf16_links if precision.name == "bf16" else precision.link_storage
        return links, self.half_spinors if precision.name == "half" else precision.spinor_storage

    def _settings(self, space: TracedSpace, formulation: str) -> Settings:
        return Settings(
            formulation=formulation, gauge=self.gauge, links=self._storage(space.precision)[0], storage=space.storage_name,
            n_rhs=space.n_rhs, compiler=self.compiler, slabs=self.slabs, instruction_limit=self.instruction_limit,
            sram_threshold=self.sram_threshold,
        )  # fmt: skip

    # -- the cost model ------------------------------------------------------------------------------------------------

    def _models(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int) -> dict[str, GraphSpec]:
        links, storage = self._storage(precision)
        n = -(-n_rhs // self.compiler.num_cores)
        return {
            form: GraphSpec(
                chain=((Stage(centre=Term("scale", "scale_a")),),), sites=geometry.shape, nc=geometry.nc,
                n_rhs=n, formulation=form, link_storage=links, storage_in=storage, storage_out=storage, weights=("links", "scale_a"),
            )
            for form in FORMULATIONS
        }  # fmt: skip

    def _formulation(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int) -> str:
        if self.formulation != "auto":
            return self.formulation
        return cost.choose_formulation(self._models(geometry, precision, n_rhs), self.device.hardware)[0]

    def plan(self, request: Request) -> str:
        """The choice of formulation with the model's numbers, and the budget of M: what ``explain`` prints."""
        models = self._models(request.geometry, request.precision, request.n_rhs)
        best, times = cost.choose_formulation(models, self.device.hardware)
        form = best if self.formulation == "auto" else self.formulation
        space = self.space(request.geometry, request.precision, request.n_rhs)
        chain = models[form].chain
        program = Program("M", request.geometry, FULL, chain, dict.fromkeys(models[form].weights))
        need = need_of(program, self._settings(space, form), self.slabs or 1, self.slabs in (None, 1))
        listed = ", ".join(f"{name} {1e6 * t:.3g} us" for name, t in times.items())
        return (
            f"model of one M without launch cost: {listed}; formulation {form!r}, gauge {self.gauge!r}, about "
            f"{need.instructions:,} of {self.instruction_limit:,} instructions"
        )

    def describe(self) -> dict[str, str]:
        """Device, package and versions."""
        d = self.device
        facts = {
            "device": f"{d.num_devices} chip(s), {d.num_cores} core(s), {d.generation or 'unknown generation'}",
            "instance_type": d.instance_type or "unknown", "found_by": d.source, **self.adapter.describe(),
        }  # fmt: skip
        return {**facts, **{name: v or "unknown" for name, v in versions().items()}}


__all__ = ["TracedBackend"]

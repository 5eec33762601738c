r"""The backend ``neuron-nki``: each operation on vectors is one launch of a kernel written for the NeuronCore.

.. math:: H,\qquad A,\qquad M = A - H,\qquad M^\dagger = A^\dagger - \gamma_5 H\gamma_5,\qquad M^\dagger M

Kernels are compiled once into a cache (:mod:`.driver`), run through libnrt or native torch tensors (:mod:`.launch`,
:mod:`.torch_route`); links are packed and placed in device memory when an operator is bound and stay there. Schur complements are
put together by the core from parity hops and site terms, which are launches too. Without a Neuron device the constructor raises:
there is no path by the CPU.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping

import attrs
import numpy as np

from lqcd_core.backend import DiracTerms, Handle, Links, Request, SiteDiagonal
from lqcd_core.errors import BackendUnavailable, ParameterError
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision

from ..device import NeuronDevice, require_device
from .catalogue import Catalogue
from .driver import TARGETS, Compiler, KernelStore, check_target
from .launch import Buffer, LibnrtExecutor
from .libnrt import Library, runtime
from .limits import check_fits
from .space import NKISpace
from .torch_route import TorchExecutor, find_package

LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"


def target_of(device: NeuronDevice, asked: str | None = None) -> str:
    """The compiler target of a machine.

    Raises
    ------
    BackendUnavailable
        If the machine does not say what it is, or is of another generation than what was asked for.
    """
    if asked is not None:
        if device.generation and TARGETS[asked] != device.generation:
            chips = device.hardware.chips
            raise BackendUnavailable(
                f"target={asked!r} was asked for, and this machine has {chips} ({device.generation}): a kernel runs on the generation it was "
                "compiled for; leave target out here, and use it on a build machine"
            )
        return asked
    if not device.generation:
        raise BackendUnavailable(
            f"{device.source} does not say which chip this is; set the option target to one of {', '.join(TARGETS)}"
        )
    return "inf2" if device.generation == "gen2" and "inf2" in device.instance_type.lower() else device.hardware.target


def lnc_of(device: NeuronDevice, asked: int | None = None) -> int:
    """Physical cores per logical core, which compiler and runtime must agree about.

    Raises
    ------
    BackendUnavailable
        If the runtime of this process will use another number than what was asked for.
    """
    there = device.logical_core_config
    if asked is not None and asked != there:
        raise BackendUnavailable(
            f"lnc={asked} was asked for, and the runtime here joins {there} physical core(s) to a logical one; set {LNC_VARIABLE}={asked} before "
            "the process starts, or leave lnc out"
        )
    return there


class NKIBackend:
    """See the module; the options are those of the record (:mod:`.plugin`). No core is claimed before the first operator is bound.

    Raises
    ------
    BackendUnavailable
        Without a Neuron device, a runtime library, or a torch for the route that was asked for.
    """

    def __init__(
        self, formulation: str = "auto", route: str = "libnrt", core: int = 0, target: str | None = None, lnc: int | None = None,
        asynchronous: bool = False, python: str | None = None, nki_version: str | None = None, compile_timeout: float = 3600.0,
    ):  # fmt: skip
        self.device = require_device()
        self.target, self.lnc = target_of(self.device, target), lnc_of(self.device, lnc)
        check_target(self.target, self.lnc)
        self.route, self.core, self.asynchronous = route, core, asynchronous
        if route == "torch":
            if asynchronous or core:
                raise ParameterError(
                    "route='torch' has one core, chosen by torch, and torch's own order of launches; leave core and asynchronous out, or use "
                    "route='libnrt'."
                )
            self.package = find_package(self.device)
        else:
            self.library = Library()
        self.catalogue = Catalogue(self.target, self.lnc, formulation)
        self.compiler = Compiler(self.target, self.lnc, python, nki_version, compile_timeout)
        self._executor = None
        self._lock = threading.Lock()
        self._placed: weakref.WeakKeyDictionary[Links, dict] = weakref.WeakKeyDictionary()

    @property
    def label(self) -> str:
        """What a stand-in calls itself; empty on hardware."""
        if self.route == "torch":
            return self.package.label
        return self.library.label

    @property
    def executor(self):
        """Where kernels run; the first use claims the cores."""
        with self._lock:
            if self._executor is None:
                self._executor = TorchExecutor(self.package, self.compiler) if self.route == "torch" else self._start()
            elif self.route == "libnrt":
                self._executor.runtime.check()  # a forked child, or after close
            return self._executor

    def _start(self) -> LibnrtExecutor:
        run = runtime()
        return LibnrtExecutor(run, KernelStore(self.compiler, run.label), self.core, self.asynchronous)

    def run(self, spec, given: Mapping[str, Buffer | np.ndarray]) -> tuple:
        """One launch with its inputs by name."""
        return self.executor.launch(spec)(*(given[a.name] for a in spec.inputs))

    # -- the protocol -------------------------------------------------------------------------------------------------

    def space(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int = 1, parity=FULL) -> NKISpace:
        reason = self.catalogue.why_not(geometry, precision, n_rhs)
        if reason:
            raise BackendUnavailable(reason)
        return NKISpace(self, geometry, precision, n_rhs, parity)

    def hopping(self, links: Links, space: NKISpace) -> Callable[[Handle], Handle]:
        return self._operator(*self.catalogue.hop(space.layout), space, links)

    def parity_hopping(self, links: Links, target: NKISpace) -> Callable[[Handle], Handle]:
        return self._operator(*self.catalogue.hop(target.layout), target, links)

    def site_diagonal(self, term: SiteDiagonal, space: NKISpace) -> Callable[[Handle], Handle]:
        form, arrays = self.catalogue.term(term, space.layout)
        return self._operator(self.catalogue.site(space.layout, form), arrays, space)

    def fused(self, kind: str, terms: DiracTerms, space: NKISpace) -> Callable[[Handle], Handle] | None:
        if kind == "MdagM":
            form, arrays = self.catalogue.term(terms.diagonal, space.layout)
            spec = self.catalogue.normal(space.layout, form)
            if spec is not None:
                return NormalOperator(operator=self._operator(spec, arrays, space, terms.links), space=space)
            forward, backward = self.fused("M", terms, space), self.fused("Mdag", terms, space)
            return lambda x: backward(forward(x))
        if kind not in ("M", "Mdag"):
            return None  # from parity hops and site terms, by the core
        dagger = kind == "Mdag"
        form, arrays = self.catalogue.term(terms.diagonal.dagger() if dagger else terms.diagonal, space.layout)
        return self._operator(self.catalogue.dirac(space.layout, form, dagger), arrays, space, terms.links)

    def _operator(
        self, spec, arrays: Mapping[str, np.ndarray], space: NKISpace, links: Links | None = None
    ) -> Operator:
        resident_bytes = (*spec.inputs, *spec.outputs)
        check_fits(spec.name, resident_bytes, self.device, space.vector.nbytes)
        resident = dict(self._links_on_device(links, space)) if links is not None else {}
        resident.update({name: self.executor.place(np.ascontiguousarray(a), name) for name, a in arrays.items()})
        return Operator(backend=self, spec=spec, resident=resident)

    def _links_on_device(self, links: Links, space: NKISpace) -> dict[str, Buffer]:
        """Packed now, so that an operator keeps the links it was bound to; placed once for all operators of a bind."""
        executor, layout = self.executor, space.layout
        with self._lock:
            placed = self._placed.setdefault(links, {})
            key = (id(executor), space.parity, space.precision, space.n_rhs)
            if key not in placed:
                placed[key] = {
                    n: executor.place(np.ascontiguousarray(a), n)
                    for n, a in self.catalogue.links(links, layout).items()
                }
            return placed[key]

    # -- said ---------------------------------------------------------------------------------------------------------

    def plan(self, request: Request) -> str:
        """The formulation with the cost model's numbers: what ``explain`` prints."""
        text = self.catalogue.plan(request.geometry, request.precision, request.n_rhs)
        return f"{self.label}: {text}" if self.label else text

    def describe(self) -> dict[str, str]:
        """Device, route, target, versions, and the label of a stand-in."""
        d = self.device
        facts = {
            "device": f"{d.num_devices} chip(s), {d.num_cores} core(s), {d.generation or 'unknown generation'}",
            "instance_type": d.instance_type or "unknown", "found_by": d.source, "route": self.route, "target": self.target,
            "lnc": str(self.lnc), "core": str(self.core), "asynchronous": str(self.asynchronous),
        }  # fmt: skip
        if self.route == "libnrt":
            facts["library"] = self.library.path
            if self._executor is not None:
                facts["runtime"] = self._executor.runtime.version() or "unknown"
        if self.label:
            facts["stand_in"] = self.label
        return facts


@attrs.define(eq=False, kw_only=True)
class Operator:
    """A kernel with the tensors that stay on the device: a function of a handle."""

    backend: NKIBackend
    """Where it runs."""
    spec: object
    """The kernel."""
    resident: Mapping[str, Buffer]
    """Links and site terms in device memory, by input name."""
    _seconds: float = 0.0

    def __call__(self, psi: Handle) -> Handle:
        # A kernel calls the vector that it hops psi, and the one under A chi: on the full lattice they are one.
        return self.backend.run(self.spec, {**self.resident, "psi": psi, "chi": psi})[0]

    def warm_up(self) -> None:
        """Compile (or read) and load now, instead of at the first call."""
        begin = time.perf_counter()
        self.backend.executor.launch(self.spec)
        self._seconds = time.perf_counter() - begin

    def report(self) -> str:
        """The kernel and where it came from; of a stand-in, what it is."""
        store = getattr(self.backend.executor, "store", None)
        made = f", {store.compiled} kernel(s) compiled and {store.found} found in this process" if store else ""
        mark = f"{self.backend.label}: " if self.backend.label else ""
        return f"{mark}{self.spec.name}, ready after {self._seconds:.2f} s{made}"


@attrs.frozen(eq=False, kw_only=True)
class NormalOperator:
    """M^dagger M in one launch, which also sums Re psi^dagger M^dagger M psi: CG asks for it next, and finds it on the result."""

    operator: Operator
    """The kernel."""
    space: NKISpace
    """Whose inner product the sums are."""

    def __call__(self, psi: Handle) -> Handle:
        space, operator = self.space, self.operator
        scale = space.scale_of("normal")
        given = {**operator.resident, "psi": psi, "scale": operator.backend.catalogue.scale(space.layout, scale)}
        out, sums = operator.backend.run(operator.spec, given)
        out.overlap = (psi, sums, scale, operator.spec.outputs[1])
        return out

    def warm_up(self) -> None:
        """Compile (or read) and load now."""
        self.operator.warm_up()

    def report(self) -> str:
        """The kernel and where it came from."""
        return self.operator.report()


def why_not_here(core: int = 0) -> str | None:
    """None if the backend could start on this machine, else the reason. Claims no core and initialises nothing."""
    try:
        backend = NKIBackend(core=core)
    except BackendUnavailable as error:
        return str(error)
    count = backend.device.num_cores
    return None if core < count else f"core={core} was asked for and this process sees {count} core(s)"


def is_available() -> bool:
    """True if there is a device, of a known generation, and a runtime library; no core is claimed to find out."""
    return why_not_here() is None


__all__ = ["NKIBackend", "NormalOperator", "Operator", "is_available", "lnc_of", "target_of", "why_not_here"]

"""One measurement: an operator bound in a backend to a fixed field, ready to be called."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from ..errors import ParameterError
from ..fields import GaugeField
from ..geometry import EVEN, LatticeGeometry
from ..operators import CloverWilsonDirac, WilsonDirac
from ..precision import as_precision
from .work import Work, work

SEED = 42
"""Of the field, so that every backend and every machine works on the same links."""


@attrs.frozen(kw_only=True)
class Case:
    """What is measured."""

    operator: str
    """A name of :data:`~lqcd_core.bench.work.WORK`."""
    lattice: tuple[int, int, int, int] = attrs.field(converter=tuple)
    """Extents T, Z, Y, X."""
    precision: str
    """A name of the precision table."""
    n_rhs: int
    """Right-hand sides, at least 1."""
    backend: str
    """A registered name."""
    threads: int
    """Threads, at least 1."""

    @property
    def volume(self) -> int:
        """Sites of the full lattice."""
        return int(np.prod(self.lattice))

    @property
    def work(self) -> Work:
        """Counts per site."""
        return work(self.operator)

    @property
    def flops(self) -> float:
        """Of one application."""
        return self.work.flops * self.volume * self.n_rhs

    @property
    def bytes(self) -> float:
        """Counted bytes of one application, which is also the working set: every field is touched once."""
        return self.work.bytes(as_precision(self.precision), self.n_rhs) * self.volume


def noise(space, n_rhs: int):
    """A handle of normal noise, its pages touched; one column drawn, the others shifted copies of it."""
    g, parity = space.geometry, space.parity
    shape = g.spinor_shape if parity is None else g.parity_shape(parity)
    rng = np.random.default_rng(7)
    one = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(space.precision.complex_dtype)
    handle = space.pack(np.stack([np.roll(one, k, axis=3) for k in range(n_rhs)]))
    space.norm2(handle)
    return handle


@attrs.frozen(kw_only=True)
class Prepared:
    """A case that is bound and warmed up."""

    call: Callable[[], Any]
    """One application."""
    finish: Callable[[Any], Any]
    """Waits until the result of a call is there."""
    once: float
    """Seconds of one application, roughly."""
    facts: Mapping[str, str]
    """What the backend says of itself."""

    def run(self, seconds: float) -> tuple[float, int]:
        """(seconds of one application, applications), averaged over enough of them to fill ``seconds``."""
        count = max(1, int(seconds / max(self.once, 1e-7)))
        call = self.call
        start = time.perf_counter()
        for _ in range(count):
            out = call()
        self.finish(out)
        return (time.perf_counter() - start) / count, count


def bound(operator: str, lattice, precision: str, n_rhs: int, backend):
    """(function, argument, space of the argument, bound operator): ``backend`` as ``bind`` takes it.

    Raises
    ------
    BackendError
        If the backend cannot serve.
    """
    work(operator)
    geometry = LatticeGeometry.from_shape(tuple(lattice))
    field = GaugeField.random(geometry, seed=SEED)
    definition = CloverWilsonDirac(mass=0.1, csw=1.0) if operator == "clover" else WilsonDirac(mass=0.1)
    made = definition.bind(field, backend=backend, precision=precision, n_rhs=n_rhs, check_links=False)
    if operator in ("hop", "wilson", "clover"):
        return (made.hopping if operator == "hop" else made.apply), noise(made.space, n_rhs), made.space, made
    reason = geometry.why_no_parity()
    if reason:
        raise ParameterError(f"operator {operator!r} on {geometry}: {reason}")
    if operator == "schur":
        schur = made.even_odd(EVEN, "symmetric")
        return schur.apply, noise(schur.vectors.space, n_rhs), schur.vectors.space, made
    from ..backend import SupportsEvenOdd

    if not isinstance(made.backend, SupportsEvenOdd):
        raise ParameterError(f"backend {made.choice.name!r} has no hop between parities: it cannot run {operator!r}.")
    even = made.backend.space(geometry, made.precision, n_rhs, EVEN)
    odd = made.backend.space(geometry, made.precision, n_rhs, 1 - EVEN)
    return made.backend.parity_hopping(made.links, even), noise(odd, n_rhs), even, made


def prepare(case: Case) -> Prepared:
    """Bind, touch memory, warm up.

    Raises
    ------
    BackendError
        If the backend cannot serve the case here.
    """
    from ..registry import REGISTRY

    info = REGISTRY.record(case.backend)
    choice = (case.backend, {"threads": case.threads}) if "threads" in info.options else case.backend
    function, x, space, made = bound(case.operator, case.lattice, case.precision, case.n_rhs, choice)
    # On the CPU a call has ended when it returns; elsewhere a number on the host is what has to wait for it.
    finish = (lambda out: None) if info.device == "cpu" else space.norm2
    finish(function(x))
    once = min(_timed(function, x, finish) for _ in range(2))
    describe = getattr(made.backend, "describe", None)
    facts = {k: str(v) for k, v in describe().items()} if callable(describe) else {}
    return Prepared(call=lambda: function(x), finish=finish, once=once, facts=facts)


def _timed(function, x, finish) -> float:
    start = time.perf_counter()
    finish(function(x))
    return time.perf_counter() - start


__all__ = ["SEED", "Case", "Prepared", "bound", "noise", "prepare"]

r"""Whole solves inside the backend (SupportsDeviceSolve): operators, sources and targets put together for the compiled loop.

.. math:: \hat b = \text{prepare}(b_p, b_q),\quad \hat Mx_p = \hat b\ \text{(compiled)},\quad
          x_q = A_q^{-1}(b_q + H_{qp}x_p)

Handles never leave the backend. What the compiled loop does is that of :mod:`lqcd_core.solvers`: conjugate gradient on the
normal equations with the residual of the system itself kept, BiCGStab, and both mixed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from lqcd_core.backend import DiracTerms, Handle
from lqcd_core.geometry import EVEN, ODD
from lqcd_core.solvers import BiCGStab, ConjugateGradient, MixedPrecision, NormalCG
from lqcd_core.solvers.mixed import cycle_tolerance
from lqcd_core.solvers.solve import schur_targets

from . import _native

RECURRENCES = {"ConjugateGradient": "cgnr", "NormalCG": "cgnr", "BiCGStab": "bicgstab"}
"""Solvers served, by name, with the compiled recurrence."""

_DEFAULTS = {
    kind.__name__: {f.name: f.default for f in attrs.fields(kind)}
    for kind in (ConjugateGradient, NormalCG, BiCGStab, MixedPrecision)
}
_systems: Any = weakref.WeakKeyDictionary()  # bound operator -> {(even_odd, parity, form): system}
_lock = threading.Lock()


def solve_inside(
    backend: Any,
    bound: Any,
    inner_bound: Any,
    b: Handle,
    x0: Handle | None,
    parameters: Mapping[str, Any],
    callback: Any,
) -> tuple[Handle, Mapping[str, Any]] | None:
    """See :class:`lqcd_core.backend.SupportsDeviceSolve`; None for solvers and precisions that it does not serve."""
    name, mixing, recurrence = parameters["solver"], "none", parameters
    if name == "MixedPrecision":
        if parameters.get("inner_operator") is not None:
            return None  # an operator of the caller's own
        recurrence, mixing = parameters["inner"], parameters["method"]
    kind = RECURRENCES.get(recurrence["solver"])
    operators = [bound] if mixing == "none" else [bound, inner_bound]
    if kind is None or not all(_served(m, backend) for m in operators):
        return None
    even_odd, parity, form = parameters["even_odd"], parameters["parity"], parameters["form"]
    systems = [system_of(m, even_odd, parity, form) for m in operators]
    targets = np.asarray(parameters["targets"], float)
    threads = backend.threads

    def run(source: Handle, start: Handle | None, wanted: np.ndarray) -> tuple[Handle, dict[str, Any]]:
        return _native.solve(
            outer=systems[0], inner=systems[1] if len(systems) > 1 else None, recurrence=kind, mixing=mixing,
            targets=wanted.tolist(), maxiter=int(parameters["maxiter"]),
            restarts=int(_parameter(recurrence, "restarts")), patience=int(_parameter(recurrence, "patience")),
            inner_tol=max(recurrence["tol"], cycle_tolerance(operators[-1].precision)),
            delta=float(_parameter(parameters, "delta")) if mixing != "none" else 0.5,
            inner_maxiter=int(_parameter(recurrence, "maxiter")),
            cycles=int(_parameter(parameters, "cycles")) if mixing != "none" else 1,
            b=source, x0=start, callback=callback if parameters.get("heard", True) else None,
        )  # fmt: skip

    if not even_odd:
        return run(b, x0, targets)
    schur = bound.even_odd(parity, form)
    layouts = {k: schur.v[k].space.layout for k in (EVEN, ODD)}
    halves = {k: _native.split_parity(b, layouts[k], threads) for k in (EVEN, ODD)}
    source = schur.prepare(halves.pop(parity), halves[1 - parity])
    start = None if x0 is None else _native.split_parity(x0, layouts[parity], threads)
    given, prepared = bound.space.norm2(b), schur.vectors.space.norm2(source)
    x_p, said = run(source, start, schur_targets(schur, targets, np.sqrt(given), np.sqrt(prepared)))
    del source, start
    both = {parity: x_p, 1 - parity: schur.reconstruct(x_p, halves.pop(1 - parity))}
    return _native.join_parity(both[EVEN], both[ODD], bound.space.layout, threads), said


def system_of(bound: Any, even_odd: bool, parity: int, form: str) -> Any:
    """M or its Schur complement, and the adjoint, as the compiled loop takes them; kept as long as ``bound`` lives."""
    key = (even_odd, parity, form) if even_odd else (False,)
    with _lock:
        kept = _systems.setdefault(bound, {})
    if key not in kept:
        backend = bound.backend
        if even_odd:
            space = bound.even_odd(parity, form).vectors.space
            terms = DiracTerms(links=bound.links, diagonal=bound.diagonal, parity=parity, form=form)
            passes = [backend.schur_passes(terms, space, dagger) for dagger in (False, True)]
        else:
            space = bound.space
            terms = DiracTerms(links=bound.links, diagonal=bound.diagonal)
            passes = [(None, None, backend.fused(k, terms, space)) for k in ("M", "Mdag")]
        kept[key] = _native.System(space.layout, backend.threads, *passes[0], *passes[1])
    return kept[key]


def _served(bound: Any, backend: Any) -> bool:
    return (
        bound is not None and isinstance(bound.backend, type(backend)) and bound.precision.name in ("double", "single")
    )


def _parameter(given: Mapping[str, Any], name: str) -> Any:
    """As given, else the solver's default."""
    return given[name] if name in given else _DEFAULTS[given["solver"]][name]

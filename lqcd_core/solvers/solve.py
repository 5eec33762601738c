r"""The front door: M x = b on host fields, to the true residual that was asked for.

.. math:: \frac{|b - Mx|}{|b|}\le\text{tol}\quad\text{per column, with } x \text{ as it is handed back}

Even-odd: the Schur complement is solved on one parity and the other reconstructed. A solver that needs a positive operator
runs on the normal equations, with the stopping rule on the residual of the system itself
(:class:`~lqcd_core.solvers.cg.NormalCG`). Where the true residual of the full system still misses, the defect is solved
again.

Where the backend offers :class:`~lqcd_core.backend.SupportsDeviceSolve`, the iterations run inside it (``info.inside`` says
so); the true residual, the defects and the account stay here.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from ..backend import SupportsDeviceSolve
from ..errors import BackendUnavailable, FieldShapeError, NotConvergedError, ParameterError
from ..geometry import EVEN
from ..operators.bound import BoundOperator
from ..operators.linear import LinearOperator
from ..spaces import of_all_slices
from .columns import ColumnBook, RightHandSide, on_columns
from .host import HostBatch, host_units, in_pieces, scaled
from .krylov import CHECKED_TOGETHER, Solver
from .mixed import MixedPrecision
from .solution import Callback, Progress, Reason, Solution, SolverInfo

_ATTEMPTS = 6  # solves of the defect before the account says stagnation


def solve(
    M,
    b,
    solver: Solver,
    *,
    even_odd: bool | None = None,
    form: str = "symmetric",
    parity: int = EVEN,
    x0=None,
    device_solve: bool | None = None,
    callback: Callback | None = None,
    raise_on_failure: bool = True,
) -> Solution:
    r"""Solve :math:`Mx=b`.

    Parameters
    ----------
    M
        A bound operator; or a linear operator (then there is no even-odd, and a solver that needs a positive operator
        takes the normal equations unless it is one).
    b
        A field or array ``([n,] T, Z, Y, X, Ns, Nc)``, any n. Left alone.
    solver
        E.g. ``ConjugateGradient(tol=1e-10)``, ``BiCGStab(tol=1e-10)``, ``MixedPrecision(inner=...)``.
    even_odd
        True: by the Schur complement; False: on the full lattice; None: where the lattice allows it.
    form, parity
        Of the Schur complement: ``symmetric`` or ``asymmetric``; 0 (even) or 1 (odd).
    x0
        Start, of the kind of b; None means 0. Left alone.
    device_solve
        None: the iterations run inside the backend where it offers that for this solver, else in the core's loop. False:
        the core's loop. True: inside the backend, or an error.
    callback
        Called with a :class:`~lqcd_core.solvers.solution.Progress` after each iteration.
    raise_on_failure
        False returns what was reached, with the reasons in ``info``.

    Returns
    -------
    Solution
        x of the kind of b, and ``info``. ``info.final_residual`` is :math:`\max|b-Mx|/|b|` over columns, recomputed from x
        as returned, in the precision of M.

    Raises
    ------
    NotConvergedError
        If a column missed the tolerance; ``.solution`` holds what was reached.
    ToleranceError
        If the tolerance is below what the precision of M can reach.
    BackendUnavailable
        If ``device_solve=True`` and the backend leaves this solve to the core.
    GeometryError
        If even-odd was asked for on a lattice with an odd extent.
    FieldShapeError, FieldTypeError
        If b or x0 do not fit, or their precision would be lowered in silence.

    Examples
    --------
    >>> from lqcd_core import ColorSpinorField, ConjugateGradient, GaugeField, LatticeGeometry, WilsonDirac
    >>> g = LatticeGeometry(T=4, Z=2, Y=2, X=2)
    >>> M = WilsonDirac(mass=0.5).bind(GaugeField.random(g, seed=1), backend="numpy")
    >>> b = ColorSpinorField.gaussian(g, seed=2)
    >>> x, info = solve(M, b, ConjugateGradient(tol=1e-10))
    >>> (M(x) - b).norm() / b.norm() <= 1e-10
    True
    """
    if not isinstance(solver, Solver):
        raise ParameterError(f"solver must be a solver such as BiCGStab(tol=1e-10), got {type(solver).__name__}.")
    if getattr(solver, "shifts", None) is not None:
        raise ParameterError("MultiShiftCG has one solution per shift; call its own solve(M.normal_linear, b).")
    if device_solve not in (None, True, False):
        raise ParameterError(f"device_solve must be True, False or None, got {device_solve!r}.")
    if isinstance(M, BoundOperator):
        solution = _solve_bound(M, b, solver, even_odd, form, parity, x0, device_solve, callback)
    else:
        if device_solve:
            raise ParameterError("device_solve=True needs a bound operator (WilsonDirac(...).bind(U)).")
        if even_odd:
            raise ParameterError("even_odd=True needs a bound operator (WilsonDirac(...).bind(U)).")
        linear = M if isinstance(M, LinearOperator) else getattr(M, "linear", None)
        positive = isinstance(linear, LinearOperator) and linear.positive
        direct = solver if positive or not solver.needs_positive or linear is None else solver.general
        solution = direct.solve(M if linear is None else linear, b, x0, callback)
    if raise_on_failure and not solution.info.converged:
        raise NotConvergedError(str(solution.info), solution)
    return solution


def _solve_bound(M, b, solver, even_odd, form, parity, x0, device_solve, callback) -> Solution:
    M.check_spinor(b)
    host = HostBatch.of(b, M.geometry, None, M.precision)
    start = None if x0 is None else HostBatch.of(x0, M.geometry, None, M.precision, "x0").batch
    if start is not None and start.shape != host.batch.shape:
        raise FieldShapeError(f"x0 has shape {start.shape}, the source {host.batch.shape}.")
    if even_odd is None:
        even_odd = M.geometry.why_no_parity() is None
    direct = solver.general if solver.needs_positive else solver
    system = _Schur(M, parity, form) if even_odd else _Full(M)
    direct.check(system.linear)
    offered = device_solve is not False and isinstance(M.backend, SupportsDeviceSolve)
    if device_solve and not offered:
        raise _no_device_solve(M, solver)
    device = _Device(M, solver, even_odd, form, parity, callback is not None) if offered else None

    def piece(batch, where, tell):
        units = host_units(M.space, batch)
        batch = scaled(batch, units)
        first = None
        if start is not None:
            given = start[where]
            if len(given) < len(batch):
                given = np.concatenate([given, np.zeros((len(batch) - len(given), *given.shape[1:]), given.dtype)])
            first = scaled(given, units)
        x, info = _Corrections(M, system, direct, device, bool(device_solve), batch, first, tell).run()
        return scaled(x, 1.0 / units), info

    x, info = in_pieces(M.space, host.batch, piece, callback)
    info = attrs.evolve(info, solver=solver.name)
    return Solution(host.back(x), info)


class _Full:
    """M on the full lattice."""

    def __init__(self, M):
        self.M, self.linear = M, M.linear

    def solve(self, solver, batch, targets, callback) -> tuple[np.ndarray, SolverInfo]:
        A = on_columns(self.linear, len(batch))
        v = A.vectors
        rhs = RightHandSide(v, lambda columns=None: v.pack(batch if columns is None else batch[columns]))
        x, info = solver.run(A, rhs, None, targets, callback)
        return v.unpack(x), info


class _Schur:
    """The Schur complement of M, with source preparation and reconstruction."""

    def __init__(self, M, parity, form):
        self.schur = M.even_odd(parity, form)
        self.linear = self.schur.linear

    def solve(self, solver, batch, targets, callback) -> tuple[np.ndarray, SolverInfo]:
        schur = self.schur
        A = on_columns(self.linear, len(batch))

        def prepared(columns=None):
            return schur.prepare(*schur.split(batch if columns is None else batch[columns]))

        given = np.sqrt(host_norm2(schur.bound.space, batch))
        wanted = schur_targets(schur, targets, given, np.sqrt(A.vectors.norm2(prepared())))
        x, info = solver.run(A, RightHandSide(A.vectors, prepared), None, wanted, callback)
        return self.whole(x, batch), info

    def whole(self, x, batch) -> np.ndarray:
        """The host solution on the full lattice; a few columns at a time where the space allows."""
        schur, v = self.schur, on_columns(self.linear, len(batch)).vectors
        q = 1 - schur.parity

        def part(x_p, b):
            b_q = schur.v[q].pack(schur.geometry.split_parity(b, q, lead=1))
            return schur.join(x_p, schur.reconstruct(x_p, b_q))

        if not v.resizable or len(batch) <= CHECKED_TOGETHER:
            return part(x, batch)
        out = np.empty_like(batch, dtype=v.precision.complex_dtype)
        for piece in np.array_split(np.arange(len(batch)), -(-len(batch) // CHECKED_TOGETHER)):
            out[piece] = part(v.take(x, piece.tolist()), batch[piece])
        return out


def schur_targets(schur, targets: np.ndarray, given: np.ndarray, prepared: np.ndarray) -> np.ndarray:
    r"""Relative residuals that the Schur complement must reach so that M x = b reaches its targets, per column.

    :math:`|b - Mx| = |A_p(\hat b - \hat Mx_p)|` in the symmetric form, :math:`|\hat b - \hat Mx_p|` in the asymmetric one.

    Parameters
    ----------
    schur
        A :class:`~lqcd_core.operators.even_odd.SchurOperator`.
    targets
        Relative residuals :math:`|b - Mx|/|b|` asked for, ``(n,)``.
    given, prepared
        Norms of b and of the source of the Schur complement, ``(n,)``.
    """
    factor = 1.0
    if schur.form == "symmetric":
        a = schur.bound.diagonal
        if a.blocks is None:
            factor = abs(complex(a.scalar, a.twist))
        else:
            kept = schur.__dict__
            if "block_norm" not in kept:  # a pass over all blocks: once per operator
                kept["block_norm"] = _block_norm(a.full_blocks())
            factor = kept["block_norm"]
    usable = np.isfinite(prepared) & (prepared > 0)
    wanted = np.where(usable, targets * given / np.where(usable, prepared * factor, 1.0), targets)
    return np.clip(wanted, schur.vectors.precision.epsilon, 0.9)


def _no_device_solve(M, solver: Solver) -> BackendUnavailable:
    return BackendUnavailable(
        f"device_solve=True: the backend {M.choice.name!r} leaves a {solver.name} solve of {M.definition.name} in "
        f"{M.precision} to the core; leave device_solve out, or choose a backend and solver that offer it."
    )


def _block_norm(blocks: np.ndarray) -> float:
    """A bound on |A|: the largest sum of moduli over a row of any block."""
    return max(float(np.abs(part).sum(axis=-1).max()) for part in blocks)


def host_norm2(space, batch: np.ndarray) -> np.ndarray:
    """sum |b|^2 per column in double, by time slices in their order."""
    slices = np.zeros(batch.shape[:2])
    for k, column in enumerate(batch):
        for t, part in enumerate(column):
            wide = part.astype(np.complex128, copy=False)
            slices[k, t] = np.vdot(wide, wide).real
    return np.array([sum(row.tolist()) for row in of_all_slices(space, slices)])


class _Device:
    """Solves inside the backend, in the form of a system that runs itself."""

    def __init__(self, M, solver, even_odd, form, parity, heard: bool):
        self.M, self.solver = M, solver
        self.silent = False  # the last solve told nothing on its way, its history came at the end
        self.parameters = {
            **solver.parameters(), "even_odd": bool(even_odd), "form": form, "parity": parity,
            "heard": heard or getattr(solver, "verbose", False),
        }  # fmt: skip
        self.inner = None
        if isinstance(solver, MixedPrecision):
            options = {"precision": solver.precision}
            if solver.backend is not None:
                options["backend"] = solver.backend
            # Kept with M: solves in batches, or of a defect, must not bind again.
            kept = M.__dict__.setdefault("_rebound", {})
            key = ("bound", solver.precision, repr(solver.backend))
            if key not in kept:
                kept[key] = M.rebind(**options)
            self.inner = kept[key]

    def solve(self, solver, batch, targets, callback) -> tuple[np.ndarray, SolverInfo] | None:
        M, n = self.M, len(batch)
        book = ColumnBook(solver.name, solver.tol, targets, callback, getattr(solver, "verbose", False))

        def tell(iteration, residuals):
            book.record(np.asarray(residuals, float) * np.ones(n))

        parameters = {**self.parameters, "maxiter": solver.maxiter, "targets": targets.tolist()}
        answer = M.backend.solve(M, self.inner, M.space.pack(batch), None, parameters, tell)
        if answer is None:
            return None
        x, said = answer
        self.silent = not book.history and said.get("history") is not None
        if self.silent:
            book.history = list(np.asarray(said["history"], float).reshape(-1, n))
        # Judged by the caller on the true residual; what the device thinks of its residual plays no part.
        for column, name in enumerate(said.get("reasons", ())):
            book.stop(column, Reason.__members__.get(name, Reason.STAGNATION))
        book.stop(np.arange(n), Reason.STAGNATION)
        book.iterations[:] = said.get("iterations", len(book.history))
        book.true[:] = np.nan
        counts = {name: int(said.get(name, 0)) for name in ("applications", "outer_applications")}
        return M.space.unpack(x), book.info(inside=M.choice.name, **counts)


class _Corrections:
    """Solves of the defect until the true residual of M x = b is there, on one batch that the space can hold."""

    def __init__(self, M, system, solver, device, strict, batch, x0, callback):
        self.M, self.system, self.solver, self.device, self.strict = M, system, solver, device, strict
        self.inside: str | None = None
        self.batch, self.x, self.callback = batch, x0, callback
        n = len(batch)
        self.norms = np.sqrt(host_norm2(M.space, batch))
        self.book = ColumnBook(solver.name, solver.tol, np.full(n, solver.tol), None, False)
        self.counts = np.zeros(n, int)
        self.applications = self.outer = 0

    def run(self) -> tuple[np.ndarray, SolverInfo]:
        book, n = self.book, len(self.batch)
        zero = self.norms == 0
        book.true[zero] = 0.0
        book.stop(np.flatnonzero(zero), Reason.ZERO_SOURCE)
        book.stop(np.flatnonzero(~np.isfinite(self.norms)), Reason.NOT_FINITE)
        relative = np.where(zero, 0.0, np.where(np.isfinite(self.norms), 1.0, np.nan))
        defect = self.batch
        if self.x is not None:
            self.x = np.where(zero.reshape(-1, *(1,) * 6), 0, self.x) if zero.any() else self.x.copy()
            live = np.flatnonzero(book.live)
            if len(live):
                relative, defect = self.residual(np.arange(n), keep=True)
                book.stop(np.flatnonzero(~np.isfinite(relative)), Reason.NOT_FINITE)
                book.verified(np.flatnonzero(book.live), relative[book.live])
        last: list[Reason | None] = [None] * n
        for attempt in range(_ATTEMPTS):
            columns = np.flatnonzero(book.live)
            left = self.solver.maxiter - len(book.history)
            if not len(columns) or left < 1:
                break
            part, where = self.select(defect, columns)
            fresh = attempt == 0 and self.x is None
            # Later solves aim a little lower: what they reach is added to something that has been rounded.
            targets = self.solver.tol / np.where(book.live[where], relative[where], 1.0) * (1.0 if fresh else 0.7)
            targets = np.where(book.live[where], np.clip(targets, None, 0.9), 0.9)
            d, info = self.inner(part, targets, left, where, relative)
            del part, defect
            self.add(d, where)
            before = relative[columns].copy()
            for k, c in enumerate(where):
                last[c] = info.column_reasons[k]
                self.counts[c] += info.column_iterations[k] if book.live[c] else 0
            more = attempt + 1 < _ATTEMPTS
            found, defect = self.residual(columns, keep=more)
            relative[columns] = found
            book.stop(columns[~np.isfinite(found)], Reason.NOT_FINITE)
            book.verified(columns, found)
            for k, c in enumerate(columns):
                fatal = last[c] in (Reason.BREAKDOWN, Reason.NOT_POSITIVE, Reason.NOT_FINITE, Reason.MAXIMUM_ITERATIONS)
                if fatal or not found[k] <= 0.5 * before[k]:
                    book.stop(c, Reason.STAGNATION if not fatal else last[c])
            if defect is None:
                break
        book.true = np.where(zero, 0.0, relative)
        left = self.solver.maxiter - len(book.history)
        book.stop(np.flatnonzero(book.live), Reason.MAXIMUM_ITERATIONS if left < 1 else Reason.STAGNATION)
        book.iterations = self.counts
        x = np.zeros_like(self.batch, dtype=self.M.precision.complex_dtype) if self.x is None else self.x
        return x, book.info(applications=self.applications, outer_applications=self.outer, inside=self.inside or "")

    def select(self, defect, columns):
        """(host batch to solve for, its columns): the live ones; on a static space all, the others zero."""
        n = len(self.batch)
        if defect is self.batch:  # the first solve: zero columns cost it nothing, and an inner static space stays full
            return defect, np.arange(n)
        if len(defect) == len(columns):
            part, where = defect, columns
        else:
            part, where = defect[columns], columns
        if self.M.space.resizable or len(columns) == n:
            return part, where
        whole = np.zeros((n, *part.shape[1:]), part.dtype)
        whole[columns] = part
        return whole, np.arange(n)

    def inner(self, part, targets, left, where, relative):
        tell = self.tell(where, relative)
        solver = attrs.evolve(self.solver, maxiter=min(left, self.solver.maxiter))
        answer = None if self.device is None else self.device.solve(solver, part, targets, tell)
        if answer is None:
            if self.strict:
                raise _no_device_solve(self.M, self.solver)
            self.device = None
            answer = self.system.solve(solver, part, targets, tell)
        elif self.device is not None and self.device.silent:
            self.enter(answer[1].history, where, relative)
        self.inside = answer[1].inside if self.inside in (None, answer[1].inside) else ""
        self.applications += answer[1].applications
        self.outer += answer[1].outer_applications
        return answer

    def tell(self, where, relative) -> Callable[[Progress], None]:
        """Progress of a solve for a defect, in units of |b|, for all columns."""
        book, n = self.book, len(self.batch)
        current = np.where(np.isfinite(relative), relative, 1.0)

        def callback(progress: Progress):
            current[where] = np.where(book.live[where], progress.residuals * relative[where], current[where])
            book.history.append(current.copy())
            if self.callback is not None:
                self.callback(Progress(len(book.history), current.copy(), self.solver.tol, progress.active, n))

        return callback

    def enter(self, history, where, relative) -> None:
        """The history of a solve that nobody listened to, all at once."""
        rows = np.array([np.atleast_1d(row) for row in history]).reshape(len(history), len(where))
        live = self.book.live[where]
        current = np.where(np.isfinite(relative), relative, 1.0)
        out = np.tile(current, (len(rows), 1))
        out[:, where[live]] = rows[:, live] * relative[where[live]]
        self.book.history.extend(out)

    def add(self, d, where) -> None:
        if self.x is None and len(where) == len(self.batch):
            self.x = d
            return
        if self.x is None:
            self.x = np.zeros((len(self.batch), *d.shape[1:]), d.dtype)
        if len(where) == len(self.batch):
            self.x = self.x + d
        else:
            self.x[where] += d

    def residual(self, columns, keep: bool):
        """(|b - M x| / |b| of these columns, b - M x on the host or None), from x as it will be handed back."""
        M, columns = self.M, np.asarray(columns)
        static = not M.space.resizable
        # A few columns at a time: this check must not need more memory than the solve did.
        pieces = (
            [np.arange(len(self.batch))] if static else np.array_split(columns, -(-len(columns) // CHECKED_TOGETHER))
        )
        norms, defects = np.zeros(len(self.batch)), []
        for piece in pieces:
            v = on_columns(M.linear, len(piece)).vectors
            t = v.axpy(-1.0, M.apply(v.pack(self.x[piece])), v.pack(self.batch[piece]))
            norms[piece] = np.sqrt(v.norm2(t))
            if keep and (norms[piece] > self.solver.tol * self.norms[piece]).any():
                defects.append((piece, v.unpack(t)))
            del t
        self.outer += len(pieces)
        relative = np.zeros(len(columns))
        np.divide(norms[columns], self.norms[columns], out=relative, where=self.norms[columns] > 0)
        if not defects:
            return relative, None
        out = np.zeros((len(columns), *self.batch.shape[1:]), defects[0][1].dtype)
        for piece, defect in defects:
            inside, at = np.nonzero(piece[:, None] == columns)
            out[at] = defect[inside]
        return relative, out

"""Which backend serves a request, and why.

    named in the call  >  use_backend (context, then session)  >  LQCD_BACKEND       strict: serve or raise
    none named:  records answer why_not  ->  rank  ->  load down the list            the first that starts serves

A backend named by the user is never replaced by another.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs

from .backend import BackendInfo, BoundBackend, Request, SupportsGauge
from .errors import BackendUnavailable, LQCDError, NoBackendError, ParameterError, UnknownBackendError
from .precision import PRECISIONS
from .registry import REGISTRY, rank

VARIABLE = "LQCD_BACKEND"
"""Environment variable that names the session's backend."""


@attrs.frozen
class Named:
    """A backend that somebody asked for by name."""

    name: str
    """Its name."""
    options: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    """Its options."""
    by: str = "backend="
    """Who asked, for messages."""


@attrs.frozen
class Choice:
    """The backend that serves a request."""

    backend: BoundBackend
    """Record, options and instance."""
    why: str
    """Why this one: who named it, or the order it won."""
    reasons: tuple[tuple[str, str], ...] = ()
    """(name, reason) of every backend that was ranked before it and could not serve."""

    @property
    def name(self) -> str:
        return self.backend.name


_UNSET: Any = type("Unset", (), {"__repr__": lambda self: "unset"})()  # nobody has spoken; None means "automatic"
_context: contextvars.ContextVar[Any] = contextvars.ContextVar("lqcd_backend", default=_UNSET)
_preferred: contextvars.ContextVar[Any] = contextvars.ContextVar("lqcd_preferred", default=_UNSET)
_in_block: contextvars.ContextVar[bool] = contextvars.ContextVar("lqcd_in_block", default=False)
_session_lock = threading.Lock()
_session: dict[str, Any] = {"named": _UNSET, "preferred": _UNSET}


def _owns_session() -> bool:
    """True in the main thread outside a coroutine and a block: only there does a plain call speak for the program."""
    if _in_block.get() or threading.current_thread() is not threading.main_thread():
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


class _Setting:
    """What :func:`use_backend` and :func:`prefer_backends` return: set already, undone at the end of a with block."""

    def __init__(self, variable: contextvars.ContextVar, key: str, value):
        self._variable, self._key, self._value = variable, key, value
        self._before_context = variable.get()
        self._speaks_for_session = _owns_session()
        with _session_lock:
            self._before_session = _session[key]
            if self._speaks_for_session:
                _session[key] = value
        variable.set(value)

    def __enter__(self):
        # From here on it is a block's choice, not the session's: other threads get theirs back.
        if self._speaks_for_session:
            with _session_lock:
                _session[self._key] = self._before_session
        self._variable.set(self._value)
        self._around = _in_block.get()
        _in_block.set(True)
        return self._value

    def __exit__(self, *exc):
        self._variable.set(self._before_context)
        _in_block.set(self._around)

    def __repr__(self) -> str:
        return f"<{self._value}>"


def use_backend(name: str | None, **options):
    """Use one backend from here on, or inside a ``with`` block. Strict: it serves or the call that needs it raises.

    A plain call in the main thread holds for the whole program, threads started later included; in another thread or
    in a coroutine it holds there only. As a context manager it holds in the block, for this thread or coroutine, and a
    plain call inside the block ends with it.

    Parameters
    ----------
    name
        A registered name; None means automatic choice, whatever the session or LQCD_BACKEND says.
    **options
        Options of that backend, checked now against its record; nothing heavy is imported.

    Raises
    ------
    UnknownBackendError
        If no backend has that name; the nearest one is named.
    UnknownOptionError, ParameterError
        For options the backend does not declare, or values it refuses.

    Examples
    --------
    >>> with use_backend("numpy"):
    ...     current_backend().name
    'numpy'
    """
    if name is None:
        if options:
            raise ParameterError("use_backend(None) takes no options.")
        return _Setting(_context, "named", None)
    REGISTRY.record(name).settle_options(options)
    return _Setting(_context, "named", Named(name, dict(options), "use_backend"))


def prefer_backends(*names: str):
    """Try these first, in this order, when no backend is named. Also a context manager.

    Unlike :func:`use_backend` this is a wish: a backend that cannot serve a request is passed over, with its reason
    kept in the choice.
    """
    for name in names:
        REGISTRY.record(name)
    return _Setting(_preferred, "preferred", tuple(names))


def current_backend() -> Named | None:
    """The backend named for this thread or coroutine, else for the session, else by LQCD_BACKEND; None if none is."""
    for said in (_context.get(), _session["named"]):
        if said is not _UNSET:
            return said
    variable = os.environ.get(VARIABLE, "").strip()
    return Named(variable, {}, f"the environment variable {VARIABLE}") if variable else None


def preferred_backends() -> tuple[str, ...]:
    """Names given to :func:`prefer_backends`."""
    for said in (_preferred.get(), _session["preferred"]):
        if said is not _UNSET:
            return said
    return ()


@contextmanager
def restored_session() -> Iterator[None]:
    """Put the session's choice and wishes back at the end of the block (for tests of plain ``use_backend`` calls)."""
    with _session_lock:
        before = dict(_session)
    tokens = [(variable, variable.set(variable.get())) for variable in (_context, _preferred)]
    try:
        yield
    finally:
        with _session_lock:
            _session.update(before)
        for variable, token in tokens:
            variable.reset(token)


def backends() -> dict[str, BackendInfo]:
    """Every registered backend by name: records only, nothing heavy is imported."""
    return REGISTRY.records()


def _as_named(backend) -> Named | None:
    if backend is None:
        return current_backend()
    if isinstance(backend, Named):
        return backend
    if isinstance(backend, str):
        return Named(backend)
    if isinstance(backend, tuple) and len(backend) == 2 and isinstance(backend[0], str):
        return Named(backend[0], dict(backend[1]))
    raise ParameterError(f"backend= takes a name or (name, options), got {backend!r}.")


def choose(request: Request, backend=None) -> Choice:
    """The backend that serves a request.

    Parameters
    ----------
    request
        What is needed.
    backend
        A name, ``(name, options)``, or None for the session's choice and then the automatic one.

    Raises
    ------
    BackendUnavailable
        If a named backend cannot serve; the message is its reason.
    NoBackendError
        If none is named and none can serve; the message lists every reason.
    """
    named = _as_named(backend)
    if named is not None:
        info = _record_of(named)
        reason = info.why_not(request)
        if reason is None:
            try:
                return Choice(REGISTRY.load(named.name, named.options), f"named by {named.by}")
            except BackendUnavailable as error:
                reason = str(error)
        else:
            reason = _with_what_is_missing(info, named, reason)
        raise BackendUnavailable(
            f"backend {named.name!r} (named by {named.by}) cannot run {request}: {_ended(reason)} Nothing falls back in silence: "
            f"change the request{_other_precision(info, request)}, or name another backend (`lqcd backends` lists them)."
        )
    rejected: list[tuple[str, str]] = []
    for name, reason in _candidates(request):
        if reason is None:
            try:
                return Choice(REGISTRY.load(name), "first in rank that can serve", tuple(rejected))
            except BackendUnavailable as error:
                reason = str(error)
        rejected.append((name, reason))
    raise NoBackendError(_table(f"No installed backend can run {request}:", rejected))


def gauge_kernel(kind: str, nc: int, *, named_only: bool = False) -> Callable | None:
    """A backend's function for a formula of links alone, or None: then the core's NumPy does it.

    The backend that the user named, if it offers :class:`~lqcd_core.backend.SupportsGauge`; if none is named, the first in
    rank that offers it and starts. A named backend that does not offer it is not replaced by another: NumPy computes.

    Parameters
    ----------
    kind
        One of :data:`~lqcd_core.backend.GAUGE_KINDS`.
    nc
        Number of colours.
    named_only
        Only the backend that the user named: for Markov chains, whose later links depend on every bit.
    """
    named = current_backend()
    records = REGISTRY.records()
    if named is not None:
        order = [named.name] if named.name in records else []
    elif named_only:
        order = []
    else:
        wished = [n for n in preferred_backends() if n in records]
        order = wished + sorted(records.keys() - set(wished), key=lambda n: (-records[n].rank, n))
    for name in order:
        if "gauge" not in records[name].features or (named is None and records[name].wraps):
            continue
        try:
            instance = REGISTRY.load(name, named.options if named is not None else {}).instance
        except LQCDError:  # it cannot start here: who binds with it is told why
            continue
        found = instance.gauge_kernel(kind, nc) if isinstance(instance, SupportsGauge) else None
        if found is not None:
            return found
    return None


def _record_of(named: Named) -> BackendInfo:
    try:
        return REGISTRY.record(named.name)
    except UnknownBackendError as error:
        raise UnknownBackendError(f"{error} (It was named by {named.by}.)") from None


def _with_what_is_missing(info: BackendInfo, named: Named, reason: str) -> str:
    """The record's reason, after what this machine lacks: a new request alone would not help where a driver is missing."""
    if info.wraps:  # starting one may start processes, for an error message alone
        return reason
    try:
        REGISTRY.load(named.name, named.options)
    except BackendUnavailable as error:
        return f"{_ended(str(error))} Besides, it {reason}"
    except LQCDError:  # options that do not go together: said once the request is one that it can serve
        pass
    return reason


def _other_precision(info: BackendInfo, request: Request) -> str:
    """What to ask for instead of a precision that a backend has not: the widest it has. Empty if it has the one asked for."""
    if request.precision.name in info.precisions:
        return ""
    widest = next(name for name in PRECISIONS if name in info.precisions)
    return f" (precision={widest!r} is the widest that it has)"


def _candidates(request: Request):
    records = REGISTRY.records()
    for name in rank(request, records, preferred_backends()):
        yield name, records[name].why_not(request)


def _table(title: str, rows) -> str:
    width = max((len(n) for n, _ in rows), default=0)
    return "\n".join([title, *(f"  {n:<{width}}  {_ended(reason)}" for n, reason in rows)])


def _ended(reason: str) -> str:
    """A reason with one full stop: backends give clauses and whole sentences."""
    return reason.rstrip().rstrip(".") + "."


@attrs.frozen
class Explanation:
    """Every backend with its answer to one request. ``print`` it."""

    request: Request
    """What was asked."""
    chosen: str | None
    """The name that would serve, None if none can."""
    rows: tuple[tuple[str, str], ...]
    """(name, answer), best first."""

    def __str__(self) -> str:
        return _table(f"{self.request}:", self.rows)


def explain_request(request: Request, backend=None, start_all: bool = False) -> Explanation:
    """What :func:`choose` would do, with every backend's reason.

    Backends are started down the list until one serves, as :func:`choose` does; those behind it are judged by their
    records alone, so nothing is imported for a backend that is not chosen. ``start_all`` starts every candidate to learn
    if it can run on this machine.
    """
    named = _as_named(backend)
    chosen, rows = None, []
    records = REGISTRY.records()
    order = rank(request, records, preferred_backends())
    order += sorted(n for n in records if records[n].wraps)
    if named is not None:
        _record_of(named)
        order = [named.name] + [n for n in order if n != named.name]
    for name in order:
        is_named = named is not None and name == named.name
        reason, note = records[name].why_not(request), ""
        wanted = is_named if named is not None else chosen is None and not records[name].wraps
        if reason is None and (wanted or start_all):
            try:
                plan = getattr(REGISTRY.load(name, named.options if is_named else {}).instance, "plan", None)
                note = f" ({plan(request)})" if callable(plan) else ""
            except BackendUnavailable as error:
                reason = str(error)
            except LQCDError as error:  # an executor that needs an option which nobody gave
                if is_named:
                    raise
                reason = str(error)
        elif reason is None:
            note = " as far as its record tells (not started)"
        elif is_named:
            reason = _with_what_is_missing(records[name], named, reason)
        if reason is not None:
            rows.append((name, reason))
        elif wanted:
            chosen = name
            why = f"named by {named.by}" if named is not None else "first in rank that can serve"
            rows.append((name, f"chosen: {why}{note}"))
        elif records[name].wraps:
            rows.append((name, f"can serve{note}, but an executor is only used when named"))
        elif named is not None:
            rows.append((name, f"can serve{note}, but {named.name!r} is named by {named.by}"))
        else:
            rows.append((name, f"can serve{note}"))
    return Explanation(request, chosen, tuple(rows))

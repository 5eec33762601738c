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
from collections.abc import Mapping
from typing import Any

import attrs

from .backend import BackendInfo, BoundBackend, Request
from .errors import BackendUnavailable, NoBackendError, ParameterError
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


_context: contextvars.ContextVar[Named | None] = contextvars.ContextVar("lqcd_backend", default=None)
_preferred: contextvars.ContextVar[tuple[str, ...] | None] = contextvars.ContextVar("lqcd_preferred", default=None)
_session_lock = threading.Lock()
_session: dict[str, Any] = {"named": None, "preferred": ()}


def _owns_session() -> bool:
    """True in the main thread outside a coroutine: only there does a plain call speak for the whole program."""
    if threading.current_thread() is not threading.main_thread():
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
        return self._value

    def __exit__(self, *exc):
        self._variable.set(self._before_context)

    def __repr__(self) -> str:
        return f"<{self._value}>"


def use_backend(name: str | None, **options):
    """Use one backend from here on, or inside a ``with`` block. Strict: it serves or the call that needs it raises.

    A plain call in the main thread holds for the whole program, threads started later included; in another thread or
    in a coroutine it holds there only. As a context manager it holds in the block, for this thread or coroutine.

    Parameters
    ----------
    name
        A registered name; None returns to automatic choice.
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
    named = _context.get() or _session["named"]
    if named is None and os.environ.get(VARIABLE):
        named = Named(os.environ[VARIABLE].strip(), {}, f"the environment variable {VARIABLE}")
    return named


def preferred_backends() -> tuple[str, ...]:
    """Names given to :func:`prefer_backends`."""
    here = _preferred.get()
    return here if here is not None else _session["preferred"]


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
        info = REGISTRY.record(named.name)
        reason = info.why_not(request)
        if reason is None:
            try:
                return Choice(REGISTRY.load(named.name, named.options), f"named by {named.by}")
            except BackendUnavailable as error:
                reason = str(error)
        raise BackendUnavailable(
            f"backend {named.name!r} (named by {named.by}) cannot run {request}: it {reason}. "
            "Nothing falls back in silence: change the request, or name another backend (`lqcd backends` lists them)."
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


def _candidates(request: Request):
    records = REGISTRY.records()
    for name in rank(request, records, preferred_backends()):
        yield name, records[name].why_not(request)


def _table(title: str, rows) -> str:
    width = max((len(n) for n, _ in rows), default=0)
    return "\n".join([title, *(f"  {n:<{width}}  {reason}." for n, reason in rows)])


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


def explain_request(request: Request, backend=None) -> Explanation:
    """What :func:`choose` would do, with every backend's reason. Candidates are started to learn if they can run."""
    named = _as_named(backend)
    chosen, rows = None, []
    records = REGISTRY.records()
    order = rank(request, records, preferred_backends())
    order += sorted(n for n in records if records[n].wraps)
    if named is not None:
        REGISTRY.record(named.name)
        order = [named.name] + [n for n in order if n != named.name]
    for name in order:
        options = named.options if named is not None and name == named.name else {}
        reason = records[name].why_not(request)
        if reason is None:
            try:
                instance = REGISTRY.load(name, options).instance
            except BackendUnavailable as error:
                reason = str(error)
        if reason is not None:
            rows.append((name, reason))
            continue
        note = ""
        plan = getattr(instance, "plan", None)
        if callable(plan):
            note = f" ({plan(request)})"
        if named is not None:
            if name == named.name:
                chosen = name
                rows.append((name, f"chosen: named by {named.by}{note}"))
            else:
                rows.append((name, f"can serve{note}, but {named.name!r} is named by {named.by}"))
        elif records[name].wraps:
            rows.append((name, "can serve, but an executor is only used when named"))
        elif chosen is None:
            chosen = name
            rows.append((name, f"chosen: first in rank that can serve{note}"))
        else:
            rows.append((name, f"can serve{note}"))
    return Explanation(request, chosen, tuple(rows))

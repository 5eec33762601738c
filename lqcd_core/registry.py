"""Which backends there are. Built-ins and strangers come in by the same door: an entry point of the group ``lqcd``.

    entry point --load--> plugin module --lqcd_register_backends--> BackendInfo (data)   on the first question
    BackendInfo.load --import--> Backend(**options)                                      on the first use

A plugin that fails to load or to register warns and is skipped; two backends of one name is an error naming both.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

import attrs
import pluggy

from . import hookspecs
from .backend import Backend, BackendInfo, BoundBackend
from .errors import (
    BackendError,
    BackendUnavailable,
    DuplicateBackendError,
    LQCDError,
    UnknownBackendError,
    how_to_install,
    nearest,
)


class PluginWarning(UserWarning):
    """A plugin could not be loaded and was left out."""


class Registry:
    """The plugins, their records, and the instances made so far. The program uses one: :data:`REGISTRY`."""

    def __init__(self, group: str = hookspecs.PROJECT):
        self._group = group
        self._lock = threading.RLock()
        self._manager: pluggy.PluginManager | None = None
        self._records: dict[str, BackendInfo] | None = None
        self._instances: dict[tuple, BoundBackend] = {}
        self._broken: dict[str, str] = {}

    # -- plugins ------------------------------------------------------------------------------------------------------

    def manager(self) -> pluggy.PluginManager:
        """The plugin manager, with all entry points loaded."""
        with self._lock:
            if self._manager is None:
                manager = pluggy.PluginManager(hookspecs.PROJECT)
                manager.add_hookspecs(hookspecs)
                # Not manager.load_setuptools_entrypoints: there one broken plugin stops the program.
                for point in sorted(entry_points(group=self._group), key=lambda p: p.name):
                    dist = getattr(point, "dist", None)
                    label = f"{point.name} (from {dist.name} {dist.version})" if dist else point.name
                    try:
                        _add(manager, point.load(), label)
                    except Exception as error:  # a stranger's code: any failure is its own, and is reported
                        self._skip(label, error)
                self._manager = manager
            return self._manager

    def register(self, plugin: Any, name: str | None = None) -> None:
        """Add a plugin object by hand (a script's own backend, a test's)."""
        with self._lock:
            _add(self.manager(), plugin, name)
            self._records = None

    def unregister(self, plugin: Any) -> None:
        """Take a plugin out again, with the instances of its backends."""
        with self._lock:
            before = self.records()
            self.manager().unregister(plugin)
            self._records = None
            gone = before.keys() - self.records().keys()
            self._instances = {key: kept for key, kept in self._instances.items() if key[0] not in gone}

    def _skip(self, label: str, error: Exception) -> None:
        self._broken[label] = f"{type(error).__name__}: {error}"
        warnings.warn(f"plugin {label} was left out: {type(error).__name__}: {error}", PluginWarning, stacklevel=3)

    @property
    def broken(self) -> Mapping[str, str]:
        """Plugins that could not be loaded, with the reason."""
        self.records()
        return dict(self._broken)

    # -- records ------------------------------------------------------------------------------------------------------

    def records(self) -> dict[str, BackendInfo]:
        """Every record by name.

        Raises
        ------
        DuplicateBackendError
            If two plugins registered one name.
        """
        with self._lock:
            if self._records is None:
                records: dict[str, BackendInfo] = {}
                for impl in self.manager().hook.lqcd_register_backends.get_hookimpls():
                    try:
                        found = list(impl.function())
                        for info in found:
                            if not isinstance(info, BackendInfo):
                                raise BackendError(f"registered {info!r}, which is no BackendInfo")
                    except Exception as error:
                        self._skip(impl.plugin_name, error)
                        continue
                    for info in found:
                        if info.name in records:
                            raise DuplicateBackendError(
                                f"two backends are called {info.name!r}: one from {records[info.name].origin}, one from "
                                f"{impl.plugin_name}; uninstall one of them."
                            )
                        records[info.name] = attrs.evolve(info, origin=impl.plugin_name)
                self._records = records
            return dict(self._records)

    def record(self, name: str) -> BackendInfo:
        """The record of one name.

        Raises
        ------
        UnknownBackendError
            If there is none; the message lists what exists and names the nearest.
        """
        records = self.records()
        if name not in records:
            raise UnknownBackendError(f"no backend is called {name!r}; {nearest(str(name), records)}")
        return records[name]

    # -- instances ----------------------------------------------------------------------------------------------------

    def load(self, name: str, options: Mapping[str, Any] | None = None) -> BoundBackend:
        """The backend's instance for these options, made on first use and kept.

        Raises
        ------
        UnknownBackendError, UnknownOptionError, ParameterError
            For a wrong name, option or value: before anything heavy is imported.
        BackendUnavailable
            If it cannot be imported or refuses to start here.
        """
        info = self.record(name)
        settled = info.settle_options(options or {})
        key = (info.name, info.load, _frozen(settled))
        with self._lock:
            if key not in self._instances:
                module, _, attribute = info.load.partition(":")
                try:
                    instance = getattr(importlib.import_module(module), attribute)(**settled)
                except BackendUnavailable:
                    raise
                except ImportError as error:
                    remedy = (
                        f"; {how_to_install(error.name)}"
                        if isinstance(error, ModuleNotFoundError) and error.name
                        else ""
                    )
                    raise BackendUnavailable(f"cannot be imported: {error}{remedy}") from error
                except LQCDError:
                    raise
                except Exception as error:
                    raise BackendUnavailable(f"failed to start: {type(error).__name__}: {error}") from error
                if not isinstance(instance, Backend):
                    raise BackendUnavailable(f"is broken: {info.load} lacks the method space or hopping")
                self._instances[key] = BoundBackend(info=info, options=settled, instance=instance)
            return self._instances[key]


def _add(manager: pluggy.PluginManager, plugin: Any, name: str | None) -> None:
    """Register a plugin whole or not at all: one that does not fit the hooks leaves nothing behind."""
    if manager.is_registered(plugin):
        return
    try:
        manager.register(plugin, name=name)
        manager.check_pending()  # a misspelt hook would otherwise never be called, and nobody would know
    except Exception:
        if manager.is_registered(plugin):
            manager.unregister(plugin)
        raise


def _frozen(value: Any):
    """A hashable stand-in for options."""
    if isinstance(value, Mapping):
        return tuple(sorted((k, _frozen(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple, set, frozenset)) and not isinstance(value, str):
        return (type(value).__name__, tuple(_frozen(v) for v in value))
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


REGISTRY = Registry()
"""The registry of the running program."""


def register(plugin: Any, name: str | None = None) -> None:
    """Register a plugin object in the running program, as an entry point would."""
    REGISTRY.register(plugin, name)


def unregister(plugin: Any) -> None:
    """Undo :func:`register`."""
    REGISTRY.unregister(plugin)


@contextmanager
def registered(plugin: Any) -> Iterator[None]:
    """A plugin registered inside the block, for tests and scripts. None, or one that is registered already, changes
    nothing.

    Examples
    --------
    >>> from lqcd_core.testing import loopback
    >>> with registered(loopback):
    ...     "loopback" in REGISTRY.records()
    True
    >>> "loopback" in REGISTRY.records()
    False
    """
    ours = plugin is not None and not REGISTRY.manager().is_registered(plugin)
    if ours:
        REGISTRY.register(plugin, getattr(plugin, "__name__", None))
    try:
        yield
    finally:
        if ours:
            REGISTRY.unregister(plugin)


def rank(request, names: Iterable[str], preferred: Iterable[str], registry: Registry | None = None) -> list[str]:
    """Names in the order in which they are tried.

    user's preference  >  lqcd_rank_backends  >  BackendInfo.rank  >  name
    """
    registry = registry or REGISTRY
    records = registry.records()
    names = [n for n in names if not records[n].wraps]
    order = sorted(names, key=lambda n: (-records[n].rank, n))
    for impl in registry.manager().hook.lqcd_rank_backends.get_hookimpls():  # the last one registered has the last word
        given = {"request": request, "names": tuple(order)}
        try:
            answer = impl.function(*(given[name] for name in impl.argnames))
            head = [n for n in answer or () if n in order]
        except Exception as error:  # a stranger's code again: its opinion is lost, the program is not
            registry._skip(f"{impl.plugin_name} (its ranking)", error)
            continue
        order = head + [n for n in order if n not in head]
    head = [n for n in preferred if n in order]
    return head + [n for n in order if n not in head]

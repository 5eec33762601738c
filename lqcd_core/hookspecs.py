"""The two hooks a plugin may implement. Mark yours with ``lqcd_core.hookimpl``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pluggy

from .backend import BackendInfo, Request

PROJECT = "lqcd"
"""The pluggy project and the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def lqcd_register_backends() -> Iterable[BackendInfo]:
    """Return the records of the backends this plugin brings. Import nothing heavy here."""


@hookspec
def lqcd_rank_backends(request: Request, names: Sequence[str]) -> Sequence[str] | None:
    """Return the names this plugin would try first for the request, best first, or None.

    Asked only when the user named no backend; names left out keep their place by rank behind those returned.
    """

"""One task, in the process where the cluster runs it."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import time
from pathlib import Path
from typing import Any

from .plan import Task

LOCK_PATIENCE = 60.0
"""Seconds that a task waits for a worker of a driver that died, which may take a moment to go, to let its file loose."""

_HELD = "is being written by another process"


def run_task(task: Task, measure: bool = True) -> dict[str, Any]:
    """Run ``lqcd propagator`` for a task and measure its correlators.

    A file that is finished, with these settings, is recognised by its contents and left as it is; one that was begun goes on
    where it stopped.

    Parameters
    ----------
    task
        What to do.
    measure
        False if the correlators are known already.

    Returns
    -------
    record
        ``code`` (the command's exit code), ``message`` (its last line if it failed), ``host``, ``pid``, ``seconds``, and if
        it went well ``backend``, ``links_digest``, ``residual``, ``iterations``, ``done_before`` and ``correlators``.
    """
    from ..cli import main

    code: Any
    began, before = time.time(), Path(task.output).exists()
    words = ["propagator", task.configuration, *task.words, "--output", task.output, "--resume", "--quiet"]
    while True:
        said, code = io.StringIO(), 1
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                main(words)
            except SystemExit as leave:
                code = leave.code
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        if not (code and lines and _HELD in lines[-1]) or time.time() - began > LOCK_PATIENCE:
            break
        time.sleep(0.5)
    record: dict[str, Any] = {
        "task": task.name, "digest": task.digest, "code": int(code or 0), "host": platform.node(), "pid": os.getpid(),
        "message": lines[-1] if code and lines else "",
    }  # fmt: skip
    if not code:
        record |= {"done_before": before, **about(task, measure)}
    return record | {"seconds": round(time.time() - began, 3)}


def about(task: Task, measure: bool) -> dict[str, Any]:
    """What the finished file of a task says."""
    from ..cli.channels import chosen, correlators
    from ..io import read_propagator

    S = read_propagator(task.output)
    columns = S.provenance.get("columns") or []
    out: dict[str, Any] = {
        "file": Path(task.output).name, "configuration": task.configuration,
        "links_digest": S.provenance.get("links_digest"), "backend": S.provenance.get("backend"),
        "residual": max((c["residual"] for c in columns), default=None),
        "iterations": max((c["iterations"] for c in columns), default=None),
    }  # fmt: skip
    if measure:
        found = {}
        for p in task.momenta:
            for name, values in correlators(S, chosen(task.channels), p).items():
                label = name if not any(p) else f"{name} p={','.join(map(str, p))}"
                found[label] = [[float(v.real), float(v.imag)] for v in values]
        out["correlators"] = found
    return out


__all__ = ["about", "run_task"]

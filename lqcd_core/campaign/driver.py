"""Who runs when: the tasks of a plan on Ray, until each is done or has a reason why not.

The driver alone writes ``manifest.jsonl``, a line for every start and every end of a task, and ``results.jsonl``, one for
every finished task. A task whose worker dies (killed, out of memory, its host gone) runs again, as often as the plan
allows, and goes on from the columns that it had saved; a task that ends with an error of its own would end so again, and does
not. Whatever is not done when the driver ends, however it ends, is done by the next one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ..errors import BackendUnavailable, ParameterError, how_to_install
from ..io.atomic import replacing_path
from ..io.lines import LineFile
from .plan import RAY_NAMES, Plan, Task

POLL = 0.5
"""Seconds between two looks when nothing has happened."""

_OPTIONS = ("num_cpus", "num_gpus", "memory")
_SIGNALLED = (130, 143)


@attrs.frozen
class Event:
    """Something that happened to a task."""

    what: str
    """submitted, running, died, done or failed."""
    task: Task
    """The task."""
    attempt: int
    """Which run of it, from 1."""
    record: Mapping[str, Any] = attrs.field(hash=False)
    """What the worker or the cluster said."""


@attrs.define
class Outcome:
    """How a campaign ended."""

    done: list[str] = attrs.field(factory=list)
    """Names of tasks that are finished."""
    failed: dict[str, str] = attrs.field(factory=dict)
    """Reasons, by name, of those that are not."""


def connect(address: str | None, num_cpus: int | None = None, resources: Mapping[str, int] | None = None):
    """Ray, connected: to the cluster at ``address``, or to one of this machine that ends with this process.

    Parameters
    ----------
    address
        ``host:port`` or ``"auto"``; None starts a cluster here.
    num_cpus, resources
        What a cluster started here has; all CPUs of this machine if not given.

    Returns
    -------
    module
        The package ``ray``; ``shutdown`` of it ends what was started.

    Raises
    ------
    BackendUnavailable
        If Ray is missing or the address does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise BackendUnavailable(f"campaigns need the package ray; {how_to_install('ray')}") from None
    common = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    try:
        if address:
            ray.init(address=address, **common)
        else:
            ray.init(
                address="local", include_dashboard=False, num_cpus=num_cpus, resources=dict(resources or {}), **common
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendUnavailable(
            f"no Ray cluster {f'at {address!r}' if address else 'could be started here'}: {error}"
        ) from None
    return ray


def check_capacity(nodes: Sequence[Mapping[str, float]], wanted: Mapping[str, int]) -> None:
    """Refuse tasks that no node could ever hold, which Ray would queue for ever.

    Parameters
    ----------
    nodes
        What each node of the cluster has in all, by Ray's names.
    wanted
        What a task holds, by the plan's names.

    Raises
    ------
    ParameterError
        Naming the resource, what a task wants and the most that a node has.

    Examples
    --------
    >>> check_capacity([{"CPU": 4.0}, {"CPU": 1.0, "neuron_cores": 2.0}], {"num_cpus": 2})
    """
    asked = {RAY_NAMES.get(name, name): count for name, count in wanted.items()}
    if any(all(node.get(name, 0) >= count for name, count in asked.items()) for node in nodes):
        return
    remedy = (
        "change [resources] of the plan, or start nodes with it (ray start --resources), or pass --autoscale if nodes come "
        "when they are asked for."
    )
    for name, count in wanted.items():
        most = max((node.get(RAY_NAMES.get(name, name), 0) for node in nodes), default=0)
        if most < count:
            raise ParameterError(f"a task wants {name} = {count} and no node has more than {most:g}: {remedy}")
    together = ", ".join(f"{name} = {count}" for name, count in wanted.items())
    raise ParameterError(f"a task wants {together}, which no node has together: {remedy}")


def run(
    plan: Plan, ray, tell: Callable[[Event], None] = lambda event: None, tick: Callable[[], None] = lambda: None
) -> Outcome:
    """Run what is not done of a plan on a connected Ray.

    Parameters
    ----------
    plan
        The plan; its output folder exists.
    ray
        What :func:`connect` returned.
    tell
        Called with every :class:`Event`.
    tick
        Called at least every half second.

    Returns
    -------
    Outcome
        Each task of the plan, done or with its reason.

    Raises
    ------
    FileError
        If the manifest or the results cannot be written, or hold lines that are damaged. What was done stays done.
    """
    outcome = Outcome()
    markers = plan.output / ".running"
    markers.mkdir(exist_ok=True)
    for stale in markers.glob("*.json"):  # of a driver that died
        stale.unlink(missing_ok=True)
    remote = ray.remote(_on_worker)
    custom = {k: v for k, v in plan.resources.items() if k not in _OPTIONS}
    options = {k: v for k, v in plan.resources.items() if k not in custom} | {"resources": custom, "max_retries": 0}
    with LineFile(plan.output / "manifest.jsonl") as manifest, LineFile(plan.output / "results.jsonl") as results:
        known = {(r.get("task"), r.get("digest")) for r in results.records}

        def note(what: str, task: Task, attempt: int, record: Mapping[str, Any]) -> None:
            if what != "running":
                kept = {k: v for k, v in record.items() if k != "correlators"}
                manifest.append({"event": what, "time": time.time(), "task": task.name, "attempt": attempt, **kept})
            tell(Event(what, task, attempt, record))

        waiting: dict[Any, tuple[Task, int]] = {}

        def submit(task: Task, attempt: int) -> None:
            measure = (task.name, task.digest) not in known
            waiting[remote.options(name=task.name, **options).remote(task, measure, str(markers))] = (task, attempt)
            note("submitted", task, attempt, {})

        for task in plan.tasks:
            submit(task, 1)
        started: set[tuple[str, int]] = set()
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL)
            for reference in ready:
                task, attempt = waiting.pop(reference)
                record, died = _result(ray, reference, task, markers)
                if died and attempt <= plan.retries:
                    note("died", task, attempt, record)
                    submit(task, attempt + 1)
                elif record.get("code"):
                    outcome.failed[task.name] = record["message"]
                    note("failed", task, attempt, record)
                else:
                    if (task.name, task.digest) not in known:
                        results.append(record)
                        known.add((task.name, task.digest))
                    outcome.done.append(task.name)
                    note("done", task, attempt, record)
            for task, attempt in waiting.values():
                if (task.name, attempt) not in started and (where := _marker(markers, task)):
                    started.add((task.name, attempt))
                    note("running", task, attempt, where)
            tick()
    return outcome


def _on_worker(task: Task, measure: bool, markers: str) -> dict[str, Any]:
    """Where Ray runs it: leave word of who works on the task, so that a death can be told, then work."""
    import platform

    import ray

    from .task import run_task

    visible = {k: v for k, v in ray.get_runtime_context().get_accelerator_ids().items() if v}
    where = {"host": platform.node(), "pid": os.getpid(), "accelerators": visible}
    path = Path(markers) / f"{task.name}.json"
    with replacing_path(path) as temporary:
        temporary.write_text(json.dumps(where))
    record = run_task(task, measure)
    path.unlink(missing_ok=True)
    return record | {"accelerators": visible}


def _marker(markers: Path, task: Task) -> dict[str, Any]:
    try:
        return json.loads((markers / f"{task.name}.json").read_text())
    except (OSError, ValueError):
        return {}


def _result(ray, reference, task: Task, markers: Path) -> tuple[dict[str, Any], bool]:
    """What a task returned, and whether its worker died instead."""
    try:
        record = ray.get(reference)
        return record, record["code"] in _SIGNALLED  # a batch system that takes the node back says so with a signal
    except ray.exceptions.RayTaskError as error:  # our own code raised: it would again
        cause = error.cause or error
        said = [line for line in str(cause).splitlines() if line.strip()]
        return {"code": 1, "message": said[-1] if said else type(cause).__name__}, False
    except ray.exceptions.RayError as error:
        where = _marker(markers, task)
        (markers / f"{task.name}.json").unlink(missing_ok=True)
        at = f" on {where['host']} (pid {where['pid']})" if where else ""
        return {"code": 1, "message": f"the worker{at} died: {' '.join(str(error).split())[:200]}", **where}, True


__all__ = ["POLL", "Event", "Outcome", "check_capacity", "connect", "run"]

"""``lqcd campaign PLAN.toml``: many configurations, sources and masses as tasks on a Ray cluster."""

from __future__ import annotations

import collections
import sys
import time
from pathlib import Path

import click

from .exclusive import exclusive
from .program import DONE, FAILED, LQCDCommand
from .screen import console, remark, seconds_text, table


@click.command("campaign", cls=LQCDCommand)
@click.argument("plan", metavar="PLAN.toml", type=click.Path(dir_okay=False))
@click.option("--address", help="Ray cluster to use, host:port or 'auto'; one of this machine if not given.")
@click.option("--num-cpus", type=click.IntRange(1), help="CPUs of this machine's own cluster. [default: all]")
@click.option("--autoscale", is_flag=True, help="Do not refuse resources that the cluster does not have yet.")
@click.option("--dry-run", is_flag=True, help="Print the tasks, run nothing.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def command(plan, address, num_cpus, autoscale, dry_run, quiet):
    """Compute every propagator of a plan, and its correlators.

    The output folder gets one file per task, results.jsonl (correlators, residuals) and manifest.jsonl (what ran where). The same
    command again does what is not done yet, after a crash of a worker, of a host or of this command.
    """
    from ..campaign.driver import check_capacity, connect, run
    from ..campaign.plan import read_plan
    from ..errors import ParameterError

    found = read_plan(plan)
    if dry_run:
        table("", ("task", "configuration", "lqcd propagator ..."), [
            (t.name, Path(t.configuration).name, " ".join(t.words)) for t in found.tasks
        ])  # fmt: skip
        held = ", ".join(f"{k} = {v}" for k, v in found.resources.items())
        print(f"{len(found.tasks)} tasks, each with {held}, into {found.output}")
        return DONE
    if address and num_cpus:
        raise ParameterError("--num-cpus belongs to a cluster of this machine; the one at --address has its own.")
    found.output.mkdir(parents=True, exist_ok=True)
    with exclusive(found.output / "results.jsonl"):
        ray = connect(address, num_cpus)
        try:
            if not autoscale:
                check_capacity([n["Resources"] for n in ray.nodes() if n["Alive"]], found.resources)
            with Board(len(found.tasks), quiet) as board:
                outcome = run(found, ray, board.tell, board.tick)
        finally:
            ray.shutdown()
    for name, reason in outcome.failed.items():
        print(f"failed: {name}: {reason}")
    print(f"{len(outcome.done)} of {len(found.tasks)} tasks done, in {found.output}")
    return FAILED if outcome.failed else DONE


class Board:
    """A live table where somebody watches, a line per event where not; both on stderr."""

    def __init__(self, total: int, quiet: bool):
        self.total, self.quiet = total, quiet
        self.states: dict[str, str] = {}
        self.where: dict[str, str] = {}
        self.last: collections.deque = collections.deque(maxlen=6)
        self.began, self.fresh = time.monotonic(), 0
        self._live = None

    def __enter__(self) -> Board:
        if not self.quiet and sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(self._picture(), console=console(stderr=True), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *exc) -> None:
        if self._live is not None:
            self._live.update(self._picture())
            self._live.stop()

    def tell(self, event) -> None:
        """Take an event of the driver."""
        record, name = event.record, event.task.name
        self.states[name] = {"submitted": "waiting", "died": "waiting"}.get(event.what, event.what)
        text = ""
        if event.what == "running":
            self.where[name] = f"{record.get('host')}:{record.get('pid')}"
        elif event.what == "done":
            again = record.get("done_before")
            self.fresh += not again
            numbers = (
                ""
                if record.get("residual") is None
                else f", residual {record['residual']:.1e}, {record['iterations']} iterations"
            )
            text = (
                "was done before"
                if again
                else f"{seconds_text(record['seconds'])} on {record['host']} ({record['backend']}){numbers}"
            )
        elif event.what in ("died", "failed"):
            text = f"attempt {event.attempt}: {record.get('message', '')}"
        if text:
            self.last.append((event.what, name, text))
            if self._live is None and not self.quiet:
                done = sum(s == "done" for s in self.states.values())
                remark(f"{done}/{self.total}  {event.what}  {name}: {text}")

    def tick(self) -> None:
        """Redraw."""
        if self._live is not None:
            self._live.update(self._picture())

    def _picture(self):
        from rich.console import Group
        from rich.table import Table

        counts = collections.Counter(self.states.values())
        elapsed = time.monotonic() - self.began
        left = elapsed * (self.total - counts["done"] - counts["failed"]) / self.fresh if self.fresh else float("inf")
        head = "  ".join(f"{what} {counts[what]}" for what in ("waiting", "running", "done", "failed"))
        out = Table(
            title=f"{head}  of {self.total}   {seconds_text(elapsed)}, left {seconds_text(left)}",
            title_justify="left",
            box=None,
        )
        for name in ("state", "task", ""):
            out.add_column(name, overflow="fold")
        for name in [n for n, s in self.states.items() if s == "running"][:12]:
            out.add_row("running", name, self.where.get(name, ""))
        for what, name, text in self.last:
            out.add_row(what, name, text)
        return Group(out)


__all__ = ["Board", "command"]

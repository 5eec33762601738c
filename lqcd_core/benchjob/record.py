"""What a job leaves in the bucket, and the state that follows from it.

``jobs/<id>/`` holds ``job.json`` (what was asked; written before anything is launched), ``launched.json`` (the instance),
``status.json`` (the runner's last word), ``rows/NNNNNN.json`` (one measured row each, numbered from 1 in the order of the
run), ``rows.jsonl`` and ``log.txt`` (whole, at the end), ``cancelled.json``. A row has one name, so that writing it twice
changes nothing.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
from typing import Any

import attrs

from ..errors import ParameterError

PREFIX = "jobs/"
"""Where jobs are in the bucket."""

ENDED = ("done", "failed", "timed-out", "stopped")
"""States that the runner itself reports as its last word."""

LAUNCH_GRACE = 600.0
"""Seconds that a job may stand in the bucket without an instance that EC2 lists before it counts as never launched, or dead."""

_JOB_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")


def new_job_id(now: datetime.datetime | None = None) -> str:
    """A name that sorts by time and that two people do not pick at once.

    >>> len(new_job_id())
    22
    """
    now = now or datetime.datetime.now(datetime.timezone.utc)
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def check_job_id(text: str) -> str:
    """``text``, if it is the name of a job.

    Raises
    ------
    ParameterError
        If it is not; the message shows the form.
    """
    if not _JOB_ID.fullmatch(text):
        raise ParameterError(
            f"{text!r} is not the name of a job, such as 20260131-120000-a1b2c3; see 'lqcd bench-job list'."
        )
    return text


def job_key(job_id: str, name: str) -> str:
    """Key of a file of a job.

    >>> job_key("20260131-120000-a1b2c3", "log.txt")
    'jobs/20260131-120000-a1b2c3/log.txt'
    """
    return f"{PREFIX}{job_id}/{name}"


def row_key(job_id: str, number: int) -> str:
    """Key of row ``number``, counted from 1.

    >>> row_key("20260131-120000-a1b2c3", 7)
    'jobs/20260131-120000-a1b2c3/rows/000007.json'
    """
    return job_key(job_id, f"rows/{number:06d}.json")


def row_number(key: str) -> int | None:
    """The number of a row's key, None if the key is not one.

    >>> row_number("jobs/20260131-120000-a1b2c3/rows/000007.json")
    7
    """
    found = re.search(r"/rows/(\d{6,})\.json$", key)
    return int(found[1]) if found else None


@attrs.frozen
class Job:
    """What was asked of a job."""

    job_id: str
    """Name of the job."""
    arguments: tuple[str, ...]
    """Words after ``lqcd bench`` on the instance."""
    packages: tuple[str, ...]
    """What pip installs there: requirements, or names of files under ``packages/`` of the job."""
    files: tuple[str, ...]
    """Those of ``packages`` that were uploaded with the job."""
    instance_type: str
    """Type of the instance, for example ``c7i.4xlarge``."""
    region: str
    """Region of the account."""
    wall_clock: float
    """Minutes until the kill switch; 0 means that there is none."""
    python: str
    """Interpreter of the image to install into; empty means a new virtual environment."""
    created: str
    """Time of submission, UTC, ISO 8601."""
    hourly_price: float
    """Dollars per hour that the estimate was made with."""
    version: str
    """Version of the package that submitted it."""

    def to_json(self) -> str:
        """The record as JSON."""
        return json.dumps(attrs.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Job:
        """Read :meth:`to_json`; unknown entries of a later version are ignored.

        Raises
        ------
        ParameterError
            If the text is not such a record.
        """
        try:
            found = json.loads(text)
            names = [f.name for f in attrs.fields(cls)]
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items() if k in names}
            return cls(**values)
        except (ValueError, TypeError, AttributeError) as error:
            raise ParameterError(f"not the record of a bench job: {error}") from None


@attrs.frozen
class JobState:
    """Where a job stands."""

    name: str
    """submitted, not-launched, booting, installing, running, done, failed, timed-out, stopped, cancelled or died."""
    reason: str
    """One sentence for people; empty where the name says all."""
    rows: int
    """Rows that the runner has counted so far."""
    updated: str
    """Time of the runner's last word, or empty."""

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.name in (*ENDED, "cancelled", "died", "not-launched")


def state_of(
    job: Job,
    launched: dict[str, Any] | None,
    status: dict[str, Any] | None,
    cancelled: bool,
    instance: str | None,
    now: datetime.datetime | None = None,
) -> JobState:
    """The state of a job from what is known of it.

    Parameters
    ----------
    job
        What was asked.
    launched
        ``launched.json``, None if it is not there.
    status
        ``status.json``, None if it is not there.
    cancelled
        Whether ``cancelled.json`` is there.
    instance
        What EC2 calls the instance's state; None if EC2 no longer knows it (an hour after its end).
    now
        The time, for tests.

    Examples
    --------
    >>> job = Job("20260131-120000-a1b2c3", (), (), (), "c7i.large", "us-east-1", 120, "", "2026-01-31T12:00:00+00:00", 0.1, "1")
    >>> state_of(job, {"instance": "i-1"}, {"state": "running", "rows": 3, "updated": ""}, False, "terminated").name
    'died'
    """
    rows = int((status or {}).get("rows", 0))
    updated = str((status or {}).get("updated", ""))
    if status and status.get("state") in ENDED:
        return JobState(status["state"], str(status.get("reason", "")), rows, updated)
    if cancelled:
        return JobState("cancelled", "", rows, updated)
    now = now or datetime.datetime.now(datetime.timezone.utc)
    young = (now - datetime.datetime.fromisoformat(job.created)).total_seconds() < LAUNCH_GRACE
    if launched is None and status is None:
        if young:
            return JobState("submitted", "no instance yet", rows, updated)
        return JobState(
            "not-launched", "the record stands in the bucket and no instance followed; submit again", rows, updated
        )
    if instance is None and status is None and young:  # EC2 lists an instance some seconds after it launched it
        return JobState("booting", "", rows, updated)
    if instance in (None, "terminated", "shutting-down", "stopped", "stopping"):
        reason = f"instance {(launched or {}).get('instance', 'unknown')} is {instance or 'gone'} and left no last word; its rows so far are kept"
        return JobState("died", reason, rows, updated)
    if status is None:
        return JobState("booting", "", rows, updated)
    return JobState(str(status.get("state", "running")), str(status.get("reason", "")), rows, updated)


__all__ = [
    "ENDED",
    "PREFIX",
    "Job",
    "JobState",
    "check_job_id",
    "job_key",
    "new_job_id",
    "row_key",
    "row_number",
    "state_of",
]

"""Submit, list, tail, fetch, cancel: what is done at home."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from ..errors import ParameterError
from ..io.atomic import replacing_path
from .account import Account, CloudError
from .price import Estimate
from .record import PREFIX, Job, JobState, check_job_id, job_key, row_key, row_number, state_of
from .user_data import render

TAG = "lqcd-bench-job"
"""Tag of an instance; its value is the name of the job."""

FILTER_VALUES = 200
"""Values that EC2 takes in one filter."""


def _utc() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _put(account: Account, key: str, body: str | bytes) -> None:
    account.client("s3").put_object(Bucket=account.bucket, Key=key, Body=body)


def _get(account: Account, key: str) -> bytes | None:
    from botocore.exceptions import ClientError

    try:
        return account.client("s3").get_object(Bucket=account.bucket, Key=key)["Body"].read()
    except ClientError as error:
        if error.response["Error"].get("Code") in ("NoSuchKey", "404"):
            return None
        raise


def _get_json(account: Account, key: str) -> dict[str, Any] | None:
    body = _get(account, key)
    return None if body is None else json.loads(body)


def template_instance_type(account: Account) -> str:
    """Instance type that the launch template names.

    Raises
    ------
    CloudError
        If there is no such template, or it names none.
    """
    from botocore.exceptions import ClientError

    name = account.launch_template
    try:
        answer = account.client("ec2").describe_launch_template_versions(LaunchTemplateName=name, Versions=["$Default"])
    except ClientError as error:
        raise CloudError(
            f"launch template {name!r} in {account.region}: {error.response['Error']['Message']}"
        ) from None
    data = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    if data.get("InstanceInitiatedShutdownBehavior") != "terminate":
        raise CloudError(
            f"launch template {name!r} does not terminate its instance on shutdown, so the kill switch would only stop it: "
            "set InstanceInitiatedShutdownBehavior to terminate."
        )
    if "InstanceType" not in data:
        raise CloudError(f"launch template {name!r} names no instance type; give --instance-type.")
    return data["InstanceType"]


def check_request(wall_clock: float, packages: Sequence[str], files: Sequence[str]) -> None:
    """Refuse a wall clock or packages that make no sense, before anything is asked of the cloud.

    Parameters
    ----------
    wall_clock
        Minutes until the kill switch.
    packages
        Requirements, and paths of wheels and archives.
    files
        Those of ``packages`` that are paths.

    Raises
    ------
    ParameterError
        Naming the option.
    """
    if not 0 <= wall_clock < 7 * 24 * 60:
        raise ParameterError(f"--wall-clock must be minutes from 0 (no kill switch) to a week, got {wall_clock:g}.")
    names = [Path(f).name for f in files]
    for package in packages:
        if package not in files and Path(package).is_dir():
            raise ParameterError(f"--package {package!r} is a folder, which does not travel: build a wheel of it.")
    for file, name in zip(files, names):
        if not Path(file).is_file():
            raise ParameterError(f"--package {str(file)!r} looks like a file and is none.")
        if names.count(name) > 1:
            raise ParameterError(f"two package files are called {name!r}.")


def submit(account: Account, job: Job, files: Sequence[str | Path] = ()) -> str:
    """Launch the instance of ``job`` and return its name.

    The record is in the bucket before the instance is asked for, and the job's name is the token of the launch: a submission
    that is repeated after a lost answer does not launch twice.

    Parameters
    ----------
    account
        Where.
    job
        What.
    files
        Paths of the files that ``job.files`` names.

    Raises
    ------
    CloudError
        If EC2 refuses; the record then says so, and nothing runs.
    """
    from botocore.exceptions import ClientError

    script = render(job, account)
    for file in files:
        _put(account, job_key(job.job_id, f"packages/{Path(file).name}"), Path(file).read_bytes())
    _put(account, job_key(job.job_id, "job.json"), job.to_json())
    tags = [{"Key": TAG, "Value": job.job_id}, {"Key": "Name", "Value": f"lqcd bench {job.job_id}"}]
    try:
        answer = account.client("ec2").run_instances(
            LaunchTemplate={"LaunchTemplateName": account.launch_template, "Version": "$Default"},
            InstanceType=job.instance_type, MinCount=1, MaxCount=1, UserData=script, ClientToken=job.job_id,
            InstanceInitiatedShutdownBehavior="terminate",
            TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
        )  # fmt: skip
    except ClientError as error:
        reason = error.response["Error"]
        _put(account, job_key(job.job_id, "status.json"), json.dumps(
            {"state": "failed", "reason": f"not launched: {reason.get('Message')}", "rows": 0, "updated": _utc()}
        ))  # fmt: skip
        raise CloudError(
            f"EC2 did not launch {job.instance_type}: {reason.get('Message')} ({reason.get('Code')})."
        ) from None
    instance = answer["Instances"][0]["InstanceId"]
    _put(account, job_key(job.job_id, "launched.json"), json.dumps({"instance": instance, "time": _utc()}))
    return instance


@attrs.frozen
class Listed:
    """A job and its state."""

    job: Job
    """What was asked."""
    state: JobState
    """Where it stands."""
    instance: str
    """The instance, or empty."""


def _instances(account: Account, names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Id and state of the instance of each job; jobs whose instance EC2 does not know, or no longer, are left out.

    Asked for by tag, which an instance has from its launch: it is found also if the answer to the launch was lost, so
    that ``launched.json`` is not there.
    """
    out = {}
    for first in range(0, len(names), FILTER_VALUES):
        pages = (
            account.client("ec2")
            .get_paginator("describe_instances")
            .paginate(Filters=[{"Name": f"tag:{TAG}", "Values": list(names[first : first + FILTER_VALUES])}])
        )
        for instance in (i for p in pages for r in p["Reservations"] for i in r["Instances"]):
            (name,) = (t["Value"] for t in instance["Tags"] if t["Key"] == TAG)
            out[name] = (instance["InstanceId"], instance["State"]["Name"])
    return out


def list_jobs(account: Account, limit: int = 20) -> list[Listed]:
    """The newest jobs first."""
    pages = (
        account.client("s3")
        .get_paginator("list_objects_v2")
        .paginate(Bucket=account.bucket, Prefix=PREFIX, Delimiter="/")
    )
    names = sorted(
        (p["Prefix"][len(PREFIX) : -1] for page in pages for p in page.get("CommonPrefixes", ())), reverse=True
    )
    return _look(account, names[:limit])


def look(account: Account, job_id: str) -> Listed:
    """One job.

    Raises
    ------
    ParameterError
        If the bucket has no such job.
    """
    found = _look(account, [check_job_id(job_id)])
    if not found:
        raise ParameterError(f"there is no job {job_id!r} in bucket {account.bucket!r}; see 'lqcd bench-job list'.")
    return found[0]


def _look(account: Account, names: Sequence[str]) -> list[Listed]:
    facts = []
    for name in names:
        body = _get(account, job_key(name, "job.json"))
        if body is not None:
            parts = [_get_json(account, job_key(name, n)) for n in ("launched.json", "status.json", "cancelled.json")]
            facts.append((Job.from_json(body), *parts))
    known = _instances(account, [f[0].job_id for f in facts])
    out = []
    for job, launched, status, cancelled in facts:
        instance, doing = known.get(job.job_id, (launched["instance"] if launched else "", None))
        if instance:
            launched = {"instance": instance}
        out.append(Listed(job, state_of(job, launched, status, cancelled is not None, doing), instance))
    return out


def _row_numbers(account: Account, job_id: str, after: int = 0) -> list[int]:
    pages = (
        account.client("s3")
        .get_paginator("list_objects_v2")
        .paginate(
            Bucket=account.bucket,
            Prefix=job_key(job_id, "rows/"),
            **({"StartAfter": row_key(job_id, after)} if after else {}),
        )
    )
    found = [row_number(o["Key"]) for p in pages for o in p.get("Contents", ())]
    return sorted(n for n in found if n is not None)


def tail(
    account: Account, job_id: str, poll: float = 10.0, once: bool = False, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str | JobState]:
    """Rows of a job as they come, as JSON text, and a :class:`JobState` whenever it changes; ends with the job.

    A row whose number is not there yet is waited for, so that rows come in order, each once; at the end what is
    there is given.
    """
    seen, last = 0, None
    while True:
        listed = look(
            account, job_id
        )  # first the state, then the rows: the last rows are there when the state is final
        for number in _row_numbers(account, job_id, after=seen):
            if number != seen + 1 and not listed.state.over:
                break
            yield (_get(account, row_key(job_id, number)) or b"").decode()
            seen = number
        shown = (listed.state.name, listed.state.reason)
        if shown != last:
            yield listed.state
            last = shown
        if once or listed.state.over:
            return
        sleep(poll)


@attrs.frozen
class Fetched:
    """What :func:`fetch` brought."""

    folder: Path
    """Where it lies."""
    rows: int
    """Rows in ``rows.jsonl`` there."""
    missing: tuple[int, ...]
    """Numbers of rows that the runner counted and that are nowhere."""
    state: JobState
    """State of the job at that time."""


def fetch(account: Account, job_id: str, folder: str | Path) -> Fetched:
    """Copy rows, log and records of a job into ``folder``.

    Rows come from both places, the numbered objects and the whole file of the end: one that is missing in one is taken from the
    other, and one that is there twice is one. Files are replaced whole, so fetching again is safe.

    Raises
    ------
    CloudError
        If one row number has two different contents, which no run writes.
    """
    listed = look(account, job_id)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = {n: (_get(account, row_key(job_id, n)) or b"").strip() for n in _row_numbers(account, job_id)}
    whole = _get(account, job_key(job_id, "rows.jsonl")) or b""
    for number, line in enumerate((line for line in whole.splitlines() if line.strip()), start=1):
        if rows.setdefault(number, line.strip()) != line.strip():
            raise CloudError(
                f"row {number} of job {job_id} is there twice with different contents; nothing was written over."
            )
    last = max([listed.state.rows, *rows])
    missing = tuple(n for n in range(1, last + 1) if not rows.get(n))
    text = b"".join(rows[n] + b"\n" for n in sorted(rows) if rows[n])
    with replacing_path(folder / "rows.jsonl") as path:
        path.write_bytes(text)
    for name in ("job.json", "launched.json", "status.json", "log.txt"):
        body = _get(account, job_key(job_id, name))
        if body is not None:
            with replacing_path(folder / name) as path:
                path.write_bytes(body)
    return Fetched(folder, sum(1 for n in rows if rows[n]), missing, listed.state)


def cancel(account: Account, job_id: str) -> JobState:
    """Terminate the instance of a job; one that is over is left as it is.

    Rows that are in the bucket stay. The instance goes first: a job counts as cancelled only when nothing of it costs any more.

    Returns
    -------
    JobState
        The state before.
    """
    listed = look(account, job_id)
    if listed.state.over:
        return listed.state
    if listed.instance:  # first, so that a refusal does not leave a job that counts as cancelled and runs on
        account.client("ec2").terminate_instances(InstanceIds=[listed.instance])
    _put(account, job_key(job_id, "cancelled.json"), json.dumps({"time": _utc()}))
    return listed.state


__all__ = [
    "TAG", "Estimate", "Fetched", "Listed", "cancel", "check_request", "fetch", "list_jobs", "look", "submit", "tail",
    "template_instance_type",
]  # fmt: skip

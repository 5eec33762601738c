"""The script that the instance boots with."""

from __future__ import annotations

import json
import math
import re
import shlex
from importlib import resources

from ..errors import ParameterError
from .account import Account
from .record import Job

LIMIT = 16384
"""Bytes of user data that EC2 takes."""

INTERVAL = 2.0
"""Seconds between two looks at the rows on the instance."""


def deadline(wall_clock: float) -> float:
    """Seconds after which the runner ends the sweep in good order, so that rows and log are up before the kill switch.

    A fifth of the wall clock is kept for that, two minutes at most. 0 (no kill switch) means none.

    >>> deadline(120), deadline(1), deadline(0)
    (7080.0, 48.0, 0.0)
    """
    seconds = 60 * wall_clock
    return seconds - min(120.0, 0.2 * seconds)


def render(job: Job, account: Account) -> str:
    """The user data of ``job``.

    The kill switch is its first act: the operating system's own timed shutdown, which needs nothing of what follows to
    work. Minutes are rounded up.

    Raises
    ------
    ParameterError
        If the script is larger than EC2 takes, with the number of bytes.
    """
    here = resources.files(__package__)
    config = {
        "job_id": job.job_id, "bucket": account.bucket, "topic": account.topic, "region": job.region,
        "arguments": list(job.arguments), "packages": list(job.packages), "files": list(job.files),
        "deadline": deadline(job.wall_clock), "interval": INTERVAL,
    }  # fmt: skip
    parts = {
        "@JOB_ID@": job.job_id,
        "@MINUTES@": str(math.ceil(job.wall_clock)),
        "@PYTHON@": shlex.quote(job.python),
        "@CONFIG@": json.dumps(config),  # one line, and JSON escapes line ends: it cannot close the here-document
        "@RUNNER@": here.joinpath("runner.py").read_text().rstrip("\n"),
    }
    # One pass: what stands in the user's words is text, whatever it looks like.
    script = re.sub("|".join(parts), lambda found: parts[found[0]], here.joinpath("user_data.sh.in").read_text())
    size = len(script.encode())
    if size > LIMIT:
        raise ParameterError(
            f"the user data would be {size} bytes and EC2 takes {LIMIT}: shorten the benchmark's arguments."
        )
    return script


__all__ = ["INTERVAL", "LIMIT", "deadline", "render"]

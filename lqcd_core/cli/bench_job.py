"""``lqcd bench-job``: a sweep of ``lqcd bench`` on a rented instance, fire and forget."""

from __future__ import annotations

import contextlib
import datetime
import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import click

from ..errors import ParameterError
from .program import DONE, FAILED, MISTAKE, LQCDCommand
from .screen import as_json, facts, plain, remark, table


def account_options(function):
    """Options that name the account, for every subcommand that reaches it."""
    for option in reversed((
        click.option("--region", help="Region; that of the AWS settings if not given."),
        click.option("--profile", help="Profile of the AWS settings."),
        click.option("--stack", default="lqcd-bench", help="CloudFormation stack that holds bucket, topic and template."),
        click.option("--bucket", help="Bucket, instead of the stack's."),
        click.option("--topic", help="ARN of the SNS topic, instead of the stack's."),
        click.option("--launch-template", help="Name of the launch template, instead of the stack's."),
    )):  # fmt: skip
        function = option(function)
    return function


@contextlib.contextmanager
def _in_our_words():
    """What boto3 raises, as one line with the service's reason."""
    from ..benchjob.account import CloudError

    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:  # open_session says what to install
        yield
        return
    try:
        yield
    except ClientError as error:
        what = error.response["Error"]
        raise CloudError(f"{error.operation_name} was refused: {what.get('Message')} ({what.get('Code')}).") from None
    except BotoCoreError as error:
        said = " ".join(str(error).split()).rstrip(".")
        if "redential" in said or "token" in said.lower():
            said += "; set up credentials (aws configure, or AWS_* variables)"
        elif "endpoint" in said.lower():
            said += "; is the region right, and is there a network?"
        raise CloudError(f"{said}.") from None


def _account(region, profile, stack, bucket, topic, launch_template):
    from ..benchjob.account import find_account, open_session

    return find_account(open_session(region, profile), stack, bucket, topic, launch_template)


@click.group("bench-job")
def command():
    """Run 'lqcd bench' on a rented instance that ends itself; rows, log and a mail come back.

    The bucket, topic, role and launch template are set up once: 'lqcd bench-job infrastructure --help'.
    """


@command.command("submit", cls=LQCDCommand)
@click.argument("arguments", nargs=-1, metavar="[-- BENCH-OPTIONS...]")
@account_options
@click.option("--instance-type", help="Type of the instance, instead of the template's.")
@click.option(
    "--wall-clock", type=float, default=120.0, metavar="MINUTES", help="Kill switch, armed at boot; 0 disables it."
)
@click.option(
    "--package", "packages", multiple=True, metavar="REQUIREMENT|FILE",
    help="What pip installs there, repeatable: a requirement, or a wheel or archive that is uploaded. This version if not given.",
)  # fmt: skip
@click.option(
    "--python", default="", metavar="PATH", help="Install into this interpreter of the image, not a new environment."
)
@click.option("--hourly-price", type=float, metavar="USD", help="Price per hour, if the price list cannot be asked.")
@click.option("--yes", is_flag=True, help="Launch; without it only the plan and its cost are printed.")
@click.option("--json", is_flag=True, help="Machine-readable output.")
def submit(arguments, instance_type, wall_clock, packages, python, hourly_price, yes, json, **where):
    """Launch an instance that runs 'lqcd bench BENCH-OPTIONS' and ends itself.

    Everything after '--' goes to 'lqcd bench' there, for example: lqcd bench-job submit --yes -- --lattice 16x8x8x8 --batch 1,8
    """
    from .. import __version__
    from ..benchjob import control
    from ..benchjob.price import Estimate, list_price
    from ..benchjob.record import Job, new_job_id
    from ..benchjob.user_data import render

    _check_words(arguments, known=not packages)
    packages = packages or (f"lqcd-core[cli,torch]=={__version__}",)
    files = [p for p in packages if p.endswith((".whl", ".tar.gz", ".zip")) and "://" not in p]
    control.check_request(wall_clock, packages, files)
    if hourly_price is not None and not 0 < hourly_price < 10000:
        raise ParameterError(f"--hourly-price must be dollars per hour, got {hourly_price:g}.")
    with _in_our_words():
        account = _account(**where)
        instance_type = instance_type or control.template_instance_type(account)
        source = "given" if hourly_price is not None else "price list"
        if hourly_price is None:
            hourly_price = list_price(account.session, instance_type, account.region)
        job = Job(
            job_id=new_job_id(), arguments=tuple(arguments),
            packages=tuple(Path(p).name if p in files else p for p in packages), files=tuple(Path(f).name for f in files),
            instance_type=instance_type, region=account.region, wall_clock=wall_clock, python=python,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            hourly_price=hourly_price, version=__version__,
        )  # fmt: skip
        render(job, account)  # too long a command is found before anything is said or launched
        estimate = Estimate(hourly_price, source, wall_clock)
        if not json:
            facts([
                ("job", job.job_id), ("instance", f"{instance_type} in {account.region}, template {account.launch_template}"),
                ("installs", " ".join(job.packages)), ("runs", " ".join(("lqcd bench", *arguments))),
                ("kill switch", f"{wall_clock:g} minutes after boot" if wall_clock else "none"),
                ("cost", estimate.text()),
            ])  # fmt: skip
        if not yes:
            if json:
                as_json({"job": _plain(job), "cost": estimate.text(), "at_most": estimate.at_most, "launched": False})
            remark("nothing was launched: add --yes to launch it")
            return MISTAKE
        instance = control.submit(account, job, files)
    if json:
        as_json({"job": _plain(job), "cost": estimate.text(), "at_most": estimate.at_most, "launched": instance})
    else:
        print(f"launched {instance}; follow it with: lqcd bench-job tail {job.job_id}")
    return DONE


_LOCAL = ("output", "o", "resume", "force", "baseline", "plot", "config")
"""Options of ``lqcd bench`` that name files: the job has its own, and those of this machine are not there."""


def _check_words(words: Sequence[str], known: bool) -> None:
    """Refuse what ``lqcd bench`` would refuse, now rather than on a machine that costs money.

    Other packages than this version may know other options: with ``known`` false, only the files are looked at.
    """
    for word in words:
        name = word.lstrip("-").partition("=")[0]
        if word.startswith("-") and name in _LOCAL:
            raise ParameterError(
                f"{word!r} names a file, and the instance has none of this machine's; rows come by 'fetch'."
            )
    if known:
        from .bench import command as bench

        try:
            bench.make_context("lqcd bench", list(words))
        except click.UsageError as error:
            raise ParameterError(f"lqcd bench {' '.join(words)}: {error.format_message()}") from None


def _plain(record) -> dict:
    import attrs

    return plain(attrs.asdict(record))


@command.command("list", cls=LQCDCommand)
@account_options
@click.option("--limit", type=click.IntRange(1), default=20, help="Newest jobs shown.")
@click.option("--json", is_flag=True, help="Machine-readable output.")
def list_command(limit, json, **where):
    """Jobs of the bucket, newest first, and where each stands."""
    from ..benchjob import control

    with _in_our_words():
        found = control.list_jobs(_account(**where), limit)
    if json:
        as_json(
            [
                {
                    **_plain(f.job),
                    "instance": f.instance,
                    "state": f.state.name,
                    "reason": f.state.reason,
                    "rows": f.state.rows,
                }
                for f in found
            ]
        )
        return DONE
    if found:
        table("", ("job", "instance", "type", "state", "rows", "runs"), [
            (f.job.job_id, f.instance or "-", f.job.instance_type, f.state.name, f.state.rows, " ".join(f.job.arguments))
            for f in found
        ])  # fmt: skip
    for f in found:
        if f.state.reason:
            print(f"{f.job.job_id}: {f.state.reason}")
    print(f"{len(found)} jobs")
    return DONE


@command.command("tail", cls=LQCDCommand)
@click.argument("job")
@account_options
@click.option(
    "--poll", type=click.FloatRange(min=0.05), default=10.0, metavar="SECONDS", help="Pause between two looks."
)
@click.option("--once", is_flag=True, help="What is there now, then stop.")
def tail(job, poll, once, **where):
    """Rows of JOB as they come (JSON lines on stdout, states on stderr), until it is over."""
    from ..benchjob import control

    with _in_our_words():
        state = None
        for item in control.tail(_account(**where), job, poll, once):
            if isinstance(item, str):
                print(item.strip(), flush=True)
            else:
                state = item
                remark(f"{job}: {state.name}" + (f" ({state.reason})" if state.reason else ""))
    return DONE if once or state.name == "done" else FAILED


@command.command("fetch", cls=LQCDCommand)
@click.argument("job")
@account_options
@click.option("-o", "--output", metavar="FOLDER", help="Where to; a folder called like the job if not given.")
@click.option("--json", is_flag=True, help="Machine-readable output.")
def fetch(job, output, json, **where):
    """Copy rows, log and records of JOB into a folder; exit code 1 if rows are missing or the job did not end well."""
    from ..benchjob import control

    with _in_our_words():
        found = control.fetch(_account(**where), job, output or job)
    if json:
        as_json({**_plain(found), "folder": str(found.folder)})
    else:
        print(f"{found.rows} rows in {found.folder / 'rows.jsonl'}; the job: {found.state.name}")
        if found.state.reason:
            print(found.state.reason)
        if found.missing:
            print(f"missing rows: {', '.join(map(str, found.missing))}")
        if not found.state.over:
            print("it is not over: fetch again later")
    return FAILED if found.missing or (found.state.over and found.state.name != "done") else DONE


@command.command("cancel", cls=LQCDCommand)
@click.argument("job")
@account_options
def cancel(job, **where):
    """Terminate the instance of JOB; rows that are in the bucket stay."""
    from ..benchjob import control

    with _in_our_words():
        before = control.cancel(_account(**where), job)
    print(f"{job} was over before: {before.name}" if before.over else f"{job} is cancelled (it was {before.name})")
    return DONE


@command.command("infrastructure", cls=LQCDCommand)
@click.argument("kind", type=click.Choice(["cloudformation", "terraform"]))
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="File (cloudformation) or folder (terraform) to write; a template goes to stdout if not given.",
)
def infrastructure(kind, output):
    """The bucket, topic, role and launch template that jobs need, as files for the tool that you deploy with.

    \b
    lqcd bench-job infrastructure cloudformation -o template.yaml
    aws cloudformation deploy --stack-name lqcd-bench --template-file template.yaml --capabilities CAPABILITY_IAM \\
        --parameter-overrides VpcId=... SubnetId=... Email=...
    """
    here = resources.files("lqcd_core.benchjob").joinpath("infrastructure")
    if kind == "cloudformation":
        text = here.joinpath("template.yaml").read_text()
        if output is None:
            print(text, end="")
            return DONE
        target = Path(output)
        if target.exists():
            raise ParameterError(f"{output!r} is there already; name another file or remove it.")
        target.write_text(text)
    else:
        if output is None:
            raise ParameterError("terraform reads a folder: name a new one with -o.")
        target = Path(output)
        if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
            raise ParameterError(f"{output!r} is there already and not empty; name a new folder.")
        target.mkdir(parents=True, exist_ok=True)
        with resources.as_file(here.joinpath("terraform")) as source:
            for file in sorted(source.glob("*.tf")):
                shutil.copy(file, target / file.name)
    print(f"written: {target}")
    return DONE


__all__ = ["command"]

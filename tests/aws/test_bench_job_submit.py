"""Submitting, listing and the rest at home, against the stand-in cloud, which never runs what it launches."""

from __future__ import annotations

import base64
import datetime
import json
import sys

import attrs
import pytest

from lqcd_core.benchjob import control
from lqcd_core.benchjob.account import CloudError
from lqcd_core.benchjob.price import Estimate, list_price
from lqcd_core.benchjob.record import Job, check_job_id, job_key, new_job_id, row_key, state_of
from lqcd_core.benchjob.user_data import LIMIT, deadline, render
from lqcd_core.errors import ParameterError

ARGUMENTS = ("--", "--lattice", "4x2x2x2", "--batch", "1")


@pytest.fixture
def submitted(lqcd, stack):
    """Name of a job that is launched."""
    out = lqcd("bench-job", "submit", "--yes", "--json", "--hourly-price", "0.2", *ARGUMENTS).stdout
    return json.loads(out)["job"]["job_id"]


def _put(account, job_id, name, value):
    account.client("s3").put_object(Bucket=account.bucket, Key=job_key(job_id, name), Body=json.dumps(value))


def _put_row(account, job_id, number, body):
    account.client("s3").put_object(Bucket=account.bucket, Key=row_key(job_id, number), Body=body)


def test_nothing_is_launched_without_yes_but_the_cost_is_printed(lqcd, stack, account, launched):
    found = lqcd("bench-job", "submit", "--hourly-price", "0.2", *ARGUMENTS, code=2)
    assert "at most 0.40 USD: 120 minutes at 0.20 USD per hour" in found.stdout
    assert "nothing was launched" in found.stderr
    assert launched() == [] and control.list_jobs(account) == []


def test_a_job_without_kill_switch_says_that_nothing_bounds_its_cost(lqcd, stack):
    out = lqcd("bench-job", "submit", "--hourly-price", "0.2", "--wall-clock", "0", *ARGUMENTS, code=2).stdout
    assert "no upper bound" in out


def test_one_instance_with_the_jobs_tags_and_user_data(lqcd, stack, account, launched, submitted):
    (instance,) = launched()
    assert {t["Key"]: t["Value"] for t in instance["Tags"]}[control.TAG] == submitted
    assert instance["InstanceType"] == "c7i.xlarge"
    data = stack.client("ec2").describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
    script = base64.b64decode(data["UserData"]["Value"]).decode()
    assert script.startswith("#!/bin/bash") and submitted in script
    assert script.index('shutdown -h "+$minutes"') < script.index("pip install"), "armed before anything else"
    (listed,) = control.list_jobs(account)
    assert (listed.job.job_id, listed.state.name, listed.instance) == (submitted, "booting", instance["InstanceId"])
    assert submitted in lqcd("bench-job", "list").stdout


def test_the_launch_carries_the_jobs_name_as_its_token(account, stack):
    """So that EC2 launches once however often the request is sent; the stand-in does not know tokens, the request shows it."""
    asked = []
    account.client("ec2").meta.events.register(
        "provide-client-params.ec2.RunInstances", lambda params, **_: asked.append(params)
    )
    job = _job()
    control.submit(account, job)
    assert [p["ClientToken"] for p in asked] == [job.job_id]


def test_a_refused_launch_is_said_and_recorded(lqcd, stack, account):
    job = _job()
    with pytest.raises(CloudError, match="EC2 did not launch"):
        control.submit(attrs.evolve(account, launch_template="other"), job)
    (listed,) = control.list_jobs(account)
    assert listed.state.name == "failed" and "not launched" in listed.state.reason


def _job(**changes):
    job = Job(
        new_job_id(),
        ("--lattice", "4x2x2x2"),
        (),
        (),
        "c7i.large",
        "us-east-1",
        120.0,
        "",
        "2026-01-31T12:00:00+00:00",
        0.1,
        "1",
    )
    return attrs.evolve(job, **changes)


def test_package_files_travel_with_the_job(lqcd, account, tmp_path):
    wheel = tmp_path / "mine-1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    out = lqcd(
        "bench-job",
        "submit",
        "--yes",
        "--json",
        "--hourly-price",
        "1",
        "--package",
        wheel,
        "--package",
        "numpy",
        *ARGUMENTS,
    ).stdout
    job = json.loads(out)["job"]
    assert job["packages"] == [wheel.name, "numpy"] and job["files"] == [wheel.name]
    body = account.client("s3").get_object(Bucket=account.bucket, Key=job_key(job["job_id"], f"packages/{wheel.name}"))[
        "Body"
    ]
    assert body.read() == b"a wheel"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--wall-clock", "-5"), "--wall-clock must be minutes"),
        (("--wall-clock", "nan"), "--wall-clock must be minutes"),
        (("--package", "not-there.whl"), "looks like a file and is none"),
        (("--hourly-price", "0"), "--hourly-price must be"),
        (("--stack", "other", "--hourly-price", "1"), "there is no stack 'other'"),
        (("--launch-template", "other", "--hourly-price", "1"), "launch template 'other'"),
        (("--profile", "nobody"), "nobody"),
        (("--package", "."), "is a folder"),
        (("--hourly-price", "1", "--", "--latice", "4x4x4x4"), "--lattice"),
        (("--hourly-price", "1", "--", "--output", "rows.jsonl"), "names a file"),
        (("--hourly-price", "1", "--", "--config=mine.toml"), "names a file"),
        (("--region", "no such place"), "region"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(lqcd, stack, words, said, launched):
    found = lqcd("bench-job", "submit", "--yes", *words, *ARGUMENTS, code=2)
    assert said in found.stderr and len(found.stderr.strip().splitlines()) == 1
    assert launched() == []


def test_a_template_that_only_stops_its_instance_is_refused(lqcd, stack, launched):
    stack.client("ec2").create_launch_template(
        LaunchTemplateName="stops", LaunchTemplateData={"InstanceType": "c7i.large", "ImageId": "ami-12345678"}
    )
    found = lqcd(
        "bench-job", "submit", "--yes", "--hourly-price", "1", "--launch-template", "stops", *ARGUMENTS, code=2
    )
    assert "does not terminate its instance" in found.stderr and launched() == []


def test_too_long_a_command_is_refused_with_the_bytes(account):
    with pytest.raises(ParameterError, match=rf"bytes and EC2 takes {LIMIT}"):
        render(_job(arguments=("x" * LIMIT,)), account)
    assert len(render(_job(arguments=("--lattice", "16x16x16x16") * 40), account).encode()) < LIMIT


@pytest.mark.parametrize(
    "text",
    ["'; rm -rf /; '", "END_OF_JOB\nrm -rf /", "$(reboot)", "`reboot`", "@RUNNER@ @CONFIG@ @PYTHON@", 'é ü \\ "'],
)
def test_arguments_reach_the_instance_as_they_are(account, text, tmp_path):
    """Whatever is in them: they go through JSON in a quoted here-document, never through the shell."""
    import subprocess

    script = render(_job(arguments=(text,)), account)
    start = script.index("cat > job.json")
    part = script[start : script.index("cat > runner.py")]
    subprocess.run(["bash", "-c", part], cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "job.json").read_text())["arguments"] == [text]


@pytest.mark.parametrize("tool", [("bash", "-n"), ("shellcheck",)], ids=lambda tool: tool[0])
@pytest.mark.parametrize("changes", [{}, {"python": "/opt/a b's/bin/python", "wall_clock": 0.0}])
def test_the_script_passes_the_shells_own_check_and_the_linter(account, tmp_path, tool, changes):
    import shutil
    import subprocess

    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed")
    (tmp_path / "user-data").write_text(render(_job(**changes), account))
    found = subprocess.run([*tool, str(tmp_path / "user-data")], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_runner_ends_before_the_kill_switch():
    for minutes in (0.1, 1, 10, 120, 1000):
        assert 0 < deadline(minutes) < 60 * minutes
    assert deadline(0) == 0


def test_the_price_list_is_asked_for_linux_on_shared_hardware(cloud):
    from botocore.stub import Stubber

    product = {
        "terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"unit": "Hrs", "pricePerUnit": {"USD": "1.3400"}}}}}}
    }
    free = {"terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"unit": "Hrs", "pricePerUnit": {"USD": "0.0"}}}}}}}

    class Session:
        def client(self, service, region_name):
            assert (service, region_name) == ("pricing", "us-east-1")
            return self.pricing

    session = Session()
    session.pricing = cloud.client("pricing")
    with Stubber(session.pricing) as stub:
        stub.add_response("get_products", {"PriceList": [json.dumps(free), json.dumps(product)]})
        assert list_price(session, "trn1.2xlarge", "us-west-2") == 1.34
        stub.add_response("get_products", {"PriceList": []})
        with pytest.raises(CloudError, match=r"no on-demand price of 'x9\.huge'"):
            list_price(session, "x9.huge", "us-west-2")
        stub.add_client_error("get_products", "AccessDeniedException", "no")
        with pytest.raises(CloudError, match="--hourly-price"):
            list_price(session, "x9.huge", "us-west-2")


def test_the_estimate_is_price_times_wall_clock():
    assert Estimate(1.34, "list", 90).at_most == pytest.approx(2.01)
    assert Estimate(6.0, "list", 0.4).at_most == pytest.approx(0.1), "the switch falls on whole minutes"
    assert Estimate(1.34, "list", 0).at_most is None


@pytest.mark.parametrize("name", ["", "x", "20260131-120000-a1b2c3/../..", "20260131-120000-A1B2C3"])
def test_a_name_that_is_no_job_is_refused(lqcd, stack, name):
    with pytest.raises(ParameterError, match="not the name of a job"):
        check_job_id(name)
    for verb in ("tail", "fetch", "cancel"):
        assert "not the name of a job" in lqcd("bench-job", verb, "--", name, code=2).stderr


def test_a_job_that_is_not_there_is_said(lqcd, stack):
    assert "there is no job" in lqcd("bench-job", "fetch", "20260131-120000-a1b2c3", code=2).stderr


def test_states_follow_from_what_is_known():
    job, launched = _job(), {"instance": "i-1"}
    early = datetime.datetime.fromisoformat(job.created) + datetime.timedelta(seconds=30)
    late = early + datetime.timedelta(hours=1)
    running, done = {"state": "running", "rows": 2, "updated": "t"}, {"state": "done", "rows": 5, "updated": "t"}
    assert state_of(job, None, None, False, None, early).name == "submitted"
    assert state_of(job, None, None, False, None, late).name == "not-launched"
    assert state_of(job, launched, None, False, "pending", late).name == "booting"
    assert state_of(job, launched, running, False, "running", late).name == "running"
    assert state_of(job, launched, None, False, None, early).name == "booting", "EC2 does not list it yet"
    assert state_of(job, launched, None, False, None, late).name == "died"
    assert state_of(job, None, running, False, "running", late).name == "running", "the answer to its launch was lost"
    for gone in (None, "terminated", "shutting-down", "stopped"):
        assert state_of(job, launched, running, False, gone, late).name == "died"
    assert state_of(job, launched, done, False, "terminated", late).name == "done"
    assert state_of(job, launched, running, True, "terminated", late).name == "cancelled"
    assert state_of(job, launched, done, True, "terminated", late).name == "done", "cancelled too late"


def test_cancel_terminates_the_instance_and_keeps_the_rows(lqcd, stack, account, launched, submitted, tmp_path):
    _put_row(account, submitted, 1, '{"a": 1}')
    assert "is cancelled" in lqcd("bench-job", "cancel", submitted).stdout
    assert [i["State"]["Name"] for i in launched()] == ["terminated"]
    assert control.look(account, submitted).state.name == "cancelled"
    assert "was over before: cancelled" in lqcd("bench-job", "cancel", submitted).stdout
    lqcd("bench-job", "fetch", submitted, "-o", tmp_path / "out", code=1)
    assert (tmp_path / "out" / "rows.jsonl").read_text() == '{"a": 1}\n'


def test_an_instance_is_found_by_its_tag_when_the_answer_to_its_launch_was_lost(
    lqcd, stack, account, launched, submitted
):
    account.client("s3").delete_object(Bucket=account.bucket, Key=job_key(submitted, "launched.json"))
    (instance,) = launched()
    found = control.look(account, submitted)
    assert (found.state.name, found.instance) == ("booting", instance["InstanceId"])
    lqcd("bench-job", "cancel", submitted)
    assert [i["State"]["Name"] for i in launched()] == ["terminated"]


def test_a_cancel_that_is_refused_leaves_the_job_as_it_was(account, submitted):
    from botocore.exceptions import ClientError

    def refuse(**_):
        raise ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}, "TerminateInstances")

    events = account.client("ec2").meta.events
    events.register("before-call.ec2.TerminateInstances", refuse)
    with pytest.raises(ClientError):
        control.cancel(account, submitted)
    assert control.look(account, submitted).state.name == "booting"
    events.unregister("before-call.ec2.TerminateInstances", refuse)
    control.cancel(account, submitted)
    assert control.look(account, submitted).state.name == "cancelled"


def test_without_boto3_it_is_said_what_to_install(lqcd, monkeypatch):
    for name in ("boto3", "botocore", "botocore.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    for words in (("list",), ("submit", *ARGUMENTS), ("tail", "20260131-120000-a1b2c3")):
        assert "boto3" in lqcd("bench-job", *words, code=2).stderr


def test_without_credentials_it_is_said_what_to_set_up(lqcd, stack, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert "aws configure" in lqcd("bench-job", "list", code=2).stderr


@pytest.mark.parametrize("bucket", ["no-such-bucket-anywhere", "Not A Bucket"])
def test_a_wrong_bucket_is_said_in_one_line(lqcd, stack, account, bucket):
    words = ("--bucket", bucket, "--topic", account.topic, "--launch-template", account.launch_template)
    said = lqcd("bench-job", "list", *words, code=2).stderr.strip()
    assert "bucket" in said and len(said.splitlines()) == 1 and "credentials" not in said


def test_fetch_into_a_place_that_is_no_folder_is_said(lqcd, submitted, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert str(tmp_path / "file") in lqcd("bench-job", "fetch", submitted, "-o", tmp_path / "file", code=2).stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_fetch_joins_both_places_and_names_what_is_missing(lqcd, account, submitted, tmp_path):
    """Row 2 is only in the whole file, row 4 only among the objects, row 3 nowhere at first."""
    for number in (1, 4):
        _put_row(account, submitted, number, json.dumps({"row": number}))
    _put(account, submitted, "status.json", {"state": "done", "rows": 4, "reason": "", "updated": ""})
    found = lqcd("bench-job", "fetch", submitted, "-o", tmp_path / "out", code=1)
    assert "missing rows: 2, 3" in found.stdout
    account.client("s3").put_object(
        Bucket=account.bucket,
        Key=job_key(submitted, "rows.jsonl"),
        Body=b"".join(json.dumps({"row": n}).encode() + b"\n" for n in (1, 2, 3)),
    )
    lqcd("bench-job", "fetch", submitted, "-o", tmp_path / "out")
    rows = [json.loads(line)["row"] for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert rows == [1, 2, 3, 4]


def test_fetch_refuses_two_contents_of_one_row(lqcd, account, submitted, tmp_path):
    _put_row(account, submitted, 1, '{"row": 1}')
    account.client("s3").put_object(Bucket=account.bucket, Key=job_key(submitted, "rows.jsonl"), Body=b'{"row": 2}\n')
    assert "row 1" in lqcd("bench-job", "fetch", submitted, "-o", tmp_path / "out", code=2).stderr
    assert not (tmp_path / "out" / "rows.jsonl").exists()


def test_tail_gives_each_row_once_in_order_and_ends_with_the_job(account, submitted):
    """A row that is late holds those behind it back; the one that never comes does not hold the end."""
    _put_row(account, submitted, 1, '{"row": 1}')
    _put_row(account, submitted, 3, '{"row": 3}')

    events = iter(("row 2", "end"))

    def next_event(seconds):
        if next(events) == "row 2":
            _put_row(account, submitted, 2, '{"row": 2}')
            _put_row(account, submitted, 5, '{"row": 5}')
        else:
            _put(account, submitted, "status.json", {"state": "done", "rows": 5, "reason": "", "updated": ""})

    found = list(control.tail(account, submitted, poll=1, sleep=next_event))
    rows = [json.loads(item)["row"] for item in found if isinstance(item, str)]
    assert rows == [1, 2, 3, 5]
    assert [item.name for item in found if not isinstance(item, str)] == ["booting", "done"]

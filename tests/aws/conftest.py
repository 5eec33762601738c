"""A stand-in for the cloud on this machine (moto's server), with the stack deployed in it. Nothing here reaches a network."""

from __future__ import annotations

import json
import urllib.request

import pytest

boto3 = pytest.importorskip("boto3", reason="bench jobs need boto3")
moto_server = pytest.importorskip("moto.server", reason="the stand-in server comes with moto")
pytest.importorskip("click", reason="the command needs click")

REGION = "us-east-1"


@pytest.fixture(scope="session")
def cloud_server():
    """Address of the stand-in server."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def cloud(cloud_server, monkeypatch):
    """An empty account; every client made here or in a child process talks to the stand-in only."""
    urllib.request.urlopen(urllib.request.Request(f"{cloud_server}/moto-api/reset", method="POST")).close()
    for name in ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": cloud_server, "AWS_ACCESS_KEY_ID": "stand-in", "AWS_SECRET_ACCESS_KEY": "stand-in",
        "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return boto3.Session(region_name=REGION)


@pytest.fixture
def stack(cloud):
    """The stack of the template, deployed."""
    from importlib import resources

    ec2 = cloud.client("ec2")
    network = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnet = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [network]}])["Subnets"][0]["SubnetId"]
    template = resources.files("lqcd_core.benchjob").joinpath("infrastructure/template.yaml").read_text()
    cloud.client("cloudformation").create_stack(
        StackName="lqcd-bench", TemplateBody=template, Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": "VpcId", "ParameterValue": network}, {"ParameterKey": "SubnetId", "ParameterValue": subnet}],
    )  # fmt: skip
    return cloud


@pytest.fixture
def account(stack):
    """The account as the command finds it."""
    from lqcd_core.benchjob.account import find_account

    return find_account(stack)


@pytest.fixture
def mailbox(account):
    """Messages that the topic sent, as a function."""
    queue = account.client("sqs").create_queue(QueueName="mails")["QueueUrl"]
    arn = account.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    account.client("sns").subscribe(TopicArn=account.topic, Protocol="sqs", Endpoint=arn)

    def read():
        found = account.client("sqs").receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
        return [json.loads(m["Body"]) for m in found]

    return read


@pytest.fixture
def lqcd():
    """Run ``lqcd WORDS`` in this process; the result has exit_code, stdout, stderr."""
    from click.testing import CliRunner

    from lqcd_core.cli.program import program

    try:
        runner = CliRunner(mix_stderr=False)
    except TypeError:  # newer click always keeps them apart
        runner = CliRunner()

    def run(*words, code=0):
        result = runner.invoke(program, [str(w) for w in words])
        assert result.exit_code == code, (
            f"code {result.exit_code}\n{result.stdout}\n{result.stderr}\n{result.exception!r}"
        )
        return result

    return run

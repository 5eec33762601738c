"""A stand-in for the cloud on this machine (moto's server), with the stack deployed in it. Nothing here reaches a network."""

from __future__ import annotations

import json
import uuid
from importlib import resources

import pytest

boto3 = pytest.importorskip("boto3", reason="bench jobs need boto3")
moto_server = pytest.importorskip("moto.server", reason="the stand-in server comes with moto")
pytest.importorskip("click", reason="the command needs click")

REGION = "us-east-1"
KEY = "stand-in"


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
    """The account; every client made here or in a child process talks to the stand-in only."""
    for name in ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": cloud_server, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return boto3.Session(region_name=REGION)


@pytest.fixture(scope="session")
def deployed(cloud_server):
    """Name of the bucket of the stack, deployed once: that is most of the time of a short test."""
    session = boto3.Session(aws_access_key_id=KEY, aws_secret_access_key=KEY, region_name=REGION)

    def client(service):
        return session.client(service, endpoint_url=cloud_server)

    network = client("ec2").describe_vpcs()["Vpcs"][0]["VpcId"]
    subnets = client("ec2").describe_subnets(Filters=[{"Name": "vpc-id", "Values": [network]}])["Subnets"]
    template = resources.files("lqcd_core.benchjob").joinpath("infrastructure/template.yaml").read_text()
    values = {"VpcId": network, "SubnetId": subnets[0]["SubnetId"]}
    client("cloudformation").create_stack(
        StackName="lqcd-bench", TemplateBody=template, Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in values.items()],
    )  # fmt: skip
    outputs = client("cloudformation").describe_stacks(StackName="lqcd-bench")["Stacks"][0]["Outputs"]
    return next(o["OutputValue"] for o in outputs if o["OutputKey"] == "Bucket")


@pytest.fixture
def stack(cloud, deployed):
    """The account with the stack, its bucket empty and nothing running."""
    s3, ec2 = cloud.client("s3"), cloud.client("ec2")
    left = [{"Key": o["Key"]} for o in s3.list_objects_v2(Bucket=deployed).get("Contents", [])]
    if left:
        s3.delete_objects(Bucket=deployed, Delete={"Objects": left})
    running = [i["InstanceId"] for i in _all_instances(ec2) if i["State"]["Name"] != "terminated"]
    if running:
        ec2.terminate_instances(InstanceIds=running)
    return cloud


def _all_instances(ec2):
    return [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]


@pytest.fixture
def launched(stack):
    """Instances that came since the test began, as a function."""
    ec2 = stack.client("ec2")
    before = {i["InstanceId"] for i in _all_instances(ec2)}
    return lambda: [i for i in _all_instances(ec2) if i["InstanceId"] not in before]


@pytest.fixture
def account(stack):
    """The account as the command finds it."""
    from lqcd_core.benchjob.account import find_account

    return find_account(stack)


@pytest.fixture
def mailbox(account):
    """Messages that the topic sent, as a function."""
    sqs, sns = account.client("sqs"), account.client("sns")
    queue = sqs.create_queue(QueueName=f"mails-{uuid.uuid4()}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    subscribed = sns.subscribe(TopicArn=account.topic, Protocol="sqs", Endpoint=arn)["SubscriptionArn"]

    def read():
        found = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
        return [json.loads(m["Body"]) for m in found]

    yield read
    sns.unsubscribe(SubscriptionArn=subscribed)

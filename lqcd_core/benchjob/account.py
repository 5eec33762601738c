"""The account: bucket, topic and launch template, and the clients that reach them."""

from __future__ import annotations

import functools
from typing import Any

import attrs

from ..errors import BackendUnavailable, ParameterError, how_to_install

STACK = "lqcd-bench"
"""Name of the stack that ``infrastructure/template.yaml`` is deployed as, unless another is named."""

_OUTPUTS = {"bucket": "Bucket", "topic": "Topic", "launch_template": "LaunchTemplate"}


class CloudError(BackendUnavailable):
    """The cloud refused or could not be asked; the message is its reason and what to do."""


@attrs.frozen
class Account:
    """Where jobs run and where their rows go."""

    session: Any
    """A ``boto3.Session``; its credentials and region are the usual ones of the AWS tools."""
    bucket: str
    """Bucket of all jobs."""
    topic: str
    """ARN of the SNS topic that the mails go through."""
    launch_template: str
    """Name of the EC2 launch template."""

    @functools.cache  # noqa: B019 (frozen, few, and alive for one command)
    def client(self, service: str):
        """A client of an AWS service."""
        return self.session.client(service)

    @property
    def region(self) -> str:
        """Region of the session."""
        return self.session.region_name


def open_session(region: str | None = None, profile: str | None = None):
    """A ``boto3.Session`` with a region.

    Raises
    ------
    BackendUnavailable
        If boto3 is missing.
    ParameterError
        If no region is named anywhere or the profile does not exist.
    """
    try:
        import boto3
        import botocore.exceptions
    except ImportError:
        raise BackendUnavailable(f"bench jobs need the package boto3; {how_to_install('boto3')}") from None
    try:
        session = boto3.Session(region_name=region or None, profile_name=profile or None)
    except botocore.exceptions.ProfileNotFound as error:
        raise ParameterError(
            f"{error}; name one of: {', '.join(boto3.Session().available_profiles) or 'none is set up'}."
        ) from None
    if not session.region_name:
        raise ParameterError("no region: give --region, or set AWS_DEFAULT_REGION, or 'region' in the profile.")
    return session


def find_account(
    session, stack: str = STACK, bucket: str | None = None, topic: str | None = None, launch_template: str | None = None
) -> Account:
    """The account of a deployed stack, or of names given one by one (as ``terraform output`` prints them).

    Parameters
    ----------
    session
        What :func:`open_session` returned.
    stack
        Name of the CloudFormation stack; asked only for what is not given.
    bucket, topic, launch_template
        Bucket, ARN of the topic, name of the template.

    Raises
    ------
    CloudError
        If a name is missing and the stack does not exist or lacks the output.
    """
    given = {"bucket": bucket, "topic": topic, "launch_template": launch_template}
    if not all(given.values()):
        from botocore.exceptions import ClientError

        try:
            found = session.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
        except ClientError as error:
            if error.response["Error"].get("Code") not in ("ValidationError", "404"):
                raise
            raise CloudError(
                f"there is no stack {stack!r} in {session.region_name}: deploy it from the template that "
                "'lqcd bench-job infrastructure cloudformation' prints, or name --bucket, --topic and --launch-template."
            ) from None
        outputs = {o["OutputKey"]: o["OutputValue"] for o in found.get("Outputs", ())}
        for name, key in _OUTPUTS.items():
            if not given[name]:
                if key not in outputs:
                    raise CloudError(
                        f"stack {stack!r} has no output {key!r} (state {found['StackStatus']}); is it the stack of "
                        "'lqcd bench-job infrastructure cloudformation'?"
                    )
                given[name] = outputs[key]
    return Account(session, **given)


__all__ = ["STACK", "Account", "CloudError", "find_account", "open_session"]

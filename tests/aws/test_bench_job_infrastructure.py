"""The two descriptions of the account: each valid, both the same, and no more rights than the job needs."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from importlib import resources

import pytest

HERE = resources.files("lqcd_core.benchjob").joinpath("infrastructure")


def _terraform():
    hcl2 = pytest.importorskip("hcl2", reason="the parser of Terraform files is not installed")
    found: dict = {}
    for file in sorted(HERE.joinpath("terraform").iterdir(), key=lambda p: p.name):
        for kind, blocks in hcl2.loads(file.read_text()).items():
            found.setdefault(kind, []).extend(blocks)
    return found


def _bare(value):
    """hcl2 keeps the quotes of strings in some versions."""
    if isinstance(value, str):
        return value.strip('"')
    if isinstance(value, list):
        return [_bare(v) for v in value]
    if isinstance(value, dict):
        return {_bare(k): _bare(v) for k, v in value.items() if k != "__is_block__"}
    return value


def _statements(document):
    """Statements of a policy; the stand-in returns some documents as the text of a dict."""
    return (ast.literal_eval(document) if isinstance(document, str) else document)["Statement"]


def _statements_of_terraform():
    out = {}
    for block in _bare(_terraform()["data"]):
        for document in block.get("aws_iam_policy_document", {}).values():
            for statement in document["statement"]:
                if "sid" in statement:
                    out[statement["sid"]] = sorted(statement["actions"])
    return out


def test_the_template_passes_the_providers_linter():
    api = pytest.importorskip("cfnlint.api", reason="cfn-lint is not installed")
    text = HERE.joinpath("template.yaml").read_text()
    assert [
        str(m) for m in api.lint_all(text) if not m.rule.id.startswith("I")
    ] == []  # I: hints, neither errors nor warnings
    assert api.lint_all(text.replace("AWS::SNS::Topic", "AWS::SNS::Tropic")), "the linter does not see a wrong type"


def test_terraform_files_parse_and_every_reference_has_its_block():
    found = _bare(_terraform())
    defined = {
        f"{kind}.{name}"
        for block in found["resource"]
        for kind, names in block.items()
        for name in names
        if name != "__is_block__"
    }
    defined |= {f"data.{kind}.{name}" for block in found["data"] for kind, names in block.items() for name in names}
    defined |= {f"var.{name}" for block in found["variable"] for name in block}
    text = "".join(f.read_text() for f in HERE.joinpath("terraform").iterdir())
    used = set(
        re.findall(r"\b(data\.aws_\w+\.\w+|(?<!data\.)aws_\w+\.\w+|var\.\w+)", re.sub(r'(resource|data) "', "", text))
    )
    used = {u for u in used if not (u.startswith("aws_") and f"data.{u}" in text)}
    assert used and used <= defined, sorted(used - defined)


@pytest.mark.skipif(
    shutil.which("terraform") is None and shutil.which("tofu") is None, reason="no terraform binary here"
)
def test_terraform_formats_the_files_as_they_are():
    tool = shutil.which("terraform") or shutil.which("tofu")
    with resources.as_file(HERE.joinpath("terraform")) as folder:
        assert subprocess.run([tool, "fmt", "-check", "-recursive", str(folder)]).returncode == 0


def test_both_descriptions_grant_the_same(stack):
    """Statements by name, except the stack's own, which Terraform has not."""
    iam = stack.client("iam")
    granted = {}
    for role in iam.list_roles()["Roles"]:
        for name in iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]:
            document = iam.get_role_policy(RoleName=role["RoleName"], PolicyName=name)["PolicyDocument"]
            granted |= {s["Sid"]: s["Action"] for s in _statements(document)}
    for policy in iam.list_policies(Scope="Local")["Policies"]:
        version = iam.get_policy_version(PolicyArn=policy["Arn"], VersionId=policy["DefaultVersionId"])["PolicyVersion"]
        granted |= {s["Sid"]: s["Action"] for s in _statements(version["Document"])}
    granted = {k: sorted([v] if isinstance(v, str) else v) for k, v in granted.items()}
    assert granted.pop("Stack") == ["cloudformation:DescribeStacks"]
    terraform = _statements_of_terraform()
    assert terraform.pop("EncryptedTransportOnly") == ["s3:*"]
    assert terraform == granted


def test_the_instance_may_write_jobs_and_mail_and_nothing_else(stack, account):
    iam = stack.client("iam")
    (role,) = [r for r in iam.list_roles()["Roles"] if "InstanceRole" in r["RoleName"]]
    assert iam.list_attached_role_policies(RoleName=role["RoleName"])["AttachedPolicies"] == []
    (name,) = iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]
    statements = _statements(iam.get_role_policy(RoleName=role["RoleName"], PolicyName=name)["PolicyDocument"])
    assert {s["Sid"]: s["Resource"] for s in statements} == {
        "RowsAndLogs": f"arn:aws:s3:::{account.bucket}/jobs/*",
        "Mail": account.topic,
    }
    assert all(
        "*" not in action
        for s in statements
        for action in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"])
    )


def test_the_stack_is_closed_to_the_outside(stack, account):
    ec2 = stack.client("ec2")
    data = ec2.describe_launch_template_versions(LaunchTemplateName=account.launch_template)["LaunchTemplateVersions"][
        0
    ]["LaunchTemplateData"]
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    (group,) = data["NetworkInterfaces"][0]["Groups"]
    assert ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"] == []
    text = HERE.joinpath("template.yaml").read_text()
    bucket = pytest.importorskip("cfnlint.decode.cfn_yaml").loads(text)["Resources"]["Bucket"][
        "Properties"
    ]  # not kept by the stand-in
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4 and all(bucket["PublicAccessBlockConfiguration"].values())
    (public,) = [
        v["aws_s3_bucket_public_access_block"]["jobs"]
        for v in _bare(_terraform()["resource"])
        if "aws_s3_bucket_public_access_block" in v
    ]
    assert sum(value is True or value == "true" for value in public.values()) == 4


def test_the_command_hands_out_both(lqcd, tmp_path):
    out = lqcd("bench-job", "infrastructure", "cloudformation").stdout
    assert out == HERE.joinpath("template.yaml").read_text()
    lqcd("bench-job", "infrastructure", "terraform", "-o", tmp_path / "tf")
    assert sorted(p.name for p in (tmp_path / "tf").iterdir()) == [
        "main.tf",
        "outputs.tf",
        "variables.tf",
        "versions.tf",
    ]
    assert "there already" in lqcd("bench-job", "infrastructure", "terraform", "-o", tmp_path / "tf", code=2).stderr
    assert "-o" in lqcd("bench-job", "infrastructure", "terraform", code=2).stderr

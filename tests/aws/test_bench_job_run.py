"""The rendered user data run on this machine, with its endpoint pointed at the stand-in cloud and ``shutdown`` at a file.

The stand-in does not run user data, so the tests take them from the instance that was launched and run them as it would.
"""

from __future__ import annotations

import base64
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from lqcd_core.benchjob import control
from lqcd_core.benchjob.record import row_key

FAST = (
    "--backends",
    "numpy",
    "--precision",
    "double",
    "--rounds",
    "1",
    "--seconds",
    "0.01",
    "--limit-seconds",
    "0.01",
    "--threads",
    "1",
)
QUICK = ("--lattice", "2x2x2x2", "--batch", "1,2", *FAST)
LONG = (
    "--batch",
    "1,2,3,4,5,6,7,8",
    "--backends",
    "numpy",
    "--limit-seconds",
    "0.01",
    "--threads",
    "1",
    *(w for n in range(1, 40) for w in ("--lattice", f"{2 * n}x2x2x2")),
)
PATIENCE = 120.0
"""Seconds that a test waits for something that takes a few on an idle machine."""


class Instance:
    """The machine that EC2 would have booted."""

    def __init__(self, folder, session, instance_id):
        self.folder, self.session, self.instance_id = folder, session, instance_id
        tools = folder / "tools"
        tools.mkdir(parents=True)
        (tools / "shutdown").write_text(f'#!/bin/sh\necho "$@" >> "{folder}/shutdown.log"\n')
        (tools / "shutdown").chmod(0o755)
        data = session.client("ec2").describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
        (folder / "user-data").write_bytes(base64.b64decode(data["UserData"]["Value"]))
        self.tools, self.process = tools, None

    def boot(self, endpoint=None):
        environment = {
            **os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}", "LQCD_JOB_ROOT": str(self.folder / "root"),
            "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1",
        }  # fmt: skip
        if endpoint:
            environment["AWS_ENDPOINT_URL"] = endpoint
            # Bodies come as they are, not wrapped in chunks with a checksum behind them, which the relay would have to undo.
            environment["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_required"
        self.process = subprocess.Popen(
            ["bash", str(self.folder / "user-data")], env=environment, start_new_session=True
        )

    def wait(self):
        return self.process.wait(timeout=PATIENCE)

    def die(self):
        """Power off: every process is gone at once, nothing is said, and EC2 knows it as terminated."""
        for line in subprocess.run(
            ["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True
        ).stdout.splitlines():
            pid, _, words = line.strip().partition(" ")
            if str(self.folder) in words and int(pid) != os.getpid():
                os.kill(int(pid), signal.SIGKILL)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.session.client("ec2").terminate_instances(InstanceIds=[self.instance_id])

    @property
    def shutdowns(self):
        path = self.folder / "shutdown.log"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def log(self):
        path = self.folder / "root" / "log.txt"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def launch(stack, account, lqcd, tmp_path):
    """Submit a job and return (its name, the machine, not booted yet)."""
    machines = []

    def run(*arguments, wall_clock=60, package="lqcd-core"):
        out = lqcd(
            "bench-job", "submit", "--yes", "--json", "--hourly-price", "0.1", "--wall-clock", wall_clock, "--package", package,
            "--python", sys.executable, "--", *arguments,
        ).stdout  # fmt: skip
        found = json.loads(out)
        machines.append(Instance(tmp_path / f"machine{len(machines)}", stack, found["launched"]))
        return found["job"]["job_id"], machines[-1]

    yield run
    for machine in machines:
        if machine.process is not None and machine.process.poll() is None:
            machine.die()


def _until(condition):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
    return found


def _rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_job_from_boot_to_mail(launch, account, mailbox, lqcd, tmp_path):
    job, machine = launch(*QUICK)
    machine.boot()
    machine.wait()
    assert machine.shutdowns == ["-h +60", "-h now"], machine.log
    assert control.look(account, job).state.name == "done", machine.log
    lqcd("bench-job", "fetch", job, "-o", tmp_path / "out")
    there = (machine.folder / "root" / "rows.jsonl").read_text()
    assert (tmp_path / "out" / "rows.jsonl").read_text() == there and len(there.splitlines()) >= 2
    assert "lqcd_core.cli" in (tmp_path / "out" / "log.txt").read_text()
    (mail,) = mailbox()
    assert mail["Subject"] == f"lqcd bench {job}: done"
    link = next(line for line in mail["Message"].splitlines() if line.startswith("http"))
    assert urllib.request.urlopen(link).read().decode() == there
    out = lqcd("bench-job", "tail", job)
    assert out.stdout == there and "done" in out.stderr


def test_rows_are_there_while_the_job_runs_and_stay_when_the_instance_dies(launch, account, lqcd, tmp_path):
    job, machine = launch(*LONG)
    machine.boot()
    _until(lambda: control._row_numbers(account, job))
    assert control.look(account, job).state.name == "running"
    machine.die()
    state = control.look(account, job).state
    assert state.name == "died" and machine.instance_id in state.reason
    found = lqcd("bench-job", "fetch", job, "-o", tmp_path / "out", code=1)
    assert "died" in found.stdout and len(_rows(tmp_path / "out" / "rows.jsonl")) >= 1
    assert lqcd("bench-job", "tail", job, code=1).stdout.count("\n") == len(_rows(tmp_path / "out" / "rows.jsonl"))


def test_a_job_past_its_wall_clock_ends_in_good_order_before_the_kill_switch(launch, account, mailbox, lqcd, tmp_path):
    job, machine = launch(*LONG, wall_clock=0.3)
    machine.boot()
    machine.wait()
    assert machine.shutdowns == ["-h +1", "-h now"], machine.log
    state = control.look(account, job).state
    assert state.name == "timed-out" and "before the kill switch" in state.reason
    lqcd("bench-job", "fetch", job, "-o", tmp_path / "out", code=1)
    assert (tmp_path / "out" / "rows.jsonl").read_text() == (machine.folder / "root" / "rows.jsonl").read_text()
    assert mailbox()[0]["Subject"].endswith("timed-out")
    still = subprocess.run(["ps", "-ww", "-eo", "args="], capture_output=True, text=True).stdout
    assert str(machine.folder) not in still, "the sweep runs on"


def test_the_machine_going_down_is_the_last_word(launch, account):
    """SIGTERM, as the operating system sends it when the kill switch falls."""
    job, machine = launch(*LONG)
    machine.boot()
    _until(lambda: control._row_numbers(account, job))
    os.kill(machine.process.pid, signal.SIGTERM)
    machine.wait()
    assert control.look(account, job).state.name == "stopped", machine.log
    assert "lqcd: interrupted" in machine.log, "the sweep is ended by Ctrl-C, in good order"
    assert machine.shutdowns[-1] == "-h now"


@pytest.mark.parametrize(
    ("arguments", "package", "reason"),
    [
        (QUICK, "no-such-package-anywhere", "pip ended"),
        (("--no-such-option",), "lqcd-core", "lqcd bench ended with code 2"),
    ],
)
def test_what_fails_there_is_said_here(launch, account, mailbox, arguments, package, reason):
    job, machine = launch(*arguments, package=package)
    machine.boot()
    machine.wait()
    state = control.look(account, job).state
    assert state.name == "failed" and reason in state.reason
    assert machine.shutdowns[-1] == "-h now" and reason in mailbox()[0]["Message"]
    log = account.client("s3").get_object(Bucket=account.bucket, Key=f"jobs/{job}/log.txt")["Body"].read().decode()
    assert "no-such" in log


def test_no_kill_switch_when_it_is_disabled(launch, account):
    job, machine = launch("--no-such-option", wall_clock=0)
    machine.boot()
    machine.wait()
    assert machine.shutdowns == ["-h now"] and control.look(account, job).state.name == "failed"


class Unreliable(http.server.ThreadingHTTPServer):
    """Between the machine and the cloud: the first sendings of row 1 are lost, row 2 arrives but its answers are lost."""

    def __init__(self, behind):
        super().__init__(("127.0.0.1", 0), Relay)
        self.behind, self.arrived, self.lost = behind, [], 0


class Relay(http.server.BaseHTTPRequestHandler):
    def relay(self):
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        row = self.path.split("?")[0][-11:] if "/rows/" in self.path else ""
        if row == "000001.json" and self.server.lost < 5:
            self.server.lost += 1
            return self.answer(503, b"")
        request = urllib.request.Request(self.server.behind + self.path, data=body or None, method=self.command)
        for name, value in self.headers.items():
            if name.lower() not in ("host", "connection", "content-length", "expect"):
                request.add_header(name, value)
        if not request.has_header("Content-type"):
            request.add_header(
                "Content-type", "application/octet-stream"
            )  # else urllib calls it a form, and it is read as one
        try:
            with urllib.request.urlopen(request) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        if row:
            self.server.arrived.append(row)
        if row == "000002.json" and self.server.arrived.count(row) < 4:
            return self.answer(500, b"")
        self.answer(status, text)

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_PUT = do_GET = do_POST = do_HEAD = relay

    def log_message(self, *words):
        pass


def test_a_row_lost_is_sent_again_and_a_row_repeated_is_one(launch, account, cloud_server, lqcd, tmp_path):
    relay = Unreliable(cloud_server)
    threading.Thread(target=relay.serve_forever, daemon=True).start()
    try:
        job, machine = launch(*QUICK)
        machine.boot(endpoint=f"http://127.0.0.1:{relay.server_port}")
        machine.wait()
    finally:
        relay.shutdown()
        relay.server_close()
    assert relay.lost == 5 and relay.arrived.count("000002.json") >= 4, machine.log
    there = (machine.folder / "root" / "rows.jsonl").read_text()
    assert control._row_numbers(account, job) == list(range(1, len(there.splitlines()) + 1))
    lqcd("bench-job", "fetch", job, "-o", tmp_path / "out")
    assert (tmp_path / "out" / "rows.jsonl").read_text() == there
    first = account.client("s3").get_object(Bucket=account.bucket, Key=row_key(job, 1))["Body"].read()
    assert first.decode() == there.splitlines()[0]

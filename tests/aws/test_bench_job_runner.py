"""The program on the instance, in this process, with a bucket in memory: signals and time."""

from __future__ import annotations

import json
import os
import signal

import pytest

from lqcd_core.benchjob import runner


class Memory:
    """A bucket; ``disturb`` runs inside each upload of a name that ends so."""

    def __init__(self, ending="", disturb=lambda: None):
        self.objects, self.ending, self.disturb = {}, ending, disturb

    def put_object(self, Bucket, Key, Body):
        if self.ending and Key.endswith(self.ending):
            self.disturb()
        self.objects[Key.rpartition("/")[2]] = Body

    def generate_presigned_url(self, *words, **more):
        return "https://link"


class Mails:
    """A topic."""

    def __init__(self):
        self.sent = []

    def publish(self, **mail):
        self.sent.append(mail["Subject"])


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job whose sweep writes one row and goes on for a long time, with the handler of SIGTERM that it has there."""
    (tmp_path / "log.txt").write_text("log")
    monkeypatch.setattr(
        runner, "BENCH", "import sys, time; open(sys.argv[-1], 'w').write('{}\\n'); time.sleep(float(sys.argv[2]))"
    )
    handler = signal.signal(signal.SIGTERM, runner.stop)

    def make(s3, seconds, deadline=0.0, before=0.0):
        config = {
            "job_id": "20260131-120000-a1b2c3", "bucket": "b", "topic": "t", "arguments": [str(seconds)], "packages": [], "files": [],
            "deadline": deadline, "interval": 0.05,
        }  # fmt: skip
        return runner.Job(config, tmp_path, s3, Mails(), before)

    yield make
    signal.signal(signal.SIGTERM, handler)


def _terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def _word(s3):
    return json.loads(s3.objects["status.json"])["state"]


@pytest.mark.parametrize("ending", ["000001.json", "status.json"])
def test_a_signal_that_meets_an_upload_stops_the_job_and_a_second_one_changes_nothing(job, ending):
    """The system signals every process, the shell passes its own on: both come, at any time."""
    s3 = Memory(ending, _terminate)
    made = job(s3, 600)
    assert made.run() == 1
    assert _word(s3) == "stopped" and made.sns.sent == ["lqcd bench 20260131-120000-a1b2c3: stopped"]
    assert made.process is None or made.process.poll() is not None, "the sweep runs on"


def test_a_signal_after_the_sweep_does_not_cut_the_last_word_off(job):
    s3 = Memory("rows.jsonl", _terminate)
    made = job(s3, 0)
    assert made.run() == 0 and _word(s3) == "done" and s3.objects["000001.json"] == b"{}"


def test_what_the_boot_took_counts_towards_the_deadline(job):
    """Else a slow installation would push the end in good order behind the kill switch."""
    s3 = Memory()
    assert job(s3, 600, deadline=1000.0, before=1000.0).run() == 1 and _word(s3) == "timed-out"

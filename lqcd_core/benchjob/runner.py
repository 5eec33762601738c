"""What the instance runs: install, measure, upload each row, mail, done.

One file that needs the standard library and boto3 only, since it is there before the package is. Its arguments are a
JSON file (job_id, bucket, topic, region, arguments, packages, files, deadline in seconds or 0 for none, and interval in
seconds) and the seconds that the machine has been up to the job before, which count towards the deadline. A row that cannot be uploaded is kept and tried again; its name is its number, so a row sent twice is one row.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

BENCH = "from lqcd_core.cli import main; main()"
ATTEMPTS = 20  # last rounds, with growing pauses, before rows and log are given up
LINK_SECONDS = 6 * 3600  # a link signed with the role's credentials ends with them, after some hours, whatever is asked


class Stopped(BaseException):
    """SIGTERM: the machine goes down. Not an Exception, or an upload that it meets would take it for one of its own."""


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())


class Uploads:
    """The job's folder in the bucket."""

    def __init__(self, s3, bucket, job_id, root):
        self.s3, self.bucket, self.prefix, self.root = s3, bucket, f"jobs/{job_id}/", root
        self.waiting = {}  # row number -> line that is not in the bucket yet
        self.seen = 0  # rows counted so far
        self.offset = 0  # bytes of the rows' file that are counted

    def put(self, name, body):
        self.s3.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=body)

    def read_rows(self):
        """Count the complete lines that have come since; the end of a line that is still being written waits."""
        path = self.root / "rows.jsonl"
        if not path.exists():
            return
        with open(path, "rb") as file:
            file.seek(self.offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            if line.strip():
                self.seen += 1
                self.waiting[self.seen] = line

    def send_rows(self):
        """Upload what waits, in order; True when nothing waits any more."""
        for number in sorted(self.waiting):
            try:
                self.put(f"rows/{number:06d}.json", self.waiting[number])
            except Exception as error:  # the network, the service: later
                print(f"row {number} could not be sent, will be again: {error}", flush=True)
                return False
            del self.waiting[number]
        return True


class Job:
    """One run of ``lqcd bench``."""

    def __init__(self, config, root, s3, sns, before=0.0):
        self.config, self.root, self.sns = config, root, sns
        self.up = Uploads(s3, config["bucket"], config["job_id"], root)
        self.started = time.monotonic() - before
        self.last_word = 0.0
        self.process = None

    def say(self, state, reason="", **more):
        """Put ``status.json``; the last word must arrive, the others may be lost."""
        word = {"state": state, "reason": reason, "rows": self.up.seen, "updated": now(), **more}
        self.last_word = time.monotonic()
        try:
            self.up.put("status.json", json.dumps(word))
            self.up.put("log.txt", (self.root / "log.txt").read_bytes())
            return True
        except Exception as error:
            print(f"status {state} could not be sent: {error}", flush=True)
            return False

    def left(self):
        deadline = self.config["deadline"]
        return deadline - (time.monotonic() - self.started) if deadline else float("inf")

    def follow(self, command, state):
        """Run a command until it ends or the deadline comes; its output goes to the log. None if it was ended."""
        print("+ " + " ".join(command), flush=True)
        self.process = subprocess.Popen(command, cwd=self.root, start_new_session=True)
        while True:
            try:
                return self.process.wait(timeout=max(min(self.config["interval"], self.left()), 0.05))
            except subprocess.TimeoutExpired:
                pass
            self.up.read_rows()
            self.up.send_rows()
            if time.monotonic() - self.last_word > 30 * self.config["interval"]:
                self.say(state)
            if self.left() <= 0:
                self.end_process()
                return None

    def end_process(self):
        """Interrupt the sweep with everything it started, and kill what stays."""
        if self.process is None or self.process.poll() is not None:
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(timeout=10)
                return
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                return

    def install(self):
        packages = []
        for package in self.config["packages"]:
            if package in self.config["files"]:
                path = self.root / package
                self.up.s3.download_file(self.config["bucket"], f"{self.up.prefix}packages/{package}", str(path))
                package = str(path)
            packages.append(package)
        return self.follow([sys.executable, "-m", "pip", "install", *packages], "installing") if packages else 0

    def measure(self):
        """Install and run; the state and its reason."""
        self.say("installing")
        code = self.install()
        if code:
            return "failed", f"pip ended with code {code}; see log.txt"
        if code == 0:
            self.say("running")
            rows = str(self.root / "rows.jsonl")
            code = self.follow(
                [sys.executable, "-c", BENCH, "bench", *self.config["arguments"], "--output", rows], "running"
            )
        if code is None:
            return (
                "timed-out",
                f"ended after {self.config['deadline']:g} s, before the kill switch; the rows so far are kept",
            )
        if code:
            return "failed", f"lqcd bench ended with code {code}; see log.txt"
        return "done", ""

    def run(self):
        try:
            state, reason = self.measure()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left must be told, machine down or not
        except Stopped:
            state, reason = "stopped", "the machine went down"
        except Exception as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            state, reason = "failed", f"{type(error).__name__}: {error}"
        self.end_process()
        self.up.read_rows()
        pause = min(self.config["interval"], 1.0)
        told = False
        for _ in range(ATTEMPTS):
            told = self.up.send_rows() and self.send_whole() and self.say(state, reason)
            if told:
                break
            time.sleep(pause)
            pause = min(2 * pause, 30.0)
        self.mail(state, reason)
        return 0 if told and state == "done" else 1

    def send_whole(self):
        try:
            if (self.root / "rows.jsonl").exists():
                self.up.put("rows.jsonl", (self.root / "rows.jsonl").read_bytes())
            return True
        except Exception as error:
            print(f"rows.jsonl could not be sent: {error}", flush=True)
            return False

    def mail(self, state, reason):
        """The summary; a mail that cannot be sent loses nothing that the bucket has."""
        job_id = self.config["job_id"]
        name = "rows.jsonl" if self.up.seen else "log.txt"
        try:
            link = self.up.s3.generate_presigned_url(
                "get_object", Params={"Bucket": self.up.bucket, "Key": self.up.prefix + name}, ExpiresIn=LINK_SECONDS
            )
            minutes = (time.monotonic() - self.started) / 60
            lines = [
                f"job {job_id}: {state}" + (f" ({reason})" if reason else ""),
                f"{self.up.seen} rows in {minutes:.1f} minutes: lqcd bench {' '.join(self.config['arguments'])}",
                "",
                f"{name} (the link ends with the machine's credentials, after at most six hours):",
                link,
                f"Later, or for everything: lqcd bench-job fetch {job_id}",
            ]
            self.sns.publish(
                TopicArn=self.config["topic"], Subject=f"lqcd bench {job_id}: {state}"[:100], Message="\n".join(lines)
            )
        except Exception as error:
            print(f"the mail could not be sent: {error}", flush=True)
            self.say(state, f"{reason}; the mail could not be sent: {error}".lstrip("; "))


def stop(number, frame):
    """Stop once: the shell and the system both send the signal, and the last word must not be cut off by the second."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


def main(path, before=0.0):
    import boto3
    from botocore.config import Config

    config = json.loads(pathlib.Path(path).read_text())
    settings = Config(connect_timeout=10, read_timeout=30, retries={"max_attempts": 2})
    s3 = boto3.client("s3", region_name=config["region"], config=settings)
    sns = boto3.client("sns", region_name=config["region"], config=settings)
    signal.signal(signal.SIGTERM, stop)
    # The shell starts what is in its background with SIGINT ignored, and the sweep would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return Job(config, pathlib.Path(path).resolve().parent, s3, sns, float(before)).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

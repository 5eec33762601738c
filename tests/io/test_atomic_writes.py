"""A file is the old one or the whole new one: after a kill, with a full disk, and with two writers."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from lqcd_core import errors
from lqcd_core.fields import GaugeField
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import read_gauge, replacing, write_gauge

GEOMETRY = LatticeGeometry(T=4, Z=4, Y=4, X=4)


@pytest.fixture(scope="module")
def fields():
    return [GaugeField.random(GEOMETRY, seed=s) for s in (1, 2)]


def python(code, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_exception_inside_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as f:
        f.write(b"half of the new")
        1 / 0  # noqa: B018
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_permissions_follow_the_umask_and_the_old_file(tmp_path):
    path = tmp_path / "a"
    old = os.umask(0o027)
    try:
        with replacing(path) as f:
            f.write(b"1")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    with replacing(path) as f:
        f.write(b"2")
    assert path.stat().st_mode & 0o777 == 0o604 and path.read_bytes() == b"2"


def test_a_pipe_or_device_is_refused_and_stays(tmp_path, fields):
    os.mkfifo(tmp_path / "pipe.ildg")
    (tmp_path / "link.ildg").symlink_to("pipe.ildg")
    for name in ("pipe.ildg", "link.ildg"):
        with pytest.raises(errors.FileError, match="a device or a pipe"):
            write_gauge(fields[0], tmp_path / name)
    assert (tmp_path / "pipe.ildg").is_fifo() and len(list(tmp_path.iterdir())) == 2


def test_symbolic_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "data").mkdir()
    real, link = tmp_path / "data" / "real", tmp_path / "link"
    real.write_bytes(b"old")
    link.symlink_to(real)
    with replacing(link) as f:
        f.write(b"new")
    assert link.is_symlink() and real.read_bytes() == b"new"


def test_kill_in_the_middle_leaves_the_old_configuration(tmp_path, fields):
    path = write_gauge(fields[0], tmp_path / "a.ildg")
    child = python(
        """
        import sys, time
        from lqcd_core.fields import GaugeField
        from lqcd_core.geometry import LatticeGeometry
        from lqcd_core.io import layout, ildg, write_gauge

        def slow(links, real, rows, accumulators=()):
            for i, data in enumerate(layout.encoded_slices(links, real, rows, accumulators)):
                yield data
                if i == 1:
                    print("half", flush=True)
                    time.sleep(60)

        ildg.encoded_slices = slow
        write_gauge(GaugeField.random(LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=2), sys.argv[1])
        """,
        path,
    )
    assert child.stdout.readline() == "half\n", child.stderr.read()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    left = [p for p in tmp_path.iterdir() if p != path]
    assert len(left) == 1 and left[0].name.endswith(".tmp")  # the half file has another name
    assert read_gauge(path).array.tobytes() == fields[0].array.tobytes()
    write_gauge(fields[1], path)  # and is in nobody's way
    assert read_gauge(path).array.tobytes() == fields[1].array.tobytes()


def test_two_writers_leave_one_whole_file(tmp_path, fields):
    path = tmp_path / "a.nersc"
    code = """
        import sys
        from lqcd_core.fields import GaugeField
        from lqcd_core.geometry import LatticeGeometry
        from lqcd_core.io import write_gauge

        U = GaugeField.random(LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=int(sys.argv[2]))
        for _ in range(30):
            write_gauge(U, sys.argv[1])
        """
    children = [python(code, path, s) for s in (1, 2)]
    wanted = {U.array.tobytes() for U in fields}
    seen = 0
    while any(c.poll() is None for c in children):
        if path.exists():
            assert read_gauge(path).array.tobytes() in wanted  # at every moment: one or the other, never a mixture
            seen += 1
        time.sleep(0.01)
    assert all(c.returncode == 0 for c in children), [c.stderr.read() for c in children]
    assert seen and read_gauge(path).array.tobytes() in wanted
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.nersc", "a.ildg", "a.milc", "a.openqcd", "a.npy"])
def test_full_disk_leaves_the_old_file(tmp_path, fields, name):
    path = tmp_path / name
    path.write_bytes(b"old")
    # a limit on the size of files gives the write error that a full disk gives, at a place of our choosing
    child = python(
        """
        import resource, sys
        from lqcd_core.errors import FileError
        from lqcd_core.fields import GaugeField
        from lqcd_core.geometry import LatticeGeometry
        from lqcd_core.io import write_gauge

        U = GaugeField.random(LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        try:
            write_gauge(U, sys.argv[1], precision="single" if sys.argv[1].endswith("milc") else None)
        except FileError as error:
            print(type(error).__name__, error)
        """,
        path,
    )
    out, err = child.communicate()
    assert out.startswith("FileError cannot write") and "limit" in out and out.count("\n") == 1, out + err
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_full_disk_is_noticed_before_writing_where_the_size_is_known(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(errors.FileError, match="disk is full"), replacing(path, size=2**62):
        raise AssertionError("the body must not run")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path, fields):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "dir.ildg").mkdir()
    for path, words in (
        (tmp_path / "file" / "a.ildg", "not a directory"),
        (tmp_path / "none" / "a.ildg", "does not exist"),
        (tmp_path / "dir.ildg", "is a directory"),
        ("/proc/a.ildg", "cannot write"),
    ):
        with pytest.raises(errors.FileError, match=words) as caught:
            write_gauge(fields[0], path)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory(tmp_path, fields):
    place = tmp_path / "locked"
    place.mkdir()
    path = write_gauge(fields[0], place / "a.ildg")
    place.chmod(0o555)
    try:
        with pytest.raises(errors.FileError, match="no permission"):
            write_gauge(fields[1], path)
    finally:
        place.chmod(0o755)
    assert read_gauge(path).array.tobytes() == fields[0].array.tobytes()


def test_permission_error_from_the_system_is_one_sentence(tmp_path, fields, monkeypatch):
    # what a read-only directory answers, for whoever runs the tests (root is never refused)
    path = write_gauge(fields[0], tmp_path / "a.ildg")
    real = os.open

    def refuse(name, flags, *rest):
        if str(name).endswith(".tmp"):
            raise PermissionError(13, "Permission denied")
        return real(name, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(errors.FileError, match="no permission there; choose a directory"):
        write_gauge(fields[1], path)
    monkeypatch.undo()
    assert read_gauge(path).array.tobytes() == fields[0].array.tobytes()

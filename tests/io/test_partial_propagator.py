"""A propagator written column by column: whatever interrupts it, finished columns stay and the result is the same."""

import hashlib
import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from lqcd_core import errors
from lqcd_core.fields import Propagator
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import FileCheckWarning, PropagatorFile, read_propagator

GEOMETRY = LatticeGeometry(T=4, Z=2, Y=2, X=2)
SOURCE = {"kind": "point", "position": [0, 0, 0, 0]}
PROVENANCE = {"operator": {"kind": "wilson", "kappa": 0.125}, "solver": {"tol": 1e-10}}


def column(i, dtype=complex):
    rng = np.random.default_rng(100 + i)
    shape = GEOMETRY.spinor_shape
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def columns(indices, dtype=complex):
    return np.stack([column(i, dtype) for i in indices])


def dataset_digest(path):
    with h5py.File(path) as f:
        return hashlib.sha256(f["propagator"][()].tobytes()).hexdigest(), dict(f["propagator"].attrs)["digest"]


def start(path, **options):
    return PropagatorFile.create(path, GEOMETRY, SOURCE, PROVENANCE, **options)


def resume(path, **options):
    return PropagatorFile.resume(path, GEOMETRY, SOURCE, PROVENANCE, **options)


@pytest.fixture
def straight(tmp_path):
    (tmp_path / "straight").mkdir()
    with start(tmp_path / "straight" / "s.h5") as f:
        f.write_columns(range(12), columns(range(12)))
        return f.finish()


def test_result_is_the_canonical_propagator(straight):
    S = read_propagator(straight)
    want = Propagator.from_columns(GEOMETRY, columns(range(12)))
    assert S.array.tobytes() == want.array.tobytes()
    assert S.source == SOURCE and S.provenance == PROVENANCE and S.basis == "degrand-rossi"
    assert not straight.with_name("s.h5.partial").exists()


def test_interrupted_and_resumed_gives_the_same_dataset(tmp_path, straight):
    path = tmp_path / "s.h5"
    for batch in ((3, 1), (0, 2, 4, 5, 6), (11,), (7, 8, 9, 10)):
        with resume(path) as f:
            assert not set(batch) & set(f.done)
            f.write_columns(batch, columns(batch), info=[{"iterations": 10 + i, "residual": 1e-11} for i in batch])
            assert not path.exists()
    with resume(path) as f:
        assert f.done == tuple(range(12)) and f.missing == ()
        assert (f.read_columns([5, 2]) == columns([5, 2])).all()
        f.finish({"seconds": 1.5})
    assert dataset_digest(path) == dataset_digest(straight)
    S = read_propagator(path)
    assert S.provenance["columns"][7] == {"iterations": 17, "residual": 1e-11} and S.provenance["seconds"] == 1.5


def test_single_precision_columns(tmp_path):
    with start(tmp_path / "s.h5", precision="single") as f:
        f.write_columns(range(12), columns(range(12), np.complex64))
        S = read_propagator(f.finish())
    assert S.array.dtype == np.complex64
    assert (S.columns() == columns(range(12), np.complex64)).all()


def test_kill_between_columns_loses_none_that_was_finished(tmp_path, straight):
    path = tmp_path / "s.h5"
    code = """
import sys
sys.path.insert(0, sys.argv[2])
from test_partial_propagator import columns, resume
with resume(sys.argv[1]) as f:
    for i in f.missing:
        f.write_columns([i], columns([i]), info=[{"iterations": i}])
        print(i, flush=True)
    f.finish()
"""
    kills = 0
    while not path.exists():
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(path), os.path.dirname(__file__)], stdout=subprocess.PIPE, text=True
        )
        told = []
        for line in child.stdout:
            told.append(int(line))
            if len(told) == 5 and kills < 2:
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
                break
        rest = child.communicate()[0]
        if path.exists():
            break
        assert kills, rest
        with resume(path) as f:
            assert set(told) <= set(f.done)
            for i in f.done:
                assert (f.read_columns([i])[0] == column(i)).all()
                assert f.column_info()[i] == {"iterations": i}
    assert kills == 2 and dataset_digest(path) == dataset_digest(straight)


def test_kill_in_the_middle_of_a_column_leaves_it_undone(tmp_path, straight):
    path = tmp_path / "s.h5"
    with start(path) as f:
        f.write_columns(range(4), columns(range(4)))
        # what a kill leaves: half the bytes of column 4 on the disk, the mark not yet set
        at = f._places.columns + 4 * f._column_bytes
        f._pwrite(column(4).tobytes()[: f._column_bytes // 2], at)
    with resume(path) as f:
        assert f.done == (0, 1, 2, 3)
        f.write_columns(f.missing, columns(f.missing))
        f.finish()
    assert dataset_digest(path) == dataset_digest(straight)


def test_damaged_column_is_computed_again(tmp_path, straight):
    path = tmp_path / "s.h5"
    with start(path) as f:
        f.write_columns(range(12), columns(range(12)))
        f._pwrite(b"\xff" * 8, f._places.columns + 7 * f._column_bytes + 100)
    with pytest.warns(FileCheckWarning, match="column 7"):
        f = resume(path)
    with f:
        assert f.missing == (7,)
        with pytest.raises(errors.ParameterError, match=r"\[7\].*missing"):
            f.finish()
        f.write_columns([7], columns([7]))
        f.finish()
    assert dataset_digest(path) == dataset_digest(straight)


def test_partial_file_stays_readable_hdf5(tmp_path):
    with start(tmp_path / "s.h5") as f:
        f.write_columns([2], columns([2]))
        partial = f.partial
    with h5py.File(partial) as h:
        assert h["done"][()].tolist() == [0, 0, 1] + 9 * [0]
        assert (h["columns"][2] == column(2)).all()
    with pytest.raises(errors.FileFormatError, match="unfinished"):
        read_propagator(partial)


@pytest.mark.parametrize(
    ("geometry", "source", "provenance", "options", "words"),
    [
        (GEOMETRY, SOURCE, {**PROVENANCE, "operator": {"kind": "wilson", "kappa": 0.13}}, {},
         r"provenance\.operator\.kappa: asked 0\.13, found 0\.125"),
        (GEOMETRY, {**SOURCE, "position": [1, 0, 0, 0]}, PROVENANCE, {}, r"source\.position"),
        (LatticeGeometry(T=2, Z=4, Y=2, X=2), SOURCE, PROVENANCE, {}, r"geometry\.T: asked 2, found 4"),
        (GEOMETRY, SOURCE, {**PROVENANCE, "csw": 1.0}, {}, r"provenance\.csw: asked 1\.0, found 'nothing'"),
        (GEOMETRY, SOURCE, PROVENANCE, {"precision": "single"}, "precision: asked 'single', found 'double'"),
        (GEOMETRY, SOURCE, PROVENANCE, {"basis": "chiral"}, "basis"),
    ],
)  # fmt: skip
def test_other_parameters_are_refused_by_name(tmp_path, geometry, source, provenance, options, words):
    path = tmp_path / "s.h5"
    start(path).close()
    with pytest.raises(errors.ParameterError, match=words):
        PropagatorFile.open(path, geometry, source, provenance, **options)
    resume(path).close()  # the refusal released the file


def test_two_processes_cannot_write_one_propagator(tmp_path):
    path = tmp_path / "s.h5"
    with start(path):
        with pytest.raises(errors.FileError, match="another process"):
            resume(path)
        with pytest.raises(errors.FileError, match="exists"):
            start(path)
    resume(path).close()


def test_wrong_columns_are_refused_and_not_stored(tmp_path):
    with start(tmp_path / "s.h5") as f:
        bad = columns([0])
        bad[0, 0, 0, 0, 0, 0, 0] = np.nan
        for indices, array, error in (
            ([0, 1], columns([0]), errors.FieldShapeError),
            ([12], columns([0]), errors.ParameterError),
            ([1, 1], columns([0, 1]), errors.ParameterError),
            ([], columns([0])[:0], errors.ParameterError),
            ([0], columns([0]).real, errors.ParameterError),
            ([0], bad, errors.ParameterError),
        ):
            with pytest.raises(error):
                f.write_columns(indices, array)
        with pytest.raises(errors.ParameterError, match="at most 4096"):
            f.write_columns([0], columns([0]), info=[{"history": list(range(5000))}])
        with pytest.raises(errors.ParameterError, match="not finished"):
            f.read_columns([0])
        assert f.done == ()


def test_nothing_to_open_and_nowhere_to_write(tmp_path):
    with pytest.raises(errors.FileError, match="no such file"):
        PropagatorFile.open(tmp_path / "s.h5", GEOMETRY, SOURCE, PROVENANCE)
    for path in (tmp_path / "none" / "s.h5", "/proc/s.h5"):
        with pytest.raises(errors.FileError):
            start(path)
    other = tmp_path / "s.h5.partial"
    with h5py.File(other, "w") as f:
        f["x"] = 1
    with pytest.raises(errors.FileFormatError, match="no unfinished propagator"):
        resume(tmp_path / "s.h5")


def test_full_disk_at_the_start_leaves_nothing(tmp_path):
    code = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from test_partial_propagator import start
from lqcd_core.errors import FileError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    start(sys.argv[1])
except FileError as error:
    print("FileError", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s.h5"), os.path.dirname(__file__)], capture_output=True, text=True
    )
    assert done.stdout.startswith("FileError cannot write") and done.stdout.count("\n") == 1, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []

"""``lqcd generate``: the library's chain, files, and resuming to the same bits."""

import time

import numpy as np

from lqcd_core.gauge import generate
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import read_gauge

CHAIN = ("--beta", 5.7, "--seed", 3, "--thermalization", 3, "--separation", 2)


def test_the_files_hold_the_chain_of_the_library(lqcd, tmp_path):
    out = lqcd("generate", "-T", 4, "-L", 2, *CHAIN, "--configurations", 3, "-o", tmp_path / "run").stdout
    g = LatticeGeometry(T=4, Z=2, Y=2, X=2)
    chain = list(generate(g, 5.7, 3, thermalization=3, separation=2, configurations=3))
    for index, U, _ in chain:
        V = read_gauge(tmp_path / "run" / f"cfg_{index:06d}.ildg")
        assert np.array_equal(U.array, V.array)
    rows = (tmp_path / "run" / "plaquette.csv").read_text().splitlines()[1:]
    history = np.array([float(r.split(",")[2]) for r in rows])
    assert np.array_equal(history, chain[-1][2].history)
    assert [r.split(",")[1] for r in rows] == ["0"] * 3 + ["1"] * 4
    assert "integrated autocorrelation time" in out


def test_more_configurations_of_a_chain_come_with_the_same_bits(lqcd, tmp_path):
    words = ("generate", "--lattice", "4x2x2x2", *CHAIN, "--format", "nersc")
    lqcd(*words, "--configurations", 1, "-o", tmp_path / "a")
    assert "--resume" in lqcd(*words, "--configurations", 3, "-o", tmp_path / "a", code=2).stderr
    lqcd(*words, "--configurations", 3, "-o", tmp_path / "a", "--resume")
    lqcd(*words, "--configurations", 3, "-o", tmp_path / "b")
    for k in range(3):
        a, b = (read_gauge(tmp_path / d / f"cfg_{k:06d}.nersc").array for d in "ab")
        assert np.array_equal(a, b)
    assert (tmp_path / "a" / "plaquette.csv").read_text() == (tmp_path / "b" / "plaquette.csv").read_text()
    result = lqcd(*words, "--configurations", 3, "-o", tmp_path / "b", "--resume")
    assert "made before" in result.stderr
    (tmp_path / "b" / "cfg_000001.nersc").unlink()
    assert "is missing" in lqcd(*words, "--configurations", 3, "-o", tmp_path / "b", "--resume", code=2).stderr


def test_a_killed_chain_resumes_to_the_same_bits(lqcd, start_lqcd, tmp_path):
    words = ("generate", "--lattice", "4x4x4x4", *CHAIN[:4], "--thermalization", 40, "--separation", 5,
             "--configurations", 2, "--checkpoint-every", 2)  # fmt: skip
    process = start_lqcd(*words, "-o", tmp_path / "a")
    deadline = time.monotonic() + 60
    while not (tmp_path / "a" / "checkpoint.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (tmp_path / "a" / "cfg_000001.ildg").exists(), "the kill came too late to mean anything"
    lqcd(*words, "-o", tmp_path / "a", "--resume")
    lqcd(*words, "-o", tmp_path / "b")
    for k in range(2):
        a, b = (read_gauge(tmp_path / d / f"cfg_{k:06d}.ildg").array for d in "ab")
        assert np.array_equal(a, b)


def test_mistakes_are_refused(lqcd, tmp_path):
    assert "odd" in lqcd("generate", "--lattice", "3x2x2x2", *CHAIN, "-o", tmp_path / "a", code=2).stderr
    assert "-T and -L" in lqcd("generate", "-T", 4, *CHAIN, "-o", tmp_path / "a", code=2).stderr
    assert "beta" in lqcd("generate", "-T", 4, "-L", 2, "--seed", 1, "-o", tmp_path / "a", code=2).stderr
    (tmp_path / "file").write_text("")
    assert lqcd("generate", "-T", 4, "-L", 2, *CHAIN, "-o", tmp_path / "file", code=2).stderr.count("\n") == 1

"""``lqcd propagator``: the library's numbers, and what happens when it is killed, interrupted, repeated or misused."""

import json
import os
import signal
import sys
import time

import h5py
import numpy as np
import pytest

from lqcd_core.fields import GaugeField
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.hadrons import noise_source, point_source, smeared_source, wall_source
from lqcd_core.io import read_propagator
from lqcd_core.operators import CloverWilsonDirac, TwistedMassDirac, WilsonDirac

QUICK = ("--mass", 0.5, "--backend", "numpy", "--quiet")
SLOW = ("--mass", 0.2, "--csw", 1.0, "--backend", "numpy", "--batch", 1, "--tol", 1e-12)


def residual(path, M, source):
    """max |b - M x| / |b| over columns, straight from the definition."""
    x, b = read_propagator(path).columns(), source.columns()
    norms = [np.linalg.norm(c) for c in b]
    return max(np.linalg.norm(c - M(y[None])[0]) / n for c, y, n in zip(b, x, norms))


def contents(path):
    """Every dataset and attribute of a file but those about time, as plain data."""
    out = {}

    def visit(name, item):
        if name.startswith("provenance/timing"):
            return
        if isinstance(item, h5py.Dataset):
            value = item[()]
            if name == "provenance_json":
                tree = json.loads(bytes(value))
                tree.pop("timing")
                value = json.dumps(tree, sort_keys=True).encode()
            out[name] = value.tobytes() if isinstance(value, np.ndarray) else bytes(value)
        for key, value in item.attrs.items():
            out[f"{name}@{key}"] = repr(np.asarray(value).tolist()) if not isinstance(value, h5py.Empty) else "empty"

    with h5py.File(path, "r") as f:
        visit("", f)
        f.visititems(visit)
    return out


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def columns_done(partial):
    """Finished columns of an unfinished file, read while another process writes it."""
    if not partial.exists():
        return 0
    with h5py.File(partial, "r", locking=False) as f:
        return int(f["done"][()].sum())


@pytest.fixture(scope="module")
def bigger(tmp_path_factory):
    """A configuration whose twelve columns take long enough to be interrupted."""
    path = tmp_path_factory.mktemp("bigger") / "random.nersc"
    GaugeField.random(LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=11).write(path)
    return path


@pytest.fixture(scope="module")
def undisturbed(lqcd, bigger, tmp_path_factory):
    """The run that nobody disturbs."""
    path = tmp_path_factory.mktemp("undisturbed") / "prop.h5"
    lqcd("propagator", bigger, *SLOW, "-o", path)
    return path


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "operator"),
    [
        (("--mass", 0.5), WilsonDirac(mass=0.5)),
        (("--kappa", 0.11, "--csw", 1.2), CloverWilsonDirac(kappa=0.11, csw=1.2)),
        (("--mass", 0.5, "--mu", 0.1, "--csw", 1.0), TwistedMassDirac(mass=0.5, mu=0.1, csw=1.0)),
        (("--mass", 0.5, "--boundary", "-1,1,1,0.6+0.8i", "--xi0", 2.0, "--nu", 0.9),
         WilsonDirac(mass=0.5, boundary=(-1, 1, 1, 0.6 + 0.8j), xi0=2.0, nu=0.9)),
        (("--mass", 0.5, "--no-even-odd", "--boundary", "periodic"), WilsonDirac(mass=0.5, boundary="periodic")),
        (("--mass", 0.5, "--parity", "odd", "--form", "asymmetric"), WilsonDirac(mass=0.5)),
    ],
)  # fmt: skip
def test_the_operator_applied_to_the_file_gives_the_source(lqcd, configuration, tmp_path, words, operator):
    lqcd("propagator", configuration, *words, "--backend", "numpy", "-q", "-o", tmp_path / "s.h5")
    U = GaugeField.read(configuration)
    assert residual(tmp_path / "s.h5", operator.bind(U, backend="numpy"), point_source(U.geometry)) < 1.01e-10


@pytest.mark.parametrize(
    "words",
    [
        ("--solver", "bicgstab"),
        ("--solver", "gcr"),
        ("--solver", "mixed", "--inner", "bicgstab"),
        ("--solver", "cg", "--batch", 12, "--tol", 1e-12),
    ],
)
def test_every_solver_reaches_its_tolerance(lqcd, configuration, tmp_path, words):
    lqcd("propagator", configuration, *QUICK, *words, "-o", tmp_path / "s.h5")
    U = GaugeField.read(configuration)
    M = WilsonDirac(mass=0.5).bind(U, backend="numpy")
    tol = 1e-12 if 1e-12 in words else 1e-10
    assert residual(tmp_path / "s.h5", M, point_source(U.geometry)) < 1.01 * tol


@pytest.mark.parametrize(
    ("words", "make"),
    [
        (("--source-position", "1,0,1,1"), lambda U: point_source(U.geometry, t=1, z=0, y=1, x=1)),
        (("--source", "wall", "--source-position", "2,0,0,0", "--source-momentum", "1,0,0"),
         lambda U: wall_source(U.geometry, 2, (1, 0, 0))),
        (("--source", "z4", "--source-seed", 7), lambda U: noise_source(U.geometry, 7, "z4", t=0)),
        (("--smearing", "1.5,3"), lambda U: smeared_source(point_source(U.geometry), U, 1.5, 3)),
    ],
)  # fmt: skip
def test_every_source_is_the_librarys(lqcd, configuration, tmp_path, words, make):
    lqcd("propagator", configuration, *QUICK, *words, "-o", tmp_path / "s.h5")
    U = GaugeField.read(configuration)
    source = make(U)
    assert residual(tmp_path / "s.h5", WilsonDirac(mass=0.5).bind(U, backend="numpy"), source) < 1.01e-10
    assert read_propagator(tmp_path / "s.h5").source == json.loads(json.dumps(source.describe()))


def test_the_file_says_how_it_was_made(lqcd, configuration, tmp_path):
    config = tmp_path / "job.toml"
    config.write_text("[propagator]\nkappa = 0.11\ntol = 1e-9\n")
    lqcd("propagator", configuration, "--config", config, "--backend", "numpy", "-q", "-o", tmp_path / "s.h5")
    p = read_propagator(tmp_path / "s.h5").provenance
    assert p["settings"]["kappa"] == 0.11 and p["settings"]["tol"] == 1e-9 and p["settings"]["command"] == "propagator"
    assert p["operator"]["kappa"] == 0.11 and p["backend"] == "numpy" and p["solver"]["tol"] == 1e-9
    assert p["links_digest"] and p["configuration"]["path"] == str(configuration)
    assert len(p["columns"]) == 12 and all(c["residual"] <= 1e-9 for c in p["columns"])
    assert p["timing"]["seconds"] > 0


def test_a_complex_boundary_phase_survives_the_file_and_serves_the_baryons(lqcd, configuration, tmp_path):
    from lqcd_core.hadrons import nucleon_correlator
    from lqcd_core.io import read_correlators

    words = ("--boundary", "0.6+0.8i,1,1,1", "--source-position", "1,0,0,0")
    lqcd("propagator", configuration, *QUICK, *words, "-o", tmp_path / "s.h5")
    lqcd("spectrum", tmp_path / "s.h5", "-c", "nucleon", "-o", tmp_path / "c", "--plot", "none", "-q")
    want = nucleon_correlator(read_propagator(tmp_path / "s.h5"), boundary=0.6 + 0.8j)
    np.testing.assert_allclose(read_correlators(tmp_path / "c.h5")[0]["nucleon/p_0_0_0"].values[0], want, rtol=1e-12)


def test_a_single_precision_solve_is_stored_single(lqcd, configuration, tmp_path):
    lqcd("propagator", configuration, *QUICK, "--precision", "single", "--tol", 1e-5, "-o", tmp_path / "s.h5")
    assert read_propagator(tmp_path / "s.h5").array.dtype == np.complex64


def test_the_columns_do_not_depend_on_the_batch(lqcd, configuration, tmp_path):
    arrays = []
    for batch in (5, 12):
        lqcd("propagator", configuration, *QUICK, "--batch", batch, "-o", tmp_path / f"{batch}.h5")
        arrays.append(read_propagator(tmp_path / f"{batch}.h5").array)
    assert np.array_equal(*arrays)


# -- interrupted -------------------------------------------------------------------------------------------------------


def test_a_killed_run_resumes_to_the_same_bytes_and_attributes(lqcd, start_lqcd, bigger, undisturbed, tmp_path):
    path, partial = tmp_path / "prop.h5", tmp_path / "prop.h5.partial"
    for least in (1, 4):  # killed twice, the second time while it resumes
        process = start_lqcd("propagator", bigger, *SLOW, "-o", path, "--resume")
        wait_for(lambda least=least, p=process: columns_done(partial) >= least or p.poll() is not None)
        process.kill()
        process.wait()
        assert not path.exists() and least <= columns_done(partial) < 12
    lqcd("propagator", bigger, *SLOW, "-o", path, "--resume")
    assert contents(path) == contents(undisturbed)
    assert [p.name for p in tmp_path.iterdir()] == ["prop.h5"]


def test_ctrl_c_says_how_to_go_on_and_is_130(start_lqcd, bigger, tmp_path):
    path, partial = tmp_path / "prop.h5", tmp_path / "prop.h5.partial"
    process = start_lqcd("propagator", bigger, *SLOW, "-o", path)
    wait_for(lambda: columns_done(partial) >= 1 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    assert 1 <= columns_done(partial) < 12 and not path.exists()


def test_sigterm_is_143(start_lqcd, bigger, tmp_path):
    process = start_lqcd("propagator", bigger, *SLOW, "-o", tmp_path / "prop.h5")
    wait_for(lambda: columns_done(tmp_path / "prop.h5.partial") >= 1 or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and "--resume" in err and "Traceback" not in err


def test_two_processes_cannot_write_one_output(lqcd, start_lqcd, bigger, tmp_path):
    path, partial = tmp_path / "prop.h5", tmp_path / "prop.h5.partial"
    process = start_lqcd("propagator", bigger, *SLOW, "-o", path)
    wait_for(lambda: columns_done(partial) >= 1 or process.poll() is not None)
    for more in ((), ("--resume",), ("--force",)):
        result = lqcd("propagator", bigger, *SLOW, "-o", path, "-q", *more, code=2)
        assert "another process" in result.stderr
    assert process.poll() is None and columns_done(partial) >= 1


def test_a_repeated_run_is_refused_forced_or_recognised(lqcd, configuration, tmp_path):
    path = tmp_path / "s.h5"
    words = ("propagator", configuration, *QUICK, "-o", path)
    lqcd(*words)
    before = path.read_bytes()
    assert "--force" in lqcd(*words, code=2).stderr
    assert "finished already" in lqcd(*words, "--resume").stderr
    assert "tol" in lqcd(*words, "--resume", "--tol", 1e-8, code=2).stderr
    assert path.read_bytes() == before
    lqcd(*words, "--force", "--tol", 1e-8)
    assert read_propagator(path).provenance["settings"]["tol"] == 1e-8


def test_resuming_with_other_settings_is_refused_by_name(lqcd, start_lqcd, bigger, tmp_path):
    path, partial = tmp_path / "prop.h5", tmp_path / "prop.h5.partial"
    process = start_lqcd("propagator", bigger, *SLOW, "-o", path)
    wait_for(lambda: columns_done(partial) >= 1 or process.poll() is not None)
    process.kill()
    process.wait()
    result = lqcd("propagator", bigger, *SLOW, "--csw", 1.1, "-o", path, "--resume", code=2)
    assert "csw" in result.stderr and columns_done(partial) >= 1
    assert "--resume" in lqcd("propagator", bigger, *SLOW, "-o", path, code=2).stderr


# -- misused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--mass or --kappa"),
        (("--kappa", 0.1, "--mass", 0.1), "both"),
        (("--kappa", "nan"), "finite"),
        (("--mass", 0.1, "--tol", 1e-20), "cannot be reached"),
        (("--mass", 0.1, "--precision", "single"), "cannot be reached in single"),
        (("--mass", 0.1, "--precision", "dubble"), "did you mean 'double'"),
        (("--mass", 0.1, "--backend", "nunpy"), "did you mean 'numpy'"),
        (("--mass", 0.1, "--backend", "numpy", "--option", "threads=2"), "no option 'threads'"),
        (("--mass", 0.1, "--option", "threads=2"), "--backend"),
        (("--mass", 0.1, "--backend", "numpy", "--precision", "fixed16"), "fixed16"),
        (("--mass", 0.1, "--source-position", "9,0,0,0"), "outside"),
        (("--mass", 0.1, "--source-position", "0,0,0"), "t,z,y,x"),
        (("--mass", 0.1, "--source", "z2"), "--source-seed"),
        (("--mass", 0.1, "--source-momentum", "1,0,0"), "wall"),
        (("--mass", 0.1, "--smearing", "1.0,2.5"), "whole number"),
        (("--mass", 0.1, "--batch", 0), "--batch"),
        (("--mass", 0.1, "--csw-r", 1.0), "csw_t"),
        (("--mass", 0.1, "--boundary", "antiperiodik"), "antiperiodic"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_nothing(lqcd, configuration, tmp_path, words, says):
    result = lqcd("propagator", configuration, *words, "-q", "-o", tmp_path / "s.h5", code=2)
    assert says in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_solve_that_does_not_converge_is_a_failure_with_advice(lqcd, configuration, tmp_path):
    result = lqcd("propagator", configuration, *QUICK, "--maxiter", 2, "-o", tmp_path / "s.h5", code=1)
    assert "maxiter" in result.stderr and "Traceback" not in result.stderr and list(tmp_path.iterdir()) == []


def test_odd_extents_are_solved_on_the_full_lattice(lqcd, tmp_path):
    U = GaugeField.random(LatticeGeometry(T=4, Z=3, Y=2, X=2), seed=1)
    U.write(tmp_path / "odd.ildg")
    lqcd("propagator", tmp_path / "odd.ildg", *QUICK, "-o", tmp_path / "s.h5")
    M = WilsonDirac(mass=0.5).bind(U, backend="numpy")
    assert residual(tmp_path / "s.h5", M, point_source(U.geometry)) < 1.01e-10
    result = lqcd("propagator", tmp_path / "odd.ildg", *QUICK, "--even-odd", "-o", tmp_path / "t.h5", code=2)
    assert "Z=3" in result.stderr


def test_links_off_the_group_are_refused_unless_accepted(lqcd, tmp_path):
    U = GaugeField.random(LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=1)
    U.array[0, 0, 0, 0, 0] *= 1.01
    U.write(tmp_path / "off.ildg", check_links=False)
    assert "--accept-links" in lqcd("propagator", tmp_path / "off.ildg", *QUICK, "-o", tmp_path / "s.h5", code=2).stderr
    lqcd("propagator", tmp_path / "off.ildg", *QUICK, "--accept-links", "-o", tmp_path / "s.h5")


def test_a_solve_that_does_not_fit_in_memory_is_refused_unless_forced(lqcd, configuration, tmp_path, monkeypatch):
    from lqcd_core.cli import memory

    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    words = ("propagator", configuration, *QUICK, "-o", tmp_path / "s.h5")
    result = lqcd(*words, code=2)
    assert "1000 B are available" in result.stderr and "--batch" in result.stderr and list(tmp_path.iterdir()) == []
    lqcd(*words, "--force")


def test_the_plan_is_printed_and_a_dry_run_writes_nothing(lqcd, configuration, tmp_path):
    err = lqcd("propagator", configuration, *QUICK[:-1], "--dry-run", "-o", tmp_path / "s.h5").stderr
    assert all(word in err for word in ("wilson", "point", "numpy", "memory", "available"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_full_disk_is_one_line_and_leaves_no_output(start_lqcd, configuration, tmp_path):
    import resource

    def limit():  # a file size limit fails the same calls as a full disk does
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = start_lqcd("propagator", configuration, *QUICK, "-o", tmp_path / "s.h5", preexec_fn=limit)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "Traceback" not in err and "limit" in err
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_said_before_the_solve(lqcd, configuration, tmp_path):
    (tmp_path / "file").write_text("")
    result = lqcd("propagator", configuration, *QUICK, "-o", tmp_path / "file" / "s.h5", code=2)
    assert len(result.stderr.strip().splitlines()) == 1
    result = lqcd("propagator", configuration, *QUICK, "-o", tmp_path / "absent" / "s.h5", code=2)
    assert "does not exist" in result.stderr
    os.mkfifo(tmp_path / "pipe")
    result = lqcd("propagator", configuration, *QUICK, "--force", "-o", tmp_path / "pipe", code=2)
    assert "a device or a pipe" in result.stderr and (tmp_path / "pipe").is_fifo()


# -- the main job ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mine", "./mine", "link"])
def test_the_configuration_is_never_the_output(lqcd, configuration, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_bytes(configuration.read_bytes())
    (tmp_path / "link").symlink_to("mine")
    result = lqcd("propagator", "mine", *QUICK, "-o", name, "--force", code=2)
    assert "is an input of this command" in result.stderr
    assert (tmp_path / "mine").read_bytes() == configuration.read_bytes()


def test_from_another_codes_configuration_to_a_pion(lqcd, test_data, tmp_path):
    """The weak field: the pion of the file agrees with the propagator of the library."""
    config = test_data / "pyquda" / "weak_field.lime"
    lqcd("propagator", config, "--kappa", 0.12, "--csw", 1.0, "--backend", "numpy", "-q", "-o", tmp_path / "s.h5")
    U = GaugeField.read(config)
    M = CloverWilsonDirac(kappa=0.12, csw=1.0).bind(U, backend="numpy")
    assert residual(tmp_path / "s.h5", M, point_source(U.geometry)) < 1.01e-10
    out = lqcd("spectrum", tmp_path / "s.h5", "-c", "pion", "-o", tmp_path / "spectrum").stdout
    assert "no statistical errors" in out and "pion" in out
    assert all((tmp_path / f"spectrum.{s}").exists() for s in ("h5", "csv", "png"))


def test_chromas_anisotropic_wilson_norms_come_out_of_the_command(lqcd, test_data, tmp_path):
    """Chroma, kappa 0.135, xi0 2.464, nu 0.95, smeared point (w = 2, n = 5): sum |S|^2 of each slice, single precision."""
    words = ("--kappa", 0.135, "--xi0", 2.464, "--nu", 0.95, "--smearing", "2.0,5", "--backend", "numpy", "-q")
    lqcd("propagator", test_data / "pyquda" / "weak_field.lime", *words, "-o", tmp_path / "s.h5")
    S = read_propagator(tmp_path / "s.h5")
    found = (abs(S.array) ** 2).sum(axis=(1, 2, 3, 4, 5, 6, 7))
    norms = (0.749881669999327, 0.127559084732057, 0.0488181675046557, 0.0261707285082163,
             0.0205313421547321, 0.0261869827813914, 0.0488589470882021, 0.127618665495695)  # fmt: skip
    np.testing.assert_allclose(found, norms, rtol=2e-6)

"""The compile driver and the kernel cache, with a stand-in compiler in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import nki_machine  # noqa: E402
from lqcd_backends.neuron.cache import RECORD  # noqa: E402
from lqcd_backends.neuron.nki import driver, libnrt  # noqa: E402
from lqcd_backends.neuron.nki.launch import LibnrtExecutor  # noqa: E402
from lqcd_backends.neuron.nki.neff import read_header  # noqa: E402
from test_nrt_runtime import arrays, executor_of, spec_of  # noqa: E402

from lqcd_core.errors import ParameterError  # noqa: E402
from lqcd_core.io.unfinished import locked, remove_unfinished  # noqa: E402


@pytest.fixture
def here(tmp_path):
    """A machine whose compiler is a process, with a cache that stays."""
    with nki_machine.machine(compiler="process", cache=tmp_path / "cache"):
        yield tmp_path


def test_a_kernel_is_compiled_in_a_process_of_its_own_and_runs(here):
    executor, (x, y) = executor_of(), arrays()
    h = executor.launch(spec_of())(executor.place(x), executor.place(y), np.full((1, 1), 3, np.float32))[0]
    np.testing.assert_array_equal(executor.fetch(h, x.shape, "float32"), y + np.float32(3) * x)
    assert (executor.store.compiled, executor.store.found) == (1, 0)
    again = driver.KernelStore(driver.Compiler("trn2"), libnrt.runtime().label)
    neff = again.neff(spec_of())
    assert (again.compiled, again.found) == (0, 1)
    head = read_header(neff)
    assert "STAND-IN" in head.build and head.lnc == 1
    assert b"toy_kernels" in neff and "nki" not in sys.modules  # this process imported no compiler


def test_facts_of_the_compiler_carry_the_label(here):
    facts = driver.Compiler("trn2").facts()
    assert facts.nki == "0.7.0" and "STAND-IN" in facts.stand_in


def test_lnc_and_target_reach_the_compiler(here, tmp_path):
    for target, lnc in (("trn1", 1), ("trn2", 2), ("trn3", 1)):
        driver.Compiler(target, lnc).compile(spec_of("passed"), tmp_path)
        neff = (tmp_path / "kernel.neff").read_bytes()
        assert f'"target": "{target}"'.encode() in neff and read_header(neff).lnc == lnc


def test_other_options_other_keys(here):
    keys = []
    for target, lnc in (("trn2", 1), ("trn2", 2), ("trn3", 1)):
        store = driver.KernelStore(driver.Compiler(target, lnc))
        keys += [store.key(spec_of("passed", factor=f), {"nki": v}) for f in (1, 2) for v in ("0.7.0", "0.7.1")]
    keys += [store.key(spec_of("passed", n=9), {"nki": "0.7.0"})]
    assert len({json.dumps(k, sort_keys=True) for k in keys}) == 13


def test_the_wrong_release_of_the_compiler_is_refused(here, monkeypatch):
    monkeypatch.setenv("LQCD_STANDIN_NKI_VERSION", "0.8.1")
    with pytest.raises(
        driver.CompilerUnavailable, match=r"written against nki 0\.7 .* has nki 0\.8\.1; .*nki_version='0\.8'"
    ):
        driver.Compiler("trn2").facts()
    assert driver.Compiler("trn2", nki_version="0.8").facts().nki == "0.8.1"
    monkeypatch.setenv("LQCD_STANDIN_NKI_VERSION", "0.70.0")
    with pytest.raises(driver.CompilerUnavailable):
        driver.Compiler("trn2").facts()


def test_no_interpreter_no_compiler_no_numpy(here, monkeypatch, tmp_path):
    with pytest.raises(driver.CompilerUnavailable, match="is not an interpreter"):
        driver.Compiler("trn2", python=str(tmp_path / "none")).facts()
    plain = tmp_path / "text"
    plain.write_text("no program")
    with pytest.raises(driver.CompilerUnavailable, match="cannot be run"):
        driver.Compiler("trn2", python=str(plain)).facts()
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    with pytest.raises(
        driver.CompilerUnavailable, match=r"no NKI compiler .*LQCD_NEURON_PYTHON.*Neuron SDK.*prebuilt cache"
    ):
        driver.Compiler("trn2").facts()


def test_what_the_compiler_says_is_passed_on(here, tmp_path):
    with pytest.raises(driver.CompileError, match="FloatingPointError: the kernel is broken"):
        driver.Compiler("trn2").compile(spec_of("broken"), tmp_path)
    with pytest.raises(driver.CompileError, match="did not end in"):
        driver.Compiler("trn2", timeout=0.01).compile(spec_of("passed"), tmp_path)
    dies = tmp_path / "python"
    dies.write_text("#!/bin/sh\necho memory ran out\nexit 9\n")
    dies.chmod(0o755)
    with pytest.raises(driver.CompileError, match="ended with 9 and no result: memory ran out"):
        driver.Compiler("trn2", python=str(dies)).compile(spec_of("passed"), tmp_path)
    store = driver.KernelStore(driver.Compiler("trn2"), libnrt.runtime().label)
    with pytest.raises(driver.CompileError):
        store.neff(spec_of("broken"))
    assert list(store.cache.entries()) == []  # nothing half made is kept


def test_targets_and_logical_cores_that_do_not_exist():
    for target, lnc in (("trn4", 1), ("trn2", 3), ("trn1", 2), ("inf2", 2), ("gen3", 1)):
        with pytest.raises(ParameterError, match=target):
            driver.Compiler(target, lnc)


def test_a_shipped_cache_needs_no_compiler(tmp_path):
    built = tmp_path / "built"
    with nki_machine.machine(compiler="process", cache=built):
        driver.KernelStore(driver.Compiler("trn2"), libnrt.runtime().label).neff(spec_of())
    shipped = tmp_path / "shipped"
    shutil.copytree(built, shipped)
    with nki_machine.machine(compiler="none", cache=shipped):
        executor, (x, y) = executor_of(), arrays()
        h = executor.launch(spec_of())(executor.place(x), executor.place(y), np.ones((1, 1), np.float32))[0]
        np.testing.assert_array_equal(executor.fetch(h, x.shape, "float32"), x + y)
        with pytest.raises(
            driver.CompilerUnavailable, match=r"passed for trn2 \(lnc=1\) is not in the cache .*no-python"
        ):
            executor.launch(spec_of("passed"))
        old = driver.KernelStore(driver.Compiler("trn2", nki_version="0.9"), executor.label)
        with pytest.raises(driver.CompilerUnavailable, match=r"there is one made by nki 0\.7\.0"):
            old.neff(spec_of())
        (entry, _), *_ = executor.store.cache.entries()
        with open(entry / "kernel.neff", "r+b") as f:  # damage is seen before the runtime sees it
            f.seek(1500)
            f.write(b"damage")
        with pytest.raises(driver.CompilerUnavailable, match="not in the cache"):
            driver.KernelStore(driver.Compiler("trn2"), executor.label).neff(spec_of())


def test_a_stand_in_never_serves_a_real_runtime_nor_the_reverse(here):
    made = driver.KernelStore(driver.Compiler("trn2"), "STAND-IN")
    made.neff(spec_of())
    real = driver.KernelStore(driver.Compiler("trn2"), "")
    with pytest.raises(driver.CompilerUnavailable, match="a stand-in goes with a stand-in only"):
        real.neff(spec_of())
    real._missing = driver.CompilerUnavailable("there is no compiler")
    with pytest.raises(driver.CompilerUnavailable, match="not in the cache"):
        real.neff(spec_of())


RACE = """
import sys
sys.path.insert(0, sys.argv[1]); sys.path.insert(0, sys.argv[2])
from lqcd_backends.neuron.nki import driver
from test_nrt_runtime import spec_of
store = driver.KernelStore(driver.Compiler("trn2"), "STAND-IN")
print(len(store.neff(spec_of())), store.compiled)
"""


def test_processes_that_want_one_kernel_compile_it_once(here):
    command = [sys.executable, "-c", RACE, str(SUPPORT), str(Path(__file__).parent)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [r.communicate(timeout=120)[0].split() for r in racers]
    assert all(r.returncode == 0 for r in racers)
    assert len({s[0] for s in said}) == 1 and sum(int(s[1]) for s in said) == 1


KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from lqcd_backends.neuron.nki import driver
from test_nrt_runtime import spec_of
def compile_slowly(self, spec, folder, *rest, **more):
    (Path(folder) / "half.neff").write_bytes(b"half")
    print("compiling", flush=True)
    time.sleep(600)
driver.Compiler.compile = compile_slowly
options = {name: int(value) for name, _, value in (a.partition("=") for a in sys.argv[3:])}
driver.KernelStore(driver.Compiler("trn2"), "STAND-IN").neff(spec_of("passed", **options) if options else spec_of())
"""


def test_a_process_killed_while_it_compiles_leaves_neither_lock_nor_half_a_kernel(here):
    command = [sys.executable, "-c", KILLED, str(SUPPORT), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        try:
            assert victim.stdout.readline() == "compiling\n"
        finally:
            victim.kill()
    half = list((here / "cache").rglob("half.neff"))
    assert len(half) == 1  # it died in the middle
    store = driver.KernelStore(driver.Compiler("trn2"), "STAND-IN")
    neff = store.neff(spec_of())
    assert store.compiled == 1 and read_header(neff)
    again = driver.KernelStore(driver.Compiler("trn2"), "STAND-IN")
    assert again.neff(spec_of()) == neff and (again.compiled, again.found) == (0, 1)
    assert not half[0].parent.exists()  # went with the compilation that came next
    assert not any(
        "half.neff" in (f / RECORD).read_text() for f in half[0].parent.parent.glob("*") if (f / RECORD).is_file()
    )


def test_what_a_killed_process_left_goes_and_what_a_living_one_fills_stays(here):
    """Two processes compile two kernels; one is killed. The command and another kernel's compilation take its folder only."""
    pytest.importorskip("click")
    command = [sys.executable, "-c", KILLED, str(SUPPORT), str(Path(__file__).parent)]
    living = subprocess.Popen([*command, "factor=7"], stdout=subprocess.PIPE, text=True)
    try:
        assert living.stdout.readline() == "compiling\n"
        (works,) = (here / "cache").rglob("half.neff")
        for remove in ("clear", "compile"):
            with subprocess.Popen([*command, "factor=8"], stdout=subprocess.PIPE, text=True) as victim:
                try:
                    assert victim.stdout.readline() == "compiling\n"
                finally:
                    victim.kill()
            (left,) = {*(here / "cache").rglob("half.neff")} - {works}
            if remove == "clear":
                clear = [sys.executable, "-c", "from lqcd_core.cli import main; main()", "cache", "clear", "neuron"]
                old = subprocess.run([*clear, "--older", "1"], capture_output=True, text=True, env=dict(os.environ))
                assert old.returncode == 0 and "unfinished" not in old.stdout and left.exists()  # not a day old
                done = subprocess.run(clear, capture_output=True, text=True, env=dict(os.environ))
                assert done.returncode == 0 and "1 left unfinished" in done.stdout, done.stderr
            else:
                driver.KernelStore(driver.Compiler("trn2"), "STAND-IN").neff(spec_of())
            assert not left.parent.exists() and works.exists()
    finally:
        living.kill()
        living.communicate()


def test_folders_that_are_no_work_of_a_cache_stay(tmp_path):
    for name in (".a.b", "plain", ".git", ".k.work", ".k"):
        (tmp_path / name).mkdir()
    (tmp_path / ".k.lock").touch()
    with locked(tmp_path, "k"):  # held by this very process
        assert remove_unfinished(tmp_path) == []
    assert remove_unfinished(tmp_path, older=60) == []
    assert remove_unfinished(tmp_path) == [tmp_path / ".k.work"]
    assert {p.name for p in tmp_path.iterdir()} == {".a.b", "plain", ".git", ".k", ".k.lock"}
    assert remove_unfinished(tmp_path / "none") == []


def test_the_cache_command_sees_and_clears_kernels(here):
    pytest.importorskip("click")
    from lqcd_core.cli.cache import caches, entries

    driver.KernelStore(driver.Compiler("trn2"), "STAND-IN").neff(spec_of())
    (folder,) = entries(caches()["neuron"])
    assert folder.parent.name == "nki" and json.loads((folder / RECORD).read_text())["key"]["target"] == "trn2"
    done = subprocess.run(
        [sys.executable, "-c", "from lqcd_core.cli import main; main()", "cache", "clear", "neuron"],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.returncode == 0 and "1 entries" in done.stdout, done.stderr
    assert entries(caches()["neuron"]) == []


def test_an_executor_without_its_compiler_still_runs_what_it_loaded(here):
    executor = executor_of()
    launch = executor.launch(spec_of("passed"))
    assert executor.launch(spec_of("passed")) is launch and isinstance(executor, LibnrtExecutor)

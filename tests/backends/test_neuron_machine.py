"""What the Neuron backends share: device detection, budgets, the cache on disk. No torch, no device."""

import ctypes
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from lqcd_backends.neuron import budget, cache, device
from neuron_standin import CHIPS, make_machine

import lqcd_core as lqcd
from lqcd_core.errors import BackendUnavailable, FileError, ParameterError


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """A machine without anything, whatever the real one has."""
    monkeypatch.setattr(device, "DEV", tmp_path / "dev")
    monkeypatch.setattr(device, "SYSFS", tmp_path / "sys")
    monkeypatch.setattr(device, "NEURON_LS", ())
    monkeypatch.setattr(device, "LIBNRT", ())
    for name in ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_LOGICAL_NC_CONFIG"):
        monkeypatch.delenv(name, raising=False)


# -- device ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instance", "devices", "cores", "generation", "gib"),
    (("inf2.xlarge", 1, 2, "gen2", 32), ("trn1.32xlarge", 16, 32, "gen2", 512), ("trn2.3xlarge", 1, 4, "gen3", 96)),
)
def test_files_of_the_driver_say_everything(tmp_path, instance, devices, cores, generation, gib):
    make_machine(tmp_path, instance)
    found = device.get_device()
    assert device.is_neuron_available() and found.source == "sysfs" and found.instance_type == instance
    assert (found.num_devices, found.num_cores, found.generation) == (devices, cores, generation)
    assert found.memory_bytes == gib << 30 and instance in CHIPS


def test_the_runtimes_variables_limit_the_cores(tmp_path, monkeypatch):
    make_machine(tmp_path, "trn1.32xlarge")
    for name, value, cores in (
        ("NEURON_RT_VISIBLE_CORES", "0-3", 4), ("NEURON_RT_VISIBLE_CORES", "3-5,6", 4), ("NEURON_RT_VISIBLE_CORES", "7", 1),
        ("NEURON_RT_NUM_CORES", "2", 2), ("NEURON_RT_NUM_CORES", "0", 32), ("NEURON_RT_VISIBLE_CORES", "nonsense", 32),
    ):  # fmt: skip
        with monkeypatch.context() as m:
            m.setenv(name, value)
            assert device.get_device().num_cores == cores, (name, value)
    make_machine(tmp_path / "other", "trn2.3xlarge")
    monkeypatch.setattr(device, "DEV", tmp_path / "other" / "dev")
    monkeypatch.setattr(device, "SYSFS", tmp_path / "other" / "sys")
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert device.get_device().num_cores == 8


def test_neuron_ls_answers_where_sysfs_does_not(tmp_path, monkeypatch):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "neuron0").touch()
    listing = [
        {
            "neuron_device": 0,
            "nc_count": 4,
            "memory_size": 103079215104,
            "logical_neuroncore_config": 2,
            "numa_node": "-1",
        }
    ]
    program = tmp_path / "neuron-ls"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1:] == ['-j']\nprint('''{json.dumps(listing)}''')\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(device, "NEURON_LS", (str(tmp_path / "absent"), str(program)))
    found = device.get_device()
    assert found.source == "neuron-ls" and found.num_cores == 4 and found.generation == "gen3"
    assert found.memory_bytes == 103079215104 and found.core_bytes == 103079215104 // 4
    assert device.from_neuron_ls([{"neuron_device": 0}]) is None and device.from_neuron_ls({"error": "no"}) is None


def test_files_are_asked_first_then_the_tool_then_the_library(tmp_path, monkeypatch):
    """Each source answers with a number of its own; the first that answers is taken, and a broken one is passed over."""
    make_machine(tmp_path, "inf2.xlarge")
    program = tmp_path / "neuron-ls"
    program.write_text('#!/bin/sh\necho \'[{"neuron_device": 0, "nc_count": 4, "memory_size": 103079215104}]\'\n')
    program.chmod(0o755)

    class Library:
        """libnrt with the older of the two names."""

        @staticmethod
        def nrt_get_total_nc_count(pointer):
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint32))[0] = 8
            return 0

    def load(name):
        if name == "absent":
            raise OSError("cannot open shared object file")
        return Library

    monkeypatch.setattr(device, "NEURON_LS", (str(program),))
    monkeypatch.setattr(device, "LIBNRT", ("absent", "libnrt.so.1"))
    monkeypatch.setattr(device.ctypes, "CDLL", load)
    assert (device.get_device().source, device.get_device().num_cores) == ("sysfs", 2)
    monkeypatch.setattr(device, "SYSFS", tmp_path / "nothing")
    assert (device.get_device().source, device.get_device().num_cores) == ("neuron-ls", 4)
    program.write_text("#!/bin/sh\necho broken\n")
    found = device.get_device()
    assert (found.source, found.num_cores, found.generation) == ("libnrt", 8, "")
    monkeypatch.setattr(Library, "nrt_get_total_nc_count", lambda pointer: 1)
    assert "libnrt" in device.get_device().reason


def test_the_reason_is_named_where_there_is_nothing(tmp_path):
    assert not device.is_neuron_available()
    with pytest.raises(BackendUnavailable, match=r"there is no .*neuron0.*Inf2, Trn1"):
        device.require_device()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "neuron0").touch()
    with pytest.raises(BackendUnavailable, match="nor neuron-ls, nor libnrt"):
        device.require_device()


def test_without_a_device_the_backend_refuses_and_nothing_else_steps_in():
    pytest.importorskip("torch")
    u = lqcd.GaugeField.cold(lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2))
    with pytest.raises(BackendUnavailable, match="no Neuron device"):
        lqcd.WilsonDirac(mass=0.1).bind(u, backend="neuron-traced", precision="single")
    chosen = lqcd.explain(lqcd.WilsonDirac(mass=0.1), u, precision="single").chosen
    assert chosen in ("torch", "numpy", "native")


def test_asking_imports_neither_torch_nor_the_package():
    code = (
        "import sys; import lqcd_backends.neuron as n; n.get_device(); import lqcd_backends.neuron.traced.plugin as p;"
        "assert p.INFO.options and not {'torch', 'torch_neuronx', 'libneuronxla'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_generation_facts_are_the_vendors():
    gen2, gen3, gen4 = (device.GENERATIONS[f"gen{k}"] for k in (2, 3, 4))
    assert (gen2.sbuf, gen3.sbuf, gen4.sbuf) == (128 * 180224, 128 * 212984, 128 * 245752)
    assert (gen2.cores * gen2.hbm_bytes, gen3.cores * gen3.hbm_bytes, gen4.cores * gen4.hbm_bytes) == (
        32 << 30,
        96 << 30,
        144 << 30,
    )
    assert (gen2.bandwidth, gen3.bandwidth, gen4.bandwidth) == (272.0, 362.0, 528.0)


# -- budget -----------------------------------------------------------------------------------------------------------


def needing(instructions=100, constants=0, hbm=10, sbuf=10):
    def need(slabs, chained):
        stages = 2 if chained else 1
        return budget.Need(instructions=instructions * stages // slabs, constants=constants * stages // slabs, sbuf=sbuf * stages,
                           hbm=hbm, slabs=slabs, chained=chained)  # fmt: skip

    return need


def test_one_graph_then_a_graph_per_stage_then_slabs():
    def choice(limit, **more):
        d = budget.decide("M", 12, 2, needing(), instruction_limit=limit, **more)
        return d.need.slabs, d.need.chained

    assert [choice(n) for n in (200, 199, 100, 99, 30, 9)] == [
        (1, True),
        (1, False),
        (1, False),
        (2, False),
        (4, False),
        (12, False),
    ]
    assert choice(200, sbuf_limit=15) == (1, True)
    assert choice(200, sbuf_limit=15, split_above_sbuf=True) == (1, False)
    assert choice(200, slabs=6) == (6, False) and choice(200, slabs=5) == (5, False)
    cut = {(1, True), (1, False), (2, False)}
    assert choice(200, refused=cut) == (3, False) and choice(200, refused={(1, True)}) == (1, False)


@pytest.mark.parametrize("extent", (1, 2, 7, 12, 64))
def test_slabs_cover_the_extent_and_only_thinner_ones_are_tried(extent):
    for count in range(1, extent + 1):
        slabs = budget.slabs_of(extent, count)
        assert [t for first, length in slabs for t in range(first, first + length)] == list(range(extent))
        lengths = {length for _, length in slabs}
        assert max(lengths) - min(lengths) <= 1 and max(lengths) == -(-extent // count)
    thickest = [max(length for _, length in budget.slabs_of(extent, k)) for k in budget.cuts(extent)]
    assert thickest == sorted({-(-extent // k) for k in range(1, extent + 1)}, reverse=True)


def test_what_cannot_fit_is_refused_with_numbers(caplog):
    with pytest.raises(ParameterError, match=r"does not fit even in 12 slabs.*8 instructions \(limit 7\)"):
        budget.decide("M", 12, 1, needing(), instruction_limit=7)
    for wrong in (13, 0):
        with pytest.raises(ParameterError, match=rf"slabs={wrong} cannot be cut from T=12 time slices; use 1 to 12"):
            budget.decide("M", 12, 1, needing(), slabs=wrong)
    with pytest.raises(ParameterError, match="of HBM"):
        budget.decide("M", 12, 1, needing(hbm=1 << 50))
    with caplog.at_level("INFO", logger="lqcd_backends.neuron"):
        found = budget.decide("M on (12, 4, 4, 4)", 12, 1, needing(constants=3 << 30))
    assert found.need.slabs == 2 and "2 slabs along t" in caplog.text and "2,147,483,648 B of constants" in caplog.text


# -- cache ------------------------------------------------------------------------------------------------------------


def test_the_folder_follows_the_variables(monkeypatch, tmp_path):
    monkeypatch.delenv("LQCD_NEURON_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "lqcd" / "neuron"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says: ignore it
    assert cache.cache_root() == Path.home() / ".cache" / "lqcd" / "neuron"
    monkeypatch.setenv("LQCD_NEURON_CACHE", str(tmp_path / "here"))
    assert cache.Cache("traced").folder == tmp_path / "here" / "traced"


def writer(text, calls):
    def build(folder):
        calls.append(text)
        (folder / "module.pt").write_text(text)

    return build


def test_an_entry_is_made_once_per_key_and_again_when_it_is_damaged(tmp_path):
    store, calls = cache.Cache("traced", tmp_path), []
    folder, there = store.fetch({"a": 1}, writer("one", calls))
    assert not there and (folder / "module.pt").read_text() == "one"
    assert store.fetch({"a": 1}, writer("never", calls)) == (folder, True)
    other, there = store.fetch({"a": 2}, writer("two", calls))
    assert not there and other != folder and calls == ["one", "two"]
    (folder / "module.pt").write_text("torn")
    again, there = store.fetch({"a": 1}, writer("anew", calls))
    assert again == folder and not there and (folder / "module.pt").read_text() == "anew"


def test_a_build_that_fails_leaves_nothing(tmp_path):
    store = cache.Cache("traced", tmp_path)

    def fails(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("compiler")

    with pytest.raises(RuntimeError, match="compiler"):
        store.fetch({"a": 1}, fails)
    assert [p.name for p in store.folder.iterdir() if not p.name.endswith(".lock")] == []
    assert not store.fetch({"a": 1}, writer("fine", []))[1]


def _dies(root):
    def build(folder):
        (folder / "module.pt").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    cache.Cache("traced", root).fetch({"a": 1}, build)


def test_a_compilation_that_is_killed_is_made_again_and_leaves_nothing(tmp_path):
    killed = multiprocessing.get_context("fork").Process(target=_dies, args=(tmp_path,))
    killed.start()
    killed.join(60)
    store = cache.Cache("traced", tmp_path)
    work = [p for p in store.folder.iterdir() if p.is_dir()]
    assert killed.exitcode == -signal.SIGKILL and len(work) == 1 and not list(store.entries())
    folder, there = store.fetch({"a": 1}, writer("whole", []))
    assert not there and (folder / "module.pt").read_text() == "whole" and not work[0].exists()


def test_a_folder_that_cannot_be_written_to_serves_what_it_has_and_says_the_rest(tmp_path, monkeypatch):
    store = cache.Cache("traced", tmp_path)
    folder, _ = store.fetch({"a": 1}, writer("one", []))

    def refuse(*words, **more):  # chmod does not stop root
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert store.fetch({"a": 1}, writer("never", [])) == (folder, True)
    with pytest.raises(FileError, match=r"traced cannot be written to .*Permission denied.*LQCD_NEURON_CACHE"):
        store.fetch({"a": 2}, writer("never", []))
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="LQCD_NEURON_CACHE"):
        cache.Cache("traced", tmp_path / "file").fetch({"a": 1}, writer("never", []))


def _fetch(root, start, made):
    def build(folder):
        with made.get_lock():
            made.value += 1
        (folder / "module.pt").write_text("x" * 100000)

    start.wait(60)
    folder, _ = cache.Cache("traced", root).fetch({"key": "shared"}, build)
    assert (folder / "module.pt").stat().st_size == 100000


def test_several_processes_build_one_entry_once(tmp_path):
    context = multiprocessing.get_context("fork")
    start, made = context.Barrier(4), context.Value("i", 0)
    workers = [context.Process(target=_fetch, args=(tmp_path, start, made)) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert [w.exitcode for w in workers] == [0] * 4 and made.value == 1

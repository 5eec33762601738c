"""``lqcd monitor`` on streams in the vendor's recorded format, whole and with pieces missing; ``lqcd cache``."""

import io
import json
import os
import random
import time

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from lqcd_backends.neuron.cache import Cache
from lqcd_backends.neuron.monitor import read

from lqcd_core.cli import main

LATENCY = {"p0": 0.001, "p1": 0.001, "p25": 0.0011, "p50": 0.0012, "p75": 0.0013, "p99": 0.002, "p100": 0.004}
DOCUMENT = {
    "neuron_runtime_data": [
        {
            "pid": 4711, "address": "", "neuron_runtime_tag": "4711", "error": "",
            "report": {
                "neuroncore_counters": {
                    "period": 5.0, "error": "",
                    "neuroncores_in_use": {
                        "0": {"neuroncore_utilization": 73.25, "flops": 10**12, "v3d": {"nc_v3.0": {"neuroncore_utilization": 70.0}}},
                        "10": {"neuroncore_utilization": 1.0}, "2": {"neuroncore_utilization": 12.5},
                    },
                },
                "execution_stats": {
                    "period": 5.0, "error": "",
                    "error_summary": {"generic": 0, "numerical": 2, "transient": 0, "model": 0, "runtime": 0, "hardware": 1},
                    "execution_summary": {"completed": 900, "completed_with_err": 0, "completed_with_num_err": 0, "timed_out": 3,
                                          "incorrect_input": 0, "failed_to_queue": 0},
                    "latency_stats": {"total_latency": LATENCY, "device_latency": None},
                },
                "memory_used": {
                    "period": 5.0, "error": "",
                    "neuron_runtime_used_bytes": {
                        "host": 1048576, "neuron_device": 3221225472,
                        "usage_breakdown": {"neuroncore_memory_usage": {"0": {"constants": 0, "model_code": 1000, "tensors": 24}}},
                    },
                    "loaded_models": [],
                },
                "neuron_runtime_vcpu_usage": {"period": 5.0, "vcpu_usage": {"user": 1.0, "system": 0.5}, "error": ""},
            },
        }
    ],
    "system_data": {
        "neuron_hw_counters": {"period": 5.0, "error": "", "neuron_devices": [
            {"neuron_device_index": 0, "mem_ecc_corrected": 4, "mem_ecc_uncorrected": 0, "sram_ecc_uncorrected": 0,
             "sram_ecc_corrected": 0}]},
    },
    "instance_info": {"instance_type": "trn2.48xlarge", "error": ""},
    "neuron_hardware_info": {"neuron_device_type": "trainium2", "neuron_device_count": 16, "error": ""},
}  # fmt: skip


def run(*arguments):
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    return left.value.code


def test_a_whole_document_is_understood():
    got = read(json.dumps(DOCUMENT))
    assert list(got.cores.items()) == [("0", 73.25), ("2", 12.5), ("10", 1.0)]
    assert got.memory == {"host": 1048576, "device": 3221225472, "core 0": 1024}
    assert {k: v for k, v in got.errors.items() if v} == {
        "numerical": 2,
        "hardware": 1,
        "timed_out": 3,
        "mem_ecc_corrected": 4,
    }
    assert got.latencies == {"total latency": LATENCY} and got.title == "trn2.48xlarge, trainium2, 16 chip(s)"


def every_way_to_lose_a_piece(value):
    """Copies of a document with one key, or one value, gone or of a strange type."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {k: v for k, v in value.items() if k != key}
            for strange in (None, "n/a", [], {}, 3.5):
                yield {**value, key: strange}
            for changed in every_way_to_lose_a_piece(inner):
                yield {**value, key: changed}
    elif isinstance(value, list) and value:
        yield []
        for changed in every_way_to_lose_a_piece(value[0]):
            yield [changed, *value[1:]]


def test_no_missing_or_strange_key_breaks_a_reading():
    tried = 0
    for document in every_way_to_lose_a_piece(DOCUMENT):
        got = read(json.dumps(document))
        assert got is None or all(isinstance(v, (int, float)) for v in [*got.cores.values(), *got.memory.values()])
        tried += 1
    assert tried > 300


def test_what_is_no_document_is_no_reading():
    whole, generator = json.dumps(DOCUMENT), random.Random(1)
    for line in (
        "",
        "\n",
        "[]",
        "3",
        "null",
        '{"other": 1}',
        whole[:100],
        *(whole[: generator.randrange(len(whole))] for _ in range(20)),
    ):
        assert read(line) is None


def test_two_runtimes_and_their_complaints_are_told_apart():
    second = {
        "pid": 4712,
        "error": "went away",
        "report": {"execution_stats": {"latency_stats": {"total_latency": {"p50": 0.5}}}},
    }
    document = {**DOCUMENT, "neuron_runtime_data": [*DOCUMENT["neuron_runtime_data"], second]}
    got = read(json.dumps(document))
    assert got.remarks == ("pid 4712 went away",)
    assert set(got.latencies) == {"pid 4711 total latency", "pid 4712 total latency"}


def test_the_command_shows_a_stream(tmp_path, capsys):
    stream = tmp_path / "stream"
    stream.write_text("starting up\n" + json.dumps(DOCUMENT) + "\n" + json.dumps(DOCUMENT) + "\n")
    assert run("monitor", stream) == 0
    out, err = capsys.readouterr()
    assert out.count("trn2.48xlarge") == 2 and "73.2 %" in out and "3.0 GiB" in out and "1.200" in out
    assert "numerical 2" in out and "1 line(s) held no reading" in err
    assert run("monitor", "--once", "--json", stream) == 0
    assert json.loads(capsys.readouterr().out)["cores"]["2"] == 12.5


def test_the_command_reads_standard_input_and_fails_on_nothing(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("not json\n"))
    assert run("monitor") == 1
    assert "no reading at all" in capsys.readouterr().err
    assert run("monitor", "--source", "absent") == 2
    assert "neuron" in capsys.readouterr().err


# -- lqcd cache ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LQCD_NEURON_CACHE", str(tmp_path / "here"))
    store = Cache("traced")
    for k in range(3):
        store.fetch({"k": k}, lambda folder: (folder / "module.pt").write_bytes(b"x" * 1000))
    (tmp_path / "here" / "notes.txt").write_text("mine")
    return store


def test_entries_are_listed(filled, capsys):
    assert run("cache", "list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["cache"] for r in rows] == ["neuron"] * 3 and all(r["bytes"] > 1000 for r in rows)
    assert all(abs(r["created"] - time.time()) < 600 for r in rows)
    assert run("cache", "list") == 0 and "3 entries" in capsys.readouterr().out


def test_clearing_removes_entries_and_nothing_else(filled, capsys):
    assert run("cache", "clear", "--older", "1") == 0 and "0 entries" in capsys.readouterr().out
    assert run("cache", "clear", "neuron") == 0 and "3 entries" in capsys.readouterr().out
    left = sorted(p.name for p in filled.folder.parent.rglob("*") if p.is_file() and not p.name.endswith(".lock"))
    assert left == ["notes.txt"]
    assert not filled.fetch({"k": 0}, lambda folder: (folder / "module.pt").write_bytes(b"new"))[1]
    assert run("cache", "clear", "absent") == 2
    assert os.environ["LQCD_NEURON_CACHE"] in str(filled.folder)

"""The plan file: what it becomes, and that every mistake in it is found before anything runs."""

from __future__ import annotations

import os

import pytest

from lqcd_core.campaign.driver import check_capacity
from lqcd_core.campaign.plan import make_plan, propagator_words, read_plan
from lqcd_core.errors import FileError, FileFormatError, LQCDError, ParameterError, UnknownOptionError
from lqcd_core.io.lines import LineFile

pytest.importorskip("click", reason="the plan takes options of the command")
pytest.importorskip("rich", reason="the command needs rich")


@pytest.fixture
def folder(tmp_path):
    for name in ("a.ildg", "b.ildg", "c.1000", "c.1010"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def _plan(folder, campaign=(), **tables):
    return make_plan({"campaign": {"configurations": ["*.ildg"], "masses": [0.1], **dict(campaign)}, **tables}, folder)


def test_every_configuration_meets_every_source_and_mass(folder):
    plan = _plan(
        folder, {"masses": [0.1, 0.2], "sources": [{}, {"source": "wall", "source-position": [1, 0, 0, 0]}]},
        propagator={"csw": 1.0},
    )  # fmt: skip
    assert len(plan.tasks) == 2 * 2 * 2
    first, last = plan.tasks[0], plan.tasks[-1]
    assert first.words == ("--csw", "1.0", "--mass", "0.1")
    assert last.words == ("--csw", "1.0", "--source", "wall", "--source-position", "1,0,0,0", "--mass", "0.2")
    assert last.output == str(folder / "campaign" / "b_s1_mass0.2.h5")
    assert len({t.digest for t in plan.tasks}) == 8
    assert plan.resources == {"num_cpus": 1} and plan.retries == 2


def test_numbered_configurations_keep_their_number(folder):
    plan = make_plan({"campaign": {"configurations": ["c.*"], "kappas": [0.12]}}, folder)
    assert [t.name for t in plan.tasks] == ["c.1000_s0_kappa0.12", "c.1010_s0_kappa0.12"]


def test_words_are_those_of_the_command_line():
    table = {
        "solver": "mixed",
        "tol": 1e-9,
        "even-odd": False,
        "smearing": [2.0, 5],
        "option": {"threads": 2},
        "accept-links": True,
    }
    assert propagator_words(table, "here") == (
        "--smearing", "2.0,5", "--solver", "mixed", "--tol", "1e-09", "--no-even-odd", "--option", "threads=2", "--accept-links",
    )  # fmt: skip


def test_a_backend_that_needs_cores_of_a_device_gets_one(folder):
    plan = _plan(folder, propagator={"backend": "neuron-traced", "precision": "single"})
    assert plan.resources == {"num_cpus": 1, "neuron_cores": 1}
    plan = _plan(folder, propagator={"backend": "neuron-traced"}, resources={"neuron_cores": 4})
    assert plan.resources == {"num_cpus": 1, "neuron_cores": 4}
    plan = _plan(folder, propagator={"backend": "neuron-traced"}, resources={"num_cpus": 4})
    assert plan.resources == {"num_cpus": 4, "neuron_cores": 1}, "more CPUs are not fewer cores"
    plan = _plan(folder, {"sources": [{"backend": "neuron-traced"}]})
    assert plan.resources == {"num_cpus": 1, "neuron_cores": 1}


def test_brackets_in_a_path_are_no_pattern_where_they_are_a_name(folder):
    inner = folder / "run[1]"
    inner.mkdir()
    for name in ("é β.ildg", "b[0].ildg"):
        (inner / name).write_bytes(b"")
    assert [t.name for t in _plan(inner).tasks] == ["b_0__s0_mass0.1", "é_β_s0_mass0.1"]
    assert len(_plan(inner, {"configurations": ["b[0].ildg"]}).tasks) == 1


def test_a_link_to_a_configuration_is_the_same_configuration(folder):
    (folder / "again.ildg").symlink_to(folder / "a.ildg")
    with pytest.raises(ParameterError, match="named twice"):
        _plan(folder)
    with pytest.raises(ParameterError, match="named twice"):
        _plan(folder, {"configurations": ["b.ildg", f"../{folder.name}/b.ildg"]})


@pytest.mark.parametrize(
    ("campaign", "tables", "error", "said"),
    [
        ({"massses": [0.1]}, {}, UnknownOptionError, "did you mean 'masses'"),
        ({}, {"propagators": {}}, UnknownOptionError, "did you mean 'propagator'"),
        ({}, {"propagator": {"tolerance": 1e-9}}, UnknownOptionError, "tolerance"),
        ({}, {"propagator": {"solver": "cgg"}}, ParameterError, "cgg"),
        ({}, {"propagator": {"mass": 0.2}}, ParameterError, "set by the campaign itself"),
        ({}, {"propagator": {"output": "x"}}, ParameterError, "set by the campaign itself"),
        ({}, {"resources": {"num_cpus": -1}}, ParameterError, "positive whole number, got -1"),
        ({}, {"resources": {"neuron_cores": 0.5}}, ParameterError, "positive whole number, got 0.5"),
        ({}, {"resources": {"num_cpus": True}}, ParameterError, "positive whole number"),
        ({"kappas": [0.12]}, {}, ParameterError, "either masses or kappas, got both"),
        ({"masses": []}, {}, ParameterError, "list of numbers"),
        ({"masses": ["light"]}, {}, ParameterError, "list of numbers"),
        ({"masses": [float("nan")]}, {}, ParameterError, "all finite"),
        ({"masses": [10**400]}, {}, ParameterError, "all finite"),
        ({"channels": []}, {}, ParameterError, "at least one"),
        ({"momenta": []}, {}, ParameterError, "at least one"),
        ({}, {"resources": {"CPU": 2}}, ParameterError, "called 'num_cpus' here"),
        ({"masses": [0.1, 0.1]}, {}, ParameterError, "two tasks"),
        ({"configurations": ["*.lime"]}, {}, FileError, "no configuration matches"),
        ({"configurations": ["a.ildg", "*.ildg"]}, {}, ParameterError, "named twice"),
        ({"configurations": "a.ildg"}, {}, ParameterError, "list of file names"),
        ({"sources": []}, {}, ParameterError, "at least one"),
        ({"channels": ["poin"]}, {}, ParameterError, "did you mean 'pion'"),
        ({"momenta": [[0, 0]]}, {}, ParameterError, "three whole numbers"),
        ({"retries": -1}, {}, ParameterError, "0 or more"),
        ({}, {"propagator": {"backend": "numpyy"}}, LQCDError, "did you mean 'numpy'"),
    ],
)
def test_mistakes_are_found_and_named(folder, campaign, tables, error, said):
    with pytest.raises(error) as found:
        _plan(folder, campaign, **tables)
    assert said in str(found.value)


def test_a_file_that_is_no_plan_is_refused(tmp_path):
    (tmp_path / "plan.toml").write_text("masses = [")
    with pytest.raises(FileFormatError, match="no TOML"):
        read_plan(tmp_path / "plan.toml")


def test_a_cluster_that_can_never_hold_a_task_is_refused():
    with pytest.raises(ParameterError, match="neuron_cores = 2 and no node has more than 0"):
        check_capacity([{"CPU": 8.0}], {"num_cpus": 1, "neuron_cores": 2})
    with pytest.raises(ParameterError, match="num_cpus = 16 and no node has more than 8"):
        check_capacity([{"CPU": 8.0}, {"CPU": 8.0}], {"num_cpus": 16})
    with pytest.raises(ParameterError, match="num_cpus = 4, neuron_cores = 1, which no node has together"):
        check_capacity([{"CPU": 8.0}, {"CPU": 2.0, "neuron_cores": 2.0}], {"num_cpus": 4, "neuron_cores": 1})
    check_capacity([{"CPU": 8.0}, {"CPU": 4.0, "neuron_cores": 2.0}], {"num_cpus": 4, "neuron_cores": 1})


def test_a_line_without_an_end_is_cut_off_and_nothing_else(tmp_path):
    path = tmp_path / "lines.jsonl"
    with LineFile(path) as lines:
        for k in range(3):
            lines.append({"k": k})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"k": 3')
    with LineFile(path) as lines:
        assert [r["k"] for r in lines.records] == [0, 1, 2]
        lines.append({"k": 4})
    assert path.read_bytes() == whole + b'{"k": 4}\n'


@pytest.mark.parametrize("damage", [b'{"k": 1\n', b"\x00\x00\n", b"[1]\n"])
def test_a_damaged_line_in_the_middle_is_named_and_nothing_is_changed(tmp_path, damage):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"k": 0}\n' + damage + b'{"k": 2}\n{"k"')
    before = path.read_bytes()
    with pytest.raises(FileFormatError, match="line 2 of"):
        LineFile(path)
    assert path.read_bytes() == before


def test_a_full_disk_is_said_and_the_half_line_is_cut_off_by_the_next(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    with LineFile(path) as lines:
        lines.append({"k": 0})
        write = os.write
        monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:5]))
        with pytest.raises(FileError, match="disk is full"):
            lines.append({"k": 1})
        monkeypatch.undo()
    with LineFile(path) as lines:
        assert lines.records == [{"k": 0}]

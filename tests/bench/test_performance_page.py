"""The performance page opens from the disk in a real browser: no error, no broken image, nothing from the network."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "asv_benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(f"lqcd_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


browser, page = load("browser"), load("page")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A page of a small sweep and of a folder as `asv publish` writes it: two commits, one combination without a number."""
    pytest.importorskip("asv", reason="the page is made of what asv publish writes")
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib")
    from lqcd_core.cli import main

    folder = tmp_path_factory.mktemp("page")
    words = "bench --lattice 2x2x2x2 --lattice 4x2x2x2 --batch 1,2 --backends numpy --precision double --rounds 1 --seconds 0.001"
    with pytest.raises(SystemExit) as left:
        main(
            [
                *words.split(),
                "--limit-seconds",
                "0.01",
                "--threads",
                "1",
                "-o",
                str(folder / "rows.jsonl"),
                "--plot",
                str(folder / "plots"),
            ]
        )
    assert left.value.code == 0
    state = {"machine": "here", "python": "3.11"}
    benchmark = {"params": [["'<numpy>'", "'native'"]], "param_names": ["backend"], "unit": "seconds"}
    single = {"params": [], "param_names": [], "unit": "GFLOP/s"}
    index = {
        "graph_param_list": [state], "revision_to_date": {"1": 1700000000000, "2": 1700000100000},
        "benchmarks": {"b.time_x": benchmark, "b.track_y": single},
    }  # fmt: skip
    asv = folder / "asv"
    for name, graph in (("b.time_x", [[1, [0.25, None]], [2, [0.0005, None]]]), ("b.track_y", [[2, 12.5]])):
        path = asv / page.graph_path(state, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(graph))
    (asv / "index.json").write_text(json.dumps(index))
    return page.build(asv, folder / "site", folder / "plots", folder / "rows.jsonl")


def test_the_page_says_what_was_measured(built):
    text = built.read_text()
    assert "500 us" in text and "12.5" in text and "&lt;numpy&gt;" in text and "1 combinations without" in text
    assert text.count("<polyline") == 1 and "GFLOP/s" in text and text.count("<img") == 3
    assert "http:" not in text and "https:" not in text


def test_the_page_opens_from_the_disk_in_a_browser(built, tmp_path):
    if browser.chromium() is None:
        pytest.skip("no chromium is installed")
    report = browser.look(built)
    assert browser.faults(report) == [] and len(report["images"]) == 3 and report["text"] > 500
    browser.screenshot(built, tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<img src='missing.png'>hello", "broken image"),
        ("<script>undefined_function()</script>hello", "undefined_function"),
        ("<script src='http://localhost:9/x.js'></script>hello", "not from the disk"),
        ("", "nothing is shown"),
    ],
)
def test_the_look_sees_what_is_wrong(tmp_path, body, fault):
    if browser.chromium() is None:
        pytest.skip("no chromium is installed")
    bad = tmp_path / "bad.html"
    bad.write_text(f"<!doctype html><html><head></head><body>{body}</body></html>")
    assert any(fault in f for f in browser.faults(browser.look(bad)))


def test_without_results_the_page_says_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["page.py", "--asv", str(tmp_path), "--output", str(tmp_path / "out")])
    assert page.main() == 2 and "asv publish" in capsys.readouterr().err

"""A stranger's distribution, installed out of tree: found, chosen, tested; and what happens when one is broken."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "plugins" / "lqcd-example"


def run(code_or_args, path, **environment):
    """A fresh interpreter away from the repository, with these folders on its path."""
    args = ["-c", code_or_args] if isinstance(code_or_args, str) else list(code_or_args)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "LQCD_BACKEND"))}
    variables.update(PYTHONPATH=os.pathsep.join(map(str, path)), PYTHONDONTWRITEBYTECODE="1", **environment)
    return subprocess.run(
        [sys.executable, *args], cwd=path[0], env=variables, capture_output=True, text=True, timeout=500
    )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The example plugin in a folder of its own, built from a copy so that the tree stays clean."""
    folder = tmp_path_factory.mktemp("example")
    source, target = folder / "source", folder / "site"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--target", str(target), str(source)], capture_output=True, text=True, timeout=300)
    if done.returncode and "No module named" in done.stderr:
        pytest.skip(f"pip or setuptools is missing here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return target


def test_it_is_found_by_its_entry_point_and_serves(installed):
    done = run(
        """
import sys, lqcd_core as lqcd
info = lqcd.backends()["example"]
assert "lqcd_example.backend" not in sys.modules, "asking what there is imported the backend"
print(info.origin)
g = lqcd.LatticeGeometry(T=4, Z=2, Y=2, X=2)
U, psi = lqcd.GaugeField.random(g, seed=1), lqcd.ColorSpinorField.gaussian(g, seed=2)
D = lqcd.WilsonDirac(mass=0.1)
with lqcd.use_backend("example"):
    ours = D(psi, U)
    told = lqcd.explain(D, U)
assert told.chosen == "example", told
with lqcd.use_backend("numpy"):
    theirs = D(psi, U)
print(abs(ours.array - theirs.array).max())
""",
        [installed],
    )
    assert done.returncode == 0, done.stderr
    origin, error = done.stdout.split("\n")[:2]
    assert "lqcd-example 0.1.0" in origin and float(error) < 1e-13


def test_its_conformance_file_passes_out_of_tree(installed):
    tests = installed.parent / "source" / "tests"
    done = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", str(tests)], [installed])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert " passed" in done.stdout and "failed" not in done.stdout


def test_it_sees_only_the_public_api():
    for file in EXAMPLE.rglob("*.py"):
        text = file.read_text()
        assert "lqcd_backends" not in text and "lqcd_core._" not in text, file


# -- a fake installed distribution, so that discovery is tested without pip ---------------------------------------------


def distribution(folder: Path, name: str, module: str, source: str) -> None:
    """An installed distribution ``name`` with one module and one entry point."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lqcd]\n{name} = {module}\n")
    (folder / f"{module}.py").write_text(source)


GOOD = """
from lqcd_core import BackendInfo, hookimpl

@hookimpl
def lqcd_register_backends():
    return [BackendInfo(name={name!r}, load="nowhere.at.all:Backend", precisions={{"double"}})]
"""


def test_a_broken_plugin_warns_and_the_rest_goes_on(tmp_path):
    distribution(tmp_path, "broken-plugin", "broken_plugin", "import no_such_runtime_anywhere\n")
    distribution(tmp_path, "good-plugin", "good_plugin", GOOD.format(name="good"))
    done = run("import lqcd_core; print(sorted(lqcd_core.backends()))", [tmp_path])
    assert done.returncode == 0, done.stderr
    assert "'good'" in done.stdout and "'numpy'" in done.stdout
    assert "broken-plugin (from broken-plugin 1.0) was left out: ModuleNotFoundError" in done.stderr


def test_two_plugins_with_one_name_is_an_error_that_names_both(tmp_path):
    distribution(tmp_path, "plugin-a", "plugin_a", GOOD.format(name="same"))
    distribution(tmp_path, "plugin-b", "plugin_b", GOOD.format(name="same"))
    done = run("import lqcd_core; lqcd_core.backends()", [tmp_path])
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "DuplicateBackendError" in last and "plugin-a 1.0" in last and "plugin-b 1.0" in last


def test_a_hook_that_does_not_fit_warns_and_is_left_out(tmp_path):
    source = GOOD.format(name="half") + "\n@hookimpl\ndef lqcd_rank_backends(question):\n    return []\n"
    distribution(tmp_path, "mismatch", "mismatch", source)
    done = run("import lqcd_core; print(sorted(lqcd_core.backends()))", [tmp_path])
    assert done.returncode == 0, done.stderr
    assert (
        "'half'" not in done.stdout
        and "mismatch (from mismatch 1.0) was left out: PluginValidationError" in done.stderr
    )


def test_the_environment_variable_names_a_backend_that_cannot_load(tmp_path):
    distribution(tmp_path, "good-plugin", "good_plugin", GOOD.format(name="good"))
    code = """
import lqcd_core as lqcd
U = lqcd.GaugeField.cold(lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2))
print(lqcd.explain(lqcd.WilsonDirac(mass=0.1), U))
lqcd.WilsonDirac(mass=0.1).bind(U)
"""
    done = run(code, [tmp_path], LQCD_BACKEND="good")
    assert re.search(r"good +cannot be imported: No module named 'nowhere'", done.stdout)
    last = done.stderr.strip().splitlines()[-1]
    assert (
        "BackendUnavailable: backend 'good' (named by the environment variable LQCD_BACKEND) cannot run 'wilson'"
        in last
    )

"""The core stays light and ignorant: what it imports, what it never names, and what the author's page must list."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import lqcd_core
from lqcd_core import backend, hookspecs

ROOT = Path(__file__).parents[2]
CORE = Path(lqcd_core.__file__).parent
SOURCES = sorted(CORE.rglob("*.py"))
HEAVY = ("torch", "h5py", "scipy", "matplotlib", "ml_dtypes", "click", "rich", "psutil", "pytest", "lqcd_backends")


def modules_after(code: str) -> set[str]:
    """Top-level modules loaded by a fresh interpreter that ran the code."""
    report = "\nimport sys; print('\\n'.join(sorted({m.partition('.')[0] for m in sys.modules})))"
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("LQCD_", "PYTHONPATH", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, env=variables, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_brings_in_numpy_attrs_pluggy_and_nothing_heavier():
    bare = modules_after("")  # whatever .pth files of this environment load
    numpy = modules_after("import numpy, attrs, pluggy")
    loaded = modules_after("import lqcd_core") - bare
    assert {"numpy", "attrs", "pluggy"} <= loaded
    strangers = loaded - numpy - set(sys.stdlib_module_names) - {"lqcd_core"}
    assert strangers == set(), f"import lqcd_core also loads {sorted(strangers)}"
    assert not loaded & set(HEAVY)


def test_asking_what_there_is_loads_no_runtime():
    code = """
import lqcd_core as lqcd
assert {"numpy", "torch"} <= set(lqcd.backends())
U = lqcd.GaugeField.cold(lqcd.LatticeGeometry(T=2, Z=2, Y=2, X=2))
print(lqcd.explain(lqcd.WilsonDirac(mass=0.1), U, backend="numpy"), file=__import__("sys").stderr)
lqcd.WilsonDirac(mass=0.1).bind(U, backend="numpy")
"""
    loaded = modules_after(code) - modules_after("")
    assert "torch" not in loaded and "h5py" not in loaded and "lqcd_backends" in loaded


def imports_of(path: Path) -> set[str]:
    """Top-level names of every import statement in a file, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.partition(".")[0])
    return found


def strings_and_names(path: Path) -> list[str]:
    """Identifiers and string constants of the code, docstrings left out."""
    tree = ast.parse(path.read_text())
    prose = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                prose.add(id(statement.value))  # docstrings, and the line under each attrs field
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            out.append(node.value)
        elif isinstance(node, ast.Name):
            out.append(node.id)
        elif isinstance(node, ast.Attribute):
            out.append(node.attr)
    return out


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CORE)))
def test_the_core_imports_no_backend_and_no_torch(path):
    assert not imports_of(path) & {"torch", "jax", "cupy", "lqcd_backends"}


def test_the_core_names_no_device():
    words = re.compile(r"\b(cuda|gpu|neuron|neuroncore|xla|trainium|inferentia|avx\d*|neon|mps|rocm)\b", re.IGNORECASE)
    for path in SOURCES:
        if path.name == "params.py":
            continue  # the face that carries the ancestor's NeuronCompileParam
        for text in strings_and_names(path):
            assert not words.search(text), f"{path.relative_to(CORE)} names a device: {text!r}"


def test_pytest_is_imported_by_the_testing_package_only():
    for path in SOURCES:
        if "testing" not in path.parts:
            assert "pytest" not in imports_of(path), path


def test_laws_and_loopback_work_without_pytest():
    code = """
from lqcd_core.testing.laws import Case, check
from lqcd_core.testing.loopback import register_loopback
with register_loopback():
    check("hopping_agrees_with_loops", Case(backend="loopback", precision="double"))
"""
    assert "pytest" not in modules_after(code)


# -- the author's page lists everything ----------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "write_a_backend.md").read_text() if (ROOT / "docs" / "write_a_backend.md").exists() else ""
HOOKS = [f for n, f in vars(hookspecs).items() if n.startswith("lqcd_")]
PROTOCOLS = [
    c for n, c in vars(backend).items() if inspect.isclass(c) and getattr(c, "_is_protocol", False) and n != "Protocol"
]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda f: f.__name__)
def test_every_hook_stands_on_the_page_with_its_signature(hook):
    names = ", ".join(inspect.signature(hook).parameters)
    assert f"{hook.__name__}({names})" in PAGE


@pytest.mark.parametrize(
    "record", [backend.BackendInfo, backend.Option, backend.Request, backend.Links, backend.SiteDiagonal]
)
def test_every_field_stands_on_the_page(record):
    for field in attrs.fields(record):
        assert f"`{field.name}`" in PAGE, f"{record.__name__}.{field.name} is not in docs/write_a_backend.md"


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda c: c.__name__)
def test_every_protocol_and_its_methods_stand_on_the_page(protocol):
    assert f"`{protocol.__name__}`" in PAGE
    for name, method in vars(protocol).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            names = [p for p in inspect.signature(method).parameters if p != "self"]
            assert f"{name}({', '.join(names)})" in PAGE, f"{protocol.__name__}.{name}({', '.join(names)})"


@pytest.mark.parametrize("feature", backend.FEATURES)
def test_every_feature_stands_on_the_page(feature):
    assert f"`{feature}`" in PAGE


def test_every_conformance_class_and_law_group_stands_on_the_page():
    from lqcd_core.testing import conformance

    for name in vars(conformance):
        if name.endswith("Conformance") and not name.startswith("_"):
            assert f"`{name}`" in PAGE


def test_the_example_on_the_page_is_the_example_plugin():
    example = ROOT / "plugins" / "lqcd-example"
    for path in (example / "lqcd_example" / "plugin.py", example / "tests" / "test_conformance.py"):
        code = path.read_text().split('"""')[-1].strip()
        assert code in PAGE, f"docs/write_a_backend.md and {path.name} have drifted apart"


# -- the user's page -----------------------------------------------------------------------------------------------------

CHOOSING = ROOT / "docs" / "choose_a_backend.md"


def test_every_backend_of_this_distribution_stands_in_the_table_with_its_precisions_and_options():
    rows = [line for line in CHOOSING.read_text().splitlines() if line.startswith("| `")]
    table = {row.split("`")[1]: row for row in rows}
    ours = {name: info for name, info in lqcd_core.backends().items() if "lqcd-core" in info.origin}
    assert set(ours) == set(table)
    for name, info in ours.items():
        for word in (*info.precisions, *(f"`{option}`" for option in info.options)):
            assert word in table[name], f"{word} is missing from the row of {name}"


def test_the_explanation_on_the_page_is_what_explain_prints():
    page = CHOOSING.read_text()
    U = lqcd_core.GaugeField.cold(lqcd_core.LatticeGeometry(T=4, Z=4, Y=4, X=4))
    with lqcd_core.use_backend(None):
        told = lqcd_core.explain(lqcd_core.WilsonDirac(mass=0.1), U, precision="single", n_rhs=12)
    if told.chosen != "torch":
        pytest.skip(f"torch does not serve here: {dict(told.rows)['torch']}")
    assert str(told) in page

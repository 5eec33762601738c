"""The stand-in's signatures and every call of the kernels against the published parameter names."""

import ast
import inspect
import json
import os
import sys
from enum import Enum
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import nki_sim  # noqa: E402
from nki_sim import isa, kernel, language, tensors  # noqa: E402

FACTS = json.loads((ROOT / "tests" / "support" / "nki_sim" / "nki_signatures.json").read_text())
KERNELS = sorted((ROOT / "backends" / "lqcd_backends" / "neuron" / "nki").glob("*.py"))
MANIFEST = "LQCD_NKI_MANIFEST"
SPACES = {"nki.isa": isa, "nki.language": language, "nki": kernel}


def implemented():
    """Published names that the stand-in has."""
    for name in FACTS["functions"]:
        space, _, short = name.rpartition(".")
        if callable(getattr(SPACES[space], short, None)):
            yield name


def printed(default):
    """A default as the pages print it."""
    if default is inspect.Parameter.empty:
        return None
    if default is ...:
        return "..."
    if isinstance(default, Enum):
        return f"{type(default).__name__}.{default.name}"
    if hasattr(default, "_nki"):
        return default._nki
    if isinstance(default, language.MemoryRegion) or default == "uint8":
        return str(default)
    return repr(default)


def parameters(function):
    return [[p.name, p.kind.name.lower(), printed(p.default)] for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", list(implemented()))
def test_a_function_has_the_published_parameters(name):
    space, _, short = name.rpartition(".")
    assert parameters(getattr(SPACES[space], short)) == FACTS["functions"][name]["params"]


@pytest.mark.parametrize("name", FACTS["methods"])
def test_a_tensor_method_has_the_published_parameters(name):
    method = getattr(tensors.NkiTensor, name)
    assert parameters(method)[1:] == FACTS["methods"][name]["params"]


def test_what_the_stand_in_offers_is_published():
    """A function of nki.isa that no page knows would let a kernel pass here and fail on the device."""
    own = {n for n, f in vars(isa).items() if inspect.isfunction(f) and f.__module__ == isa.__name__ and n[0] != "_"}
    assert {f"nki.isa.{n}" for n in own} <= set(FACTS["functions"])
    own = {n for n, f in vars(language).items() if inspect.isfunction(f) and f.__module__ == language.__name__}
    from nki_sim import operators

    known = set(operators._BINARY) | set(operators._BITS) | set(operators._UNARY)
    assert {f"nki.language.{n}" for n in own if n[0] != "_" and n not in known} <= set(FACTS["functions"])


def test_enough_of_nki_is_covered():
    assert len(list(implemented())) >= 70


@pytest.mark.skipif(
    not os.environ.get(MANIFEST), reason=f"{MANIFEST} names no manifest of the whole published interface"
)
def test_the_facts_in_the_repository_are_those_of_the_manifest():
    manifest = json.loads(Path(os.environ[MANIFEST]).read_text())
    assert FACTS["header"]["nki_version"] == manifest["meta"]["nki_version"]

    def triples(entry):
        return [[p["name"], p["kind"], p.get("default")] for p in entry["params"]]

    for name, facts in FACTS["functions"].items():
        assert facts["params"] == triples(manifest["functions"][name]), name
        assert facts["targets"] == manifest["functions"][name]["targets"], name
    methods = manifest["classes"]["nki.language.NkiTensor"]["methods"]
    assert {n: f["params"] for n, f in FACTS["methods"].items()} == {n: triples(f) for n, f in methods.items()}


# -- calls of the kernels -----------------------------------------------------------------------------------------------


def nki_names(tree):
    """Local name -> published name, from the imports of a file: ``import nki.isa as nisa``, ``from nki import language as nl``."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.name.split(".")[0] == "nki":
                    names[a.asname or a.name.split(".")[0]] = a.name if a.asname else "nki"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nki" and node.level == 0:
            for a in node.names:
                names[a.asname or a.name] = f"{node.module}.{a.name}"
    return names


def published(node, names):
    """The published name that a call's function has, or None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *reversed(parts)])


def complaints(source, file):
    """Every call that the published parameters do not admit."""
    tree = ast.parse(source)
    names, out = nki_names(tree), []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, at = published(node.func, names), f"{file}:{node.lineno}"
        if name is not None:
            if name not in FACTS["functions"]:
                out.append(f"{at}: {name} is not published")
                continue
            params, what = FACTS["functions"][name]["params"], name
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "ap":
            params, what = FACTS["methods"]["ap"]["params"], "ap"
        else:
            continue
        known = [p[0] for p in params]
        if any(kind == "var_keyword" for _, kind, _ in params):
            known += [k.arg for k in node.keywords]
        positional = sum(kind == "positional_or_keyword" for _, kind, _ in params)
        stars = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
        if len(node.args) > positional:
            out.append(f"{at}: {what} takes {positional} positional arguments, {len(node.args)} given")
        given = known[: len(node.args)] + [k.arg for k in node.keywords if k.arg]
        for word in given:
            if word not in known:
                out.append(f"{at}: {what} has no parameter {word!r} (it has {known})")
        if len(set(given)) != len(given):
            out.append(f"{at}: {what} is given an argument twice")
        needed = {p[0] for p in params if p[2] is None and p[1] == "positional_or_keyword"}
        if not stars and needed - set(given):
            out.append(f"{at}: {what} lacks {sorted(needed - set(given))}")
    return out


@pytest.mark.parametrize("file", KERNELS, ids=lambda f: f.name)
def test_every_nki_call_of_the_backend_uses_published_names(file):
    assert complaints(file.read_text(), file.name) == []


@pytest.mark.parametrize(
    "line, said",
    [
        ("nisa.tensor_copy(dst=a, source=b)", "no parameter 'source'"),
        ("nisa.tensor_copy(a)", "lacks ['src']"),
        ("nisa.tensor_copy(a, b, c, d, e)", "positional"),
        ("nisa.tensor_add(a, b)", "not published"),
        ("nl.ndarray((1, 2), nl.float32, shape=3)", "twice"),
        ("nl.dynamic_load(a)", "not published"),
        ("t.ap([[1, 2]], scale=3)", "no parameter 'scale'"),
    ],
)
def test_the_check_of_calls_sees_a_wrong_call(line, said):
    source = f"import nki.isa as nisa\nimport nki.language as nl\n{line}\n"
    assert any(said in c for c in complaints(source, "x")), complaints(source, "x")


def test_the_stand_in_does_not_shadow_a_real_wheel(monkeypatch):
    class Wheel:
        pass

    monkeypatch.setitem(sys.modules, "nki", Wheel())
    with pytest.raises(RuntimeError, match="does not shadow"):
        nki_sim.install()


@pytest.mark.skipif(nki_sim.real_wheel(), reason="a real nki is installed")
def test_the_stand_in_leaves_no_module_behind():
    with nki_sim.installed():
        import nki
        import nki.isa
        import nki.language as nl

        assert nki.STAND_IN and nl.ndarray is language.ndarray and nki.isa is isa
    assert "nki" not in sys.modules and "nki.isa" not in sys.modules

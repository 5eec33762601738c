"""Documentation that runs: code blocks marked ``runnable``, docstring examples, the README, and every relative link.

A block that opens with three backticks and ``python runnable`` is executed, the blocks of one page in one namespace with
``lqcd``, ``np`` and the names of ``lqcd_core``; ``python runnable torch`` needs torch and is skipped without it.
"""

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

import lqcd_core as lqcd

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "backends/lqcd_backends/*/*.md", "plugins/*/*.md", "asv_benchmarks/*.md")
    for page in ROOT.glob(pattern)
)
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[list[str], str, int]]:
    """(info words, code, line) of every fenced block of a page."""
    text = page.read_text(encoding="utf-8")
    return [(m["info"].split(), m["code"], text.count("\n", 0, m.start()) + 2) for m in BLOCK.finditer(text)]


def runnable(page: Path):
    return [(info, code, line) for info, code, line in blocks(page) if info[:2] == ["python", "runnable"]]


def namespace() -> dict:
    """What examples may use: everything exported, numpy as np, and the package as lqcd."""
    names = {name: getattr(lqcd, name) for name in lqcd.__all__}
    return {**names, "np": np, "lqcd": lqcd}


@pytest.mark.parametrize("page", [p for p in PAGES if runnable(p)], ids=lambda p: p.name)
def test_runnable_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = namespace()
    if any("torch" in info for info, _, _ in runnable(page)):
        names["torch"] = pytest.importorskip("torch")
    for _, code, line in runnable(page):
        # blank lines in front: a traceback then names the line of the page
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def test_the_readme_runs_on_a_small_configuration(tmp_path, monkeypatch):
    """The first block of the README, word for word, with its cfg.ildg made beforehand."""
    monkeypatch.chdir(tmp_path)
    lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=1).write("cfg.ildg", format="ildg")
    _, code, _ = next(b for b in blocks(ROOT / "README.md") if b[0][:1] == ["python"])
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["C"].shape == (4,) and (names["C"] > 0).all()


# -- links ------------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of the headings of a page."""
    out = set()
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#+ +(.*)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
        out.add(plain.replace(" ", "-"))
    return out


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_resolve(page):
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        where = (page.parent / path).resolve() if path else page
        if not where.exists() or (anchor and where.suffix == ".md" and anchor not in anchors(where)):
            broken.append(target)
    assert not broken, f"{page.name} points to {broken}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_tests_named_by_a_page_exist(page):
    """`tests/x.py::test_y`, `test_z` (in the file named last) and plain `tests/x.py`."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    missing, current = [], None
    for name in re.findall(r"`((?:tests/[\w/]+\.py)(?:::\w+)?|test_\w+)`", text):
        path, _, function = name.partition("::")
        if path.startswith("tests/"):
            beside = page.parent / path  # a plugin's page names the plugin's tests
            current = beside if beside.exists() else ROOT / path
        else:
            function = path
        if current is None or not current.exists():
            missing.append(name)
        elif function and not re.search(rf"def {function}\(", current.read_text(encoding="utf-8")):
            missing.append(name)
    assert not missing, f"{page.name} names {missing}, which do not exist"


# -- docstrings -------------------------------------------------------------------------------------------------------


def modules() -> list[str]:
    """Every module of the core and of the built-in backends, by name."""
    import lqcd_backends

    found = []
    for package in (lqcd, lqcd_backends):
        found.append(package.__name__)
        found += [
            m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda _: None)
        ]
    return [name for name in found if not name.endswith("__main__")]


# Modules that need an optional package, by the package: their examples are skipped without it.
NEEDS = {
    "lqcd_backends.torch": "torch", "lqcd_core.io.hdf5": "h5py", "lqcd_core.cli": "click",
    **{
        f"lqcd_backends.neuron.nki.{kernels}": "nki"
        for kernels in ("vector_kernel", "tensor_kernel", "blas_kernels", "microbenchmarks")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name, tmp_path, monkeypatch):
    for prefix, package in NEEDS.items():
        if name == prefix or name.startswith(prefix + "."):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    said: list[str] = []
    for test in finder.find(module, name, globs={**namespace(), **vars(module)}):
        runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)

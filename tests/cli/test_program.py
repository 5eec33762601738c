"""The program: help is light, errors are one line with the right code, settings come from files."""

import subprocess
import sys

import pytest


def one_line(text: str) -> bool:
    return len(text.strip().splitlines()) == 1


def test_help_names_every_command(lqcd):
    from lqcd_core.cli.program import COMMANDS

    out = lqcd("--help").stdout
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", ["backends", "info", "convert", "generate", "propagator", "spectrum", "selftest"])
def test_every_command_has_help_and_the_common_options(lqcd, name):
    out = lqcd(name, "--help").stdout
    assert "--config" in out and "--debug" in out


def test_importing_the_library_imports_no_command_line_package():
    code = "import sys, lqcd_core, lqcd_core.cli; print([m for m in ('click', 'rich', 'h5py', 'matplotlib') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_help_of_the_program_imports_nothing_heavy():
    code = (
        "import sys\nfrom lqcd_core.cli import main\n"
        "try: main(['propagator', '--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'h5py', 'matplotlib', 'psutil') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip().splitlines()[-1] == "[]"


def test_without_click_the_command_says_what_to_install():
    code = "import sys\nsys.modules['click'] = None\nfrom lqcd_core.cli import main\nmain(['info', 'x'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "lqcd-core[cli]" in done.stderr and one_line(done.stderr)


@pytest.mark.parametrize(("package", "words", "extra"), [
    ("rich", "backends", "cli"), ("h5py", "propagator {cfg} --mass 1 -q -o {out}.h5", "io"),
    ("h5py", "spectrum {cfg}.h5 -o {out}", "io"), ("matplotlib", "spectrum {cfg}.h5 -q -o {out}", "plot"),
    ("torch", "propagator {cfg} --mass 1 -q -o {out}.h5 --backend torch", "torch"),
])  # fmt: skip
def test_a_missing_package_is_named_with_the_extra_that_brings_it(configuration, tmp_path, package, words, extra):
    (tmp_path / "c.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "c").write_bytes(configuration.read_bytes())
    words = words.format(cfg=tmp_path / "c", out=tmp_path / "out").split()
    code = (
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {package!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
        f"from lqcd_core.cli import main\nmain({words!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and f"lqcd-core[{extra}]" in done.stderr and one_line(done.stderr), done.stderr
    assert not list(tmp_path.glob("out*"))


def test_an_unknown_command_is_refused_with_the_nearest_name(lqcd):
    result = lqcd("spectrun", code=2)
    assert "did you mean 'spectrum'" in result.stderr and one_line(result.stderr)


def test_an_unknown_option_is_refused_with_the_nearest_name(lqcd, configuration):
    result = lqcd("propagator", configuration, "--kapa", "0.1", code=2)
    assert "--kappa" in result.stderr and one_line(result.stderr)


def test_a_missing_file_is_one_line_and_no_traceback(lqcd):
    result = lqcd("info", "/nowhere/cfg.lime", code=2)
    assert "no such file" in result.stderr and one_line(result.stderr) and "Traceback" not in result.stderr


def test_debug_shows_the_traceback_in_either_place(lqcd):
    assert "Traceback" in lqcd("info", "/nowhere/cfg.lime", "--debug", code=2).stderr
    assert "Traceback" in lqcd("--debug", "info", "/nowhere/cfg.lime", code=2).stderr


def test_a_bug_shows_its_traceback_and_is_a_failure(lqcd, configuration, monkeypatch):
    import lqcd_core.io

    monkeypatch.setattr(lqcd_core.io, "inspect_gauge", lambda *a, **k: 1 / 0)
    result = lqcd("info", configuration, code=1)
    assert "ZeroDivisionError" in result.stderr and "this is a bug" in result.stderr


def test_a_closed_pipe_is_no_traceback(configuration):
    words = f"{sys.executable} -c 'from lqcd_core.cli import main; main()' info {configuration} | head -c 1"
    done = subprocess.run(words, shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_a_closed_stream_is_no_bug(configuration, closed):
    program = f'{sys.executable} -c "from lqcd_core.cli import main; main()"'
    for words in ("backends", f"info {configuration}"):
        done = subprocess.run(f"{program} {words} {closed}", shell=True, capture_output=True, text=True)
        assert done.returncode == 0 and "Traceback" not in done.stderr + done.stdout


# -- settings ----------------------------------------------------------------------------------------------------------


def write(path, text):
    path.write_text(text)
    return path


def test_a_file_gives_what_the_command_line_leaves_out(lqcd, tmp_path):
    config = write(tmp_path / "a.toml", 'precision = "single"\noperator = "clover"\nlattice = [4, 2, 2, 2]\n')
    out = lqcd("backends", "--config", config).stdout
    assert "'clover' in single on (4, 2, 2, 2)" in out
    out = lqcd("backends", "--config", config, "--precision", "double").stdout
    assert "'clover' in double" in out


def test_a_table_belongs_to_its_command_and_one_file_holds_a_whole_job(lqcd, tmp_path):
    config = write(
        tmp_path / "job.toml", '[backends]\nn-rhs = 3\n[spectrum]\nchannel = ["pion"]\n[propagator]\nkappa = 0.12\n'
    )
    assert "with 3 right-hand sides" in lqcd("backends", "--config", config).stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("precison = 'single'", "precision"),
        ("[backends]\nn_rhss = 1", "n_rhs"),
        ("[propagator]\nkapa = 0.1", "kappa"),
        ("[backend]\nn_rhs = 1", "backend"),
        ("verbose = 3", "true or false"),
        ("n_rhs = true", "true or false"),
        ("n_rhs =", "no TOML file"),
        ("n_rhs = 1.5", "a whole number"),
        ("n_rhs = '3'", "a whole number"),
        ("n_rhs = [3]", "a whole number"),
        ("precision = 1979-05-27", "text in quotes"),
        ("backend = 3", "text in quotes"),
        ("[propagatr]\nkappa = 0.1", "did you mean 'propagator'?"),
        ("[propagator]\ntol = [1e-8]", "a number"),
        ("[spectrum]\nchannel = ['pion', 3]", "text in quotes"),
    ],
)
def test_a_wrong_key_or_value_in_a_file_is_refused(lqcd, tmp_path, text, says):
    result = lqcd("backends", "--config", write(tmp_path / "a.toml", text), code=2)
    assert says in result.stderr and one_line(result.stderr)


def test_values_with_parts_are_checked():
    import click

    from lqcd_core.cli.settings import LATTICE, SITE, Assignment, Boundary

    assert SITE.convert("1, 2,3,4", None, None) == (1, 2, 3, 4)
    assert SITE.convert([1, 2, 3, 4], None, None) == (1, 2, 3, 4)
    assert LATTICE.convert("16x8x8x8", None, None) == (16, 8, 8, 8)
    assert Boundary().convert("-1,1,1,0.6+0.8i", None, None) == (-1, 1, 1, 0.6 + 0.8j)
    assert Assignment().convert("block-size=4", None, None) == ("block_size", 4)
    assert Assignment().convert("device=cpu", None, None) == ("device", "cpu")
    for kind, wrong in (
        (SITE, "1,2,3"),
        (SITE, "1,2,3,x"),
        (SITE, [1.5, 0, 0, 0]),
        (LATTICE, "16,8,8,8"),
        (Assignment(), "x"),
    ):
        with pytest.raises(click.BadParameter):
            kind.convert(wrong, None, None)

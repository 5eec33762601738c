"""The command runner of the command's tests, for the tests of ``lqcd bench``."""

from __future__ import annotations

import pytest

click_testing = pytest.importorskip("click.testing", reason="the command needs click")
pytest.importorskip("rich", reason="the command needs rich")


@pytest.fixture
def lqcd():
    """Run ``lqcd WORDS`` in this process; the result has exit_code, stdout, stderr."""
    from lqcd_core.cli.program import program

    try:
        runner = click_testing.CliRunner(mix_stderr=False)
    except TypeError:  # newer click always keeps them apart
        runner = click_testing.CliRunner()

    def run(*words, code=0):
        result = runner.invoke(program, [str(w) for w in words])
        assert result.exit_code == code, f"code {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return result

    return run

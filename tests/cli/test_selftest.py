"""``lqcd selftest``: passes here, fails where something is wrong, and its generated fields are Grid's."""

import json

import numpy as np
import pytest

from lqcd_core.cli import published


def test_the_reference_passes_and_the_table_says_what_ran(lqcd):
    out = lqcd("selftest", "--backend", "numpy").stdout
    for word in (
        "numpy",
        "python",
        "memory",
        "Grid: norm2 M psi, clover",
        "free pion, solved",
        "gauge covariance",
        "passed:",
    ):
        assert word in out
    assert "FAILED" not in out


def test_a_wrong_number_is_a_failure(lqcd, monkeypatch):
    monkeypatch.setattr(published, "FREE_PION", (0.84, *published.FREE_PION[1:]))
    data = json.loads(lqcd("selftest", "--backend", "numpy", "--json", code=1).stdout)
    wrong = {c["name"] for c in data["checks"] if not c["ok"]}
    assert not data["passed"] and wrong == {"free pion, momentum sum", "free pion, solved"}


def test_a_broken_backend_is_a_failure_with_its_error_not_the_end(lqcd, monkeypatch):
    from lqcd_backends.numpy.backend import NumpyBackend

    def broken(self, links, space):
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setattr(NumpyBackend, "hopping", broken)
    out = lqcd("selftest", "--backend", "numpy", "-q", code=1).stdout
    assert "broken on purpose" in out and "FAILED:" in out


def test_an_unknown_backend_is_a_mistake(lqcd):
    assert "did you mean 'numpy'" in lqcd("selftest", "--backend", "nunpy", code=2).stderr


@pytest.mark.parametrize(
    ("file", "make", "shape"),
    [
        ("8x8x8x8.U.bin", lambda: published.grid_links()[..., ::-1, :, :], (8, 8, 8, 8, 4, 3, 3)),
        ("8x8x8x8.psi.bin", published.grid_spinor, (8, 8, 8, 8, 4, 3)),
    ],
)
def test_the_generated_fields_are_grids(test_data, file, make, shape):
    theirs = np.fromfile(test_data / "grid_8888" / file, complex).reshape(shape)
    np.testing.assert_allclose(make(), theirs, atol=1e-14)

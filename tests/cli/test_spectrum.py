"""``lqcd spectrum``: numbers of the library, ensembles, refusals, and a picture with what it should have."""

import csv

import attrs
import numpy as np
import pytest

from lqcd_core.free_field import free_propagator
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.hadrons import effective_mass_jackknife, jackknife, meson_correlator, nucleon_correlator
from lqcd_core.io import read_correlators, write_propagator

pytest.importorskip("matplotlib")
GEOMETRY = LatticeGeometry(T=8, Z=2, Y=2, X=2)
COUNT = 4


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    """Free propagators with noise, as if of four configurations, and their files."""
    folder, rng, out = tmp_path_factory.mktemp("ensemble"), np.random.default_rng(3), []
    for k in range(COUNT):
        S = free_propagator(GEOMETRY, mass=0.4)
        S.array *= np.exp(0.05 * rng.normal(size=(8, 1, 1, 1, 1, 1, 1, 1)))
        S.provenance["links_digest"] = f"configuration {k}"
        out.append((S, write_propagator(S, folder / f"s{k}.h5")))
    return out


def rows(path, channel):
    with open(path, newline="") as f:
        return [r for r in csv.DictReader(f) if r["channel"] == channel]


def numbers(found, column):
    return np.array([float(r[column]) if r[column] else np.nan for r in found])


def test_an_ensemble_gives_the_librarys_means_and_errors(lqcd, ensemble, tmp_path):
    paths = [p for _, p in ensemble]
    out = lqcd("spectrum", *paths, "-c", "pion", "-c", "nucleon", "-o", tmp_path / "s").stdout
    assert "4 configurations, jackknife errors" in out
    pions = np.stack([meson_correlator(S) for S, _ in ensemble])
    mean, mass = jackknife(pions.real), effective_mass_jackknife(pions.real, "cosh")
    found = rows(tmp_path / "s.csv", "pion")
    np.testing.assert_allclose(numbers(found, "correlator"), mean.value, rtol=1e-12)
    np.testing.assert_allclose(numbers(found, "correlator_error"), mean.error, rtol=1e-9)
    np.testing.assert_allclose(numbers(found, "effective_mass"), mass.value, rtol=1e-9)
    np.testing.assert_allclose(numbers(found, "effective_mass_error"), mass.error, rtol=1e-9)
    nucleons = np.stack([nucleon_correlator(S) for S, _ in ensemble]).real
    np.testing.assert_allclose(
        numbers(rows(tmp_path / "s.csv", "nucleon"), "correlator"), nucleons.mean(axis=0), rtol=1e-12
    )
    stored, about = read_correlators(tmp_path / "s.h5")
    np.testing.assert_allclose(stored["pion/p_0_0_0"].values, pions, rtol=1e-12)
    assert stored["pion/p_0_0_0"].attributes["gamma"] == [15]
    assert [e["links_digest"] for e in about["ensemble"]] == [f"configuration {k}" for k in range(COUNT)]
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


def test_one_configuration_has_no_errors_and_says_so(lqcd, ensemble, tmp_path):
    out = lqcd("spectrum", ensemble[0][1], "-c", "pion", "-o", tmp_path / "s", "--plot", "none").stdout
    assert "no statistical errors" in out
    assert all(r["correlator_error"] == "" == r["effective_mass_error"] for r in rows(tmp_path / "s.csv", "pion"))
    assert not (tmp_path / "s.png").exists()


def test_sources_of_one_configuration_are_averaged_not_counted_twice(lqcd, ensemble, tmp_path):
    (A, a), (B, _) = ensemble[:2]
    B = attrs.evolve(B, provenance=dict(A.provenance), source={"kind": "point", "position": [4, 0, 0, 0], "time": 4})
    b = write_propagator(B, tmp_path / "b.h5")
    out = lqcd("spectrum", a, b, "-c", "pion", "-o", tmp_path / "s", "--plot", "none").stdout
    assert "one configuration" in out
    want = (meson_correlator(A) + meson_correlator(B)).real / 2
    np.testing.assert_allclose(numbers(rows(tmp_path / "s.csv", "pion"), "correlator"), want, rtol=1e-12)
    result = lqcd("spectrum", a, a, "-c", "pion", "-o", tmp_path / "t", code=2)
    assert "same configuration with the same source" in result.stderr


def test_momenta_and_channels_are_those_asked_for(lqcd, ensemble, tmp_path):
    S, path = ensemble[0]
    lqcd(
        "spectrum",
        path,
        "-c",
        "rho",
        "-c",
        "delta",
        "-p",
        "0,0,0",
        "-p",
        "1,0,0",
        "-o",
        tmp_path / "s",
        "--plot",
        "none",
    )
    stored, _ = read_correlators(tmp_path / "s.h5")
    assert set(stored) == {f"{c}/p_{n}_0_0" for c in ("rho", "delta") for n in (0, 1)}
    want = sum(meson_correlator(S, gamma_sink=n, momentum=(1, 0, 0)) for n in (1, 2, 4)) / 3
    np.testing.assert_allclose(stored["rho/p_1_0_0"].values[0], want, atol=1e-15)


def test_bins_are_counted(lqcd, ensemble, tmp_path):
    paths = [p for _, p in ensemble]
    assert (
        "over 2 bins"
        in lqcd("spectrum", *paths, "-c", "pion", "--bin-size", 2, "-o", tmp_path / "s", "--plot", "none").stdout
    )
    assert (
        "no errors"
        in lqcd("spectrum", *paths, "-c", "pion", "--bin-size", 4, "-o", tmp_path / "t", "--plot", "none").stdout
    )
    assert "bin of 5" in lqcd("spectrum", *paths, "--bin-size", 5, "-o", tmp_path / "u", code=2).stderr


def test_different_calculations_are_refused(lqcd, ensemble, tmp_path):
    S = free_propagator(GEOMETRY, mass=0.5)
    S.provenance["links_digest"] = "other"
    other = write_propagator(S, tmp_path / "other.h5")
    S, path = ensemble[0]
    operator = attrs.evolve(S, provenance={**S.provenance, "operator": {"mass": 0.5}, "links_digest": "x"})
    other = write_propagator(operator, tmp_path / "other.h5")
    result = lqcd("spectrum", path, other, "-o", tmp_path / "s", code=2)
    assert "no part of the same ensemble" in result.stderr and "operator" in result.stderr


def test_every_output_can_be_named(lqcd, ensemble, tmp_path):
    names = ("-o", tmp_path / "c.h5", "--csv", tmp_path / "p.csv", "--plot", tmp_path / "m.pdf")
    lqcd("spectrum", ensemble[0][1], "-c", "pion", *names, "-q")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.h5", "m.pdf", "p.csv"]
    assert (
        "suffix" in lqcd("spectrum", ensemble[0][1], "-o", tmp_path / "d", "--plot", tmp_path / "m.jpg", code=2).stderr
    )


def test_mistakes_are_refused(lqcd, ensemble, configuration, tmp_path):
    path = ensemble[0][1]
    assert "did you mean 'pion'" in lqcd("spectrum", path, "-c", "poin", "-o", tmp_path / "s", code=2).stderr
    assert lqcd("spectrum", configuration, "-o", tmp_path / "s", code=2).stderr.count("\n") == 1
    (tmp_path / "s.csv").write_text("precious")
    assert "--force" in lqcd("spectrum", path, "-o", tmp_path / "s", code=2).stderr
    assert (tmp_path / "s.csv").read_text() == "precious"


def test_an_input_is_never_an_output(lqcd, ensemble, tmp_path):
    path = tmp_path / "mine.h5"
    path.write_bytes(ensemble[0][1].read_bytes())
    (tmp_path / "link.h5").symlink_to(path)
    before = path.read_bytes()
    for name in ("mine", "link"):
        result = lqcd("spectrum", path, "-o", tmp_path / name, "--force", code=2)
        assert "is an input of this command" in result.stderr and path.read_bytes() == before
    result = lqcd("spectrum", path, "-o", tmp_path / "s", "--csv", tmp_path / "s.h5", code=2)
    assert "two outputs" in result.stderr
    for wrong, says in ((("-o", tmp_path / "no" / "s"), "directory does not exist"), (("--bin-size", 0), "bin of 0"), (
            ("--bin-size", 2), "bin of 2")):  # fmt: skip
        result = lqcd("spectrum", path, "-o", tmp_path / "s", *wrong, code=2)
        assert says in result.stderr and "contractions" not in result.stderr


@pytest.mark.parametrize(("kind", "magic"), [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_plot_is_the_same_file_for_the_same_numbers(lqcd, ensemble, tmp_path, kind, magic):
    for name in "ab":
        lqcd("spectrum", ensemble[0][1], "-c", "pion", "-o", tmp_path / name, "--plot", kind, "-q")
    a, b = ((tmp_path / f"{n}.{kind}").read_bytes() for n in "ab")
    assert a.startswith(magic) and a == b


def test_the_picture_has_a_log_axis_error_bars_and_labels(ensemble, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    from lqcd_core.cli import plot
    from lqcd_core.cli.channels import chosen
    from lqcd_core.cli.spectrum import _estimates

    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, f, **k: kept.append(self))
    channels = chosen(["pion", "nucleon"])
    samples = [
        {("pion", (0, 0, 0)): meson_correlator(S), ("nucleon", (0, 0, 0)): nucleon_correlator(S)} for S, _ in ensemble
    ]
    results = _estimates(samples, channels, [(0, 0, 0)], None, 1)
    plot.plot_spectrum(tmp_path / "a.png", results, "title", "note")
    above, below = kept[0].axes
    assert above.get_yscale() == "log" and below.get_yscale() == "linear"
    assert "t/a" in below.get_xlabel() and "m_" in below.get_ylabel() and "lattice units" in above.get_ylabel()
    assert len(above.containers) == 2 and all(c.has_yerr for c in [*above.containers, *below.containers])
    low, high = below.get_ylim()
    assert low < results[0].mass[3] < high


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.34567, 0.00123, "0.3457(12)"),
        (0.34567, 0.000996, "0.3457(10)"),
        (12.34, 4.5, "12.3(45)"),
        (1234.0, 56.0, "1234(56)"),
    ],
)
def test_errors_are_written_in_the_last_digits(value, error, text):
    from lqcd_core.cli.spectrum import _with_error

    assert _with_error(value, error) == text

"""Configurations written by other codes: plaquettes, link traces, Polyakov loops and checksums that those codes (or an
independent reader) found. Each row names the repository the file comes from."""

import numpy as np
import pytest

from lqcd_core import errors
from lqcd_core.fields import Propagator
from lqcd_core.gamma import basis_rotation
from lqcd_core.gauge import plaquettes
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import inspect_gauge, read_gauge, read_gauge_slab, read_propagator, read_spinor, sniff, write_spinor

FOUR = {nc: LatticeGeometry(T=4, Z=4, Y=4, X=4, nc=nc) for nc in (2, 3, 4)}

# file, source, format, (X, Y, Z, T), plaquette, ss, st, link trace, temporal Polyakov loop; None where nothing is known
CONFIGURATIONS = [
    ("analysistoolbox/nersc.l8t4b3360", "LatticeQCD/AnalysisToolbox", "nersc", (8, 8, 8, 4),
     0.503866446950, 0.502524597594, 0.505208296306, 0.005406083858, 0.11635624 - 0.01097925j),
    ("analysistoolbox/ildg.l8t4b3360", "LatticeQCD/AnalysisToolbox", "ildg", (8, 8, 8, 4),
     0.503866446950, None, None, None, None),
    ("chroma/t_nersc.cfg", "JeffersonLab/chroma", "nersc", (4, 4, 4, 4),
     0.038242289324, 0.044165726654, 0.032318851994, 0.463032209838, 0.04228115 - 0.02651604j),
    ("qdpxx/t_dprec_ildg.lime", "usqcd-software/qdpxx", "ildg", (4, 4, 4, 4),
     0.038242289410, 0.044165726447, 0.032318852372, 0.463032210005, 0.04228115 - 0.02651604j),
    ("qlua/random-gauge.nersc", "usqcd-software/qlua", "nersc", (4, 4, 4, 8),
     0.994764948814, 0.994801004866, 0.994728892763, 0.379317699078, 0.87953918 - 0.01044028j),
    ("pyquda/weak_field.lime", "CLQCD/PyQUDA", "ildg", (4, 4, 4, 8),
     0.994804132267, 0.994798578341, 0.994809686192, 0.379449348715, 0.87876950 - 0.00991386j),
    ("milc/GF_555_6.1", "milc-qcd/milc_qcd", "nersc", (6, 6, 6, 6),
     0.501745775251, 0.504971572945, 0.498519977557, 0.732285830915, -0.04872401 - 0.01368038j),
    ("milc/lat.sample.l4444", "lukaszdaniel/fermiqcd", "milc", (4, 4, 4, 4),
     0.594850158947, 0.598225052025, 0.591475265869, 0.646758737419, 0.43123036 - 0.00081776j),
    ("milc/lat.sample.l4444.ildg", "lukaszdaniel/fermiqcd", "ildg", (4, 4, 4, 4),
     0.594850158947, 0.598225052025, 0.591475265869, 0.646758737419, 0.43123036 - 0.00081776j),
    ("milc/lat.sample.l4444.scidac", "lukaszdaniel/fermiqcd", "scidac", (4, 4, 4, 4),
     0.594850158947, 0.598225052025, 0.591475265869, 0.646758737419, 0.43123036 - 0.00081776j),
    ("milc/lat.sample.inst", "milc-qcd/milc_qcd", "milc", (4, 4, 4, 4),
     0.991009270758, 0.991009270758, 0.991009270758, 0.9916278, None),
    ("hirep/openQCD_qcd1_pb_L8T8_b6.0_c1.234_k0.13_r0_id4n1", "claudiopica/HiRep", "openqcd", (8, 8, 8, 8),
     0.001669681144, -0.000113670398, 0.003453032686, -0.000022162127, 0.00741147 - 0.00404663j),
    ("latticeqcdjl/HMC_b5.7_su3.ildg", "akio-tomiya/LatticeQCD.jl", "ildg", (4, 4, 4, 4),
     0.568215750149, 0.567651115018, 0.568780385279, 0.001833158049, 0.29950251 - 0.02984233j),
    ("latticeqcdjl/HMC_b5.7_su2.ildg", "akio-tomiya/LatticeQCD.jl", "ildg", (4, 4, 4, 4),
     0.476138110632, 0.470971881046, 0.481304340219, -0.003824022160, -0.09846579),
    ("latticeqcdjl/HMC_b5.7_su4.ildg", "akio-tomiya/LatticeQCD.jl", "ildg", (4, 4, 4, 4),
     0.340241044963, 0.339793524159, 0.340688565768, 0.004327687551, 0.01664184 + 0.01311908j),
    ("lyncs/unity.lime", "Lyncs-API/lyncs.io", "ildg", (4, 4, 4, 4), 1.0, 1.0, 1.0, 1.0, 1.0),
]  # fmt: skip

# checksums that the files store, all of which the data must reproduce
STORED = {
    "analysistoolbox/nersc.l8t4b3360": {"checksum": "b379560a"},
    "analysistoolbox/ildg.l8t4b3360": {"suma": "10d0ea1a", "sumb": "a6a1b3b8"},
    "chroma/t_nersc.cfg": {"checksum": "717938df"},
    "qdpxx/t_dprec_ildg.lime": {"suma": "e6ca40a6", "sumb": "59cdeef1"},
    "qlua/random-gauge.nersc": {"checksum": "337cf07b"},
    "pyquda/weak_field.lime": {"suma": "a2c41090", "sumb": "11193c39"},
    "milc/GF_555_6.1": {"checksum": "bcf2ae1f"},
    "milc/lat.sample.l4444": {"sum29": "02352c05", "sum31": "d137321d"},
    "milc/lat.sample.l4444.ildg": {"suma": "37affb9c", "sumb": "2fc07bbf"},
    "milc/lat.sample.l4444.scidac": {"suma": "37affb9c", "sumb": "2fc07bbf"},
    "lyncs/unity.lime": {"suma": "35b49a1b", "sumb": "b49a1b35"},
}


def geometry_for(name):
    return FOUR[int(name[-6])] if name.startswith("latticeqcdjl") else None


@pytest.mark.parametrize("row", CONFIGURATIONS, ids=[r[0].rpartition("/")[2] for r in CONFIGURATIONS])
def test_configuration_has_the_numbers_of_the_code_that_wrote_it(test_data, row):
    name, _, format, (x, y, z, t), plaq, ss, st, trace, polyakov = row
    path = test_data / name
    assert sniff(path) == format
    report = inspect_gauge(path, geometry=geometry_for(name))
    assert report.ok and report.format == format
    g = report.geometry
    assert (g.X, g.Y, g.Z, g.T) == (x, y, z, t)
    assert report.plaquette == pytest.approx(plaq, abs=6e-13)
    for found, want in ((report.plaquette_ss, ss), (report.plaquette_st, st)):
        if want is not None:
            assert found == pytest.approx(want, abs=6e-13)
    if trace is not None:
        assert report.link_trace == pytest.approx(trace, abs=6e-8 if trace == 0.9916278 else 6e-13)
    if polyakov is not None:
        assert abs(report.polyakov["t"] - polyakov) < 1e-8
    checks = {c.name: c for c in report.checks}
    assert STORED.get(name, {}) == {
        k: c.stored for k, c in checks.items() if k in ("checksum", "suma", "sumb", "sum29", "sum31") and c.stored
    }
    assert all(checks[k].ok is True and checks[k].found == v for k, v in STORED.get(name, {}).items())

    U = read_gauge(path, geometry=geometry_for(name))
    assert U.precision.name == report.precision
    assert U.digest() == report.digest == U.origin["digest"]


def test_weak_field_planes_and_spatial_polyakov_loops(test_data):
    U = read_gauge(test_data / "pyquda/weak_field.lime")
    want = dict(
        zip(
            ("xy", "xz", "yz", "xt", "yt", "zt"),
            (0.994703591180344, 0.994926821130017, 0.994764904802044,
             0.994693187065423, 0.99485390773043, 0.994881552488854),
        )
    )  # fmt: skip
    found = plaquettes(U)
    # Chroma ran in single precision when it printed these
    assert all(abs(found[k] - v) < 2e-7 for k, v in want.items())
    report = inspect_gauge(test_data / "pyquda/weak_field.lime")
    assert abs(report.polyakov["x"] - (0.966585880 - 0.001320887j)) < 2e-7
    assert abs(report.polyakov["y"] - (0.966365776 - 0.001234990j)) < 2e-7
    assert abs(report.polyakov["z"] - (0.967146148 - 0.001123099j)) < 2e-7


def test_one_field_in_three_formats_is_one_field(test_data):
    milc, ildg, scidac = (read_gauge(test_data / f"milc/lat.sample.l4444{s}").array for s in ("", ".ildg", ".scidac"))
    assert (milc == ildg).all() and (milc == scidac).all()
    a = read_gauge(test_data / "analysistoolbox/nersc.l8t4b3360").array
    b = read_gauge(test_data / "analysistoolbox/ildg.l8t4b3360").array
    assert np.abs(a - b).max() < 1e-14
    single = read_gauge(test_data / "chroma/t_nersc.cfg").array
    double = read_gauge(test_data / "qdpxx/t_dprec_ildg.lime").array
    assert np.abs(single - double).max() < 2e-6


@pytest.mark.parametrize(
    ("name", "checksum"), [("milc/lat.sample.l4444", "ffc4bb26"), ("milc/lat.sample.inst", "a0e19040")]
)
def test_nersc_checksum_that_milc_prints_for_its_own_files(test_data, tmp_path, name, checksum):
    # MILC's .info text gives the sum of the words of rows 0 and 1, which is what a two-row archive file would store
    from lqcd_core.io import write_gauge

    U = read_gauge(test_data / name)
    write_gauge(U, tmp_path / "two.nersc", rows=2)
    stored = {c.name: c for c in inspect_gauge(tmp_path / "two.nersc").checks}["checksum"]
    write_gauge(U, tmp_path / "three.nersc")
    whole = {c.name: c for c in inspect_gauge(tmp_path / "three.nersc").checks}["checksum"]
    assert checksum in (stored.stored, whole.stored)


def test_schroedinger_functional_sample_is_refused_and_says_why(test_data):
    path = test_data / "milc/lat.sample.5p7"
    with pytest.raises(errors.ChecksumError, match=r"sum29.*sum31"):
        read_gauge(path)
    with pytest.raises(errors.NonUnitaryLinksError):
        read_gauge(path, check="off")
    U = read_gauge(path, check="off", check_links=False)
    assert inspect_gauge(path).plaquette == pytest.approx(0.572689272204, abs=6e-13)
    a = U.to("double").array
    off = np.abs(a.conj().swapaxes(-1, -2) @ a - np.eye(3)).max(axis=(-1, -2)) > 1e-5
    assert int(off.sum()) == 192


def test_open_boundaries_are_named_not_called_damage(test_data):
    path = test_data / "openqcd_dslash/gauge.bc_0.bin"
    with pytest.raises(errors.NonUnitaryLinksError, match="open boundary"):
        read_gauge(path)
    U = read_gauge(path, check_links=False)
    assert not U.array[-1, ..., 0, :, :].any()
    assert U.origin["plaquette"]["ok"] is True


def test_file_without_a_lattice_asks_for_one(test_data):
    path = test_data / "latticeqcdjl/HMC_b5.7_su3.ildg"
    with pytest.raises(errors.FileFormatError, match="geometry="):
        read_gauge(path)
    with pytest.raises(errors.FileFormatError, match="147456"):
        read_gauge(path, geometry=FOUR[2])
    with pytest.raises(errors.GeometryError):
        read_gauge(test_data / "pyquda/weak_field.lime", geometry=FOUR[3])


def test_slab_of_another_codes_file_is_that_part_of_it(test_data):
    for name in ("pyquda/weak_field.lime", "qlua/random-gauge.nersc", "milc/lat.sample.l4444"):
        whole = read_gauge(test_data / name).array
        assert (read_gauge_slab(test_data / name, 1, 3) == whole[1:3]).all()


def test_openqcd_spinors_keep_their_norm_and_bytes(test_data, tmp_path):
    path = test_data / "openqcd_dslash/src.bc_0.bin"
    assert sniff(path) == "openqcd-spinor"
    psi = read_spinor(path)
    assert psi.array.shape == (4, 4, 4, 4, 4, 3)
    write_spinor(psi, tmp_path / "back.bin")
    a, b = (np.frombuffer(p.read_bytes()[28:], "<f8") for p in (path, tmp_path / "back.bin"))
    assert (a == b).all()
    chiral = read_spinor(path, basis="chiral")
    want = np.einsum("ij,...jc->...ic", basis_rotation("degrand-rossi", "chiral"), psi.array)
    assert np.abs(chiral.array - want).max() == 0


def test_lalibe_propagators_have_nested_elements(test_data):
    path = test_data / "lalibe/test_propagator_t4.h5"
    with pytest.raises(errors.FileFormatError, match=r"PS_dn_4.*PS_up_4"):
        read_propagator(path)
    S = read_propagator(path, dataset="/sh_sig2p0_n5/PS_up_4")
    assert isinstance(S, Propagator)
    assert S.array.shape == (8, 4, 4, 4, 4, 4, 3, 3) and S.basis == "degrand-rossi"
    assert "<Mass>0.1</Mass>" in S.provenance["attributes"]["record_xml"]
    # a pion correlator is positive and falls away from the source slice, t = 4, on both sides
    pion = np.sum(np.abs(S.array) ** 2, axis=tuple(range(1, 8)))
    assert pion.argmax() == 4 and (np.diff(pion[4:]) < 0).all() and (np.diff(pion[:5]) > 0).all()

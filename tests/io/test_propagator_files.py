"""Propagators and correlators on disk."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

from lqcd_core import errors
from lqcd_core.fields import Propagator
from lqcd_core.gamma import basis_rotation
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import (
    FileCheckWarning,
    StoredCorrelator,
    read_correlators,
    read_propagator,
    sniff,
    write_correlators,
    write_propagator,
)
from lqcd_core.io.checksum import SiteXorChecksum
from lqcd_core.io.lime import scan

GEOMETRY = LatticeGeometry(T=4, Z=3, Y=2, X=2)
SOURCE = {"kind": "point", "position": {"t": 0, "z": 1, "y": 0, "x": 1}, "momentum": [0, 0, 1]}
PROVENANCE = {
    "operator": {"kind": "clover", "kappa": 0.125, "csw": 1.0, "boundary": [-1, 1, 1, 1]},
    "solver": {"name": "ConjugateGradient", "tol": 1e-10, "maxiter": None},
    "configuration": {"checksum": "0123abcd"},
    "program": "lqcd_core", "seed": 3, "backend": "numpy", "threads": 1, "converged": True,
}  # fmt: skip


def numbers(geometry=GEOMETRY, dtype=complex, seed=0):
    rng = np.random.default_rng(seed)
    shape = (*geometry.shape, 4, 4, geometry.nc, geometry.nc)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


@pytest.fixture
def propagator():
    return Propagator(GEOMETRY, numbers(), source=dict(SOURCE), provenance=dict(PROVENANCE))


@pytest.mark.parametrize("name", ["s.h5", "s.hdf5", "s.lime", "s.scidac"])
@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
@pytest.mark.parametrize("nc", [2, 3])
def test_propagator_comes_back_bit_by_bit_with_its_history(tmp_path, name, dtype, nc):
    g = LatticeGeometry(T=4, Z=3, Y=2, X=2, nc=nc)
    S = Propagator(g, numbers(g, dtype), source=dict(SOURCE), provenance=dict(PROVENANCE))
    R = read_propagator(write_propagator(S, tmp_path / name))
    assert R.geometry == g and R.array.dtype == dtype and R.array.tobytes() == S.array.tobytes()
    assert R.source == SOURCE and R.provenance == PROVENANCE and R.basis == "degrand-rossi"


def test_precision_asked_for(tmp_path, propagator):
    for name in ("s.h5", "s.lime"):
        path = write_propagator(propagator, tmp_path / name, precision="single")
        R = read_propagator(path)
        assert R.array.dtype == np.complex64 and (R.array == propagator.array.astype(np.complex64)).all()
        assert read_propagator(path, precision="double").array.dtype == np.complex128
        with pytest.raises(errors.ParameterError, match="double or single"):
            write_propagator(propagator, tmp_path / name, precision="half")


def test_hdf5_file_explains_itself_to_plain_h5py(tmp_path, propagator):
    path = write_propagator(propagator, tmp_path / "s.h5")
    with h5py.File(path) as f:
        d = f["propagator"]
        assert d.shape == (4, 3, 2, 2, 4, 4, 3, 3) and (d[()] == propagator.array).all()
        raw = d.id.get_type()  # a compound {r, i}, as every reader of complex HDF5 data expects
        assert raw.get_class() == h5py.h5t.COMPOUND and [raw.get_member_name(i) for i in (0, 1)] == [b"r", b"i"]
        assert f.attrs["schema_version"] == 1 and f.attrs["format"] == "lqcd_core propagator"
        assert d.attrs["basis"] == "degrand-rossi" and d.attrs["normalization"].startswith("mass")
        assert d.attrs["index_order"].split()[4:] == ["sink_spin", "source_spin", "sink_color", "source_color"]
        assert f["provenance/operator"].attrs["kappa"] == 0.125
        assert f["provenance/operator"].attrs["boundary"].tolist() == [-1, 1, 1, 1]
        assert f["provenance"].attrs["backend"] == "numpy" and f["source/position"].attrs["z"] == 1


def test_equal_propagators_are_equal_files(tmp_path, propagator):
    a, b = (write_propagator(propagator, tmp_path / n).read_bytes() for n in ("a.h5", "b.h5"))
    assert a == b


def test_scidac_file_has_the_layout_of_qdp(tmp_path, propagator):
    path = write_propagator(propagator, tmp_path / "s.lime")
    assert sniff(path) == "scidac-propagator"
    records = {r.type: r for r in scan(path)}
    raw = path.read_bytes()
    private = raw[records["scidac-private-record-xml"].offset :][: records["scidac-private-record-xml"].length]
    assert b"<datatype>QDP_D3_DiracPropagator</datatype>" in private and b"<typesize>2304</typesize>" in private
    g, (t, z, y, x) = GEOMETRY, (2, 1, 0, 1)
    site = ((t * g.Z + z) * g.Y + y) * g.X + x
    data = np.frombuffer(raw, ">c16", 144, records["scidac-binary-data"].offset + site * 2304)
    k = 0
    for sink in range(4):
        for source in range(4):
            for a in range(3):
                for b in range(3):
                    assert data[k] == propagator.array[t, z, y, x, sink, source, a, b]
                    k += 1


def test_other_bases_are_written_as_themselves_or_rotated(tmp_path, propagator):
    D = propagator.to_basis("dirac-pauli")
    R = read_propagator(write_propagator(D, tmp_path / "d.h5"))
    assert R.basis == "dirac-pauli" and R.array.tobytes() == D.array.tobytes()
    for name in ("d.lime", "d.npy"):  # formats whose readers expect DeGrand-Rossi
        R = read_propagator(write_propagator(D, tmp_path / name))
        assert R.basis == "degrand-rossi" and np.abs(R.array - propagator.array).max() < 1e-14
    with pytest.raises(errors.ParameterError, match="says its basis"):
        read_propagator(tmp_path / "d.h5", basis="chiral")


def test_basis_and_normalization_of_foreign_files_are_the_callers_word(tmp_path, propagator):
    path = write_propagator(propagator, tmp_path / "s.npy")
    assert sniff(path) == "npy" and read_propagator(path).array.tobytes() == propagator.array.tobytes()
    assert read_propagator(path, basis="dirac-pauli").basis == "dirac-pauli"
    S = read_propagator(path, normalization="kappa", kappa=0.125)
    assert np.abs(S.array - 0.25 * propagator.array).max() == 0
    rotated = read_propagator(path, basis="dirac-pauli").to_basis("degrand-rossi").array
    r = basis_rotation("dirac-pauli", "degrand-rossi")
    want = np.einsum("ij,...jkab,lk->...ilab", r, propagator.array, r.conj())
    assert np.abs(rotated - want).max() < 1e-14
    for bad in ({"normalization": "kappa"}, {"kappa": 0.1}, {"normalization": "kapa"}, {"basis": "dgr"}):
        with pytest.raises(errors.ParameterError):
            read_propagator(path, **bad)


def test_pyquda_group_and_its_sums(tmp_path):
    path, array = tmp_path / "q.h5", numbers()
    sums = SiteXorChecksum(2304)
    sums.update(array.reshape(-1).view(np.uint8))
    with h5py.File(path, "w") as f:
        group = f.create_group("LatticePropagator")
        group.attrs["Lattice"] = "2 2 3 4"
        d = group.create_dataset("0", data=array)
        d.attrs.update(sums.result())
    assert read_propagator(path).array.tobytes() == array.tobytes()
    with h5py.File(path, "r+") as f:
        f["LatticePropagator/0"][1, 1, 1, 1, 0, 0, 0, 0] = 7
    with pytest.raises(errors.ChecksumError, match="sum29"):
        read_propagator(path)


@pytest.mark.parametrize("names", [("r", "i"), ("real", "imag"), ("re", "im")])
def test_complex_compounds_by_any_name(tmp_path, names):
    array = numbers()
    pairs = np.empty(array.shape, np.dtype([(names[0], "<f8"), (names[1], "<f8")]))
    pairs[names[0]], pairs[names[1]] = array.real, array.imag
    with h5py.File(tmp_path / "c.h5", "w") as f:
        f["p"] = pairs
    assert read_propagator(tmp_path / "c.h5").array.tobytes() == array.tobytes()


def flip(path, at):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x01
    path.write_bytes(bytes(raw))


def test_flipped_bit_is_noticed(tmp_path, propagator):
    h5, lime = (write_propagator(propagator, tmp_path / n) for n in ("s.h5", "s.lime"))
    with h5py.File(h5) as f:
        offset = f["propagator"].id.get_offset()
    flip(h5, offset + 5000)
    flip(lime, next(r.offset for r in scan(lime) if r.type == "scidac-binary-data") + 5000)
    for path in (h5, lime):
        with pytest.raises(errors.ChecksumError, match="damaged"):
            read_propagator(path)
        with pytest.warns(FileCheckWarning):
            read_propagator(path, check="warn")
        assert (read_propagator(path, check="off").array != propagator.array).sum() == 1


def test_truncated_missing_and_foreign_files(tmp_path, propagator):
    with pytest.raises(errors.FileError, match="no such file"):
        read_propagator(tmp_path / "none.h5")
    for name in ("s.h5", "s.lime", "s.npy"):
        path = write_propagator(propagator, tmp_path / name)
        path.write_bytes(path.read_bytes()[:-3000])
        with pytest.raises(errors.TruncatedFileError):
            read_propagator(path)
    (tmp_path / "empty.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 500)
    with pytest.raises(errors.FileError):
        read_propagator(tmp_path / "empty.h5")
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f["x"] = np.zeros(3)
    with pytest.raises(errors.FileFormatError, match="no propagator"):
        read_propagator(tmp_path / "other.h5")


def test_several_propagators_need_a_choice(tmp_path):
    with h5py.File(tmp_path / "two.h5", "w") as f:
        f["a/up"], f["a/down"] = numbers(seed=1), numbers(seed=2)
    with pytest.raises(errors.FileFormatError, match=r"a/down.*a/up"):
        read_propagator(tmp_path / "two.h5")
    assert read_propagator(tmp_path / "two.h5", dataset="/a/up").array.tobytes() == numbers(seed=1).tobytes()
    with pytest.raises(errors.FileFormatError, match="has no propagator 'b'"):
        read_propagator(tmp_path / "two.h5", dataset="b")


def test_newer_schema_and_numbers_that_are_not_finite(tmp_path, propagator):
    path = write_propagator(propagator, tmp_path / "s.h5")
    with h5py.File(path, "r+") as f:
        f.attrs["schema_version"] = 99
    with pytest.raises(errors.FileFormatError, match="version 99"):
        read_propagator(path)
    propagator.array[0, 0, 0, 0, 0, 0, 0, 0] = np.nan
    with pytest.raises(errors.FileFormatError, match="not finite"):
        read_propagator(write_propagator(propagator, tmp_path / "nan.h5"))


def test_names_and_types_are_checked(tmp_path, propagator):
    with pytest.raises(errors.ParameterError, match="suffix"):
        write_propagator(propagator, tmp_path / "s.dat")
    with pytest.raises(errors.ParameterError, match="did you mean 'hdf5'"):
        write_propagator(propagator, tmp_path / "s", format="hdf")
    with pytest.raises(errors.ParameterError, match="Propagator"):
        write_propagator(propagator.array, tmp_path / "s.h5")
    with pytest.raises(errors.ParameterError, match="drop it"):
        read_propagator(write_propagator(propagator, tmp_path / "s.lime"), dataset="x")


def test_full_disk_while_hdf5_writes_leaves_the_old_file(tmp_path):
    path = tmp_path / "s.h5"
    path.write_bytes(b"old")
    code = """
import resource, sys
import numpy as np
from lqcd_core.errors import FileError
from lqcd_core.fields import Propagator
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import write_propagator
g = LatticeGeometry(T=4, Z=4, Y=4, X=4)
S = Propagator(g, np.ones((*g.shape, 4, 4, 3, 3), complex))
import h5py
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_propagator(S, sys.argv[1])
except FileError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.stdout.startswith("FileError cannot write") and done.stdout.count("\n") == 1, done.stdout + done.stderr
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_correlators_come_back_with_their_attributes(tmp_path):
    rng = np.random.default_rng(1)
    pion, proton = rng.normal(size=8), rng.normal(size=(2, 8)) + 1j * rng.normal(size=(2, 8))
    about = {"sink": "gamma5", "momentum": [0, 1, 0], "source_t": 3, "nested": {"a": None}}
    path = write_correlators(
        tmp_path / "c.h5", {"meson/pion": StoredCorrelator(pion, about), "proton": proton}, PROVENANCE
    )
    read, provenance = read_correlators(path)
    assert set(read) == {"meson/pion", "proton"} and provenance == PROVENANCE
    assert read["meson/pion"].values.tobytes() == pion.tobytes() and read["meson/pion"].attributes == about
    assert read["proton"].values.tobytes() == proton.tobytes() and read["proton"].attributes == {}
    with h5py.File(path) as f:
        assert f["correlators/meson/pion"].attrs["sink"] == "gamma5"
        assert f.attrs["schema_version"] == 1


def test_correlators_of_other_codes_and_refusals(tmp_path):
    with h5py.File(tmp_path / "l.h5", "w") as f:
        f["proton/spin_up/x0_y0_z0_t0/px0_py0_pz0"] = np.arange(4) + 1j
    read, _ = read_correlators(tmp_path / "l.h5")
    assert list(read) == ["proton/spin_up/x0_y0_z0_t0/px0_py0_pz0"]
    for bad in ({}, {"": np.zeros(3)}, {"a": np.zeros(3, int)}, {"a": np.float64(1.0)}):
        with pytest.raises(errors.ParameterError):
            write_correlators(tmp_path / "bad.h5", bad)
    assert not (tmp_path / "bad.h5").exists()

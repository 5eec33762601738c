"""A propagator file filled by several writers."""

import h5py
import numpy as np
import pytest

from lqcd_core import errors
from lqcd_core.fields import Propagator
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.io import lay_out_propagator, read_propagator, write_propagator

GEOMETRY = LatticeGeometry(T=4, Z=2, Y=2, X=2)
SOURCE, PROVENANCE = {"kind": "point", "position": [0, 1, 0, 1]}, {"operator": {"kappa": 0.125}, "seconds": 1.5}


def numbers(dtype=complex):
    rng = np.random.default_rng(3)
    shape = (*GEOMETRY.shape, 4, 4, 3, 3)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def laid_out(path, dtype=complex):
    return lay_out_propagator(path, GEOMETRY, dtype, basis="degrand-rossi", source=SOURCE, provenance=PROVENANCE)


@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
def test_parts_in_any_order_are_the_file_of_one_writer(dtype, tmp_path):
    array = numbers(dtype)
    layout = laid_out(tmp_path / "parts.h5", dtype)
    last, first = layout.write(3, array[3:]), layout.write(0, array[:3])
    layout.seal(first + last)
    write_propagator(Propagator(GEOMETRY, array, source=SOURCE, provenance=PROVENANCE), tmp_path / "one.h5")
    parts, one = (read_propagator(tmp_path / name) for name in ("parts.h5", "one.h5"))
    assert np.array_equal(parts.array, array) and parts.array.dtype == one.array.dtype == dtype
    assert (parts.source, parts.provenance, parts.basis) == (one.source, one.provenance, one.basis)
    with h5py.File(tmp_path / "parts.h5") as a, h5py.File(tmp_path / "one.h5") as b:
        assert set(a) == set(b) and set(a["propagator"].attrs) == set(b["propagator"].attrs)
        assert (a.attrs["schema_version"], b.attrs["schema_version"]) == (2, 1)


def test_a_damaged_bit_of_a_part_is_found(tmp_path):
    layout = laid_out(tmp_path / "s.h5")
    layout.seal(layout.write(0, numbers()))
    with open(tmp_path / "s.h5", "rb+") as f:
        f.seek(layout.offset + 5000)
        byte = f.read(1)[0]
        f.seek(layout.offset + 5000)
        f.write(bytes([byte ^ 4]))
    with pytest.raises(errors.ChecksumError, match="digest"):
        read_propagator(tmp_path / "s.h5")


def test_parts_that_do_not_fit_are_refused(tmp_path):
    layout, array = laid_out(tmp_path / "s.h5"), numbers()
    with pytest.raises(errors.ParameterError, match="outside"):
        layout.write(2, array)
    with pytest.raises(errors.FieldShapeError):
        layout.write(0, array[..., :2])
    with pytest.raises(errors.ParameterError, match="time slice 1 is not finite"):
        layout.write(1, np.full_like(array[:1], np.nan))
    with pytest.raises(errors.ParameterError, match="1 slices were written of 4"):
        layout.seal(layout.write(0, array[:1]))
    with pytest.raises(errors.FileFormatError):  # no digest: it was never finished
        read_propagator(tmp_path / "s.h5")
    (tmp_path / "s.h5").unlink()
    with pytest.raises(errors.FileError, match="same file system"):
        layout.write(0, array)
    with pytest.raises(errors.FileError, match="directory"):
        laid_out(tmp_path / "nowhere" / "s.h5")


def test_a_string_of_another_kind_is_stored_as_its_letters(tmp_path):
    class Version(str):
        """As the version of torch is."""

    S = Propagator(GEOMETRY, numbers(), provenance={"backend_facts": {"torch": Version("2.13.0")}})
    assert read_propagator(write_propagator(S, tmp_path / "s.h5")).provenance["backend_facts"]["torch"] == "2.13.0"

"""Layouts, codes and prototypes of libnrt as its headers (SDK 2.32) have them, and as the C compiler sees them."""

import ctypes
import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import nki_machine
from lqcd_backends.neuron.nki import libnrt, status
from lqcd_backends.neuron.nki.neff import HEADER, NeffHeader, read_header

from lqcd_core.errors import BackendUnavailable, LQCDError

LAYOUTS = {
    "nrt_tensor_info_t": (296, {"name": 0, "usage": 256, "size": 264, "dtype": 272, "shape": 280, "ndim": 288}),
    "nrt_tensor_info_array_t": (8, {"tensor_count": 0, "tensors": 8}),
    "nrt_version_t": (224, {"major": 0, "minor": 8, "patch": 16, "maintenance": 24, "rt_detail": 32, "git_hash": 160}),
    "nrt_model_info_t": (4, {"vnc": 0}),
    "nrt_instance_info_t": (32, {"family": 0, "size": 4, "arch_name": 8, "device_revision": 24}),
    "nrt_tensor_batch_op_t": (24, {"offset": 0, "size": 8, "buffer": 16}),
    "nrt_tensor_batch_t": (24, {"tensor": 0, "ops": 8, "num_ops": 16}),
    "nrt_tensor_device_allocation_info_t": (24, {"physical_address": 0, "size": 8, "hbm_index": 16}),
    "nrt_vnc_memory_stats_t": (16, {"bytes_used": 0, "bytes_limit": 8}),
    "nrt_cc_comm_t": (32, {"replica_group": 0, "rank": 8, "rank_n": 12, "ctx_device_id": 16, "ctx_device_count": 20, "vnc": 24}),
    "nrt_tensor_list_t": (16, {"tensors": 0, "num_tensors": 8}),
    "nrta_error_t": (16, {"seq_id": 0, "error_code": 8}),
}  # fmt: skip
STRUCTURES = {
    "nrt_tensor_info_t": libnrt.TensorInfo, "nrt_tensor_info_array_t": libnrt.TensorInfoArray, "nrt_version_t": libnrt.Version,
    "nrt_model_info_t": libnrt.ModelInfo, "nrt_instance_info_t": libnrt.InstanceInfo, "nrt_tensor_batch_op_t": libnrt.TensorBatchOp,
    "nrt_tensor_batch_t": libnrt.TensorBatch, "nrt_tensor_device_allocation_info_t": libnrt.DeviceAllocationInfo,
    "nrt_vnc_memory_stats_t": libnrt.MemoryStats, "nrt_cc_comm_t": libnrt.CommInfo, "nrt_tensor_list_t": libnrt.TensorList,
    "nrta_error_t": libnrt.AsyncError,
}  # fmt: skip
CODES = {
    "SUCCESS": 0, "FAILURE": 1, "INVALID": 2, "INVALID_HANDLE": 3, "RESOURCE": 4, "TIMEOUT": 5, "HW_ERROR": 6, "QUEUE_FULL": 7,
    "LOAD_NOT_ENOUGH_NC": 9, "UNSUPPORTED_NEFF_VERSION": 10, "FAIL_HOST_MEM_ALLOC": 11, "UNINITIALIZED": 13, "CLOSED": 14, "QUEUE_EMPTY": 15,
    "EXEC_UNIT_UNRECOVERABLE": 101, "EXEC_BAD_INPUT": 1002, "EXEC_COMPLETED_WITH_NUM_ERR": 1003, "EXEC_COMPLETED_WITH_ERR": 1004,
    "EXEC_NC_BUSY": 1005, "EXEC_OOB": 1006, "COLL_PENDING": 1100, "EXEC_HW_ERR_COLLECTIVES": 1200, "EXEC_HW_ERR_HBM_UE": 1201,
    "EXEC_HW_ERR_NC_UE": 1202, "EXEC_HW_ERR_DMA_ABORT": 1203, "EXEC_SW_NQ_OVERFLOW": 1204, "EXEC_HW_ERR_REPAIRABLE_HBM_UE": 1205,
    "NETWORK_PROXY_FAILURE": 1206,
}  # fmt: skip
DTYPES = {
    1: "uint64",
    2: "int8",
    3: "uint8",
    4: "int16",
    5: "uint16",
    6: "bfloat16",
    7: "float16",
    8: "int32",
    9: "uint32",
    10: "float32",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_structures_lie_as_in_the_header(name):
    size, offsets = LAYOUTS[name]
    structure = STRUCTURES[name]
    assert ctypes.sizeof(structure) == size
    assert {f: getattr(structure, f).offset for f in offsets} == offsets
    assert list(offsets) == [f[0] for f in structure._fields_]


def test_the_c_compiler_agrees_about_every_structure():
    text = ctypes.create_string_buffer(8192)
    nki_machine.library(nki_machine.build()).lqcd_standin_layout(text, len(text))
    found = {}
    for line in text.value.decode().splitlines():
        name, size, *rest = line.split()
        found[name] = (int(size), dict(zip(rest[::2], map(int, rest[1::2]))))
    assert found == LAYOUTS


def test_an_array_of_tensor_infos_starts_after_the_count():
    assert ctypes.sizeof(libnrt.TensorInfo * 3) == 3 * 296 and libnrt.TensorInfoArray.tensors.offset == 8


def test_every_status_code_is_known_and_named():
    assert {s.name: s.code for s in status.STATUS.values()} == CODES
    assert {k: libnrt.DTYPES[k] for k in DTYPES} == DTYPES


@pytest.mark.parametrize("code", CODES.values())
def test_every_status_is_an_exception_with_advice(code):
    if code == 0:
        return status.raise_for(0, "nrt_execute")
    if code == 1003:
        with pytest.warns(status.NumericalWarning, match="1003"):
            return status.raise_for(code, "nrt_execute")
    with pytest.raises(status.NeuronRuntimeError) as caught:
        status.raise_for(code, "nrt_execute", "M on (4, 4, 4, 4)")
    error, said = caught.value, str(caught.value)
    assert isinstance(error, LQCDError) and error.code == code
    assert f"returned {code} ({status.STATUS[code].name}) for M on (4, 4, 4, 4)" in said
    assert len(status.STATUS[code].advice) > 10 and status.STATUS[code].advice in said


def test_statuses_are_of_the_kind_a_caller_expects():
    kinds = {2: ValueError, 4: MemoryError, 11: MemoryError, 5: TimeoutError, 9: BackendUnavailable, 10: BackendUnavailable,
             1005: BackendUnavailable, 1202: status.NeuronHardwareError, 13: status.NeuronStateError}  # fmt: skip
    for code, kind in kinds.items():
        with pytest.raises(kind):
            status.raise_for(code, "f")
    for unused in (8, 12, 4711):
        with pytest.raises(status.NeuronRuntimeError, match="not known here"):
            status.raise_for(unused, "f")


def test_only_numbers_seen_by_the_device_become_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [c for c in CODES.values() if _warns(c)] == [1003]


def _warns(code):
    try:
        status.raise_for(code, "f")
    except Warning:
        return True
    except LQCDError:
        return False
    return False


def test_prototypes_return_a_status_or_what_the_header_says():
    other = {"nrt_close": None, "nrt_tensor_free": None, "nrt_destroy_tensor_set": None, "nrt_tensor_get_size": ctypes.c_size_t,
             "nrt_tensor_get_va": ctypes.c_void_p, "nrt_get_status_as_str": ctypes.c_char_p, "nrta_error_tracker_destroy": None}  # fmt: skip
    prototypes = {**libnrt.PROTOTYPES, **libnrt.OPTIONAL_PROTOTYPES}
    for name, (result, _) in prototypes.items():
        assert result is other.get(name, ctypes.c_int), name
    sizes = {n: len(a) for n, (_, a) in prototypes.items()}
    want = {"nrt_init": 3, "nrt_load": 5, "nrt_load_collectives": 7, "nrt_tensor_allocate": 5, "nrt_tensor_write": 4, "nrt_execute": 3,
            "nrt_execute_repeat": 4, "nrt_tensor_copy": 5, "nrta_execute_schedule": 6, "nrta_tensor_copy": 8, "nrt_all_gather": 6,
            "nrta_tensor_write": 7, "nrta_cc_prepare": 7, "nrt_get_vnc_memory_stats": 4, "nrt_tensor_allocate_slice": 5}  # fmt: skip
    assert {n: sizes[n] for n in want} == want
    assert ctypes.sizeof(libnrt.S) == 4  # a C enum


def test_a_neff_has_a_head_of_1024_bytes():
    assert HEADER.size == 1024
    head = NeffHeader(package=2, data_size=5, version=(2, 1), build="2.33", name="kernel", lnc=2)
    assert read_header(head.pack(b"12345") + b"12345") == head
    # lnc_size lies behind 552 bytes: five u64, 128, u32, 32, 16, 256, u32, 64, u64.
    assert head.pack()[552:556] == (2).to_bytes(4, "little") and 552 == 5 * 8 + 128 + 4 + 32 + 16 + 256 + 4 + 64 + 8
    for bad in (b"", b"x" * 1023, b"\0" * 2048, head.pack(b"12345") + b"1234"):
        with pytest.raises(status.NeuronCallError):
            read_header(bad)

"""libnrt.so by ctypes: prototypes, structures, and one owner of all it hands out.

The library is loaded at the first use, initialised once in a process, refuses to serve a process that was forked after that,
and is closed at exit in the order it asks for: tensor sets, tensors, models, the runtime. Layouts are those of the headers
of SDK 2.32 on x86-64. ``nrta_*`` (asynchronous launches) is looked up and used only where the library has it.

A stand-in library says what it is through the symbol ``lqcd_standin_label``; every description of the runtime carries that label.

References
----------
.. [1] aws-neuron-sdk, src/libnrt/include/nrt/{nrt,nrt_status,nrt_experimental,nrt_async}.h, SDK 2.32.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import warnings
from collections.abc import Mapping
from ctypes import POINTER, c_bool, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import attrs
import numpy as np

from lqcd_core.errors import BackendUnavailable

from .. import device
from .status import (
    NeuronCallError,
    NeuronMemoryError,
    NeuronRuntimeError,
    NeuronStateError,
    NeuronUnavailable,
    describe,
    raise_for,
)

VARIABLE = "LQCD_NEURON_LIBRARY"
"""Environment variable that names the library file; nothing else is tried then."""
DEVICE, HOST, VIRTUAL = 0, 1, 2
"""nrt_tensor_placement_t."""
NO_FRAMEWORK = 1
"""nrt_framework_type_t of a program that is no framework."""
INPUT, OUTPUT = 0, 1
"""nrt_tensor_usage_t."""
DTYPES = {
    1: "uint64", 2: "int8", 3: "uint8", 4: "int16", 5: "uint16", 6: "bfloat16", 7: "float16", 8: "int32", 9: "uint32",
    10: "float32", 11: "float32r", 12: "int64", 13: "float8_e3", 14: "float8_e4", 15: "float8_e5",
}  # fmt: skip
"""nrt_dtype_t. The runtime reports fp8 tensors as int8."""
ITEM_BYTES = {
    "uint64": 8, "int64": 8, "int32": 4, "uint32": 4, "float32": 4, "float32r": 4, "int16": 2, "uint16": 2, "bfloat16": 2,
    "float16": 2, "int8": 1, "uint8": 1, "float8_e3": 1, "float8_e4": 1, "float8_e5": 1,
}  # fmt: skip


class StandInWarning(UserWarning):
    """The runtime library is a stand-in: no Neuron device is used, and nothing it returns is a measurement."""


# --------------------------------------------------------------------------------------------------------------------
# Structures


class TensorInfo(ctypes.Structure):
    """nrt_tensor_info_t."""

    _fields_ = [("name", c_char * 256), ("usage", c_int32), ("size", c_size_t), ("dtype", c_int32),
                ("shape", POINTER(c_uint32)), ("ndim", c_uint32)]  # fmt: skip


class TensorInfoArray(ctypes.Structure):
    """nrt_tensor_info_array_t: a count, then so many TensorInfo."""

    _fields_ = [("tensor_count", c_uint64), ("tensors", TensorInfo * 0)]


class Version(ctypes.Structure):
    """nrt_version_t."""

    _fields_ = [("major", c_uint64), ("minor", c_uint64), ("patch", c_uint64), ("maintenance", c_uint64),
                ("rt_detail", c_char * 128), ("git_hash", c_char * 64)]  # fmt: skip


class ModelInfo(ctypes.Structure):
    """nrt_model_info_t; may grow."""

    _fields_ = [("vnc", c_uint32)]


class InstanceInfo(ctypes.Structure):
    """nrt_instance_info_t."""

    _fields_ = [("family", c_uint32), ("size", c_uint32), ("arch_name", c_char * 16), ("device_revision", c_char * 8)]


class TensorBatchOp(ctypes.Structure):
    """nrt_tensor_batch_op_t."""

    _fields_ = [("offset", c_uint64), ("size", c_uint64), ("buffer", c_void_p)]


class TensorBatch(ctypes.Structure):
    """nrt_tensor_batch_t."""

    _fields_ = [("tensor", c_void_p), ("ops", POINTER(TensorBatchOp)), ("num_ops", c_uint32)]


class DeviceAllocationInfo(ctypes.Structure):
    """nrt_tensor_device_allocation_info_t."""

    _fields_ = [("physical_address", c_uint64), ("size", c_size_t), ("hbm_index", c_int)]


class MemoryStats(ctypes.Structure):
    """nrt_vnc_memory_stats_t; may grow."""

    _fields_ = [("bytes_used", c_size_t), ("bytes_limit", c_size_t)]


class CommInfo(ctypes.Structure):
    """nrt_cc_comm_t."""

    _fields_ = [("replica_group", POINTER(c_uint32)), ("rank", c_uint32), ("rank_n", c_uint32), ("ctx_device_id", c_uint32),
                ("ctx_device_count", c_uint32), ("vnc", c_uint32)]  # fmt: skip


class TensorList(ctypes.Structure):
    """nrt_tensor_list_t."""

    _fields_ = [("tensors", POINTER(c_void_p)), ("num_tensors", c_size_t)]


class AsyncError(ctypes.Structure):
    """nrta_error_t."""

    _fields_ = [("seq_id", c_uint64), ("error_code", c_uint64)]


# --------------------------------------------------------------------------------------------------------------------
# Prototypes: name -> (result, arguments). NRT_STATUS is a C enum of 4 bytes.

S = c_int
_P = c_void_p
_PP = POINTER(c_void_p)

PROTOTYPES: dict[str, tuple] = {
    "nrt_init": (S, (c_int, c_char_p, c_char_p)),
    "nrt_close": (None, ()),
    "nrt_load": (S, (_P, c_size_t, c_int32, c_int32, _PP)),
    "nrt_unload": (S, (_P,)),
    "nrt_get_model_tensor_info": (S, (_P, POINTER(POINTER(TensorInfoArray)))),
    "nrt_free_model_tensor_info": (S, (POINTER(TensorInfoArray),)),
    "nrt_tensor_allocate": (S, (c_int, c_int, c_size_t, c_char_p, _PP)),
    "nrt_tensor_free": (None, (_PP,)),
    "nrt_tensor_write": (S, (_P, _P, c_size_t, c_size_t)),
    "nrt_tensor_read": (S, (_P, _P, c_size_t, c_size_t)),
    "nrt_tensor_get_size": (c_size_t, (_P,)),
    "nrt_allocate_tensor_set": (S, (_PP,)),
    "nrt_destroy_tensor_set": (None, (_PP,)),
    "nrt_add_tensor_to_tensor_set": (S, (_P, c_char_p, _P)),
    "nrt_execute": (S, (_P, _P, _P)),
}
"""Without these there is no runtime."""

OPTIONAL_PROTOTYPES: dict[str, tuple] = {
    "nrt_get_version": (S, (POINTER(Version), c_size_t)),
    "nrt_get_instance_info": (S, (POINTER(InstanceInfo), c_size_t)),
    "nrt_get_total_nc_count": (S, (POINTER(c_uint32),)),
    "nrt_get_total_vnc_count": (S, (POINTER(c_uint32),)),
    "nrt_get_visible_nc_count": (S, (POINTER(c_uint32),)),
    "nrt_get_visible_vnc_count": (S, (POINTER(c_uint32),)),
    "nrt_load_collectives": (S, (_P, c_size_t, c_int32, c_int32, c_uint32, c_uint32, _PP)),
    "nrt_get_model_info": (S, (_P, POINTER(ModelInfo), c_size_t, POINTER(c_size_t))),
    "nrt_get_model_instance_count": (S, (_P, POINTER(c_uint32))),
    "nrt_get_model_nc_count": (S, (_P, POINTER(c_uint32))),
    "nrt_get_model_vnc_count": (S, (_P, POINTER(c_uint32))),
    "nrt_tensor_write_batch": (S, (POINTER(TensorBatch), c_uint64, c_bool)),
    "nrt_tensor_read_batch": (S, (POINTER(TensorBatch), c_uint64, c_bool)),
    "nrt_tensor_copy": (S, (_P, c_size_t, _P, c_size_t, c_size_t)),
    "nrt_tensor_memset": (S, (_P, c_uint64, c_int, c_size_t)),
    "nrt_tensor_get_va": (_P, (_P,)),
    "nrt_tensor_allocate_empty": (S, (c_char_p, _PP)),
    "nrt_tensor_attach_buffer": (S, (_P, _P, c_size_t)),
    "nrt_tensor_allocate_slice": (S, (_P, c_size_t, c_size_t, c_char_p, _PP)),
    "nrt_tensor_get_device_allocation_info": (S, (_P, POINTER(DeviceAllocationInfo))),
    "nrt_tensor_check_output_completion": (S, (_P, c_int64, c_uint64)),
    "nrt_tensor_reset_output_completion": (S, (_P,)),
    "nrt_get_tensor_from_tensor_set": (S, (_P, c_char_p, _PP)),
    "nrt_execute_repeat": (S, (_P, _P, _P, c_int)),
    "nrt_build_global_comm": (S, (c_int32, c_uint32, c_uint32)),
    "nrt_cc_global_comm_init": (S, (c_uint32, c_uint32, c_uint32)),
    "nrt_barrier": (S, (c_int32, c_uint32, c_uint32)),
    "nrt_all_gather": (S, (c_int32, c_uint32, c_uint32, c_uint32, _P, _P)),
    "nrt_get_vnc_memory_stats": (S, (c_uint32, POINTER(MemoryStats), c_size_t, POINTER(c_size_t))),
    "nrt_get_dmabuf_fd": (S, (c_uint64, c_uint64, POINTER(c_int))),
    "nrt_get_status_as_str": (c_char_p, (c_int,)),
    "nrta_tensor_write": (S, (_P, _P, c_uint64, c_uint64, c_int, _P, POINTER(c_uint64))),
    "nrta_tensor_read": (S, (_P, _P, c_uint64, c_uint64, c_int, _P, POINTER(c_uint64))),
    "nrta_tensor_copy": (S, (_P, c_uint64, _P, c_uint64, c_uint64, c_int, _P, POINTER(c_uint64))),
    "nrta_execute_schedule": (S, (_P, _P, _P, c_int, _P, POINTER(c_uint64))),
    "nrta_cc_prepare": (S, (POINTER(CommInfo), POINTER(TensorList), POINTER(TensorList), c_int, c_int, c_int, _PP)),
    "nrta_cc_schedule": (S, (_PP, c_int, _P, POINTER(c_uint64))),
    "nrta_is_completed": (S, (c_uint64, POINTER(c_bool))),
    "nrta_get_sequence": (S, (c_uint32, c_int, c_int, POINTER(c_uint64))),
    "nrta_get_completion_handle": (S, (c_uint64, POINTER(c_int))),
    "nrta_error_tracker_create": (S, (c_uint32, _PP)),
    "nrta_error_tracker_destroy": (None, (_P,)),
    "nrta_error_tracker_get_list": (S, (_P, POINTER(POINTER(AsyncError)), POINTER(c_size_t))),
}
"""Used where a library has them."""

ASYNC = ("nrta_execute_schedule", "nrta_is_completed", "nrta_error_tracker_create", "nrta_error_tracker_destroy", "nrta_error_tracker_get_list")  # fmt: skip


class Library:
    """libnrt with its prototypes declared. Nothing is initialised by loading it.

    Parameters
    ----------
    path
        File; None: ``$LQCD_NEURON_LIBRARY``, else the names that the driver package installs.

    Raises
    ------
    BackendUnavailable
        If no library can be loaded, or one lacks a function that is needed.
    """

    def __init__(self, path: str | os.PathLike | None = None):
        named = os.fspath(path) if path is not None else os.environ.get(VARIABLE, "")
        self.path, self.handle = self._open(named)
        self._lacking: set[str] = set()
        for name, (result, arguments) in {**PROTOTYPES, **OPTIONAL_PROTOTYPES}.items():
            try:
                function = getattr(self.handle, name)
            except AttributeError:
                self._lacking.add(name)
                continue
            function.restype, function.argtypes = result, arguments
        missing = sorted(self._lacking & set(PROTOTYPES))
        if missing:
            raise BackendUnavailable(
                f"the runtime library {self.path} lacks {', '.join(missing)}; install aws-neuronx-runtime-lib of the Neuron SDK "
                "2.31 or later"
            )
        self.label = self._label()

    @staticmethod
    def _open(named: str):
        tried = [named] if named else list(device.LIBNRT)
        reasons = []
        for name in tried:
            try:
                return name, ctypes.CDLL(name)
            except OSError as error:
                reasons.append(str(error))
        where = f"{VARIABLE}={named!r} cannot be loaded" if named else "no Neuron runtime library can be loaded"
        raise BackendUnavailable(
            f"{where} ({'; '.join(reasons)}); install aws-neuronx-runtime-lib, or set {VARIABLE} to the file libnrt.so.1"
        )

    def _label(self) -> str:
        try:
            function = self.handle.lqcd_standin_label
        except AttributeError:
            return ""
        function.restype, function.argtypes = c_char_p, ()
        return function().decode()

    def has(self, *names: str) -> bool:
        """True if the library has all of these functions."""
        return not self._lacking.intersection(names)

    def __getattr__(self, name: str):
        if name.startswith(("nrt_", "nrta_")):
            return getattr(self.handle, name)
        raise AttributeError(name)


# --------------------------------------------------------------------------------------------------------------------
# What the runtime owns


@attrs.frozen
class ModelTensor:
    """One input or output of a loaded model, as the runtime names it."""

    name: str
    """Name in the NEFF; an input that is written too ends in ``.must_alias_input``."""
    usage: int
    """INPUT or OUTPUT."""
    dtype: str
    """Name of DTYPES, or ``unknown``."""
    shape: tuple[int, ...]
    """Extents."""
    size: int
    """Bytes."""


class Tensor:
    """Memory of a core. Freed by :meth:`Runtime.free`, or at close."""

    __slots__ = ("core", "handle", "name", "size")

    def __init__(self, handle: int, size: int, core: int, name: str):
        self.handle, self.size, self.core, self.name = handle, size, core, name

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r}, {self.size} B on core {self.core}>"


class TensorSet:
    """Tensors by the names that a model gives them."""

    __slots__ = ("handle", "tensors")

    def __init__(self, handle: int, tensors: Mapping[str, Tensor]):
        self.handle, self.tensors = handle, dict(tensors)  # a tensor must outlive the sets it is in


class Model:
    """A loaded NEFF."""

    __slots__ = ("core", "handle", "label", "tensors")

    def __init__(self, handle: int, core: int, tensors: tuple[ModelTensor, ...], label: str):
        self.handle, self.core, self.tensors, self.label = handle, core, tensors, label


class Runtime:
    """The initialised runtime of this process; use :func:`runtime`.

    Raises
    ------
    BackendUnavailable
        If it cannot be initialised: no core is free, or the driver does not answer.
    """

    def __init__(self, library: Library):
        self.library = library
        self.label = library.label
        self._pid = os.getpid()
        self._open = False
        self._lock = threading.RLock()
        self._sets: set[TensorSet] = set()
        self._tensors: set[Tensor] = set()
        self._models: set[Model] = set()
        self._trackers: dict[int, int] = {}
        self._last: dict[int, int] = {}
        if self.label:
            warnings.warn(
                f"{library.path} is a stand-in for libnrt ({self.label}): no Neuron device is used.",
                StandInWarning,
                stacklevel=2,
            )
        code = library.nrt_init(NO_FRAMEWORK, b"", b"")
        if code:
            status = describe(code)
            raise NeuronUnavailable(
                f"nrt_init of {library.path} returned {code} ({status.name}): {status.meaning}. It claims every visible NeuronCore "
                "for one process: see `neuron-ls` for the owner, set NEURON_RT_VISIBLE_CORES to free ones, and check that driver "
                "(aws-neuronx-dkms) and runtime (aws-neuronx-runtime-lib) are of one SDK",
                code,
            )
        self._open = True
        atexit.register(self.close)

    # -- state --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise unless this process may call the runtime."""
        if os.getpid() != self._pid:
            raise NeuronStateError(
                f"process {os.getpid()} was forked from {self._pid} after the Neuron runtime was initialised there, and the runtime "
                "never serves such a child; start processes with multiprocessing.get_context('spawn')."
            )
        if not self._open:
            raise NeuronStateError(
                "the Neuron runtime of this process was closed and cannot be opened again; start a new process."
            )

    @property
    def is_open(self) -> bool:
        """True between initialisation and close, in the process that initialised it."""
        return self._open and os.getpid() == self._pid

    def close(self) -> None:
        """Free everything in the runtime's order and close it. A second call, or one in a forked child, does nothing."""
        if not self.is_open:
            return
        with self._lock:
            if not self._open:
                return
            for sequence in self._last.values():  # memory in use is not freed
                try:
                    self.wait(sequence)
                except NeuronRuntimeError:
                    break
            for one in list(self._sets):
                self.destroy(one)
            for tensor in list(self._tensors):
                self.free(tensor)
            for tracker in self._trackers.values():
                self.library.nrta_error_tracker_destroy(tracker)
            self._trackers.clear()
            for model in list(self._models):
                self._models.discard(model)
                self.library.nrt_unload(model.handle)  # a status here helps nobody: the process ends
            self._open = False
            self.library.nrt_close()
        atexit.unregister(self.close)

    def live(self) -> dict[str, int]:
        """How many objects the runtime owns now, by kind."""
        return {"sets": len(self._sets), "tensors": len(self._tensors), "models": len(self._models)}

    # -- machine ------------------------------------------------------------------------------------------------------

    def visible_cores(self) -> int:
        """Logical cores that this process may use."""
        self.check()
        count = c_uint32(0)
        for name in ("nrt_get_visible_vnc_count", "nrt_get_visible_nc_count"):  # the second on old libraries
            if self.library.has(name):
                raise_for(getattr(self.library, name)(ctypes.byref(count)), name)
                return count.value
        return 1

    def version(self) -> str:
        """``major.minor.patch.maintenance``, or '' where the library does not say."""
        if not self.library.has("nrt_get_version"):
            return ""
        v = Version()
        if self.library.nrt_get_version(ctypes.byref(v), ctypes.sizeof(v)):
            return ""
        return ".".join(str(n) for n in (v.major, v.minor, v.patch, v.maintenance))

    def memory(self, core: int) -> tuple[int, int] | None:
        """(bytes used, bytes there) on a core, or None where the library does not say."""
        self.check()
        stats, size = MemoryStats(), c_size_t(0)
        if not self.library.has("nrt_get_vnc_memory_stats"):
            return None
        code = self.library.nrt_get_vnc_memory_stats(
            core, ctypes.byref(stats), ctypes.sizeof(stats), ctypes.byref(size)
        )
        return None if code else (stats.bytes_used, stats.bytes_limit)

    # -- models -------------------------------------------------------------------------------------------------------

    def load(self, neff: bytes, core: int, what: str = "") -> Model:
        """Load a NEFF on a core and ask for the names of its tensors.

        Raises
        ------
        NeuronRuntimeError
            As the status says.
        """
        self.check()
        handle = c_void_p()
        kept = ctypes.create_string_buffer(neff, len(neff))  # alive through the call
        # The header calls vnc_count deprecated and asks for -1.
        code = self.library.nrt_load(kept, len(neff), core, -1, ctypes.byref(handle))
        raise_for(code, "nrt_load", what)
        try:
            tensors = self._tensor_info(handle.value, what)
        except BaseException:
            self.library.nrt_unload(handle)
            raise
        model = Model(handle.value, core, tensors, self.label)
        with self._lock:
            self._models.add(model)
        return model

    def _tensor_info(self, handle, what: str) -> tuple[ModelTensor, ...]:
        pointer = POINTER(TensorInfoArray)()
        raise_for(
            self.library.nrt_get_model_tensor_info(handle, ctypes.byref(pointer)), "nrt_get_model_tensor_info", what
        )
        try:
            start = ctypes.addressof(pointer.contents) + TensorInfoArray.tensors.offset
            found = (TensorInfo * pointer.contents.tensor_count).from_address(start)
            return tuple(
                ModelTensor(
                    t.name.decode(),
                    t.usage,
                    DTYPES.get(t.dtype, "unknown"),
                    tuple(t.shape[k] for k in range(t.ndim)),
                    t.size,
                )
                for t in found
            )
        finally:
            self.library.nrt_free_model_tensor_info(pointer)

    def unload(self, model: Model) -> None:
        """Unload a model; its tensor sets must be gone."""
        with self._lock:
            if not self.is_open or model not in self._models:
                return
            self._models.discard(model)
        raise_for(self.library.nrt_unload(model.handle), "nrt_unload")

    # -- tensors ------------------------------------------------------------------------------------------------------

    def allocate(self, size: int, core: int, name: str) -> Tensor:
        """Device memory.

        Raises
        ------
        NeuronMemoryError
            With what was asked and what the core has left.
        """
        self.check()
        if size <= 0:
            raise NeuronCallError(f"a device tensor needs at least one byte, {name!r} was asked for with {size}.")
        handle = c_void_p()
        code = self.library.nrt_tensor_allocate(DEVICE, core, size, name.encode(), ctypes.byref(handle))
        if code:
            stats = self.memory(core)
            there = f", {stats[0]:,} of {stats[1]:,} B in use" if stats else ""
            raise_for(code, "nrt_tensor_allocate", f"{size:,} B for {name!r} on core {core}{there}")
        tensor = Tensor(handle.value, size, core, name)
        with self._lock:
            self._tensors.add(tensor)
        return tensor

    def free(self, tensor: Tensor) -> None:
        """Free a tensor, after the sets that hold it."""
        with self._lock:
            if not self.is_open or tensor not in self._tensors:
                return
            for one in [s for s in self._sets if tensor in s.tensors.values()]:
                self.destroy(one)
            self._tensors.discard(tensor)
            handle = c_void_p(tensor.handle)
            self.library.nrt_tensor_free(ctypes.byref(handle))
            tensor.handle = 0

    def _live(self, tensor: Tensor, offset: int, size: int) -> None:
        self.check()
        if not tensor.handle:  # the library aborts the process on a null pointer
            raise NeuronCallError(f"{tensor!r} was freed; bind the operator again.")
        if offset < 0 or offset + size > tensor.size:
            raise NeuronCallError(f"bytes {offset} to {offset + size} were asked of {tensor!r}.")

    def write(self, tensor: Tensor, array: np.ndarray, offset: int = 0) -> None:
        """Copy the bytes of a contiguous array into a tensor."""
        array = np.ascontiguousarray(array)
        self._live(tensor, offset, array.nbytes)
        code = self.library.nrt_tensor_write(tensor.handle, array.ctypes.data, offset, array.nbytes)
        raise_for(code, "nrt_tensor_write", f"{array.nbytes:,} B into {tensor.name!r}")

    def read(self, tensor: Tensor, array: np.ndarray, offset: int = 0) -> np.ndarray:
        """Fill a contiguous array from a tensor."""
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise NeuronCallError("a tensor is read into a writable contiguous array.")
        self._live(tensor, offset, array.nbytes)
        code = self.library.nrt_tensor_read(tensor.handle, array.ctypes.data, offset, array.nbytes)
        raise_for(code, "nrt_tensor_read", f"{array.nbytes:,} B from {tensor.name!r}")
        return array

    # -- sets and launches --------------------------------------------------------------------------------------------

    def tensor_set(self, tensors: Mapping[str, Tensor]) -> TensorSet:
        """A set of tensors by name."""
        self.check()
        handle = c_void_p()
        raise_for(self.library.nrt_allocate_tensor_set(ctypes.byref(handle)), "nrt_allocate_tensor_set")
        made = TensorSet(handle.value, tensors)
        with self._lock:
            self._sets.add(made)
        try:
            for name, tensor in tensors.items():
                self._live(tensor, 0, 0)
                code = self.library.nrt_add_tensor_to_tensor_set(handle, name.encode(), tensor.handle)
                raise_for(code, "nrt_add_tensor_to_tensor_set", name)
        except BaseException:
            self.destroy(made)
            raise
        return made

    def holds(self, made: TensorSet) -> bool:
        """True until a set is destroyed."""
        return made in self._sets

    def destroy(self, made: TensorSet) -> None:
        """Destroy a set; its tensors live on."""
        with self._lock:
            if not self.is_open or made not in self._sets:
                return
            self._sets.discard(made)
            handle = c_void_p(made.handle)
            self.library.nrt_destroy_tensor_set(ctypes.byref(handle))

    def execute(self, model: Model, inputs: TensorSet, outputs: TensorSet, what: str = "") -> None:
        """One launch; returns when the outputs are there."""
        self.check()
        raise_for(self.library.nrt_execute(model.handle, inputs.handle, outputs.handle), "nrt_execute", what)

    @property
    def has_async(self) -> bool:
        """True if the library can schedule launches."""
        return self.library.has(*ASYNC)

    def schedule(self, model: Model, inputs: TensorSet, outputs: TensorSet, what: str = "", queue: int = 0) -> int:
        """Put a launch on a queue of the model's core; its sequence number."""
        self.check()
        sequence = c_uint64()
        tracker = self._tracker(model.core)
        code = self.library.nrta_execute_schedule(
            model.handle, inputs.handle, outputs.handle, queue, tracker, ctypes.byref(sequence)
        )
        raise_for(code, "nrta_execute_schedule", what)
        self._last[model.core] = sequence.value
        return sequence.value

    def wait(self, sequence: int) -> None:
        """Return when a scheduled launch is done, well or not."""
        pause = 1e-6
        while not self.completed(sequence):
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def completed(self, sequence: int) -> bool:
        """True if a scheduled launch is done."""
        self.check()
        done = c_bool(False)
        raise_for(self.library.nrta_is_completed(sequence, ctypes.byref(done)), "nrta_is_completed")
        return done.value

    def async_errors(self, core: int) -> list[tuple[int, int]]:
        """(sequence, status) of every scheduled launch of a core that failed since the last call; the list starts anew."""
        with self._lock:
            tracker = self._trackers.get(core)
            if tracker is None:
                return []
            first, count = POINTER(AsyncError)(), c_size_t()
            code = self.library.nrta_error_tracker_get_list(tracker, ctypes.byref(first), ctypes.byref(count))
            raise_for(code, "nrta_error_tracker_get_list")
            found = [(first[k].seq_id, first[k].error_code) for k in range(count.value)]
            if found:  # nothing documents that reading empties the list: a new tracker does
                self.library.nrta_error_tracker_destroy(self._trackers.pop(core))
            return found

    def _tracker(self, core: int) -> int:
        with self._lock:
            if core not in self._trackers:
                handle = c_void_p()
                raise_for(
                    self.library.nrta_error_tracker_create(core, ctypes.byref(handle)), "nrta_error_tracker_create"
                )
                self._trackers[core] = handle.value
            return self._trackers[core]


_RUNTIME: Runtime | None = None
_RUNTIME_LOCK = threading.Lock()


def runtime() -> Runtime:
    """The runtime of this process, initialised at the first call.

    Raises
    ------
    BackendUnavailable
        If there is no library, or it cannot be initialised.
    NeuronStateError
        In a process forked after initialisation, or after close.
    """
    global _RUNTIME
    with _RUNTIME_LOCK:
        if _RUNTIME is None:
            _RUNTIME = Runtime(Library())
        _RUNTIME.check()
        return _RUNTIME


def _after_fork_in_child() -> None:
    # The parent may have held the lock at the fork: a child that then asks must be told why, not wait for ever.
    global _RUNTIME_LOCK
    _RUNTIME_LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["DEVICE", "DTYPES", "HOST", "INPUT", "ITEM_BYTES", "OPTIONAL_PROTOTYPES", "OUTPUT", "PROTOTYPES", "VARIABLE", "Library", "Model",
           "ModelTensor", "NeuronMemoryError", "NeuronRuntimeError", "Runtime", "StandInWarning", "Tensor", "TensorSet", "runtime"]  # fmt: skip

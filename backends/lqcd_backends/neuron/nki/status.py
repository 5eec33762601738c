"""What libnrt says with a number: every status code, as an exception that names the remedy.

A call either returns (code 0), warns and returns (1003: the launch finished and saw a NaN, the result is there), or raises
one of the classes below. Each derives from :class:`~lqcd_core.errors.LQCDError` and from the builtin a caller would expect.
"""

from __future__ import annotations

import warnings

import attrs

from lqcd_core.errors import BackendError, BackendUnavailable


class NeuronRuntimeError(BackendError):
    """libnrt refused or failed a call. ``.code`` is its status, 0 where the wrapper itself refused."""

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


class NeuronCallError(NeuronRuntimeError, ValueError):
    """An argument that the runtime does not accept: a name, a size, a handle, a NEFF."""


class NeuronStateError(NeuronRuntimeError):
    """The runtime is not initialised, closed, or belongs to the process from which this one was forked."""


class NeuronMemoryError(NeuronRuntimeError, MemoryError):
    """Device or host memory, or another resource of the runtime, is used up."""


class NeuronTimeoutError(NeuronRuntimeError, TimeoutError):
    """An execution did not end in the time allowed."""


class NeuronHardwareError(NeuronRuntimeError):
    """The device reported a fault: results since the last success are not to be trusted."""


class NeuronUnavailable(NeuronRuntimeError, BackendUnavailable):
    """The machine cannot serve as it is set up: cores, versions, another process."""


class NumericalWarning(RuntimeWarning):
    """A launch finished and the device saw a NaN or an infinity (status 1003)."""


@attrs.frozen
class Status:
    """One status code."""

    code: int
    """NRT_STATUS."""
    name: str
    """Its name in nrt_status.h without the prefix."""
    error: type[NeuronRuntimeError] | None
    """What is raised; None for success and for the warning."""
    meaning: str
    """What happened, a clause."""
    advice: str
    """What to do."""


_RESET = (
    "stop the process, reset or replace the instance if it comes back, and report it to AWS with the kernel log (dmesg)"
)
_AGAIN = "repeat the solve from its last checkpoint"

STATUS: dict[int, Status] = {
    s.code: s
    for s in (
        Status(0, "SUCCESS", None, "success", ""),
        Status(1, "FAILURE", NeuronRuntimeError, "the runtime gives no reason",
               "set NEURON_RT_LOG_LEVEL=INFO and read its log; after a fork the runtime answers this to every call: start processes with "
               "the method 'spawn'"),
        Status(2, "INVALID", NeuronCallError, "an argument is not valid (a tensor's name or size, a core, a NEFF)",
               "compare the tensors with those of the model, the core with the number of visible ones, and NEURON_LOGICAL_NC_CONFIG with what a NEFF was made for"),
        Status(3, "INVALID_HANDLE", NeuronCallError, "a handle is not valid any more",
               "a tensor or a model was used after it was freed: bind the operator again"),
        Status(4, "RESOURCE", NeuronMemoryError, "device memory or another resource is used up",
               "bind fewer right-hand sides or a 16-bit precision, free operators that are not used, and look at `neuron-top`"),
        Status(5, "TIMEOUT", NeuronTimeoutError, "the execution did not end in the time allowed",
               "raise NEURON_RT_EXEC_TIMEOUT (seconds); its default differs between releases"),
        Status(6, "HW_ERROR", NeuronHardwareError, "the hardware reported an error", _RESET),
        Status(7, "QUEUE_FULL", NeuronRuntimeError, "a queue of requests is full",
               "use asynchronous=False, or wait for earlier launches"),
        Status(9, "LOAD_NOT_ENOUGH_NC", NeuronUnavailable, "there are fewer free NeuronCores than the model needs",
               "free cores (`neuron-ls` names the processes), or set NEURON_RT_VISIBLE_CORES and the option core"),
        Status(10, "UNSUPPORTED_NEFF_VERSION", NeuronUnavailable, "the NEFF was made for another runtime or generation",
               "update aws-neuronx-runtime-lib, or compile for this machine: option target, and `lqcd cache clear neuron`"),
        Status(11, "FAIL_HOST_MEM_ALLOC", NeuronMemoryError, "the host has no memory left", "close other programs or use a larger instance"),
        Status(13, "UNINITIALIZED", NeuronStateError, "the runtime is not initialised", "bind the operator again in this process"),
        Status(14, "CLOSED", NeuronStateError, "the runtime was closed, and a process cannot open it again", "start a new process"),
        Status(15, "QUEUE_EMPTY", NeuronRuntimeError, "nothing is queued", "use asynchronous=False"),
        Status(101, "EXEC_UNIT_UNRECOVERABLE", NeuronHardwareError, "an execution unit is in a state it cannot leave", _RESET),
        Status(1002, "EXEC_BAD_INPUT", NeuronCallError, "an input of the launch is not valid",
               "compare the tensors with those of the model; clear the cache if it was made elsewhere"),
        Status(1003, "EXEC_COMPLETED_WITH_NUM_ERR", None, "the launch finished and the device saw a NaN",
               "look for NaN in links and sources; with 16-bit spinors scale the source"),
        Status(1004, "EXEC_COMPLETED_WITH_ERR", NeuronRuntimeError, "the launch finished with an error, its result is not valid",
               "read the runtime's log (NEURON_RT_LOG_LEVEL=INFO); " + _AGAIN),
        Status(1005, "EXEC_NC_BUSY", NeuronUnavailable, "the NeuronCore is busy or belongs to another process",
               "one process owns a core: end the other one (`neuron-ls`), or set NEURON_RT_VISIBLE_CORES"),
        Status(1006, "EXEC_OOB", NeuronRuntimeError, "the kernel addressed memory outside its tensors",
               "this is a fault of the kernel: report it with the lattice, precision and formulation; formulation= has the other one"),
        Status(1100, "COLL_PENDING", NeuronRuntimeError, "a collective operation is pending", "wait for the other ranks, then repeat"),
        Status(1200, "EXEC_HW_ERR_COLLECTIVES", NeuronHardwareError, "a collective failed in hardware", _RESET),
        Status(1201, "EXEC_HW_ERR_HBM_UE", NeuronHardwareError, "device memory has an error that could not be corrected", _RESET),
        Status(1202, "EXEC_HW_ERR_NC_UE", NeuronHardwareError, "a NeuronCore's memory has an error that could not be corrected", _RESET),
        Status(1203, "EXEC_HW_ERR_DMA_ABORT", NeuronHardwareError, "a DMA transfer was aborted", _RESET),
        Status(1204, "EXEC_SW_NQ_OVERFLOW", NeuronRuntimeError, "the queue of notifications overflowed",
               "turn profiling and device prints off, and use asynchronous=False"),
        Status(1205, "EXEC_HW_ERR_REPAIRABLE_HBM_UE", NeuronHardwareError,
               "device memory has an error that a restart can repair", "restart the instance, then " + _AGAIN),
        Status(1206, "NETWORK_PROXY_FAILURE", NeuronRuntimeError, "the network proxy of a collective failed",
               "check EFA and libfabric; this backend itself uses no network"),
    )
}  # fmt: skip
"""Every status by code; 8 and 12 do not exist."""


def describe(code: int) -> Status:
    """The status of a code; one that this table lacks becomes a plain failure that says so."""
    return STATUS.get(code) or Status(
        code, "UNKNOWN", NeuronRuntimeError, "this status is not known here",
        "look it up in nrt_status.h of the installed runtime",
    )  # fmt: skip


def raise_for(code: int, call: str, detail: str = "") -> None:
    """Return for success, warn for 1003, raise for all else.

    Parameters
    ----------
    code
        NRT_STATUS as returned.
    call
        Name of the function that returned it.
    detail
        What was asked, for the message.

    Raises
    ------
    NeuronRuntimeError
        One of its classes, with the status, what was asked, and the remedy.

    Examples
    --------
    >>> raise_for(0, "nrt_execute")
    >>> try:
    ...     raise_for(5, "nrt_execute", "M on (4, 4, 4, 4)")
    ... except TimeoutError as error:
    ...     print(str(error).split(";")[0])
    nrt_execute returned 5 (TIMEOUT) for M on (4, 4, 4, 4): the execution did not end in the time allowed
    """
    if code == 0:
        return
    status = describe(code)
    asked = f" for {detail}" if detail else ""
    text = f"{call} returned {code} ({status.name}){asked}: {status.meaning}; {status.advice}."
    if status.code == 1003:
        warnings.warn(text, NumericalWarning, stacklevel=3)
        return
    raise status.error(text, code)


__all__ = ["STATUS", "NeuronCallError", "NeuronHardwareError", "NeuronMemoryError", "NeuronRuntimeError", "NeuronStateError",
           "NeuronTimeoutError", "NeuronUnavailable", "NumericalWarning", "Status", "describe", "raise_for"]  # fmt: skip

"""Launches through libnrt: buffers of device memory that are used again and again, and kernels that take and give them.

A buffer is let go when nobody refers to it, and goes to the pool of its size; the next vector of that size takes it. Tensor sets
are kept per launch and per combination of buffers, so a solver that alternates between two vectors alternates between two sets
that exist already, and copies nothing. Scalars travel in small tensors of the launch itself.

With ``asynchronous=True`` launches are scheduled on one queue of the core, which runs them in order, and only what needs a
number on the host waits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from lqcd_core.errors import BackendUnavailable

from .compile_worker import array_type
from .driver import KernelStore
from .libnrt import INPUT, ITEM_BYTES, OUTPUT, Model, ModelTensor, Runtime, Tensor, TensorSet
from .status import NeuronCallError, NeuronMemoryError, NeuronRuntimeError, raise_for

ALIAS = ".must_alias_input"
"""Suffix of the name of an input that the kernel also writes."""
SETS_KEPT = 64
"""Tensor sets kept per launch."""
QUEUE_DEPTH = 16
"""Scheduled launches before the host waits; also the scalar tensors of a launch."""


class Buffer:
    """Device memory; goes back to its pool when the last reference is gone."""

    __slots__ = ("_pool", "overlap", "tensor")

    def __init__(self, tensor: Tensor, pool: deque):
        self.tensor, self._pool = tensor, pool
        self.overlap = None

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.tensor.size

    def __del__(self):
        self._pool.append(self.tensor)  # no call of the runtime here: this may run in any thread, and at exit


class LibnrtExecutor:
    """Kernels and memory of one logical core.

    Parameters
    ----------
    runtime
        The initialised runtime.
    store
        Where NEFFs come from.
    core
        Index among the visible cores.
    asynchronous
        Schedule launches instead of waiting for each.

    Raises
    ------
    BackendUnavailable
        If there is no such core, or launches cannot be scheduled.
    """

    name = "libnrt"

    def __init__(self, runtime: Runtime, store: KernelStore, core: int = 0, asynchronous: bool = False):
        cores = runtime.visible_cores()
        if core >= cores:
            raise BackendUnavailable(
                f"core={core} was asked for and this process sees {cores} core(s), 0 to {cores - 1}; indices count visible cores "
                "(NEURON_RT_VISIBLE_CORES), not those of the instance"
            )
        if asynchronous and not runtime.has_async:
            raise BackendUnavailable(
                f"asynchronous=True needs the nrta_* functions, which {runtime.library.path} lacks; update aws-neuronx-runtime-lib or "
                "leave the option out"
            )
        self.runtime, self.store, self.core, self.asynchronous = runtime, store, core, asynchronous
        self.label = runtime.label
        self._lock = threading.RLock()
        self._pools: dict[int, deque[Tensor]] = {}
        self._launches: dict[Any, Launch] = {}
        self._pending: deque[tuple[int, str]] = deque()

    # -- memory -------------------------------------------------------------------------------------------------------

    def empty(self, nbytes: int, name: str = "vector") -> Buffer:
        """A buffer of so many bytes, with whatever it held before."""
        pool = self._pools.setdefault(nbytes, deque())
        try:
            return Buffer(pool.popleft(), pool)
        except IndexError:
            pass
        try:
            return Buffer(self.runtime.allocate(nbytes, self.core, name), pool)
        except NeuronMemoryError:
            if not self.trim():
                raise
            return Buffer(self.runtime.allocate(nbytes, self.core, name), pool)

    def place(self, array: np.ndarray, name: str = "field") -> Buffer:
        """A buffer with the bytes of an array."""
        buffer = self.empty(array.nbytes, name)
        with self._lock:
            self.synchronize()  # a scheduled launch may still read the memory that is written now
            self.runtime.write(buffer.tensor, array)
        return buffer

    def fetch(self, buffer: Buffer, shape: Sequence[int], dtype: str) -> np.ndarray:
        """The array that a buffer holds, a copy on the host."""
        out = np.empty(tuple(shape), array_type(dtype))
        if out.nbytes != buffer.nbytes:
            raise NeuronCallError(f"an array {tuple(shape)} of {dtype} was asked of a buffer of {buffer.nbytes} B.")
        with self._lock:
            self.synchronize()
            return self.runtime.read(buffer.tensor, out)

    def trim(self) -> int:
        """Free the buffers that wait in pools; how many bytes that gave back."""
        freed = 0
        with self._lock:
            self.synchronize()
            for pool in self._pools.values():
                while pool:
                    tensor = pool.popleft()
                    freed += tensor.size
                    self.runtime.free(tensor)
        return freed

    # -- launches -----------------------------------------------------------------------------------------------------

    def launch(self, spec) -> Launch:
        """The kernel of a specification, compiled or read, and loaded: once."""
        key = spec.digest
        with self._lock:
            if key not in self._launches:
                neff = self.store.neff(spec)
                self._launches[key] = Launch(self, spec, self.runtime.load(neff, self.core, spec.name))
            return self._launches[key]

    def synchronize(self) -> None:
        """Wait for every scheduled launch.

        Raises
        ------
        NeuronRuntimeError
            If one of them failed.
        """
        with self._lock:
            if not self._pending:
                return
            self.runtime.wait(self._pending[-1][0])  # one queue: the last is done after all others
            names = dict(self._pending)
            self._pending.clear()
            failed = self.runtime.async_errors(self.core)
        for sequence, code in sorted(failed, key=lambda pair: pair[1] == 1003):  # errors before warnings
            raise_for(code, "a scheduled launch", names.get(sequence, "an earlier launch"))

    def unload(self) -> None:
        """Forget every loaded kernel, and free what only this executor holds."""
        with self._lock:
            self.synchronize()
            for launch in self._launches.values():
                launch.close()
            self._launches.clear()
            self.trim()

    def _run(self, model: Model, inputs: TensorSet, outputs: TensorSet, what: str) -> int:
        if not self.asynchronous:
            self.runtime.execute(model, inputs, outputs, what)
            return 0
        if len(self._pending) >= QUEUE_DEPTH:
            self.synchronize()
        try:
            sequence = self.runtime.schedule(model, inputs, outputs, what)
        except NeuronRuntimeError as error:
            if error.code != 7:  # the queue is full: other processes' launches count too
                raise
            self.synchronize()
            sequence = self.runtime.schedule(model, inputs, outputs, what)
        self._pending.append((sequence, what))
        return sequence


@attrs.define(eq=False)
class _Scalars:
    """Tensors of one small input, used in turn."""

    tensors: list[Tensor]
    """Allocated once."""
    next: int = 0
    """The one to write next."""


class Launch:
    """A loaded kernel. Called with its inputs in order, buffers or small host arrays; gives new buffers of its outputs."""

    def __init__(self, executor: LibnrtExecutor, spec, model: Model):
        self.executor, self.spec, self.model = executor, spec, model
        try:
            self._inputs = [self._named(a, INPUT) for a in spec.inputs]
            self._outputs = [self._named(a, OUTPUT) for a in spec.outputs]
        except BaseException:
            executor.runtime.unload(model)
            raise
        self._sets: OrderedDict[tuple, TensorSet] = OrderedDict()
        self._scalars: dict[int, _Scalars] = {}

    def _named(self, argument, usage: int) -> str:
        """The runtime's name of an argument, checked for size."""
        there: dict[str, ModelTensor] = {t.name: t for t in self.model.tensors if t.usage == usage}
        for name in (argument.name, argument.name + ALIAS) if usage == INPUT else (argument.name,):
            if name in there:
                found = there[name]
                if found.size != argument.nbytes or ITEM_BYTES.get(found.dtype) != array_type(argument.dtype).itemsize:
                    raise NeuronCallError(
                        f"{self.spec.name}: {name!r} should be {tuple(argument.shape)} of {argument.dtype} ({argument.nbytes} B) and the "
                        f"NEFF has {found.shape} of {found.dtype} ({found.size} B); clear the cache (`lqcd cache clear neuron`)."
                    )
                return name
        kind = "input" if usage == INPUT else "output"
        raise NeuronCallError(
            f"{self.spec.name}: the NEFF has no {kind} {argument.name!r}; it has {', '.join(map(repr, sorted(there))) or 'none'}."
        )

    def __call__(self, *inputs: Buffer | np.ndarray) -> tuple[Buffer, ...]:
        """One launch."""
        executor = self.executor
        if len(inputs) != len(self.spec.inputs):
            raise NeuronCallError(f"{self.spec.name} takes {len(self.spec.inputs)} inputs, got {len(inputs)}.")
        with executor._lock:
            outputs = tuple(executor.empty(a.nbytes) for a in self.spec.outputs)
            tensors = [self._tensor(k, given) for k, given in enumerate(inputs)]
            left = self._set(self._inputs, tensors)
            right = self._set(self._outputs, [b.tensor for b in outputs])
            executor._run(self.model, left, right, self.spec.name)
        return outputs

    def _tensor(self, k: int, given: Buffer | np.ndarray) -> Tensor:
        argument = self.spec.inputs[k]
        if isinstance(given, Buffer):
            if given.nbytes != argument.nbytes:
                raise NeuronCallError(
                    f"{self.spec.name}: {argument.name!r} has {argument.nbytes} B, got a buffer of {given.nbytes} B."
                )
            return given.tensor
        array = np.ascontiguousarray(given, array_type(argument.dtype))
        if array.shape != tuple(argument.shape):
            raise NeuronCallError(
                f"{self.spec.name}: {argument.name!r} has the shape {tuple(argument.shape)}, got {array.shape}."
            )
        executor = self.executor
        if k not in self._scalars:
            count = QUEUE_DEPTH + 1 if executor.asynchronous else 1
            self._scalars[k] = _Scalars(
                [executor.runtime.allocate(array.nbytes, executor.core, argument.name) for _ in range(count)]
            )
        ring = self._scalars[k]
        tensor = ring.tensors[ring.next]
        # At most QUEUE_DEPTH launches are pending, so the oldest of one more tensors is not being read.
        ring.next = (ring.next + 1) % len(ring.tensors)
        executor.runtime.write(tensor, array)
        return tensor

    def _set(self, names: list[str], tensors: list[Tensor]) -> TensorSet:
        runtime = self.executor.runtime
        key = (names[0] if names else "", *(t.handle for t in tensors))
        found = self._sets.get(key)
        if found is not None and runtime.holds(found):
            self._sets.move_to_end(key)
            return found
        if len(self._sets) >= SETS_KEPT:
            self.executor.synchronize()
            runtime.destroy(self._sets.popitem(last=False)[1])
        made = self._sets[key] = runtime.tensor_set(dict(zip(names, tensors)))
        return made

    def close(self) -> None:
        """Destroy its sets, free its scalars, unload it."""
        runtime = self.executor.runtime
        for one in self._sets.values():
            runtime.destroy(one)
        for ring in self._scalars.values():
            for tensor in ring.tensors:
                runtime.free(tensor)
        self._sets.clear()
        self._scalars.clear()
        runtime.unload(self.model)


__all__ = ["Buffer", "Launch", "LibnrtExecutor"]

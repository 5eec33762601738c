r"""What single instructions cost: the kernels of :mod:`.microbenchmarks` as specifications, their right results, and the measurement.

A time per instruction is :math:`\tau = [t(n_2) - t(n_1)] / (n_2 - n_1)` of two launches that differ in their repetitions alone.
"""

from __future__ import annotations

import time
from typing import Any

import attrs
import numpy as np

from lqcd_core.errors import LQCDError

from .compile_worker import array_type
from .spec import STORAGE_BYTES, KernelSpec, TensorArg

MODULE = f"{__package__}.microbenchmarks"
PARTITIONS = 128
MATRIX = 24
"""K and M of the matrix products: the reals of a spinor."""
CHECKED = (16, 35)
"""Repetitions where results are checked and nothing is timed; one is no multiple of a ring."""
BATCHES = 5
"""Batches of launches; the median counts."""


@attrs.frozen(kw_only=True)
class Microbenchmark:
    """One instruction with its shape."""

    question: str
    """What it answers, for people."""
    kernel: str
    """A function of :mod:`.microbenchmarks`."""
    instruction: str
    """The one that is repeated."""
    dtype: str = "float32"
    """Storage name of its operands."""
    n: int = 1
    """Elements per partition of one instruction."""
    ring: int = 8
    """Destinations in turn."""
    counts: tuple[int, int] = (256, 4352)
    """Repetitions of the two launches that are timed."""
    options: dict[str, int] = attrs.field(factory=dict)
    """Further constants of the kernel."""

    @property
    def repeats(self) -> bool:
        """False for the empty kernel, which is timed as it is."""
        return self.kernel != "empty"

    def inputs(self) -> tuple[TensorArg, ...]:
        """Tensors that the kernel takes."""
        column = lambda name, width: TensorArg(name, (PARTITIONS, width), self.dtype)  # noqa: E731
        if self.kernel == "empty":
            return (column("x", 1),)
        if self.kernel == "nc_matmul":
            return column("stationary", MATRIX), column("moving", self.n)
        if self.kernel == "dma_copy":
            return (column("x", self.ring * self.n),)
        return column("x", self.n), column("y", self.ring * self.n)

    def outputs(self) -> tuple[TensorArg, ...]:
        """Tensors that it gives."""
        if self.kernel == "nc_matmul":
            return (TensorArg("output_0", (self.ring * MATRIX, self.n)),)
        same = TensorArg("output_0", self.inputs()[-1].shape, self.dtype)
        return (same, TensorArg("output_1", (PARTITIONS, self.ring))) if self.kernel == "dma_copy" else (same,)

    def spec(self, repetitions: int = 1) -> KernelSpec:
        """The kernel with a number of repetitions."""
        constants = {**self.options, "ring": self.ring, "repetitions": repetitions} if self.repeats else {}
        return KernelSpec(
            name=f"{repetitions} x {self.instruction}, N={self.n} {self.dtype}", function=f"{MODULE}:{self.kernel}",
            inputs=self.inputs(), outputs=self.outputs(), constants=constants,
        )  # fmt: skip

    def arrays(self, seed: int = 1) -> dict[str, np.ndarray]:
        """Inputs: small whole numbers, so that every result is exact in every storage."""
        rng = np.random.default_rng(seed)
        return {a.name: rng.integers(-2, 3, a.shape).astype(array_type(a.dtype)) for a in self.inputs()}

    def turns(self, repetitions: int) -> np.ndarray:
        """Repetitions that fall on each destination."""
        return np.bincount(np.arange(repetitions) % self.ring, minlength=self.ring)

    def expected(self, repetitions: int, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Results in double precision."""
        given = {k: v.astype(np.float64) for k, v in arrays.items()}
        turns = self.turns(repetitions)
        if self.kernel == "empty":
            return (given["x"],)
        if self.kernel == "dma_copy":
            return given["x"], turns * given["x"][:, :: self.n]
        if self.kernel == "nc_matmul":
            parts = []
            for j in range(self.ring):
                first = self.options["tile"] * (j % self.options["slots"])
                rows = slice(first, first + MATRIX)
                parts.append(turns[j] * given["stationary"][rows].T @ given["moving"][rows])
            return (np.concatenate(parts),)
        odd = np.repeat(turns % 2 == 1, self.n)
        return (np.where(odd, np.tile(given["x"], self.ring) - given["y"], given["y"]),)

    def instructions(self, repetitions: int) -> dict[str, int]:
        """Every instruction of a launch by name, the repeated one and what surrounds it."""
        ring = self.ring
        if self.kernel == "empty":
            return {"dma_copy": 2}
        if self.kernel == "nc_matmul":
            return {"nc_matmul": repetitions, "dma_copy": 2 + ring, "tensor_copy": ring}
        if self.kernel == "dma_copy":
            return {"dma_copy": repetitions + ring + 1, "tensor_tensor": repetitions, "memset": 1}
        return {self.instruction: repetitions, "dma_copy": 1 + 2 * ring}


def _matmul(question: str, n: int, dtype: str, tile: int = 0, slots: int = 1) -> Microbenchmark:
    return Microbenchmark(
        question=question, kernel="nc_matmul", instruction="nc_matmul", dtype=dtype, n=n, ring=4,
        options={"tile": tile, "slots": slots},
    )  # fmt: skip


def microbenchmarks(generation: int = 3) -> tuple[Microbenchmark, ...]:
    """All of them; the smallest tiles of the array are 32x32, and 64x64 on generation 2."""
    tile = 64 if generation == 2 else 32
    slots = PARTITIONS // tile
    cases = [Microbenchmark(question="round trip of an empty kernel", kernel="empty", instruction="launch", ring=1)]
    for dtype in ("float32", "bfloat16", "float16"):
        cases.append(
            Microbenchmark(
                question="rate of tensor_tensor",
                kernel="tensor_tensor",
                instruction="tensor_tensor",
                dtype=dtype,
                n=512,
            )
        )
    for dtype in ("float32", "bfloat16"):
        for n in (12, 48, 192, 512):
            cases.append(
                Microbenchmark(
                    question="rate and floor of scalar_tensor_tensor",
                    kernel="scalar_tensor_tensor",
                    instruction="scalar_tensor_tensor",
                    dtype=dtype,
                    n=n,
                )
            )
    for dtype in ("float32", "bfloat16"):
        for n in (12, 64):
            cases.append(_matmul("floor of nc_matmul with K=M=24", n, dtype))
            cases.append(_matmul(f"{tile}x{tile} tiles of the array, one after another", n, dtype, tile))
            cases.append(_matmul(f"{tile}x{tile} tiles of the array, side by side", n, dtype, tile, slots))
    for n in (96, 1024):  # 384 B and 4 KiB of float32
        for ring in (1, 16):
            cases.append(
                Microbenchmark(
                    question=f"dma_copy in runs of {4 * n} B, {ring} outstanding",
                    kernel="dma_copy",
                    instruction="dma_copy",
                    n=n,
                    ring=ring,
                    counts=(32, 288),
                )
            )
    cases.append(
        Microbenchmark(
            question="fori_loop, one instruction per turn", kernel="loop", instruction="tensor_tensor", ring=1
        )
    )
    cases.append(
        Microbenchmark(
            question="the same without fori_loop", kernel="tensor_tensor", instruction="tensor_tensor", ring=1
        )
    )
    return tuple(cases)


def launch_seconds(call, synchronize, seconds: float) -> float:
    """Median seconds per call of a few batches; the device has finished when a batch ends."""
    call()
    synchronize()
    start, count = time.perf_counter(), 0
    while count < 1 or time.perf_counter() - start < seconds / (2 * BATCHES):
        call()
        count += 1
    synchronize()
    times = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        for _ in range(count):
            call()
        synchronize()
        times.append((time.perf_counter() - start) / count)
    return float(np.median(times))


def measure(executor, case: Microbenchmark, seconds: float) -> dict[str, Any]:
    """Results checked, and times if ``seconds`` (per launch) is not 0, which it must be on a stand-in.

    Parameters
    ----------
    executor
        ``NKIBackend.executor``.
    case
        One instruction.
    seconds
        Time to spend on a launch; 0 checks only, with few repetitions.

    Returns
    -------
    dict
        ``exact``: results are what they must be. With times: ``launch_seconds`` by repetitions and ``seconds_per_instruction``
        (not for the empty kernel), which may be negative if the launches' noise is larger than what is measured.
    """
    arrays = case.arrays()
    placed = [executor.place(arrays[a.name], a.name) for a in case.inputs()]
    counts = (case.counts if seconds else CHECKED) if case.repeats else (1,)
    exact, times = True, {}
    for count in counts:
        spec = case.spec(count)
        launch = executor.launch(spec)
        results = launch(*placed)
        for argument, buffer, want in zip(spec.outputs, results, case.expected(count, arrays), strict=True):
            got = executor.fetch(buffer, argument.shape, argument.dtype).astype(np.float64)
            exact = exact and bool(np.array_equal(got, want))
        if seconds:
            times[count] = launch_seconds(lambda: launch(*placed), executor.synchronize, seconds)  # noqa: B023
    row: dict[str, Any] = {"repetitions": list(counts), "exact": exact}
    if seconds:
        row["launch_seconds"] = {str(count): t for count, t in times.items()}
        if case.repeats:
            few, many = counts
            row["seconds_per_instruction"] = (times[many] - times[few]) / (many - few)
    return row


def measure_instructions(backend, seconds: float) -> list[dict[str, Any]]:
    """All microbenchmarks on a backend ``neuron-nki``: one row each; a row that failed says why.

    A stand-in is never timed, whatever ``seconds`` says.
    """
    if backend.label:
        seconds = 0.0
    rows = []
    for case in microbenchmarks(backend.catalogue.generation):
        row = {
            "question": case.question, "instruction": case.instruction, "dtype": case.dtype, "n": case.n, "ring": case.ring,
            **case.options,
        }  # fmt: skip
        if case.kernel == "dma_copy":
            row["bytes_per_instruction"] = PARTITIONS * case.n * STORAGE_BYTES[case.dtype]
        try:
            row.update(measure(backend.executor, case, seconds))
        except LQCDError as error:
            row["error"] = str(error)
        rows.append(row)
    return rows


__all__ = ["Microbenchmark", "launch_seconds", "measure", "measure_instructions", "microbenchmarks"]

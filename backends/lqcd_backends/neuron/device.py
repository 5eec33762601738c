"""The machine: is there a Neuron device, of which generation, with how many cores and how much memory.

Asked in this order, and nothing is imported for it: ``/dev/neuron*`` and sysfs, then ``neuron-ls -j``, then libnrt (whose
counts may be asked before it is initialised). torch_neuronx is never imported here: it would claim cores.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
from pathlib import Path

import attrs

from lqcd_core.errors import BackendUnavailable

DEV = Path("/dev")
"""Where the device files ``neuron<N>`` are, one per chip."""
SYSFS = Path("/sys/devices/virtual/neuron_device")
"""Where the driver publishes what it knows."""
NEURON_LS = ("neuron-ls", "/opt/aws/neuron/bin/neuron-ls")
"""Names under which the listing program is tried."""
LIBNRT = ("libnrt.so.1", "/opt/aws/neuron/lib/libnrt.so.1", "libnrt.so")
"""Names under which the runtime library is tried."""


@attrs.frozen
class Generation:
    """What one physical NeuronCore of a generation has."""

    name: str
    """``gen2``, ``gen3`` or ``gen4``."""
    chips: str
    """Chips and instances of this generation."""
    target: str
    """The compiler's ``--target`` where there is one."""
    tensor_ghz: float
    """Clock of the tensor engine, GHz."""
    vector_ghz: float
    """Clock of the vector engine, GHz."""
    dma: float
    """Practical rate of 16 DMA queues, GB/s."""
    hbm: float
    """HBM share of a core, GB/s."""
    sbuf: int
    """Usable SBUF, bytes per core (128 partitions)."""
    hbm_bytes: int
    """HBM of one core, bytes: a stack shared by two cores is counted half."""
    cores: int
    """Physical cores per chip."""

    @property
    def bandwidth(self) -> float:
        """GB/s that a core can move: the smaller of DMA and HBM."""
        return min(self.dma, self.hbm)


GENERATIONS = {
    g.name: g
    for g in (
        Generation("gen2", "Inferentia2, Trainium1", "trn1", 2.8, 1.12, 272.0, 410.0, 128 * 180224, 16 << 30, 2),
        Generation("gen3", "Trainium2", "trn2", 2.4, 0.96, 368.0, 362.0, 128 * 212984, 12 << 30, 8),
        Generation("gen4", "Trainium3", "trn3", 2.4, 1.20, 528.0, 588.0, 128 * 245752, 18 << 30, 8),
    )
}
"""Facts by generation, from the vendor's architecture pages; none was measured by this project."""

_WORDS = (("gen4", ("trn3", "trainium3", "v4")), ("gen3", ("trn2", "trainium2", "v3")),
          ("gen2", ("trn1", "inf2", "trainium1", "inferentia2", "trainium", "v2")))  # fmt: skip


@attrs.frozen(kw_only=True)
class NeuronDevice:
    """What was found, and where."""

    num_devices: int
    """Chips, at least 1 where something was found."""
    num_cores: int
    """Logical NeuronCores of the instance that this process may see, at least 1."""
    generation: str
    """``gen2``, ``gen3``, ``gen4``; empty if the machine did not say."""
    instance_type: str = ""
    """``inf2.xlarge``, ...; empty if unknown."""
    memory_bytes: int = 0
    """Device memory of all chips, bytes; 0 if unknown."""
    logical_core_config: int = 1
    """Physical cores per logical one, 1 or 2."""
    source: str = ""
    """What answered: ``sysfs``, ``neuron-ls`` or ``libnrt``; ``target``: nothing was asked."""

    is_neuron = True

    @property
    def hardware(self) -> Generation | None:
        """Facts of the generation, None if unknown."""
        return GENERATIONS.get(self.generation)

    @property
    def core_bytes(self) -> int:
        """HBM of one logical core, bytes; of the smallest generation where nothing is known."""
        if self.memory_bytes and self.num_cores:
            return self.memory_bytes // self.num_cores
        facts = self.hardware or GENERATIONS["gen2"]
        return facts.hbm_bytes * self.logical_core_config


@attrs.frozen(kw_only=True)
class NoDevice:
    """Nothing was found."""

    reason: str
    """What was looked for, a clause for an error message."""

    is_neuron = False
    num_devices = num_cores = memory_bytes = 0
    generation = instance_type = source = ""
    hardware = None


def get_device() -> NeuronDevice | NoDevice:
    """Look at the machine (files and, if they say nothing, two outside sources); nothing is kept between calls."""
    chips = sorted(int(m[1]) for p in _listed(DEV) if (m := re.fullmatch(r"neuron(\d+)", p.name)))
    if not chips:
        return NoDevice(
            reason=f"there is no {DEV}/neuron0: no Neuron driver is loaded, or this instance has no such chip"
        )
    return _from_sysfs(chips) or _from_neuron_ls() or _from_libnrt(chips) or NoDevice(
        reason=f"{DEV}/neuron{chips[0]} exists, but neither {SYSFS}, nor neuron-ls, nor libnrt says how many cores it has"
    )  # fmt: skip


def device_of_target(target: str) -> NeuronDevice:
    """One chip of what a compiler calls ``target``: what is compiled for on a machine without it. Nothing is looked at.

    >>> device_of_target("trn1").generation, device_of_target("inf2").num_cores
    ('gen2', 2)
    """
    generation = generation_of(target)
    lnc = _logical_config(generation)
    return NeuronDevice(
        num_devices=1, num_cores=GENERATIONS[generation].cores // lnc, generation=generation, logical_core_config=lnc,
        source="target",
    )  # fmt: skip


def is_neuron_available() -> bool:
    """True if there is a Neuron device whose cores can be counted."""
    return get_device().is_neuron


def require_device() -> NeuronDevice:
    """The device, or the reason why there is none.

    Raises
    ------
    BackendUnavailable
        With what was looked for and what to do.
    """
    found = get_device()
    if not found.is_neuron:
        raise BackendUnavailable(
            f"no Neuron device: {found.reason}. It needs an Inf2, Trn1, Trn2 or Trn3 instance with the driver "
            "(aws-neuronx-dkms); name another backend to run here."
        )
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text) -> int:
    try:
        return int(str(text).strip(), 0)
    except ValueError:
        return 0


def generation_of(*words: str) -> str:
    """The generation that a name of an architecture, chip or instance means; empty if none does.

    >>> generation_of("NDv2", "inf2.xlarge"), generation_of("trn2.48xlarge"), generation_of("other")
    ('gen2', 'gen3', '')
    """
    text = " ".join(words).lower()
    for name, known in _WORDS:
        if any(word in text for word in known):
            return name
    return ""


def _logical_config(generation: str, said: int = 0) -> int:
    """Physical cores per logical core: what a tool says, else the variable the runtime reads, else its default."""
    given = said or _number(os.environ.get("NEURON_LOGICAL_NC_CONFIG", "0"))
    return given or (2 if generation in ("gen3", "gen4") else 1)


def _visible(cores: int) -> int:
    """How many of ``cores`` the runtime's own variables leave to this process."""
    ranges = os.environ.get("NEURON_RT_VISIBLE_CORES", "").strip()
    if ranges:
        count = 0
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            if not first.strip().isdigit() or (last and not last.strip().isdigit()):
                return cores
            count += int(last or first) - int(first) + 1
        return max(1, min(cores, count))
    wanted = _number(os.environ.get("NEURON_RT_NUM_CORES", "0"))
    return min(cores, wanted) if wanted > 0 else cores


def _from_sysfs(chips: list[int]) -> NeuronDevice | None:
    physical, words, instance = 0, [], ""
    for chip in chips:
        where = SYSFS / f"neuron{chip}"
        physical += _number(_text(where / "core_count"))
        facts = where / "info" / "architecture"
        words += [_text(facts / name) for name in ("arch_type", "device_name", "instance_type")]
        instance = instance or _text(facts / "instance_type")
    if not physical:
        return None
    generation = generation_of(*words)
    lnc = _logical_config(generation)
    facts = GENERATIONS.get(generation)
    return NeuronDevice(
        num_devices=len(chips), num_cores=_visible(max(1, physical // lnc)), generation=generation, instance_type=instance,
        memory_bytes=facts.hbm_bytes * physical if facts else 0, logical_core_config=lnc, source="sysfs",
    )  # fmt: skip


def _from_neuron_ls() -> NeuronDevice | None:
    for program in NEURON_LS:
        try:
            done = subprocess.run([program, "-j"], capture_output=True, text=True, timeout=20, check=True)
            return from_neuron_ls(json.loads(done.stdout))
        except (OSError, subprocess.SubprocessError, ValueError):
            continue
    return None


def from_neuron_ls(listing) -> NeuronDevice | None:
    """The device of a parsed ``neuron-ls -j`` listing. Only ``nc_count`` must be there; older tools say little more.

    >>> from_neuron_ls([{"neuron_device": 0, "nc_count": 2, "memory_size": 34359738368}]).num_cores
    2
    """
    chips = (
        [d for d in listing if isinstance(d, dict) and _number(d.get("nc_count", 0)) > 0]
        if isinstance(listing, list)
        else []
    )
    if not chips:
        return None
    cores = sum(_number(d["nc_count"]) for d in chips)
    lnc = _number(chips[0].get("logical_neuroncore_config", 0))
    memory = [_number(d.get("memory_size", 0)) for d in chips]
    # The list does not name the chip; its memory does (32, 96, 144 GiB).
    generation = {32: "gen2", 96: "gen3", 144: "gen4"}.get(memory[0] >> 30, "")
    return NeuronDevice(
        num_devices=len(chips), num_cores=_visible(cores), generation=generation, memory_bytes=sum(memory),
        logical_core_config=_logical_config(generation, lnc), source="neuron-ls",
    )  # fmt: skip


def _from_libnrt(chips: list[int]) -> NeuronDevice | None:
    for name in LIBNRT:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        for symbol in ("nrt_get_total_vnc_count", "nrt_get_total_nc_count"):  # legal before nrt_init; nc_ on old ones
            function, count = getattr(library, symbol, None), ctypes.c_uint32(0)
            if function is not None and function(ctypes.byref(count)) == 0 and count.value:
                return NeuronDevice(
                    num_devices=len(chips), num_cores=_visible(count.value), generation="", source="libnrt",
                    logical_core_config=_logical_config(""),
                )  # fmt: skip
    return None


__all__ = ["GENERATIONS", "Generation", "NeuronDevice", "NoDevice", "device_of_target", "generation_of", "get_device", "is_neuron_available",
           "require_device"]  # fmt: skip

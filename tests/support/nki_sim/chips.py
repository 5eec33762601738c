"""What each NeuronCore generation documents: sizes, clocks and DMA rates. Numbers of the public Neuron pages, none measured."""

import attrs

from .errors import refuse

PARTITIONS = 128
QUADRANT = 32
PSUM_BANK_BYTES = 2048
PSUM_BANKS = 8
PSUM_BYTES = PSUM_BANKS * PSUM_BANK_BYTES
INSTRUCTION_LIMIT = 5_000_000
REGISTERS = 64
DMA_QUEUES = 16


@attrs.frozen
class Chip:
    """One physical NeuronCore of a generation."""

    generation: int
    """``nki.isa.nc_version``: 2, 3 or 4."""
    sbuf_bytes: int
    """Usable bytes per SBUF partition (``tile_size.sbuf_fmax_bytes``)."""
    clocks: dict
    """GHz by engine name."""
    queue_rate: float
    """Practical bytes per ns of one DMA queue; there are sixteen."""
    hbm_rate: float
    """This core's share of the HBM bandwidth, bytes per ns."""
    array_tiles: tuple
    """Legal row and column sizes of a TensorE tile."""


CHIPS = {
    2: Chip(2, 180_224, dict(tensor=2.8, vector=1.12, scalar=1.4, gpsimd=1.4), 17.0, 410.0, (64, 128)),
    3: Chip(3, 212_984, dict(tensor=2.4, vector=0.96, scalar=1.2, gpsimd=1.2), 23.0, 362.0, (32, 64, 128)),
    4: Chip(4, 245_752, dict(tensor=2.4, vector=1.2, scalar=1.2, gpsimd=1.2), 33.0, 588.0, (32, 64, 128)),
}
TARGETS = {"trn1": 2, "inf2": 2, "gen2": 2, "trn2": 3, "gen3": 3, "trn3": 4, "gen4": 4}


def chip_of(target: str) -> Chip:
    """The core behind a target name of ``NEURON_PLATFORM_TARGET_OVERRIDE``."""
    if target not in TARGETS:
        refuse("nki.jit", "target", target, sorted(TARGETS))
    return CHIPS[TARGETS[target]]

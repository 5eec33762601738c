"""The public conformance suite on the torch backend, with its own choice of blocks and with tiny ones."""

import pytest

pytest.importorskip("torch")

from lqcd_core.testing.conformance import BackendConformance


class TestTorch(BackendConformance):
    backend = "torch"


class TestTorchTinyBlocks(BackendConformance):
    """Blocks of one z plane and less than one batch: every neighbour then lies in another block."""

    backend = "torch"
    options = {"chunk": 13}
    precisions = ("single", "half")
    ncs = (3,)

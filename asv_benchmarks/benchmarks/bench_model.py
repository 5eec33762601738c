"""Backends whose device is not here: what their own cost models count for a compiled operator. No speed of anything.

A kernel that grows is seen as a number that grows. The models are written from vendors' documents, not measured.
"""

from __future__ import annotations

import importlib

from lqcd_core.errors import LQCDError

from .common import geometry, skip


class Traced:
    """The Wilson M of ``neuron-traced`` at 8^4, by its written model; cycles of the vector engine at its clock."""

    params = [["half", "fused"], ["single", "bf16"], [1, 12]]
    param_names = ["formulation", "precision", "n_rhs"]

    def setup(self, formulation, precision, n_rhs):
        try:
            self.cost = importlib.import_module("lqcd_backends.neuron.traced.cost")
            graph = importlib.import_module("lqcd_backends.neuron.traced.graph")
            self.generation = importlib.import_module("lqcd_backends.neuron.device").GENERATIONS["gen2"]
        except ImportError as error:
            raise skip(str(error)) from None
        width = {"single": "float32", "bf16": "bfloat16"}[precision]
        stage = graph.Stage(centre=graph.Term("scale", "scale_a"))
        self.sites = geometry("8x8x8x8").volume
        self.spec = graph.GraphSpec(
            chain=((stage,),), sites=(8, 8, 8, 8), nc=3, n_rhs=n_rhs, formulation=formulation, link_storage=width,
            storage_in=width, storage_out=width, weights=("links", "scale_a"),
        )  # fmt: skip

    def track_instructions(self, *parameters):
        return self.cost.instructions(self.spec)

    def track_elements_per_site(self, *parameters):
        c = self.cost.count(self.spec)
        return c.arithmetic + c.macs + c.moves + c.converts

    def track_cycles_per_site(self, *parameters):
        seconds = max(self.cost.seconds(self.spec, self.generation).values())
        return seconds * self.generation.vector_ghz * 1e9 / self.sites

    track_instructions.unit = "instructions a call (model)"
    track_elements_per_site.unit = "elements a site and right-hand side (model)"
    track_cycles_per_site.unit = "cycles a site (model)"


class Kernels:
    """M of ``neuron-nki`` at 8^4, by the backend's own model: the busiest engine of one core of generation 3."""

    params = [["vector", "tensor"], ["float32", "bfloat16"], [1, 12]]
    param_names = ["kernel", "storage", "n_rhs"]

    def setup(self, kernel, storage, n_rhs):
        try:
            cost = importlib.import_module("lqcd_backends.neuron.nki.cost")
            choice = cost.choose(geometry("8x8x8x8"), n_rhs, storage, force=kernel)
        except (ImportError, LQCDError) as error:
            raise skip(str(error)) from None
        self.cost = choice.costs[kernel]

    def track_vector_cycles_per_site(self, *parameters):
        return self.cost.cycles["vector"]

    def track_tensor_cycles_per_site(self, *parameters):
        return self.cost.cycles["tensor"]

    def track_dma_bytes_per_site(self, *parameters):
        return self.cost.dma_bytes

    def track_time_per_site(self, *parameters):
        return self.cost.time

    track_vector_cycles_per_site.unit = track_tensor_cycles_per_site.unit = "cycles a site, all columns (model)"
    track_dma_bytes_per_site.unit = "bytes a site, all columns (model)"
    track_time_per_site.unit = "ns a site and right-hand side (model)"

"""Which kernel does what on which layout: specifications for the runtime, one function per operation."""

from __future__ import annotations

import attrs

from lqcd_core.errors import ParameterError
from lqcd_core.geometry import FULL

from .blas_specs import plan, sums_shape
from .layout import VectorLayout
from .spec import KernelSpec, TensorArg

PACKAGE = __package__
MODULES = {"vector": "vector_kernel", "tensor": "tensor_kernel"}


def _function(layout: VectorLayout, name: str) -> str:
    return f"{PACKAGE}.{MODULES[layout.formulation]}:{name}"


def _vector(layout: VectorLayout, name: str) -> TensorArg:
    return TensorArg(name, layout.shape, layout.dtype)


def _geometry(layout: VectorLayout) -> dict:
    if layout.formulation == "vector":
        return {
            "sites": layout.sites,
            "block": layout.block,
            "link_buffers": layout.link_buffers,
            "n_rhs": layout.n_rhs,
        }
    return {
        "inner": layout.inner, "rows": layout.walk.rows, "window": layout.walk.constants, "nodes": layout.nodes, "slots": layout.slots, "parity": -1 if layout.parity is FULL else layout.parity,
        "generation": layout.generation,
    }  # fmt: skip


def _spec(layout, function, inputs, constants, what) -> KernelSpec:
    where = "x".join(map(str, layout.geometry.shape)) + ("" if layout.parity is FULL else f" parity {layout.parity}")
    return KernelSpec(
        name=f"{what} on {where}, {layout.n_rhs} right-hand sides, {layout.dtype} ({layout.formulation} kernel)",
        function=_function(layout, function), inputs=inputs, outputs=(TensorArg("output_0", layout.shape, layout.dtype),),
        constants=constants,
    )  # fmt: skip


SCALARS = TensorArg("scalars", (128, 8), "float32")
"""What ``VectorLayout.pack_scalars`` makes."""


def hop(layout: VectorLayout, dagger: bool = False) -> KernelSpec:
    """H psi landing on the layout's parity. Arguments: psi, links, scalars."""
    inputs = (_vector(layout, "psi"), TensorArg("links", layout.links_shape, layout.link_dtype), SCALARS)
    constants = {**_geometry(layout), "dagger": dagger}
    if layout.formulation == "vector":
        constants["parity"] = layout.parity is not FULL
    return _spec(layout, "hop", inputs, constants, "H^dagger" if dagger else "H")


def dirac(layout: VectorLayout, kind: str = "scalar", dagger: bool = False) -> KernelSpec:
    """A chi - H psi. Arguments: psi, [chi on one parity], links, [diagonal], scalars; chi is psi on the full lattice.

    ``kind`` is ``layout.diagonal_kind(term)``. For M^dagger pack the diagonal and the scalars of ``term.dagger()``; the links
    are the same.
    """
    inputs = [_vector(layout, "psi")]
    name = "dirac"
    if layout.parity is not FULL:
        name = "close"
        inputs.append(_vector(layout, "chi"))
    inputs.append(TensorArg("links", layout.links_shape, layout.link_dtype))
    constants = {**_geometry(layout), "dagger": dagger}
    return _finish(layout, name, kind, inputs, constants, "M^dagger" if dagger else "M")


def site_term(layout: VectorLayout, kind: str = "scalar") -> KernelSpec:
    """A chi. Arguments: chi, [diagonal], scalars."""
    return _finish(layout, "site_term", kind, [_vector(layout, "chi")], _geometry(layout), "A")


def normal(layout: VectorLayout, kind: str = "scalar", inner: bool = False) -> KernelSpec:
    """M^dagger M psi in one launch, full lattice. Arguments: psi, links, scalars [, scale].

    With ``inner`` the launch also gives the limb sums of Re psi^dagger M^dagger M psi (see blas_specs.fold_sums): what CG needs.

    Raises
    ------
    ParameterError
        On one parity, with blocks, or with a twist in the tensor layout: compose it of two launches.
    """
    if layout.parity is not FULL or kind == "blocks" or (kind == "twist" and layout.formulation == "tensor"):
        raise ParameterError(f"no fused M^dagger M for a {kind} diagonal in this layout; compose it of M and M^dagger.")
    inputs = [_vector(layout, "psi"), TensorArg("links", layout.links_shape, layout.link_dtype), SCALARS]
    constants = _geometry(layout) | ({"diag": kind} if layout.formulation == "vector" else {})
    if not inner:
        return _spec(layout, "normal", inputs, constants, "M^dagger M")
    cut = plan(layout)
    inputs.append(TensorArg("scale", (128, layout.n_rhs, 4), "float32"))
    spec = _spec(layout, "normal_inner", inputs, constants | {"plan": cut}, "M^dagger M with its inner product")
    return attrs.evolve(spec, outputs=(*spec.outputs, TensorArg("output_1", sums_shape(layout, cut), "float32")))


def _finish(layout, name, kind, inputs, constants, what):
    has_tensor = kind == "blocks" or (kind == "twist" and layout.formulation == "tensor")
    if has_tensor:
        inputs.append(TensorArg("diagonal", layout.diagonal_shape(kind), layout.link_dtype))
        name += "_blocks"
    elif layout.formulation == "vector":
        constants = {**constants, "diag": kind}
    return _spec(layout, name, (*inputs, SCALARS), constants, what)

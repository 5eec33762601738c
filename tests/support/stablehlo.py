"""Lower graphs of the traced backend to StableHLO with torchax and jax, run that on the CPU, and print a line each as JSON.

A process of its own, since torchax registers a device with torch that torch.export cannot see past: graphs are exported
first, and torchax is imported after.
"""

import json
import re
import sys

import numpy as np
import torch
from lqcd_backends.neuron.traced.graph import Graph, GraphSpec
from lqcd_backends.neuron.traced.program import dirac_program

from lqcd_core.backend import DiracTerms, Links, SiteDiagonal
from lqcd_core.geometry import FULL, ODD, LatticeGeometry

CASES = [("M", FULL, "half"), ("M", FULL, "fused"), ("MdagM", FULL, "fused"), ("schur", ODD, "fused")]


def exported():
    """(name, module, input, exported program) of every case, on a clover-twisted operator with general phases."""
    g, rng = LatticeGeometry(T=4, Z=2, Y=2, X=4), np.random.default_rng(0)

    def gaussian(*shape):
        return rng.normal(size=shape) + 1j * rng.normal(size=shape)

    links = Links(
        g, np.linalg.qr(gaussian(*g.gauge_shape))[0], (-1, np.exp(0.3j), 1, 1j), (1.0, 0.4, 0.4, 0.4), "links"
    )
    b = gaussian(*g.shape, 2, 6, 6)
    diagonal = SiteDiagonal(scalar=4.1, blocks=0.1 * (b + b.conj().swapaxes(-1, -2)), twist=0.3)
    for kind, parity, formulation in CASES:
        program = dirac_program(
            kind, DiracTerms(links=links, diagonal=diagonal, parity=parity, form="asymmetric"), formulation, "float32"
        )
        weights = {k: make() for k, make in program.weights.items()}
        spec = GraphSpec(
            chain=program.chain, sites=tuple(g.parity_shape(parity)[:4]), nc=3, n_rhs=2, formulation=formulation,
            weights=tuple(sorted(weights)),
        )  # fmt: skip
        graph = Graph(spec, weights).eval()
        x = torch.from_numpy(rng.normal(size=spec.vector_shapes()[0]).astype(np.float32))
        yield f"{kind} {formulation}", graph, x, torch.export.export(graph, (x,), strict=True)


def forgive_missing_overloads():
    """torchax names overloads of operators that torch has dropped since; it only keeps them in a table."""
    packet = torch._ops.OpOverloadPacket
    found = packet.__getattr__

    def getattr_(self, name):
        try:
            return found(self, name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return "no such overload", str(self), name

    packet.__getattr__ = getattr_


def main():
    cases = list(exported())
    forgive_missing_overloads()
    import jax
    import jax.numpy as jnp
    from torchax.export import exported_program_to_jax

    for name, graph, x, program in cases:
        weights, function = exported_program_to_jax(program)
        given = (jnp.asarray(x.numpy()),)
        lowered = jax.jit(function).lower(weights, given)
        text = lowered.as_text()
        got = np.asarray(jax.tree_util.tree_leaves(lowered.compile()(weights, given))[0])
        want = graph(x).detach().numpy()
        print(json.dumps({
            "case": name, "error": float(np.linalg.norm(got - want) / np.linalg.norm(want)),
            "operators": sorted(set(re.findall(r"stablehlo\.(\w+)", text))),
            "types": sorted(set(re.findall(r"tensor<(?:\d+x)*(\w+)>", text))),
        }), flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

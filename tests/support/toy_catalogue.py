"""The kernels of the backend as plain NumPy functions: tests of space, backend and runtime that do not depend on NKI kernels.

Vectors are real pairs ``(n, T, Z, Y, X, 4, Nc, 2)`` in storage; the arithmetic is complex64.
"""

import attrs
import numpy as np
from lqcd_backends.neuron.nki import blas_specs
from lqcd_backends.neuron.nki.compile_worker import array_type
from lqcd_backends.neuron.nki.spec import KernelSpec, TensorArg

from lqcd_core.gamma import GAMMA
from lqcd_core.geometry import FULL, LatticeGeometry

ROLL = {0: 1, 1: 2, 2: 3, 3: 4}
SIGNS = np.array([1, 1, -1, -1], np.float32)[:, None]


def wide(a):
    a = np.ascontiguousarray(a, np.float32)
    return a.view(np.complex64)[..., 0]


def pairs(a, dtype="float32"):
    a = np.ascontiguousarray(a, np.complex64)
    return a.view(np.float32).reshape(*a.shape, 2).astype(array_type(dtype))


def _hop(psi, links, extents, nc, parity, dagger):
    g = LatticeGeometry.from_shape(extents, nc=nc)
    x, u = wide(psi), wide(links)
    if parity >= 0:
        x = g.join_parity(*((None, x) if parity == 0 else (x, None)), lead=1)
    if dagger:
        x = SIGNS * x
    out = np.zeros_like(x)
    for mu in range(4):
        um = u[..., mu, :, :]
        for sign in (-1, 1):
            project = (0.5 * (np.eye(4) + sign * GAMMA[mu])).astype(np.complex64)
            if sign < 0:
                y = np.einsum("tzyxab,ntzyxsb->ntzyxsa", um, np.roll(x, -1, ROLL[mu]))
            else:
                y = np.roll(np.einsum("tzyxba,ntzyxsb->ntzyxsa", um.conj(), x), 1, ROLL[mu])
            out += np.einsum("rs,ntzyxsa->ntzyxra", project, y)
    if dagger:
        out = SIGNS * out
    return g.split_parity(out, parity, lead=1) if parity >= 0 else out


def hop(psi, links, extents=(), nc=3, parity=-1, dtype="float32"):
    return pairs(_hop(psi, links, extents, nc, parity, False), dtype)


def _site(x, diagonal, blocks):
    d = wide(diagonal).reshape(4, 1)
    out = d * x
    if blocks is not None:
        halves = x.reshape(*x.shape[:-2], 2, -1)
        out = out + np.einsum("tzyxcij,ntzyxcj->ntzyxci", wide(blocks), halves).reshape(x.shape)
    return out


def dirac(psi, links, diagonal, extents=(), nc=3, dagger=False, dtype="float32"):
    return pairs(_site(wide(psi), diagonal, None) - _hop(psi, links, extents, nc, -1, dagger), dtype)


def dirac_blocks(psi, links, diagonal, blocks, extents=(), nc=3, dagger=False, dtype="float32"):
    return pairs(_site(wide(psi), diagonal, blocks) - _hop(psi, links, extents, nc, -1, dagger), dtype)


def site(psi, diagonal, dtype="float32"):
    return pairs(_site(wide(psi), diagonal, None), dtype)


def site_blocks(psi, diagonal, blocks, dtype="float32"):
    return pairs(_site(wide(psi), diagonal, blocks), dtype)


def _column(coefficients):
    return wide(coefficients).reshape(-1, 1, 1, 1, 1, 1, 1)


def axpy(x, y, coefficients, dtype="float32"):
    return pairs(wide(y) + _column(coefficients) * wide(x), dtype)


def scale(x, coefficients, gamma5=False, dtype="float32"):
    return pairs((SIGNS if gamma5 else 1) * _column(coefficients) * wide(x), dtype)


def inner(x, y, scale):
    return pairs(_column(scale)[..., 0, 0] * (wide(x).conj() * wide(y)).sum((-2, -1)))


def norm2(x, scale):
    out = inner(x, x, scale)
    out[..., 1] = 0
    return out


def axpy_norm2(x, y, coefficients, scale, dtype="float32"):
    out = axpy(x, y, coefficients, dtype)
    return out, norm2(out, scale)


def cg_update(p, q, x, r, coefficients, scale, dtype="float32"):
    return axpy(p, x, coefficients, dtype), *axpy_norm2(q, r, -np.asarray(coefficients, np.float32), scale, dtype)


for _name in (
    "hop",
    "dirac",
    "dirac_blocks",
    "site",
    "site_blocks",
    "axpy",
    "scale",
    "inner",
    "norm2",
    "axpy_norm2",
    "cg_update",
):
    globals()[_name].toy = True


@attrs.frozen(eq=False)
class Layout:
    geometry: LatticeGeometry
    precision: object
    n_rhs: int
    parity: object

    @property
    def vector(self):
        return TensorArg(
            "vector", (self.n_rhs, *self.geometry.parity_shape(self.parity), 2), self.precision.spinor_storage
        )

    def pack(self, host):
        return pairs(host, self.vector.dtype)

    def unpack(self, device):
        return wide(device)


class Catalogue:
    def __init__(self, target, lnc, formulation):
        self.formulation = formulation

    def why_not(self, geometry, precision, n_rhs):
        return None

    def layout(self, geometry, precision, n_rhs, parity):
        return Layout(geometry, precision, n_rhs, parity)

    def links(self, links, layout):
        return {"links": pairs(links.folded(np.complex64), layout.precision.link_storage)}

    def term(self, term, layout):
        signs = np.array([1, 1, -1, -1])
        arrays = {"diagonal": pairs(term.scalar + 1j * term.twist * signs)}
        if term.blocks is None:
            return "scalar", arrays
        return "blocks", {**arrays, "blocks": pairs(term.blocks)}

    def _spec(self, function, inputs, outputs, layout, **constants):
        named = [TensorArg(f"output_{k}", t.shape, t.dtype) for k, t in enumerate(outputs)]
        return KernelSpec(
            name=f"toy {function} on {layout.geometry.shape}", function=f"toy_catalogue:{function}", inputs=inputs, outputs=named,
            constants=constants,
        )  # fmt: skip

    def _vector(self, layout, name):
        return attrs.evolve(layout.vector, name=name)

    def _links(self, layout):
        return TensorArg("links", (*layout.geometry.gauge_shape, 2), layout.precision.link_storage)

    def _term(self, layout, form):
        g = layout.geometry
        out = [TensorArg("diagonal", (4, 2))]
        if form == "blocks":
            sites = g.parity_shape(layout.parity)[:4]
            out.append(TensorArg("blocks", (*sites, 2, 2 * g.nc, 2 * g.nc, 2)))
        return out

    def hop(self, layout):
        g = layout.geometry
        parity = -1 if layout.parity is FULL else layout.parity
        inputs = [self._vector(layout, "psi"), self._links(layout)]
        return self._spec(
            "hop", inputs, [layout.vector], layout, extents=g.shape, nc=g.nc, parity=parity, dtype=layout.vector.dtype
        ), {}

    def vector(self, layout):
        return layout.vector

    def normal(self, layout, form):
        return None

    def dirac(self, layout, form, dagger):
        g = layout.geometry
        inputs = [self._vector(layout, "psi"), self._links(layout), *self._term(layout, form)]
        name = "dirac" if form == "scalar" else "dirac_blocks"
        return self._spec(
            name, inputs, [layout.vector], layout, extents=g.shape, nc=g.nc, dagger=dagger, dtype=layout.vector.dtype
        )

    def site(self, layout, form):
        name = "site" if form == "scalar" else "site_blocks"
        inputs = [self._vector(layout, "psi"), *self._term(layout, form)]
        return self._spec(name, inputs, [layout.vector], layout, dtype=layout.vector.dtype)

    def blas(self, what, layout, a=None, scale=None, gamma5=False):
        takes = blas_specs.OPERATIONS[what][0]
        small = TensorArg("small", (layout.n_rhs, 2))
        inputs = [attrs.evolve(small if n in ("coefficients", "scale") else layout.vector, name=n) for n in takes]
        sums = TensorArg("sums", (layout.n_rhs, *layout.geometry.parity_shape(layout.parity)[:4], 2))
        outputs = [sums if kind == "sums" else layout.vector for kind in blas_specs.OPERATIONS[what][1]]
        constants = {} if what in ("inner", "norm2") else {"dtype": layout.vector.dtype}
        if gamma5:
            constants["gamma5"] = True
        given = {"coefficients": a, "scale": scale}
        arrays = {n: pairs(np.broadcast_to(v, (layout.n_rhs,))) for n, v in given.items() if v is not None}
        return self._spec(what, inputs, outputs, layout, **constants), arrays

    def fold(self, layout, sums, scale):
        terms = wide(sums).astype(np.complex128).reshape(layout.n_rhs, -1)
        terms = terms.real if not terms.imag.any() else terms  # norms have no imaginary part, not even one of NaN
        terms = terms / scale[:, None]
        return terms.sum(1), np.abs(terms).max(1)

    def plan(self, geometry, precision, n_rhs):
        return f"toy kernels, formulation {self.formulation!r}"

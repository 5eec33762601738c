"""Random fields, the reference of the kernels (the numpy backend in double), and kernels run on the stand-in for nki."""

import importlib
import sys
from pathlib import Path

import numpy as np
from lqcd_backends.neuron.nki.layout import VectorLayout
from lqcd_backends.numpy.backend import NumpyBackend

from lqcd_core.backend import Links, SiteDiagonal
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.precision import as_precision

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

import nki_sim

TARGETS = {2: "inf2", 3: "trn2", 4: "trn3"}
SIGNS = np.array([1, 1, -1, -1])[:, None]


def kernel(spec):
    """The function that a specification names, made with the stand-in."""
    module, _, name = spec.function.partition(":")
    with nki_sim.installed():
        return getattr(importlib.import_module(module), name)


def launch(spec, values, generation=3, lnc=1, function=None):
    """Outputs and report of a kernel; ``values`` by argument name."""
    arrays = {a.name: values[a.name] for a in spec.inputs}
    result = nki_sim.run(function or kernel(spec), arrays, dict(spec.constants), target=TARGETS[generation], lnc=lnc)
    for out, want in zip(result.outputs, spec.outputs, strict=True):
        assert out.shape == tuple(want.shape) and out.dtype.name == want.dtype
    return result


def launch_simulated(spec, values, nki):
    """Outputs of a kernel under ``nki.simulate`` of the given package, the official one or the stand-in for it."""
    module, _, name = spec.function.partition(":")
    function = getattr(importlib.import_module(module), name) if nki_sim.real_wheel() else kernel(spec)
    outputs = nki.simulate(function)(*(values[a.name] for a in spec.inputs), **dict(spec.constants))
    return [np.asarray(out) for out in (outputs if isinstance(outputs, tuple | list) else (outputs,))]


def count(spec, generation=3):
    """The report of a kernel that is traced and not run."""
    shapes = {a.name: (a.shape, a.dtype) for a in spec.inputs}
    return nki_sim.trace(kernel(spec), shapes, dict(spec.constants), target=TARGETS[generation]).reports()[0]


def complex_normal(rng, *shape):
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def fields(shape, n_rhs=1, phases=(-1, 1, 1, 1), coefficients=(1.0, 1.0, 1.0, 1.0), seed=7):
    """(links, spinors): random U(3) links; the kernels do not need a determinant of 1."""
    rng = np.random.default_rng(seed)
    g = LatticeGeometry.from_shape(shape)
    u = np.linalg.qr(complex_normal(rng, *shape, 4, 3, 3))[0]
    return Links(geometry=g, array=u, phases=phases, coefficients=coefficients), complex_normal(
        rng, n_rhs, *shape, 4, 3
    )


def term(kind, shape, seed=3, hermitian=True):
    """A random site-diagonal term on the full lattice."""
    rng = np.random.default_rng(seed)
    if kind == "scalar":
        return SiteDiagonal(scalar=4.1)
    if kind == "twist":
        return SiteDiagonal(scalar=4.1, twist=0.37)
    b = complex_normal(rng, *shape, 2, 6, 6) / 4
    if hermitian:
        b = b + b.conj().swapaxes(-1, -2)
    return SiteDiagonal(scalar=4.1, blocks=b, twist=0.2, hermitian_blocks=hermitian)


def reference(links, psi, diagonal=None, dagger=False):
    """(H psi, A psi) or their adjoints, full lattice, double."""
    backend = NumpyBackend()
    space = backend.space(links.geometry, as_precision("double"), len(psi))
    flip = SIGNS if dagger else 1
    h = flip * space.unpack(backend.hopping(links, space)(space.pack(flip * psi)))
    if diagonal is None:
        return h, None
    a = backend.site_diagonal(diagonal.dagger() if dagger else diagonal, space)
    return h, space.unpack(a(space.pack(psi)))


def error(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def layout_of(links, formulation, n_rhs, generation=3, dtype="float32", link_dtype=None, parity=None):
    return VectorLayout(
        geometry=links.geometry, parity=parity, n_rhs=n_rhs, dtype=dtype, link_dtype=link_dtype or dtype, formulation=formulation,
        generation=generation,
    )  # fmt: skip

"""What every rank of the tests runs: ``ranks_script.py CASE FOLDER``. Results go to the folder, a file a rank."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import lqcd_core as lqcd
from lqcd_core import gauge
from lqcd_core.precision import as_precision
from lqcd_core.registry import REGISTRY

RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
INNER = json.loads(os.environ.get("LQCD_TEST_INNER", '"numpy"'))
OPTIONS = {"inner": INNER, "timeout": float(os.environ.get("LQCD_TEST_TIMEOUT", "60"))}
BACKEND = ("sharded", OPTIONS)
VICTIM = 1


def problem(T=8, n=2):
    """A random field and n sources."""
    g = lqcd.LatticeGeometry(T=T, Z=2, Y=4, X=2)
    rng = np.random.default_rng(4)
    psi = rng.normal(size=(n, *g.spinor_shape)) + 1j * rng.normal(size=(n, *g.spinor_shape))
    return lqcd.GaugeField.random(g, seed=4), psi


OPERATORS = {
    "wilson": lqcd.WilsonDirac(mass=0.8),
    "clover": lqcd.CloverWilsonDirac(mass=1.5, csw=1.1, boundary=(-1, 1, np.exp(0.2j), 1)),
    "twisted": lqcd.TwistedMassDirac(mass=1.5, mu=0.2, csw=1.1),
}


def history(bound, b, **options):
    """Residuals by iteration, and the solution."""
    seen = []
    solver = lqcd.ConjugateGradient(tol=1e-8)
    x, _ = lqcd.solve(bound, b, solver, callback=lambda p: seen.append(p.residuals.copy()), **options)
    return np.array(seen), x


def numbers(backend):
    """Everything that has to have the same bits whatever the number of ranks, by name."""
    U, psi = problem()
    out = {}
    with lqcd.use_backend(backend[0], **backend[1]) if isinstance(backend, tuple) else lqcd.use_backend(backend):
        out["plaquette"] = np.array(gauge.plaquette(U))
    for name, definition in OPERATORS.items():
        bound = definition.bind(U, backend=backend, n_rhs=2)
        for method in ("__call__", "dagger", "normal"):
            out[f"{name} {method}"] = getattr(bound, method)(psi)
        out[f"{name} residuals"], out[f"{name} x"] = history(bound, psi, even_odd=name != "wilson")
    return out


def bits(folder):
    """The numbers, and what the backend says of itself."""
    np.savez(folder / f"bits-{RANK}.npz", **numbers(BACKEND))
    facts = REGISTRY.load(*BACKEND).instance.describe()
    (folder / f"facts-{RANK}.json").write_text(json.dumps(facts))


def inner(folder):
    """Operators and solves with another inner backend, in each precision of that case."""
    np.savez(folder / f"inner-{RANK}.npz", **inner_numbers(BACKEND))


def inner_numbers(backend):
    """M, M^dagger and the solution of each operator in double and single, by name."""
    U, psi = problem()
    out = {}
    for precision, tol in (("double", 1e-9), ("single", 1e-4)):
        b = psi.astype(as_precision(precision).complex_dtype)
        for name, definition in OPERATORS.items():
            bound = definition.bind(U, backend=backend, precision=precision, n_rhs=2)
            out[f"{precision} {name} M"], out[f"{precision} {name} Mdag"] = bound(b), bound.dagger(b)
            out[f"{precision} {name} x"], _ = lqcd.solve(bound, b, lqcd.ConjugateGradient(tol=tol))
    return out


def propagator(folder):
    """A whole propagator on a tiny lattice."""
    U, _ = problem(T=8)
    D = OPERATORS["clover"].bind(U, backend=BACKEND, n_rhs=12)
    made = lqcd.propagator(D, lqcd.point_source(U.geometry), lqcd.ConjugateGradient(tol=1e-8))
    np.save(folder / f"propagator-{RANK}.npy", made.array)


WRITTEN = {
    "point": ("clover", lambda U: lqcd.point_source(U.geometry, 3, 1, 2, 1), {}),
    "wall": ("wilson", lambda U: lqcd.wall_source(U.geometry, 5), {"even_odd": False, "batch": 5}),
    "smeared": ("twisted", lambda U: lqcd.smeared_source(lqcd.noise_source(U.geometry, 3, "z4"), U, 1.0, 2), {}),
}
"""Propagators that ranks write: operator, source and options of the solve, by name of the file."""


def written(name, backend):
    """(operator, source, solver, options) of one of them, the solver in two precisions for the twisted one."""
    operator, source, options = WRITTEN[name]
    U, _ = problem()
    solver = lqcd.ConjugateGradient(tol=1e-8)
    if operator == "twisted":
        solver = lqcd.MixedPrecision(inner=solver, precision="single")
    return OPERATORS[operator].bind(U, backend=backend, n_rhs=12), source(U), solver, options


def slabs(folder):
    """Propagators made, held and written slab by slab; what the host held at most is written down."""
    from lqcd_backends.sharded import files
    from lqcd_backends.sharded.slab import SlabSpace

    seen, pack = [], SlabSpace.pack
    SlabSpace.pack = lambda self, array: seen.append(np.shape(array)[1]) or pack(self, array)
    for name in WRITTEN:
        M, source, solver, options = written(name, BACKEND)
        files.propagator(M, source, solver, folder / f"{name}.h5", **options)
    M, source, solver, options = written("point", BACKEND)
    said = {"slices": sorted(set(seen))}
    for what, path in (("suffix", folder / "a.npy"), ("directory", folder / "nowhere" / "a.h5")):
        try:
            files.propagator(M, source, solver, path)
        except lqcd.LQCDError as error:
            said[what] = type(error).__name__
    (folder / f"slabs-{RANK}.json").write_text(json.dumps(said))


def failing_write(folder):
    """The victim cannot write its slab: all say so; then it dies while it should write, and no new file is left."""
    from lqcd_backends.sharded import files

    from lqcd_core.io import PropagatorLayout

    M, source, solver, _ = written("point", BACKEND)
    write = PropagatorLayout.write

    def full(self, t_start, slices):
        if RANK == VICTIM:
            raise lqcd.errors.FileError("cannot write: the disk of the victim is full.")
        return write(self, t_start, slices)

    PropagatorLayout.write = full
    try:
        files.propagator(M, source, solver, folder / "S.h5")
    except lqcd.LQCDError as error:
        (folder / f"full-{RANK}").write_text(f"{error} {error.__cause__}")
    PropagatorLayout.write = lambda *a: os.kill(os.getpid(), signal.SIGKILL) if RANK == VICTIM else write(*a)
    files.propagator(M, source, solver, folder / "S.h5")


def files(folder):
    """Every rank reads its slab of a good, a damaged and a missing file, and a propagator is written once."""
    from lqcd_backends.sharded import files

    said = {}
    for name in ("good.ildg", "good.nersc", "bad.ildg", "bad.nersc", "missing.ildg"):
        try:
            said[name] = files.read_gauge(folder / name, BACKEND).digest()
        except lqcd.LQCDError as error:
            said[name] = type(error).__name__
    g = lqcd.LatticeGeometry(T=8, Z=2, Y=4, X=2)
    S = lqcd.Propagator(g, np.arange(g.volume * 144).reshape(*g.shape, 4, 4, 3, 3) + 0j)
    files.write_propagator(S, folder / "written.npy", BACKEND)
    said["there"] = (folder / "written.npy").exists()
    try:
        files.write_propagator(S, folder / "nowhere" / "written.npy", BACKEND)
    except lqcd.LQCDError as error:
        said["nowhere"] = type(error).__name__
    (folder / f"files-{RANK}.json").write_text(json.dumps(said))


def endless(at_iteration):
    """Solves without end, with something done by the victim on the way."""
    U, b = problem()
    M = OPERATORS["wilson"].bind(U, backend=BACKEND, n_rhs=2)

    seen = []

    def callback(progress):
        seen.append(progress.iteration)
        if len(seen) == 4:
            at_iteration()

    while True:
        lqcd.solve(M, b, lqcd.ConjugateGradient(tol=1e-8), callback=callback)


def killed(folder):
    """The victim dies in mid-solve."""
    endless(lambda: RANK == VICTIM and os.kill(os.getpid(), signal.SIGKILL))


def hung(folder):
    """The victim stops in mid-solve; when that was, and when the others had their error, is written down."""

    def stop():
        if RANK == VICTIM:
            (folder / "stopped").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        endless(stop)
    except lqcd.LQCDError:
        (folder / f"ended-{RANK}").write_text(str(time.time()))
        raise


def raising(folder):
    """The victim's script fails between two calls."""

    def fail():
        if RANK == VICTIM:
            raise ZeroDivisionError("of the victim")

    endless(fail)


def leaving(folder):
    """The victim's script ends after the bind, without an error and without the solve that the others make."""
    U, b = problem()
    M = OPERATORS["wilson"].bind(U, backend=BACKEND, n_rhs=2)
    if RANK == VICTIM:
        (folder / "stopped").write_text(str(time.time()))
        sys.exit(0)
    try:
        lqcd.solve(M, b, lqcd.ConjugateGradient(tol=1e-8))
    finally:
        (folder / f"ended-{RANK}").write_text(str(time.time()))


def interrupted(folder):
    """Solves until a signal comes from outside; the process id is written down once it iterates."""
    endless(lambda: (folder / f"begun-{RANK}").write_text(str(os.getpid())))


def network(folder):
    """Solve until something happens to the network; says when it began, and what the error was after how long."""

    def begun():
        (folder / f"begun-{RANK}").touch()

    try:
        endless(begun)
    except lqcd.LQCDError as error:
        (folder / f"error-{RANK}").write_text(f"{time.time()}\n{error}")
        raise


def poison(instance):
    """The victim's hopping term returns a NaN from its fourth application."""
    count = [0]
    make = type(instance).halo_hopping

    def halo_hopping(links, space):
        hop = make(instance, links, space)
        exterior = hop.exterior

        class Poisoned:
            faces, interior = hop.faces, hop.interior

            def exterior(self, *arguments):
                out, count[0] = exterior(*arguments), count[0] + 1
                if count[0] >= 4:
                    out[...] = np.nan
                return out

        return Poisoned()

    instance.halo_hopping = halo_hopping


def nan(folder):
    """The victim computes NaN."""
    if RANK == VICTIM:
        poison(REGISTRY.load("numpy", {}).instance)
    endless(lambda: None)


def mismatch(what):
    """A bind to which the victim gives something else."""
    odd = RANK == VICTIM
    T, seed, mass, precision = 8, 4, 0.8, "double"
    T = 10 if odd and what == "lattice" else T
    g = lqcd.LatticeGeometry(T=T, Z=2, Y=4, X=2)
    U = lqcd.GaugeField.random(g, seed=5 if odd and what == "links" else seed)
    mass = 0.9 if odd and what == "mass" else mass
    precision = "single" if odd and what == "precision" else precision
    boundary = (1, 1, 1, 1) if odd and what == "boundary" else (-1, 1, 1, 1)
    M = lqcd.WilsonDirac(mass=mass, boundary=boundary).bind(U, backend=BACKEND, precision=precision, n_rhs=1)
    b = np.ones((1, *g.spinor_shape), complex)
    if odd and what == "source":  # the last bit of one number, in a slab that this rank does not work on
        b[0, 0, 1, 0, 0, 2, 1] = np.nextafter(1.0, 2.0)
    if what == "source":
        lqcd.solve(M, b, lqcd.ConjugateGradient(tol=0.5), callback=lambda p: sys.exit("it has begun"))
    M.space.norm2(M.apply(M.space.pack(b)))


def mismatches(folder):
    """Each kind of mismatch, one after the other in one launch; the messages by kind."""
    said = {}
    for what in ("lattice", "links", "precision", "boundary", "mass", "source"):
        try:
            mismatch(what)
        except lqcd.LQCDError as error:
            said[what] = f"{type(error).__name__}: {error}"
    (folder / f"said-{RANK}.json").write_text(json.dumps(said))


def version(folder):
    """The victim has another version."""
    if RANK == VICTIM:
        from lqcd_backends.sharded import ranks

        ranks.__version__ = "0.0.9"
    problem_, _ = problem()
    OPERATORS["wilson"].bind(problem_, backend=BACKEND)


def scalars(folder):
    """The victim multiplies by another number: the next sum must notice."""
    U, psi = problem()
    M = OPERATORS["wilson"].bind(U, backend=BACKEND, n_rhs=2)
    x = M.space.scale(2.0 if RANK != VICTIM else 2.5, M.space.pack(psi))
    M.space.norm2(x)


def main():
    """Run the case."""
    globals()[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()

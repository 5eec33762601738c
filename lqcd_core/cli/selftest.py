"""``lqcd selftest``: published numbers and laws on every backend of this machine, as a table for a bug report."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import numpy as np

from ..machine import usable_processors, versions
from .program import DONE, FAILED, LQCDCommand
from .progress import Progress
from .screen import as_json, bytes_text, facts, table
from .settings import Assignment, backend_choice

_SEED = 20240229
_VARIABLES = ("LQCD_BACKEND", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PACKAGES = ("lqcd-core", "numpy", "attrs", "pluggy", "ml_dtypes", "h5py", "matplotlib", "click", "rich")


@attrs.frozen
class Check:
    """One comparison."""

    backend: str
    """Where it ran; ``core`` if no backend was involved."""
    name: str
    """What was compared."""
    found: str
    """The number found, or the error."""
    expected: str
    """The number expected, with its origin in a word."""
    difference: float | None
    """Relative difference (or statistical distance in sigma), None if there is none."""
    allowed: float | None
    """Largest difference allowed."""
    ok: bool
    """True if it passed."""
    seconds: float = 0.0
    """Wall time."""


@click.command("selftest", cls=LQCDCommand)
@click.option("--backend", "names", multiple=True, help="Only this backend (may be repeated).")
@click.option("--option", "options", type=Assignment(), multiple=True, help="Option of the one backend named.")
@click.option("--json", is_flag=True, help="Machine-readable output.")
@click.option("--quiet", "-q", is_flag=True, help="Print failures and the verdict only.")
def command(names, options, json, quiet):
    """Reproduce numbers of Grid, exact free-field and Haar values and the laws of the operators on every backend.

    Takes less than a minute. Exit code 1 if anything differs; the table is what a bug report should contain.
    """
    from ..errors import ParameterError

    if options and len(names) != 1:
        raise ParameterError("--option goes with exactly one --backend.")
    began = time.perf_counter()
    machine = _machine()
    backends, absent = _backends(names, options)
    plan = [("core", c) for c in _core_checks()] + [
        (label, c) for label, choice in backends.items() for c in _backend_checks(label, choice)
    ]
    checks: list[Check] = []
    with Progress("selftest", len(plan), quiet=quiet or json) as bar:
        for k, (label, (name, function)) in enumerate(plan):
            bar.update(k, f"{label}: {name}")
            checks += _run(label, name, function)
    failed = [c for c in checks if not c.ok]
    seconds = time.perf_counter() - began
    # A backend that was named and cannot run is a failure; one that is merely installed and cannot is a fact.
    bad = bool(failed) or any(n in absent for n in names)
    if json:
        as_json({
            "machine": machine, "absent": absent, "passed": not bad, "seconds": seconds,
            "checks": [attrs.asdict(c) for c in checks],
        })  # fmt: skip
        return FAILED if bad else DONE
    if not quiet:
        facts(machine.items())
    shown = failed if quiet else checks
    if shown:
        table(
            "", ("backend", "check", "found", "expected", "difference", "allowed", ""), [_row(c) for c in shown],
            ["" if c.ok else "bold red" for c in shown],
        )  # fmt: skip
    for name, reason in absent.items():
        print(f"not tested: {name} {reason}")
    total = len(checks)
    print(f"{'FAILED' if bad else 'passed'}: {total - len(failed)} of {total} checks in {seconds:.1f} s")
    return FAILED if bad else DONE


def _row(c: Check):
    difference = "" if c.difference is None else f"{c.difference:.1e}"
    allowed = "" if c.allowed is None else f"{c.allowed:.1e}"
    return (c.backend, c.name, c.found, c.expected, difference, allowed, "ok" if c.ok else "FAILED")


def _run(label: str, name: str, function: Callable[[], Iterator]) -> list[Check]:
    """Run one group; an error is a failed check, not the end."""
    out = []
    began = time.perf_counter()
    try:
        for found, expected, difference, allowed, what in function():
            now = time.perf_counter()
            ok = bool(difference <= allowed)  # NaN fails
            out.append(
                Check(label, what or name, _text(found), _text(expected), float(difference), allowed, ok, now - began)
            )
            began = now
    except Exception as error:  # whatever a stranger's backend raises belongs in the report
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        out.append(Check(label, name, text, "no error", None, None, False, time.perf_counter() - began))
    return out


def _text(value) -> str:
    return value if isinstance(value, str) else f"{value:.12g}"


def _published(found: float, number, what: str):
    return found, number.value, abs(found / number.value - 1), number.tolerance, what


# -- the machine -------------------------------------------------------------------------------------------------------


def _machine() -> dict[str, str]:
    from .memory import available_memory, total_memory

    total, free = total_memory(), available_memory()
    memory = "unknown" if total is None else f"{bytes_text(total)}, {bytes_text(free)} available"
    out = {
        "packages": versions(_PACKAGES),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}, {sys.byteorder}-endian",
        "processors": f"{usable_processors()} usable of {os.cpu_count()}",
        "memory": memory,
    }
    for name in _VARIABLES:
        if name in os.environ:
            out[name] = os.environ[name]
    return out


def _backends(names, options) -> tuple[dict[str, Any], dict[str, str]]:
    """Backends that start here, by label, as ``backend=`` takes them; and the others with the reason."""
    from ..errors import BackendUnavailable
    from ..registry import REGISTRY

    records = REGISTRY.records()
    for name in names:
        REGISTRY.record(name)
    usable, absent = {}, {f"plugin {k}": f"was left out: {v}" for k, v in REGISTRY.broken.items()}
    for name in names or sorted(records):
        if records[name].wraps and not names:
            absent[name] = "wraps another backend: test it with --backend"
            continue
        try:
            REGISTRY.load(name, dict(options))
        except BackendUnavailable as error:
            absent[name] = str(error)
        else:
            usable[name] = backend_choice(name, options)
    return usable, absent


# -- without a backend -------------------------------------------------------------------------------------------------


def _core_checks():
    return [
        ("Grid plaquette", _grid_plaquette), ("Haar moments", _haar), ("heatbath", _heatbath), ("free field", _free_field),
        ("files", _files),
    ]  # fmt: skip


def _grid_plaquette():
    from ..gauge import plaquette
    from .published import GRID, grid_links

    yield _published(plaquette(grid_links()), GRID["plaquette"], "Grid: plaquette")


def _haar():
    from ..fields import haar
    from .published import HAAR_SU3

    u = haar(3, _SEED, "gauge", range(10000), 4).reshape(-1, 3, 3)
    yield (
        float(abs(np.linalg.det(u) - 1).max()),
        "0",
        float(abs(np.linalg.det(u) - 1).max()),
        1e-13,
        "SU(3): |det U - 1|",
    )
    trace = np.trace(u, axis1=-2, axis2=-1)
    samples = {
        "<|tr U|^2>": abs(trace) ** 2, "<|tr U|^4>": abs(trace) ** 4, "<|tr U|^6>": abs(trace) ** 6,
        "<Re (tr U)^3>": (trace**3).real,
    }  # fmt: skip
    for name, values in samples.items():
        error = values.std(ddof=1) / np.sqrt(len(values))
        sigmas = abs(values.mean() - HAAR_SU3[name]) / error
        yield f"{values.mean():.4f} +- {error:.4f}", f"{HAAR_SU3[name]:g}", sigmas, 4.0, f"SU(3) Haar: {name} (sigma)"


def _heatbath():
    """The same chain twice gives the same bits, and stays in SU(3)."""
    from ..gauge import generate
    from ..geometry import LatticeGeometry

    def run():
        chain = generate(
            LatticeGeometry(T=4, Z=2, Y=2, X=2), 6.0, _SEED, thermalization=4, separation=1, configurations=1
        )
        return next(chain)[1]

    one, two = run(), run()
    same = 0.0 if one.digest() == two.digest() else 1.0
    yield ("equal" if same == 0 else "different"), "equal", same, 0.0, "heatbath: bits of two equal chains"
    yield one.unitarity(), "0", one.unitarity(), 1e-12, "heatbath: links in SU(3)"


def _free_field():
    from ..free_field import free_pion_correlator
    from ..geometry import LatticeGeometry
    from .published import FREE_PION

    found = free_pion_correlator(LatticeGeometry(T=8, Z=4, Y=4, X=4), mass=0.1)
    worst = float(np.abs(found[: len(FREE_PION)] - FREE_PION).max())
    yield found[4], FREE_PION[4], worst, 1e-12, "free pion, momentum sum"


def _files():
    from ..fields import GaugeField
    from ..geometry import LatticeGeometry
    from ..io import inspect_gauge, read_gauge, write_gauge

    U = GaugeField.random(LatticeGeometry(T=4, Z=2, Y=2, X=2), seed=_SEED)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ildg", "nersc", "scidac"):
            path = Path(folder) / f"a.{name}"
            write_gauge(U, path, format=name)
            difference = float(abs(read_gauge(path).array - U.array).max())
            ok = inspect_gauge(path).ok
            yield (
                f"checks {'ok' if ok else 'WRONG'}",
                "equal",
                difference if ok else 1.0,
                0.0,
                f"file {name}: write, read",
            )


# -- on a backend ------------------------------------------------------------------------------------------------------


def _backend_checks(label: str, choice):
    from ..registry import REGISTRY

    info = REGISTRY.record(label)
    checks = []
    if "double" in info.precisions:
        checks += [
            ("Grid operators", lambda: _grid_operators(choice)), ("Grid solve", lambda: _grid_solve(choice)),
            ("free pion", lambda: _free_pion(choice)), ("laws", lambda: _laws(choice, "double")),
        ]  # fmt: skip
    from ..precision import PRECISIONS

    checks += [
        (f"laws in {p}", lambda p=p: _laws(choice, p)) for p in PRECISIONS if p in info.precisions and p != "double"
    ]
    return checks


def _norm2(a) -> float:
    return float(np.sum(a.real**2) + np.sum(a.imag**2))


def _grid_operators(choice):
    from ..operators import CloverWilsonDirac, WilsonDirac
    from .published import GRID, grid_links, grid_spinor

    links, psi = grid_links(), grid_spinor()
    yield _published(_norm2(psi), GRID["norm2 of the source psi"], "Grid: norm2 psi")
    M = WilsonDirac(mass=0.1, boundary="periodic").bind(links, backend=choice, precision="double")
    yield _published(_norm2(M.hop(psi)), GRID["norm2 of Dhop psi"], "Grid: norm2 Dhop psi")
    hop_dagger = psi * (4 + 0.1) - M.dagger(psi)
    yield _published(_norm2(hop_dagger), GRID["norm2 of Dhop^dagger psi"], "Grid: norm2 Dhop^dagger psi")
    yield _published(_norm2(M(psi)), GRID["norm2 of M psi, Wilson m = 0.1"], "Grid: norm2 M psi, Wilson")
    C = CloverWilsonDirac(mass=0.1, csw=1.0, boundary="periodic").bind(links, backend=choice, precision="double")
    yield _published(_norm2(C(psi)), GRID["norm2 of M psi, clover m = 0.1, csw = 1"], "Grid: norm2 M psi, clover")


def _grid_solve(choice):
    from ..geometry import ODD
    from ..operators import WilsonDirac
    from ..solvers import ConjugateGradient
    from .published import GRID, GRID_ITERATIONS, grid_links, grid_spinor

    M = WilsonDirac(mass=0.1, boundary="periodic").bind(grid_links(), backend=choice, precision="double")
    S = M.even_odd(parity=ODD, form="asymmetric")
    b, _ = S.split(grid_spinor()[None])
    x, info = ConjugateGradient(tol=1e-10).solve_handles(S.normal_linear, b)
    number = GRID["norm2 of x, even-odd CG on the odd sites, m = 0.1"]
    yield _published(float(S.vectors.norm2(x)[0]), number, "Grid: norm2 x, even-odd CG")
    # Rounding may move the last step by one.
    yield info.iterations, GRID_ITERATIONS, abs(info.iterations - GRID_ITERATIONS), 1, "Grid: iterations of that CG"


def _free_pion(choice):
    from ..fields import GaugeField
    from ..geometry import LatticeGeometry
    from ..hadrons import pion_correlator, point_source
    from ..hadrons.propagator import propagator
    from ..operators import WilsonDirac
    from ..solvers import ConjugateGradient
    from .published import FREE_PION

    g = LatticeGeometry(T=8, Z=4, Y=4, X=4)
    M = WilsonDirac(mass=0.1).bind(GaugeField.cold(g), backend=choice, precision="double", n_rhs=12)
    found = pion_correlator(propagator(M, point_source(g), ConjugateGradient(tol=1e-12)))
    worst = float(np.abs(found[: len(FREE_PION)] - FREE_PION).max() / FREE_PION[0])
    yield found[4], FREE_PION[4], worst, 1e-11, "free pion, solved"


def _laws(choice, precision):
    """The laws on a lattice of four different extents where each direction can be told apart."""
    from ..fields import ColorSpinorField, GaugeField, random_gauge_rotation
    from ..geometry import LatticeGeometry
    from ..operators import CloverWilsonDirac
    from ..precision import as_precision

    p = as_precision(precision)
    g = LatticeGeometry(T=8, Z=4, Y=2, X=6)
    U = GaugeField.random(g, seed=_SEED)
    psi = ColorSpinorField.gaussian(g, seed=_SEED, n_rhs=3).array
    phi = ColorSpinorField.gaussian(g, seed=_SEED + 1, n_rhs=3).array
    D = CloverWilsonDirac(mass=0.1, csw=1.3, boundary=(-1, 1, 1, 1))
    tag = f", {precision}" if precision != "double" else ""

    def bound(links, n_rhs=3, precision=precision, backend=choice):
        return D.bind(links, backend=backend, precision=precision, n_rhs=n_rhs, check_links=False)

    def apply(operator, x):  # through handles: a 16-bit operator takes wide fields, the rounding is what is tested
        return operator.map_batches(lambda part: operator.space.unpack(operator.apply(operator.space.pack(part))), x)

    def apart(a, b):
        return float(np.sqrt(_norm2(np.asarray(a - b, complex)) / _norm2(np.asarray(b, complex))))

    M = bound(U)
    found = apply(M, psi)
    reference = bound(U, precision="double", backend=_reference())
    exact = apply(reference, psi)
    yield "M psi", "the reference in double", apart(found, exact), max(p.tolerance, 1e-14), f"agreement{tag}"
    if precision == "double":
        left = np.vdot(phi, found)
        dagger = M.space.unpack(M.apply_dagger(M.space.pack(phi)))
        scale = np.sqrt(_norm2(phi) * _norm2(found))
        yield "<phi, M psi>", "<M^dagger phi, psi>", abs(left - np.vdot(dagger, psi)) / scale, p.tolerance, "adjoint"
        rotation = random_gauge_rotation(g, seed=_SEED)
        turned = apply(bound(U.gauge_transform(rotation)), np.einsum("...ab,n...sb->n...sa", rotation, psi))
        law = apart(turned, np.einsum("...ab,n...sb->n...sa", rotation, found))
        yield "M[U^g] g psi", "g M[U] psi", law, 2 * p.tolerance, "gauge covariance"
        one = bound(U, n_rhs=1)
        single = np.concatenate([apply(one, psi[k : k + 1]) for k in range(3)])
        yield "three together", "one by one", apart(found, single), p.tolerance, "columns are independent"
        yield from _schur_law(M, psi, found, apart, p)
    repeated = apply(bound(U), psi)
    same = 0.0 if np.array_equal(repeated, found) else apart(repeated, found)
    yield "two binds", "equal", same, p.tolerance, f"two binds agree{tag}"


def _schur_law(M, psi, found, apart, p):
    r"""If M x = b then Mhat x_e = bhat and x_o comes back from x_e."""
    S = M.even_odd(form="symmetric")
    x_e, x_o = S.split(psi)
    b_e, b_o = S.split(found)
    left, right = S.v[0].unpack(S.apply(x_e)), S.v[0].unpack(S.prepare(b_e, b_o))
    # The inverse of A amplifies rounding by its condition number, a few units here.
    yield "Mhat x", "prepared b", apart(left, right), 20 * p.tolerance, "even-odd: Schur complement"
    back = S.v[1].unpack(S.reconstruct(x_e, b_o))
    yield "reconstructed x", "x", apart(back, S.v[1].unpack(x_o)), 20 * p.tolerance, "even-odd: reconstruction"


def _reference() -> str:
    """The reference backend: the one of lowest rank that serves double precision and wraps nothing."""
    from ..registry import REGISTRY

    usable = [r for r in REGISTRY.records().values() if "double" in r.precisions and not r.wraps]
    return min(usable, key=lambda r: (r.rank, r.name)).name

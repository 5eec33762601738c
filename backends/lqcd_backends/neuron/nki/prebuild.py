"""Fill the kernel cache on a machine that has a compiler and needs no device; ship the folder to one that has neither compiler nor time.

    python -m lqcd_backends.neuron.nki.prebuild --target trn2 --lnc 2 --lattice 32,16,16,16 --precision single,half --rhs 1,12

Kernels depend on the lattice, the precision and the number of right-hand sides, never on links, masses or csw.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence

from lqcd_core.errors import LQCDError, ParameterError
from lqcd_core.geometry import EVEN, FULL, ODD, LatticeGeometry
from lqcd_core.precision import Precision, as_precision

from ..cache import Cache
from .blas_specs import OPERATIONS
from .catalogue import Catalogue
from .driver import TARGETS, Compiler, KernelStore

COMPLEX = {"axpy": (1.0, 1j), "axpy_norm2": (1.0, 1j)}
"""Vector kernels that exist for real and for complex coefficients."""
FORMS = ("scalar", "twist", "blocks")
"""Site-diagonal terms: Wilson, twisted mass, clover."""


def kernels(
    catalogue: Catalogue, geometry: LatticeGeometry, precisions: Sequence[Precision], n_rhs: int, forms: Iterable[str] = FORMS,
    even_odd: bool = True,
) -> Iterator:  # fmt: skip
    """Specifications of every kernel that operators and solvers on this lattice may launch.

    Parameters
    ----------
    catalogue
        For a target.
    geometry, precisions, n_rhs
        What operators will be bound for.
    forms
        Names of FORMS.
    even_odd
        The parity kernels too, where the lattice has parities.
    """
    parities = [FULL, EVEN, ODD] if even_odd and geometry.why_no_parity() is None else [FULL]
    for parity in parities:
        layouts = [catalogue.layout(geometry, p, n_rhs, parity) for p in precisions]
        for layout in layouts:
            yield catalogue.hop(layout)[0]
            for form in forms:
                yield catalogue.site(layout, form)
                if parity is FULL:
                    yield from (catalogue.dirac(layout, form, dagger) for dagger in (False, True))
                    yield from (s for s in (catalogue.normal(layout, form),) if s is not None)
            yield from vector_kernels(catalogue, layout)


def vector_kernels(catalogue: Catalogue, layout) -> Iterator:
    """Specifications of every vector update and sum."""
    for what in OPERATIONS:
        for a in COMPLEX.get(what, (1.0,)):
            yield catalogue.blas(what, layout, a)[0]
    yield catalogue.blas("scale", layout, 1.0, gamma5=True)[0]


def prebuild(
    target: str, lnc: int, lattice: Sequence[int], precisions: Sequence[str], counts: Sequence[int], *, forms: Sequence[str] = FORMS,
    even_odd: bool = True, formulation: str = "auto", python: str | None = None, root: str | None = None, say=print,
) -> int:  # fmt: skip
    """Compile what is missing; the number of kernels that are in the cache afterwards.

    Raises
    ------
    CompilerUnavailable
        Without the compiler: a build machine needs one.
    CompileError
        If it refuses a kernel.
    """
    compiler = Compiler(target, lnc, python)
    facts = compiler.facts()
    store = KernelStore(compiler, facts.stand_in, Cache("nki", root))
    catalogue = Catalogue(target, lnc, formulation)
    geometry = LatticeGeometry.from_shape(tuple(lattice))
    wanted = [as_precision(p) for p in precisions]
    done: set[str] = set()
    for n in counts:
        for p in wanted:
            reason = catalogue.why_not(geometry, p, n)
            if reason:
                raise ParameterError(f"backend 'neuron-nki' {reason}.")
        for spec in kernels(catalogue, geometry, wanted, n, forms, even_odd):
            if spec.digest not in done:
                before = store.compiled
                store.neff(spec)
                done.add(spec.digest)
                say(f"{'compiled' if store.compiled > before else 'there'}: {spec.name}")
    mark = f" {facts.stand_in}: not for hardware." if facts.stand_in else ""
    say(f"{len(done)} kernels for {target} (lnc={lnc}) by nki {facts.nki} in {store.cache.folder}.{mark}")
    return len(done)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m lqcd_backends.neuron.nki.prebuild", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--target", required=True, choices=sorted(TARGETS))
    parser.add_argument(
        "--lnc",
        type=int,
        default=1,
        help="physical cores per logical core, as the run machine is set (Trn2 and Trn3: 2 unless set)",
    )
    parser.add_argument("--lattice", required=True, help="T,Z,Y,X")
    parser.add_argument("--precision", default="single,half", help="of single, half, bf16; several with commas")
    parser.add_argument("--rhs", default="1,12", help="right-hand sides; several with commas")
    parser.add_argument("--forms", default=",".join(FORMS), help="of scalar (Wilson), twist, blocks (clover)")
    parser.add_argument("--no-even-odd", action="store_true", help="leave the parity kernels out")
    parser.add_argument("--formulation", default="auto", choices=("auto", "vector", "tensor"))
    parser.add_argument("--python", help="interpreter of the compiler's environment")
    parser.add_argument("--cache", help="folder; the usual cache if left out")
    a = parser.parse_args(arguments)
    try:
        lattice, counts = ([int(n) for n in text.split(",")] for text in (a.lattice, a.rhs))
    except ValueError:
        parser.error(f"--lattice and --rhs take whole numbers with commas, got {a.lattice!r} and {a.rhs!r}")
    wrong = sorted(set(a.forms.split(",")) - set(FORMS))
    if wrong:
        parser.error(f"--forms has no {', '.join(wrong)}; known: {', '.join(FORMS)}")
    try:
        prebuild(a.target, a.lnc, lattice, a.precision.split(","), counts, forms=a.forms.split(","), even_odd=not a.no_even_odd,
                 formulation=a.formulation, python=a.python, root=a.cache)  # fmt: skip
    except LQCDError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

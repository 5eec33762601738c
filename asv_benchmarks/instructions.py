"""Instructions per site of the native kernels, counted by callgrind: a number that no other program on the machine can move.

    python asv_benchmarks/instructions.py            # compare with the record
    python asv_benchmarks/instructions.py --record   # replace the record, to be committed with the change of the kernels

The kernels run on AVX2 whatever the processor has (valgrind knows no AVX-512), with one thread and the fixed schedule. Each
is called once to warm up and then counted alone, the call from Python included: a few thousand instructions in hundreds of thousands.
The compiler decides on instructions, so there is one record per compiler; with another one there is nothing to compare.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RECORD = Path(__file__).with_name("instructions.json")
ALLOWED = 1.03
"""Growth over the record that is not yet a failure."""
LATTICE = (8, 8, 4, 4)
CASES = [
    *((operator, precision, n) for operator in ("hop", "clover", "schur") for precision in ("single", "double") for n in (1, 4)),
    *((operation, precision, 4) for operation in ("axpy", "norm2", "cg_update") for precision in ("single", "double")),
]  # fmt: skip
MARKS = r"""
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
"""A library by which the process under valgrind says where counting begins and ends."""


def why_not() -> str | None:
    """None if the counting can be done here, else the reason."""
    for tool in ("valgrind", "cc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    try:
        from lqcd_native import _native
    except ImportError as error:
        return f"the plugin lqcd-native is not installed: {error}"
    if "avx2" not in _native.instruction_sets():
        return "the plugin has no AVX2 kernels that run here"
    return None


def compiler() -> str:
    """The compiler of the installed kernels, to its major version: ``gcc 12``."""
    from lqcd_native import _native

    return re.match(r"\w+ \d+", _native.compiler)[0]


def name_of(case) -> str:
    """Key of a case in the record."""
    operation, precision, n = case
    return f"{operation} {precision} n_rhs={n}"


def count(cases=CASES) -> dict[str, float]:
    """Instructions per site and right-hand side of each case, by running this file under callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "marks.c"
        source.write_text(MARKS)
        library = Path(folder) / "marks.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
        environment = {
            **os.environ, "LQCD_NATIVE_ISA": "avx2", "LQCD_TUNE": "off", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0", "LQCD_BACKEND": "native",
        }  # fmt: skip
        out = Path(folder) / "counts"
        done = subprocess.run(
            [
                "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", sys.executable,
                str(Path(__file__).resolve()), "--marks", str(library), "--cases", json.dumps(cases),
            ],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"valgrind ended with code {done.returncode}: {done.stderr[-2000:]}")
        found = {}
        for path in Path(folder).glob("counts.*"):
            text = path.read_text()
            name = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
            if name and name[1] in map(name_of, cases):
                found[name[1]] = float(re.search(r"^(?:totals|summary): (\d+)", text, re.M)[1])
    missing = [name_of(c) for c in cases if name_of(c) not in found]
    if missing:
        raise RuntimeError(f"no counts of {missing}: {done.stderr[-2000:]}")
    if not all(found.values()):
        raise RuntimeError("callgrind counted nothing: do the client requests work with this valgrind?")
    volume = LATTICE[0] * LATTICE[1] * LATTICE[2] * LATTICE[3]
    return {name_of(c): round(found[name_of(c)] / volume / c[2], 2) for c in cases}


def run(library: str, cases) -> None:
    """What happens under valgrind: every case once to warm up, once counted."""
    from lqcd_core.bench.case import bound
    from lqcd_core.bench.work import WORK

    marks = ctypes.CDLL(library)
    backend = ("native", {"threads": 1})
    for case in cases:
        operation, precision, n = case
        function, x, _, made = bound(operation if operation in WORK else "hop", LATTICE, precision, n, backend)
        if operation not in WORK:
            function = _vector_operation(operation, made.vectors, x)
        function(x)
        marks.begin()
        function(x)
        marks.end(name_of(case).encode())


def _vector_operation(operation: str, vectors, x):
    y, z, w = (vectors.copy(x) for _ in range(3))
    return {
        "axpy": lambda x: vectors.axpy(1e-3, x, y), "norm2": vectors.norm2,
        "cg_update": lambda x: vectors.cg_update(1e-3, x, y, z, w),
    }[operation]  # fmt: skip


def compare(found: dict[str, float], record: dict[str, float]) -> list[str]:
    """Sentences on what grew by more than is allowed, or has no record."""
    out = []
    for name, now in found.items():
        then = record.get(name)
        if then is None:
            out.append(f"{name}: {now:.1f} instructions a site, no record")
        elif now > ALLOWED * then:
            out.append(
                f"{name}: {now:.1f} instructions a site, {100 * (now / then - 1):.1f} % above the recorded {then:.1f}"
            )
    return out


def recorded() -> dict[str, dict[str, float]]:
    """The record, by compiler."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="replace the record of this compiler")
    parser.add_argument("--marks", help=argparse.SUPPRESS)
    parser.add_argument("--cases", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.marks:
        run(arguments.marks, json.loads(arguments.cases))
        return 0
    reason = why_not()
    if reason:
        print(f"cannot count: {reason}")
        return 2
    found, known = count(), recorded()
    for name, now in found.items():
        print(f"{name:28} {now:10.2f} instructions a site and right-hand side")
    if arguments.record:
        RECORD.write_text(json.dumps({**known, compiler(): found}, indent=1, sort_keys=True) + "\n")
        print(f"recorded for {compiler()} in {RECORD.name}")
        return 0
    if compiler() not in known:
        print(f"no record for {compiler()}; there are {', '.join(known) or 'none'}")
        return 2
    grown = compare(found, known[compiler()])
    print("\n".join(grown) or "nothing grew by more than 3 %")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())

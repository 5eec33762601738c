"""The compile driver: kernels become NEFFs in a process, and if you like an environment, of their own.

A NEFF comes from calling the ``@nki.jit`` function on arrays with NKI_ARTIFACTS_DIR set; ``kernel.neff`` is left there even
when execution then fails because there is no device. That is the documented way; no compiler internals are used.

Environment
-----------
LQCD_NEURON_PYTHON
    Interpreter of the environment that has nki and neuronx-cc; this one if it is not set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs

from lqcd_core.errors import BackendError, BackendUnavailable, ParameterError

from ..cache import Cache
from .neff import read_header

VARIABLE = "LQCD_NEURON_PYTHON"
NKI_VERSION = "0.7"
"""The NKI release (SDK 2.33) that the kernels are written against; the compiler must be of it."""
TARGETS = {"trn1": "gen2", "inf2": "gen2", "trn2": "gen3", "trn3": "gen4"}
"""Generation by compiler target."""
WORKER = Path(__file__).with_name("compile_worker.py")


class CompilerUnavailable(BackendUnavailable):
    """There is no compiler, or not the one that is asked for. A prebuilt cache needs none."""


class CompileError(BackendError):
    """The compiler refused a kernel."""


@attrs.frozen(kw_only=True)
class CompilerFacts:
    """What would compile."""

    nki: str
    """Version of NKI."""
    neuronx_cc: str
    """Version of neuronx-cc."""
    stand_in: str
    """Empty for a compiler; a label for a stand-in."""
    python: str
    """Version of its interpreter."""

    def key(self) -> dict[str, str]:
        """The part of a cache key that names the compiler."""
        return {"nki": self.nki, "neuronx-cc": self.neuronx_cc, "stand_in": self.stand_in}


def check_target(target: str, lnc: int) -> None:
    """Raise :class:`ParameterError` unless a target and a number of physical cores per logical one go together."""
    if target not in TARGETS:
        raise ParameterError(f"target {target!r} is unknown; known: {', '.join(TARGETS)}.")
    if lnc not in (1, 2) or (lnc == 2 and TARGETS[target] == "gen2"):
        raise ParameterError(
            f"lnc={lnc!r} does not exist on {target}: {'1' if TARGETS[target] == 'gen2' else '1 or 2'}."
        )


def _own_package_first(environment: dict[str, str]) -> dict[str, str]:
    # A value left over from this process's session must not decide what the compiler does.
    drop = ("NKI_SIMULATOR", "NKI_ARTIFACTS_DIR", "NEURON_PLATFORM_TARGET_OVERRIDE", "NEURON_LOGICAL_NC_CONFIG")
    return {k: v for k, v in environment.items() if k not in drop}


class Compiler:
    """Compiles kernels for one target.

    Parameters
    ----------
    target, lnc
        ``trn1``, ``inf2``, ``trn2`` or ``trn3``; physical cores per logical core.
    python
        Interpreter; None: ``$LQCD_NEURON_PYTHON``, else this one.
    nki_version
        Release that must be found, a prefix; None: the one the kernels are written against.
    timeout
        Seconds for one kernel.
    """

    def __init__(
        self,
        target: str,
        lnc: int = 1,
        python: str | None = None,
        nki_version: str | None = None,
        timeout: float = 3600.0,
    ):
        check_target(target, lnc)
        self.target, self.lnc, self.timeout = target, lnc, timeout
        self.python = python or os.environ.get(VARIABLE) or sys.executable
        self.nki_version = nki_version or NKI_VERSION
        self._facts: CompilerFacts | None = None

    def facts(self) -> CompilerFacts:
        """Versions, asked once.

        Raises
        ------
        CompilerUnavailable
            Without nki in that environment, or with another release of it.
        """
        if self._facts is None:
            with tempfile.TemporaryDirectory(prefix="lqcd-nki-") as folder:
                answer = self._run(["versions"], Path(folder), {}, min(self.timeout, 300.0))
            where = f"of {self.python} ({VARIABLE} names another)"
            if answer["error"] or not answer["nki"]:
                raise CompilerUnavailable(
                    f"no NKI compiler in the environment {where}: {answer['error'] or 'nki does not say its version'}; install nki "
                    f"{self.nki_version} and neuronx-cc from the Neuron SDK's repository there, or ship a prebuilt cache"
                )
            if not _same_release(answer["nki"], self.nki_version):
                raise CompilerUnavailable(
                    f"the kernels are written against nki {self.nki_version} and the environment {where} has nki {answer['nki']}; "
                    f"install that release (SDK 2.33 for 0.7), or set the option nki_version={'.'.join(answer['nki'].split('.')[:2])!r} to try"
                )
            self._facts = CompilerFacts(
                nki=answer["nki"], neuronx_cc=answer["neuronx-cc"], stand_in=answer["stand_in"], python=answer["python"]
            )  # fmt: skip
        return self._facts

    def compile(self, spec, folder: Path) -> None:
        """Compile a :class:`KernelSpec` and put ``kernel.neff`` into a folder.

        Raises
        ------
        CompileError
            With the compiler's own words.
        """
        with tempfile.TemporaryDirectory(prefix="lqcd-nki-") as temporary:
            work = Path(temporary)
            artifacts = work / "artifacts"
            artifacts.mkdir()
            request = work / "request.json"
            request.write_text(json.dumps(as_request(spec)))
            environment = {"NKI_ARTIFACTS_DIR": str(artifacts), "NEURON_PLATFORM_TARGET_OVERRIDE": self.target}
            if TARGETS[self.target] != "gen2":  # to be left unset there
                environment["NEURON_LOGICAL_NC_CONFIG"] = str(self.lnc)
            answer = self._run(["compile", str(request)], work, environment, self.timeout)
            if not answer["neff"]:
                raise CompileError(
                    f"the NKI compiler made nothing of {spec.name} for {self.target} (lnc={self.lnc}): {answer['error'] or 'it gave no reason'}"
                )
            neff = Path(answer["neff"]).read_bytes()
            check_neff(neff, self.lnc, spec.name)
            (folder / "kernel.neff").write_bytes(neff)

    def _run(self, arguments: list[str], work: Path, environment: dict[str, str], timeout: float) -> dict[str, Any]:
        result = work / "result.json"
        command = [self.python, str(WORKER), *arguments, str(result)]
        try:
            done = subprocess.run(
                command, env={**_own_package_first(dict(os.environ)), **environment}, cwd=work, timeout=timeout, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise CompilerUnavailable(f"{VARIABLE}={self.python!r} is not an interpreter: {error}") from error
        except PermissionError as error:
            raise CompilerUnavailable(f"{VARIABLE}={self.python!r} cannot be run: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise CompileError(
                f"the NKI compiler did not end in {timeout:g} s; raise the option compile_timeout"
            ) from error
        try:
            return json.loads(result.read_text())
        except (OSError, ValueError):
            tail = " ".join(done.stdout.split())[-600:]
            raise CompileError(f"the compiler's process ended with {done.returncode} and no result: {tail}") from None


def _same_release(found: str, wanted: str) -> bool:
    return found.split(".")[: len(wanted.split("."))] == wanted.split(".")


def as_request(spec) -> dict[str, Any]:
    """A kernel's specification as plain data, for the worker."""
    inputs = [{"name": a.name, "shape": list(a.shape), "dtype": a.dtype} for a in spec.inputs]
    return {"function": spec.function, "inputs": inputs, "constants": dict(spec.constants)}


def check_neff(neff: bytes, lnc: int, what: str) -> None:
    """Raise :class:`CompileError` if a NEFF is not for this many physical cores per logical one."""
    head = read_header(neff, f"the NEFF of {what}")
    if (head.lnc or 1) != lnc:
        raise CompileError(
            f"the NEFF of {what} was compiled for {head.lnc or 1} physical core(s) per logical core and the machine is set to {lnc}; "
            "set NEURON_LOGICAL_NC_CONFIG and the option lnc to one value, for the compiler and for the runtime"
        )


class KernelStore:
    """NEFFs by kernel, target, LNC and compiler: from the cache, or compiled into it.

    On a machine without a compiler the entries that were shipped are used: those made from this very kernel, for this target
    and LNC, by a compiler of the release asked for.

    Parameters
    ----------
    compiler
        Compiles what is missing.
    stand_in
        Label of the runtime that will run the kernels; '' for libnrt. Entries of a stand-in compiler are for a stand-in runtime only.
    cache
        None: the cache ``nki`` of :func:`lqcd_backends.neuron.cache.cache_root`.
    """

    def __init__(self, compiler: Compiler, stand_in: str = "", cache: Cache | None = None):
        self.compiler, self.stand_in = compiler, stand_in
        self.cache = cache or Cache("nki")
        self.compiled = self.found = 0
        self._missing: CompilerUnavailable | None = None

    def neff(self, spec) -> bytes:
        """The NEFF of a kernel.

        Raises
        ------
        CompilerUnavailable
            If it is not in the cache and there is nothing to compile it with.
        CompileError
            If the compiler refuses it.
        """
        facts = self._facts()
        if facts is None:
            folder = self._shipped(spec)
        else:
            if bool(facts.stand_in) != bool(self.stand_in):
                raise CompilerUnavailable(
                    f"the compiler is {facts.stand_in or 'nki ' + facts.nki} and the runtime is {self.stand_in or 'libnrt'}: a stand-in "
                    "goes with a stand-in only; unset LQCD_NEURON_PYTHON or LQCD_NEURON_LIBRARY"
                )
            folder, there = self.cache.fetch(
                self.key(spec, facts.key()), lambda work: self.compiler.compile(spec, work)
            )
            self.found, self.compiled = self.found + there, self.compiled + (not there)
        neff = (folder / "kernel.neff").read_bytes()
        check_neff(neff, self.compiler.lnc, spec.name)
        return neff

    def key(self, spec, compiler: dict[str, str]) -> dict[str, Any]:
        """All that a compiled kernel depends on."""
        return {"kernel": spec.key(), "target": self.compiler.target, "lnc": self.compiler.lnc, "compiler": compiler}

    def _facts(self) -> CompilerFacts | None:
        if self._missing is not None:
            return None
        try:
            return self.compiler.facts()
        except CompilerUnavailable as error:
            self._missing = error  # asked once: the answer does not change while a program runs
            return None

    def _shipped(self, spec) -> Path:
        wanted = json.loads(json.dumps(self.key(spec, {})))
        others, best = [], None
        for folder, key in self.cache.entries():
            made_by = key.get("compiler") or {}
            if {**key, "compiler": {}} != wanted or bool(made_by.get("stand_in")) != bool(self.stand_in):
                continue
            if not _same_release(str(made_by.get("nki", "")), self.compiler.nki_version):
                others.append(str(made_by.get("nki")))
            elif self.cache.is_whole(folder, key):
                best = max(best or ("", folder), (str(made_by.get("neuronx-cc", "")), folder))
        if best is not None:
            self.found += 1
            return best[1]
        stale = f" (there is one made by nki {', '.join(sorted(set(others)))})" if others else ""
        raise CompilerUnavailable(
            f"{spec.name} for {self.compiler.target} (lnc={self.compiler.lnc}) is not in the cache {self.cache.folder}{stale}, and {self._missing}"
        )


__all__ = ["NKI_VERSION", "TARGETS", "CompileError", "Compiler", "CompilerFacts", "CompilerUnavailable", "KernelStore", "as_request",
           "check_neff", "check_target"]  # fmt: skip

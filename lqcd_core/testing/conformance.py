"""The classes that authors of backends subclass. A whole test file::

    from lqcd_core.testing.conformance import BackendConformance

    class TestMine(BackendConformance):
        backend = "mine"

That runs every law of :mod:`lqcd_core.testing.laws` in every precision that the record lists, for several lattices and
numbers of colours. A case that the backend says it cannot serve is skipped with its own sentence; an optional protocol
that it does not implement is skipped too, because the core derives it.

A gap that you know of stays visible: ``known_gaps = {"nan_passes_through": "kernel clamps"}`` makes that law a *strict*
expected failure, so the day it is mended the suite says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from ..errors import UnknownOptionError, nearest
from ..precision import PRECISIONS
from ..registry import REGISTRY, registered
from .laws import GROUPS, LAWS, Case, NotApplicable, check, lacks


class _Conformance:
    backend: ClassVar[str] = ""
    """Registered name of the backend under test."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options it is made with."""
    plugin: ClassVar[Any] = None
    """A plugin object to register around the tests, for a backend that is not installed; None: it is."""
    precisions: ClassVar[Sequence[str] | None] = None
    """Precisions to test; None: all that the record lists."""
    ncs: ClassVar[Sequence[int]] = (3, 2, 4)
    """Numbers of colours; the first is tested in every precision and on every lattice, the others once."""
    lattices: ClassVar[Sequence[tuple[int, int, int, int]]] = ((4, 2, 6, 2), (3, 2, 1, 5))
    """Extents (T, Z, Y, X): by default even and unequal, and a set with 1, 2 and odd numbers."""
    n_rhs: ClassVar[int] = 3
    """Columns of a batch, at least 2."""
    known_gaps: ClassVar[Mapping[str, str]] = {}
    """Law name -> reason: strict expected failures."""
    groups: ClassVar[Sequence[str]] = ()
    must_implement: ClassVar[bool] = False

    @classmethod
    def cases(cls) -> list[Case]:
        """The cases that the laws run over."""
        record = REGISTRY.record(cls.backend)
        names = list(cls.precisions or sorted(record.precisions, key=list(PRECISIONS).index))
        triples = [(p, cls.ncs[0], lattice) for p in names for lattice in cls.lattices]
        triples += [(names[0], nc, cls.lattices[0]) for nc in cls.ncs[1:]]
        return [
            Case(backend=cls.backend, options=cls.options, precision=p, lattice=tuple(lattice), nc=nc, n_rhs=cls.n_rhs)
            for p, nc, lattice in triples
        ]

    def pytest_generate_tests(self, metafunc):
        """Parametrise over laws and cases; called by pytest when it collects the subclass."""
        if not self.backend:
            raise UnknownOptionError(f"{type(self).__name__} needs the class attribute backend = '<registered name>'.")
        laws = [law for law in LAWS.values() if law.group in self.groups]
        with registered(self.plugin):
            cases = self.cases()
        for name in self.known_gaps:
            if name not in LAWS:
                raise UnknownOptionError(f"known_gaps names no law {name!r}; {nearest(name, LAWS)}")
        parameters = []
        for law in laws:
            reason = self.known_gaps.get(law.name)
            marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)] if reason else []
            for case in cases:
                extents = "x".join(map(str, case.lattice))
                label = f"{law.name}-{case.precision}-nc{case.nc}-{extents}"
                parameters.append(pytest.param(law.name, case, id=label, marks=marks))
        metafunc.parametrize(("law", "case"), parameters)

    @pytest.mark.lqcd_conformance
    def test_law(self, law: str, case: Case):
        """One law on one case."""
        with registered(self.plugin):
            missing = lacks(case, LAWS[law].group) if self.must_implement and case.why_not() is None else None
            assert not missing, missing
            try:
                check(law, case)
            except NotApplicable as reason:
                pytest.skip(str(reason))


class BackendConformance(_Conformance):
    """Every law. Subclass it with ``backend = "name"``; that is the whole test file."""

    groups = tuple(GROUPS)


class EvenOddConformance(_Conformance):
    """The laws of SupportsEvenOdd, which the backend must implement."""

    groups, must_implement = ("even_odd",), True


class SiteDiagonalConformance(_Conformance):
    """The laws of SupportsSiteDiagonal."""

    groups, must_implement = ("site_diagonal",), True


class FusedDiracConformance(_Conformance):
    """The laws of SupportsFusedDirac."""

    groups, must_implement = ("fused_dirac",), True


class FusedBLASConformance(_Conformance):
    """The laws of SupportsFusedBLAS."""

    groups, must_implement = ("fused_blas",), True


class SlicesConformance(_Conformance):
    """The laws of SupportsSlices."""

    groups, must_implement = ("exact_slices",), True


class FusedSlicesConformance(_Conformance):
    """The laws of SupportsFusedSlices."""

    groups, must_implement = ("fused_slices",), True


class ColumnsConformance(_Conformance):
    """The laws of SupportsColumns."""

    groups, must_implement = ("columns",), True


class ConversionConformance(_Conformance):
    """The laws of SupportsConversion."""

    groups, must_implement = ("conversion",), True


class ArraysConformance(_Conformance):
    """The laws of SupportsArrays."""

    groups, must_implement = ("arrays",), True


class DeviceSolveConformance(_Conformance):
    """The laws of SupportsDeviceSolve."""

    groups, must_implement = ("device_solve",), True


class GaugeConformance(_Conformance):
    """The laws of SupportsGauge."""

    groups, must_implement = ("gauge",), True


class HaloConformance(_Conformance):
    """The laws of SupportsHalo."""

    groups, must_implement = ("halo",), True


class FusedHaloConformance(_Conformance):
    """The laws of SupportsFusedHalo."""

    groups, must_implement = ("fused_halo",), True


class DescribesConformance(_Conformance):
    """The laws of Describes."""

    groups, must_implement = ("describes",), True

"""Every backend of this distribution obeys every law."""

from lqcd_core.testing.conformance import BackendConformance, EvenOddConformance, SiteDiagonalConformance


class TestNumpy(BackendConformance):
    backend = "numpy"


class TestNumpyEvenOdd(EvenOddConformance):
    backend, precisions, ncs = "numpy", ("double",), (3,)


class TestNumpySiteDiagonal(SiteDiagonalConformance):
    backend, precisions, ncs = "numpy", ("double",), (3,)


class TestTorch(BackendConformance):
    backend = "torch"

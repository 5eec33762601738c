"""Every backend of this distribution obeys every law."""

from lqcd_core.testing.conformance import BackendConformance


class TestNumpy(BackendConformance):
    backend = "numpy"

from lqcd_core.testing.conformance import BackendConformance


class TestExample(BackendConformance):
    backend = "example"

"""Tests as public API: what the authors of backends subclass, and a fake backend that keeps the core honest.

    reference.py      H, the clover term and M by explicit loops over sites: the numbers that laws compare with
    laws.py           the laws every backend obeys, as plain functions (no pytest)
    conformance.py    the classes that authors subclass (pytest)
    loopback.py       a fake backend whose handles are opaque and whose sites are in a scrambled order
    pytest_plugin.py  markers and fixtures: ``pytest_plugins = ["lqcd_core.testing.pytest_plugin"]``

Nothing is imported here, so that the loopback backend and the laws work where pytest is not installed.
"""

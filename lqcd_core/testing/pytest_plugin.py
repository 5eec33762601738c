"""Pytest plugin for authors of backends. In ``conftest.py``::

    pytest_plugins = ["lqcd_core.testing.pytest_plugin"]

It declares the marker ``lqcd_conformance`` (so that ``--strict-markers`` works and ``-m lqcd_conformance`` selects the
laws) and brings two fixtures:

``loopback``
    the two fake backends, registered for the length of a test; yields their names;
``session_backend``
    restores the session's choice of backend after a test that calls ``use_backend`` plainly.
"""

from __future__ import annotations

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "lqcd_conformance: a law that every backend obeys (lqcd_core.testing.laws)")


@pytest.fixture
def loopback():
    """Names of the fake backends, registered inside the test."""
    from .loopback import register_loopback

    with register_loopback() as names:
        yield names


@pytest.fixture
def session_backend():
    """Undo what ``use_backend`` and ``prefer_backends`` leave behind."""
    from ..selection import restored_session

    with restored_session():
        yield

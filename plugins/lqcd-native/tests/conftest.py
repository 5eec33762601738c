import pytest

pytest_plugins = ["lqcd_core.testing.pytest_plugin"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's measurements."""
    monkeypatch.setenv("LQCD_NATIVE_CACHE", str(tmp_path))

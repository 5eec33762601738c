pytest_plugins = ["lqcd_core.testing.pytest_plugin"]

"""SIMD kernels for the CPU as a plugin of lqcd_core: the backend ``native``. Importing this imports no kernel."""

__version__ = "0.1.0"

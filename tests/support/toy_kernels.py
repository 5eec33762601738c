"""Kernels that are plain functions of NumPy arrays: for tests of the runtime that need no lattice."""

import os

import numpy as np


def toy(function):
    if "NKI_ARTIFACTS_DIR" in os.environ:  # the compiler's process
        import nki

        kernel = nki.toy_jit(function)
    else:
        kernel = function
    kernel.toy = True
    return kernel


@toy
def add_scaled(x, y, scalars):
    """y + a x"""
    return y + scalars[0, 0] * x


@toy
def sum_and_difference(x, y):
    return x + y, x - y


@toy
def passed(x, factor=1):
    return factor * x


@toy
def broken(x):
    raise FloatingPointError("the kernel is broken")


@toy
def not_a_number(x):
    return x * np.float32(np.nan)

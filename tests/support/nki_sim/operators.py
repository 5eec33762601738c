"""Arithmetic of the engines. ``nl.add`` and its like are both an operator of an instruction and a function of tiles."""

import math

import numpy as np

_BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal, "less": np.less,
    "less_equal": np.less_equal, "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "power": np.power,
    "abs_max": lambda a, b: np.maximum(np.abs(a), np.abs(b)), "abs_min": lambda a, b: np.minimum(np.abs(a), np.abs(b)),
}  # fmt: skip
_BITS = {
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift, "right_shift": np.right_shift,
}  # fmt: skip
_erf = np.vectorize(math.erf, otypes=[np.float32])
_UNARY = {
    "copy": lambda x: x, "square": np.square, "abs": np.abs, "sign": np.sign, "exp": np.exp, "log": np.log, "sin": np.sin,
    "arctan": np.arctan, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, np.float32(0)), "erf": _erf,
}  # fmt: skip
RANGES = {
    "sin": (-math.pi, math.pi), "arctan": (-math.pi / 2, math.pi / 2), "log": (2.0**-64, 2.0**64), "sqrt": (2.0**-116, 2.0**118),
    "rsqrt": (2.0**-87, 2.0**97),
}  # fmt: skip
RECIPROCAL = (2.0**-42, 2.0**42)
REDUCTIONS = (
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
)
IDENTITY = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}


def binary(name):
    """The NumPy function of a two-operand arithmetic operator, results in float32."""
    function = _BINARY[name]
    return lambda a, b: np.asarray(function(a, b), np.float32)


def is_binary(op):
    return getattr(op, "_nki", None) in _BINARY


def is_bits(op):
    return getattr(op, "_nki", None) in _BITS


def is_activation(op):
    return getattr(op, "_nki", None) in _UNARY


def bits(name):
    return _BITS[name]


def unary(name):
    return lambda x: np.asarray(_UNARY[name](x), np.float32)


def label(op):
    """For messages."""
    return "nl." + op._nki if hasattr(op, "_nki") else repr(op)

"""``nki.language`` data types (strings, as documented) and their NumPy storage."""

import ml_dtypes
import numpy as np

from .errors import refuse

STORAGE = {
    "bool": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),  # only for scalar_load and scalar_store
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "tfloat32": np.dtype(np.float32),  # a four-byte container; the tensor engine reads ten bits of mantissa
    "float32": np.dtype(np.float32),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
}
PACKED = ("float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4")
UNINITIALISED_INTEGER = 4  # what the official simulator leaves in integer memory


def is_integer(dtype: str) -> bool:
    return dtype in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def name_of(dtype, where="nki.language") -> str:
    """The NKI name of a dtype given as an NKI string or found on a NumPy array."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name in PACKED:
        refuse(where, "dtype (packed types are not in the stand-in)", name, sorted(STORAGE))
    if name not in STORAGE:
        refuse(where, "dtype (no complex and no float64 on the device)", name, sorted(STORAGE))
    return name


def itemsize(dtype: str) -> int:
    return STORAGE[dtype].itemsize


def poison(array: np.ndarray) -> None:
    """Uninitialised memory: NaN for floats, 4 for integers."""
    array[...] = UNINITIALISED_INTEGER if array.dtype.kind in "iu" else np.nan


def to_float(array: np.ndarray) -> np.ndarray:
    """Into the float32 in which the engines compute."""
    return np.asarray(array, np.float32)


def tf32(array: np.ndarray) -> np.ndarray:
    """Ten bits of mantissa, round to nearest even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(array), rounded.view(np.float32), array)


def store(where: np.ndarray, value: np.ndarray) -> None:
    """Write a float32 result in the storage type: integers round half to even and saturate."""
    value = np.asarray(value).reshape(where.shape)
    if where.dtype.kind in "iu" and value.dtype.kind not in "iub":
        info = np.iinfo(where.dtype)
        wide = np.rint(value.astype(np.float64))
        where[...] = np.clip(np.where(np.isnan(wide), 0, wide), info.min, info.max).astype(where.dtype)
    else:
        where[...] = value.astype(where.dtype)

"""Element types of MLX's kernels as numpy arrays. bfloat16, which numpy lacks, is its bits."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# What MLX calls them: in the names of kernels, and in C++.
NAMES = {"float32": "float", "float16": "float16_t", "bfloat16": "bfloat16_t"}


def random(seed: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Standard normal values of a type."""
    return encode(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def encode(values: Array, dtype: str) -> Array:
    """float32 rounded to the type, ties to even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def decode(array: Array) -> Array:
    """The values as float64."""
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)

"""From NumPy to MLX and back, strides and shared memory included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

Array = np.ndarray | mx.array


def to_mlx(*arrays: Array) -> list[mx.array]:
    """The same values and strides, in memory of MLX's own.

    NumPy arrays whose memory overlaps become views of one buffer. Arrays of MLX are taken as they
    are. bfloat16 is ``ml_dtypes.bfloat16`` in NumPy.
    """
    converted: dict[int, mx.array] = {}
    for group in _overlapping([a for a in arrays if isinstance(a, np.ndarray)]):
        for array, view in zip(group, _views(group), strict=True):
            converted[id(array)] = view
    return [a if isinstance(a, mx.array) else converted[id(a)] for a in arrays]


def like(example: Array, array: mx.array) -> Any:
    """``array`` as NumPy, if ``example`` is."""
    if isinstance(example, mx.array):
        return array
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(example.dtype)
    return np.array(array)


def _overlapping(arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    groups: list[list[np.ndarray]] = []
    for array in arrays:
        for group in groups:
            if any(np.may_share_memory(array, other) for other in group):
                group.append(array)
                break
        else:
            groups.append([array])
    return groups


def _views(arrays: Sequence[np.ndarray]) -> list[mx.array]:
    """Views of one copy of the memory from the arrays' first byte to their last."""
    dtype = arrays[0].dtype
    if any(array.dtype != dtype for array in arrays):
        raise ValueError("arrays that share memory must share a dtype")
    bounds = [_bounds(array) for array in arrays]
    first, last = min(low for low, _ in bounds), max(high for _, high in bounds)
    if first == last:
        return [mx.zeros(array.shape, _mlx_dtype(dtype)) for array in arrays]
    owner = next(a for a, (low, _) in zip(arrays, bounds, strict=True) if low == first)
    flat = _flat(owner, first, (last - first) // dtype.itemsize)
    views = []
    for array in arrays:
        offset = (_address(array) - first) // dtype.itemsize
        strides = tuple(stride // dtype.itemsize for stride in array.strides)
        views.append(mx.as_strided(flat, array.shape, strides, offset))
    mx.eval(views)
    return views


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _bounds(array: np.ndarray) -> tuple[int, int]:
    """Addresses of the first byte and of the one past the last."""
    address = _address(array)
    if array.size == 0:
        return address, address
    spans = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(span for span in spans if span < 0)
    high = sum(span for span in spans if span > 0)
    return address + low, address + high + array.itemsize


def _flat(owner: np.ndarray, address: int, size: int) -> mx.array:
    dtype = owner.dtype
    is_bfloat16 = dtype.name == "bfloat16"
    interface = {
        "data": (address, True),
        "shape": (size,),
        "typestr": "<u2" if is_bfloat16 else dtype.str,
        "version": 3,
    }
    holder = type("Memory", (), {"__array_interface__": interface, "owner": owner})()
    flat = mx.array(np.array(holder))
    return flat.view(mx.bfloat16) if is_bfloat16 else flat


def _mlx_dtype(dtype: np.dtype) -> mx.Dtype:
    return getattr(mx, dtype.name)

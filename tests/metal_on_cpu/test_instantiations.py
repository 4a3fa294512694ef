"""Every instantiation that the launch plan can choose compiles, runs, and is right."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import mlx.core as mx
import numpy as np
import pytest

from tests.metal_on_cpu import host, operators
from tests.metal_on_cpu.instantiations import (
    ALL_HEAD_DIMS,
    METAL_TYPES,
    expected_kernels,
    run_kernels,
)
from tests.support.instantiations import TYPICAL_HEAD_DIMS, marked


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    """Processes, because most of the time goes to the compiler."""
    host.build()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as executor:
        yield executor


@pytest.mark.parametrize(
    "head_dims",
    marked(((dims,) for dims in ALL_HEAD_DIMS), lambda dims: dims in TYPICAL_HEAD_DIMS),
)
def test_attention_kernels(head_dims: tuple[int, int], pool: Executor) -> None:
    runs = {dtype: pool.submit(run_kernels, head_dims, dtype) for dtype in METAL_TYPES}
    for dtype, run in runs.items():
        assert run.result() == expected_kernels(head_dims, dtype)


@pytest.mark.parametrize(("dtype", "bits"), [(np.float16, "ushort"), (np.float32, "uint")])
def test_copying_kernels(dtype: type, bits: str) -> None:
    rng = np.random.default_rng(1)
    cache = rng.standard_normal((6, 8, 2, 64)).astype(dtype)
    # Keys whose last dimension is strided are packed first.
    tokens = mx.array(rng.standard_normal((64, 2, 3)).astype(dtype)).transpose(2, 1, 0)
    slots = mx.array([11, -1, 47], mx.int32)
    written, _ = operators.reshape_and_cache(
        tokens, tokens, mx.array(cache), mx.array(cache), slots
    )
    expected = cache.reshape(48, 2, 64).copy()
    expected[[11, 47]] = np.array(tokens)[[0, 2]]
    np.testing.assert_array_equal(np.array(written).reshape(48, 2, 64), expected)
    assert set(operators.last_launch().kernels) == {f"pack_{bits}", f"scatter_{bits}"}

"""Every instantiation that the launch plan can choose compiles, runs, and is right."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor

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

SIZES = [(head_dims, dtype) for head_dims in ALL_HEAD_DIMS for dtype in METAL_TYPES]


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[tuple[tuple[int, int], str], Future[set[str]]]]:
    """All of them, under way in other processes: most of the time goes to the compiler."""
    host.build()
    context = multiprocessing.get_context("spawn")
    pool: Executor
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        try:
            yield {size: pool.submit(run_kernels, *size) for size in SIZES}
        finally:
            pool.shutdown(cancel_futures=True)


@pytest.mark.ladder
@pytest.mark.parametrize(("head_dims", "dtype"), SIZES)
def test_attention_kernels(
    head_dims: tuple[int, int],
    dtype: str,
    runs: dict[tuple[tuple[int, int], str], Future[set[str]]],
) -> None:
    assert runs[head_dims, dtype].result() == expected_kernels(head_dims, dtype)


@pytest.mark.parametrize(("dtype", "bits"), [(np.float16, "ushort"), (np.float32, "uint")])
def test_copying_kernels(dtype: type, bits: str) -> None:
    rng = np.random.default_rng(1)
    cache = rng.standard_normal((6, 8, 2, 64)).astype(dtype)
    sources, destinations = np.array([4, 0, 1], np.int32), np.array([0, 1, 5], np.int32)
    expected = cache.copy()
    expected[destinations] = cache[sources]
    np.testing.assert_array_equal(operators.copy_blocks(cache, sources, destinations), expected)
    kernels = set(operators.last_launch().kernels)

    # Keys whose last dimension is strided are packed first.
    tokens = mx.array(rng.standard_normal((64, 2, 3)).astype(dtype)).transpose(2, 1, 0)
    slots = mx.array([11, -1, 47], mx.int32)
    written, _ = operators.reshape_and_cache(
        tokens, tokens, mx.array(cache), mx.array(cache), slots
    )
    expected = cache.reshape(48, 2, 64).copy()
    expected[[11, 47]] = np.array(tokens)[[0, 2]]
    np.testing.assert_array_equal(np.array(written).reshape(48, 2, 64), expected)
    kernels.update(operators.last_launch().kernels)
    assert kernels == {
        f"{name}_{bits}" for name in ("stage_blocks", "place_blocks", "pack", "scatter")
    }

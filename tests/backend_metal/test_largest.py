"""The largest element of rows that are cut up, against MLX's own."""

from __future__ import annotations

import backend_metal  # noqa: F401  # isort: skip
import mlx.core as mx
import numpy as np
import pytest

from backend_metal.engine.sampling.largest import LONG, MOST_IN_A_CHUNK, argmax, chunk_length

SIZES = [1, 100, LONG - 1, 32000, 65537, 128256, 151936, 262144]


@pytest.mark.parametrize("size", SIZES)
def test_it_is_mlx_own(size: int) -> None:
    random = np.random.default_rng(size)
    # Few values, so that there are ties, also between chunks; a row of nothing, and one that ends
    # with its largest.
    rows = random.integers(0, 50, (6, size)).astype(np.float32)
    rows[0] = -np.inf
    rows[1, :-1] = -np.inf
    rows[2] = 7.0
    found = argmax(mx.array(rows))
    assert found.dtype == mx.int32
    np.testing.assert_array_equal(found, rows.argmax(axis=-1))


@pytest.mark.parametrize("size", SIZES)
def test_chunks_are_equal_and_short(size: int) -> None:
    length = chunk_length(size)
    assert size % length == 0
    assert length == size or length <= MOST_IN_A_CHUNK
    # A prime number of tokens can't be cut.
    assert (length == size) == (size < LONG or size == 65537)

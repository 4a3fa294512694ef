"""Where the largest element of a long row is, found by as many threads as there are chunks.

MLX has one block of threads for each row, which takes it longer than all else that a small model
draws a token by.
"""

from __future__ import annotations

from functools import cache

import mlx.core as mx

LONG = 16384
"""Elements from which a row is cut up."""
MOST_IN_A_CHUNK = 2048


def argmax(x: mx.array) -> mx.array:
    """int32 ``[rows]``, ties by lower index, of float ``[rows, size]``."""
    rows, size = x.shape
    length = chunk_length(size)
    if length == size:
        return mx.argmax(x, axis=-1).astype(mx.int32)
    chunks = x.reshape(rows, -1, length)
    within = mx.argmax(chunks, axis=-1)
    largest = mx.take_along_axis(chunks, within[:, :, None], axis=-1)[:, :, 0]
    chunk = mx.argmax(largest, axis=-1, keepdims=True)
    index = chunk * length + mx.take_along_axis(within, chunk, axis=-1)
    return index[:, 0].astype(mx.int32)


@cache
def chunk_length(size: int) -> int:
    """Of the equal chunks of a long row; the row itself where it has none that are short."""
    if size < LONG:
        return size
    return next((length for length in range(MOST_IN_A_CHUNK, 127, -1) if size % length == 0), size)

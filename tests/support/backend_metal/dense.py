"""mlx-lm's models with caches of their own, and how far the paged model's logits are off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.devices.rotate_heads import RotateHeads
from backend_metal.devices.row_operators import RowOperators
from backend_metal.models.paged_model import PagedModel
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.packed_step import Chunk, forward, relative_rms, states_for


def dense_logits(model: nn.Module, tokens: np.ndarray, chunks: list[int]) -> np.ndarray:
    """mlx-lm's logits with its own cache, fed in chunks that end at ``chunks``."""
    cache = make_prompt_cache(model)
    starts = [0, *chunks[:-1]]
    parts = [
        model(mx.array(tokens[None, start:end]), cache=cache)[0]
        for start, end in zip(starts, chunks, strict=True)
    ]
    return np.array(mx.concatenate(parts).astype(mx.float32))


def tokens_of(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, tiny_models.VOCAB_SIZE, length, dtype=np.int32)


LENGTHS = (41, 33, 21)
CHUNKS = ([17, 38, 39, 40, 41], [30, 31, 32, 33], [21])
"""Where each sequence's chunks end."""


def sequences() -> list[np.ndarray]:
    return [tokens_of(length, seed) for seed, length in enumerate(LENGTHS)]


def mixed_batches_dense(network: nn.Module) -> list[np.ndarray]:
    """mlx-lm's logits of each of the sequences of ``mixed_batches``."""
    return [
        dense_logits(network, sequence, chunks)
        for sequence, chunks in zip(sequences(), CHUNKS, strict=True)
    ]


def mixed_batches(
    network: nn.Module,
    config: Mapping[str, Any],
    *,
    rotate: RotateHeads | None = None,
    rows: RowOperators | None = None,
) -> tuple[PagedModel, list[np.ndarray]]:
    """The paged model, and its logits of each sequence: chunked prefill and decode, three sequences
    of different progress in one step. ``rotate`` and ``rows``: as ``PagedModel`` takes them."""
    tokens = sequences()
    model = PagedModel(network, config, rotate=rotate, rows=rows)
    pool = KVCachePool(model.layers, num_blocks=14, block_size=8, dtype=model.dtype)
    states = states_for(model, num_slots=3)
    order = np.random.default_rng(7).permutation(14).astype(np.int32)
    tables = [order[:6], order[6:11], order[11:]]

    def chunk(sequence: int, start: int, end: int) -> Chunk:
        return Chunk(tokens[sequence], tables[sequence], start, end, slot=2 - sequence)

    actual: list[list[np.ndarray]] = [[], [], []]
    steps = [
        {0: (0, 17)},
        {1: (0, 30), 0: (17, 38)},
        {0: (38, 39), 1: (30, 31), 2: (0, 8)},
        {2: (8, 20), 0: (39, 40), 1: (31, 32)},
        {2: (20, 21), 1: (32, 33), 0: (40, 41)},
    ]
    for step in steps:
        logits = forward(model, pool, [chunk(seq, *span) for seq, span in step.items()], states)
        for sequence, rows in zip(step, logits, strict=True):
            actual[sequence].append(rows)
    return model, [np.concatenate(rows) for rows in actual]


def worst_error(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The relative RMS of the worst sequence."""
    return max(relative_rms(got, want) for got, want in zip(actual, expected, strict=True))


def median_error(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The relative RMS that half of all tokens have at most."""
    pairs = zip(np.concatenate(actual), np.concatenate(expected), strict=True)
    return float(np.median([relative_rms(got, want) for got, want in pairs]))

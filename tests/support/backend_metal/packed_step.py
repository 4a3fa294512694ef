"""Packed steps for tests: who has which tokens, and where their keys and values live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from backend_metal.attention.kv_cache import AttentionMetadata, KVCachePool
from backend_metal.models.paged_model import PagedModel


@dataclass
class Chunk:
    """Tokens ``start`` to ``end`` of a sequence whose blocks are ``table``."""

    token_ids: np.ndarray
    table: np.ndarray
    start: int
    end: int


def metadata_of(chunks: Sequence[Chunk], block_size: int) -> tuple[np.ndarray, AttentionMetadata]:
    """The positions and the metadata of one step."""
    positions = [np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks]
    slots = [
        chunk.table[p // block_size] * block_size + p % block_size
        for chunk, p in zip(chunks, positions, strict=True)
    ]
    widest = max(len(chunk.table) for chunk in chunks)
    tables = np.full((len(chunks), widest), -1, np.int32)
    for row, chunk in zip(tables, chunks, strict=True):
        row[: len(chunk.table)] = chunk.table
    query_lens = [len(p) for p in positions]
    metadata = AttentionMetadata(
        slot_mapping=ints(np.concatenate(slots)),
        block_tables=ints(tables),
        seq_lens=ints([chunk.end for chunk in chunks]),
        cu_seqlens_q=ints(np.cumsum([0, *query_lens])),
    )
    return np.concatenate(positions), metadata


def forward(model: PagedModel, pool: KVCachePool, chunks: Sequence[Chunk]) -> list[np.ndarray]:
    """Every token's logits, evaluated, a ``[num_tokens, vocab]`` for each chunk."""
    logits = lazy_forward(model, pool, chunks)
    mx.eval(logits, pool.evaluation_roots())
    ends = np.cumsum([chunk.end - chunk.start for chunk in chunks])
    return np.split(np.array(logits), ends[:-1])


def lazy_forward(model: PagedModel, pool: KVCachePool, chunks: Sequence[Chunk]) -> mx.array:
    positions, metadata = metadata_of(chunks, pool.block_size)
    tokens = np.concatenate([chunk.token_ids[chunk.start : chunk.end] for chunk in chunks])
    rows = ints(np.arange(len(tokens)))
    return model(ints(tokens), ints(positions), metadata, rows, pool).logits


def ints(values: np.ndarray | Sequence[int]) -> mx.array:
    return mx.array(np.asarray(values, dtype=np.int32))


def relative_rms(actual: np.ndarray, expected: np.ndarray) -> float:
    """RMS of the error over RMS of ``expected``."""
    expected = np.asarray(expected, np.float64)
    error = np.asarray(actual, np.float64) - expected
    return float(np.sqrt(np.mean(error**2)) / np.sqrt(np.mean(expected**2)))

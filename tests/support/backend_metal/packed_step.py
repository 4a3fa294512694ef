"""Packed steps for tests: who has which tokens, and where their keys and values live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from backend_metal.attention.kv_cache import AttentionMetadata, GroupedMetadata, KVCachePool
from backend_metal.attention.kv_groups import KVGroup
from backend_metal.models.paged_model import PagedModel
from backend_metal.recurrent import StateMetadata, StatePool, StepStates


@dataclass
class Chunk:
    """Tokens ``start`` to ``end`` of a sequence whose blocks are ``table``, and whose state is in
    ``slot``, where it was read from before this chunk unless ``read_slot`` is another."""

    token_ids: np.ndarray
    table: np.ndarray
    start: int
    end: int
    slot: int = 0
    read_slot: int | None = None


def metadata_of(
    chunks: Sequence[Chunk],
    block_size: int,
    groups: Sequence[KVGroup] = (KVGroup(None, ()),),
) -> tuple[np.ndarray, GroupedMetadata]:
    """The positions and the metadata of one step, for a pool whose groups share their tables."""
    positions = [np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks]
    metadata = [
        _group_metadata(chunks, block_size)
        if group.chunk is None
        else _group_metadata(_cut(chunks, group.chunk), block_size, group.chunk)
        for group in groups
    ]
    return np.concatenate(positions), metadata


def _cut(chunks: Sequence[Chunk], size: int) -> list[Chunk]:
    """With chunks of the model's own that a token sees: one for each run of tokens in one."""
    return [
        Chunk(chunk.token_ids, chunk.table, int(run[0]), int(run[-1]) + 1)
        for chunk in chunks
        for positions in [np.arange(chunk.start, chunk.end)]
        for run in np.split(positions, np.flatnonzero(np.diff(positions // size)) + 1)
    ]


def _group_metadata(
    chunks: Sequence[Chunk], block_size: int, size: int | None = None
) -> AttentionMetadata:
    """``size``: of chunks that a token sees, in one of which each of ``chunks`` lies."""
    origins = [0 if size is None else chunk.start // size * size for chunk in chunks]
    positions = [np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks]
    slots = [
        chunk.table[p // block_size] * block_size + p % block_size
        for chunk, p in zip(chunks, positions, strict=True)
    ]
    widest = max(len(chunk.table) for chunk in chunks)
    tables = np.full((len(chunks), widest), -1, np.int32)
    for row, chunk, origin in zip(tables, chunks, origins, strict=True):
        own = chunk.table[origin // block_size :]
        row[: len(own)] = own
    return AttentionMetadata(
        slot_mapping=ints(np.concatenate(slots)),
        block_tables=ints(tables),
        seq_lens=ints([chunk.end - origin for chunk, origin in zip(chunks, origins, strict=True)]),
        cu_seqlens_q=ints(np.cumsum([0, *(len(p) for p in positions)])),
    )


def state_metadata_of(chunks: Sequence[Chunk], num_slots: int) -> StateMetadata:
    reads = [
        chunk.read_slot if chunk.read_slot is not None else chunk.slot if chunk.start else -1
        for chunk in chunks
    ]
    metadata = StateMetadata.of(
        np.array(reads, np.int32),
        np.array([chunk.slot for chunk in chunks], np.int32),
        np.cumsum([0, *(chunk.end - chunk.start for chunk in chunks)]).astype(np.int32),
    )
    metadata.check_integrity(num_slots)
    return metadata


def forward(
    model: PagedModel,
    pool: KVCachePool,
    chunks: Sequence[Chunk],
    states: StatePool | None = None,
) -> list[np.ndarray]:
    """Every token's logits, evaluated, a ``[num_tokens, vocab]`` for each chunk."""
    logits = lazy_forward(model, pool, chunks, states)
    mx.eval(logits, pool.evaluation_roots(), [] if states is None else states.evaluation_roots())
    ends = np.cumsum([chunk.end - chunk.start for chunk in chunks])
    return np.split(np.array(logits.astype(mx.float32)), ends[:-1])


def lazy_forward(
    model: PagedModel,
    pool: KVCachePool,
    chunks: Sequence[Chunk],
    states: StatePool | None = None,
) -> mx.array:
    positions, metadata = metadata_of(chunks, pool.block_size, pool.groups)
    tokens = np.concatenate([chunk.token_ids[chunk.start : chunk.end] for chunk in chunks])
    rows = ints(np.arange(len(tokens)))
    step = None
    if states is not None:
        step = StepStates(states, state_metadata_of(chunks, states.num_slots))
    return model(ints(tokens), ints(positions), metadata, rows, pool, step).logits


def states_for(model: PagedModel, num_slots: int) -> StatePool | None:
    """What a step of ``model`` needs; None where it has no recurrent layers."""
    return StatePool(model.recurrent, num_slots) if model.recurrent else None


def ints(values: np.ndarray | Sequence[int]) -> mx.array:
    return mx.array(np.asarray(values, dtype=np.int32))


def relative_rms(actual: np.ndarray, expected: np.ndarray) -> float:
    """RMS of the error over RMS of ``expected``."""
    expected = np.asarray(expected, np.float64)
    error = np.asarray(actual, np.float64) - expected
    return float(np.sqrt(np.mean(error**2)) / np.sqrt(np.mean(expected**2)))

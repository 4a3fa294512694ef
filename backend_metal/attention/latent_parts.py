"""How the tokens of a step attend to latents, decided on the host: each in one of three ways.

Most attend to the latents themselves ("absorbed"). Many tokens of one sequence do better with the
keys and values of each head, decompressed for them (``DecompressionRule``). Where layers have an
index, a token that sees more keys than it may attend to chooses among them, by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.attention.layers import AttentionMetadata
from backend_metal.devices.recording import is_being_recorded

Ints = npt.NDArray[np.integer[Any]]

MOST_ELEMENTS = 2**25
"""Of the largest array that choosing, or attending to what was chosen, makes at a time."""
DECOMPRESSION_COST = 2
"""How much longer a product of decompression takes than one of attention, since what comes of it is
written and read again; by ``python -m ops.bench.latents`` on a CPU."""


@dataclass(frozen=True)
class DecompressionRule:
    """When a prompt's chunk attends to decompressed keys and values, by the products it takes."""

    absorbed: int
    """Dims of a latent with its rotary key, and of the latent: a pair of query and key, of a head,
    takes so many products as they are."""
    decompressed: int
    """The same of a head's own keys and values."""
    decompression: int
    """Products for a head's key and value."""

    def holds(self, num_queries: int, context: int) -> bool:
        pairs = num_queries * (context - num_queries // 2)
        gain = pairs * (self.absorbed - self.decompressed)
        return gain > context * self.decompression * DECOMPRESSION_COST


@dataclass(frozen=True)
class IndexSize:
    top_k: int
    num_heads: int


@dataclass(frozen=True)
class Prefill:
    """Tokens of one sequence that attend to decompressed keys and values."""

    start: int
    """First row of the step."""
    end: int
    blocks: mx.array
    """int32: its context's."""
    metadata: AttentionMetadata
    """Over these blocks, laid one behind another."""


@dataclass(frozen=True)
class Choosing:
    """``num_queries`` tokens of each of some sequences, which choose keys by an index."""

    rows: mx.array
    """int32 ``[sequences * num_queries]`` of the step, one sequence after another."""
    num_queries: int
    slots: mx.array
    """int32 ``[sequences, context]``: where keys are, by position; past a sequence's end its
    first."""
    positions: mx.array
    """int32 ``[sequences, num_queries, 1]``: the last key that each query sees."""


@dataclass(frozen=True)
class LatentParts:
    absorbed: AttentionMetadata | None
    """Of the tokens that attend to the latents; None: no token does."""
    absorbed_rows: mx.array | None
    prefills: tuple[Prefill, ...]
    choosing: tuple[Choosing, ...]
    order: mx.array
    """int32 ``[num_tokens]``: where in what was absorbed, chosen and decompressed, in this order,
    the result of each row is."""


def divide(
    metadata: AttentionMetadata,
    block_size: int,
    *,
    index: IndexSize | None = None,
    rule: DecompressionRule | None = None,
) -> LatentParts | None:
    """None where all tokens attend to the latents, and to all that they see.

    Args:
        index: of layers that choose.
        rule: None: nothing is decompressed.
    """
    num_tokens, num_seqs = metadata.slot_mapping.size, metadata.seq_lens.size
    all_seen = index is None or metadata.block_tables.shape[1] * block_size <= index.top_k
    # Read on the host only where it matters: of a recording, what it is replayed for is not known.
    if all_seen and (rule is None or num_tokens == num_seqs or is_being_recorded()):
        return None
    tables, lengths, bounds = (
        np.asarray(array)
        for array in (metadata.block_tables, metadata.seq_lens, metadata.cu_seqlens_q)
    )
    counts = np.diff(bounds)
    starts = lengths - counts
    plain = counts if index is None else np.clip(index.top_k - starts, 0, counts)
    ends = starts + plain
    decompressed = [
        rule is not None and rule.holds(int(count), int(end))
        for count, end in zip(plain, ends, strict=True)
    ]
    if not any(decompressed) and (plain == counts).all():
        return None
    absorbed = np.flatnonzero((plain > 0) & ~np.array(decompressed))
    prefills = tuple(
        _prefill(int(bounds[seq]), int(plain[seq]), int(ends[seq]), tables[seq], block_size)
        for seq in np.flatnonzero(decompressed)
    )
    chosen: list[tuple[Choosing, Ints]] = []
    if index is not None:
        context = _Context(tables, block_size, index)
        chosen = list(_choosing(context, bounds[:-1] + plain, ends, lengths))
    absorbed_rows = _ranges(bounds[absorbed], plain[absorbed])
    whole = [
        absorbed_rows,
        *(rows for _, rows in chosen),
        *(np.arange(one.start, one.end, dtype=np.int32) for one in prefills),
    ]
    return LatentParts(
        absorbed=_some(metadata, tables, absorbed, plain, ends) if absorbed.size else None,
        absorbed_rows=_array(absorbed_rows) if absorbed.size else None,
        prefills=prefills,
        choosing=tuple(one for one, _ in chosen),
        order=_array(np.argsort(np.concatenate(whole))),
    )


@dataclass(frozen=True)
class _Context:
    tables: Ints
    block_size: int
    index: IndexSize

    def slots(self, seqs: Ints, lengths: Ints) -> Ints:
        """``[len(seqs), longest]``"""
        positions = np.arange(lengths.max(), dtype=np.int32)
        positions = np.where(positions < lengths[:, None], positions, 0)
        blocks = np.take_along_axis(self.tables[seqs], positions // self.block_size, axis=1)
        slots: Ints = blocks * self.block_size + positions % self.block_size
        return slots

    def most_queries(self, context: int) -> int:
        """At a time, by what they take."""
        of_one = max(self.index.num_heads * context, self.index.top_k * LATENT_DIMS)
        return max(1, MOST_ELEMENTS // of_one)


LATENT_DIMS = 576
"""Of the widest latents in use."""


def _choosing(
    context: _Context, rows: Ints, starts: Ints, lengths: Ints
) -> Iterator[tuple[Choosing, Ints]]:
    """Of each sequence from position ``starts`` on, which is that of ``rows``."""
    counts = lengths - starts
    # By length, so that little is padded.
    steps = np.flatnonzero(counts == 1)
    steps = steps[np.argsort(lengths[steps], kind="stable")]
    while steps.size:
        number = context.most_queries(int(lengths[steps[-1]]))
        seqs, steps = steps[-number:], steps[:-number]
        yield _chosen(context, seqs, rows[seqs], 1, starts[seqs, None], lengths[seqs])
    for seq in np.flatnonzero(counts > 1):
        start, end = int(starts[seq]), int(lengths[seq])
        number = context.most_queries(end)
        for first in range(start, end, number):
            last = min(first + number, end)
            own = np.arange(rows[seq] + first - start, rows[seq] + last - start, dtype=np.int32)
            positions = np.arange(first, last, dtype=np.int32)[None]
            seen = np.array([last], np.int32)
            yield _chosen(context, np.array([seq]), own, last - first, positions, seen)


def _chosen(
    context: _Context, seqs: Ints, rows: Ints, num_queries: int, positions: Ints, lengths: Ints
) -> tuple[Choosing, Ints]:
    slots = context.slots(seqs, lengths)
    told = Choosing(_array(rows), num_queries, _array(slots), _array(positions[..., None]))
    return told, rows


def _prefill(row: int, count: int, end: int, table: Ints, block_size: int) -> Prefill:
    blocks = table[: -(-end // block_size)]
    return Prefill(
        row,
        row + count,
        _array(blocks),
        AttentionMetadata(
            slot_mapping=_array([]),
            block_tables=_array(np.arange(len(blocks))[None]),
            seq_lens=_array([end]),
            cu_seqlens_q=_array([0, count]),
        ),
    )


def _some(
    metadata: AttentionMetadata, tables: Ints, seqs: Ints, counts: Ints, lengths: Ints
) -> AttentionMetadata:
    """Of the first ``counts`` tokens of some sequences."""
    return AttentionMetadata(
        slot_mapping=metadata.slot_mapping,
        block_tables=_array(tables[seqs]),
        seq_lens=_array(lengths[seqs]),
        cu_seqlens_q=_array(np.cumsum([0, *counts[seqs]])),
    )


def _ranges(starts: Ints, counts: Ints) -> Ints:
    parts = [
        np.arange(start, start + count, dtype=np.int32)
        for start, count in zip(starts, counts, strict=True)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _array(values: Ints | Sequence[int]) -> mx.array:
    return mx.array(np.asarray(values, dtype=np.int32))

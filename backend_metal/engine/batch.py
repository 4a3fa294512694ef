"""The packed arrays of one step: every sequence's tokens, one after another, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend_metal.attention.kv_groups import KVGroup, SeesTokens
from backend_metal.engine.schedule.block_table import BlockTable
from backend_metal.engine.schedule.int_buffer import Int32Array
from backend_metal.engine.schedule.sequence import pending_token
from backend_metal.engine.schedule.step import ScheduledSequence


@dataclass(frozen=True)
class GroupTables:
    """Where the tokens live in the layers of one group. With a window, tables begin with the first
    block that a token of the step sees, or before it; then that is where ``seq_lens`` counts from,
    too."""

    slot_mapping: Int32Array
    """``[T]``: where each token's K/V goes, ``block * block_size + offset``"""
    block_tables: Int32Array
    """``[S, most blocks]``, padded with block 0"""
    seq_lens: Int32Array
    """``[S]``: context length, this step's tokens included"""
    cu_seqlens_q: Int32Array | None = None
    """``[S + 1]``, where these layers see chunks: a sequence with tokens of several of them counts
    as so many, each with a table that begins with the chunk. None: that of the batch."""


@dataclass(frozen=True)
class Batch:
    """All int32. ``T`` tokens of ``S`` sequences, of which the logits of ``R`` rows are wanted."""

    token_ids: Int32Array
    """``[T]``; a pending token is negative, as ``pending_token`` says"""
    positions: Int32Array
    """``[T]``: index of each token in its sequence"""
    cu_seqlens_q: Int32Array
    """``[S + 1]``: where each sequence's tokens begin"""
    logit_rows: Int32Array
    """``[R]``: the tokens whose logits are wanted, those that end a sequence, and then those that
    tell of prompts"""
    read_slots: Int32Array
    """``[S]``: where each sequence's recurrent state is; -1: it is all zeros"""
    write_slots: Int32Array
    """``[S]``: where it goes; -1 for a model without"""
    groups: tuple[GroupTables, ...]

    @property
    def num_seqs(self) -> int:
        return len(self.cu_seqlens_q) - 1

    @property
    def has_pending(self) -> bool:
        """Whether any token is still to be put in by the device."""
        return bool(self.token_ids.min() < 0)

    def is_what_was_drawn(self, num_drawn: int) -> bool:
        """Whether the device has just drawn all of its tokens, in their order, and no others."""
        return len(self.token_ids) == num_drawn and self.token_ids.tolist() == [
            pending_token(row) for row in range(num_drawn)
        ]


@dataclass(frozen=True)
class Packed:
    """Which tokens a step has, of sequences with block tables."""

    scheduled: list[ScheduledSequence]
    stops: Int32Array
    """``[S]``: of each sequence"""
    positions: Int32Array
    """``[T]``"""
    rows: Int32Array
    """``[T]``: whose each token is"""


def build_batch(
    scheduled: list[ScheduledSequence],
    block_size: int,
    sights: Sequence[SeesTokens] = (KVGroup(None, ()),),
    *,
    origin_multiple: int = 1,
) -> Batch:
    """Pack a step. Loops over sequences only, never over tokens. ``sights``: of each group.
    ``origin_multiple``: tokens to a multiple of which tables with windows begin, with blocks 0 in
    the place of those that are gone."""
    num_tokens = np.array([item.num_tokens for item in scheduled], np.int32)
    starts = np.array([item.start for item in scheduled], np.int32)
    cu_seqlens_q = np.zeros(len(scheduled) + 1, np.int32)
    np.cumsum(num_tokens, out=cu_seqlens_q[1:])
    rows = np.repeat(np.arange(len(scheduled), dtype=np.int32), num_tokens)
    positions = np.arange(cu_seqlens_q[-1], dtype=np.int32)
    positions += (starts - cu_seqlens_q[:-1])[rows]
    has_logits = np.array([item.has_logits for item in scheduled], bool)
    packed = Packed(scheduled, starts + num_tokens, positions, rows)
    return Batch(
        token_ids=np.concatenate([item.token_ids for item in scheduled]),
        positions=positions,
        cu_seqlens_q=cu_seqlens_q,
        logit_rows=_logit_rows(scheduled, cu_seqlens_q, has_logits),
        read_slots=np.array([item.read_slot for item in scheduled], np.int32),
        write_slots=np.array([item.write_slot for item in scheduled], np.int32),
        groups=tuple(
            group_tables(packed, index, group, block_size, origin_multiple)
            for index, group in enumerate(sights)
        ),
    )


def group_tables(
    packed: Packed, index: int, group: SeesTokens, block_size: int, origin_multiple: int
) -> GroupTables:
    """Of the group of that ``index``."""
    tables = [item.sequence.block_tables[index] for item in packed.scheduled]
    seq_lens, positions = packed.stops, packed.positions
    origins = np.zeros(len(tables), np.int32)
    if group.window is not None:
        origins += [table.first * block_size for table in tables]
        origins -= origins % origin_multiple
        seq_lens, positions = seq_lens - origins, positions - origins[packed.rows]
    block_tables = _block_tables(
        tables, origins // block_size, num_blocks_of(int(seq_lens.max()), block_size)
    )
    blocks = block_tables[packed.rows, positions // block_size]
    slots = blocks * block_size + positions % block_size
    if group.chunk is not None:
        return _cut_at_chunks(slots, tables, packed.scheduled, group.chunk, block_size)
    return GroupTables(slots, block_tables, seq_lens)


def num_blocks_of(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _cut_at_chunks(
    slots: Int32Array,
    tables: list[BlockTable],
    scheduled: list[ScheduledSequence],
    chunk: int,
    block_size: int,
) -> GroupTables:
    """Every sequence cut where a chunk ends: a token sees what its own part has."""
    rows: list[Int32Array] = []
    seq_lens: list[int] = []
    ends = [0]
    for table, item in zip(tables, scheduled, strict=True):
        blocks, start = table.view(), item.start
        while start < item.stop:
            origin = start - start % chunk
            end = min(item.stop, origin + chunk)
            first = origin // block_size - table.first
            rows.append(blocks[first : first - (origin - end) // block_size])
            seq_lens.append(end - origin)
            ends.append(ends[-1] + end - start)
            start = end
    padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, own in zip(padded, rows, strict=True):
        row[: len(own)] = own
    return GroupTables(slots, padded, np.array(seq_lens, np.int32), np.array(ends, np.int32))


def _block_tables(tables: list[BlockTable], first: Int32Array, most_blocks: int) -> Int32Array:
    """``first``: with which of its sequence's blocks each row begins."""
    padded = np.zeros((len(tables), most_blocks), np.int32)
    for row, table, begin in zip(padded, tables, first.tolist(), strict=True):
        gone = table.first - begin
        blocks = table.view()[: most_blocks - gone]
        row[gone : gone + len(blocks)] = blocks
    return padded


def _logit_rows(
    scheduled: list[ScheduledSequence], cu_seqlens_q: Int32Array, has_logits: npt.NDArray[np.bool_]
) -> Int32Array:
    ends = cu_seqlens_q[1:][has_logits] - 1
    told = [
        np.arange(rows.start, rows.stop, dtype=np.int32) + (first - item.start)
        for item, first in zip(scheduled, cu_seqlens_q.tolist(), strict=False)
        if (rows := item.prompt_rows)
    ]
    return np.concatenate([ends, *told]).astype(np.int32) if told else ends

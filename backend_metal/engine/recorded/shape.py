"""The shape of a recorded step: so many sequences with so many tokens, each sequence of at most so
many blocks in each group.

Steps are rounded up to the next shape. Where each sequence has one token, the rows that are added
are copies of the last one, which compute what that does and write it where that does. Elsewhere the
tokens that are added are those of a sequence of their own, and written nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from backend_metal.attention.kv_cache import AttentionMetadata
from backend_metal.engine.batch import Batch, GroupTables
from backend_metal.engine.schedule.int_buffer import Int32Array

FEWEST_BLOCKS = 16
CHUNKED_TOKENS = (64, 128)
"""Of steps in which a sequence has several. The memory that a recording keeps grows with them, and
what they save is soon little beside what the device computes. What a shape adds fits the least
table."""
NOWHERE = -1
"""A slot."""


@dataclass(frozen=True)
class StepShape:
    num_seqs: int
    num_tokens: int
    max_blocks: tuple[int, ...]
    """By group."""

    @classmethod
    def of(cls, batch: Batch, max_num_seqs: int) -> StepShape | None:
        """The least that has room for a batch; None where it has more tokens than any."""
        widths = tuple(table_width(group.block_tables.shape[1]) for group in batch.groups)
        num_seqs, num_tokens = batch.num_seqs, len(batch.token_ids)
        if num_tokens == num_seqs:
            count = min(_next_count(num_seqs), max(max_num_seqs, num_seqs))
            return cls(count, count, widths)
        # Where chunks are cut, a sequence has several tables.
        if any(group.cu_seqlens_q is not None for group in batch.groups):
            return None
        count = min(_next_power(num_seqs + 1), max(max_num_seqs, num_seqs) + 1)
        # As many tokens as sequences would be one for each.
        enough = [size for size in CHUNKED_TOKENS if size >= num_tokens and size > count]
        return cls(count, enough[0], widths) if enough else None

    @property
    def decodes(self) -> bool:
        """Whether each sequence has one token."""
        return self.num_tokens == self.num_seqs

    def pack(self, batch: Batch) -> Int32Array:
        """All that a step tells the device, in one array."""
        return self._pack_decodes(batch) if self.decodes else self._pack_chunks(batch)

    def unpack(
        self, ints: mx.array
    ) -> tuple[mx.array, mx.array, list[AttentionMetadata], mx.array]:
        """Token ids, positions, metadata of each group and the rows whose logits are wanted, the
        last of each sequence: views."""
        taken = 0

        def take(length: int) -> mx.array:
            nonlocal taken
            taken += length
            return ints[taken - length : taken]

        token_ids, positions = take(self.num_tokens), take(self.num_tokens)
        cu_seqlens_q = take(self.num_seqs + 1)
        logit_rows = cu_seqlens_q[:-1] if self.decodes else take(self.num_seqs)
        metadata = [
            AttentionMetadata(
                slot_mapping=take(self.num_tokens),
                seq_lens=take(self.num_seqs),
                block_tables=take(self.num_seqs * width).reshape(self.num_seqs, width),
                cu_seqlens_q=cu_seqlens_q,
                decodes=self.decodes,
            )
            for width in self.max_blocks
        ]
        return token_ids, positions, metadata, logit_rows

    def _pack_decodes(self, batch: Batch) -> Int32Array:
        count = self.num_seqs
        each = np.arange(count + 1, dtype=np.int32)
        parts = [_repeated(batch.token_ids, count), _repeated(batch.positions, count), each]
        for group, width in zip(batch.groups, self.max_blocks, strict=True):
            tables = self._tables(group, width)
            tables[batch.num_seqs :] = tables[batch.num_seqs - 1]
            slots, seq_lens = group.slot_mapping, group.seq_lens
            parts += [_repeated(slots, count), _repeated(seq_lens, count), tables.ravel()]
        return np.concatenate(parts)

    def _pack_chunks(self, batch: Batch) -> Int32Array:
        num_added = self.num_tokens - len(batch.token_ids)
        ends = np.full(self.num_seqs + 1, len(batch.token_ids), np.int32)
        ends[: batch.num_seqs + 1] = batch.cu_seqlens_q
        ends[-1] = self.num_tokens
        last_rows = np.maximum(ends[1:] - 1, 0)
        parts = [
            _lengthened(batch.token_ids, self.num_tokens, 0),
            _lengthened(batch.positions, self.num_tokens, 0),
            ends,
            last_rows,
        ]
        for group, width in zip(batch.groups, self.max_blocks, strict=True):
            seq_lens = _lengthened(group.seq_lens, self.num_seqs, 1)
            seq_lens[-1] = max(num_added, 1)
            slots = _lengthened(group.slot_mapping, self.num_tokens, NOWHERE)
            parts += [slots, seq_lens, self._tables(group, width).ravel()]
        return np.concatenate(parts)

    def _tables(self, group: GroupTables, width: int) -> Int32Array:
        tables = np.zeros((self.num_seqs, width), np.int32)
        num_seqs, num_blocks = group.block_tables.shape
        tables[:num_seqs, :num_blocks] = group.block_tables
        return tables


def table_width(num_blocks: int) -> int:
    """The least that has room for so many blocks, of few that there are."""
    return max(FEWEST_BLOCKS, _next_power(num_blocks))


def _repeated(array: Int32Array, length: int) -> Int32Array:
    """With what it ends with as often as it takes."""
    if len(array) == length:
        return array
    return _lengthened(array, length, array[-1])


def _lengthened(array: Int32Array, length: int, value: int) -> Int32Array:
    longer = np.full(length, value, np.int32)
    longer[: len(array)] = array
    return longer


def _next_count(count: int) -> int:
    return _next_power(count) if count <= 8 else -(-count // 8) * 8


def _next_power(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()

"""The shape of a recorded step: so many sequences, each of at most so many blocks in each group.

Steps are rounded up to the next shape; the rows that are added are copies of the last one, which
compute what that does and write it where that does.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from backend_metal.attention.kv_cache import AttentionMetadata
from backend_metal.engine.batch import Batch
from backend_metal.engine.schedule.int_buffer import Int32Array

FEWEST_BLOCKS = 16


@dataclass(frozen=True)
class StepShape:
    num_seqs: int
    max_blocks: tuple[int, ...]
    """By group."""

    @classmethod
    def of(cls, batch: Batch, max_num_seqs: int) -> StepShape:
        """The least that has room for a batch of decodes."""
        num_seqs = batch.num_seqs
        widths = [group.block_tables.shape[1] for group in batch.groups]
        return cls(
            min(_next_count(num_seqs), max(max_num_seqs, num_seqs)),
            tuple(table_width(num_blocks) for num_blocks in widths),
        )

    def pack(self, batch: Batch) -> Int32Array:
        """All that a step tells the device, in one array."""
        rows = np.minimum(np.arange(self.num_seqs), batch.num_seqs - 1)
        each = np.arange(self.num_seqs + 1, dtype=np.int32)
        parts = [batch.token_ids[rows], batch.positions[rows], each]
        for group, width in zip(batch.groups, self.max_blocks, strict=True):
            tables = np.zeros((self.num_seqs, width), np.int32)
            tables[:, : group.block_tables.shape[1]] = group.block_tables[rows]
            parts += [group.slot_mapping[rows], group.seq_lens[rows], tables.ravel()]
        return np.concatenate(parts)

    def unpack(
        self, ints: mx.array
    ) -> tuple[mx.array, mx.array, list[AttentionMetadata], mx.array]:
        """Token ids, positions, metadata of each group and the rows whose logits are wanted:
        views."""
        count, taken = self.num_seqs, 0

        def take(length: int) -> mx.array:
            nonlocal taken
            taken += length
            return ints[taken - length : taken]

        token_ids, positions, each = take(count), take(count), take(count + 1)
        metadata = [
            AttentionMetadata(
                slot_mapping=take(count),
                seq_lens=take(count),
                block_tables=take(count * width).reshape(count, width),
                cu_seqlens_q=each,
            )
            for width in self.max_blocks
        ]
        return token_ids, positions, metadata, each[:count]


def table_width(num_blocks: int) -> int:
    """The least that has room for so many blocks, of few that there are."""
    return max(FEWEST_BLOCKS, _next_power(num_blocks))


def _next_count(count: int) -> int:
    return _next_power(count) if count <= 8 else -(-count // 8) * 8


def _next_power(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()

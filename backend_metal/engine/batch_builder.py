"""The packed arrays of one step after another. Most steps decode what the one before did, a token
further: then what is new is packed, and the rest kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend_metal.attention.kv_groups import SeesTokens
from backend_metal.engine.batch import (
    Batch,
    GroupTables,
    Packed,
    build_batch,
    group_tables,
    num_blocks_of,
)
from backend_metal.engine.schedule.sequence import KNOWN
from backend_metal.engine.schedule.sequence import Sequence as TokenSequence
from backend_metal.engine.schedule.step import Step


@dataclass(frozen=True)
class _Latest:
    """A step in which each sequence has its newest token."""

    batch: Batch
    sequences: list[TokenSequence]
    stops: list[int]
    num_starts: list[int]


class BatchBuilder:
    def __init__(
        self, block_size: int, sights: Sequence[SeesTokens], *, origin_multiple: int = 1
    ) -> None:
        """As ``build_batch`` has them."""
        self._block_size = block_size
        self._sights = sights
        self._origin_multiple = origin_multiple
        self._latest: _Latest | None = None

    def build(self, step: Step) -> Batch:
        """As ``build_batch`` does. Its arrays are not to be written."""
        scheduled, latest = step.scheduled, self._latest
        if not step.has_newest_alone:
            self._latest = None
            return self._build(step)
        sequences = [item.sequence for item in scheduled]
        num_starts = [item.num_starts for item in scheduled]
        newest = [sequence.pending for sequence in sequences]
        if (
            latest is not None
            and sequences == latest.sequences
            and num_starts == latest.num_starts
            and latest.stops == [item.start for item in scheduled]
            and KNOWN not in newest
        ):
            batch = self._next(step, newest, latest.batch)
        else:
            batch = self._build(step)
        self._latest = _Latest(batch, sequences, [item.stop for item in scheduled], num_starts)
        return batch

    def _build(self, step: Step) -> Batch:
        return build_batch(
            step.scheduled,
            self._block_size,
            self._sights,
            origin_multiple=self._origin_multiple,
        )

    def _next(self, step: Step, newest: list[int], before: Batch) -> Batch:
        """Of the same sequences, each a token further: ``newest``."""
        scheduled = step.scheduled
        positions, rows = before.positions + 1, np.arange(len(scheduled), dtype=np.int32)
        packed = Packed(scheduled, positions + 1, positions, rows)
        read_slots, write_slots = before.read_slots, before.write_slots
        if scheduled[0].sequence.state is not None:
            read_slots = np.array([item.read_slot for item in scheduled], np.int32)
            write_slots = np.array([item.write_slot for item in scheduled], np.int32)
        return Batch(
            token_ids=np.array(newest, np.int32),
            positions=positions,
            cu_seqlens_q=before.cu_seqlens_q,
            logit_rows=before.logit_rows,
            read_slots=read_slots,
            write_slots=write_slots,
            groups=tuple(
                self._next_tables(packed, index, tables)
                if group.window is None
                else group_tables(packed, index, group, self._block_size, self._origin_multiple)
                for index, (group, tables) in enumerate(
                    zip(self._sights, before.groups, strict=True)
                )
            ),
        )

    def _next_tables(self, packed: Packed, index: int, before: GroupTables) -> GroupTables:
        """Of a group whose layers see all tokens: where a sequence enters a block it is new."""
        size = self._block_size
        slots, tables = before.slot_mapping + 1, before.block_tables
        entering = (packed.positions % size == 0).nonzero()[0].tolist()
        if entering:
            num_blocks = num_blocks_of(int(packed.stops.max()), size)
            tables = np.zeros((len(slots), num_blocks), np.int32)
            tables[:, : before.block_tables.shape[1]] = before.block_tables
            for row in entering:
                number = int(packed.positions[row]) // size
                block = packed.scheduled[row].sequence.block_tables[index][number]
                tables[row, number] = block
                slots[row] = block * size
        return GroupTables(slots, tables, packed.stops)

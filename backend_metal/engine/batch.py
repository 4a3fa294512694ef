"""The packed arrays of one step: every sequence's tokens, one after another, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend_metal.engine.schedule.int_buffer import Int32Array
from backend_metal.engine.schedule.step import ScheduledSequence


@dataclass(frozen=True)
class Batch:
    """All int32. ``T`` tokens of ``S`` sequences, of which the logits of ``R`` rows are wanted."""

    token_ids: Int32Array
    """``[T]``"""
    positions: Int32Array
    """``[T]``: index of each token in its sequence"""
    slot_mapping: Int32Array
    """``[T]``: where each token's K/V goes, ``block * block_size + offset``"""
    block_tables: Int32Array
    """``[S, most blocks]``, padded with block 0"""
    seq_lens: Int32Array
    """``[S]``: context length, this step's tokens included"""
    cu_seqlens_q: Int32Array
    """``[S + 1]``: where each sequence's tokens begin"""
    logit_rows: Int32Array
    """``[R]``: the tokens whose logits are wanted, those that end a sequence, and then those that
    tell of prompts"""


def build_batch(scheduled: list[ScheduledSequence], block_size: int) -> Batch:
    """Pack a step. Loops over sequences only, never over tokens."""
    num_tokens = np.array([item.num_tokens for item in scheduled], np.int32)
    starts = np.array([item.start for item in scheduled], np.int32)
    cu_seqlens_q = np.zeros(len(scheduled) + 1, np.int32)
    np.cumsum(num_tokens, out=cu_seqlens_q[1:])
    seq_lens = starts + num_tokens

    most_blocks = -(-int(seq_lens.max()) // block_size)
    block_tables = np.zeros((len(scheduled), most_blocks), np.int32)
    for row, item in zip(block_tables, scheduled, strict=True):
        table = item.sequence.block_table.view()[:most_blocks]
        row[: len(table)] = table

    sequence_of_token = np.repeat(np.arange(len(scheduled), dtype=np.int32), num_tokens)
    positions = np.arange(cu_seqlens_q[-1], dtype=np.int32)
    positions += (starts - cu_seqlens_q[:-1])[sequence_of_token]
    blocks = block_tables[sequence_of_token, positions // block_size]
    has_logits = np.array([item.has_logits for item in scheduled], bool)
    return Batch(
        token_ids=np.concatenate([item.token_ids for item in scheduled]),
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        block_tables=block_tables,
        seq_lens=seq_lens,
        cu_seqlens_q=cu_seqlens_q,
        logit_rows=_logit_rows(scheduled, cu_seqlens_q, has_logits),
    )


def _logit_rows(
    scheduled: list[ScheduledSequence], cu_seqlens_q: Int32Array, has_logits: npt.NDArray[np.bool_]
) -> Int32Array:
    ends = cu_seqlens_q[1:][has_logits] - 1
    told = [
        np.arange(rows.start, rows.stop, dtype=np.int32) + (first - item.start)
        for item, first in zip(scheduled, cu_seqlens_q.tolist(), strict=False)
        if item.sequence.readings and (rows := item.prompt_rows)
    ]
    return np.concatenate([ends, *told]).astype(np.int32) if told else ends

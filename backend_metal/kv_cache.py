"""The one owner of the KV cache's memory."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class LayerCacheSpec:
    """What one attention layer keeps for each token."""

    num_kv_heads: int
    head_dim: int
    head_dim_v: int


@dataclass(frozen=True)
class AttentionMetadata:
    """Where the tokens of one step live; the packed int32 arrays of the attention operators."""

    slot_mapping: mx.array
    """``[num_tokens]``"""
    block_tables: mx.array
    """``[num_seqs, max_blocks_per_seq]``"""
    seq_lens: mx.array
    """``[num_seqs]``, this step's tokens included"""
    cu_seqlens_q: mx.array
    """``[num_seqs + 1]``"""

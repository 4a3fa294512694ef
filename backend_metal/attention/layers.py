"""What attention layers keep and ask for, and where a step's tokens live in their caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx


@dataclass(frozen=True)
class LayerCacheSpec:
    """What one attention layer keeps for each token."""

    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    values_in_keys: bool = False
    """Whether values are the first ``head_dim_v`` dims of keys, and kept nowhere else."""

    @property
    def num_elements(self) -> int:
        """Of one token."""
        return self.num_kv_heads * (self.head_dim + (0 if self.values_in_keys else self.head_dim_v))

    @property
    def head_dims(self) -> tuple[int, int]:
        return self.head_dim, self.head_dim_v


@dataclass(frozen=True)
class LayerAttention:
    """What one attention layer asks of the operators."""

    cache: LayerCacheSpec
    num_q_heads: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    chunk: int | None = None
    """A token sees those of its own chunk of so many tokens alone, as the step's tables say."""
    top_k: int | None = None
    """Of an index: by what it keeps, a token chooses so many of those that another layer sees.
    Nothing is attended over here."""
    decompressed: LayerCacheSpec | None = None
    """Of latents: each head's keys and values, which long prompts attend over in their place."""

    @property
    def kernels(self) -> tuple[LayerAttention, ...]:
        """What operators are called with."""
        if self.top_k is not None:
            return ()
        if self.decompressed is None:
            return (self,)
        whole = replace(self, decompressed=None)
        return whole, replace(whole, cache=self.decompressed)


@dataclass(frozen=True)
class AttentionMetadata:
    """Where the tokens of one step live in the layers of one group; the packed int32 arrays of the
    attention operators.

    A table may begin anywhere in its sequence up to the window of the step's first token. What is
    before it does not exist for the operators, and rotary embeddings are applied elsewhere. Where
    layers see chunks, a table begins with its chunk, and a sequence with tokens of several chunks
    is as many sequences.
    """

    slot_mapping: mx.array
    """``[num_tokens]``"""
    block_tables: mx.array
    """``[num_seqs, max_blocks_per_seq]``"""
    seq_lens: mx.array
    """``[num_seqs]``, from where the table begins, this step's tokens included"""
    cu_seqlens_q: mx.array
    """``[num_seqs + 1]``"""
    decodes: bool = False
    """Whether each sequence is known to have one token."""
    prefills: bool = False
    """Or several."""

    @property
    def arrays(self) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """In their order."""
        return self.slot_mapping, self.block_tables, self.seq_lens, self.cu_seqlens_q


GroupedMetadata = Sequence[AttentionMetadata]
"""One for each group of the pool."""

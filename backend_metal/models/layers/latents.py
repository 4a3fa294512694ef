"""Attention of a step's tokens to latents, each in the way that suits it (``latent_parts.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from backend_metal.attention.kv_cache import (
    GroupedMetadata,
    KVCachePool,
    LayerAttention,
    LayerCacheSpec,
)
from backend_metal.attention.latent_parts import (
    Choosing,
    DecompressionRule,
    IndexSize,
    LatentParts,
    Prefill,
    divide,
)
from backend_metal.attention.sparse import attend_chosen, choose

MOST_DECOMPRESSED = 2**24
"""Elements of keys and values at a time; so many heads as fit are attended over together."""


class LatentHeads(Protocol):
    """The heads of one layer on a step's tokens, with what their latents are multiplied with."""

    @property
    def num_heads(self) -> int: ...

    @property
    def scale(self) -> float: ...

    @property
    def latent_dim(self) -> int:
        """Of a latent without its rotary key."""
        ...

    @property
    def queries(self) -> mx.array:
        """``[num_tokens, num_heads, head_dim]``, as for keys of their own."""
        ...

    @property
    def value_dim(self) -> int: ...

    @property
    def rule(self) -> DecompressionRule: ...

    def asks(self) -> LayerAttention: ...

    def absorbed(self, rows: mx.array | None = None) -> mx.array:
        """Queries of these rows, or all, for latents: ``[rows, num_heads, dim]``."""
        ...

    def unembedded(self, out: mx.array) -> mx.array:
        """``[rows, num_heads, latent_dim]`` as ``[rows, num_heads, value_dim]``."""
        ...

    def decompressed(self, latents: mx.array, heads: slice) -> tuple[mx.array, mx.array]:
        """Keys and values of some heads: ``[heads, num_latents, dim]``."""
        ...


@dataclass(frozen=True)
class IndexStep:
    """What an index says of a step's tokens."""

    layer: int
    """Where its keys are kept."""
    q: mx.array
    """``[num_tokens, heads, dim]``"""
    k: mx.array
    """``[num_tokens, 1, dim]``"""
    weights: mx.array
    """``[num_tokens, heads]``"""
    top_k: int

    @property
    def size(self) -> IndexSize:
        return IndexSize(self.top_k, self.q.shape[1])

    def asks(self) -> LayerAttention:
        dim = self.k.shape[2]
        spec = LayerCacheSpec(1, dim, dim, values_in_keys=True)
        return LayerAttention(spec, self.q.shape[1], 1.0, top_k=self.top_k)


class LatentAttention:
    """Of one step, in all layers."""

    def __init__(self, pool: KVCachePool, metadata: GroupedMetadata) -> None:
        self._pool = pool
        self._metadata = metadata
        self._parts: dict[
            tuple[int, IndexSize | None, DecompressionRule | None], LatentParts | None
        ] = {}

    def attend(
        self, layer: int, heads: LatentHeads, latents: mx.array, index: IndexStep | None
    ) -> mx.array:
        if index is not None:
            self._pool.write(index.layer, index.k, self._metadata)
        parts = self._divided(layer, heads, index)
        if parts is None:
            values = latents[..., : heads.latent_dim]
            out = self._pool.attend(
                layer, heads.absorbed(), latents, values, self._metadata, scale=heads.scale
            )
            return heads.unembedded(out)
        self._pool.write(layer, latents, self._metadata)
        outs = []
        if parts.absorbed is not None:
            q = heads.absorbed(parts.absorbed_rows)
            out = self._pool.attend_written(layer, q, parts.absorbed, scale=heads.scale)
            outs.append(heads.unembedded(out))
        for one in parts.choosing:
            assert index is not None
            outs.append(heads.unembedded(self._attend_chosen(layer, heads, index, one)))
        outs += [self._attend_decompressed(layer, heads, one) for one in parts.prefills]
        return mx.concatenate(outs)[parts.order]

    def _divided(
        self, layer: int, heads: LatentHeads, index: IndexStep | None
    ) -> LatentParts | None:
        own = self._pool.metadata_of(layer, self._metadata)
        size = None if index is None else index.size
        rule = (
            heads.rule
            if self._pool.decompresses((heads.queries.shape[2], heads.value_dim))
            else None
        )
        key = id(own), size, rule
        if key not in self._parts:
            self._parts[key] = divide(own, self._pool.block_size, index=size, rule=rule)
        return self._parts[key]

    def _attend_chosen(
        self, layer: int, heads: LatentHeads, index: IndexStep, one: Choosing
    ) -> mx.array:
        num_seqs, context = one.slots.shape

        def of_rows(array: mx.array) -> mx.array:
            return array[one.rows].reshape(num_seqs, one.num_queries, *array.shape[1:])

        keys = self._pool.gather(index.layer, one.slots).reshape(num_seqs, context, -1)
        slots = choose(
            of_rows(index.q).astype(keys.dtype),
            keys,
            of_rows(index.weights),
            one.positions,
            one.slots,
            index.top_k,
        )
        latents = self._pool.gather(layer, slots).reshape(len(one.rows), index.top_k, -1)
        q = heads.absorbed(one.rows)
        out = attend_chosen(q.astype(latents.dtype), latents, heads.latent_dim, heads.scale)
        return out.astype(q.dtype)

    def _attend_decompressed(self, layer: int, heads: LatentHeads, one: Prefill) -> mx.array:
        latents = self._pool.gather_blocks(layer, one.blocks)
        num_blocks, block_size = latents.shape[:2]
        latents = latents.flatten(0, 2).astype(heads.queries.dtype)
        q = heads.queries[one.start : one.end]
        of_head = len(latents) * (q.shape[2] + heads.value_dim)
        together = max(1, MOST_DECOMPRESSED // of_head)
        outs = []
        for first in range(0, heads.num_heads, together):
            some = slice(first, min(first + together, heads.num_heads))
            k, v = (
                array.reshape(-1, num_blocks, block_size, array.shape[-1]).transpose(1, 2, 0, 3)
                for array in heads.decompressed(latents, some)
            )
            outs.append(self._pool.attend_beside(q[:, some], k, v, one.metadata, scale=heads.scale))
        return mx.concatenate(outs, axis=1)

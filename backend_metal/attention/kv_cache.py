"""The one owner of the KV cache's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from backend_metal.attention.checks import check_attention, check_scatter
from backend_metal.attention.operators import count_launch
from backend_metal.attention.paths import AttentionPath, resolve_path


@dataclass(frozen=True)
class LayerCacheSpec:
    """What one attention layer keeps for each token."""

    num_kv_heads: int
    head_dim: int
    head_dim_v: int

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


class KVCachePool:
    """Keys and values of every layer, ``[num_blocks, block_size, num_kv_heads, head_dim]`` each.

    Operators update the arrays in place, so a second holder of one would either see it change or
    force a copy of it. That is why the pool rebinds each array at once and hands none out, with
    one exception: ``evaluation_roots``, to be dropped as soon as they are evaluated.
    """

    def __init__(
        self,
        layers: Sequence[LayerAttention],
        num_blocks: int,
        block_size: int,
        dtype: mx.Dtype,
        *,
        path: AttentionPath | str | None = None,
    ) -> None:
        """Allocates ``num_blocks * bytes_per_block(specs, block_size, dtype)`` bytes, zeroed.

        ``path``: who attends, by name or itself; by default that of MLX's default device, or the
        reference where that has no kernels for some layer. Raises ``ValueError`` for what the
        operators refuse; steps are not checked again.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.specs = tuple(layer.cache for layer in layers)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self._path = resolve_path(path, [spec.head_dims for spec in self.specs])
        self._keys: list[mx.array] = []
        self._values: list[mx.array] = []
        self.reset()
        for number, layer in enumerate(layers):
            self._check(layer, self._keys[number], self._values[number])

    @staticmethod
    def bytes_per_block(specs: Sequence[LayerCacheSpec], block_size: int, dtype: mx.Dtype) -> int:
        """Bytes of one block over all layers, keys and values."""
        elements = sum(spec.num_kv_heads * (spec.head_dim + spec.head_dim_v) for spec in specs)
        return elements * block_size * int(dtype.size)

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.bytes_per_block(self.specs, self.block_size, self.dtype)

    def attend(
        self,
        layer: int,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        metadata: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Store this step's ``k``, ``v`` and attend: ``[num_tokens, num_q_heads, head_dim_v]``.

        ``q``, ``k`` and ``v`` are cast to the pool's dtype, the result back to ``q``'s. Their heads
        and the options are those of the layer.
        """
        count_launch(self._path)
        out, self._keys[layer], self._values[layer] = self._path.scatter_paged_attention(
            q.astype(self.dtype),
            k.astype(self.dtype),
            v.astype(self.dtype),
            self._keys[layer],
            self._values[layer],
            metadata.slot_mapping,
            metadata.block_tables,
            metadata.seq_lens,
            metadata.cu_seqlens_q,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
        )
        return out.astype(q.dtype)

    def evaluation_roots(self) -> list[mx.array]:
        """What to evaluate with a step's results so that no graph outlives it; not to be kept."""
        return [*self._keys, *self._values]

    def reset(self) -> None:
        """Forget everything: zeroed arrays. Also the way on from a step that failed."""
        # Drop the old arrays first, so that the two never exist together.
        self._keys, self._values = [], []
        self._keys = [self._empty(spec.num_kv_heads, spec.head_dim) for spec in self.specs]
        self._values = [self._empty(spec.num_kv_heads, spec.head_dim_v) for spec in self.specs]
        mx.eval(self.evaluation_roots())

    def _check(self, layer: LayerAttention, keys: mx.array, values: mx.array) -> None:
        """Hold the layer's shapes and options to the operators' rules, by a step of one token."""
        spec = layer.cache
        q = mx.zeros((1, layer.num_q_heads, spec.head_dim), self.dtype)
        k = mx.zeros((1, spec.num_kv_heads, spec.head_dim), self.dtype)
        v = mx.zeros((1, spec.num_kv_heads, spec.head_dim_v), self.dtype)
        ints = [mx.zeros(shape, mx.int32) for shape in ((1,), (1, 1), (1,), (2,))]
        check_scatter(k, v, keys, values, ints[0])
        check_attention(
            q,
            keys,
            values,
            *ints[1:],
            scale=layer.scale,
            window=layer.window,
            softcap=layer.softcap,
            sinks=mx.zeros(layer.num_q_heads) if layer.has_sinks else None,
        )

    def _empty(self, num_heads: int, head_dim: int) -> mx.array:
        return self._path.zeros((self.num_blocks, self.block_size, num_heads, head_dim), self.dtype)

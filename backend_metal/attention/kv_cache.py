"""The one owner of the KV cache's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from backend_metal.attention.checks import check_attention, check_scatter
from backend_metal.attention.head_dims import attending, missing
from backend_metal.attention.kv_groups import KVGroup, group_layers, one_group
from backend_metal.attention.layers import AttentionMetadata as AttentionMetadata
from backend_metal.attention.layers import GroupedMetadata as GroupedMetadata
from backend_metal.attention.layers import LayerAttention as LayerAttention
from backend_metal.attention.layers import LayerCacheSpec as LayerCacheSpec
from backend_metal.attention.operators import count_launches
from backend_metal.device import Device


class KVCachePool:
    """Keys and values of every layer, ``[num_blocks, block_size, num_kv_heads, head_dim]`` each,
    with as many blocks as its group has; or keys alone where the values are in them.

    Operators update the arrays in place, so a second holder of one would either see it change or
    force a copy of it. That is why the pool rebinds each array at once and hands none out, with
    one exception: ``evaluation_roots``, to be dropped as soon as they are evaluated.
    """

    def __init__(
        self,
        layers: Sequence[LayerAttention],
        num_blocks: int | Sequence[int],
        block_size: int,
        dtype: mx.Dtype,
        *,
        path: Device | str | None = None,
    ) -> None:
        """Allocates ``num_blocks * bytes_per_block(specs, block_size, dtype)`` bytes, zeroed, for
        each group.

        ``num_blocks``: of each of ``group_layers(layers)``; or, one number, of all layers as one
        group, which keeps all tokens.
        ``path``: who attends, by name or itself; by default that of MLX's default device, or the
        reference where that has no kernels for some layer. Raises ``ValueError`` for what the
        operators refuse; steps are not checked again.
        """
        if isinstance(num_blocks, int):
            self.groups = one_group(layers)
            num_blocks = [num_blocks] * len(self.groups)
        else:
            self.groups = group_layers(layers)
        self.num_blocks = tuple(num_blocks)
        """Of each group."""
        for group in self.groups:
            if group.chunk is not None and group.chunk % block_size:
                raise ValueError(
                    f"block_size must divide the {group.chunk} tokens of a chunk that the model's "
                    f"layers see, not be {block_size}"
                )
        if min(self.num_blocks) < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.specs = tuple(layer.cache for layer in layers)
        self._group_of = _group_of_layer(self.groups)
        self.block_size = block_size
        self.dtype = dtype
        attended = [one.cache.head_dims for layer in layers for one in layer.kernels]
        self._path = attending(path, attended)
        self.num_launches = 0
        """Of the attention operators, so far."""
        self._keys: list[mx.array] = []
        self._values: list[mx.array | None] = []
        """None: in the keys."""
        self.reset()
        for layer, keys, values in zip(layers, self._keys, self._values, strict=True):
            in_keys = keys[..., : layer.cache.head_dim_v]
            self._check(layer, keys, in_keys if values is None else values)

    @staticmethod
    def bytes_per_block(specs: Sequence[LayerCacheSpec], block_size: int, dtype: mx.Dtype) -> int:
        """Bytes of one block over all layers, keys and values."""
        return sum(spec.num_elements for spec in specs) * block_size * int(dtype.size)

    @property
    def nbytes(self) -> int:
        return sum(
            num_blocks * self.bytes_per_block(self.specs_of(group), self.block_size, self.dtype)
            for group, num_blocks in zip(self.groups, self.num_blocks, strict=True)
        )

    def specs_of(self, group: KVGroup) -> list[LayerCacheSpec]:
        return [self.specs[layer] for layer in group.layers]

    def attend(
        self,
        layer: int,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        metadata: GroupedMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Store this step's ``k``, ``v`` and attend: ``[num_tokens, num_q_heads, head_dim_v]``.

        ``q``, ``k`` and ``v`` are cast to the pool's dtype, the result back to ``q``'s. Their heads
        and the options are those of the layer; ``v`` is not looked at where it is in ``k``.
        """
        self.count_launches(1)
        own = metadata[self._group_of[layer]]
        step: dict[str, Any] = {
            "q": q.astype(self.dtype),
            "k": k.astype(self.dtype),
            "slot_mapping": own.slot_mapping,
            "block_tables": own.block_tables,
            "seq_lens": own.seq_lens,
            "cu_seqlens_q": own.cu_seqlens_q,
            "scale": scale,
            "window": window,
            "softcap": softcap,
            "sinks": sinks,
        }
        step |= self._path.phases(decodes=own.decodes, prefills=own.prefills)
        keys, values = self._keys[layer], self._values[layer]
        if values is None:
            out, self._keys[layer] = self._path.scatter_latent_attention(
                head_dim_v=self.specs[layer].head_dim_v, k_cache=keys, **step
            )
        else:
            out, self._keys[layer], self._values[layer] = self._path.scatter_paged_attention(
                v=v.astype(self.dtype), k_cache=keys, v_cache=values, **step
            )
        return out.astype(q.dtype)

    def write(self, layer: int, k: mx.array, metadata: GroupedMetadata) -> None:
        """Store this step's ``k``, ``[num_tokens, num_kv_heads, head_dim]``, of a layer that has
        its values in its keys; ``attend_written`` and ``gather`` see it."""
        slots = metadata[self._group_of[layer]].slot_mapping
        rows = k.astype(self.dtype)
        self._keys[layer] = self._path.write_latents(rows, self._keys[layer], slots)

    def attend_written(
        self, layer: int, q: mx.array, metadata: AttentionMetadata, *, scale: float
    ) -> mx.array:
        """As ``attend`` where ``write`` has stored the step's tokens; ``metadata``: of some of
        them, whose ``slot_mapping`` is not looked at."""
        keys = self._keys[layer]
        values = keys[..., : self.specs[layer].head_dim_v]
        return self._attend(q, keys, values, metadata, scale)

    def attend_beside(
        self, q: mx.array, k: mx.array, v: mx.array, metadata: AttentionMetadata, *, scale: float
    ) -> mx.array:
        """Attend over keys and values of a step's own, in blocks as the pool's are."""
        return self._attend(q, k.astype(self.dtype), v.astype(self.dtype), metadata, scale)

    def gather(self, layer: int, slots: mx.array) -> mx.array:
        """A copy of the keys in ``slots``, int32 of any shape: ``[*slots, num_kv_heads,
        head_dim]``."""
        return self._keys[layer][slots // self.block_size, slots % self.block_size]

    def gather_blocks(self, layer: int, blocks: mx.array) -> mx.array:
        """A copy of whole ``blocks``: ``[len(blocks), block_size, num_kv_heads, head_dim]``."""
        return self._keys[layer][blocks]

    def metadata_of(self, layer: int, metadata: GroupedMetadata) -> AttentionMetadata:
        return metadata[self._group_of[layer]]

    def _attend(
        self, q: mx.array, k: mx.array, v: mx.array, metadata: AttentionMetadata, scale: float
    ) -> mx.array:
        self.count_launches(1)
        out = self._path.paged_attention(
            q.astype(self.dtype),
            k,
            v,
            metadata.block_tables,
            metadata.seq_lens,
            metadata.cu_seqlens_q,
            scale=scale,
            window=None,
            softcap=None,
            sinks=None,
        )
        return out.astype(q.dtype)

    def evaluation_roots(self, num_layers: int | None = None) -> list[mx.array]:
        """What to evaluate with a step's results so that no graph outlives it; not to be kept.
        ``num_layers``: of the first so many, and with them all that these need; of all by
        default."""
        values = [one for one in self._values[:num_layers] if one is not None]
        return [*self._keys[:num_layers], *values]

    def rebind(self, arrays: list[mx.array]) -> None:
        """Hold these, which are ``evaluation_roots`` after whatever has written them."""
        self._keys = arrays[: self.num_layers]
        values = iter(arrays[self.num_layers :])
        self._values = [None if one is None else next(values) for one in self._values]

    def count_launches(self, times: int) -> None:
        """For who launches operators that were built before."""
        self.num_launches += times
        count_launches(self._path, times)

    def decompresses(self, head_dims: tuple[int, int]) -> bool:
        """Whether keys and values of these head dims, decompressed, may be attended over."""
        return not self._path.one_way and missing(self._path, [head_dims]) is None

    @property
    def writes_in_place(self) -> bool:
        """As the path does."""
        return self._path.writes_in_place

    @property
    def origin_multiple(self) -> int:
        """As the path wants it."""
        return self._path.origin_multiple

    @property
    def num_layers(self) -> int:
        return len(self.specs)

    def reset(self) -> None:
        """Forget everything: zeroed arrays. Also the way on from a step that failed."""
        # Drop the old arrays first, so that the two never exist together.
        self._keys, self._values = [], []
        for layer, spec in enumerate(self.specs):
            self._keys.append(self._empty(layer, spec.head_dim))
            in_keys = spec.values_in_keys
            self._values.append(None if in_keys else self._empty(layer, spec.head_dim_v))
        mx.eval(self.evaluation_roots())

    def _check(self, layer: LayerAttention, keys: mx.array, values: mx.array) -> None:
        """Hold the layer's shapes and options to the operators' rules, by a step of one token."""
        spec = layer.cache
        q = mx.zeros((1, layer.num_q_heads, spec.head_dim), self.dtype)
        k = mx.zeros((1, spec.num_kv_heads, spec.head_dim), self.dtype)
        v = mx.zeros((1, spec.num_kv_heads, spec.head_dim_v), self.dtype)
        ints = [mx.zeros(shape, mx.int32) for shape in ((1,), (1, 1), (1,), (2,))]
        check_scatter(k, v, keys, values, ints[0])
        if layer.top_k is not None:
            return
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

    def _empty(self, layer: int, head_dim: int) -> mx.array:
        num_blocks = self.num_blocks[self._group_of[layer]]
        num_heads = self.specs[layer].num_kv_heads
        return self._path.zeros((num_blocks, self.block_size, num_heads, head_dim), self.dtype)


def _group_of_layer(groups: Sequence[KVGroup]) -> list[int]:
    pairs = [(layer, index) for index, group in enumerate(groups) for layer in group.layers]
    return [index for _, index in sorted(pairs)]

"""Baichuan M1 on a paged cache: keys and values are each token's and the one's before it, mixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import baichuan_m1
from mlx_lm.models.cache import ArraysCache

from backend_metal.models.layers.recurrent_kernels import PackedStates
from backend_metal.models.layers.recurrent_layers import Arrays, RecurrentLayerCache


class PagedAttention(baichuan_m1.Attention):  # type: ignore[misc]
    """Its cache is two: of the latest key and value before they are mixed, and of mixed ones."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if cache is None or not isinstance(cache[0], RecurrentLayerCache):
            dense: mx.array = super().__call__(x, mask, cache)
            return dense
        latest, attended = cache
        q, k, v = (
            part.reshape(x.shape[0], -1, self.head_dim)
            for part in mx.split(
                self.W_pack(x),
                [self.hidden_size, self.hidden_size + self.num_kv_heads * self.head_dim],
                axis=-1,
            )
        )
        k, v = (mixed[:, :, None] for mixed in latest.run(self, self._mix, (k, v)))
        q = self.rope(q[:, :, None], offset=attended.offset)
        k = self.rope(k, offset=attended.offset)
        k, v = attended.update_and_fetch(k, v)
        out = attended.attend(q, k, v, scale=self.scale, window=mask.window)
        projected: mx.array = self.o_proj(out.reshape(x.shape))
        return projected

    def _mix(self, inputs: Arrays, cache: ArraysCache | PackedStates) -> Arrays:
        """Keys and values, ``[batch, length, num_kv_heads, head_dim]``, and so the results."""
        mixed = []
        for number, (part, weights) in enumerate(
            zip(inputs, (self.conv_k, self.conv_v), strict=True)
        ):
            heads = part.swapaxes(1, 2)
            mixed.append(self._custom_convolution(heads, weights, cache[number]).swapaxes(1, 2))
            cache[number] = heads[:, :, -1:]
        return tuple(mixed)


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    for layer in model.layers:
        layer.self_attn.__class__ = PagedAttention

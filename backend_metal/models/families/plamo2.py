"""PLaMo 2 on a paged cache: mlx-lm calls MLX's attention itself.

It leaves out the window that configs name, and so its answers are held to, and given, without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import plamo2

from backend_metal.models.layers.layer_cache import LayerCache


class PagedAttention(plamo2.Attention):  # type: ignore[misc]
    def __call__(self, hidden_states: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if not isinstance(cache, LayerCache):
            dense: mx.array = super().__call__(hidden_states, mask, cache)
            return dense
        num_tokens = hidden_states.shape[0]
        qkv = self.qkv_proj(hidden_states)
        queries, keys, values = (
            heads.reshape(num_tokens, -1, 1, self.qk_dim)
            for heads in mx.split(qkv, [self.q_proj_dim, self.q_proj_dim + self.k_proj_dim], -1)
        )
        queries, keys = (
            self.rope(
                mx.fast.rms_norm(heads, weight=None, eps=1e-6) * weight[:, None],
                offset=cache.offset,
            )
            for heads, weight in ((queries, self.q_weight), (keys, self.k_weight))
        )
        keys, values = cache.update_and_fetch(keys, values)
        out = cache.attend(queries, keys, values, scale=self.scale)
        projected: mx.array = self.o_proj(out.reshape(num_tokens, 1, -1))
        return projected


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    for part in model.modules():
        # It may have been mixed into.
        if type(part) is plamo2.Attention:
            part.__class__ = PagedAttention

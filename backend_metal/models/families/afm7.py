"""Apple's AFM 7B on a paged cache: its last layers reckon their position from the keys' number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import afm7

from backend_metal.models.layers.layer_cache import AttentionOptions, PagedMask


class PagedReuseAttention(afm7.KVReuseAttention):  # type: ignore[misc]
    """Attends over the keys and values of the last layer that has its own."""

    def __call__(self, x: mx.array, keys: mx.array, values: mx.array, mask: Any = None) -> mx.array:
        if not isinstance(mask, PagedMask):
            dense: mx.array = super().__call__(x, keys, values, mask)
            return dense
        queries = self.q_proj(x).reshape(x.shape[0], self.n_heads, 1, self.head_dim)
        queries = self.q_norm(self.rope(queries, offset=mask.positions))
        layer = mask.attending.layer_of(keys, values, None)
        out = mask.attending.attend(layer, queries, keys, values, AttentionOptions(self.scale))
        projected: mx.array = self.out_proj(out.reshape(x.shape))
        return projected


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    for layer in model.model.kv_reuse_layers:
        layer.self_attn.__class__ = PagedReuseAttention

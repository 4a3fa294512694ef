"""Llama 4 on a paged cache: mlx-lm reckons its masks and its queries' scales from one offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama4

from backend_metal.models.layers.layer_cache import LayerCache, LayerCaches


class PagedBackbone(llama4.LlamaModel):  # type: ignore[misc]
    """mlx-lm's, where each layer has the mask of its own cache."""

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if not isinstance(cache, LayerCaches):
            dense: mx.array = super().__call__(inputs, cache)
            return dense
        hidden = self.embed_tokens(inputs)
        for layer, own in zip(self.layers, cache, strict=True):
            hidden = layer(hidden, own.make_mask(1), cache=own)
        normed: mx.array = self.norm(hidden)
        return normed


class PagedAttention(llama4.Attention):  # type: ignore[misc]
    """mlx-lm's layer, with positions of its own for each token."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if not isinstance(cache, LayerCache):
            dense: mx.array = super().__call__(x, mask, cache)
            return dense
        num_tokens = x.shape[0]

        def heads(flat: mx.array) -> mx.array:
            return flat.reshape(num_tokens, -1, 1, self.head_dim)

        queries, keys, values = (
            heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.use_rope:
            queries = self.rope(queries, offset=cache.offset)
            keys = self.rope(keys, offset=cache.offset)
        if self.use_qk_norm:
            queries = mx.fast.rms_norm(queries, weight=None, eps=1e-6)
            keys = mx.fast.rms_norm(keys, weight=None, eps=1e-6)
        if self.attn_temperature_tuning and not self.use_rope:
            queries = queries * self._temperatures(cache.offset).astype(queries.dtype)
        keys, values = cache.update_and_fetch(keys, values)
        out = cache.attend(queries, keys, values, scale=self.scale)
        projected: mx.array = self.o_proj(out.reshape(num_tokens, 1, -1))
        return projected

    def _temperatures(self, positions: mx.array) -> mx.array:
        """``[num_tokens, 1, 1, 1]``: queries grow with the logarithm of the context."""
        stretches = mx.floor((positions + 1) / self.floor_scale)
        scales: mx.array = mx.log(stretches + 1.0) * self.attn_scale + 1.0
        return scales[:, None, None, None]


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    backbone = model.language_model.model
    # It may have been mixed into.
    if type(backbone) is llama4.LlamaModel:
        backbone.__class__ = PagedBackbone
    for layer in backbone.layers:
        layer.self_attn.__class__ = PagedAttention

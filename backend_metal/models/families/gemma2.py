"""Gemma 2 on a paged cache: mlx-lm computes its attention inline, and ignores its window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma2

from backend_metal.models.layers.layer_cache import LayerCache


class PagedAttention(gemma2.Attention):  # type: ignore[misc]
    """mlx-lm's layer; with one of our caches the inline softmax becomes the paged operator."""

    window: int | None

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        if not isinstance(cache, LayerCache):
            dense: mx.array = super().__call__(x, mask, cache)
            return dense
        batch, length, _ = x.shape

        def heads(flat: mx.array) -> mx.array:
            return flat.reshape(batch, length, -1, self.head_dim).swapaxes(1, 2)

        queries, keys, values = (
            heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries = self.rope(queries, offset=cache.offset)
        keys = self.rope(keys, offset=cache.offset)
        keys, values = cache.update_and_fetch(keys, values)
        out = cache.attend(
            queries,
            keys,
            values,
            scale=self.scale,
            window=self.window,
            softcap=self.attn_logit_softcapping,
        )
        projected: mx.array = self.o_proj(out.swapaxes(1, 2).reshape(batch, length, -1))
        return projected


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    """Give every layer its attention and the window that Gemma 2 was trained with."""
    for layer, window in zip(model.layers, layer_windows(config, len(model.layers)), strict=True):
        layer.self_attn.__class__ = PagedAttention
        layer.self_attn.window = window


def layer_windows(config: Mapping[str, Any], num_layers: int) -> list[int | None]:
    """``sliding_window`` on even layers, or where ``layer_types`` says so."""
    kinds = config.get("layer_types") or ["sliding_attention", "full_attention"] * num_layers
    window = config.get("sliding_window")
    return [window if kind == "sliding_attention" else None for kind in kinds[:num_layers]]

"""GPT BigCode on a paged cache: mlx-lm counts learned positions from one offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gpt_bigcode

from backend_metal.models.layers.layer_cache import LayerCaches


class PagedBackbone(gpt_bigcode.GPTBigCodeModel):  # type: ignore[misc]
    """mlx-lm's, with a position of its own for each token."""

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if not isinstance(cache, LayerCaches):
            dense: mx.array = super().__call__(inputs, cache)
            return dense
        hidden = self.wte(inputs) + self.wpe(cache[0].offset)[:, None]
        for layer, own in zip(self.h, cache, strict=True):
            hidden = layer(hidden, own.make_mask(1), cache=own)
        normed: mx.array = self.ln_f(hidden)
        return normed


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    # It may have been mixed into.
    if type(model.transformer) is gpt_bigcode.GPTBigCodeModel:
        model.transformer.__class__ = PagedBackbone

"""LongCat-Flash on a paged cache, also with embeddings of n-grams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.longcat_flash_ngram import NgramEmbedding

from backend_metal.models.layers import mla
from backend_metal.models.layers.recurrent_layers import GatheredStates


class PagedNgramEmbedding(NgramEmbedding):  # type: ignore[misc]
    """mlx-lm keeps no more of the latest tokens than there are. Before the first one it reckons
    with tokens 0, and so what is kept here is always of one length; and in 32 bits, since MLX's
    GPUs write none of 64 into a pool."""

    def __call__(self, input_ids: mx.array, cache: Any = None) -> mx.array:
        is_gathered = isinstance(cache, GatheredStates)
        if is_gathered and cache[0] is None:
            cache[0] = mx.zeros((input_ids.shape[0], self.n - 1), mx.int32)
        embedded: mx.array = super().__call__(input_ids, cache)
        if is_gathered:
            cache[0] = cache[0].astype(mx.int32)
        return embedded


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    mla.adapt(model, config)
    for part in model.modules():
        if type(part) is NgramEmbedding:
            part.__class__ = PagedNgramEmbedding

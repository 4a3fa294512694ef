"""Gear on a paged cache: mlx-lm computes its capped attention inline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gear

from backend_metal.models.layers.layer_cache import AttentionOptions, PagedMask


class _CappedAttentionSeam:
    """Stands where a layer calls it; masks of mlx-lm's own never notice it."""

    def __init__(self, original: Callable[..., mx.array]) -> None:
        self._original = original

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        scale: float,
        softcap: float,
        mask: Any,
    ) -> mx.array:
        if not isinstance(mask, PagedMask):
            return self._original(queries, keys, values, scale, softcap, mask)
        layer = mask.attending.layer_of(keys, values, None)
        options = AttentionOptions(scale, mask.window, softcap, chunk=mask.chunk)
        return mask.attending.attend(layer, queries, keys, values, options)


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    if not isinstance(gear._softcap_attention, _CappedAttentionSeam):
        gear._softcap_attention = _CappedAttentionSeam(gear._softcap_attention)

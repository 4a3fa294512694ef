"""Hunyuan's experts, whose weights add up to 1 where the config asks for it, unlike mlx-lm's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import hunyuan


class NormalizedGate(hunyuan.Gate):  # type: ignore[misc]
    """mlx-lm's gate; the softmax behind it leaves out the experts that are not selected."""

    top_k: int

    def __call__(self, x: mx.array) -> mx.array:
        logits = super().__call__(x)
        least = mx.min(mx.topk(logits, self.top_k, axis=-1), axis=-1, keepdims=True)
        return mx.where(logits >= least, logits, -mx.inf)


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    if not config.get("norm_topk_prob"):
        return
    for layer in model.layers:
        if isinstance(layer.mlp, hunyuan.MoeBlock):
            layer.mlp.gate.__class__ = NormalizedGate
            layer.mlp.gate.top_k = layer.mlp.top_k

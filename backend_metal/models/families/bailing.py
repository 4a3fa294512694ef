"""Linear attention of Bailing (Ling and Ring): mlx-lm rotates it from one offset a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import bailing_hybrid, bailing_moe_linear

from backend_metal.models.layers import mla

LINEAR = (bailing_hybrid.LinearAttention, bailing_moe_linear.LinearAttention)


class _RotatesTokens:
    """Mixed into a rotary embedding's class: ``offset`` may have each token's position."""

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """``x`` is ``[batch, heads, length, dim]``; such an ``offset`` is ``[batch, length]``."""
        rope: Any = super()
        if not (isinstance(offset, mx.array) and offset.ndim == 2):
            same: mx.array = rope.__call__(x, offset=offset)
            return same
        batch, heads, length, dim = x.shape
        tokens = x.swapaxes(1, 2).reshape(-1, heads, 1, dim)
        rotated: mx.array = rope.__call__(tokens, offset=offset.flatten())
        return rotated.reshape(batch, length, heads, dim).swapaxes(1, 2)


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    mla.adapt(model, config)
    for part in model.modules():
        if isinstance(part, LINEAR) and not isinstance(part.rope, _RotatesTokens):
            part.rope.__class__ = _token_rope_class(type(part.rope))  # type: ignore[arg-type]


@cache
def _token_rope_class(cls: type[nn.Module]) -> type[nn.Module]:
    return type(cls.__name__, (_RotatesTokens, cls), {})

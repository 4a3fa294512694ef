"""Prism's packs of Qwen3.5 in 2 bits: MLX rotates no array that is empty, as the head's rows are in
a step that needs no logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import prism_hadamard_qwen35 as packed


class _RotationSeam:
    """Stands where packed layers call it."""

    def __init__(self, original: Callable[..., mx.array]) -> None:
        self._original = original

    def __call__(self, x: mx.array, block: int, signs: mx.array, inverse: bool = False) -> mx.array:
        return self._original(x, block, signs, inverse) if x.size else x


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    if not isinstance(packed.hadamard_rotate, _RotationSeam):
        packed.hadamard_rotate = _RotationSeam(packed.hadamard_rotate)

"""Experts of models in half precision: on a CPU MLX multiplies theirs in float32 alone."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import SwitchLinear


class FloatSwitchLinear(SwitchLinear):  # type: ignore[misc]
    """Has its weights in float32, and answers in the dtype of what it is given."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        out: mx.array = super().__call__(x.astype(mx.float32), indices, sorted_indices)
        return out.astype(x.dtype)


def keep_experts_float(model: nn.Module) -> None:
    """Make the experts of ``model``, which is in half precision, such. Cast at each step instead,
    all of a layer's would be, for the few that are chosen. Idempotent."""
    for part in model.modules():
        if type(part) is SwitchLinear:
            part.__class__ = FloatSwitchLinear
            part.update({name: array.astype(mx.float32) for name, array in part.items()})

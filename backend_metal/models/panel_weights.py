"""On a CPU, a model's float32 matrices laid out as its products read them."""

from __future__ import annotations

from collections.abc import Callable

import mlx.nn as nn

from backend_metal.linux_cpu.panels import (
    is_read,
    lay_in_panels,
    may_lie_in_panels,
    take_out_of_panels,
)
from backend_metal.models.fused_projections import joined_layers


def lay_weights_in_panels(model: nn.Module, forward: Callable[[], None]) -> None:
    """Lay the weights of plain layers so, but for those of layers whose weights the model reads
    itself in ``forward``. Besides ``model`` it takes the memory of one layer."""
    changed = []
    for whole, parts in joined_layers(model):
        if may_lie_in_panels(whole):
            # Which have rows of the same array.
            for part in parts:
                part.pop("weight")
            lay_in_panels(whole)
            changed.append(whole)
    is_tied = not any(name.endswith("lm_head") for name, _ in model.named_modules())
    for layer in model.modules():
        if may_lie_in_panels(layer) and (is_tied or not isinstance(layer, nn.Embedding)):
            lay_in_panels(layer)
            changed.append(layer)
    if changed:
        forward()
    for layer in filter(is_read, changed):
        take_out_of_panels(layer)

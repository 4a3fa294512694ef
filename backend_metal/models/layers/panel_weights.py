"""On a CPU, a model's float32 matrices laid out as its products read them."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from backend_metal.devices.cpu.panels import (
    is_read,
    lay_in_panels,
    may_lie_in_panels,
    take_out_of_panels,
)
from backend_metal.models.layers.fused_projections import joined_layers


class _WatchedEmbedding(nn.Embedding):  # type: ignore[misc]
    """Notes whether it is the model's head, too."""

    _is_head: bool

    def as_linear(self, x: mx.array) -> mx.array:
        self._is_head = True
        out: mx.array = super().as_linear(x)
        return out


def lay_weights_in_panels(model: nn.Module, forward: Callable[[], object]) -> None:
    """Lay the weights of plain layers so, but for those of layers whose weights the model reads
    itself in ``forward``, and embeddings that it only looks up. Besides ``model`` it takes the
    memory of one layer."""
    joined = joined_layers(model)
    parts_of = {id(whole): parts for whole, parts in joined}
    heads = _embeddings_that_are_heads(model, forward)
    changed = []
    for layer in [*(whole for whole, _ in joined), *model.modules()]:
        if may_lie_in_panels(layer) and (id(layer) in heads or not isinstance(layer, nn.Embedding)):
            for part in parts_of.get(id(layer), []):
                # They have rows of the same array.
                part.pop("weight", None)
            lay_in_panels(layer)
            changed.append(layer)
    if changed:
        forward()
    for layer in filter(is_read, changed):
        take_out_of_panels(layer)


def _embeddings_that_are_heads(model: nn.Module, forward: Callable[[], object]) -> set[int]:
    """Their ids: modules are compared by what is in them."""
    watched = [layer for layer in model.modules() if type(layer) is nn.Embedding]
    watched = [layer for layer in watched if may_lie_in_panels(layer)]
    for layer in watched:
        layer.__class__, layer._is_head = _WatchedEmbedding, False
    if watched:
        forward()
    heads = {id(layer) for layer in watched if layer._is_head}
    for layer in watched:
        layer.__class__ = nn.Embedding
        del layer._is_head
    return heads

"""On a CPU, quantized matrices side by side in few large arrays, for which there are huge pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from backend_metal.devices.cpu.huge_pages import has_huge_pages, lay_together
from backend_metal.devices.cpu.quantized import NATIVE
from backend_metal.models.layers.fused_projections import all_layers, joined_layers, replace_joined

NAMES = ("weight", "scales", "biases")
PIECE_BYTES = 64 << 20
"""Of such an array, unless a matrix is larger."""


def lay_weights_together(model: nn.Module) -> None:
    """Lay the matrices that stay quantized so. Besides ``model`` it takes the memory of one
    piece."""
    if not has_huge_pages():
        return
    parts_of = {id(whole): parts for whole, parts in joined_layers(model)}
    for piece in _pieces(model):
        arrays = lay_together([layer[name] for layer, name in piece])
        for (layer, name), array in zip(piece, arrays, strict=True):
            if parts := parts_of.get(id(layer)):
                replace_joined(parts, name, array)
                mx.eval([part[name] for part in parts])
            else:
                layer[name] = array


def _pieces(model: nn.Module) -> Iterator[list[tuple[Any, str]]]:
    """The layers' arrays by name, as many at once as a piece has room for."""
    piece: list[tuple[Any, str]] = []
    num_bytes = 0
    for layer in {id(layer): layer for layer in all_layers(model)}.values():
        if type(layer) not in NATIVE.values():
            continue
        for name in NAMES:
            if num_bytes and num_bytes + layer[name].nbytes > PIECE_BYTES:
                yield piece
                piece, num_bytes = [], 0
            piece.append((layer, name))
            num_bytes += layer[name].nbytes
    if piece:
        yield piece

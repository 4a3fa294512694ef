"""On CUDA, products of many rows with quantized matrices: their weights are unpacked first.

MLX's own compute some 5 TFLOP/s there (H100, 4 bits, 700 to 15,000 rows), a hundredth of what the
GPU does with floats. In what they take for ten rows the matrix can be written as floats and read.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from backend_metal.attention.recording import is_being_recorded
from backend_metal.models.fused_projections import joined_layers

FEWEST_ROWS = 16
MOST_WEIGHTS = 1 << 27
"""Unpacked at a time, of a matrix that is a vocabulary's."""


class _Unpacking(nn.Module):  # type: ignore[misc]
    """Mixed into a layer's class."""

    def _is_of_many(self, x: mx.array) -> bool:
        # A step that is recorded would hold all weights of the model, unpacked.
        return int(x.size) >= FEWEST_ROWS * int(x.shape[-1]) and not is_being_recorded()

    def _product(self, x: mx.array) -> mx.array:
        arrays = [self["weight"], self["scales"], self["biases"]]
        ends = [*range(0, arrays[0].shape[0], max(1, MOST_WEIGHTS // x.shape[-1]))][1:]
        unpack = partial(mx.dequantize, group_size=self.group_size, bits=self.bits, dtype=x.dtype)
        if not ends:
            return x @ unpack(*arrays).T
        parts = zip(*(mx.split(array, ends) for array in arrays), strict=True)
        return mx.concatenate([x @ unpack(*part).T for part in parts], axis=-1)


class UnpackingLinear(_Unpacking, nn.QuantizedLinear):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        out: mx.array
        if not self._is_of_many(x):
            out = super().__call__(x)
            return out
        out = self._product(x)
        return out + self["bias"] if "bias" in self else out


class UnpackingEmbedding(_Unpacking, nn.QuantizedEmbedding):  # type: ignore[misc]
    def as_linear(self, x: mx.array) -> mx.array:
        out: mx.array = self._product(x) if self._is_of_many(x) else super().as_linear(x)
        return out


UNPACKING: dict[type[nn.Module], type[nn.Module]] = {
    nn.QuantizedLinear: UnpackingLinear,
    nn.QuantizedEmbedding: UnpackingEmbedding,
}


def unpack_for_many_rows(model: nn.Module) -> None:
    """Have the quantized layers of ``model`` do so, those of MLX's affine format. Subclasses keep
    their own ways. Idempotent."""
    layers: list[Any] = [whole for whole, _ in joined_layers(model)]
    for layer in [*layers, *model.modules()]:
        if type(layer) in UNPACKING and layer.mode == "affine":
            layer.__class__ = UNPACKING[type(layer)]

"""BitNet's ternary weights as MLX's affine quantization of 2 bits: mlx-lm has a kernel for them on
Metal alone."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models.bitlinear_layers import BitLinear

GROUP_SIZES = (128, 64, 32)
BITS = 2
PER_BYTE, PER_WORD = 8 // BITS, 32 // BITS


def unpack_ternary(model: nn.Module) -> None:
    """Replace each ``BitLinear``, lazily, by a quantized layer with the same weights. Raises
    ``ValueError`` naming a layer whose rows are in no groups of MLX's."""
    layers = [
        (name, _quantized(name, layer))
        for name, layer in model.named_modules()
        if isinstance(layer, BitLinear)
    ]
    model.update_modules(tree_unflatten(layers))


def _quantized(name: str, layer: BitLinear) -> nn.QuantizedLinear:
    out_features, in_features = layer.out_features, layer.in_features
    group_size = next((size for size in GROUP_SIZES if in_features % size == 0), None)
    if group_size is None:
        raise ValueError(f"{name}: rows of {in_features} ternary weights can't be in groups of 32")
    has_bias = layer.bias is not None
    quantized = nn.QuantizedLinear(group_size, 1, bias=has_bias, group_size=group_size, bits=BITS)
    # A byte has the weights of rows that are a fourth of all rows apart, each one more than it is.
    packed = layer.weight
    rows = mx.concatenate([(packed >> (BITS * part)) & 3 for part in range(PER_BYTE)])
    words = rows[:out_features].reshape(out_features, -1, PER_WORD).astype(mx.uint32)
    words = (words << (BITS * mx.arange(PER_WORD, dtype=mx.uint32))).sum(-1)
    quantized.weight = words.astype(mx.uint32)
    scale = 1 / layer.weight_scale if layer.invert_weight_scales else layer.weight_scale
    quantized.scales = mx.broadcast_to(scale, (out_features, in_features // group_size))
    quantized.biases = -quantized.scales
    if has_bias:
        quantized.bias = layer.bias
    return quantized

"""Layers whose weights stay as they are quantized, with products of this package."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from backend_metal import native

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


class NativeQuantizedLinear(nn.QuantizedLinear):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        out = _product(self, x)
        return out + self["bias"] if "bias" in self else out


class NativeQuantizedEmbedding(nn.QuantizedEmbedding):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        return native.quantized_rows(
            x.astype(mx.int32),
            self["weight"],
            self["scales"],
            self["biases"],
            self.group_size,
            self.bits,
        )

    def as_linear(self, x: mx.array) -> mx.array:
        return _product(self, x)


class NativeQuantizedSwitchLinear(QuantizedSwitchLinear):  # type: ignore[misc]
    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """``x`` is ``[..., 1, depth]``; its first dimensions broadcast to those of ``indices``."""
        depth = x.shape[-1]
        rows = mx.broadcast_to(x, (*indices.shape, 1, depth)).reshape(-1, depth)
        chosen = indices.flatten().astype(mx.int32)
        out = native.gather_quantized_matmul(
            rows.astype(mx.float32),
            self["weight"],
            self["scales"],
            self["biases"],
            chosen,
            self.group_size,
            self.bits,
        ).reshape(*indices.shape, 1, -1)
        return out + mx.expand_dims(self["bias"][indices], -2) if "bias" in self else out


NATIVE = {
    nn.QuantizedLinear: NativeQuantizedLinear,
    nn.QuantizedEmbedding: NativeQuantizedEmbedding,
    QuantizedSwitchLinear: NativeQuantizedSwitchLinear,
}


def can_stay_quantized(layer: nn.Module) -> bool:
    """Whether there is a kernel for this layer's format and this processor. Subclasses keep their
    own ways."""
    return (
        type(layer) in NATIVE
        and layer.mode == "affine"
        and layer.bits in BITS
        and layer.group_size in GROUP_SIZES
        and native.product_kernel() is not None
    )


def keep_quantized(layer: nn.Module) -> None:
    """Make ``layer``, which ``can_stay_quantized``, one that computes in float32 on the CPU and
    leaves its scales in the dtype that they are stored in. Idempotent."""
    layer.__class__ = NATIVE.get(type(layer), type(layer))


def _product(layer: nn.Module, x: mx.array) -> mx.array:
    return native.quantized_matmul(
        x.astype(mx.float32),
        layer["weight"],
        layer["scales"],
        layer["biases"],
        layer.group_size,
        layer.bits,
    )

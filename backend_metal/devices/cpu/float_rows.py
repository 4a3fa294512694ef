"""Layers that normalise and rotate rows natively, for float32 on the CPU."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from backend_metal import native
from backend_metal.devices.cpu.native_scope import native_applies


class NativeRMSNorm(nn.RMSNorm):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        weight = self["weight"]
        if native_applies(x, weight):
            return native.rms_norm(x, weight, self.eps)
        normalized: mx.array = super().__call__(x)
        return normalized


class NativeRoPE(nn.RoPE):  # type: ignore[misc]
    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        if (
            isinstance(offset, mx.array)
            and x.ndim == 4
            and x.shape[2] == 1
            and offset.shape == x.shape[:1]
            and not self.traditional
            and native_applies(x)
        ):
            return native.rope(x, offset.astype(mx.int32), self._frequencies, self.scale)
        rotated: mx.array = super().__call__(x, offset)
        return rotated


def rope_frequencies(half: int, base: float) -> mx.array:
    """float32 ``[half]``, rounded as ``mx.fast.rope`` rounds them: at a position of thousands the
    last bit of one shows."""
    step = np.log(np.float32(base)) / np.float32(half)
    return mx.exp(mx.arange(0, -half, -1, mx.float32) * mx.array(step, mx.float32))


def prepare_float_rows(model: nn.Module) -> None:
    """Make each plain ``RMSNorm`` and ``RoPE`` of ``model`` one that can run natively. Idempotent.

    Subclasses keep their own ways.
    """
    for part in model.modules():
        if type(part) is nn.RMSNorm:
            part.__class__ = NativeRMSNorm
        elif type(part) is nn.RoPE:
            part.__class__ = NativeRoPE
            # The underscore keeps it from being a parameter.
            part._frequencies = rope_frequencies(part.dims // 2, part.base)

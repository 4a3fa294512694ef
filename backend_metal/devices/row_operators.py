"""The operators of whole rows, on devices that have them: what is between a layer's two blocks, and
in the middle of a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx


class RmsNormOfSum(Protocol):
    """The kernel of a device."""

    def __call__(self, x: mx.array, weight: mx.array, epsilon: float) -> mx.array:
        """``mx.fast.rms_norm`` of ``x [..., width]``, with its bits; on a CPU with those of
        ``native.rms_norm``.

        Where ``x`` is a sum that is not computed yet, of the weight's dtype, one launch computes
        both, and ``x`` is that launch's sum from now on."""


class SiluProduct(Protocol):
    """The kernel of a device."""

    def __call__(self, gate: mx.array, up: mx.array) -> mx.array:
        """``silu(gate) * up``, contiguous, of arrays ``[..., width]`` of one shape and dtype, which
        is float32, float16 or bfloat16, and of any strides. Rounded behind each operation."""


@dataclass(frozen=True)
class RowOperators:
    rms_norm_of_sum: RmsNormOfSum
    silu_product: SiluProduct | None = None
    """None: that of ``cpu.activations``, or MLX's."""

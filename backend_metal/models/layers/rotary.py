"""Which rotary embeddings a device's operator for the heads of queries and keys computes.

It stands for ``q_norm``, ``k_norm`` and both calls of ``rope``, and takes what a projection has
made as it lies in memory: one launch in the place of six. Results are those of
``mx.fast.rms_norm`` and ``mx.fast.rope``, rounded where these round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.rope_utils import Llama3RoPE, ProportionalRoPE, SuScaledRoPE, YarnRoPE

from backend_metal.devices.cpu.float_rows import NativeRoPE
from backend_metal.devices.rotate_heads import RotateHeads

DTYPES = (mx.float16, mx.bfloat16, mx.float32)
MAX_HEAD_DIM = 512


class FrequencyRoPE(nn.Module):  # type: ignore[misc]
    """Rotates by frequencies that are given, and multiplies what it rotates by ``mscale``."""

    def __init__(
        self, dims: int, traditional: bool, inverse_frequencies: np.ndarray, mscale: float
    ) -> None:
        super().__init__()
        self.dims = dims
        self.traditional = traditional
        self.mscale = mscale
        with np.errstate(divide="ignore"):
            self._freqs = mx.array(1 / inverse_frequencies, mx.float32)

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        if self.mscale != 1:
            x = x.at[..., : self.dims].multiply(self.mscale)
        rotated: mx.array = mx.fast.rope(
            x,
            self.dims,
            traditional=self.traditional,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self._freqs,
        )
        return rotated


@dataclass(frozen=True, eq=False)
class Rotary:
    """What ``mx.fast.rope`` is told, whatever the positions."""

    dims: int
    traditional: bool
    base: float = 0.0
    scale: float = 1.0
    frequencies: mx.array | None = None
    """In place of ``base``."""

    def fits(self, head_dim: int) -> bool:
        """Whether there is a kernel for such heads."""
        return head_dim % 2 == 0 and self.dims % 2 == 0 and self.dims <= head_dim <= MAX_HEAD_DIM

    def key(self) -> tuple[object, ...]:
        """Equal for those that rotate alike."""
        own = None if self.frequencies is None else np.array(self.frequencies).tobytes()
        return self.dims, self.traditional, self.base, self.scale, own


def rotary_of(rope: nn.Module) -> Rotary | None:
    """None: it does more than rotate, or angles depend on more than a token's position."""
    cls = type(rope)
    if cls in (nn.RoPE, NativeRoPE):
        return Rotary(rope.dims, rope.traditional, rope.base, rope.scale)
    # What also scales what it rotates has another result where that is rounded in between.
    if cls is SuScaledRoPE and rope._scale == 1:
        return Rotary(rope.dim, False, frequencies=_floats(rope._freqs))
    scaled = cls in (YarnRoPE, FrequencyRoPE) and rope.mscale == 1
    if scaled or cls in (Llama3RoPE, ProportionalRoPE):
        return Rotary(rope.dims, rope.traditional, frequencies=_floats(rope._freqs))
    return None


def rotated(
    rotate: RotateHeads,
    rotary: Rotary,
    q: mx.array,
    k: mx.array,
    positions: mx.array,
    weights: tuple[mx.array, mx.array] | None,
    epsilon: float,
) -> tuple[mx.array, mx.array] | None:
    """As ``RotateHeads`` has it; None where it has no kernel for these dtypes."""
    if any(array.dtype != q.dtype for array in (k, *(weights or ()))) or q.dtype not in DTYPES:
        return None
    q_weight, k_weight = weights or (None, None)
    return rotate(
        q,
        k,
        positions,
        q_weight=q_weight,
        k_weight=k_weight,
        frequencies=rotary.frequencies,
        dims=rotary.dims,
        traditional=rotary.traditional,
        base=rotary.base,
        scale=rotary.scale,
        epsilon=epsilon,
    )


def _floats(array: Any) -> mx.array:
    floats: mx.array = array.astype(mx.float32)
    return floats

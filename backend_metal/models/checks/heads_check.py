"""Modules whose heads are fused are run before they serve, and held to what they were."""

from __future__ import annotations

from copy import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from backend_metal.devices.kernel_check import is_right, relative_rms
from backend_metal.models.layers.fused_heads import (
    PROJECTIONS,
    Fused,
    fused_modules,
    separate_heads,
)
from backend_metal.models.layers.layer_cache import AttentionOptions, LayerCache, RecordingAttending

TOLERANCES = {mx.float32: 1e-4, mx.float16: 1e-3, mx.bfloat16: 8e-3}
"""Of the root mean square of the error, over that of the result: an element may be rounded to the
other neighbour."""
NUM_TOKENS = (5, 300)
"""With which a kernel shares its work out otherwise."""
MAX_POSITION = 5000


class _Given(nn.Module):  # type: ignore[misc]
    """Stands where a projection is, and has its outputs."""

    def __init__(self, outputs: mx.array) -> None:
        super().__init__()
        self._outputs = outputs

    def __call__(self, x: mx.array) -> mx.array:
        return self._outputs


class _KeepsHeads(RecordingAttending):
    """Keeps what is attended with."""

    heads: tuple[mx.array, mx.array, mx.array]

    def attend(
        self, layer: int, q: mx.array, k: mx.array, v: mx.array, options: AttentionOptions
    ) -> mx.array:
        self.heads = q, k, v
        return super().attend(layer, q, k, v, options)


def separate_wrong_heads(model: nn.Module, dtype: mx.Dtype) -> None:
    """Have the modules of ``model`` be as they were if the operator is wrong on this machine about
    any of them, with an error in the log. ``dtype``: of its heads."""
    if not is_right("The kernel that rotates heads is", lambda: _wrong(model, dtype)):
        separate_heads(model)


def _wrong(model: nn.Module, dtype: mx.Dtype) -> str | None:
    seen = set()
    for module, fused in fused_modules(model):
        key = type(module), fused.head_dim, fused.rotary.key(), fused.form
        heads = tuple(getattr(module, name) for name in fused.form.heads)
        if (key, heads) in seen:
            continue
        seen.add((key, heads))
        for tokens in NUM_TOKENS:
            error = _error(module, fused, tokens, dtype)
            if not error <= TOLERANCES.get(dtype, 0.0):
                return f"{type(module).__name__} of {heads} heads of {fused.head_dim}: {error:.1e}"
    return None


def _error(module: Any, fused: Fused, tokens: int, dtype: mx.Dtype) -> float:
    """The largest of queries, keys and values."""
    rng = np.random.default_rng(tokens)
    num_heads, num_kv_heads = (getattr(module, name) for name in fused.form.heads)
    probe = copy(module)
    # Parts of larger rows, as where one product makes all three.
    sizes = [heads * fused.head_dim for heads in (num_heads, num_kv_heads, num_kv_heads)]
    rows = mx.array(rng.standard_normal((tokens, 1, sum(sizes))), dtype)
    outputs = mx.split(rows, np.cumsum(sizes)[:-1].tolist(), axis=-1)
    for name, output in zip(PROJECTIONS, outputs, strict=True):
        probe[name] = _Given(output)
    probe[fused.form.output] = nn.Identity()
    positions = mx.array(rng.integers(0, MAX_POSITION, tokens), mx.int32)
    got = _heads(probe, positions)
    probe.__class__ = type(module).__bases__[1]
    want = _heads(probe, positions)
    return max(relative_rms(*pair) for pair in zip(got, want, strict=True))


def _heads(probe: Any, positions: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    attending = _KeepsHeads()
    cache = LayerCache(attending, 0, positions, window=None)
    probe(mx.zeros((positions.size, 1, 1)), cache.make_mask(1), cache)
    return attending.heads

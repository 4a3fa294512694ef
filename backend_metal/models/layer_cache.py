"""What a packed step hands to an mlx-lm model in place of its KV caches.

A model asks a layer's cache for ``offset``, ``make_mask`` and ``update_and_fetch``, then passes it
to ``scaled_dot_product_attention``. Here the keys and values of the step go through untouched, the
mask is a mere note of the layer's window, and attention comes back to the cache, which attends over
its paged memory. Packed tokens are a batch of one-token sequences: ``[num_tokens, heads, 1, dim]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from backend_metal.attention.kv_cache import (
    AttentionMetadata,
    KVCachePool,
    LayerAttention,
    LayerCacheSpec,
)

ATTENTION_NAME = "scaled_dot_product_attention"


@dataclass(frozen=True)
class WindowMask:
    """Causal; ``window`` keys at most, or all of them."""

    window: int | None


class LayerCache(ABC):
    """One layer's cache during one forward; the interface that mlx-lm models expect."""

    def __init__(self, positions: mx.array) -> None:
        self.offset = positions
        """int32 ``[num_tokens]``: rotary embeddings take one offset a batch row."""

    def make_mask(
        self,
        N: int,  # noqa: N803 (mlx-lm's name)
        return_array: bool = False,
        window_size: int | None = None,
    ) -> WindowMask:
        return WindowMask(window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values

    @abstractmethod
    def attend(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        window: int | None,
        softcap: float | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """``[num_tokens, heads, 1, dim]`` each, and so the result."""


class PagedLayerCache(LayerCache):
    def __init__(
        self, positions: mx.array, pool: KVCachePool, layer: int, metadata: AttentionMetadata
    ) -> None:
        super().__init__(positions)
        self._pool = pool
        self._layer = layer
        self._metadata = metadata

    def attend(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        window: int | None,
        softcap: float | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        out = self._pool.attend(
            self._layer,
            q.squeeze(2),
            k.squeeze(2),
            v.squeeze(2),
            self._metadata,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=None if sinks is None else sinks.astype(mx.float32),
        )
        return out[:, :, None]


class RecordingLayerCache(LayerCache):
    """Learns what a layer keeps; the graph that it is traced in is never evaluated."""

    def __init__(self, positions: mx.array) -> None:
        super().__init__(positions)
        self.recorded: list[tuple[LayerAttention, mx.Dtype]] = []

    def attend(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        window: int | None,
        softcap: float | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        spec = LayerCacheSpec(k.shape[1], k.shape[3], v.shape[3])
        layer = LayerAttention(spec, q.shape[1], scale, window, softcap, sinks is not None)
        self.recorded.append((layer, k.dtype))
        return mx.zeros((*q.shape[:3], v.shape[3]), q.dtype)


class LayerCaches(list[LayerCache]):
    """A model's ``cache`` argument, and which rows of the backbone's output need logits.

    After a forward, ``states`` is all of that output, ``[num_tokens, 1, size]``."""

    states: mx.array

    def __init__(self, caches: Iterable[LayerCache], logit_rows: mx.array) -> None:
        super().__init__(caches)
        self.logit_rows = logit_rows


class _AttentionSeam:
    """Stands where a model's module calls attention; other caches never notice it."""

    def __init__(self, original: Callable[..., mx.array]) -> None:
        self._original = original

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        if not isinstance(cache, LayerCache):
            return self._original(queries, keys, values, cache, scale, mask, sinks)
        if not isinstance(mask, WindowMask):
            raise ValueError(f"mask must come from the cache's make_mask, not be {mask!r}")
        return cache.attend(queries, keys, values, scale=scale, window=mask.window, sinks=sinks)


class _SelectsLogitRows:
    """Mixed into a backbone's class, so that the parameter tree stays as it is."""

    def __call__(self, inputs: mx.array, cache: Any = None, *args: Any, **kwargs: Any) -> mx.array:
        backbone: Any = super()
        hidden: mx.array = backbone.__call__(inputs, cache, *args, **kwargs)
        if not isinstance(cache, LayerCaches):
            return hidden
        cache.states = hidden
        return hidden[cache.logit_rows]


def catch_attention(model: nn.Module) -> None:
    """Route attention through the caches in every Python module that defines a part of ``model``.

    Idempotent. The globals of a class's ``__call__`` are those of the file that defines it, also
    when a model's repository ships its own.
    """
    for part in model.modules():
        for cls in type(part).__mro__:
            namespace = getattr(cls.__dict__.get("__call__"), "__globals__", {})
            attention = namespace.get(ATTENTION_NAME)
            if attention is not None and not isinstance(attention, _AttentionSeam):
                namespace[ATTENTION_NAME] = _AttentionSeam(attention)


def select_logit_rows(backbone: nn.Module) -> None:
    """Let the head see only the rows that need logits. Idempotent."""
    cls = type(backbone)
    if not issubclass(cls, _SelectsLogitRows):
        backbone.__class__ = type(cls.__name__, (_SelectsLogitRows, cls), {})

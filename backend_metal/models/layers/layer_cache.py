"""What a packed step hands to an mlx-lm model in place of its KV caches.

A model asks a layer's cache for ``offset``, ``make_mask`` and ``update_and_fetch``, then passes it
to ``scaled_dot_product_attention``. Here the keys and values of the step go through untouched and
the mask is a mere note of the layer's window, so that attention can come back to the step
(``seam.py``), which attends over its paged memory. Packed tokens are a batch of one-token
sequences: ``[num_tokens, heads, 1, dim]``.

A layer that attends over what another one keeps, as in Gemma 4, passes on the other's keys and
values; by these the step knows whose cache it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from backend_metal.attention.kv_cache import (
    GroupedMetadata,
    KVCachePool,
    LayerAttention,
    LayerCacheSpec,
)
from backend_metal.models.layers.latents import IndexStep, LatentAttention, LatentHeads


@dataclass(frozen=True)
class AttentionOptions:
    """Of one attention, beside its arrays."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: mx.array | None = None
    chunk: int | None = None
    """Size of the chunks of which a token sees its own."""


class Attending(ABC):
    """Attention of one forward, over the caches of its layers."""

    def __init__(self) -> None:
        self._written: set[int] = set()
        self._kept: dict[int, tuple[int, mx.array, mx.array]] = {}
        """Layer, keys and values by the ``id`` of the keys, which stay alive here."""

    def keep(self, layer: int, keys: mx.array, values: mx.array) -> None:
        """Of a layer's cache, what this step adds to it."""
        if layer in self._written:
            raise ValueError(f"cache {layer} is written twice in a forward, not once")
        self._written.add(layer)
        self._kept[id(keys)] = layer, keys, values

    def layer_of(self, keys: mx.array, values: mx.array, cache: Any) -> int:
        """Whose keys and values these are; where no cache has them, then ``cache`` keeps them."""
        layer, _, kept_values = self._kept.get(id(keys), (None, None, None))
        if layer is None and isinstance(cache, LayerCache):
            return cache.layer
        if layer is None:
            raise ValueError("a layer attends over keys that no cache keeps")
        if kept_values is not values:
            raise ValueError(f"a layer attends over the keys of cache {layer} and other values")
        return layer

    @abstractmethod
    def attend(
        self, layer: int, q: mx.array, k: mx.array, v: mx.array, options: AttentionOptions
    ) -> mx.array:
        """``[num_tokens, heads, 1, dim]`` each, and so the result."""

    @abstractmethod
    def attend_latents(
        self, layer: int, heads: LatentHeads, latents: mx.array, index: IndexStep | None
    ) -> mx.array:
        """``[num_tokens, heads, value_dim]`` of ``latents``, ``[num_tokens, 1, dim]``, which
        ``layer`` keeps. ``index``: what chooses keys, if anything."""


class PagedAttending(Attending):
    def __init__(
        self,
        pool: KVCachePool,
        metadata: GroupedMetadata,
        on_layer: Callable[[int], None] | None = None,
    ) -> None:
        """``on_layer``: told of each layer as soon as what comes before its keys is built."""
        super().__init__()
        self._pool = pool
        self._metadata = metadata
        self._latents = LatentAttention(pool, metadata)
        self._on_layer = on_layer

    def keep(self, layer: int, keys: mx.array, values: mx.array) -> None:
        if self._on_layer is not None:
            self._on_layer(layer)
        super().keep(layer, keys, values)

    def attend(
        self, layer: int, q: mx.array, k: mx.array, v: mx.array, options: AttentionOptions
    ) -> mx.array:
        # Who attends over another layer's cache writes once more what that has written.
        sinks = options.sinks
        out = self._pool.attend(
            layer,
            q.squeeze(2),
            k.squeeze(2),
            v.squeeze(2),
            self._metadata,
            scale=options.scale,
            window=options.window,
            softcap=options.softcap,
            sinks=None if sinks is None else sinks.astype(mx.float32),
        )
        return out[:, :, None]

    def attend_latents(
        self, layer: int, heads: LatentHeads, latents: mx.array, index: IndexStep | None
    ) -> mx.array:
        return self._latents.attend(layer, heads, latents, index)


class RecordingAttending(Attending):
    """Learns what layers keep; the graph that they are traced in is never evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: dict[int, LayerAttention] = {}
        self.dtype: mx.Dtype | None = None
        """Of the keys."""
        self.attended: list[mx.array] = []
        """Queries, keys and values: what comes of them is made up here."""

    def attend(
        self, layer: int, q: mx.array, k: mx.array, v: mx.array, options: AttentionOptions
    ) -> mx.array:
        recorded = LayerAttention(
            LayerCacheSpec(k.shape[1], k.shape[3], v.shape[3]),
            q.shape[1],
            options.scale,
            options.window,
            options.softcap,
            options.sinks is not None,
            options.chunk,
        )
        self._record(layer, recorded, k.dtype)
        self.attended += (q, k, v)
        return mx.zeros((*q.shape[:3], v.shape[3]), q.dtype)

    def attend_latents(
        self, layer: int, heads: LatentHeads, latents: mx.array, index: IndexStep | None
    ) -> mx.array:
        self._record(layer, heads.asks(), latents.dtype)
        if index is not None:
            self._record(index.layer, index.asks(), index.k.dtype)
        q = heads.absorbed()
        self.attended += (q, latents)
        return heads.unembedded(mx.zeros((*q.shape[:2], heads.latent_dim), q.dtype))

    def _record(self, layer: int, recorded: LayerAttention, dtype: mx.Dtype) -> None:
        first = self.layers.setdefault(layer, recorded)
        if recorded != first:
            raise ValueError(
                f"two layers attend over cache {layer}, and not in one way: {first} and {recorded}"
            )
        self.dtype = self.dtype or dtype


@dataclass(frozen=True)
class PagedMask:
    """Causal; ``window`` keys at most, those of one ``chunk``, or all of them."""

    window: int | None
    attending: Attending
    positions: mx.array
    """Of the step's tokens, int32 ``[num_tokens]``."""
    chunk: int | None = None


class LayerCache:
    """One layer's cache during one forward; the interface that mlx-lm models expect."""

    def __init__(
        self,
        attending: Attending,
        layer: int,
        positions: mx.array,
        window: int | None,
        chunk: int | None = None,
    ) -> None:
        """``window`` and ``chunk``: what a model means that asks for a mask without."""
        self.offset = positions
        """int32 ``[num_tokens]``: rotary embeddings take one offset a batch row."""
        self.layer = layer
        self._attending = attending
        self._window = window
        self._chunk = chunk

    def make_mask(
        self,
        N: int,  # noqa: N803 (mlx-lm's name)
        return_array: bool = False,
        window_size: int | None = None,
    ) -> PagedMask:
        return PagedMask(window_size or self._window, self._attending, self.offset, self._chunk)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self._attending.keep(self.layer, keys, values)
        self._keys_and_values = keys, values
        return keys, values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Of this step, for another layer that attends over them."""
        return self._keys_and_values

    def attend(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> mx.array:
        """For adapters: ``[num_tokens, heads, 1, dim]`` each, and so the result."""
        options = AttentionOptions(scale, window, softcap, chunk=self._chunk)
        return self._attending.attend(self.layer, q, k, v, options)

    def attend_latents(
        self, heads: LatentHeads, latents: mx.array, index: IndexStep | None = None
    ) -> mx.array:
        """For adapters: ``[num_tokens, heads, value_dim]`` of ``latents``, ``[num_tokens, 1,
        dim]``, which are kept here."""
        return self._attending.attend_latents(self.layer, heads, latents, index)


class LayerCaches(list[Any]):
    """A model's ``cache`` argument, and which rows of the backbone's output need logits.

    After a forward, ``states`` is all of that output, ``[num_tokens, 1, size]``."""

    states: mx.array

    def __init__(self, caches: Iterable[Any], logit_rows: mx.array) -> None:
        """``caches``: as mlx-lm's are, attention's, recurrent ones, or tuples of these."""
        super().__init__(caches)
        self.logit_rows = logit_rows

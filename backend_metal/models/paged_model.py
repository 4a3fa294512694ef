"""Runs an unmodified mlx-lm model on the packed tokens of a step, over a paged KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE

from backend_metal.attention.kv_cache import (
    AttentionMetadata,
    KVCachePool,
    LayerAttention,
    LayerCacheSpec,
)
from backend_metal.linux_cpu.activations import catch_activations
from backend_metal.linux_cpu.float_rows import prepare_float_rows
from backend_metal.linux_cpu.native_scope import native_layers
from backend_metal.models.families import family_of
from backend_metal.models.layer_cache import (
    LayerCaches,
    PagedLayerCache,
    RecordingLayerCache,
    catch_attention,
    select_logit_rows,
)


class ModelOutput(NamedTuple):
    """Lazy, in the model's dtype."""

    logits: mx.array
    """``[num_rows, vocab_size]``"""
    states: mx.array
    """``[num_tokens, state_size]``: what the head turns into logits."""


class PagedModel:
    """One forward is one lazy graph: nothing is evaluated here."""

    layers: tuple[LayerAttention, ...]
    """What each layer's attention asks for, in order."""
    dtype: mx.Dtype
    """Dtype of the keys that the model computes."""
    vocab_size: int
    state_size: int

    def __init__(self, model: nn.Module, config: Mapping[str, Any]) -> None:
        """``model``: an mlx-lm model, which keeps working with its own caches; ``config``: its
        config.json. Raises ``ValueError`` when the model can't run on a paged cache, and why."""
        family = family_of(config)
        if any(isinstance(part, DynamicNTKScalingRoPE) for part in model.modules()):
            raise ValueError(
                "rope_scaling type 'dynamic' is not supported: cached keys would have to be "
                "rotated again as a sequence grows"
            )
        if family.adapt is not None:
            family.adapt(model, config)
        catch_attention(model)
        catch_activations(model)
        prepare_float_rows(model)
        select_logit_rows(reduce(getattr, family.backbone.split("."), model))
        self._model = model
        self._num_layers = len(model.layers)
        self._trace()

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec, ...]:
        """One for each layer, in order."""
        return tuple(layer.cache for layer in self.layers)

    def __call__(
        self,
        token_ids: mx.array,
        positions: mx.array,
        metadata: AttentionMetadata,
        logit_rows: mx.array,
        pool: KVCachePool,
    ) -> ModelOutput:
        """``token_ids`` and ``positions`` are int32 ``[num_tokens]``; ``logit_rows`` is int32
        ``[num_rows]``: the tokens whose logits are wanted, maybe none.
        """
        caches = LayerCaches(
            (
                PagedLayerCache(positions, pool, layer, metadata)
                for layer in range(self._num_layers)
            ),
            logit_rows,
        )
        return self._forward(token_ids, caches)

    def _forward(self, token_ids: mx.array, caches: LayerCaches) -> ModelOutput:
        with native_layers():
            logits: mx.array = self._model(token_ids[:, None], cache=caches)
        return ModelOutput(logits.squeeze(1), caches.states.squeeze(1))

    def _trace(self) -> None:
        """Builds the graph of three tokens, two of them with logits, and drops it."""
        tokens, rows = mx.zeros(3, mx.int32), mx.zeros(2, mx.int32)
        caches = [RecordingLayerCache(tokens) for _ in range(self._num_layers)]
        logits, states = self._forward(tokens, LayerCaches(caches, rows))
        if logits.ndim != 2 or logits.shape[0] != rows.size:
            raise ValueError(f"the model's logits have shape {logits.shape}, not [num_rows, vocab]")
        for layer, cache in enumerate(caches):
            if len(cache.recorded) != 1:
                raise ValueError(
                    f"layer {layer} attends {len(cache.recorded)} times over its cache, not once"
                )
        self.layers = tuple(cache.recorded[0][0] for cache in caches)
        self.dtype = caches[0].recorded[0][1]
        self.vocab_size, self.state_size = int(logits.shape[-1]), int(states.shape[-1])

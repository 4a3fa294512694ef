"""Runs an unmodified mlx-lm model on the packed tokens of a step, over a paged KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from itertools import count
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from backend_metal.attention.kv_cache import (
    GroupedMetadata,
    KVCachePool,
    LayerAttention,
    LayerCacheSpec,
)
from backend_metal.device import Device, device_on
from backend_metal.devices.base import MultiplyAlike
from backend_metal.devices.cpu.float_rows import prepare_float_rows
from backend_metal.devices.cpu.native_scope import native_layers
from backend_metal.devices.rotate_heads import RotateHeads
from backend_metal.devices.row_operators import RowOperators
from backend_metal.models.checks.cache_kinds import (
    AttentionKind,
    CacheKind,
    ListKind,
    RecurrentKind,
    cache_kinds,
    check_layers,
    single_kinds,
)
from backend_metal.models.checks.heads_check import separate_wrong_heads
from backend_metal.models.checks.rows_check import right_row_operators
from backend_metal.models.families.table import family_of
from backend_metal.models.layers.activations import catch_activations
from backend_metal.models.layers.fused_heads import fuse_heads, separate_heads
from backend_metal.models.layers.fused_projections import (
    all_layers,
    fuse_projections,
    separate_unshared,
)
from backend_metal.models.layers.fused_rows import prepare_fused_rows, row_operators
from backend_metal.models.layers.layer_cache import (
    Attending,
    LayerCache,
    LayerCaches,
    PagedAttending,
    RecordingAttending,
)
from backend_metal.models.layers.panel_weights import lay_weights_in_panels
from backend_metal.models.layers.recurrent_layers import (
    PooledStateCache,
    RecordingStateCache,
    RecurrentLayerCache,
    pack_recurrent,
)
from backend_metal.models.layers.weight_memory import lay_weights_together
from backend_metal.models.seam import catch_attention, select_logit_rows
from backend_metal.recurrent import RecurrentSpec, StepStates


class ModelOutput(NamedTuple):
    """Lazy, in the model's dtype."""

    logits: mx.array
    """``[num_rows, vocab_size]``"""
    states: mx.array
    """``[num_tokens, state_size]``: what the head turns into logits."""


class PagedModel:
    """One forward is one lazy graph: nothing is evaluated here."""

    layers: tuple[LayerAttention, ...]
    """What is attended over each cache that keeps keys and values, in mlx-lm's order. Layers that
    attend over another one's cache have none of their own."""
    recurrent: tuple[RecurrentSpec, ...]
    """What each recurrent layer keeps of a sequence, in mlx-lm's order; none in most models."""
    dtype: mx.Dtype
    """Dtype of the keys that the model computes, or of its hidden states where it has none."""
    vocab_size: int
    state_size: int

    def __init__(
        self,
        model: nn.Module,
        config: Mapping[str, Any],
        *,
        fuse: bool = True,
        device: Device | None = None,
        rotate: RotateHeads | None = None,
        rows: RowOperators | None = None,
    ) -> None:
        """``model``: an mlx-lm model, which keeps working with its own caches; ``config``: its
        config.json; ``fuse``: join projections of one input, which reads their weights, and what
        is done with heads and with rows, by ``rotate`` and ``rows`` or the kernels of ``device``,
        which is MLX's by default, and lay matrices out as a CPU reads them. Raises ``ValueError``
        when the model can't run on a paged cache, and why."""
        family = family_of(config)
        if family.adapt is not None:
            family.adapt(model, config)
        catch_attention(model)
        catch_activations(model)
        prepare_float_rows(model)
        self._rows: RowOperators | None = None
        device = device or device_on(mx.default_device())
        if fuse:
            fuse_projections(model)
            rotate = rotate or device.rotate_heads
            if rotate is not None:
                fuse_heads(model, rotate)
            self._rows = rows or device.rows
            if self._rows is not None:
                prepare_fused_rows(model)
        backbone = reduce(getattr, family.backbone.split("."), model)
        last = None if family.last is None else getattr(backbone, family.last)
        select_logit_rows(backbone, last)
        if family.recurrent is not None:
            pack_recurrent(model, family.recurrent)
        self._model = model
        self._kinds = cache_kinds(model)
        if family.recurrent is None:
            for number, kind in enumerate(single_kinds(self._kinds)):
                if isinstance(kind, RecurrentKind):
                    raise ValueError(
                        f"mlx-lm makes cache {number} an ArraysCache, and models of this type have "
                        "no recurrent layers"
                    )
        self._trace()
        separate_unshared(model)
        if fuse:
            separate_wrong_heads(model, self.dtype)
            if self._rows is not None:
                self._rows = right_row_operators(self._rows, model, self.dtype)
            lay_weights_in_panels(model, self._trace)
            lay_weights_together(model)
            device.adapt_layers(all_layers(model))

    def separate_operators(self) -> None:
        """Have heads and rows be computed by MLX's operators alone."""
        separate_heads(self._model)
        self._rows = None

    def multiply_alike(self, change: MultiplyAlike) -> None:
        """Have all products be computed as ``change`` does. Raises ``ValueError`` where something
        else is left that may give a token other bits with other tokens beside it."""
        if self.recurrent:
            raise ValueError(
                "engine.deterministic must be false for a model with recurrent layers on this "
                "device, where their states may have other bits with other tokens beside"
            )
        change(all_layers(self._model), self._trace)

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec, ...]:
        """One for each of ``layers``, in order."""
        return tuple(layer.cache for layer in self.layers)

    def arrays(self) -> list[mx.array]:
        """The weights that each step reads."""
        values = (value for module in self._model.modules() for value in module.values())
        return list({id(one): one for one in values if isinstance(one, mx.array)}.values())

    def __call__(
        self,
        token_ids: mx.array,
        positions: mx.array,
        metadata: GroupedMetadata,
        logit_rows: mx.array,
        pool: KVCachePool,
        states: StepStates | None = None,
        on_layer: Callable[[int], None] | None = None,
    ) -> ModelOutput:
        """``token_ids`` and ``positions`` are int32 ``[num_tokens]``; ``logit_rows`` is int32
        ``[num_rows]``: the tokens whose logits are wanted, maybe none. ``states``: for a model with
        recurrent layers, whose pool is of ``recurrent``. ``on_layer`` is told of each layer that
        keeps keys, by its number in ``layers``, when all before them is built.
        """

        def state_cache(layer: int, kind: RecurrentKind) -> RecurrentLayerCache:
            if states is None:
                raise ValueError("states must be given to a model with recurrent layers")
            return PooledStateCache(states, layer)

        attending = PagedAttending(pool, metadata, on_layer)
        return self._forward(token_ids, self._caches(attending, state_cache, positions, logit_rows))

    def _caches(
        self,
        attending: Attending,
        state_cache: Callable[[int, RecurrentKind], RecurrentLayerCache],
        positions: mx.array,
        logit_rows: mx.array,
    ) -> LayerCaches:
        layers, recurrent = count(), count()

        def cache_of(kind: AttentionKind | RecurrentKind) -> Any:
            match kind:
                case AttentionKind(window, chunk):
                    return LayerCache(attending, next(layers), positions, window, chunk)
                case RecurrentKind():
                    return state_cache(next(recurrent), kind)

        return LayerCaches((_made_for(kind, cache_of) for kind in self._kinds), logit_rows)

    def _forward(self, token_ids: mx.array, caches: LayerCaches) -> ModelOutput:
        with native_layers(), row_operators(self._rows):
            logits: mx.array = self._model(token_ids[:, None], cache=caches)
        return ModelOutput(logits.squeeze(1), caches.states.squeeze(1))

    def _trace(self) -> list[mx.array]:
        """Builds the graph of three tokens, two of them with logits: all that it ends in."""
        tokens, rows = mx.zeros(3, mx.int32), mx.zeros(2, mx.int32)
        attending = RecordingAttending()
        state_caches: list[RecordingStateCache] = []

        def state_cache(layer: int, kind: RecurrentKind) -> RecurrentLayerCache:
            state_caches.append(RecordingStateCache(kind.num_arrays))
            return state_caches[-1]

        caches = self._caches(attending, state_cache, tokens, rows)
        logits, states = self._forward(tokens, caches)
        if logits.ndim != 2 or logits.shape[0] != rows.size:
            raise ValueError(f"the model's logits have shape {logits.shape}, not [num_rows, vocab]")
        kinds = [kind for kind in single_kinds(self._kinds) if isinstance(kind, AttentionKind)]
        self.layers = check_layers(kinds, attending.layers)
        for layer, cache in enumerate(state_caches):
            if len(cache.recorded) != 1:
                raise ValueError(
                    f"recurrent cache {layer} is used {len(cache.recorded)} times in a forward, "
                    "not once"
                )
        self.recurrent = tuple(cache.recorded[0] for cache in state_caches)
        self.dtype = attending.dtype or states.dtype
        self.vocab_size, self.state_size = int(logits.shape[-1]), int(states.shape[-1])
        return [logits, states, *attending.attended]


# A closure that calls itself would keep a step's arrays until Python looks for cycles.
def _made_for(kind: CacheKind, cache_of: Callable[[AttentionKind | RecurrentKind], Any]) -> Any:
    """A cache, or a tuple of them for a list."""
    if isinstance(kind, ListKind):
        return tuple(_made_for(part, cache_of) for part in kind.parts)
    return cache_of(kind)

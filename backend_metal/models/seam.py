"""Where mlx-lm's code calls ours: attention, and the rows that reach a model's head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from backend_metal.models.layers.layer_cache import (
    AttentionOptions,
    LayerCache,
    LayerCaches,
    PagedMask,
)

ATTENTION_NAME = "scaled_dot_product_attention"


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
        if not isinstance(mask, PagedMask):
            if isinstance(cache, LayerCache):
                raise ValueError(f"mask must come from the cache's make_mask, not be {mask!r}")
            return self._original(queries, keys, values, cache, scale, mask, sinks)
        layer = mask.attending.layer_of(keys, values, cache)
        options = AttentionOptions(scale, mask.window, sinks=sinks, chunk=mask.chunk)
        return mask.attending.attend(layer, queries, keys, values, options)


class _SelectsLogitRows:
    """Mixed into a backbone's class, so that the parameter tree stays as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        backbone: Any = super()
        hidden: mx.array = backbone.__call__(*args, **kwargs)
        return _selected(hidden, _caches_among(args, kwargs))


class _TellsCaches:
    """Mixed into the class of a backbone that has the head in it."""

    _told: _Told

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        backbone: Any = super()
        self._told.caches = _caches_among(args, kwargs)
        try:
            logits: mx.array = backbone.__call__(*args, **kwargs)
            return logits
        finally:
            self._told.caches = None


class _SelectsToldRows:
    """Mixed into the class of what such a backbone calls last before the head."""

    _told: _Told

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        last: Any = super()
        return _selected(last.__call__(*args, **kwargs), self._told.caches)


class _Told:
    caches: LayerCaches | None = None


def _caches_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> LayerCaches | None:
    # Backbones don't agree on which argument it is.
    return next((one for one in (*args, *kwargs.values()) if isinstance(one, LayerCaches)), None)


def _selected(hidden: mx.array, caches: LayerCaches | None) -> mx.array:
    if caches is None:
        return hidden
    caches.states = hidden
    return hidden[caches.logit_rows]


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


def select_logit_rows(backbone: nn.Module, last: nn.Module | None = None) -> None:
    """Let the head see only the rows that need logits. Idempotent.

    ``last``: what ``backbone`` calls last before the head, where the head is in it.
    """
    if last is None:
        _mix_in(backbone, _SelectsLogitRows)
        return
    _mix_in(backbone, _TellsCaches)
    _mix_in(last, _SelectsToldRows)
    backbone._told = last._told = _Told()


def _mix_in(module: nn.Module, mixin: type) -> None:
    cls = type(module)
    if not issubclass(cls, mixin):
        module.__class__ = type(cls.__name__, (mixin, cls), {})

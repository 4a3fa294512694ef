"""The kind of each cache that mlx-lm makes for a model, to which what a trace saw is held.

mlx-lm alone knows how many caches a model needs and what each keeps. A model whose layers attend
over something else would answer, and wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from backend_metal.attention.kv_cache import LayerAttention


@dataclass(frozen=True)
class AttentionKind:
    """Keys and values of one attention layer."""

    window: int | None
    """How many of the newest tokens mlx-lm keeps; None: all."""
    chunk: int | None = None
    """A token sees those of its own chunk of so many alone."""


@dataclass(frozen=True)
class RecurrentKind:
    """What a recurrent layer carries from token to token."""

    num_arrays: int


@dataclass(frozen=True)
class ListKind:
    """Several caches of one layer."""

    parts: tuple[CacheKind, ...]


CacheKind = AttentionKind | RecurrentKind | ListKind


def cache_kinds(model: nn.Module) -> tuple[CacheKind, ...]:
    """One for each cache, in order. Raises ``ValueError`` naming one that is not served."""
    return tuple(_kind(number, cache) for number, cache in enumerate(make_prompt_cache(model)))


def single_kinds(kinds: Sequence[CacheKind]) -> Iterator[AttentionKind | RecurrentKind]:
    """With the parts of lists in their place."""
    for kind in kinds:
        if isinstance(kind, ListKind):
            yield from single_kinds(kind.parts)
        else:
            yield kind


def check_layers(
    kinds: Sequence[AttentionKind], traced: Mapping[int, LayerAttention]
) -> tuple[LayerAttention, ...]:
    """What is attended over each cache, in order. Raises ``ValueError`` naming a cache that is of
    no use, or keeps another window than is attended over."""
    for number, kind in enumerate(kinds):
        if number not in traced:
            raise ValueError(
                f"mlx-lm makes {len(kinds)} caches, and no layer attends over cache {number}"
            )
        window = traced[number].window
        # A cache of everything serves any window.
        if kind.window not in (None, window):
            raise ValueError(
                f"cache {number} keeps {kind.window} tokens in mlx-lm, whose attention over it has "
                f"a window of {window}: the two contradict each other"
            )
        if kind.chunk != traced[number].chunk:
            raise ValueError(
                f"cache {number} keeps chunks of {kind.chunk} tokens in mlx-lm, and its layer sees "
                f"chunks of {traced[number].chunk}"
            )
    return tuple(traced[number] for number in range(len(kinds)))


def _kind(number: int, cache: Any) -> CacheKind:
    # Subclasses have ways of their own.
    if type(cache) is KVCache:
        return AttentionKind(window=None)
    if type(cache) is RotatingKVCache:
        if cache.keep:
            raise ValueError(
                f"cache {number} keeps the first {cache.keep} tokens beside a window of "
                f"{cache.max_size}, and windows alone are served"
            )
        return AttentionKind(window=cache.max_size)
    if type(cache) is ChunkedKVCache:
        return AttentionKind(window=None, chunk=cache.chunk_size)
    if type(cache) is ArraysCache:
        return RecurrentKind(len(cache.cache))
    if type(cache) is CacheList:
        return ListKind(tuple(_kind(number, part) for part in cache.caches))
    raise ValueError(
        f"mlx-lm makes cache {number} a {type(cache).__name__}; those served are KVCache, "
        "RotatingKVCache, ChunkedKVCache, ArraysCache and lists of these"
    )

"""Groups of attention layers: those of one group see the same tokens, and so share block tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class SeesTokens(Protocol):
    @property
    def window(self) -> int | None: ...

    @property
    def chunk(self) -> int | None: ...


@dataclass(frozen=True)
class KVGroup:
    window: int | None
    """Newest tokens that a token of these layers sees, itself included; None: all."""
    layers: tuple[int, ...]
    """Numbers of layers, ascending."""
    chunk: int | None = None
    """A token of these layers sees those of its own chunk of so many alone. What it sees is never
    more than a window of that size, which is what is kept."""


def group_layers(layers: Sequence[SeesTokens]) -> tuple[KVGroup, ...]:
    """By what they see: first the layers that see all tokens, then those with the widest window.
    Without any layer there is one group all the same."""
    by_sight: dict[tuple[int | None, int | None], list[int]] = {}
    for number, layer in enumerate(layers):
        by_sight.setdefault((layer.chunk or layer.window, layer.chunk), []).append(number)
    if not by_sight:
        return one_group(layers)
    return tuple(
        KVGroup(window, tuple(by_sight[window, chunk]), chunk)
        for window, chunk in sorted(by_sight, key=_widest_first)
    )


def one_group(layers: Sequence[SeesTokens]) -> tuple[KVGroup, ...]:
    """All layers alike: tokens behind a window are kept, too. Those that see chunks have tables of
    another kind, and so groups of their own."""
    by_chunk: dict[int | None, list[int]] = {}
    for number, layer in enumerate(layers):
        by_chunk.setdefault(layer.chunk, []).append(number)
    chunks = sorted(by_chunk, key=lambda chunk: chunk or 0) or [None]
    return tuple(KVGroup(None, tuple(by_chunk.get(chunk, ())), chunk) for chunk in chunks)


def _widest_first(sight: tuple[int | None, int | None]) -> tuple[int, int]:
    window, chunk = sight
    return -(window or sys.maxsize), chunk or 0

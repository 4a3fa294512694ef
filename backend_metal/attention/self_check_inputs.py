"""What the check at start runs on: a small KV cache, its sequences, and the packed steps on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal import native
from backend_metal.attention.kv_cache import LayerAttention

SHORT_CONTEXT, LONG_CONTEXT = 45, native.KEYS_PER_SPLIT + 37
MOST_SOFTCAP = 2.0
"""Scores have a standard deviation of 1."""
MOST_TOKENS = {
    "short": SHORT_CONTEXT + 21,
    "long": LONG_CONTEXT + 1,
    "endless": 22,
    "prompt": 23,
    "bulk": 160,
    "new": 10,
}
"""Of each sequence, all steps included; ``endless`` has its prefix besides."""
PREFIX_SPLITS = 5
"""``endless`` begins with ``long``'s first split of tokens this often, in the very same blocks."""
UNUSED_BLOCKS = 6

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass
class _Sequence:
    table: Ints
    length: int
    """Tokens in the cache."""


class CheckInputs:
    """Random, and the same each time. Slots that no sequence has written hold NaN."""

    def __init__(self, layer: LayerAttention, block_size: int, dtype: mx.Dtype) -> None:
        self._layer = layer
        self._block_size = block_size
        self._dtype = dtype
        self._rng = np.random.default_rng(0)
        widths = {name: -(-tokens // block_size) for name, tokens in MOST_TOKENS.items()}
        self._num_blocks = sum(widths.values()) + UNUSED_BLOCKS
        self._sequences = self._make_sequences(widths)

    def options(self) -> dict[str, Any]:
        """The layer's, but a softcap that its scores can feel; without the window."""
        layer = self._layer
        sinks = mx.array(self._normal(layer.num_q_heads)) if layer.has_sinks else None
        softcap = None if layer.softcap is None else min(layer.softcap, MOST_SOFTCAP)
        return {"scale": layer.scale, "softcap": softcap, "sinks": sinks}

    def caches(self) -> list[Floats]:
        """Keys and values of what ``short`` and ``long`` hold before the first step; keys alone
        where the values are in them."""
        spec = self._layer.cache
        shape = (self._num_blocks, self._block_size, spec.num_kv_heads)
        dims = spec.head_dims[: 1 if spec.values_in_keys else 2]
        caches = [np.full((*shape, dim), np.nan, np.float32) for dim in dims]
        for name in ("short", "long"):
            slots = self._slots(name, 0, self._sequences[name].length)
            for cache in caches:
                rows = cache.reshape(-1, *cache.shape[2:])
                rows[slots] = self._normal(len(slots), *cache.shape[2:])
        return caches

    def step(self, parts: Sequence[tuple[str, int]]) -> dict[str, Any]:
        """The operators' arguments for the next tokens of some sequences, which then have them."""
        slots = []
        for name, num_tokens in parts:
            sequence = self._sequences[name]
            slots.append(self._slots(name, sequence.length, sequence.length + num_tokens))
            sequence.length += num_tokens
        lengths = [self._sequences[name].length for name, _ in parts]
        tables = np.zeros((len(parts), -(-max(lengths) // self._block_size)), np.int32)
        for row, (name, _) in zip(tables, parts, strict=True):
            table = self._sequences[name].table[: len(row)]
            row[: len(table)] = table
        layer, spec = self._layer, self._layer.cache
        ends = np.cumsum([0, *(num_tokens for _, num_tokens in parts)])
        num_tokens = int(ends[-1])
        queries = self._normal(num_tokens, layer.num_q_heads, spec.head_dim)
        arguments = {
            "q": self.array(queries / (layer.scale * spec.head_dim**0.5)),
            "k": self.array(self._normal(num_tokens, spec.num_kv_heads, spec.head_dim)),
            "slot_mapping": _ints(np.concatenate(slots)),
            "block_tables": _ints(tables),
            "seq_lens": _ints(lengths),
            "cu_seqlens_q": _ints(ends),
        }
        if spec.values_in_keys:
            return arguments | {"head_dim_v": spec.head_dim_v}
        values = self._normal(num_tokens, spec.num_kv_heads, spec.head_dim_v)
        return arguments | {"v": self.array(values)}

    def array(self, values: Floats) -> mx.array:
        return mx.array(values).astype(self._dtype)

    def _make_sequences(self, widths: dict[str, int]) -> dict[str, _Sequence]:
        last = self._num_blocks - 1
        order = 1 + self._rng.permutation(last - 1).astype(np.int32)
        tables = np.split(order, np.cumsum(list(widths.values())))
        lengths = {"short": SHORT_CONTEXT, "long": LONG_CONTEXT}
        sequences = {
            name: _Sequence(table, lengths.get(name, 0))
            for name, table in zip(widths, tables, strict=False)
        }
        # The first and the last slot of the cache are written, too.
        sequences["prompt"].table[0] = 0
        sequences["bulk"].table[-1] = last
        split = sequences["long"].table[: native.KEYS_PER_SPLIT // self._block_size]
        prefix = np.tile(split, PREFIX_SPLITS)
        table = np.concatenate([prefix, sequences["endless"].table])
        sequences["endless"] = _Sequence(table, len(prefix) * self._block_size)
        return sequences

    def _slots(self, name: str, start: int, end: int) -> Ints:
        table, size = self._sequences[name].table, self._block_size
        positions = np.arange(start, end, dtype=np.int32)
        return table[positions // size] * size + positions % size

    def _normal(self, *shape: int) -> Floats:
        return self._rng.standard_normal(shape, np.float32)


def _ints(values: npt.ArrayLike) -> mx.array:
    return mx.array(np.asarray(values, np.int32))

"""Paged attention in float64 NumPy, one query at a time, and inputs to try it on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np

TOLERANCES = {mx.float32: 1e-5, mx.float16: 1e-3, mx.bfloat16: 8e-3}


@dataclass
class Case:
    """One step; floating arrays are float32 NumPy holding values exact in ``dtype``."""

    dtype: mx.Dtype
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    slot_mapping: np.ndarray
    block_tables: np.ndarray
    seq_lens: np.ndarray
    cu_seqlens_q: np.ndarray
    options: dict[str, Any] = field(default_factory=dict)

    def rounded(self) -> Case:
        names = ("q", "k", "v", "k_cache", "v_cache")
        return replace(self, **{name: _rounded(getattr(self, name), self.dtype) for name in names})

    def mlx(self) -> dict[str, mx.array]:
        """The operators' array arguments."""
        floats = {
            name: mx.array(getattr(self, name)).astype(self.dtype)
            for name in ("q", "k", "v", "k_cache", "v_cache")
        }
        ints = {
            name: mx.array(getattr(self, name).astype(np.int32))
            for name in ("slot_mapping", "block_tables", "seq_lens", "cu_seqlens_q")
        }
        return floats | ints

    def mlx_options(self) -> dict[str, Any]:
        sinks = self.options.get("sinks")
        return self.options | {"sinks": None if sinks is None else mx.array(sinks)}


def scatter(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The caches after the write."""
    k_cache, v_cache = case.k_cache.copy(), case.v_cache.copy()
    block_size = k_cache.shape[1]
    for row, slot in enumerate(case.slot_mapping):
        if slot >= 0:
            k_cache[slot // block_size, slot % block_size] = case.k[row]
            v_cache[slot // block_size, slot % block_size] = case.v[row]
    return k_cache, v_cache


def attention(case: Case, k_cache: np.ndarray, v_cache: np.ndarray) -> np.ndarray:
    """``[num_tokens, num_q_heads, head_dim_v]`` in float64."""
    num_tokens, num_heads, _ = case.q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = np.zeros((num_tokens, num_heads, v_cache.shape[3]))
    for seq, seq_len in enumerate(case.seq_lens):
        start, end = case.cu_seqlens_q[seq : seq + 2]
        for row in range(start, end):
            position = seq_len - (end - start) + (row - start)
            visible = np.arange(_first_visible(position, case.options.get("window")), position + 1)
            blocks = case.block_tables[seq][visible // block_size]
            keys = k_cache[blocks, visible % block_size].astype(np.float64)
            values = v_cache[blocks, visible % block_size].astype(np.float64)
            for head in range(num_heads):
                kv_head = head // (num_heads // num_kv_heads)
                query = case.q[row, head].astype(np.float64)
                out[row, head] = _row(case, head, query, keys[:, kv_head], values[:, kv_head])
    return out


def _first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _row(
    case: Case, head: int, query: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> np.ndarray:
    if not len(keys):
        return np.zeros(values.shape[1])
    scores = keys @ query * case.options["scale"]
    softcap, sinks = case.options.get("softcap"), case.options.get("sinks")
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    logits = scores if sinks is None else np.append(scores, float(sinks[head]))
    weights = np.exp(scores - logits.max())
    return weights @ values / np.exp(logits - logits.max()).sum()


def _rounded(values: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    return np.array(mx.array(values).astype(dtype).astype(mx.float32))


def make_case(
    seed: int,
    dtype: mx.Dtype,
    *,
    spans: list[tuple[int, int]],
    group: int = 2,
    num_kv_heads: int = 2,
    head_dims: tuple[int, int] = (64, 64),
    block_size: int = 8,
    shared_blocks: int = 0,
    skipped_slots: bool = False,
    magnitude: float = 1.0,
    **options: Any,
) -> Case:
    """A step of sequences with ``spans`` of (query tokens, tokens before them).

    Tables are shuffled over the pool; the first ``shared_blocks`` are everybody's, as far as they
    hold earlier tokens alone. Blocks that nobody owns hold NaN, and so does every unwritten slot.
    """
    rng = np.random.default_rng(seed)
    lengths = np.array([max(query + before, 0) for query, before in spans])
    width = max(1, -(-int(lengths.max(initial=1)) // block_size))
    num_blocks = len(spans) * width + shared_blocks + 2
    order = rng.permutation(num_blocks)
    tables = order[: len(spans) * width].reshape(len(spans), width).copy()
    common = order[len(spans) * width :][:shared_blocks]
    for row, (_, before) in zip(tables, spans, strict=True):
        shared = min(shared_blocks, max(before, 0) // block_size, width)
        row[:shared] = common[:shared]
    head_dim, head_dim_v = head_dims
    k_cache = np.full((num_blocks, block_size, num_kv_heads, head_dim), np.nan, np.float32)
    v_cache = np.full((num_blocks, block_size, num_kv_heads, head_dim_v), np.nan, np.float32)
    slots: list[int] = []
    for row, (query, before) in zip(tables, spans, strict=True):
        past = np.arange(max(before, 0))
        blocks, offsets = row[past // block_size], past % block_size
        k_cache[blocks, offsets] = rng.standard_normal((len(past), *k_cache.shape[2:]))
        v_cache[blocks, offsets] = rng.standard_normal((len(past), *v_cache.shape[2:]))
        for position in range(before, before + query):
            slots.append(
                row[position // block_size] * block_size + position % block_size
                if position >= 0
                else -1
            )
    num_tokens = len(slots)
    for row, length in zip(tables, lengths, strict=True):
        row[-(-length // block_size) :] = -1
    if skipped_slots and num_tokens:
        slots = _skip_some(rng, slots, k_cache, v_cache)
    return Case(
        dtype,
        q=magnitude * rng.standard_normal((num_tokens, group * num_kv_heads, head_dim)),
        k=rng.standard_normal((num_tokens, num_kv_heads, head_dim)),
        v=rng.standard_normal((num_tokens, num_kv_heads, head_dim_v)),
        k_cache=k_cache,
        v_cache=v_cache,
        slot_mapping=np.array(slots, np.int32),
        block_tables=tables,
        seq_lens=lengths,
        cu_seqlens_q=np.cumsum([0, *(query for query, _ in spans)]),
        options={"scale": head_dim**-0.5} | options,
    ).rounded()


def _skip_some(
    rng: np.random.Generator, slots: list[int], k_cache: np.ndarray, v_cache: np.ndarray
) -> list[int]:
    """Some tokens are in the cache already, so their write is skipped."""
    block_size = k_cache.shape[1]
    kept = list(slots)
    for index in rng.choice(len(slots), size=max(1, len(slots) // 3), replace=False):
        slot = slots[index]
        if slot >= 0:
            for cache in (k_cache, v_cache):
                cache[slot // block_size, slot % block_size] = rng.standard_normal(cache.shape[2:])
        kept[index] = -1
    return kept

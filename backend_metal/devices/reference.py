"""The attention operators in plain MLX: the oracle for every native path, and the fallback.

Arguments are those of ``backend_metal.attention``, which validates shapes and dtypes. The int32
arrays say where tokens live and are made from NumPy, so they are read on the host; the floating
arrays stay lazy. Keys are gathered by block table; padding repeats a key of the sequence's own, so
whatever other sequences left in the cache (a NaN, say) reaches nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.devices.base import Device

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Options:
    scale: float
    window: int | None
    softcap: float | None
    sinks: mx.array | None


def scatter_paged_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    k_cache: mx.array,
    v_cache: mx.array,
    slot_mapping: mx.array,
    block_tables: mx.array,
    seq_lens: mx.array,
    cu_seqlens_q: mx.array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """Write ``k``, ``v`` to their slots, then attend; returns ``(out, k_cache, v_cache)``."""
    # Attention reads the written caches: a reader of the old ones would make MLX copy them.
    k_cache, v_cache = reshape_and_cache(k, v, k_cache, v_cache, slot_mapping)
    out = paged_attention(
        q,
        k_cache,
        v_cache,
        block_tables,
        seq_lens,
        cu_seqlens_q,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
    )
    return out, k_cache, v_cache


def reshape_and_cache(
    k: mx.array, v: mx.array, k_cache: mx.array, v_cache: mx.array, slot_mapping: mx.array
) -> tuple[mx.array, mx.array]:
    """Write row ``i`` of ``k``, ``v`` to ``slot_mapping[i]``; a negative slot writes nothing."""
    return write_rows(k_cache, k, slot_mapping), write_rows(v_cache, v, slot_mapping)


def write_rows(cache: mx.array, rows: mx.array, slot_mapping: mx.array) -> mx.array:
    """One of both caches."""
    num_blocks, block_size = cache.shape[:2]
    slots = np.asarray(slot_mapping)
    written = slots >= 0
    if not written.all():
        slots, rows = slots[written], rows[mx.array(np.flatnonzero(written).astype(np.int32))]
    if slots.size == 0:
        return cache
    _check_below("slot_mapping", slots, num_blocks * block_size)
    # A second handle on the same graph node: assignment rebinds it and leaves the caller's alone.
    cache = cache.reshape(cache.shape)
    cache[mx.array(slots // block_size), mx.array(slots % block_size)] = rows
    return cache


def paged_attention(
    q: mx.array,
    k_cache: mx.array,
    v_cache: mx.array,
    block_tables: mx.array,
    seq_lens: mx.array,
    cu_seqlens_q: mx.array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """``[num_tokens, num_q_heads, head_dim_v]`` in ``q``'s dtype, computed in float32."""
    options = _Options(scale, window, softcap, sinks)
    tables, lengths, bounds = (np.asarray(a) for a in (block_tables, seq_lens, cu_seqlens_q))
    if bounds[0] != 0 or bounds[-1] != q.shape[0] or (np.diff(bounds) < 0).any():
        raise ValueError(
            f"cu_seqlens_q must rise from 0 to num_tokens ({q.shape[0]}), not {bounds.tolist()}"
        )
    _check_below("seq_lens", lengths, tables.shape[1] * k_cache.shape[1] + 1)

    query_lens = np.diff(bounds)
    decodes = np.flatnonzero((query_lens == 1) & (lengths > 0))
    parts: list[mx.array] = []
    rows: list[Ints] = []
    if decodes.size:
        first_rows = bounds[decodes]
        queries = q[mx.array(first_rows)].astype(mx.float32)
        parts.append(_decode(queries, k_cache, v_cache, tables[decodes], lengths[decodes], options))
        rows.append(first_rows)
    for seq in np.flatnonzero((query_lens > 1) | ((query_lens == 1) & (lengths <= 0))):
        start, end = int(bounds[seq]), int(bounds[seq + 1])
        queries = q[start:end].astype(mx.float32)
        parts.append(_prefill(queries, k_cache, v_cache, tables[seq], int(lengths[seq]), options))
        rows.append(np.arange(start, end, dtype=np.int32))
    if not parts:
        return mx.zeros((0, q.shape[1], v_cache.shape[3]), q.dtype)
    out = mx.concatenate(parts) if len(parts) > 1 else parts[0]
    order = np.concatenate(rows)
    if (np.diff(order) < 0).any():
        out = out[mx.array(np.argsort(order).astype(np.int32))]
    return out.astype(q.dtype)


def _decode(
    q: mx.array, k_cache: mx.array, v_cache: mx.array, tables: Ints, lengths: Ints, o: _Options
) -> mx.array:
    """One query for each sequence, as one padded batch."""
    span = int(lengths.max()) if o.window is None else min(o.window, int(lengths.max()))
    first = np.maximum(lengths - span, 0)[:, None]
    positions = first + np.arange(span, dtype=np.int32)
    visible = positions < lengths[:, None]
    positions = np.where(visible, positions, first)
    mask = None if visible.all() else mx.array(visible)[:, None, None, :]
    keys, values = (_gathered(c, tables, positions) for c in (k_cache, v_cache))
    # Contiguous heads: MLX's CPU matmul copies a strided batch far more slowly than this does.
    keys, values = mx.contiguous(keys), mx.contiguous(values)
    return _attention(q[:, :, None], keys, values, mask, o).squeeze(2)


def _prefill(
    q: mx.array, k_cache: mx.array, v_cache: mx.array, table: Ints, length: int, o: _Options
) -> mx.array:
    """One sequence's queries; those before its first token (``q_len > seq_len``) are 0."""
    num_tokens, num_heads = q.shape[:2]
    before = min(max(num_tokens - length, 0), num_tokens)
    empty = mx.zeros((before, num_heads, v_cache.shape[3]), mx.float32)
    if before == num_tokens:
        return empty
    first_query = length - (num_tokens - before)
    first = 0 if o.window is None else max(first_query - o.window + 1, 0)
    positions = np.arange(first, length, dtype=np.int32)
    mask: mx.array | str = "causal"
    if o.window is not None:
        distance = np.arange(first_query, length)[:, None] - positions
        mask = mx.array((distance >= 0) & (distance < o.window))
    keys, values = (_gathered(c, table[None], positions[None]) for c in (k_cache, v_cache))
    out = _attention(q[before:].swapaxes(0, 1)[None], keys, values, mask, o)
    out = out[0].swapaxes(0, 1)
    return mx.concatenate([empty, out]) if before else out


def _attention(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | str | None, o: _Options
) -> mx.array:
    """``[batch, heads, tokens, dim]`` in float32; every row has a visible key."""
    if o.softcap is None:
        return mx.fast.scaled_dot_product_attention(
            q, k, v, scale=o.scale, mask=mask, sinks=o.sinks
        )
    batch, num_heads, num_tokens, _ = q.shape
    num_kv_heads, num_keys = k.shape[1:3]
    grouped = (batch, num_kv_heads, num_heads // num_kv_heads, num_tokens)
    scores = (q * o.scale).reshape(*grouped, -1) @ k[:, :, None].swapaxes(-1, -2)
    scores = o.softcap * mx.tanh(scores / o.softcap)
    if isinstance(mask, str):
        mask = mx.tri(num_tokens, num_keys, num_keys - num_tokens).astype(mx.bool_)
    if mask is not None:
        mask = mask[:, :, None] if mask.ndim == 4 else mask
        scores = mx.where(mask, scores, -mx.inf)
    if o.sinks is not None:
        sinks = o.sinks.reshape(1, num_kv_heads, -1, 1, 1)
        scores = mx.concatenate([mx.broadcast_to(sinks, (*grouped, 1)), scores], axis=-1)
    weights = mx.softmax(scores, axis=-1)[..., -num_keys:]
    return (weights @ v[:, :, None]).reshape(batch, num_heads, num_tokens, -1)


def _gathered(cache: mx.array, tables: Ints, positions: Ints) -> mx.array:
    """Float32 ``[num_seqs, num_kv_heads, num_positions, dim]`` of the tokens at ``positions``."""
    num_blocks, block_size = cache.shape[:2]
    blocks = np.take_along_axis(tables, positions // block_size, axis=1)
    _check_below("block_tables", blocks, num_blocks)
    tokens = cache[mx.array(blocks), mx.array(positions % block_size)]
    return tokens.swapaxes(1, 2).astype(mx.float32)


def _check_below(name: str, values: Ints, limit: int) -> None:
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low < 0 or high >= limit:
        raise ValueError(f"{name} must lie between 0 and {limit - 1}, not {low} to {high}")


class Reference(Device):
    """Plain MLX, on any device."""

    attention = "reference"
    any_head_dim = True
    writes_in_place = False

    def __init__(self, name: str, mlx: mx.Device) -> None:
        self.name, self.mlx = name, mlx

    def scatter_paged_attention(
        self, *arguments: Any, **options: Any
    ) -> tuple[mx.array, mx.array, mx.array]:
        return scatter_paged_attention(*arguments, **options)

    def paged_attention(self, *arguments: Any, **options: Any) -> mx.array:
        return paged_attention(*arguments, **options)

    def reshape_and_cache(self, *arguments: mx.array) -> tuple[mx.array, mx.array]:
        return reshape_and_cache(*arguments)

    def scatter_latent_attention(
        self,
        *,
        k: mx.array,
        k_cache: mx.array,
        slot_mapping: mx.array,
        head_dim_v: int,
        **arguments: Any,
    ) -> tuple[mx.array, mx.array]:
        # Written through two views, the cache would become two.
        k_cache = write_rows(k_cache, k, slot_mapping)
        values = k_cache[..., :head_dim_v]
        return paged_attention(k_cache=k_cache, v_cache=values, **arguments), k_cache

    def write_latents(self, rows: mx.array, k_cache: mx.array, slot_mapping: mx.array) -> mx.array:
        return write_rows(k_cache, rows, slot_mapping)

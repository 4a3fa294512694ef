"""What the attention operators refuse; every message names the argument and what is allowed."""

from __future__ import annotations

import math

import mlx.core as mx

from backend_metal.native import check_cache_strides

BLOCK_SIZES = (8, 16, 32)
DTYPES = (mx.float16, mx.bfloat16, mx.float32)


def check_scatter(
    k: mx.array, v: mx.array, k_cache: mx.array, v_cache: mx.array, slot_mapping: mx.array
) -> None:
    _check_caches(k_cache, v_cache)
    _check_rank("k", k, "[num_tokens, num_kv_heads, head_dim]", 3)
    _check_rank("v", v, "[num_tokens, num_kv_heads, head_dim_v]", 3)
    for name, rows, cache_name, cache in (
        ("k", k, "k_cache", k_cache),
        ("v", v, "v_cache", v_cache),
    ):
        if rows.shape[1:] != cache.shape[2:]:
            raise ValueError(
                f"{name} must have {cache_name}'s heads and head dim {cache.shape[2:]}, "
                f"not {rows.shape[1:]}"
            )
        if rows.dtype != cache.dtype:
            raise ValueError(
                f"{name} must have {cache_name}'s dtype {cache.dtype}, not {rows.dtype}"
            )
    if v.shape[0] != k.shape[0]:
        raise ValueError(f"v must have k's {k.shape[0]} tokens, not {v.shape[0]}")
    _check_ints("slot_mapping", slot_mapping, (k.shape[0],))


def check_attention(
    q: mx.array,
    k_cache: mx.array,
    v_cache: mx.array,
    block_tables: mx.array,
    seq_lens: mx.array,
    cu_seqlens_q: mx.array,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: mx.array | None,
) -> None:
    _check_caches(k_cache, v_cache)
    _check_rank("q", q, "[num_tokens, num_q_heads, head_dim]", 3)
    num_kv_heads, head_dim = k_cache.shape[2:]
    if q.shape[2] != head_dim:
        raise ValueError(f"q must have k_cache's head dim {head_dim}, not {q.shape[2]}")
    if q.shape[1] == 0 or q.shape[1] % num_kv_heads:
        raise ValueError(
            f"q must have a multiple of k_cache's {num_kv_heads} heads, not {q.shape[1]}"
        )
    if q.dtype != k_cache.dtype:
        raise ValueError(f"q must have k_cache's dtype {k_cache.dtype}, not {q.dtype}")
    _check_rank("block_tables", block_tables, "[num_seqs, max_blocks_per_seq]", 2)
    num_seqs = block_tables.shape[0]
    _check_ints("block_tables", block_tables, block_tables.shape)
    _check_ints("seq_lens", seq_lens, (num_seqs,))
    _check_ints("cu_seqlens_q", cu_seqlens_q, (num_seqs + 1,))
    _check_options(q.shape[1], scale, window, softcap, sinks)


def _check_caches(k_cache: mx.array, v_cache: mx.array) -> None:
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _check_rank(name, cache, "[num_blocks, block_size, num_kv_heads, head_dim]", 4)
        if cache.dtype not in DTYPES:
            raise ValueError(f"{name} must be float16, bfloat16 or float32, not {cache.dtype}")
        if cache.shape[1] not in BLOCK_SIZES:
            raise ValueError(
                f"{name} must have a block size in {BLOCK_SIZES}, not {cache.shape[1]}"
            )
        if 0 in cache.shape:
            raise ValueError(f"{name} must have blocks, heads and dims, not shape {cache.shape}")
        check_cache_strides(name, cache)
    if v_cache.shape[:3] != k_cache.shape[:3]:
        raise ValueError(
            f"v_cache must have k_cache's blocks, block size and heads {k_cache.shape[:3]}, "
            f"not {v_cache.shape[:3]}"
        )
    if v_cache.dtype != k_cache.dtype:
        raise ValueError(f"v_cache must have k_cache's dtype {k_cache.dtype}, not {v_cache.dtype}")


def _check_options(
    num_q_heads: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: mx.array | None,
) -> None:
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, not {scale}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, not {window}")
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise ValueError(f"softcap must be finite and more than 0, not {softcap}")
    if sinks is None:
        return
    if sinks.shape != (num_q_heads,):
        raise ValueError(f"sinks must have shape {(num_q_heads,)}, not {sinks.shape}")
    if sinks.dtype != mx.float32:
        raise ValueError(f"sinks must be float32, not {sinks.dtype}")


def _check_rank(name: str, array: mx.array, layout: str, rank: int) -> None:
    if array.ndim != rank:
        raise ValueError(f"{name} must be {layout}, not of shape {array.shape}")


def _check_ints(name: str, array: mx.array, shape: tuple[int, ...]) -> None:
    if array.dtype != mx.int32:
        raise ValueError(f"{name} must be int32, not {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {array.shape}")

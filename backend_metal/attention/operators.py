"""The public attention operators: validate, count, hand over to the chosen path.

Shapes and rules are the same on every path and device. All operators are lazy; the caches that are
returned replace those passed in, which the caller gives up.

============================ ==================================================================
``q``                        ``[num_tokens, num_q_heads, head_dim]``, sequences one after another
``k``, ``v``                 ``[num_tokens, num_kv_heads, head_dim]``; ``v`` may have its own dim
``k_cache``, ``v_cache``     ``[num_blocks, block_size, num_kv_heads, head_dim]``
``slot_mapping``             int32 ``[num_tokens]``; a negative slot writes nothing
``block_tables``             int32 ``[num_seqs, max_blocks_per_seq]``
``seq_lens``                 int32 ``[num_seqs]``, this step's tokens included
``cu_seqlens_q``             int32 ``[num_seqs + 1]``
``sinks``                    float32 ``[num_q_heads]``: logits added to the softmax denominator
============================ ==================================================================

Query ``i`` of a sequence with ``q_len`` queries sits at position ``p = seq_len - q_len + i`` and
sees keys ``j <= p``, with ``window`` only ``j > p - window``. ``softcap`` maps a scaled score ``s``
to ``softcap * tanh(s / softcap)``. A row that sees no key is 0. float16, bfloat16 and float32,
accumulated in float32. Anything else raises ``ValueError`` naming the argument, before any work.
``path`` is a ``Device``, or what its attention is called: ``default_path()`` when it is None, or
the reference where that has no kernels for the head dims (``head_dims.py``).

Native paths write the very caches that they are given, and attend to a token of this step that
has a slot as it stands in ``k``, ``v``. What the int32 arrays hold is checked at evaluation on the
CPU, and nowhere on a GPU.
"""

from __future__ import annotations

from collections import Counter
from threading import Lock

import mlx.core as mx

from backend_metal.attention.checks import check_attention, check_scatter
from backend_metal.attention.head_dims import attending
from backend_metal.device import PATHS, Device, device_on

_launches: Counter[str] = Counter(dict.fromkeys(PATHS, 0))
_launches_lock = Lock()


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
    path: Device | str | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """Write ``k``, ``v`` to their slots and attend: ``(out, k_cache, v_cache)``.

    ``out`` is ``[num_tokens, num_q_heads, head_dim_v]`` in ``q``'s dtype.
    """
    check_scatter(k, v, k_cache, v_cache, slot_mapping)
    check_attention(
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
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k must have q's {q.shape[0]} tokens, not {k.shape[0]}")
    return _operators(path, k_cache, v_cache).scatter_paged_attention(
        q,
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping,
        block_tables,
        seq_lens,
        cu_seqlens_q,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
    )


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
    path: Device | str | None = None,
) -> mx.array:
    """Attend over what the caches hold: ``[num_tokens, num_q_heads, head_dim_v]``."""
    check_attention(
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
    return _operators(path, k_cache, v_cache).paged_attention(
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


def reshape_and_cache(
    k: mx.array,
    v: mx.array,
    k_cache: mx.array,
    v_cache: mx.array,
    slot_mapping: mx.array,
    *,
    path: Device | str | None = None,
) -> tuple[mx.array, mx.array]:
    """Write ``k``, ``v`` to their slots: ``(k_cache, v_cache)``."""
    check_scatter(k, v, k_cache, v_cache, slot_mapping)
    operators = _operators(path, k_cache, v_cache)
    return operators.reshape_and_cache(k, v, k_cache, v_cache, slot_mapping)


def default_path() -> str:
    """The name of the fastest path on MLX's default device."""
    return device_on(mx.default_device()).attention


def count_launches(path: Device, times: int = 1) -> None:
    with _launches_lock:
        _launches[path.attention] += times


def attention_launches() -> dict[str, int]:
    """Operator calls since the process started, by path."""
    with _launches_lock:
        return dict(_launches)


def _operators(path: Device | str | None, k_cache: mx.array, v_cache: mx.array) -> Device:
    resolved = attending(path, [(k_cache.shape[3], v_cache.shape[3])])
    count_launches(resolved)
    return resolved

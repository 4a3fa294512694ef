"""Attention to chosen keys alone, in plain MLX: DeepSeek sparse attention.

An index keeps a small key for each token, the same for all heads. A query scores all that it sees
by these, and attends to the best ``top_k`` (DeepSeek-V3.2-Exp, section 2.1).
"""

from __future__ import annotations

import mlx.core as mx


def choose(
    q: mx.array,
    keys: mx.array,
    weights: mx.array,
    positions: mx.array,
    slots: mx.array,
    top_k: int,
) -> mx.array:
    """Slots of the ``top_k`` best keys of each query, in any order: int32
    ``[sequences, num_queries, top_k]``.

    A key's score is the sum over heads of ``weights * max(q . key, 0)``. Every query must see at
    least ``top_k`` keys.

    Args:
        q: ``[sequences, num_queries, heads, dim]``
        keys: ``[sequences, context, dim]``
        weights: ``[sequences, num_queries, heads]``
        positions: int32 ``[sequences, num_queries, 1]``: the last key that a query sees.
        slots: int32 ``[sequences, context]``, of the keys.
    """
    num_seqs, num_queries, num_heads, _ = q.shape
    context = keys.shape[1]
    products = q.flatten(1, 2) @ keys.swapaxes(1, 2)
    products = mx.maximum(products, 0).astype(mx.float32)
    products = products.reshape(num_seqs, num_queries, num_heads, context)
    scores = (weights.astype(mx.float32)[:, :, None] @ products).squeeze(2)
    scores = mx.where(mx.arange(context) <= positions, scores, -mx.inf)
    best = mx.argpartition(scores, kth=-top_k, axis=-1)[..., -top_k:]
    where = mx.broadcast_to(slots[:, None], scores.shape)
    return mx.take_along_axis(where, best, axis=-1)


def attend_chosen(q: mx.array, latents: mx.array, value_dim: int, scale: float) -> mx.array:
    """``[num_tokens, heads, value_dim]``, each query over keys of its own.

    Args:
        q: ``[num_tokens, heads, dim]``
        latents: ``[num_tokens, keys, dim]``, of which the first ``value_dim`` dims are the values.
    """
    weights = mx.softmax((q * scale) @ latents.swapaxes(1, 2), axis=-1, precise=True)
    # With the dims that are no values: a product with a part of each row would copy all of them.
    return (weights @ latents)[..., :value_dim]

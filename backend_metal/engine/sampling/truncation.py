"""Which tokens top_k and top_p keep, without sorting the vocabulary.

Both rules are one: tokens are ranked by logit, ties by lower id, and a token is kept while the
weight ranked before it is below a target. For top_k a weight is 1 and the target k; for top_p
(Holtzman et al. 2020) a weight is the token's probability. Weights are integers, so sums don't
depend on their order and a row is cut at the same token in every batch.
"""

from __future__ import annotations

import mlx.core as mx

_CHUNK = 32
_PROBABILITY_ONE = 2.0**31
_EVERYTHING = 2**32 - 1
_DIGITS = ((20, 11), (10, 10), (0, 10))
"""Of the 31 bits of a float that is not negative: the place of the lowest, and their number."""


def top_tokens(x: mx.array, count: int) -> mx.array:
    """Ids of the ``count`` largest of each row of ``[rows, vocab]``, best first, ties by lower id.

    Only chunks with one of the ``count`` largest maxima can hold a token to report, so two short
    sorts replace a long one. Relies on ``mx.argsort`` being stable.
    """
    rows, vocab_size = x.shape
    if vocab_size <= 2 * _CHUNK * count:
        return mx.argsort(-x, axis=-1)[:, :count].astype(mx.int32)
    padded = mx.pad(x, [(0, 0), (0, -vocab_size % _CHUNK)], constant_values=-mx.inf)
    maxima = mx.max(padded.reshape(rows, -1, _CHUNK), axis=-1)
    # Ascending again, so that the second sort sees equal values in the order of their ids.
    chunks = mx.sort(mx.argsort(-maxima, axis=-1)[:, :count], axis=-1).astype(mx.int32)
    ids = (chunks[:, :, None] * _CHUNK + mx.arange(_CHUNK, dtype=mx.int32)).reshape(rows, -1)
    order = mx.argsort(-mx.take_along_axis(padded, ids, axis=-1), axis=-1)[:, :count]
    return mx.take_along_axis(ids, order, axis=-1)


def probability_weights(z: mx.array) -> mx.array:
    """uint32 fixed-point softmax; a row sums to about 2**31."""
    return (mx.softmax(z, axis=-1) * _PROBABILITY_ONE + 0.5).astype(mx.uint32)


def top_p_targets(weights: mx.array, top_p: mx.array) -> mx.array:
    """uint32 ``[rows, 1]``: the share ``top_p`` (float32 ``[rows, 1]``) of each row's weight."""
    share = mx.ceil(mx.sum(weights, axis=-1, keepdims=True).astype(mx.float32) * top_p)
    share = mx.maximum(share, 1.0)  # The first token stays, however small top_p is.
    return mx.where(top_p < 1.0, share.astype(mx.uint32), mx.array(_EVERYTHING, mx.uint32))


def keep_sorted(weights: mx.array, targets: mx.array) -> mx.array:
    """Boolean mask of the kept tokens of rows that are already in order of rank."""
    return mx.cumsum(weights, axis=-1) - weights < targets


def keep_unsorted(z: mx.array, weights: mx.array, targets: mx.array) -> mx.array:
    """Boolean mask of the kept tokens; ``z`` is at most 0 and ranks them.

    The bits of a non-negative float are ordered as the float is. So histograms of ever lower digits
    of them find the key at which the target is reached, exactly; ties at that key are kept in order
    of id.
    """
    keys = mx.abs(z).view(mx.uint32)
    rows = mx.arange(z.shape[0], dtype=mx.int32)[:, None]
    zero = mx.array(0, mx.uint32)
    prefix = mx.zeros(targets.shape, mx.uint32)
    before = mx.zeros(targets.shape, mx.uint32)
    for shift, bits in _DIGITS:
        digits = ((keys >> shift) & ((1 << bits) - 1)).astype(mx.int32)
        behind = mx.where((keys >> (shift + bits)) == prefix, weights, zero)
        histogram = mx.zeros((z.shape[0], 1 << bits), mx.uint32).at[rows, digits].add(behind)
        up_to = mx.cumsum(histogram, axis=-1) + before
        # Where no digit reaches the target, every token is kept.
        digit = mx.minimum(mx.sum(up_to < targets, axis=-1, keepdims=True), (1 << bits) - 1)
        before = mx.take_along_axis(up_to - histogram, digit, axis=-1)
        prefix = (prefix << bits) | digit.astype(mx.uint32)
    tied = mx.where(keys == prefix, weights, zero)
    before = before + mx.cumsum(tied, axis=-1, inclusive=False)
    return (keys < prefix) | ((keys == prefix) & (before < targets))

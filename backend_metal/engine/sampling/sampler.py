"""Draws one token for each row of logits: lazy, batched, on the device.

Stages in order: a mask, penalties, logit_bias, temperature, min_p, top_k, top_p, then the
draw. Every operation works row by row, so a row's token is the same alone and in any batch, bit for
bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from backend_metal.engine.sampling.batch import NUM_CANDIDATES, SamplingBatch, SamplingGroup
from backend_metal.engine.sampling.noise import gumbel, uniform_noise
from backend_metal.engine.sampling.truncation import (
    keep_sorted,
    keep_unsorted,
    probability_weights,
    top_p_targets,
    top_tokens,
)


@dataclass(frozen=True)
class Sampled:
    """Unevaluated arrays; logprobs are those of the model, of the tokens that a grammar leaves,
    before penalties and temperature."""

    token_ids: mx.array
    """int32 ``[rows]``"""
    logprobs: mx.array | None
    """float32 ``[rows]``; None when no row asks."""
    top_token_ids: mx.array | None
    """int32 ``[rows, k]``, best first, k the most that any row asks for; None when k is 0."""
    top_logprobs: mx.array | None
    """float32 ``[rows, k]``"""

    @property
    def arrays(self) -> list[mx.array]:
        """All of them, to be evaluated together."""
        fields = (self.token_ids, self.logprobs, self.top_token_ids, self.top_logprobs)
        return [array for array in fields if array is not None]


def sample(logits: mx.array, batch: SamplingBatch) -> Sampled:
    """``logits`` is ``[batch.num_rows, batch.vocab_size]``. Raises ``ValueError`` if it isn't."""
    if logits.shape != (batch.num_rows, batch.vocab_size):
        raise ValueError(
            f"logits must be {(batch.num_rows, batch.vocab_size)}, not {tuple(logits.shape)}"
        )
    raw = logits.astype(mx.float32)
    if batch.masks is not None:
        raw = _leave_allowed(raw, mx.array(batch.masks))
    token_ids = _draw(_adjust(raw, batch), batch)
    if batch.num_top_logprobs is None:
        return Sampled(token_ids, None, None, None)
    normaliser = mx.logsumexp(raw, axis=-1, keepdims=True)
    logprobs = mx.take_along_axis(raw, token_ids[:, None], axis=-1) - normaliser
    if batch.num_top_logprobs == 0:
        return Sampled(token_ids, logprobs[:, 0], None, None)
    top = top_tokens(raw, batch.num_top_logprobs)
    return Sampled(
        token_ids, logprobs[:, 0], top, mx.take_along_axis(raw, top, axis=-1) - normaliser
    )


@mx.compile
def _leave_allowed(logits: mx.array, masks: mx.array) -> mx.array:
    bits = (masks[:, :, None] >> mx.arange(32)) & 1
    return _mask(logits, bits.reshape(logits.shape[0], -1)[:, : logits.shape[1]] != 0)


def _adjust(logits: mx.array, batch: SamplingBatch) -> mx.array:
    """Penalties and biases, written only to the elements they concern."""
    if batch.repetition is None and batch.additive is None:
        return logits
    flat = logits.reshape(-1)
    if batch.repetition is not None:
        where = mx.array(batch.repetition.flat_indices)
        penalty = mx.array(batch.repetition.values)
        old = flat[where]
        # A token seen twice is written twice with the same value.
        new = mx.where(old > 0.0, old / penalty, old * penalty)
        flat = mx.put_along_axis(flat, where, new, axis=0)
    if batch.additive is not None:
        where = mx.array(batch.additive.flat_indices)
        flat = mx.put_along_axis(flat, where, flat[where] + mx.array(batch.additive.values), axis=0)
    return flat.reshape(logits.shape)


def _draw(logits: mx.array, batch: SamplingBatch) -> mx.array:
    draws = {
        "greedy": _draw_greedy,
        "plain": _draw_plain,
        "candidates": _draw_from_candidates,
        "truncated": _draw_truncated,
    }
    if len(batch.groups) == 1:
        return draws[batch.groups[0].kind](logits, batch.groups[0])
    token_ids = mx.zeros((batch.num_rows,), mx.int32)
    for group in batch.groups:
        rows = mx.array(group.rows)
        drawn = draws[group.kind](logits[rows], group)
        token_ids = mx.put_along_axis(token_ids, rows, drawn, axis=0)
    return token_ids


def _draw_greedy(logits: mx.array, group: SamplingGroup) -> mx.array:
    return mx.argmax(logits, axis=-1).astype(mx.int32)


def _draw_plain(logits: mx.array, group: SamplingGroup) -> mx.array:
    z = _mask_min_p(_scale(logits, mx.max(logits, axis=-1, keepdims=True), group), group)
    return mx.argmax(z + gumbel(_noise(logits, group)), axis=-1).astype(mx.int32)


def _draw_from_candidates(logits: mx.array, group: SamplingGroup) -> mx.array:
    # Always the same number of candidates: the width of a row must not depend on the batch.
    ids = top_tokens(logits, min(NUM_CANDIDATES, logits.shape[-1]))
    values = mx.take_along_axis(logits, ids, axis=-1)
    z = _mask_min_p(_scale(values, values[:, :1], group), group)
    if group.top_k is not None:
        z = _mask(z, mx.arange(z.shape[-1]) < mx.array(group.top_k))
    if group.top_p is not None:
        weights = probability_weights(z)
        z = _mask(z, keep_sorted(weights, top_p_targets(weights, mx.array(group.top_p))))
    noise = gumbel(mx.take_along_axis(_noise(logits, group), ids, axis=-1))
    drawn = mx.argmax(z + noise, axis=-1, keepdims=True)
    return mx.take_along_axis(ids, drawn, axis=-1)[:, 0]


def _draw_truncated(logits: mx.array, group: SamplingGroup) -> mx.array:
    z = _mask_min_p(_scale(logits, mx.max(logits, axis=-1, keepdims=True), group), group)
    if group.top_k is not None:
        ones = mx.ones(z.shape, mx.uint32)
        z = _mask(z, keep_unsorted(z, ones, mx.array(group.top_k).astype(mx.uint32)))
    if group.top_p is not None:
        weights = probability_weights(z)
        z = _mask(z, keep_unsorted(z, weights, top_p_targets(weights, mx.array(group.top_p))))
    return mx.argmax(z + gumbel(_noise(logits, group)), axis=-1).astype(mx.int32)


def _noise(logits: mx.array, group: SamplingGroup) -> mx.array:
    return uniform_noise(mx.array(group.keys), logits.shape[-1])


def _scale(values: mx.array, largest: mx.array, group: SamplingGroup) -> mx.array:
    """Temperature; the largest becomes 0, so that no temperature overflows."""
    return (values - largest) / mx.array(group.temperature)


def _mask_min_p(z: mx.array, group: SamplingGroup) -> mx.array:
    if group.log_min_p is None:
        return z
    return _mask(z, z >= mx.array(group.log_min_p))


def _mask(z: mx.array, keep: mx.array) -> mx.array:
    return mx.where(keep, z, -mx.inf)

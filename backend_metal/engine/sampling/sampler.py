"""Draws one token for each row of logits: lazy, batched, on the device.

Stages in order: a mask, penalties, logit_bias, temperature, min_p, top_k, top_p, then the
draw. Every operation works row by row, so a row's token is the same alone and in any batch, bit for
bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from backend_metal.engine.sampling.batch import SamplingBatch
from backend_metal.engine.sampling.kernel import Draw
from backend_metal.engine.sampling.masking import leave_allowed
from backend_metal.engine.sampling.truncation import top_tokens


@dataclass(frozen=True)
class Sampled:
    """Unevaluated arrays; logprobs are those of the model, of the tokens that a grammar leaves,
    before penalties and temperature."""

    token_ids: mx.array
    """int32 ``[rows]``"""
    logprobs: mx.array | None
    """float32 ``[asking]``, of the rows that ask for them; None when no row does."""
    top_token_ids: mx.array | None
    """int32 ``[asking, k]``, best first, k the most that any row asks for; None when k is 0."""
    top_logprobs: mx.array | None
    """float32 ``[asking, k]``"""

    @property
    def arrays(self) -> list[mx.array]:
        """All of them, to be evaluated together."""
        fields = (self.token_ids, self.logprobs, self.top_token_ids, self.top_logprobs)
        return [array for array in fields if array is not None]


def sample(logits: mx.array, batch: SamplingBatch, draw: Draw) -> Sampled:
    """``logits`` is ``[batch.num_rows, batch.vocab_size]``. Raises ``ValueError`` if it isn't."""
    if logits.shape != (batch.num_rows, batch.vocab_size):
        raise ValueError(
            f"logits must be {(batch.num_rows, batch.vocab_size)}, not {tuple(logits.shape)}"
        )
    token_ids = draw(logits, batch)
    if not len(batch.logprob_rows):
        return Sampled(token_ids, None, None, None)
    raw = logits.astype(mx.float32)
    if batch.masks is not None:
        raw = leave_allowed(raw, batch.masks)
    drawn = token_ids[:, None]
    if len(batch.logprob_rows) < batch.num_rows:
        rows = mx.array(batch.logprob_rows)
        raw, drawn = raw[rows], drawn[rows]
    normaliser = mx.logsumexp(raw, axis=-1, keepdims=True)
    logprobs = (mx.take_along_axis(raw, drawn, axis=-1) - normaliser)[:, 0]
    if batch.num_top_logprobs == 0:
        return Sampled(token_ids, logprobs, None, None)
    top = top_tokens(raw, batch.num_top_logprobs)
    return Sampled(token_ids, logprobs, top, mx.take_along_axis(raw, top, axis=-1) - normaliser)

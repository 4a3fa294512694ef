"""Logprobs of tokens that were not drawn, but stand in a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.engine.sampling.truncation import top_tokens


@dataclass(frozen=True)
class Read:
    """Unevaluated arrays, of ``[rows]`` and ``[rows, k]``."""

    logprobs: mx.array
    ranks: mx.array
    top_token_ids: mx.array | None
    top_logprobs: mx.array | None

    @property
    def arrays(self) -> list[mx.array]:
        fields = (self.logprobs, self.ranks, self.top_token_ids, self.top_logprobs)
        return [array for array in fields if array is not None]

    def rows(self) -> Iterator[tuple[float, int, list[tuple[int, float]]]]:
        """Logprob, rank and the most likely (token id, logprob) of each, once evaluated."""
        logprobs, ranks = np.asarray(self.logprobs).tolist(), np.asarray(self.ranks).tolist()
        tops: list[list[tuple[int, float]]] = [[] for _ in ranks]
        if self.top_token_ids is not None and self.top_logprobs is not None:
            columns = (np.asarray(self.top_token_ids), np.asarray(self.top_logprobs))
            pairs = zip(*(column.tolist() for column in columns), strict=True)
            tops = [[*zip(ids, values, strict=True)] for ids, values in pairs]
        yield from zip(logprobs, ranks, tops, strict=True)


def read_logprobs(logits: mx.array, token_ids: npt.NDArray[np.int32], most: int) -> Read:
    """``logits`` is ``[rows, vocab_size]``; each row is asked for one of ``token_ids`` and for its
    ``most`` likely tokens."""
    raw = logits.astype(mx.float32)
    wanted = mx.take_along_axis(raw, mx.array(token_ids)[:, None], axis=-1)
    normaliser = mx.logsumexp(raw, axis=-1, keepdims=True)
    ranks = mx.sum(raw > wanted, axis=-1) + 1
    logprobs = (wanted - normaliser)[:, 0]
    if not most:
        return Read(logprobs, ranks, None, None)
    top = top_tokens(raw, min(most, raw.shape[-1]))
    return Read(logprobs, ranks, top, mx.take_along_axis(raw, top, axis=-1) - normaliser)

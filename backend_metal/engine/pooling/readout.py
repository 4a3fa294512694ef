"""What a prompt has come to so far, chunk by chunk: a vector of its states, or a score."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.models.load.pooling_config import PoolingConfig, ScoreTokens

Floats = npt.NDArray[np.float32]
SHORTEST = 1e-12
"""No vector is divided by less."""


class Readout(Protocol):
    """Of one prompt. Steps add to it, lazily; one that is computed again begins again."""

    reads_logits: bool
    """Whether the logits behind the prompt are wanted, rather than its states."""
    is_of_last_token: bool
    """Whether only the newest token counts, so that the others may come from a cache."""

    def add(self, rows: mx.array, start: int) -> None:
        """``rows``: the logits behind the prompt, ``[vocab]``; or ``[num_tokens, size]``, the
        states of its tokens from ``start`` on."""
        ...

    @property
    def arrays(self) -> list[mx.array]:
        """To be evaluated with the step."""
        ...

    def values(self) -> Floats:
        """Once the prompt is computed."""
        ...


class VectorReadout:
    """``[size]``: the mean state of the tokens that count."""

    reads_logits = False

    def __init__(self, config: PoolingConfig, num_tokens: int) -> None:
        self._first = num_tokens - 1 if config.pooling == "last" else 0
        self._stop = 1 if config.pooling == "cls" else num_tokens
        self.is_of_last_token = config.pooling == "last"
        self._normalizes = config.normalizes
        self._sum: mx.array | None = None

    def add(self, rows: mx.array, start: int) -> None:
        first, stop = max(self._first, start), min(self._stop, start + rows.shape[0])
        if first >= stop:
            return
        added = rows[first - start : stop - start].astype(mx.float32).sum(axis=0)
        if first > self._first:
            assert self._sum is not None, "the tokens before were not computed"
            added = self._sum + added
        self._sum = added

    @property
    def arrays(self) -> list[mx.array]:
        return [] if self._sum is None else [self._sum]

    def values(self) -> Floats:
        assert self._sum is not None, "none of the tokens that count was computed"
        vector = np.array(self._sum) / np.float32(self._stop - self._first)
        if self._normalizes:
            vector = vector / max(float(np.linalg.norm(vector)), SHORTEST)
        return vector.astype(np.float32)


class ScoreReadout:
    """``[1]``: a logit, or how much larger than another it is."""

    reads_logits = True
    is_of_last_token = True

    def __init__(self, tokens: ScoreTokens) -> None:
        self._tokens = tokens
        self._score: mx.array | None = None

    def add(self, rows: mx.array, start: int) -> None:
        rows = rows.astype(mx.float32)
        self._score = rows[self._tokens.true_token_id]
        if self._tokens.false_token_id is not None:
            self._score = self._score - rows[self._tokens.false_token_id]

    @property
    def arrays(self) -> list[mx.array]:
        return [] if self._score is None else [self._score]

    def values(self) -> Floats:
        assert self._score is not None, "the newest token was not computed"
        return np.array(self._score).reshape(1)

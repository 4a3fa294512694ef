"""What comes of a step that is under way: tokens that it draws, and what it tells of prompts."""

from __future__ import annotations

from math import inf

import mlx.core as mx
import numpy as np

from backend_metal.engine.sampling.batch import RowOptions
from backend_metal.engine.sampling.prompt_logprobs import read_logprobs
from backend_metal.engine.sampling.sampler import Sampled
from backend_metal.engine.schedule.int_buffer import Int32Array
from backend_metal.engine.schedule.prompt_readings import PromptToken
from backend_metal.engine.schedule.step import ScheduledSequence, TokenDraw


class PromptReader:
    def __init__(self, reading: list[ScheduledSequence], logits: mx.array) -> None:
        """``logits``: before each of the tokens that are told of, in order."""
        self._reading = [
            (readings, item.prompt_rows.start, _tokens_told(item))
            for item in reading
            if (readings := item.sequence.readings)
        ]
        self._read = read_logprobs(
            logits,
            np.concatenate([tokens for _, _, tokens in self._reading]),
            max(readings.num_alternatives for readings, _, _ in self._reading),
        )

    @property
    def arrays(self) -> list[mx.array]:
        return self._read.arrays

    def tell(self) -> None:
        """Once evaluated."""
        rows = self._read.rows()
        for readings, first_row, tokens in self._reading:
            told = [
                PromptToken(token_id, logprob, rank, tuple(top[: readings.num_alternatives]))
                for token_id, (logprob, rank, top) in zip(tokens.tolist(), rows, strict=False)
            ]
            readings.add(told, first_row)


class StepDraws:
    def __init__(
        self,
        rows: RowOptions,
        sampled: Sampled | None,
        reader: PromptReader | None,
        others: list[mx.array],
    ) -> None:
        """``others``: what else is to be there when the step is done."""
        self._rows = rows
        self._sampled = sampled
        self._reader = reader
        self._others = others

    @property
    def token_ids(self) -> mx.array:
        return mx.zeros(0, mx.int32) if self._sampled is None else self._sampled.token_ids

    @property
    def arrays(self) -> list[mx.array]:
        return [
            *(self._sampled.arrays if self._sampled else ()),
            *(self._reader.arrays if self._reader else ()),
            *self._others,
        ]

    def wait(self) -> list[TokenDraw]:
        mx.eval(self.arrays)
        if self._reader is not None:
            self._reader.tell()
        return [] if self._sampled is None else _draws(self._rows, self._sampled)


def _tokens_told(item: ScheduledSequence) -> Int32Array:
    rows = item.prompt_rows
    return item.sequence.token_range(rows.start + 1, rows.stop + 1)


def _draws(rows: RowOptions, sampled: Sampled) -> list[TokenDraw]:
    tokens: list[int] = sampled.token_ids.tolist()  # type: ignore[assignment]
    if sampled.logprobs is None:
        return [TokenDraw(token) for token in tokens]
    logprobs = np.asarray(sampled.logprobs).tolist()
    tops: list[list[tuple[int, float]]] = [[] for _ in logprobs]
    if sampled.top_token_ids is not None and sampled.top_logprobs is not None:
        columns = (np.asarray(sampled.top_token_ids), np.asarray(sampled.top_logprobs))
        tops = [
            # What a grammar rules out has no logprob.
            [(token, value) for token, value in zip(ids, values, strict=True) if value > -inf]
            for ids, values in zip(*(column.tolist() for column in columns), strict=True)
        ]
    asked = zip(logprobs, tops, strict=True)
    draws = []
    for row, token in zip(rows.rows, tokens, strict=True):
        if row.params.logprobs is None:
            draws.append(TokenDraw(token))
        else:
            logprob, top = next(asked)
            draws.append(TokenDraw(token, logprob, tuple(top[: row.params.logprobs])))
    return draws

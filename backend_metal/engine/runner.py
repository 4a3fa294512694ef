"""Runs a step on the device: one lazy graph from token ids to drawn tokens.

Where a grammar or a list restricts a row, its mask is filled while the device computes the logits.
"""

from __future__ import annotations

from math import inf

import mlx.core as mx
import numpy as np

from backend_metal.attention.kv_cache import AttentionMetadata, KVCachePool
from backend_metal.engine.batch import build_batch
from backend_metal.engine.grammar.masks import MaskFiller, Masks
from backend_metal.engine.sampling.batch import SamplingRow, build_sampling_batch
from backend_metal.engine.sampling.prompt_logprobs import read_logprobs
from backend_metal.engine.sampling.sampler import Sampled, sample
from backend_metal.engine.schedule.int_buffer import Int32Array
from backend_metal.engine.schedule.prompt_readings import PromptReadings, PromptToken
from backend_metal.engine.schedule.step import ScheduledSequence, Step, TokenDraw
from backend_metal.models.paged_model import ModelOutput, PagedModel


class ModelRunner:
    def __init__(self, model: PagedModel, pool: KVCachePool) -> None:
        self._model = model
        self._pool = pool
        self._masks = MaskFiller()

    def run(self, step: Step) -> list[TokenDraw]:
        logits, states = self._forward(step)
        sampling, reading, read = step.sampling, step.reading, step.readouts
        if reading:
            num_ends = sum(item.has_logits for item in step.scheduled)
            self._read_prompts(reading, logits[num_ends:])
            logits = logits[:num_ends]
        if read:
            logits = _read(step, logits, states)
        made = [readout.arrays for readout in read]
        if not sampling:
            mx.eval(made, self._pool.evaluation_roots())
            return []
        rows = [_sampling_row(item) for item in sampling]
        masks = self._fill_masks(logits, sampling)
        sampled = sample(logits, build_sampling_batch(rows, self._model.vocab_size, masks))
        mx.eval(sampled.arrays, made, self._pool.evaluation_roots())
        return _draws(rows, sampled)

    def _read_prompts(
        self, reading: list[tuple[PromptReadings, Int32Array]], logits: mx.array
    ) -> None:
        """``logits``: before each of the tokens that are told of, in order."""
        token_ids = np.concatenate([tokens for _, tokens in reading])
        told = read_logprobs(
            logits, token_ids, max(readings.num_alternatives for readings, _ in reading)
        )
        mx.eval(told.arrays, self._pool.evaluation_roots())
        rows = told.rows()
        for readings, tokens in reading:
            readings.add(
                [
                    PromptToken(token_id, logprob, rank, tuple(top[: readings.num_alternatives]))
                    for token_id, (logprob, rank, top) in zip(tokens.tolist(), rows, strict=False)
                ]
            )

    def _fill_masks(self, logits: mx.array, sampling: list[ScheduledSequence]) -> Masks | None:
        sequences = [item.sequence for item in sampling]
        guides = [
            (row, one.guide)
            for row, one in enumerate(sequences)
            if one.guide is not None and one.guide.restricts
        ]
        restricted = [
            (row, one.restrictions, one.output_token_ids)
            for row, one in enumerate(sequences)
            if one.restrictions and (one.guide is None or one.guide.forced is None)
        ]
        if not (guides or restricted):
            return None
        mx.async_eval(logits, self._pool.evaluation_roots())  # type: ignore[no-untyped-call]
        masks = self._masks.fill(guides, len(sampling), self._model.vocab_size)
        for row, restrictions, output_token_ids in restricted:
            restrictions.restrict(masks[row], output_token_ids)
        return masks

    def reset(self) -> None:
        self._pool.reset()

    def _forward(self, step: Step) -> ModelOutput:
        batch = build_batch(step.scheduled, self._pool.block_size)
        metadata = AttentionMetadata(
            slot_mapping=mx.array(batch.slot_mapping),
            block_tables=mx.array(batch.block_tables),
            seq_lens=mx.array(batch.seq_lens),
            cu_seqlens_q=mx.array(batch.cu_seqlens_q),
        )
        return self._model(
            mx.array(batch.token_ids),
            mx.array(batch.positions),
            metadata,
            mx.array(batch.logit_rows),
            self._pool,
        )


def _read(step: Step, logits: mx.array, states: mx.array) -> mx.array:
    """Have readouts take what is theirs of a step; returns the logits to draw from."""
    first_state, logit_row = 0, 0
    drawn: list[int] = []
    for item in step.scheduled:
        readout = item.sequence.readout
        if readout is None:
            drawn += [logit_row] * item.samples
        elif not readout.reads_logits:
            readout.add(states[first_state : first_state + item.num_tokens], item.start)
        elif item.has_logits:
            readout.add(logits[logit_row], item.start)
        first_state += item.num_tokens
        logit_row += item.has_logits
    return logits if len(drawn) == logit_row else logits[mx.array(drawn, mx.int32)]


def _sampling_row(item: ScheduledSequence) -> SamplingRow:
    sequence = item.sequence
    return SamplingRow(
        params=sequence.sampling,
        seed=sequence.seed,
        position=sequence.num_tokens,
        token_ids=sequence.tokens.view(),
        num_prompt_tokens=sequence.num_prompt_tokens,
    )


def _draws(rows: list[SamplingRow], sampled: Sampled) -> list[TokenDraw]:
    tokens = np.asarray(sampled.token_ids).tolist()
    if sampled.logprobs is None:
        return [TokenDraw(token) for token in tokens]
    logprobs = np.asarray(sampled.logprobs).tolist()
    tops: list[list[tuple[int, float]]] = [[] for _ in rows]
    if sampled.top_token_ids is not None and sampled.top_logprobs is not None:
        columns = (np.asarray(sampled.top_token_ids), np.asarray(sampled.top_logprobs))
        tops = [
            # What a grammar rules out has no logprob.
            [(token, value) for token, value in zip(ids, values, strict=True) if value > -inf]
            for ids, values in zip(*(column.tolist() for column in columns), strict=True)
        ]
    return [
        TokenDraw(token)
        if row.params.logprobs is None
        else TokenDraw(token, logprob, tuple(top[: row.params.logprobs]))
        for row, token, logprob, top in zip(rows, tokens, logprobs, tops, strict=True)
    ]

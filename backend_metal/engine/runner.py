"""Runs a step on the device: one lazy graph from token ids to drawn tokens, evaluated once."""

from __future__ import annotations

import mlx.core as mx

from backend_metal.engine.batch import build_batch
from backend_metal.engine.sampler import sample
from backend_metal.engine.sampling_batch import SamplingRow, build_sampling_batch
from backend_metal.engine.step import ScheduledSequence, Step, TokenDraw
from backend_metal.kv_cache import AttentionMetadata, KVCachePool
from backend_metal.models.paged_model import PagedModel


class ModelRunner:
    def __init__(self, model: PagedModel, pool: KVCachePool) -> None:
        self._model = model
        self._pool = pool

    def run(self, step: Step) -> list[TokenDraw]:
        if copies := step.block_copies:
            sources, destinations = zip(*copies, strict=True)
            self._pool.copy_blocks(sources, destinations)
        logits = self._forward(step)
        sampling = step.sampling
        if not sampling:
            mx.eval(self._pool.evaluation_roots())
            return []
        rows = [_sampling_row(item) for item in sampling]
        sampled = sample(logits, build_sampling_batch(rows, self._model.vocab_size))
        wanted = (
            sampled.token_ids,
            sampled.logprobs,
            sampled.top_token_ids,
            sampled.top_logprobs,
        )
        mx.eval([array for array in wanted if array is not None], self._pool.evaluation_roots())
        return _draws(rows, *wanted)

    def reset(self) -> None:
        self._pool.reset()

    def _forward(self, step: Step) -> mx.array:
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


def _sampling_row(item: ScheduledSequence) -> SamplingRow:
    sequence = item.sequence
    return SamplingRow(
        params=sequence.sampling,
        seed=sequence.seed,
        position=sequence.num_tokens,
        token_ids=sequence.tokens.view(),
        num_prompt_tokens=sequence.num_prompt_tokens,
    )


def _draws(
    rows: list[SamplingRow],
    token_ids: mx.array,
    logprobs: mx.array | None,
    top_token_ids: mx.array | None,
    top_logprobs: mx.array | None,
) -> list[TokenDraw]:
    tokens: list[int] = token_ids.tolist()
    if logprobs is None:
        return [TokenDraw(token) for token in tokens]
    values = logprobs.tolist()
    if top_token_ids is None or top_logprobs is None:
        tops: list[list[tuple[int, float]]] = [[] for _ in rows]
    else:
        tops = [
            list(zip(ids, logs, strict=True))
            for ids, logs in zip(top_token_ids.tolist(), top_logprobs.tolist(), strict=True)
        ]
    return [
        TokenDraw(token)
        if row.params.logprobs is None
        else TokenDraw(token, value, tuple(top[: row.params.logprobs]))
        for row, token, value, top in zip(rows, tokens, values, tops, strict=True)
    ]

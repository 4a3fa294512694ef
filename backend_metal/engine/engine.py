"""The engine: requests in, deltas out, one step at a time. It knows neither threads nor clients."""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from backend_metal.attention import attention_launches
from backend_metal.engine.block_pool import BlockPool
from backend_metal.engine.output import SequenceOutput
from backend_metal.engine.scheduler import Scheduler
from backend_metal.engine.sequence import Sequence
from backend_metal.engine.stats import StatsRecorder
from backend_metal.engine.step import Runner, ScheduledSequence, Step, TokenDraw
from backend_metal.engine.token_text import TokenText
from deployments.backend import (
    BackendError,
    BackendStats,
    ChatPrompt,
    Delta,
    EngineConfig,
    GenerationRequest,
    InvalidRequestError,
    QueueFullError,
    StepError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
"""Failed steps in a row after which the engine calls itself unhealthy."""

SEED_STRIDE = 0x9E3779B97F4A7C15
"""Odd, so that the seeds of a request's sequences are distinct modulo 2**64."""


@dataclass
class RequestState:
    request: GenerationRequest
    arrival_time: float
    unfinished: dict[int, SequenceOutput]
    first_run_time: float | None = None
    token_times: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By sequence index: when its first and its latest token came."""


@dataclass(frozen=True)
class Output:
    request_id: str
    item: Delta | BackendError
    """An error ends its request."""


class Engine:
    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        pool: BlockPool,
        tokenizer: Any,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Set[int],
    ) -> None:
        self.scheduler = Scheduler(
            pool,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            prefix_caching=config.prefix_caching,
        )
        self.max_model_len = min(max_model_len, self.scheduler.capacity_tokens)
        self.vocab_size = vocab_size
        self.tokenizer = tokenizer
        self._max_queued_requests = config.max_queued_requests
        self._runner = runner
        self._token_text = TokenText(tokenizer)
        self._eos_token_ids = eos_token_ids
        self._requests: dict[str, RequestState] = {}
        self._arrivals = itertools.count()
        self._stats = StatsRecorder()
        self._consecutive_failures = 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def is_healthy(self) -> bool:
        return self._consecutive_failures < MAX_CONSECUTIVE_FAILURES

    def add_request(self, request: GenerationRequest, prompt_token_ids: list[int]) -> None:
        """Queue a request. Raises a ``BackendError`` that says why it can't be taken."""
        try:
            self._check_admission(request, prompt_token_ids)
        except BackendError as error:
            self._stats.request_failure[error.error_type] += 1
            raise
        sequences = self._make_sequences(request, prompt_token_ids)
        self._requests[request.request_id] = RequestState(
            request,
            time.perf_counter(),
            {
                sequence.index: SequenceOutput(
                    sequence, self.tokenizer, self._token_text, self._eos_token_ids
                )
                for sequence in sequences
            },
        )
        for sequence in sequences:
            self.scheduler.add(sequence)

    def abort(self, request_id: str) -> list[Output]:
        """End a request now; its blocks are free when this returns. Unknown ids are ignored."""
        state = self._requests.pop(request_id, None)
        if state is None:
            return []
        outputs = []
        for output in state.unfinished.values():
            self.scheduler.finish(output.sequence)
            outputs.append(Output(request_id, output.abort()))
        self._stats.request_success["abort"] += 1
        return outputs

    def abort_all(self) -> list[Output]:
        return [output for request_id in list(self._requests) for output in self.abort(request_id)]

    def step(self) -> list[Output]:
        """Run one step. A failure of the model ends the requests in the step, not the engine."""
        start = time.perf_counter()
        step = self.scheduler.schedule()
        for item in step.scheduled:
            self._record_first_run(self._requests[item.sequence.request_id], start)
        try:
            draws = self._runner.run(step)
        except Exception as error:
            logger.exception("a step of %d tokens failed", step.num_tokens)
            return self._fail(step, error)
        self._consecutive_failures = 0
        outputs = list(self._complete(step, draws))
        self._stats.steps += 1
        self._stats.step_duration.observe(time.perf_counter() - start)
        return outputs

    def reset_prefix_cache(self) -> None:
        self.scheduler.pool.clear_cache()

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when blocks or requests were lost."""
        self.scheduler.check_integrity()
        if not self.has_work:
            assert not self._requests, f"idle, with unfinished requests {list(self._requests)}"
            pool = self.scheduler.pool
            assert pool.num_free == pool.num_blocks, "idle, with blocks held"

    def stats(self) -> BackendStats:
        stats, pool = self._stats, self.scheduler.pool
        running = {sequence.request_id for sequence in self.scheduler.running}
        return BackendStats(
            requests_running=len(running),
            requests_waiting=len(self._requests) - len(running),
            kv_cache_blocks_total=pool.num_blocks,
            kv_cache_blocks_free=pool.num_free,
            memory_active_bytes=mx.get_active_memory(),
            request_success=dict(stats.request_success),
            request_failure=dict(stats.request_failure),
            prompt_tokens=stats.prompt_tokens,
            generation_tokens=stats.generation_tokens,
            prefix_cache_hit_tokens=self.scheduler.num_prefix_hit_tokens,
            prefix_cache_query_tokens=self.scheduler.num_prefix_query_tokens,
            preemptions=self.scheduler.num_preemptions,
            steps=stats.steps,
            attention_launches=attention_launches(),
            time_to_first_token=stats.time_to_first_token.snapshot(),
            time_per_output_token=stats.time_per_output_token.snapshot(),
            inter_token_latency=stats.inter_token_latency.snapshot(),
            e2e_request_latency=stats.e2e_request_latency.snapshot(),
            queue_time=stats.queue_time.snapshot(),
            step_duration=stats.step_duration.snapshot(),
        )

    def _check_admission(self, request: GenerationRequest, prompt_token_ids: list[int]) -> None:
        if not self.is_healthy:
            raise UnavailableError("the engine failed several steps in a row and must be restarted")
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use")
        if len(prompt_token_ids) >= self.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(prompt_token_ids)} tokens, but prompt and completion "
                f"together may have at most {self.max_model_len}",
                param="messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
                code="context_length_exceeded",
            )
        for param, token_ids in (
            ("logit_bias", request.sampling.logit_bias),
            ("stop_token_ids", request.sampling.stop_token_ids),
        ):
            unknown = [token for token in token_ids if not 0 <= token < self.vocab_size]
            if unknown:
                raise InvalidRequestError(
                    f"{param} has token id {unknown[0]}; the vocabulary ends at "
                    f"{self.vocab_size - 1}",
                    param=param,
                )
        self._check_queue()

    def _check_queue(self) -> None:
        slots = self.scheduler.max_num_seqs - len(self.scheduler.running)
        num_waiting = len(self._requests) - len(
            {sequence.request_id for sequence in self.scheduler.running}
        )
        if num_waiting - max(0, slots) >= self._max_queued_requests:
            seconds = self._stats.e2e_request_latency.mean(default=1.0)
            rounds = max(1, num_waiting) / self.scheduler.max_num_seqs
            raise QueueFullError(
                f"{num_waiting} requests are waiting, as many as max_queued_requests allows",
                retry_after=min(60, math.ceil(seconds * rounds)),
            )

    def _make_sequences(
        self, request: GenerationRequest, prompt_token_ids: list[int]
    ) -> list[Sequence]:
        room = self.max_model_len - len(prompt_token_ids)
        seed = request.sampling.seed
        if seed is None:
            seed = random.getrandbits(63)
        arrival = next(self._arrivals)
        sequences: list[Sequence] = []
        for index in range(request.n):
            sequences.append(
                Sequence(
                    request.request_id,
                    index,
                    prompt_token_ids,
                    request.sampling,
                    max_tokens=min(request.sampling.max_tokens or room, room),
                    seed=_seed_of_sequence(seed, index),
                    arrival=arrival,
                    priority=request.priority,
                    cache_salt=request.cache_salt,
                    parent=sequences[0] if sequences else None,
                )
            )
        return sequences

    def _complete(self, step: Step, draws: list[TokenDraw]) -> Iterator[Output]:
        now = time.perf_counter()
        remaining = iter(draws)
        for item in step.scheduled:
            draw = next(remaining) if item.samples else None
            self.scheduler.complete(item, draw.token_id if draw else None)
            if draw:
                yield self._emit(item, draw, now)

    def _emit(self, item: ScheduledSequence, draw: TokenDraw, now: float) -> Output:
        sequence = item.sequence
        state = self._requests[sequence.request_id]
        delta = state.unfinished[sequence.index].push(draw)
        self._record_token(state, sequence, now)
        if delta.finish_reason:
            self.scheduler.finish(sequence)
            del state.unfinished[sequence.index]
            self._record_sequence_end(state, sequence)
            if not state.unfinished:
                del self._requests[sequence.request_id]
                self._stats.request_success[delta.finish_reason] += 1
                self._stats.e2e_request_latency.observe(now - state.arrival_time)
        return Output(sequence.request_id, delta)

    def _fail(self, step: Step, error: Exception) -> list[Output]:
        """End the step's requests; the others are recomputed, since the KV cache is lost."""
        self._consecutive_failures += 1
        failed = {item.sequence.request_id for item in step.scheduled}
        if not self.is_healthy:
            failed = set(self._requests)
        outputs = []
        for request_id in failed:
            for output in self._requests.pop(request_id).unfinished.values():
                self.scheduler.finish(output.sequence)
            failure = StepError(f"the step that ran this request failed: {error}")
            self._stats.request_failure[failure.error_type] += 1
            outputs.append(Output(request_id, failure))
        self.scheduler.preempt_all()
        self._runner.reset()
        return outputs

    def _record_first_run(self, state: RequestState, now: float) -> None:
        if state.first_run_time is None:
            state.first_run_time = now
            self._stats.queue_time.observe(now - state.arrival_time)

    def _record_token(self, state: RequestState, sequence: Sequence, now: float) -> None:
        self._stats.generation_tokens += 1
        if not state.token_times:
            self._stats.prompt_tokens += sequence.num_prompt_tokens
            self._stats.time_to_first_token.observe(now - state.arrival_time)
        times = state.token_times.get(sequence.index)
        if times is not None:
            self._stats.inter_token_latency.observe(now - times[1])
        state.token_times[sequence.index] = (times[0] if times else now, now)

    def _record_sequence_end(self, state: RequestState, sequence: Sequence) -> None:
        first, latest = state.token_times[sequence.index]
        if sequence.num_output_tokens > 1:
            seconds = (latest - first) / (sequence.num_output_tokens - 1)
            self._stats.time_per_output_token.observe(seconds)


def _seed_of_sequence(seed: int, index: int) -> int:
    """Distinct for each of a request's sequences; signed 64-bit, as the request's own."""
    return (seed + index * SEED_STRIDE + 2**63) % 2**64 - 2**63

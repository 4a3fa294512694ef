"""The engine: requests in, deltas out, one step at a time. It knows neither threads nor clients."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx

from backend_metal.attention.operators import attention_launches
from backend_metal.engine.admission import (
    check_known_tokens,
    check_resume,
)
from backend_metal.engine.grammar.compiler import GrammarCompiler
from backend_metal.engine.grammar.guide import Guide
from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.restrictions import TokenRestrictions, restrictions_of
from backend_metal.engine.grammar.thought_meter import ThoughtMeter
from backend_metal.engine.pooled import PooledOutput, id_of_input, make_readout, make_sequence
from backend_metal.engine.request_state import RequestState, make_sequences
from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.scheduler import Scheduler
from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.schedule.step import Runner, ScheduledSequence, Step, TokenDraw
from backend_metal.engine.schedule.step_pace import StepPace
from backend_metal.engine.stats import StatsRecorder
from backend_metal.engine.text.context_length import check_num_tokens
from backend_metal.engine.text.output import SequenceOutput, end_token_ids
from backend_metal.engine.text.prompt import PromptEncoder
from backend_metal.engine.text.token_text import TokenText
from backend_metal.engine.text.tokenizer import Tokenizer
from backend_metal.models.pooling_config import PoolingConfig
from deployments.backend import (
    AttentionStatus,
    BackendError,
    BackendStats,
    Delta,
    EngineConfig,
    GenerationRequest,
    InvalidRequestError,
    Pooled,
    PoolingRequest,
    Prefill,
    SamplingParams,
    StepError,
    TokenLogprob,
    UnavailableError,
)

logger = logging.getLogger(__name__)

RESUMED_BEFORE = 2**62
"""A resumed request was admitted before, elsewhere: it ranks as older than any that is new here."""

MAX_CONSECUTIVE_FAILURES = 3
"""Failed steps in a row after which the engine calls itself unhealthy."""


@dataclass(frozen=True)
class Output:
    request_id: str
    item: Delta | Pooled | Prefill | BackendError
    """An error ends its request."""


class Engine:
    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        pool: BlockPool,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Set[int],
        default_sampling: SamplingParams,
        attention: AttentionStatus | None = None,
        revision: str = "",
        pooling: PoolingConfig | None = None,
        state_size: int = 0,
        generates: bool = True,
    ) -> None:
        self.attention = attention
        self.default_sampling = default_sampling
        self.revision = revision
        self.pooling = pooling or PoolingConfig()
        self.state_size = state_size
        self._generates = generates
        self.scheduler = Scheduler(
            pool,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            pace=StepPace(config.max_slowdown, least_prefill=config.block_size),
        )
        self.max_model_len = min(max_model_len, self.scheduler.capacity_tokens)
        self.vocab_size = vocab_size
        self.tokenizer = tokenizer
        self.prompts = PromptEncoder(
            tokenizer,
            vocab_size=vocab_size,
            max_model_len=self.max_model_len,
            parse_special_tokens=config.parse_special_tokens_in_messages,
        )
        self.grammars = GrammarCompiler(tokenizer, vocab_size, eos_token_ids)
        self._prefix_caching = config.prefix_caching
        self._runner = runner
        self._token_text = TokenText(tokenizer)
        self._eos_token_ids = eos_token_ids
        self._requests: dict[str, RequestState] = {}
        self._arrivals = itertools.count()
        self._stats = StatsRecorder()
        self._consecutive_failures = 0
        self._stepped_at: float | None = None
        """When the latest step ended; None if there was nothing to do since."""

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def seconds_per_request(self) -> float:
        """What a request took of late once it ran; any thread may ask."""
        return self._stats.seconds_per_request

    @property
    def is_healthy(self) -> bool:
        return self._consecutive_failures < MAX_CONSECUTIVE_FAILURES

    def add_request(
        self,
        request: GenerationRequest,
        prompt_token_ids: list[int],
        arrival_time: float | None = None,
        matcher: GrammarMatcher | None = None,
    ) -> list[Output]:
        """Queue a request; returns that it was admitted, and a delta for each sequence that it
        resumes, which may be all there is.

        ``arrival_time``, by ``time.perf_counter``, is when its latencies begin; now by default.
        ``matcher`` is its grammar's, as ``grammars`` compiles it.
        Raises a ``BackendError`` that says why it can't be taken.
        """
        arrival_time = time.perf_counter() if arrival_time is None else arrival_time
        try:
            self._check_admission(request, prompt_token_ids)
            outputs = self._make_outputs(request, prompt_token_ids, matcher)
            replayed = [delta for output in outputs if (delta := output.replay())]
        except BackendError as error:
            self._stats.request_failure[error.error_type] += 1
            raise
        finished = {delta.index for delta in replayed if delta.finish_reason}
        unfinished = {o.sequence.index: o for o in outputs if o.sequence.index not in finished}
        if unfinished:
            self._wake()
            first, *siblings = (output.sequence for output in unfinished.values())
            alternatives = request.sampling.prompt_logprobs
            if alternatives is not None and not all(
                one.num_resumed_tokens for one in (first, *siblings)
            ):
                first.read_prompt(alternatives)
            self._requests[request.request_id] = RequestState(
                request, arrival_time, unfinished, siblings
            )
            self.scheduler.add(first)
        admitted = Prefill(
            0,
            len(prompt_token_ids),
            self.text_end(prompt_token_ids),
            tuple(prompt_token_ids) if request.tells_prompt else (),
            self._token_text.text_of(prompt_token_ids) if request.tells_prompt else "",
        )
        items: list[Delta | Prefill] = [admitted, *replayed]
        return [Output(request.request_id, item) for item in items]

    def add_input(
        self,
        request: PoolingRequest,
        index: int,
        token_ids: list[int],
        arrival_time: float | None = None,
    ) -> list[Output]:
        """As ``add_request``, of one of a request's inputs: it ends with a ``Pooled``, under
        ``id_of_input``."""
        arrival_time = time.perf_counter() if arrival_time is None else arrival_time
        input_id = id_of_input(request.request_id, index)
        try:
            self._check_free(input_id)
            check_num_tokens(request.inputs[index], len(token_ids), self.max_model_len)
            readout = make_readout(request.task, self.pooling, len(token_ids))
        except BackendError as error:
            self._stats.request_failure[error.error_type] += 1
            raise
        sequence = make_sequence(
            request,
            index,
            token_ids,
            readout=readout,
            arrival=next(self._arrivals),
            prefix_caching=self._prefix_caching,
        )
        self._wake()
        output = PooledOutput(sequence, readout)
        self._requests[input_id] = RequestState(request, arrival_time, {index: output}, [])
        self.scheduler.add(sequence)
        return [Output(input_id, Prefill(0, len(token_ids)))]

    def text_end(self, token_ids: list[int]) -> str:
        """How their text ends, control tokens included."""
        return self._token_text.end_of(token_ids)

    def count_refusal(self, error: BackendError) -> None:
        """A request that was refused before it came here."""
        self._stats.request_failure[error.error_type] += 1

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

    def pause(self, request_id: str) -> None:
        """Have a request wait until its client has read what there is. Unknown ids are ignored."""
        state = self._requests.get(request_id)
        if state is not None and state.paused_at is None:
            state.paused_at = time.perf_counter()
            for sequence in state.added:
                self.scheduler.pause(sequence)

    def resume(self, request_id: str) -> None:
        """Have a paused request go on, before those that came after it."""
        state = self._requests.get(request_id)
        if state is not None and state.paused_at is not None:
            self._wake()
            state.resumed(time.perf_counter())
            for sequence in state.added:
                self.scheduler.add(sequence)

    def abort_all(self) -> list[Output]:
        return [output for request_id in list(self._requests) for output in self.abort(request_id)]

    def step(self) -> list[Output]:
        """Run one step. A failure of the model ends the requests in the step, not the engine."""
        start = time.perf_counter()
        # What runs between two steps, such as adding requests, makes tokens wait as well.
        waited_since = start if self._stepped_at is None else self._stepped_at
        step = self.scheduler.schedule()
        for item in step.scheduled:
            self._stats.record_first_run(self._requests[item.sequence.request_id], start)
        self._stats.record_batch(step)
        try:
            draws = self._runner.run(step)
        except Exception as error:
            logger.exception("a step of %d tokens failed", step.num_tokens)
            return self._fail(step, error)
        self._consecutive_failures = 0
        outputs = list(self._complete(step, draws))
        self._stats.steps += 1
        end = time.perf_counter()
        self._stats.step_duration.observe(end - start)
        self.scheduler.pace.observe(step, end - waited_since)
        self._stepped_at = end
        return outputs

    def reset_prefix_cache(self) -> None:
        self.scheduler.pool.clear_cache()

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when blocks or requests were lost."""
        self.scheduler.check_integrity()
        for request_id, state in self._requests.items():
            paused = {sequence.status is Status.PAUSED for sequence in state.added}
            assert paused == {state.paused_at is not None}, f"{request_id} is half paused"
            new = {output.sequence.status is Status.NEW for output in state.unfinished.values()}
            assert new != {True}, f"{request_id} waits for a sequence that has ended"
            assert (True in new) == bool(state.siblings), f"{request_id} has lost a sequence"
        if not self.has_work:
            forgotten = [name for name, one in self._requests.items() if one.paused_at is None]
            assert not forgotten, f"idle, with unfinished requests {forgotten}"
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
            forced_tokens=stats.forced_tokens,
            prefix_cache_hit_tokens=self.scheduler.num_prefix_hit_tokens,
            prefix_cache_query_tokens=self.scheduler.num_prefix_query_tokens,
            prefix_cache_misses=dict(self.scheduler.prefix_misses),
            preemptions=self.scheduler.num_preemptions,
            steps=stats.steps,
            attention_launches=attention_launches(),
            step_tokens=dict(stats.step_tokens),
            step_sequences=dict(stats.step_sequences),
            time_to_first_token=stats.time_to_first_token.snapshot(),
            time_per_output_token=stats.time_per_output_token.snapshot(),
            inter_token_latency=stats.inter_token_latency.snapshot(),
            e2e_request_latency=stats.e2e_request_latency.snapshot(),
            queue_time=stats.queue_time.snapshot(),
            step_duration=stats.step_duration.snapshot(),
        )

    def _wake(self) -> None:
        """Something will be to do. What was not is no part of a step's time."""
        if not self.has_work:
            self._stepped_at = None

    def _check_free(self, request_id: str) -> None:
        if not self.is_healthy:
            raise UnavailableError("the engine failed several steps in a row and must be restarted")
        if request_id in self._requests:
            raise InvalidRequestError(f"request id {request_id!r} is already in use")

    def _check_admission(self, request: GenerationRequest, prompt_token_ids: list[int]) -> None:
        self._check_free(request.request_id)
        if not self._generates:
            raise InvalidRequestError(
                "this model makes vectors alone: its checkpoint has no head to generate with",
                param="model",
            )
        check_num_tokens(request, len(prompt_token_ids), self.max_model_len)
        check_known_tokens(request, vocab_size=self.vocab_size)
        if request.was_admitted:
            check_resume(request, vocab_size=self.vocab_size)

    def _make_outputs(
        self,
        request: GenerationRequest,
        prompt_token_ids: list[int],
        matcher: GrammarMatcher | None,
    ) -> list[SequenceOutput]:
        arrival = next(self._arrivals)
        sequences = make_sequences(
            request,
            prompt_token_ids,
            max_model_len=self.max_model_len,
            arrival=arrival - RESUMED_BEFORE if request.was_admitted else arrival,
            prefix_caching=self._prefix_caching,
            restrictions=self._restrictions(request.sampling),
            guides=[self._guide(request, prompt_token_ids, matcher) for _ in range(request.n)],
        )
        return [
            SequenceOutput(sequence, self.tokenizer, self._token_text, self._eos_token_ids)
            for sequence in sequences
        ]

    def _restrictions(self, sampling: SamplingParams) -> TokenRestrictions | None:
        return restrictions_of(
            sampling,
            partial(self.tokenizer.encode, add_special_tokens=False),
            vocab_size=self.vocab_size,
            end_token_ids=end_token_ids(sampling, self._eos_token_ids),
        )

    def _guide(
        self,
        request: GenerationRequest,
        prompt_token_ids: list[int],
        matcher: GrammarMatcher | None,
    ) -> Guide | None:
        thoughts = request.sampling.thoughts
        if matcher is None and thoughts is None:
            return None
        meter, end_of_thought = None, []
        if thoughts is not None:
            has_begun = thoughts.has_begun(self.text_end(prompt_token_ids))
            meter = ThoughtMeter(thoughts, has_begun=has_begun)
            end_of_thought = self.tokenizer.encode(thoughts.end, add_special_tokens=False)
        return Guide(
            self._token_text.utf8,
            matcher.copy() if matcher else None,
            meter,
            end_of_thought,
            # A bias chooses between the ways to cut a text.
            forces_grammar=not request.sampling.logit_bias,
        )

    def _complete(self, step: Step, draws: list[TokenDraw]) -> Iterator[Output]:
        now = time.perf_counter()
        draw_of = dict(zip((item.sequence for item in step.sampling), draws, strict=True))
        for item in step.scheduled:
            draw = draw_of.get(item.sequence)
            if item.sequence.status is not Status.RUNNING:
                continue  # Another sequence of its request failed a moment ago.
            is_token = draw is not None and item.sequence.max_tokens > 0
            self.scheduler.complete(item, draw.token_id if draw and is_token else None)
            told = self._read_prompt(item.sequence)
            if told or not (draw or item.sequence.is_prompt_computed):
                progress = Prefill(
                    item.sequence.num_computed_tokens,
                    item.sequence.num_prompt_tokens,
                    logprobs=told,
                )
                yield Output(item.sequence.request_id, progress)
            if draw:
                yield self._emit(item, draw, now)
            elif item.sequence.readout is not None and item.sequence.is_prompt_computed:
                yield self._emit_pooled(item.sequence, now)

    def _read_prompt(self, sequence: Sequence) -> tuple[TokenLogprob, ...]:
        """What was read of its prompt and is not told yet."""
        if sequence.readings is None:
            return ()
        return tuple(
            replace(self._token_text.logprob(one.token_id, one.logprob, one.top), rank=one.rank)
            for one in sequence.readings.take()
        )

    def _emit(self, item: ScheduledSequence, draw: TokenDraw, now: float) -> Output:
        sequence = item.sequence
        state = self._requests[sequence.request_id]
        self._add_siblings(state, sequence)
        output = state.unfinished[sequence.index]
        assert isinstance(output, SequenceOutput), "a sequence without a readout draws tokens"
        try:
            delta = output.push(draw) if sequence.max_tokens else output.end_at_once()
        except BackendError as error:
            return self._fail_request(sequence.request_id, error)
        except Exception as error:
            request_id = sequence.request_id
            logger.exception(
                "request %s failed at its output", request_id, extra={"request_id": request_id}
            )
            return self._fail_request(
                sequence.request_id, StepError(f"the request's output failed: {error}")
            )
        self.scheduler.extend(sequence, delta.token_ids[1:])
        self._stats.record_tokens(state, sequence, len(delta.token_ids), now)
        if delta.finish_reason:
            self.scheduler.finish(sequence)
            del state.unfinished[sequence.index]
            self._stats.record_sequence_end(state, sequence)
            if not state.unfinished:
                del self._requests[sequence.request_id]
                self._stats.record_request_end(state, delta.finish_reason, now)
        return Output(sequence.request_id, delta)

    def _emit_pooled(self, sequence: Sequence, now: float) -> Output:
        state = self._requests[sequence.request_id]
        output = state.unfinished[sequence.index]
        assert isinstance(output, PooledOutput), "a sequence with a readout draws tokens"
        try:
            pooled = output.result()
        except StepError as error:
            return self._fail_request(sequence.request_id, error)
        self.scheduler.finish(sequence)
        del self._requests[sequence.request_id]
        self._stats.record_pooled(state, sequence, now)
        return Output(sequence.request_id, pooled)

    def _add_siblings(self, state: RequestState, first: Sequence) -> None:
        for sibling in state.siblings:
            sibling.num_cached_tokens = first.num_cached_tokens
            sibling.prefix_miss = first.prefix_miss
            sibling.counts_prefix_hit = False
            self.scheduler.add(sibling)
        state.siblings.clear()

    def _fail(self, step: Step, error: Exception) -> list[Output]:
        """End the step's requests; the others are recomputed, since the KV cache is lost."""
        self._consecutive_failures += 1
        failed = {item.sequence.request_id for item in step.scheduled}
        self.scheduler.preempt_all()
        self.reset_prefix_cache()
        try:
            self._runner.reset()
        except Exception:
            logger.exception("the KV cache can't be allocated again")
            self._consecutive_failures = MAX_CONSECUTIVE_FAILURES
        if not self.is_healthy:
            failed = set(self._requests)
        failure = StepError(f"the step that ran this request failed: {error}")
        return [self._fail_request(request_id, failure) for request_id in failed]

    def _fail_request(self, request_id: str, failure: BackendError) -> Output:
        for output in self._requests.pop(request_id).unfinished.values():
            self.scheduler.finish(output.sequence)
        self._stats.request_failure[failure.error_type] += 1
        return Output(request_id, failure)

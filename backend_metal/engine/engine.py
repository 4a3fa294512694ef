"""The engine: requests in, deltas out, one step at a time. It knows neither threads nor clients.

Steps are a pipeline of two: while one runs on the device, the next one is scheduled, built and
submitted, with the tokens that the first draws still on the device. What depends on the value of a
token comes one step later: if it was its sequence's last, what the next step computes behind it is
dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from math import inf
from typing import NamedTuple

from backend_metal.engine.grammar.compiler import GrammarCompiler
from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.matcher_pool import MatcherPool
from backend_metal.engine.memory.resident import ResidentMemory
from backend_metal.engine.pipeline import Flight, Pipeline, StepFailedError
from backend_metal.engine.requests.intake import Intake
from backend_metal.engine.requests.pooled import PooledOutput, id_of_input
from backend_metal.engine.requests.request_state import RequestState
from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.prompt_readings import PromptReadings
from backend_metal.engine.schedule.scheduler import Scheduler
from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.schedule.state_slots import StateSlots
from backend_metal.engine.schedule.step import Runner, Step, TokenDraw
from backend_metal.engine.schedule.step_pace import StepPace
from backend_metal.engine.snapshot import snapshot
from backend_metal.engine.stats import StatsRecorder
from backend_metal.engine.step_clock import StepClock
from backend_metal.engine.text.output import SequenceOutput
from backend_metal.engine.text.prompt import PromptEncoder
from backend_metal.engine.text.token_text import TokenText
from backend_metal.engine.text.tokenizer import Tokenizer
from backend_metal.models.load.pooling_config import PoolingConfig
from deployments.backend import (
    AttentionStatus,
    BackendError,
    BackendStats,
    DeadEndError,
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

MAX_CONSECUTIVE_FAILURES = 3
"""Failed steps in a row after which the engine calls itself unhealthy."""


class Output(NamedTuple):
    request_id: str
    item: Delta | Pooled | Prefill | BackendError
    """An error ends its request."""


class Engine:
    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        groups: tuple[BlockGroup, ...],
        tokenizer: Tokenizer,
        *,
        max_num_batched_tokens: int,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Set[int],
        default_sampling: SamplingParams,
        attention: AttentionStatus | None = None,
        revision: str = "",
        pooling: PoolingConfig | None = None,
        state_size: int = 0,
        generates: bool = True,
        clock: StepClock | None = None,
        matchers: MatcherPool | None = None,
        states: StateSlots | None = None,
        resident: ResidentMemory | None = None,
    ) -> None:
        """``clock``, ``matchers``: the runner's, if it has any. ``states``: for a model with
        recurrent layers. ``resident``: what steps use."""
        self.resident = resident
        self.attention = attention
        self.default_sampling = default_sampling
        self.revision = revision
        self.pooling = pooling or PoolingConfig()
        self.state_size = state_size
        self.scheduler = Scheduler(
            groups,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            pace=StepPace(
                config.max_slowdown,
                least_prefill=config.block_size,
                decodes_are_recorded=runner.records_decodes,
            ),
            states=states,
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
        self._matchers = matchers or MatcherPool()
        self._token_text = TokenText(tokenizer)
        self._intake = Intake(
            tokenizer,
            self._token_text,
            eos_token_ids,
            vocab_size=vocab_size,
            max_model_len=self.max_model_len,
            prefix_caching=config.prefix_caching,
            pooling=self.pooling,
            generates=generates,
        )
        self._requests: dict[str, RequestState] = {}
        self._stats = StatsRecorder()
        self._consecutive_failures = 0
        self._pipeline = Pipeline(
            self.scheduler, runner, clock or StepClock(), self._record_first_runs
        )
        self._landed_at = -inf
        """When the latest step was done."""

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or self._pipeline.step is not None

    @property
    def population(self) -> tuple[int, int]:
        """How many requests have not ended, and how many sequences run."""
        return len(self._requests), len(self.scheduler.running)

    @property
    def keeps_states(self) -> bool:
        """Whether the model has recurrent layers."""
        return self.scheduler.states is not None

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
        *,
        num_history_tokens: int = 0,
    ) -> list[Output]:
        """Queue a request; returns that it was admitted, and a delta for each sequence that it
        resumes, which may be all there is.

        ``arrival_time``, by ``time.perf_counter``, is when its latencies begin; now by default.
        ``matcher`` is its grammar's, as ``grammars`` compiles it. ``num_history_tokens``: as
        ``prompts.encode_with_history`` counts them.
        Raises a ``BackendError`` that says why it can't be taken.
        """
        arrival_time = time.perf_counter() if arrival_time is None else arrival_time
        try:
            self._check_free(request.request_id)
            outputs = self._intake.generation(
                request, prompt_token_ids, matcher, num_history_tokens=num_history_tokens
            )
            replayed = [delta for output in outputs if (delta := output.replay())]
            finished = {delta.index for delta in replayed if delta.finish_reason}
            unfinished = {o.sequence.index: o for o in outputs if o.sequence.index not in finished}
            for output in unfinished.values():
                self.scheduler.extend(output.sequence, output.begin())
        except BackendError as error:
            self._stats.request_failure[error.error_type] += 1
            raise
        if unfinished:
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
            matcher.left_out if matcher else (),
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
            output = self._intake.pooled(request, index, token_ids)
        except BackendError as error:
            self._stats.request_failure[error.error_type] += 1
            raise
        self._requests[input_id] = RequestState(request, arrival_time, {index: output}, [])
        self.scheduler.add(output.sequence)
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
            state.resumed(time.perf_counter())
            for sequence in state.added:
                self.scheduler.add(sequence)

    def abort_all(self) -> list[Output]:
        return [output for request_id in list(self._requests) for output in self.abort(request_id)]

    def step(self, deliver: Callable[[list[Output]], None] | None = None) -> list[Output]:
        """See one step through, and have the next one under way. A failure of the model ends the
        requests of the step that failed, not the engine.

        ``deliver`` gets what would be held up by submitting the next step, and is not returned."""
        outputs: list[Output] = []
        clock = self._pipeline.clock
        clock.start()
        try:
            self._pipeline.fill()
            flight, draws = self._pipeline.land()
            outputs += self._complete(flight, draws)
            if deliver is not None and self._pipeline.holds_up:
                deliver(outputs)
                outputs = []
            clock.lap("complete")
            self._pipeline.draw()
        except StepFailedError as failure:
            logger.exception("%s", failure)
            outputs += self._fail(failure)
        self._stats.record_host(clock.seconds)
        return outputs

    def reset_prefix_cache(self) -> None:
        self.scheduler.clear_cache()

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when blocks or requests were lost."""
        self.scheduler.check_integrity()
        step = self._pipeline.step
        under_way = {item.sequence for item in step.drawing} if step else set()
        for request_id, state in self._requests.items():
            pending = {sequence for sequence in state.added if sequence.is_pending}
            assert pending <= under_way, f"{request_id} waits for a token that nobody draws"
            paused = {sequence.status is Status.PAUSED for sequence in state.added}
            assert paused == {state.paused_at is not None}, f"{request_id} is half paused"
            new = {output.sequence.status is Status.NEW for output in state.unfinished.values()}
            assert new != {True}, f"{request_id} waits for a sequence that has ended"
            assert (True in new) == bool(state.siblings), f"{request_id} has lost a sequence"
        if not self.has_work:
            forgotten = [name for name, one in self._requests.items() if one.paused_at is None]
            assert not forgotten, f"idle, with unfinished requests {forgotten}"
            assert not self.scheduler.holds_blocks, "idle, with blocks held"
            if (states := self.scheduler.states) is not None:
                assert states.num_free == states.num_slots, "idle, with slots of state held"

    def stats(self) -> BackendStats:
        return snapshot(
            self._stats,
            self.scheduler,
            num_requests=len(self._requests),
            step=self._pipeline.step,
        )

    def _check_free(self, request_id: str) -> None:
        if not self.is_healthy:
            raise UnavailableError("the engine failed several steps in a row and must be restarted")
        if request_id in self._requests:
            raise InvalidRequestError(f"request id {request_id!r} is already in use")

    def _record_first_runs(self, step: Step, now: float) -> None:
        for sequence in step.started:
            self._stats.record_first_run(self._requests[sequence.request_id], now)

    def _complete(self, flight: Flight, draws: list[TokenDraw]) -> Iterator[Output]:
        """What comes of a step that is done, but for what it computed behind a sequence's end."""
        now = time.perf_counter()
        seconds = now - max(flight.began, self._landed_at)
        self._landed_at = now
        self._consecutive_failures = 0
        self._stats.record_step(flight.step, seconds)
        self.scheduler.pace.observe(flight.step, seconds)
        self._move_matchers(flight, draws)
        drawn = iter(draws)
        for item in flight.step.scheduled:
            sequence = item.sequence
            draw = next(drawn) if item.draws else None
            if sequence.status is Status.FINISHED:
                continue
            if sequence.is_pending and draw:
                sequence.learn(draw.token_id)
            told = self._read_prompt(sequence.readings) if sequence.readings else ()
            if told or not (draw or item.has_prompt):
                length = sequence.num_prompt_tokens
                progress = Prefill(min(item.stop, length), length, logprobs=told)
                yield Output(sequence.request_id, progress)
            if draw:
                yield self._emit(sequence, draw, now)
            elif item.ends_readout:
                yield self._emit_pooled(sequence, now)

    def _move_matchers(self, flight: Flight, draws: list[TokenDraw]) -> None:
        """All at once, rather than each when its sequence has its turn."""
        moved: list[tuple[GrammarMatcher, int]] = []
        for item, draw in zip(flight.step.drawing, draws, strict=True):
            sequence = item.sequence
            if sequence.guide is None or sequence.status is Status.FINISHED:
                continue
            output = self._requests[sequence.request_id].unfinished[sequence.index]
            assert isinstance(output, SequenceOutput), "a sequence without a readout draws tokens"
            matcher = sequence.guide.moved_by(draw.token_id)
            if matcher is not None and not output.ends_at(draw.token_id):
                moved.append((matcher, draw.token_id))
        self._matchers.take(moved)

    def _read_prompt(self, readings: PromptReadings) -> tuple[TokenLogprob, ...]:
        """What was read of a prompt and is not told yet."""
        return tuple(
            replace(self._token_text.logprob(one.token_id, one.logprob, one.top), rank=one.rank)
            for one in readings.take()
        )

    def _emit(self, sequence: Sequence, draw: TokenDraw, now: float) -> Output:
        state = self._requests[sequence.request_id]
        if state.siblings:
            self._add_siblings(state, sequence)
        output = state.unfinished[sequence.index]
        assert isinstance(output, SequenceOutput), "a sequence without a readout draws tokens"
        try:
            delta = output.push(draw)
        except BackendError as error:
            self._stats.grammar_dead_ends += isinstance(error, DeadEndError)
            return self._fail_request(sequence.request_id, error)
        except Exception as error:
            request_id = sequence.request_id
            logger.exception(
                "request %s failed at its output", request_id, extra={"request_id": request_id}
            )
            return self._fail_request(
                sequence.request_id, StepError(f"the request's output failed: {error}")
            )
        if num_new := output.num_tokens - sequence.num_output_tokens:
            self.scheduler.extend(sequence, delta.token_ids[-num_new:])
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
            if state.paused_at is None:
                self.scheduler.add(sibling)
            else:
                self.scheduler.pause(sibling)
        state.siblings.clear()

    def _fail(self, failure: StepFailedError) -> list[Output]:
        """End the step's requests; the others are recomputed, since the KV cache is lost."""
        self._consecutive_failures += 1
        failed = {item.sequence.request_id for item in failure.step.scheduled}
        self.scheduler.preempt_all()
        self.reset_prefix_cache()
        try:
            self._pipeline.runner.reset()
        except Exception:
            logger.exception("the KV cache can't be allocated again")
            self._consecutive_failures = MAX_CONSECUTIVE_FAILURES
        if not self.is_healthy:
            failed = set(self._requests)
        error = StepError(f"the step that ran this request failed: {failure.__cause__}")
        return [
            self._fail_request(request_id, error) for request_id in self._requests.keys() & failed
        ]

    def _fail_request(self, request_id: str, failure: BackendError) -> Output:
        for output in self._requests.pop(request_id).unfinished.values():
            self.scheduler.finish(output.sequence)
        self._stats.request_failure[failure.error_type] += 1
        return Output(request_id, failure)

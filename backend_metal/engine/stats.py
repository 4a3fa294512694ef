"""Counters and histograms of one engine, written by its thread and published as snapshots."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from backend_metal.engine.requests.request_state import RequestState
from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.schedule.step import Step
from backend_metal.engine.step_clock import PARTS, Part
from deployments.backend import Histogram

REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
HOST_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)

UNMEASURED_REQUEST_S = 1.0
NEWEST_WEIGHT = 0.1
"""Of a request in the mean of the latest ones."""


class HistogramRecorder:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._sum)


def _request_seconds() -> HistogramRecorder:
    return HistogramRecorder(REQUEST_SECONDS)


def _token_seconds() -> HistogramRecorder:
    return HistogramRecorder(TOKEN_SECONDS)


def _host_seconds() -> dict[Part, HistogramRecorder]:
    return {part: HistogramRecorder(HOST_SECONDS) for part in PARTS}


@dataclass
class StatsRecorder:
    request_success: Counter[str] = field(default_factory=Counter)
    request_failure: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    generation_tokens: int = 0
    grammar_dead_ends: int = 0
    forced_tokens: int = 0
    steps: int = 0
    step_tokens: Counter[str] = field(default_factory=Counter)
    step_sequences: Counter[str] = field(default_factory=Counter)
    time_to_first_token: HistogramRecorder = field(default_factory=_request_seconds)
    time_per_output_token: HistogramRecorder = field(default_factory=_token_seconds)
    inter_token_latency: HistogramRecorder = field(default_factory=_token_seconds)
    e2e_request_latency: HistogramRecorder = field(default_factory=_request_seconds)
    queue_time: HistogramRecorder = field(default_factory=_request_seconds)
    seconds_per_request: float = UNMEASURED_REQUEST_S
    """From the first step to the last token, a mean of the latest requests."""
    step_duration: HistogramRecorder = field(default_factory=_token_seconds)
    step_host: dict[Part, HistogramRecorder] = field(default_factory=_host_seconds)

    def record_step(self, step: Step, seconds: float) -> None:
        """A step that is done: its sequences and their tokens, by phase, without those that had
        ended before it."""
        self.steps += 1
        self.step_duration.observe(seconds)
        going_on = [item for item in step.scheduled if item.sequence.status is not Status.FINISHED]
        prefills = [item.num_tokens for item in going_on if not item.decodes]
        num_decodes = len(going_on) - len(prefills)
        self.step_sequences["decode"] += num_decodes
        self.step_tokens["decode"] += num_decodes
        self.step_sequences["prefill"] += len(prefills)
        self.step_tokens["prefill"] += sum(prefills)

    def record_host(self, seconds: Mapping[Part, float]) -> None:
        """What the host did to have a step done and the next one under way."""
        for part, taken in seconds.items():
            self.step_host[part].observe(taken)

    def record_first_run(self, state: RequestState, now: float) -> None:
        if state.first_run_time is None:
            state.first_run_time = now
            self.queue_time.observe(now - state.arrival_time)

    def record_tokens(
        self, state: RequestState, sequence: Sequence, num_tokens: int, now: float
    ) -> None:
        """What a draw brought: a token, and those that were forced around it; or none, for an
        answer without a token."""
        self.generation_tokens += num_tokens
        self.forced_tokens += max(0, num_tokens - 1)
        if not state.token_times:
            self.prompt_tokens += sequence.num_prompt_tokens
            self.time_to_first_token.observe(now - state.arrival_time)
        times = state.token_times.get(sequence.index)
        if times is not None:
            self.inter_token_latency.observe(now - times[1])
        state.token_times[sequence.index] = (times[0] if times else now, now)

    def record_pooled(self, state: RequestState, sequence: Sequence, now: float) -> None:
        """An input of a pooling request is computed, and ends with that."""
        self.prompt_tokens += sequence.num_prompt_tokens
        self.record_request_end(state, "stop", now)

    def record_sequence_end(self, state: RequestState, sequence: Sequence) -> None:
        first, latest = state.token_times[sequence.index]
        num_tokens = sequence.num_output_tokens - sequence.num_resumed_tokens
        if num_tokens > 1:
            self.time_per_output_token.observe((latest - first) / (num_tokens - 1))

    def record_request_end(self, state: RequestState, finish_reason: str, now: float) -> None:
        self.request_success[finish_reason] += 1
        self.e2e_request_latency.observe(now - state.arrival_time)
        assert state.first_run_time is not None, "a request ended that never ran"
        latest = now - state.first_run_time
        self.seconds_per_request += NEWEST_WEIGHT * (latest - self.seconds_per_request)

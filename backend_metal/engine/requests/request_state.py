"""A request while the engine has it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from backend_metal.engine.grammar.guide import Guide
from backend_metal.engine.grammar.restrictions import TokenRestrictions
from backend_metal.engine.requests.pooled import PooledOutput
from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.text.output import SequenceOutput
from deployments.backend import GenerationRequest, PoolingRequest

SEED_STRIDE = 0x9E3779B97F4A7C15
"""Odd, so that the seeds of a request's sequences are distinct modulo 2**64."""


@dataclass
class RequestState:
    request: GenerationRequest | PoolingRequest
    arrival_time: float
    unfinished: dict[int, SequenceOutput] | dict[int, PooledOutput]
    """By sequence index."""
    siblings: list[Sequence]
    """Sequences that wait until the first of the request has computed the prompt, and then find it
    in the prefix cache."""
    first_run_time: float | None = None
    paused_at: float | None = None
    """None: it isn't."""
    token_times: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By sequence index: when its first and its latest token came."""

    @property
    def added(self) -> list[Sequence]:
        """The unfinished sequences that the scheduler has been given."""
        sequences = (output.sequence for output in self.unfinished.values())
        return [sequence for sequence in sequences if sequence.status is not Status.NEW]

    def resumed(self, now: float) -> None:
        """Latencies are the engine's own: a client's pause is in none but the whole request's."""
        assert self.paused_at is not None
        paused_s, self.paused_at = now - self.paused_at, None
        if self.first_run_time is not None:
            self.first_run_time += paused_s
        for index, (first, latest) in self.token_times.items():
            self.token_times[index] = first + paused_s, latest + paused_s


def make_sequences(
    request: GenerationRequest,
    prompt_token_ids: list[int],
    *,
    max_model_len: int,
    arrival: int,
    prefix_caching: bool,
    guides: Iterable[Guide | None],
    num_history_tokens: int = 0,
    restrictions: TokenRestrictions | None = None,
) -> list[Sequence]:
    """The request's ``n`` sequences, with the output that they resume, each with its guide."""
    # Without a prefix cache for all, a request's own sequences share its prompt, and find what they
    # had before they were preempted or paused.
    cache_salt = request.cache_salt if prefix_caching else f"request {arrival}"
    room = max_model_len - len(prompt_token_ids)
    max_tokens = request.sampling.max_tokens
    seed = request.sampling.seed
    if seed is None:
        seed = random.getrandbits(63)
    return [
        Sequence(
            request.request_id,
            index,
            prompt_token_ids,
            request.sampling,
            max_tokens=room if max_tokens is None else min(max_tokens, room),
            seed=_seed_of_sequence(seed, index),
            arrival=arrival,
            priority=request.priority,
            tenant=request.tenant,
            weight=request.weight,
            group=request.group,
            cache_salt=cache_salt,
            output_token_ids=request.resume[index] if request.resume else (),
            num_history_tokens=num_history_tokens,
            guide=guide,
            restrictions=restrictions,
        )
        for index, guide in enumerate(guides)
    ]


def _seed_of_sequence(seed: int, index: int) -> int:
    """Distinct for each of a request's sequences; signed 64-bit, as the request's own."""
    return (seed + index * SEED_STRIDE + 2**63) % 2**64 - 2**63

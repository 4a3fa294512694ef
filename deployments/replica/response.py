"""One generation as an HTTP response: streamed, or folded into one body."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.types import Send

from deployments.backend import BackendError, Delta, Prefill
from deployments.http import sse
from deployments.http.errors import ApiError
from deployments.protocol import to_generation_requests
from deployments.replica.asked import Answer
from deployments.replica.attempts import Tally
from deployments.replica.backend_response import BackendResponse
from deployments.replica.fold import Usage
from deployments.replica.generation import Generation
from deployments.replica.kept_streams import Tokens
from deployments.replica.parts import ReplicaParts
from deployments.replica.prompts import Prompts
from deployments.replica.render import renderer_for
from deployments.wire.checkpoint import CheckpointWriter


class GenerationResponse(BackendResponse):
    name = "generation"
    span_name = "generate"

    def __init__(self, parts: ReplicaParts, answer: Answer, request_id: str) -> None:
        """Raises ``InvalidRequestError``."""
        self._request = request = answer.request
        tally = Tally(request.n, answer.envelope.tenant)
        super().__init__(parts, answer.envelope.attempt, tally)
        self._answer = answer
        self._request_id = request_id
        requests = answer.continued(
            to_generation_requests(request, request_id, parts.model.default_sampling, parts.dialect)
        )
        requests = [
            replace(one, on_made=partial(tally.made, prompt)) for prompt, one in enumerate(requests)
        ]
        prompts = Prompts(request)
        self._generation = Generation(parts.backend, requests, parts.is_leaving, prompts.hear)
        self._renderer = renderer_for(
            answer.parsed,
            answer.envelope,
            parts.dialect,
            lambda: self._generation.prompt_end,
            prompts,
            requests[0].sampling,
        )
        self._usage = Usage(request.n, answer.cached_tokens)
        self._checkpoints = CheckpointWriter(request.n, answer.progress)
        self._tokens: Tokens | None = None
        """Of a resumable stream."""
        self._first_token_s = 0.0

    def _refusal(self, error: BackendError) -> ApiError:
        return self._answer.refusal(error)

    def _span_attributes(self) -> Mapping[str, Any]:
        tokens = self._usage.as_json()
        return {
            "gen_ai.request.model": self._request.model,
            "gen_ai.usage.input_tokens": tokens["prompt_tokens"],
            "gen_ai.usage.output_tokens": tokens["completion_tokens"],
        }

    def _log_fields(self) -> Mapping[str, Any]:
        tokens = self._usage.as_json()
        dropped = self._answer.dropped(self._generation.left_out)
        return {
            "model": self._request.model,
            "prompt_tokens": tokens["prompt_tokens"],
            "cached_tokens": self._usage.cached_tokens,
            "prefix_miss": ",".join(self._usage.prefix_misses) or "-",
            "completion_tokens": tokens["completion_tokens"],
            "first_token_s": round(self._first_token_s, 3),
            "engine_request_id": self._request_id,
            **({"dropped": dropped} if dropped else {}),
        }

    async def _send(self, send: Send) -> None:
        made = self._events if self._request.stream else self._body
        async with self._recorded(), self._generation as generation:
            await self._sending.run(
                send,
                made(generation),
                start=lambda: self._answer.start(generation.left_out),
                failure=self._answer.failure,
            )

    @asynccontextmanager
    async def _recorded(self) -> AsyncIterator[None]:
        if not self._answer.is_resumable:
            yield
            return
        with self._parts.kept.recording(self._answer.envelope.answer_id) as self._tokens:
            yield

    async def _body(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """A gateway hears of tokens as they come, and gets the answer as an event."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._parts.keep_alive_interval_s
        while not generation.finished:
            deltas = await generation.next(deadline - now())
            for index, delta in deltas:
                self._count(index, delta)
                self._renderer.add(index, delta)
                if not delta.replayed:
                    self._checkpoints.add(index, delta)
            if self._answer.for_gateway and (deltas or now() >= deadline):
                yield self._checked(sse.KEEP_ALIVE)
                deadline = now() + self._parts.keep_alive_interval_s
        whole = self._renderer.whole(self._usage)
        yield self._checked(sse.event(whole)) if self._answer.for_gateway else whole

    async def _events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """What to send: nothing, once the backend has let the request in; then events, with a
        keep-alive whenever there was nothing for an interval."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._parts.keep_alive_interval_s
        has_begun = False
        while not generation.finished:
            made: list[bytes] = []
            for index, delta in await generation.next(deadline - now()):
                self._count(index, delta)
                if delta.replayed or self._is_seen(index):
                    self._renderer.replay(index, delta)
                else:
                    made.append(self._renderer.chunks(index, delta))
                if not (delta.replayed and self._answer.is_progress_known):
                    self._checkpoints.add(index, delta)
            events = b"".join(made)
            if events or now() >= deadline:
                yield self._checked(events or _keep_alive(generation.prefill))
                deadline = now() + self._parts.keep_alive_interval_s
            elif generation.is_admitted and not has_begun:
                yield b""
            else:
                continue
            has_begun = True
        # In one piece, so that a stream can't break in between.
        yield self._checked(self._renderer.end(self._usage))

    def _count(self, index: int, delta: Delta) -> None:
        if not self._usage.completion_tokens:
            self._first_token_s = time.perf_counter() - self._arrived
        self._usage.add(index, delta)
        if self._tokens is not None:
            self._tokens[index].extend(delta.token_ids)

    def _is_seen(self, index: int) -> bool:
        """Whether the client has the events of this choice's tokens so far."""
        if self._tokens is None:
            return False
        return len(self._tokens[index]) <= self._answer.tokens_seen.get(index, 0)

    def _checked(self, events: bytes) -> bytes:
        return events + self._checkpoints.take() if self._answer.for_gateway else events


def _keep_alive(prefill: Prefill | None) -> bytes:
    if prefill is None:
        return sse.KEEP_ALIVE
    return sse.prefill(prefill.num_computed_tokens, prefill.num_prompt_tokens)

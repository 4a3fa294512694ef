"""One request for vectors or for a ranking as an HTTP response."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import nullcontext

from starlette.types import Receive, Scope, Send

from deployments.backend import (
    Backend,
    BackendError,
    EngineStoppedError,
    InvalidRequestError,
    Pooled,
    PoolingInfo,
    PoolingRequest,
    Prefill,
    StepError,
    UnavailableError,
)
from deployments.http import sse
from deployments.http.disconnect import run_until_disconnect
from deployments.http.errors import api_error_from, internal_error
from deployments.http.request_id import SCOPE_KEY
from deployments.observe.logs import log_request
from deployments.observe.tracing import Tracer, request_span
from deployments.protocol.pooling import EmbeddingRequest, RerankRequest
from deployments.replica.asked import begin_response, cache_salt, end_with
from deployments.replica.attempts import Attempts, Tally
from deployments.replica.pooled_answer import answer_for
from deployments.replica.sending import Sending
from deployments.wire.checkpoint import CheckpointWriter, Progress
from deployments.wire.envelope import Envelope

logger = logging.getLogger(__name__)


def to_pooling_request(
    request: EmbeddingRequest | RerankRequest,
    request_id: str,
    info: PoolingInfo | None,
    envelope: Envelope,
    tally: Tally,
) -> PoolingRequest:
    """Raises ``InvalidRequestError`` for what the model does not do."""
    if info is None:
        raise InvalidRequestError("this model makes no vectors", param="model")
    if isinstance(request, RerankRequest) and info.ranks_by is None:
        raise InvalidRequestError(
            "this model does not rank: its checkpoint has no files of sentence-transformers that "
            "say how",
            param="model",
        )
    by_score = isinstance(request, RerankRequest) and info.ranks_by == "score"
    inputs = request.inputs(info)
    bounds = envelope.max_prompt_tokens[-len(inputs) :]
    if bounds:
        inputs = tuple(one.bounded(bound) for one, bound in zip(inputs, bounds, strict=True))
    return PoolingRequest(
        request_id,
        inputs,
        task="score" if by_score else "embed",
        on_made=tally.made,
        priority=request.priority + envelope.priority,
        tenant=envelope.tenant,
        weight=envelope.weight,
        cache_salt=cache_salt(envelope.cache_tenant, ""),
    )


class PoolingResponse:
    """An ASGI response whose vectors are computed while it waits; the client's leaving cancels
    them. A gateway hears of them as they come, and gets the answer as an event."""

    def __init__(
        self,
        backend: Backend,
        request: EmbeddingRequest | RerankRequest,
        info: PoolingInfo | None,
        envelope: Envelope,
        attempts: Attempts,
        *,
        for_gateway: bool,
        request_id: str,
        keep_alive_interval_s: float,
        on_failure: Callable[[str], None],
        is_leaving: Callable[[], bool],
        tracer: Tracer,
    ) -> None:
        """Raises ``InvalidRequestError``."""
        self._arrived = time.perf_counter()
        self._backend = backend
        self._request = request
        self._attempt = envelope.attempt
        self._attempts = attempts
        self._tally = Tally(0)
        self._pooling = to_pooling_request(request, request_id, info, envelope, self._tally)
        assert info is not None
        self._answer = answer_for(request, info, envelope)
        self._checkpoints = CheckpointWriter(1, Progress())
        self._num_tokens = 0
        self._items: asyncio.Queue[Pooled | Prefill | asyncio.Task[None]] = asyncio.Queue()
        self._for_gateway = for_gateway
        self._keep_alive_interval_s = keep_alive_interval_s
        self._on_failure = on_failure
        self._is_leaving = is_leaving
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        attempts, attempt = self._attempts, self._attempt
        with attempts.running(attempt, self._tally) if attempt else nullcontext():
            await self._respond(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome, sending = "failed", Sending()
        sent = sending.run(
            send,
            self._parts(),
            start=lambda: begin_response(for_gateway=self._for_gateway),
            failure=self._failure,
        )
        with request_span(self._tracer, "pool", scope, scope[SCOPE_KEY]) as span:
            try:
                completed = await run_until_disconnect(
                    receive, sent, is_sent=lambda: sending.is_sent
                )
                if not sending.has_failed:
                    outcome = "finished" if completed else "client gone"
            except BackendError:
                # The engine has counted it.
                raise
            except Exception:
                self._on_failure(internal_error().type)
                raise
            finally:
                span.set_attributes(
                    {
                        "pomona.outcome": outcome,
                        "gen_ai.request.model": self._request.model,
                        "gen_ai.usage.input_tokens": self._num_tokens,
                    }
                )
                log_request(
                    logger,
                    f"pooling {outcome}",
                    model=self._request.model,
                    inputs=len(self._pooling.inputs),
                    prompt_tokens=self._num_tokens,
                    seconds=round(time.perf_counter() - self._arrived, 3),
                    engine_request_id=self._pooling.request_id,
                    request_id=scope[SCOPE_KEY],
                )

    def _failure(self, error: Exception) -> bytes:
        told = api_error_from(error) if isinstance(error, BackendError) else internal_error()
        return end_with(told, for_gateway=self._for_gateway)

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        now = asyncio.get_running_loop().time
        deadline = now() + self._keep_alive_interval_s
        num_left = len(self._pooling.inputs)
        gathering = asyncio.create_task(self._gather())
        gathering.add_done_callback(self._items.put_nowait)
        try:
            while num_left:
                item = await self._next(deadline - now())
                if isinstance(item, asyncio.Task):
                    item.result()
                    raise StepError("The engine ended the request before it had finished.")
                if isinstance(item, Pooled):
                    num_left -= 1
                    self._answer.add(item)
                    self._num_tokens += item.num_prompt_tokens
                    self._checkpoints.add_prompt(
                        item.index, item.num_cached_tokens, item.num_prompt_tokens
                    )
                if self._for_gateway and (isinstance(item, Pooled) or now() >= deadline):
                    yield sse.KEEP_ALIVE + self._checkpoints.take()
                    deadline = now() + self._keep_alive_interval_s
        finally:
            gathering.cancel()
            await asyncio.gather(gathering, return_exceptions=True)
        whole = self._answer.whole(self._num_tokens)
        yield sse.event(whole) + self._checkpoints.take() if self._for_gateway else whole

    async def _next(self, wait_s: float) -> Pooled | Prefill | asyncio.Task[None] | None:
        """None: nothing has come, and the backend is well."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._items.get()
        except TimeoutError:
            pass
        try:
            await self._backend.check_health()
        except UnavailableError as error:
            raise self._gone(error, EngineStoppedError) from error
        return None

    async def _gather(self) -> None:
        has_begun = False
        items = self._backend.pool(self._pooling)
        try:
            async for item in items:
                has_begun = True
                self._items.put_nowait(item)
        except UnavailableError as error:
            kind = EngineStoppedError if has_begun else type(error)
            raise self._gone(error, kind) from error
        finally:
            # The protocol asks for an iterator only; one that can be closed is closed now.
            if close := getattr(items, "aclose", None):
                await close()

    def _gone(self, error: UnavailableError, kind: type[UnavailableError]) -> UnavailableError:
        """What is nobody's fault is told apart from what this request may have done: ``kind``."""
        return (UnavailableError if self._is_leaving() else kind)(str(error))

"""One request for vectors or for a ranking as an HTTP response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.types import Send

from deployments.backend import (
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
from deployments.http.errors import api_error_from, internal_error
from deployments.protocol.pooling import EmbeddingRequest, RerankRequest
from deployments.replica.asked import begin_response, cache_salt, end_with
from deployments.replica.attempts import Tally
from deployments.replica.backend_response import BackendResponse
from deployments.replica.parts import ReplicaParts
from deployments.replica.pooled_answer import answer_for
from deployments.wire.checkpoint import CheckpointWriter, Progress
from deployments.wire.envelope import Envelope


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


class PoolingResponse(BackendResponse):
    """A gateway hears of the vectors as they come, and gets the answer as an event."""

    name = "pooling"
    span_name = "pool"

    def __init__(
        self,
        parts: ReplicaParts,
        request: EmbeddingRequest | RerankRequest,
        envelope: Envelope,
        request_id: str,
        *,
        for_gateway: bool,
    ) -> None:
        """Raises ``InvalidRequestError``."""
        tally = Tally(0, envelope.tenant)
        super().__init__(parts, envelope.attempt, tally)
        self._request = request
        info = parts.model.pooling
        self._pooling = to_pooling_request(request, request_id, info, envelope, tally)
        assert info is not None
        self._answer = answer_for(request, info, envelope)
        self._checkpoints = CheckpointWriter(1, Progress())
        self._num_tokens = 0
        self._items: asyncio.Queue[Pooled | Prefill | asyncio.Task[None]] = asyncio.Queue()
        self._for_gateway = for_gateway

    def _span_attributes(self) -> Mapping[str, Any]:
        return {
            "gen_ai.request.model": self._request.model,
            "gen_ai.usage.input_tokens": self._num_tokens,
        }

    def _log_fields(self) -> Mapping[str, Any]:
        return {
            "model": self._request.model,
            "inputs": len(self._pooling.inputs),
            "prompt_tokens": self._num_tokens,
            "engine_request_id": self._pooling.request_id,
        }

    async def _send(self, send: Send) -> None:
        await self._sending.run(
            send,
            self._made(),
            start=lambda: begin_response(for_gateway=self._for_gateway),
            failure=self._failure,
        )

    def _failure(self, error: Exception) -> bytes:
        told = api_error_from(error) if isinstance(error, BackendError) else internal_error()
        return end_with(told, for_gateway=self._for_gateway)

    async def _made(self) -> AsyncGenerator[bytes, None]:
        now = asyncio.get_running_loop().time
        deadline = now() + self._parts.keep_alive_interval_s
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
                    deadline = now() + self._parts.keep_alive_interval_s
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
            await self._parts.backend.check_health()
        except UnavailableError as error:
            raise self._gone(error, EngineStoppedError) from error
        return None

    async def _gather(self) -> None:
        has_begun = False
        items = self._parts.backend.pool(self._pooling)
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
        return (UnavailableError if self._parts.is_leaving() else kind)(str(error))

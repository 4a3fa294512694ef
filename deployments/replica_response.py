"""One generation as an HTTP response: streamed, or folded into one body."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments import sse
from deployments.backend import Backend, BackendError
from deployments.disconnect import run_until_disconnect
from deployments.errors import api_error_from, internal_error
from deployments.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    to_generation_requests,
)
from deployments.replica_fold import Choice, Usage
from deployments.replica_generation import Generation
from deployments.replica_render import renderer_for

logger = logging.getLogger(__name__)


class GenerationResponse:
    """An ASGI response that generates while it is sent; the client's leaving cancels it."""

    def __init__(
        self,
        backend: Backend,
        request: ChatCompletionRequest | CompletionRequest,
        *,
        request_id: str,
        keep_alive_interval_s: float,
        on_failure: Callable[[str], None],
    ) -> None:
        self._on_failure = on_failure
        self._request = request
        self._request_id = request_id
        self._keep_alive_interval_s = keep_alive_interval_s
        self._generation = Generation(backend, to_generation_requests(request, request_id))
        self._renderer = renderer_for(request)
        self._usage = Usage(request.n)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._stream(send) if self._request.stream else self._whole(scope, receive, send)
        try:
            if not await run_until_disconnect(receive, work):
                logger.debug("The client of request %s went away", self._request_id)
        except BackendError:
            # The engine has counted it.
            raise
        except Exception:
            self._on_failure(internal_error().type)
            raise

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        choices: dict[int, Choice] = {}
        async with self._generation as generation:
            while not generation.finished:
                for index, delta in await generation.next():
                    self._usage.add(index, delta)
                    choices.setdefault(index, Choice()).add(delta)
        in_order = [choices[index] for index in sorted(choices)]
        body = self._renderer.whole(in_order, self._usage)
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        async with self._generation as generation, aclosing(self._events(generation)) as events:
            # What fails before the first event, as admission does, still has a status of its own.
            body = await anext(events)
            await send(_stream_start())
            try:
                await send(_part(body))
                async for body in events:
                    await send(_part(body))
                await send(_part(b"", last=True))
            except BackendError as error:
                await send(_part(sse.error_event(api_error_from(error)), last=True))
            except Exception:
                await send(_part(sse.error_event(internal_error()), last=True))
                raise

    async def _events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """What to send, with a keep-alive whenever there was nothing for an interval."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._keep_alive_interval_s
        while not generation.finished:
            events = b""
            for index, delta in await generation.next(deadline - now()):
                self._usage.add(index, delta)
                events += self._renderer.chunks(index, delta)
            if events or now() >= deadline:
                yield events or sse.KEEP_ALIVE
                deadline = now() + self._keep_alive_interval_s
        if self._request.include_usage:
            yield self._renderer.usage_chunk(self._usage)
        yield sse.DONE


def _stream_start() -> dict[str, object]:
    headers = {"Content-Type": sse.CONTENT_TYPE, **sse.HEADERS}
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in headers.items()
        ],
    }


def _part(body: bytes, *, last: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": not last}

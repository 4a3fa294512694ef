"""What stands around Serve's proxy, so that no request hurts it. The gateway's own port needs none
of this."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from ray.serve._private import constants
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.error_responses import error_response
from deployments.http.errors import ApiError


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


READ_BY_SERVE = frozenset(
    map(
        _plain,
        (
            constants.SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER,
            constants.SERVE_HTTP_REQUEST_ID_HEADER,
            constants.SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER,
            constants.SERVE_MULTIPLEXED_MODEL_ID,
            constants.SERVE_SESSION_ID,
            "traceparent",
        ),
    )
)


FREE_BYTES = 128 * 1024
"""Of each body, which pass at once."""
BYTES_A_SECOND = 16 * 1024 * 1024


class ReadableHeadersMiddleware:
    """Refuses a request with a header that Serve could not read: it takes some for UTF-8 before any
    application has the request, and what isn't for a fault of its own, told in plain text."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for raw_name, value in scope.get("headers", ()):
            name = raw_name.decode("latin-1")
            if _plain(name) in READ_BY_SERVE and not _is_utf8(value):
                refusal = ApiError(
                    400, f"The header {name} must be UTF-8.", param=name, code="invalid_header"
                )
                await error_response(refusal)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class PacedBodiesMiddleware:
    """Large bodies pass at ``BYTES_A_SECOND``, all of them together.

    The proxy pickles every part, sends it to a gateway's process and holds up all other requests
    meanwhile. A client waits for its own part only: who sends slowly keeps nobody from passing.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.app = app
        self._now = now
        self._sleep = sleep
        self._taken_until = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = 0

        async def paced_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            size = len(message.get("body", b""))
            num_bytes += size
            if num_bytes > FREE_BYTES:
                await self._sleep(self._turn(size))
            return message

        await self.app(scope, paced_receive, send)

    def _turn(self, num_bytes: int) -> float:
        """Seconds until so many bytes have passed behind those that came before."""
        now = self._now()
        self._taken_until = max(now, self._taken_until) + num_bytes / BYTES_A_SECOND
        return self._taken_until - now


def middlewares() -> list[Middleware]:
    """What the proxy puts around itself: it asks for them by ``environment``."""
    return [Middleware(ReadableHeadersMiddleware), Middleware(PacedBodiesMiddleware)]

"""``X-Request-Id``, and ``Request-Id``: the client's where it is harmless, else a new one, on every
response."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.response_events import at_start

REQUEST_ID_HEADER = "X-Request-Id"
ANTHROPICS_HEADER = "Request-Id"
"""Where the clients of that API look for it."""
SCOPE_KEY = "pomona.request_id"

_HARMLESS = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")


def choose_request_id(given: str | None) -> str:
    """``given`` if it is at most 128 plain characters, which are safe in logs and headers."""
    if given is not None and _HARMLESS.fullmatch(given):
        return given
    return f"req-{uuid.uuid4().hex}"


class RequestIdMiddleware:
    """Puts the id into the scope under ``SCOPE_KEY`` and into the response's headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = choose_request_id(Headers(scope=scope).get(REQUEST_ID_HEADER))
        scope[SCOPE_KEY] = request_id

        async def add_id(start: Message) -> None:
            headers = MutableHeaders(scope=start)
            headers[REQUEST_ID_HEADER] = headers[ANTHROPICS_HEADER] = request_id

        at_start(scope, add_id)
        await self.app(scope, receive, send)

"""The start and the end of a response, told to whoever has something to do then.

One wrapper of ``send`` serves all middlewares: a stream's chunks pass each wrapper that there is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STARTS_KEY = "pomona.response_starts"
ENDS_KEY = "pomona.response_ends"

AtStart = Callable[[Message], Awaitable[None]]
"""Gets the message ``http.response.start``, whose headers it may change, before it is sent."""


class ResponseEventsMiddleware:
    """Belongs above all that call ``at_start`` and ``at_end``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        starts: list[AtStart] = []
        ends: list[Callable[[], None]] = []
        scope[STARTS_KEY], scope[ENDS_KEY] = starts, ends

        async def watched_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The latest is the innermost: it knows most of the response.
                for start in reversed(starts):
                    await start(message)
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                for end in ends:
                    end()

        await self.app(scope, receive, watched_send)


def at_start(scope: Scope, start: AtStart) -> None:
    """Have ``start`` called before the response begins."""
    scope[STARTS_KEY].append(start)


def at_end(scope: Scope, end: Callable[[], None]) -> None:
    """Have ``end`` called once the whole response has been sent."""
    scope[ENDS_KEY].append(end)

"""Draining requests: an answer waits until its request has arrived, even if it needs no body.

A proxy that has its answer while a client is still sending may close that client's connection, who
then sees a reset instead of the answer. HAProxy 2.6 does.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.response_events import at_start

READ_FACTOR = 4


class WholeRequestMiddleware:
    """Reads what a refused request still sends, up to ``READ_FACTOR`` times ``max_body_bytes``, and
    throws it away. What is longer is answered at once, and its connection ends.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self.app = app
        self._most_read = READ_FACTOR * max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_whole = False
        announced = headers.get("content-length", "")
        # Who expects to be told to go on has not sent anything.
        done = "expect" in headers or (announced.isdecimal() and int(announced) > self._most_read)
        num_read = 0

        async def read() -> Message:
            nonlocal done, is_whole, num_read
            message = await receive()
            num_read += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            done = done or is_whole or num_read > self._most_read
            return message

        async def read_the_rest(start: Message) -> None:
            while not done:
                await read()
            if not is_whole:
                # The rest is not read.
                MutableHeaders(scope=start)["Connection"] = "close"

        at_start(scope, read_the_rest)
        await self.app(scope, read, send)

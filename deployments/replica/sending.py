"""A response whose parts are made while it is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.types import Send

from deployments.backend import BackendError


class Sending:
    """How far one response has got."""

    def __init__(self) -> None:
        self.is_sent = False
        self.has_failed = False
        """After it had begun as a success."""

    async def run(
        self,
        send: Send,
        parts: AsyncGenerator[bytes, None],
        *,
        start: Callable[[], dict[str, object]],
        failure: Callable[[Exception], bytes],
    ) -> None:
        """``start``: the message that begins it with status 200; ``failure``: the end of one that
        can't go on. Raises what comes before the first part, as admission does, which still has a
        status of its own."""
        async with aclosing(parts):
            part = await anext(parts)
            await send(start())
            try:
                await send(_part(part))
                async for part in parts:
                    await send(_part(part))
                await self._end(send, b"")
            except BackendError as error:
                self.has_failed = True
                await self._end(send, failure(error))
            except Exception as error:
                await self._end(send, failure(error))
                raise

    async def _end(self, send: Send, rest: bytes) -> None:
        await send(_part(rest, last=True))
        self.is_sent = True


def _part(body: bytes, *, last: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": not last}

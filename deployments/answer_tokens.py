"""How many tokens an answer took, from what passed to the client."""

from __future__ import annotations

import re

from starlette.types import Message, Send

from deployments.rate_limits import Lease

# Quotes inside of a JSON string are escaped, so none of these can be part of a text.
_USAGE = re.compile(rb'"prompt_tokens":(\d+),"completion_tokens":(\d+)')
_DELTAS = (b'"delta":{"content":"', b',"text":"')


class AnswerTokens:
    """Counts the tokens of one response: as its usage says, or in a stream without one by its
    events, of which an engine sends about one for each token."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = 0
        self._is_stream = False
        self._usage: tuple[int, int] | None = None
        self._num_deltas = 0

    def used(self, lease: Lease) -> int:
        """Prompt and answer together. What failed before it began used nothing; an answer that
        was never seen used what was reckoned with."""
        if self._usage is not None:
            return sum(self._usage)
        if self._status >= 400:
            return 0
        return lease.prompt_tokens + self._num_deltas if self._is_stream else lease.charged

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            content_type = dict(message["headers"]).get(b"content-type", b"")
            self._is_stream = content_type.startswith(b"text/event-stream")
        elif body := message.get("body", b""):
            if found := _USAGE.search(body):
                self._usage = int(found[1]), int(found[2])
            elif self._is_stream:
                self._num_deltas += sum(map(body.count, _DELTAS))
        await self._send(message)

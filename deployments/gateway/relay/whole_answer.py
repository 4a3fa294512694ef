"""Reading an answer that isn't streamed: beats while it is made, then one body."""

from __future__ import annotations

import json
from contextlib import suppress

from deployments.gateway.relay.connection import ReplicaResponse
from deployments.wire.beats import TOKEN_BEAT

_decode = json.JSONDecoder().raw_decode
# Quotes inside of a JSON string are escaped, so this can't be part of a text.
_USAGE = b'"usage":'


class WholeReader:
    """The gateway's side: what a replica answered, and what that took."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        """0: not told."""
        self.completion_tokens = 0

    async def read(self, response: ReplicaResponse) -> bytes:
        """The body, without the beats before it. Another replica's answer begins anew."""
        self.prompt_tokens = self.completion_tokens = 0
        chunks = []
        while chunk := await response.readany():
            self.completion_tokens += chunk.count(TOKEN_BEAT)
            chunks.append(chunk)
        body = b"".join(chunks).lstrip()
        self._read_usage(body)
        return body

    def _read_usage(self, body: bytes) -> None:
        _, found, rest = body.rpartition(_USAGE)
        if not found:
            return
        with suppress(ValueError, TypeError, LookupError):
            usage, _ = _decode(rest.decode())
            counts = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
            self.prompt_tokens, self.completion_tokens = counts

"""A path and a body to a checked request."""

from __future__ import annotations

import asyncio

from deployments.http.errors import unknown_url
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.completions import CompletionRequest
from deployments.protocol.json_body import decode_object

CHAT_COMPLETIONS_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
MAX_BYTES_ON_THE_LOOP = 64 * 1024


def parse_request(path: str, body: bytes) -> ChatCompletionRequest | CompletionRequest:
    """Raises ``ApiError``: 404 for another path, 400 naming the field and what is allowed."""
    if path == CHAT_COMPLETIONS_PATH:
        return ChatCompletionRequest.parse(decode_object(body))
    if path == COMPLETIONS_PATH:
        return CompletionRequest.parse(decode_object(body))
    raise unknown_url("POST", path)


async def parse_body(path: str, body: bytes) -> ChatCompletionRequest | CompletionRequest:
    """``parse_request``, in a thread where the body is large: every stream waits for the loop."""
    if len(body) <= MAX_BYTES_ON_THE_LOOP:
        return parse_request(path, body)
    return await asyncio.to_thread(parse_request, path, body)

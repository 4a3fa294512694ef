"""A path and a body to a checked request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from deployments.http.errors import unknown_url
from deployments.protocol.background import Background
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.completions import CompletionRequest
from deployments.protocol.json_body import decode_object

CHAT_COMPLETIONS_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
MAX_BYTES_ON_THE_LOOP = 64 * 1024
T = TypeVar("T")
_LARGE_BODIES = Background("large-bodies")


def parse_request(path: str, body: bytes) -> ChatCompletionRequest | CompletionRequest:
    """Raises ``ApiError``: 404 for another path, 400 naming the field and what is allowed."""
    if path == CHAT_COMPLETIONS_PATH:
        return ChatCompletionRequest.parse(decode_object(body))
    if path == COMPLETIONS_PATH:
        return CompletionRequest.parse(decode_object(body))
    raise unknown_url("POST", path)


async def parse_body(path: str, body: bytes) -> ChatCompletionRequest | CompletionRequest:
    """``parse_request``; raises what it raises."""
    return await off_the_loop(body, partial(parse_request, path, body))


async def off_the_loop(body: bytes, parse: Callable[[], T]) -> T:
    """``parse`` of ``body``, in a thread where it is large: every stream waits for the loop. There
    is one such thread, so that large bodies wait for each other."""
    if len(body) <= MAX_BYTES_ON_THE_LOOP:
        return parse()
    return await _LARGE_BODIES.run(parse)

"""OpenAI's generation requests, checked field by field.

``parse_request`` turns a path and a body into a frozen request or a 400 that names the field;
``to_generation_requests`` turns that into what a backend runs. The gateway parses to validate and
to route, the replica parses to run. Start reading in ``common.py``, then ``chat.py``.
"""

from __future__ import annotations

from deployments.errors import unknown_url
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.completions import CompletionRequest
from deployments.protocol.conversion import to_generation_requests
from deployments.protocol.json_body import decode_object

CHAT_COMPLETIONS_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"

__all__ = [
    "CHAT_COMPLETIONS_PATH",
    "COMPLETIONS_PATH",
    "ChatCompletionRequest",
    "CompletionRequest",
    "parse_request",
    "to_generation_requests",
]


def parse_request(path: str, body: bytes) -> ChatCompletionRequest | CompletionRequest:
    """Raises ``ApiError``: 404 for another path, 400 naming the field and what is allowed."""
    if path == CHAT_COMPLETIONS_PATH:
        return ChatCompletionRequest.parse(decode_object(body))
    if path == COMPLETIONS_PATH:
        return CompletionRequest.parse(decode_object(body))
    raise unknown_url("POST", path)

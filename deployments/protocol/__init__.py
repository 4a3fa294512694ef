"""Generation requests, checked field by field.

``parse_request`` turns a path and a body into a frozen request or a 400 that names the field;
whatever API it came by, its ``form`` is one of OpenAI's older two, and
``to_generation_requests`` turns that into what a backend runs. The gateway parses to validate and
to route, the replica parses to run. Start reading in ``common.py``, then ``chat.py``.
"""

from __future__ import annotations

from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.completions import CompletionRequest
from deployments.protocol.conversion import to_generation_requests
from deployments.protocol.parsed import GenerationForm, ParsedRequest, StreamForm
from deployments.protocol.parsing import (
    CHAT_COMPLETIONS_PATH,
    COMPLETIONS_PATH,
    GENERATION_PATHS,
    MESSAGES_PATH,
    RESPONSES_PATH,
    parse_body,
    parse_request,
)

__all__ = [
    "CHAT_COMPLETIONS_PATH",
    "COMPLETIONS_PATH",
    "GENERATION_PATHS",
    "MESSAGES_PATH",
    "RESPONSES_PATH",
    "ChatCompletionRequest",
    "CompletionRequest",
    "GenerationForm",
    "ParsedRequest",
    "StreamForm",
    "parse_body",
    "parse_request",
    "to_generation_requests",
]

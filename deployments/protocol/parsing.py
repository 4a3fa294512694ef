"""A path and a body to a checked request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from deployments.http.errors import unknown_url
from deployments.protocol.anthropic.conversion import own_names, to_chat
from deployments.protocol.anthropic.events import STREAM_FORM
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.background import Background
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.completions import CompletionRequest
from deployments.protocol.dropped import dropped_names
from deployments.protocol.json_body import decode_object
from deployments.protocol.parsed import GenerationForm, ParsedRequest
from deployments.protocol.responses.context import Context
from deployments.protocol.responses.to_chat import parse_responses

CHAT_COMPLETIONS_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
RESPONSES_PATH = "/v1/responses"
MESSAGES_PATH = "/v1/messages"
MAX_BYTES_ON_THE_LOOP = 64 * 1024
T = TypeVar("T")
_LARGE_BODIES = Background("large-bodies")


def _in_one_form(
    model: type[ChatCompletionRequest] | type[CompletionRequest], data: dict[str, Any]
) -> ParsedRequest:
    form: GenerationForm = model.parse(data)
    return ParsedRequest(form, form)


def _messages(data: dict[str, Any]) -> ParsedRequest:
    asked = MessagesRequest.parse(data)
    return ParsedRequest(to_chat(asked), asked, STREAM_FORM, own_names(asked))


PARSERS: Mapping[str, Callable[[dict[str, Any]], ParsedRequest]] = {
    CHAT_COMPLETIONS_PATH: partial(_in_one_form, ChatCompletionRequest),
    COMPLETIONS_PATH: partial(_in_one_form, CompletionRequest),
    RESPONSES_PATH: parse_responses,
    MESSAGES_PATH: _messages,
}
"""By the path that is asked. Each raises ``ApiError`` 400 naming the field and what is allowed."""
GENERATION_PATHS = tuple(PARSERS)


def parse_request(path: str, body: bytes, context: bytes = b"") -> ParsedRequest:
    """``context``: what a response's request refers to, if it was looked up. Raises ``ApiError``:
    404 for a path that isn't one of ``GENERATION_PATHS``, or 400."""
    if path not in PARSERS:
        raise unknown_url("POST", path)
    data = decode_object(body)
    with dropped_names() as dropped:
        if context and path == RESPONSES_PATH:
            parsed = parse_responses(data, Context.decode(context))
        else:
            parsed = PARSERS[path](data)
    return replace(parsed, dropped=tuple(dropped))


async def parse_body(
    path: str, body: bytes, context: bytes = b"", *, tenant: str = ""
) -> ParsedRequest:
    """``parse_request``; raises what it raises. Large bodies of ``tenant`` wait for each other."""
    num_bytes = len(body) + len(context)
    return await off_the_loop(num_bytes, partial(parse_request, path, body, context), tenant=tenant)


async def off_the_loop(num_bytes: int, parse: Callable[[], T], *, tenant: str = "") -> T:
    """``parse`` of so much JSON, in a thread where it is large: every stream waits for the loop.
    All tenants share that thread."""
    if num_bytes <= MAX_BYTES_ON_THE_LOOP:
        return parse()
    return await _LARGE_BODIES.run(parse, tenant=tenant)

"""What the openai package makes of an answer, with nothing in it that the package doesn't know."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

from openai.types import Completion, CompletionChoice, CreateEmbeddingResponse, Embedding
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

T = TypeVar("T")
OF_OPEN_RESPONSES = {"bytes", "frequency_penalty", "presence_penalty", "store"}
"""That document has them, in a response and in a token of an event, and the package doesn't."""
OURS: Mapping[str, set[str]] = {
    # Thoughts, by the two names that clients look for.
    "ChatCompletionMessage": {"reasoning_content", "reasoning"},
    "ChoiceDelta": {"reasoning_content", "reasoning"},
    # What return_token_ids and prompt_logprobs ask for, as vLLM tells it.
    "ChatCompletion": {"prompt_token_ids", "prompt_logprobs"},
    "ChatCompletionChunk": {"prompt_token_ids", "prompt_logprobs"},
    "Choice": {"token_ids"},
    "CompletionChoice": {"token_ids", "prompt_token_ids", "prompt_logprobs"},
    "_ChunkChoice": {"token_ids", "prompt_token_ids", "prompt_logprobs"},
}
"""Members that an answer has beside those of the package, by the name of its type there."""


class _ChunkChoice(CompletionChoice):
    """The package has one type for whole and streamed completions."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class _CompletionChunk(Completion):
    choices: list[_ChunkChoice]  # type: ignore[assignment]


class _Base64Embedding(Embedding):
    """The package decodes them before they are of its type."""

    embedding: str  # type: ignore[assignment]


class _Base64Embeddings(CreateEmbeddingResponse):
    data: list[_Base64Embedding]  # type: ignore[assignment]


_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_WHOLE: Mapping[str, Any] = {
    _CHAT: ChatCompletion,
    _COMPLETIONS: Completion,
    "/v1/embeddings": CreateEmbeddingResponse | _Base64Embeddings,
    "/v1/responses": Response,
}
_STREAMED: Mapping[str, Any] = {
    _CHAT: ChatCompletionChunk,
    _COMPLETIONS: _CompletionChunk,
    "/v1/responses": ResponseStreamEvent,
}


def answer(path: str, data: Any) -> Any:
    """The body of an answer at ``path``, if that is one of OpenAI's. Raises ``ValidationError``, or
    ``AssertionError`` for a member that is unknown."""
    return _parsed(_WHOLE.get(path), data)


def event(path: str, data: Any) -> Any:
    """As ``answer``, for one event of a stream that breaks off nowhere."""
    return _parsed(_STREAMED.get(path), data)


def _parsed(kind: Any, data: Any) -> Any:
    return data if kind is None else known(_adapter(kind).validate_python(data, strict=True))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def response(data: Any) -> Response:
    """Raises ``ValidationError``, or ``AssertionError`` for a member that is unknown."""
    return known(Response.model_validate(data, strict=True))


def response_event(data: Any) -> Any:
    """As ``response``, for one event of a stream."""
    return _parsed(ResponseStreamEvent, data)


def known(value: T, where: str = "") -> T:
    if isinstance(value, BaseModel):
        extra = value.model_extra or {}
        ours = OURS.get(type(value).__name__, OF_OPEN_RESPONSES)
        assert not extra.keys() - ours, (where, extra)
        for name in value.model_fields_set:
            known(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            known(one, f"{where}[{index}]")
    return value

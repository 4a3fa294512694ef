"""Choices and deltas as OpenAI's objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from deployments.backend import Delta
from deployments.protocol import ChatCompletionRequest, CompletionRequest
from deployments.protocol.chat_formats.dialect import TEXT_ALONE, Dialect
from deployments.replica.chat_renderer import ChatRenderer
from deployments.replica.completion_renderer import CompletionRenderer
from deployments.replica.fold import Usage
from deployments.wire.envelope import Envelope


class Renderer(Protocol):
    """One request's answer, streamed or whole."""

    def chunks(self, choice: int, delta: Delta) -> bytes:
        """The events of one delta; empty when it has nothing to tell yet."""
        ...

    def replay(self, choice: int, delta: Delta) -> None:
        """Instead of ``chunks``, for a delta whose events were sent by another replica."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes: ...

    def add(self, choice: int, delta: Delta) -> None:
        """Of an answer that isn't streamed."""
        ...

    def whole(self, usage: Usage) -> bytes:
        """The body of an answer that isn't streamed, of all that was added."""
        ...


def renderer_for(
    request: ChatCompletionRequest | CompletionRequest,
    envelope: Envelope,
    dialect: Dialect = TEXT_ALONE,
    prompt_end: Callable[[], str] = str,
) -> Renderer:
    """``prompt_end`` is known before the first delta."""
    if isinstance(request, ChatCompletionRequest):
        return ChatRenderer(request, envelope, dialect, prompt_end)
    return CompletionRenderer(request, envelope)

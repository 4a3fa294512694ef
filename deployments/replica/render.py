"""Choices and deltas as the objects of whichever API was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from deployments.backend import Delta, SamplingParams
from deployments.protocol import ChatCompletionRequest, ParsedRequest
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.chat_formats.dialect import TEXT_ALONE, Dialect
from deployments.protocol.responses.request import ResponsesRequest
from deployments.replica.chat_answer import ChatAnswers
from deployments.replica.chat_renderer import ChatRenderer
from deployments.replica.completion_renderer import CompletionRenderer
from deployments.replica.fold import Usage
from deployments.replica.messages_renderer import MessagesRenderer
from deployments.replica.prompts import Prompts
from deployments.replica.responses_renderer import ResponsesRenderer
from deployments.wire.envelope import Envelope

_UNKNOWN = SamplingParams()


class Renderer(Protocol):
    """One request's answer, streamed or whole."""

    def chunks(self, choice: int, delta: Delta) -> bytes:
        """The events of one delta; empty when it has nothing to tell yet."""
        ...

    def replay(self, choice: int, delta: Delta) -> None:
        """Instead of ``chunks``, for a delta whose events were sent by another replica."""
        ...

    def end(self, usage: Usage) -> bytes:
        """The events behind those of all deltas, up to the endpoint's ``last_event``."""
        ...

    def add(self, choice: int, delta: Delta) -> None:
        """Of an answer that isn't streamed."""
        ...

    def whole(self, usage: Usage) -> bytes:
        """The body of an answer that isn't streamed, of all that was added."""
        ...


def renderer_for(
    parsed: ParsedRequest,
    envelope: Envelope,
    dialect: Dialect = TEXT_ALONE,
    prompt_end: Callable[[], str] = str,
    prompts: Prompts | None = None,
    sampling: SamplingParams = _UNKNOWN,
) -> Renderer:
    """``prompt_end`` is known before the first delta, and so is what is told of ``prompts``;
    ``sampling``: with the model's defaults."""
    prompts = prompts or Prompts(parsed.form)
    if not isinstance(parsed.form, ChatCompletionRequest):
        return CompletionRenderer(parsed.form, envelope, prompts)
    answers = ChatAnswers(parsed.form, envelope, dialect, prompt_end)
    if isinstance(parsed.asked, ResponsesRequest):
        return ResponsesRenderer(parsed.asked, envelope, answers, sampling)
    if isinstance(parsed.asked, MessagesRequest):
        return MessagesRenderer(parsed.asked, envelope, answers)
    return ChatRenderer(parsed.form, envelope, answers, prompts)

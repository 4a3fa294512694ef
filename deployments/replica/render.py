"""Choices and deltas as OpenAI's objects.

A stream's chunks are put together from constant text, since there is one for every token: only the
text of a delta goes through a JSON encoder.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

from deployments.backend import Delta
from deployments.protocol import ChatCompletionRequest, CompletionRequest
from deployments.replica.fold import Choice, Usage
from deployments.replica.logprobs import CompletionLogprobs, chat_logprobs
from deployments.wire.envelope import Envelope

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

_ROLE_DELTA = '{"role":"assistant","content":"","refusal":null}'


class Renderer(Protocol):
    """One request's answer, streamed or whole."""

    def chunks(self, choice: int, delta: Delta) -> bytes:
        """The events of one delta; empty when it has nothing to tell yet."""
        ...

    def replay(self, choice: int, delta: Delta) -> None:
        """Instead of ``chunks``, for a delta whose events were sent by another replica."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes: ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of an answer that isn't streamed."""
        ...


def renderer_for(
    request: ChatCompletionRequest | CompletionRequest, envelope: Envelope
) -> Renderer:
    if isinstance(request, ChatCompletionRequest):
        return ChatRenderer(request, envelope)
    return CompletionRenderer(request, envelope)


class _Frame:
    """The members that every object of one answer shares."""

    def __init__(
        self, prefix: str, envelope: Envelope, model: str, *, chunks_have_usage: bool
    ) -> None:
        self._members = {
            "id": f"{prefix}-{envelope.answer_id}",
            "created": envelope.created,
            "model": model,
        }
        self._chunks_have_usage = chunks_have_usage

    def chunk_frame(self, object_name: str) -> tuple[str, str]:
        """What stands before the choice's index and after its last member in an event."""
        head = _encode({"object": object_name, **self._members})[:-1]
        usage = ',"usage":null' if self._chunks_have_usage else ""
        return f'data: {head},"choices":[{{"index":', f"}}]{usage}}}\n\n"

    def usage_chunk(self, object_name: str, usage: Usage) -> bytes:
        members = {"object": object_name, **self._members, "choices": [], "usage": usage.as_json()}
        return f"data: {_encode(members)}\n\n".encode()

    def whole(self, object_name: str, choices: list[dict[str, Any]], usage: Usage) -> bytes:
        members = {
            "object": object_name,
            **self._members,
            "choices": choices,
            "usage": usage.as_json(),
        }
        return _encode(members).encode()


class ChatRenderer:
    """``chat.completion`` and its chunks: role first, then content, then the finish reason."""

    def __init__(self, request: ChatCompletionRequest, envelope: Envelope) -> None:
        self._frame = _Frame(
            "chatcmpl", envelope, request.model, chunks_have_usage=request.include_usage
        )
        self._head, self._tail = self._frame.chunk_frame("chat.completion.chunk")
        self._has_logprobs = request.num_logprobs is not None
        self._begun: set[int] = set()

    def chunks(self, choice: int, delta: Delta) -> bytes:
        events = ""
        if choice not in self._begun:
            self._begun.add(choice)
            events += self._chunk(choice, _ROLE_DELTA)
        if delta.text or delta.logprobs:
            logprobs = _encode(chat_logprobs(delta.logprobs)) if self._has_logprobs else "null"
            events += self._chunk(choice, f'{{"content":{_encode(delta.text)}}}', logprobs)
        if delta.finish_reason:
            events += self._chunk(choice, "{}", finish_reason=f'"{delta.finish_reason}"')
        return events.encode()

    def replay(self, choice: int, delta: Delta) -> None:
        self._begun.add(choice)

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._frame.usage_chunk("chat.completion.chunk", usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        members = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
                "logprobs": chat_logprobs(choice.logprobs) if self._has_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return self._frame.whole("chat.completion", members, usage)

    def _chunk(
        self, choice: int, delta: str, logprobs: str = "null", finish_reason: str = "null"
    ) -> str:
        return (
            f'{self._head}{choice},"delta":{delta},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}{self._tail}'
        )


class CompletionRenderer:
    """``text_completion``, whose chunks have the same shape as the whole."""

    def __init__(self, request: CompletionRequest, envelope: Envelope) -> None:
        self._frame = _Frame(
            "cmpl", envelope, request.model, chunks_have_usage=request.include_usage
        )
        self._head, self._tail = self._frame.chunk_frame("text_completion")
        self._has_logprobs = request.num_logprobs is not None
        self._logprobs: defaultdict[int, CompletionLogprobs] = defaultdict(CompletionLogprobs)

    def chunks(self, choice: int, delta: Delta) -> bytes:
        if not (delta.text or delta.logprobs or delta.finish_reason):
            return b""
        logprobs = "null"
        if self._has_logprobs:
            logprobs = _encode(self._logprobs[choice].add(delta.logprobs))
        finish_reason = f'"{delta.finish_reason}"' if delta.finish_reason else "null"
        return (
            f'{self._head}{choice},"text":{_encode(delta.text)},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}{self._tail}'
        ).encode()

    def replay(self, choice: int, delta: Delta) -> None:
        if self._has_logprobs:
            self._logprobs[choice].skip(delta.logprobs)

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._frame.usage_chunk("text_completion", usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        members = [
            {
                "index": index,
                "text": "".join(choice.text),
                "logprobs": CompletionLogprobs().add(choice.logprobs)
                if self._has_logprobs
                else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return self._frame.whole("text_completion", members, usage)

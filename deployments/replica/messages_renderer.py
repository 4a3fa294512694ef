"""A message of Anthropic's API, and its events: the blocks of its content one after another, each
begun, added to and ended, then why it has ended."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from deployments.backend import Delta
from deployments.protocol.anthropic.events import STREAM_FORM, delta_event, event
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.carried_thought import carried
from deployments.replica.answer_json import encode
from deployments.replica.chat_answer import (
    Added,
    CallPart,
    ChatAnswer,
    ChatAnswers,
    Part,
    ReasoningPart,
    TextPart,
)
from deployments.replica.fold import Usage
from deployments.wire.envelope import Envelope

_PLAIN_CALL_ID = "call_"
_TOOL_USE_ID = "toolu_"
_ESTIMATE_STEP = 32
"""Tokens of a thought that is left out, each time that they are told."""


class MessagesRenderer:
    def __init__(self, request: MessagesRequest, envelope: Envelope, answers: ChatAnswers) -> None:
        self._request = request
        self._answers = answers
        bounds = (request.max_tokens, envelope.max_tokens)
        self._most_tokens = min(one for one in bounds if one is not None)
        self._answer_id = envelope.answer_id
        self._frame = {
            "id": f"msg_{envelope.answer_id}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
        }
        self._has_begun = False
        self._num_begun = 0
        """Blocks that the client has been told of: a delta may hold several."""
        self._num_estimated = 0
        """Tokens of thoughts that were left out, as far as they were told."""
        self._stop_sequence: str | None = None

    def chunks(self, choice: int, delta: Delta) -> bytes:
        told = "" if self._has_begun else self._begin(delta)
        for added in self._read(delta):
            if added.begins:
                told += self._end_of_latest()
                self._num_begun += 1
                told += self._start_of_latest()
            told += self._more(added, delta)
        if delta.finish_reason:
            told += self._end_of_latest()
        return told.encode()

    def replay(self, choice: int, delta: Delta) -> None:
        self._has_begun = True
        self._num_begun += sum(added.begins for added in self._read(delta))
        self._estimate(delta)

    def end(self, usage: Usage) -> bytes:
        told = event("message_delta", delta=self._why(usage), usage=_usage(usage))
        return told.encode() + STREAM_FORM.last_event

    def add(self, choice: int, delta: Delta) -> None:
        self._answer.add(delta)
        self._stop_sequence = delta.stop_string

    def whole(self, usage: Usage) -> bytes:
        content = [self._block(part, "".join(part.pieces)) for part in self._answer.parts]
        message = {**self._frame, "content": content, **self._why(usage), "usage": _usage(usage)}
        return encode(message).encode()

    @property
    def _answer(self) -> ChatAnswer:
        """The only one."""
        return self._answers[0]

    def _read(self, delta: Delta) -> list[Added]:
        self._stop_sequence = delta.stop_string
        # A signature has all of a thought.
        keeps = not self._request.shows_thinking
        return self._answer.add(delta) if keeps else self._answer.read(delta)

    def _begin(self, delta: Delta) -> str:
        self._has_begun = True
        message: dict[str, Any] = {
            **self._frame,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _tokens(delta.num_prompt_tokens, delta.num_cached_tokens),
        }
        return event("message_start", message=message) + event("ping")

    def _start_of_latest(self) -> str:
        index = self._num_begun - 1
        block = self._block(self._answer.parts[index], "")
        if "signature" in block:
            block["signature"] = ""
        return event("content_block_start", index=index, content_block=block)

    def _more(self, added: Added, delta: Delta) -> str:
        if not self._is_told(added.part):
            return self._estimate(delta)
        kind, member = _DELTAS[type(added.part)]
        if not added.text:
            return ""
        return delta_event(self._num_begun - 1, kind, member, added.text)

    def _estimate(self, delta: Delta) -> str:
        """How much more was thought, for clients that show that something happens."""
        before = self._num_estimated
        self._num_estimated = delta.num_thought_tokens // _ESTIMATE_STEP * _ESTIMATE_STEP
        if not (more := self._num_estimated - before):
            return ""
        told = {"type": "thinking_delta", "thinking": "", "estimated_tokens": more}
        return event("content_block_delta", index=self._num_begun - 1, delta=told)

    def _end_of_latest(self) -> str:
        """If there is one."""
        index = self._num_begun - 1
        if index < 0:
            return ""
        signed = ""
        part = self._answer.parts[index]
        if isinstance(part, ReasoningPart):
            signature = self._signature("".join(part.pieces))
            signed = delta_event(index, "signature_delta", "signature", signature)
        return signed + event("content_block_stop", index=index)

    def _block(self, part: Part, text: str) -> dict[str, Any]:
        match part:
            case TextPart():
                return {"type": "text", "text": text}
            case ReasoningPart():
                thinking = text if self._is_told(part) else ""
                return {
                    "type": "thinking",
                    "thinking": thinking,
                    "signature": self._signature(text),
                }
            case CallPart(id=its_id, name=name):
                if its_id.startswith(_PLAIN_CALL_ID):
                    its_id = _TOOL_USE_ID + its_id.removeprefix(_PLAIN_CALL_ID)
                # What was cut short is told as far as it goes.
                arguments = from_json(text or "{}", allow_partial=True)
                return {"type": "tool_use", "id": its_id, "name": name, "input": arguments}

    def _signature(self, thought: str) -> str:
        """Nobody checks it, but it carries a thought that is told nowhere else."""
        return self._answer_id if self._request.shows_thinking else carried(thought)

    def _is_told(self, part: Part) -> bool:
        return self._request.shows_thinking or not isinstance(part, ReasoningPart)

    def _why(self, usage: Usage) -> dict[str, Any]:
        reason = "end_turn"
        if self._stop_sequence is not None:
            reason = "stop_sequence"
        elif self._answer.finish_reason == "tool_calls":
            reason = "tool_use"
        elif self._answer.finish_reason == "length":
            is_cut = usage.completion_tokens >= self._most_tokens
            reason = "max_tokens" if is_cut else "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": self._stop_sequence}


_DELTAS = {
    TextPart: ("text_delta", "text"),
    ReasoningPart: ("thinking_delta", "thinking"),
    CallPart: ("input_json_delta", "partial_json"),
}


def _usage(usage: Usage) -> dict[str, Any]:
    input_tokens = _tokens(usage.prompt_tokens, usage.cached_tokens)
    details = {"thinking_tokens": usage.reasoning_tokens}
    output_tokens = {"output_tokens": usage.completion_tokens, "output_tokens_details": details}
    return input_tokens | output_tokens


def _tokens(prompt: int, cached: int) -> dict[str, Any]:
    """A cached token is no other input. All are cached as long as there is room, marked or not,
    so that none is created for its own price."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": 0,
    }

"""``chat.completion`` and its chunks: role first, then what the answer is made of, then why it has
ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from deployments.backend import Delta
from deployments.http import sse
from deployments.protocol import ChatCompletionRequest
from deployments.replica.answer_json import Frame, elements, encode, pieces
from deployments.replica.chat_answer import (
    Added,
    CallPart,
    ChatAnswer,
    ChatAnswers,
    ReasoningPart,
    TextPart,
)
from deployments.replica.fold import RunningUsage, Usage
from deployments.replica.logprobs import chat_logprobs
from deployments.replica.prompts import Prompts
from deployments.wire.envelope import Envelope

ROLE_DELTA = '{"role":"assistant","content":"","refusal":null}'
_NO_TEXT = Added(TextPart(), "", begins=False)


class ChatRenderer:
    def __init__(
        self,
        request: ChatCompletionRequest,
        envelope: Envelope,
        answers: ChatAnswers,
        prompts: Prompts,
    ) -> None:
        self._include_usage = request.include_usage
        self._frame = Frame(
            "chatcmpl",
            envelope,
            request.model,
            chunks_have_usage=request.include_usage,
            # Whichever was asked for, it was this one.
            service_tier=request.service_tier and "default",
        )
        self._head, self._tail = self._frame.chunk_frame("chat.completion.chunk")
        self._has_logprobs = request.num_logprobs is not None
        self._arrays = ("content",) if self._has_logprobs else ()
        self._logprobs: defaultdict[int, list[bytes]] = defaultdict(list)
        self._begun: set[int] = set()
        self._answers = answers
        self._calls_functions = bool(request.functions)
        self._names_ids = request.return_tokens_as_token_ids
        self._running = RunningUsage() if request.continuous_usage else None
        self._returns_ids = request.return_token_ids
        self._prompts = prompts
        self._token_ids: defaultdict[int, list[int]] = defaultdict(list)

    def chunks(self, choice: int, delta: Delta) -> bytes:
        events, tail = "", self._tail
        if self._running is not None:
            self._running.add(choice, delta)
            tail = self._frame.tail_with(self._running.as_json(choice))
        if choice not in self._begun:
            self._begun.add(choice)
            events += self._chunk(choice, ROLE_DELTA, self._tail_of_first(choice, tail))
        answer = self._answers[choice]
        ids = self._ids(delta.token_ids) if delta.token_ids else ""
        told: Sequence[Added] = answer.read(delta)
        if not told and (delta.logprobs or ids):
            told = [_NO_TEXT]
        logprobs = "null"
        if self._has_logprobs:
            logprobs = encode(chat_logprobs(delta.logprobs, as_ids=self._names_ids))
        for added in told:
            events += self._chunk(
                choice, encode(_delta(added, self._calls_functions)), ids + tail, logprobs
            )
            logprobs, ids = "null", ""
        if reason := self._finish_reason(answer):
            events += self._chunk(choice, "{}", tail, finish_reason=f'"{reason}"')
        return events.encode()

    def replay(self, choice: int, delta: Delta) -> None:
        self._begun.add(choice)
        if self._running is not None:
            self._running.add(choice, delta)
        self._answers[choice].read(delta)

    def end(self, usage: Usage) -> bytes:
        told = b""
        if self._include_usage:
            told = self._frame.usage_chunk("chat.completion.chunk", usage)
        return told + sse.DONE

    def add(self, choice: int, delta: Delta) -> None:
        self._answers[choice].add(delta)
        if self._returns_ids:
            self._token_ids[choice] += delta.token_ids
        if self._has_logprobs:
            logprobs = chat_logprobs(delta.logprobs, as_ids=self._names_ids)
            if added := elements(logprobs["content"]):
                self._logprobs[choice].append(added)

    def whole(self, usage: Usage) -> bytes:
        choices = (self._whole(*item) for item in self._answers.items())
        more = self._prompt_ids(0) + self._prompts.logprobs(0)
        return self._frame.whole("chat.completion", choices, usage, more)

    def _whole(self, index: int, answer: ChatAnswer) -> list[bytes]:
        message = encode(_message(answer, self._calls_functions))
        said = f'"message":{message}{self._ids(self._token_ids[index])}'
        logprobs: Mapping[str, Sequence[bytes]] = {"content": self._logprobs[index]}
        refusal = b',"refusal":null'
        return pieces(index, said, logprobs, self._arrays, self._finish_reason(answer), refusal)

    def _finish_reason(self, answer: ChatAnswer) -> str | None:
        called = self._calls_functions and answer.finish_reason == "tool_calls"
        return "function_call" if called else answer.finish_reason

    def _ids(self, token_ids: Sequence[int]) -> str:
        """A member of a choice."""
        return f',"token_ids":{encode(token_ids)}' if self._returns_ids else ""

    def _tail_of_first(self, choice: int, tail: str) -> str:
        """With the prompt's tokens, which are no member of a choice."""
        return "}]" + self._prompt_ids(choice) + tail.removeprefix("}]")

    def _prompt_ids(self, choice: int) -> str:
        """A member of an answer."""
        if not self._returns_ids:
            return ""
        return f',"prompt_token_ids":{encode(self._prompts.token_ids(choice))}'

    def _chunk(
        self,
        choice: int,
        delta: str,
        tail: str,
        logprobs: str = "null",
        finish_reason: str = "null",
    ) -> str:
        return (
            f'{self._head}{choice},"delta":{delta},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}{tail}'
        )


def _delta(added: Added, calls_functions: bool) -> dict[str, Any]:
    match added.part:
        case TextPart():
            return {"content": added.text}
        case ReasoningPart():
            return _reasoning(added.text)
        case CallPart() as call:
            more: dict[str, Any] = {"function": {"arguments": added.text}}
            if added.begins:
                more = _call(call, added.text)
            if calls_functions:
                return {"function_call": more["function"]}
            return {"tool_calls": [{"index": call.number, **more}]}


def _message(answer: ChatAnswer, calls_functions: bool) -> dict[str, Any]:
    text = "".join(_pieces(answer, TextPart))
    reasoning = "".join(_pieces(answer, ReasoningPart))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text if text or not answer.calls else None,
        "refusal": None,
    }
    if reasoning:
        message |= _reasoning(reasoning)
    if calls := [_call(call, "".join(call.pieces)) for call in answer.calls]:
        only, several = {"function_call": calls[0]["function"]}, {"tool_calls": calls}
        message |= only if calls_functions else several
    return message


def _pieces(answer: ChatAnswer, kind: type[TextPart] | type[ReasoningPart]) -> list[str]:
    return [piece for part in answer.parts if isinstance(part, kind) for piece in part.pieces]


def _call(call: CallPart, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _reasoning(text: str) -> dict[str, str]:
    """Clients look for either."""
    return {"reasoning_content": text, "reasoning": text}

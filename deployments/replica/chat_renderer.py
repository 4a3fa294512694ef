"""``chat.completion`` and its chunks: role first, then what the answer is made of, then why it has
ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from deployments.backend import Delta
from deployments.protocol import ChatCompletionRequest
from deployments.protocol.chat_formats.call_ids import call_id
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.chat_formats.events import (
    CallArguments,
    CallStart,
    Event,
    Reasoning,
    Text,
)
from deployments.protocol.chat_formats.grammar import takes_string
from deployments.protocol.chat_formats.reader import AnswerReader
from deployments.replica.answer_json import Frame, elements, encode, pieces
from deployments.replica.fold import Usage
from deployments.replica.logprobs import chat_logprobs
from deployments.wire.envelope import Envelope

ROLE_DELTA = '{"role":"assistant","content":"","refusal":null}'


@dataclass
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class _Choice:
    """One answer, as far as it has come."""

    def __init__(
        self,
        reader: AnswerReader | None,
        id_of: Callable[[int, str], str],
        *,
        shows_reasoning: bool,
    ) -> None:
        """Without a ``reader`` all is text. ``id_of``: of a call by its number and name."""
        self._shows_reasoning = shows_reasoning
        self._reader = reader
        self._id_of = id_of
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[_Call] = []
        self.logprobs: defaultdict[str, list[bytes]] = defaultdict(list)
        self.finish_reason: str | None = None

    def read(self, delta: Delta) -> list[Event]:
        """What the delta makes certain."""
        events = self._events(delta)
        for event in events:
            if isinstance(event, CallStart):
                its_id = self._id_of(len(self.calls), event.name)
                self.calls.append(_Call(its_id, event.name))
        if delta.finish_reason:
            called = self.calls and delta.finish_reason == "stop"
            self.finish_reason = "tool_calls" if called else delta.finish_reason
        return events

    def add(self, delta: Delta) -> None:
        """As ``read``, and keep it for the whole ``message``."""
        num_begun = len(self.calls)
        for event in self.read(delta):
            match event:
                case Text(text):
                    self._text.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case CallStart():
                    num_begun += 1
                case CallArguments(json):
                    self.calls[num_begun - 1].arguments.append(json)

    def _events(self, delta: Delta) -> list[Event]:
        if self._reader is None:
            return [Text(delta.text)] if delta.text else []
        events = self._reader.feed(delta.text)
        if delta.finish_reason:
            events += self._reader.finish()
        if not self._shows_reasoning:
            events = [event for event in events if not isinstance(event, Reasoning)]
        return events

    def message(self) -> dict[str, Any]:
        text = "".join(self._text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not self.calls else None,
            "refusal": None,
        }
        if self._reasoning:
            message |= _reasoning("".join(self._reasoning))
        if self.calls:
            message["tool_calls"] = [call.as_json() for call in self.calls]
        return message


class ChatRenderer:
    def __init__(
        self,
        request: ChatCompletionRequest,
        envelope: Envelope,
        dialect: Dialect,
        prompt_end: Callable[[], str],
    ) -> None:
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
        self._dialect = dialect
        self._prompt_end = prompt_end
        self._tools = {tool.name: tool for tool in request.usable_tools}
        self._shows_reasoning = request.shows_reasoning
        self._num_earlier_calls = sum(len(message.tool_calls) for message in request.messages)
        self._answer_id = envelope.answer_id
        self._begun: set[int] = set()
        self._choices: dict[int, _Choice] = {}

    def chunks(self, choice: int, delta: Delta) -> bytes:
        events = ""
        if choice not in self._begun:
            self._begun.add(choice)
            events += self._chunk(choice, ROLE_DELTA)
        one = self._choice(choice)
        num_calls = len(one.calls)
        told: Sequence[Event] = one.read(delta) or ([Text("")] if delta.logprobs else [])
        logprobs = "null"
        if self._has_logprobs:
            logprobs = encode(chat_logprobs(delta.logprobs))
        for added in self._deltas(told, one.calls, num_calls):
            events += self._chunk(choice, encode(added), logprobs)
            logprobs = "null"
        if one.finish_reason:
            events += self._chunk(choice, "{}", finish_reason=f'"{one.finish_reason}"')
        return events.encode()

    def replay(self, choice: int, delta: Delta) -> None:
        self._begun.add(choice)
        self._choice(choice).read(delta)

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._frame.usage_chunk("chat.completion.chunk", usage)

    def add(self, choice: int, delta: Delta) -> None:
        one = self._choice(choice)
        one.add(delta)
        if self._has_logprobs and (added := elements(chat_logprobs(delta.logprobs)["content"])):
            one.logprobs["content"].append(added)

    def whole(self, usage: Usage) -> bytes:
        choices = (self._whole(*item) for item in sorted(self._choices.items()))
        return self._frame.whole("chat.completion", choices, usage)

    def _whole(self, index: int, choice: _Choice) -> list[bytes]:
        said = f'"message":{encode(choice.message())}'
        refusal = b',"refusal":null'
        return pieces(index, said, choice.logprobs, self._arrays, choice.finish_reason, refusal)

    def _choice(self, index: int) -> _Choice:
        if index not in self._choices:
            self._choices[index] = _Choice(
                self._reader(),
                partial(self._call_id, index),
                shows_reasoning=self._shows_reasoning,
            )
        return self._choices[index]

    def _reader(self) -> AnswerReader | None:
        if not self._dialect.reads:
            return None
        return AnswerReader(
            self._dialect.chat_format,
            is_string=self._is_string,
            reads_calls=bool(self._tools),
            thinks=self._dialect.thinks(self._prompt_end()),
        )

    def _is_string(self, tool: str, parameter: str) -> bool | None:
        if tool not in self._tools:
            return None
        return takes_string(self._tools[tool].parameters.get("properties", {}).get(parameter))

    def _call_id(self, choice: int, number: int, name: str) -> str:
        return call_id(
            self._dialect.chat_format,
            name,
            seed=f"{self._answer_id}/{choice}/{number}",
            number=self._num_earlier_calls + number,
        )

    def _deltas(
        self, events: Iterable[Event], calls: Sequence[_Call], num_calls: int
    ) -> Iterable[dict[str, Any]]:
        """``num_calls``: those that had begun before."""
        for event in events:
            match event:
                case Text(text):
                    yield {"content": text}
                case Reasoning(text):
                    yield _reasoning(text)
                case CallStart():
                    begun = calls[num_calls].as_json()
                    begun["function"]["arguments"] = ""
                    yield {"tool_calls": [{"index": num_calls, **begun}]}
                    num_calls += 1
                case CallArguments(json):
                    more = {"index": num_calls - 1, "function": {"arguments": json}}
                    yield {"tool_calls": [more]}

    def _chunk(
        self, choice: int, delta: str, logprobs: str = "null", finish_reason: str = "null"
    ) -> str:
        return (
            f'{self._head}{choice},"delta":{delta},"logprobs":{logprobs},'
            f'"finish_reason":{finish_reason}{self._tail}'
        )


def _reasoning(text: str) -> dict[str, str]:
    """Clients look for either."""
    return {"reasoning_content": text, "reasoning": text}

"""What the answer to a chat is made of, read from deltas: the same for every API that tells of it.

Parts come one after another: the latest one grows until another begins or the answer ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from deployments.backend import Delta, FinishReason
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
from deployments.protocol.chat_formats.reader import AnswerReader
from deployments.wire.envelope import Envelope


@dataclass
class TextPart:
    pieces: list[str] = field(default_factory=list)


@dataclass
class ReasoningPart:
    pieces: list[str] = field(default_factory=list)


@dataclass
class CallPart:
    id: str
    name: str
    number: int
    """Of the answer's calls."""
    pieces: list[str] = field(default_factory=list)
    """JSON of the arguments."""


Part = TextPart | ReasoningPart | CallPart


@dataclass(frozen=True)
class Added:
    """What came to a part; a call begins with an empty text."""

    part: Part
    text: str
    begins: bool


class ChatAnswer:
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
        self.parts: list[Part] = []
        self.finish_reason: FinishReason | Literal["tool_calls"] | None = None

    @property
    def calls(self) -> list[CallPart]:
        return [part for part in self.parts if isinstance(part, CallPart)]

    def read(self, delta: Delta) -> list[Added]:
        """What the delta makes certain. Texts are not kept."""
        added = [self._placed(event) for event in self._events(delta)]
        if delta.finish_reason:
            called = self.calls and delta.finish_reason == "stop"
            self.finish_reason = "tool_calls" if called else delta.finish_reason
        return added

    def add(self, delta: Delta) -> list[Added]:
        """As ``read``, and keep the texts in ``parts``."""
        added = self.read(delta)
        for one in added:
            one.part.pieces.append(one.text)
        return added

    def _events(self, delta: Delta) -> list[Event]:
        if self._reader is None:
            return [Text(delta.text)] if delta.text else []
        events = self._reader.feed(delta.text)
        if delta.finish_reason:
            events += self._reader.finish()
        if not self._shows_reasoning:
            events = [event for event in events if not isinstance(event, Reasoning)]
        return events

    def _placed(self, event: Event) -> Added:
        last = self.parts[-1] if self.parts else None
        match event, last:
            case (Text(text), TextPart() as part) | (Reasoning(text), ReasoningPart() as part):
                return Added(part, text, begins=False)
            case CallArguments(json), CallPart() as part:
                return Added(part, json, begins=False)
            case Text(text), _:
                return self._begun(TextPart(), text)
            case Reasoning(text), _:
                return self._begun(ReasoningPart(), text)
            case CallStart(name), _:
                number = len(self.calls)
                return self._begun(CallPart(self._id_of(number, name), name, number), "")
        raise AssertionError(f"{event} follows {last}")

    def _begun(self, part: Part, text: str) -> Added:
        self.parts.append(part)
        return Added(part, text, begins=True)


class ChatAnswers:
    """The choices of one request, by their index."""

    def __init__(
        self,
        request: ChatCompletionRequest,
        envelope: Envelope,
        dialect: Dialect,
        prompt_end: Callable[[], str],
    ) -> None:
        """``prompt_end`` is known before the first delta."""
        self._dialect = dialect
        self._prompt_end = prompt_end
        self._tools = {tool.name: tool.as_called() for tool in request.usable_tools}
        self._num_earlier_calls = sum(len(message.calls) for message in request.messages)
        self._shows_reasoning = request.shows_reasoning
        self._answer_id = envelope.answer_id
        self._answers: dict[int, ChatAnswer] = {}

    def __getitem__(self, choice: int) -> ChatAnswer:
        if choice not in self._answers:
            self._answers[choice] = ChatAnswer(
                self._reader(),
                partial(self._call_id, choice),
                shows_reasoning=self._shows_reasoning,
            )
        return self._answers[choice]

    def items(self) -> list[tuple[int, ChatAnswer]]:
        """Those that have begun, in order."""
        return sorted(self._answers.items())

    def _reader(self) -> AnswerReader | None:
        if not self._dialect.reads:
            return None
        return AnswerReader(
            self._dialect.chat_format,
            tools=self._tools,
            reads_calls=bool(self._tools),
            thinks=self._dialect.thinks(self._prompt_end()),
            calls_end_thoughts=self._dialect.calls_end_thoughts,
        )

    def _call_id(self, choice: int, number: int, name: str) -> str:
        return call_id(
            self._dialect.chat_format,
            name,
            seed=f"{self._answer_id}/{choice}/{number}",
            number=self._num_earlier_calls + number,
        )

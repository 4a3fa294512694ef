"""The items of a response: the parts of an answer as the Responses API tells of them.

What an item's events say is worked out only for whoever sends them: a replica that goes on with an
answer counts those that another one has sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from deployments.protocol.carried_thought import carried
from deployments.protocol.responses.tools import CallableTool, CustomTool
from deployments.replica.answer_json import encode
from deployments.replica.chat_answer import CallPart, ReasoningPart, TextPart
from deployments.replica.custom_input import CustomInput

Event = tuple[str, Callable[[], str]]
"""Its type behind ``response.``, and its other members as JSON without braces."""
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ItemOutput(ABC):
    def __init__(self, item_id: str, index: int) -> None:
        """``index``: in the output."""
        self.id = item_id
        self._index = index
        self._place = f'"item_id":"{item_id}","output_index":{index}'

    def begin(self) -> Iterator[Event]:
        yield "output_item.added", lambda: self._told(self._json("in_progress", ""))

    @abstractmethod
    def add(self, text: str, logprobs: Sequence[str]) -> Iterator[Event]:
        """``logprobs``: JSON of arrays, without brackets."""

    @abstractmethod
    def end_text(self) -> Iterator[Event]: ...

    def end(self, status: ItemStatus) -> Iterator[Event]:
        yield from self.end_text()
        yield "output_item.done", lambda: self._told(self.json(status))

    @abstractmethod
    def json(self, status: ItemStatus) -> str:
        """With all that has come."""

    @abstractmethod
    def _json(self, status: ItemStatus, text: str) -> str: ...

    def _told(self, item: str) -> str:
        return f'"output_index":{self._index},"item":{item}'


class MessageOutput(ItemOutput):
    def __init__(self, item_id: str, index: int, part: TextPart) -> None:
        super().__init__(f"msg_{item_id}", index)
        self._part = part
        self._place += ',"content_index":0'
        self._logprobs: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield "content_part.added", lambda: f'{self._place},"part":{_output_text("", ())}'

    def add(self, text: str, logprobs: Sequence[str]) -> Iterator[Event]:
        self._logprobs += logprobs
        new = ",".join(logprobs)
        yield (
            "output_text.delta",
            lambda: f'{self._place},"delta":{encode(text)},"logprobs":[{new}]',
        )

    def end_text(self) -> Iterator[Event]:
        logprobs = ",".join(self._logprobs)
        yield (
            "output_text.done",
            lambda: f'{self._place},"text":{encode(self._text)},"logprobs":[{logprobs}]',
        )
        yield "content_part.done", lambda: f'{self._place},"part":{self._content}'

    def json(self, status: ItemStatus) -> str:
        return self._json(status, self._content)

    def _json(self, status: ItemStatus, text: str) -> str:
        return (
            f'{{"type":"message","id":"{self.id}","role":"assistant","status":"{status}",'
            f'"content":[{text}]}}'
        )

    @property
    def _text(self) -> str:
        return "".join(self._part.pieces)

    @property
    def _content(self) -> str:
        return _output_text(self._text, self._logprobs)


class ReasoningOutput(ItemOutput):
    def __init__(self, item_id: str, index: int, part: ReasoningPart, is_carried: bool) -> None:
        """``is_carried``: whether its text is told once more, for clients that can't read it."""
        super().__init__(f"rs_{item_id}", index)
        self._part = part
        self._is_carried = is_carried
        self._place += ',"content_index":0'

    def add(self, text: str, logprobs: Sequence[str]) -> Iterator[Event]:
        yield "reasoning_text.delta", lambda: f'{self._place},"delta":{encode(text)}'

    def end_text(self) -> Iterator[Event]:
        yield "reasoning_text.done", lambda: f'{self._place},"text":{encode(self._text)}'

    def json(self, status: ItemStatus) -> str:
        return self._json(status, f'{{"type":"reasoning_text","text":{encode(self._text)}}}')

    def _json(self, status: ItemStatus, text: str) -> str:
        thought = f'"{carried(self._text)}"' if self._is_carried and text else "null"
        return (
            f'{{"type":"reasoning","id":"{self.id}","status":"{status}","summary":[],'
            f'"content":[{text}],"encrypted_content":{thought}}}'
        )

    @property
    def _text(self) -> str:
        return "".join(self._part.pieces)


class CallOutput(ItemOutput):
    """Of a function."""

    prefix = "fc"
    member = "arguments"
    event = "function_call_arguments"

    def __init__(self, item_id: str, index: int, part: CallPart, tool: CallableTool | None) -> None:
        """``tool``: None for a call of one that was not asked for."""
        super().__init__(f"{self.prefix}_{item_id}", index)
        self._part = part
        names = {"call_id": part.id, "name": tool.tool.name if tool else part.name}
        if tool is not None and tool.namespace is not None:
            names["namespace"] = tool.namespace.name
        self._names = encode(names)[1:-1]

    def add(self, text: str, logprobs: Sequence[str]) -> Iterator[Event]:
        if text:
            yield f"{self.event}.delta", lambda: f'{self._place},"delta":{encode(text)}'

    def end_text(self) -> Iterator[Event]:
        yield f"{self.event}.done", lambda: f'{self._place},"{self.member}":{encode(self._text)}'

    def json(self, status: ItemStatus) -> str:
        return self._json(status, self._text)

    def _json(self, status: ItemStatus, text: str) -> str:
        return (
            f'{{"type":"function_call","id":"{self.id}","status":"{status}",{self._names},'
            f'"arguments":{encode(text)}}}'
        )

    @property
    def _text(self) -> str:
        return "".join(self._part.pieces)


class CustomCallOutput(CallOutput):
    """What it is called with is text, which the model wrote as JSON."""

    prefix = "ctc"
    member = "input"
    event = "custom_tool_call_input"

    def __init__(self, item_id: str, index: int, part: CallPart, tool: CallableTool) -> None:
        super().__init__(item_id, index, part, tool)
        self._reader = CustomInput()

    def add(self, text: str, logprobs: Sequence[str]) -> Iterator[Event]:
        yield from super().add(self._reader.feed(text), logprobs)

    def end_text(self) -> Iterator[Event]:
        yield from super().add(self._reader.finish(), ())
        yield from super().end_text()

    def _json(self, status: ItemStatus, text: str) -> str:
        names = f'"id":"{self.id}",{self._names}'
        return f'{{"type":"custom_tool_call",{names},"input":{encode(text)}}}'

    @property
    def _text(self) -> str:
        reader = CustomInput()
        return reader.feed(super()._text) + reader.finish()


def item_of(
    part: TextPart | ReasoningPart | CallPart,
    item_id: str,
    index: int,
    tools: dict[str, CallableTool],
    *,
    has_carried_thoughts: bool,
) -> ItemOutput:
    """``tools``: by the names that the model knows."""
    match part:
        case TextPart():
            return MessageOutput(item_id, index, part)
        case ReasoningPart():
            return ReasoningOutput(item_id, index, part, has_carried_thoughts)
        case CallPart():
            tool = tools.get(part.name)
            if tool is not None and isinstance(tool.tool, CustomTool):
                return CustomCallOutput(item_id, index, part, tool)
            return CallOutput(item_id, index, part, tool)


def _output_text(text: str, logprobs: Sequence[str]) -> str:
    return (
        f'{{"type":"output_text","annotations":[],"logprobs":[{",".join(logprobs)}],'
        f'"text":{encode(text)}}}'
    )

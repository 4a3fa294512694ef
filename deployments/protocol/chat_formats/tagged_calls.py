"""Calls whose name and parameters stand between tags."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deployments.protocol.chat_formats.events import CallArguments, CallStart
from deployments.protocol.chat_formats.form import (
    MalformedError,
    Reading,
    Tell,
    Tools,
    drop_newline,
    expect,
    passes,
    takes,
    text_until,
)
from deployments.protocol.chat_formats.json_value import JsonValue, decoded
from deployments.protocol.chat_formats.stream import WHITE, Stream
from deployments.protocol.chat_formats.tool import Tool


@dataclass(frozen=True)
class TaggedCalls:
    """The name and each parameter between tags; strings stand there as they are."""

    start: str
    name_end: tuple[str, ...]
    """The first may be taken, others belong to what follows."""
    key_start: str
    key_end: str
    value_end: tuple[str, ...]
    """Ways to end a value."""
    value_start: str = ""
    call_end: str = ""
    end: str = ""
    """Behind ``call_end``."""
    name_start: str = ""
    kinds: tuple[str, str] | None = None
    """What follows a key where the value is a string, and where it is JSON. None: the tool's schema
    tells."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Values that templates write in another way than JSON."""

    opening = ""
    group = None

    @property
    def markers(self) -> tuple[str, ...]:
        return (
            self.start,
            self.end,
            self.key_start,
            self.value_start,
            self.call_end,
            *self.value_end,
        )

    def ways_to_write(self, value: Any) -> list[str]:
        """As JSON, and as templates write it."""
        text = json.dumps(value, ensure_ascii=False)
        return [text, *(word for word, meant in self.words.items() if meant == text)]

    def read(self, stream: Stream, tell: Tell, tools: Tools) -> Reading:
        yield from expect(stream, self.name_start)
        name = (yield from text_until(stream, self.name_end, leave=True)).strip()
        if not name:
            raise MalformedError
        yield from passes(stream, self.name_end[0])
        tell(CallStart(name))
        before = "{"
        while (yield from takes(stream, self.key_start)):
            key = (yield from text_until(stream, (self.key_end,))).strip()
            yield from passes(stream, self.value_start)
            tell(CallArguments(f"{before}{json.dumps(key, ensure_ascii=False)}: "))
            yield from self._read_value(stream, tell, tools.get(name, Tool(name)), key)
            before = ", "
        tell(CallArguments("{}" if before == "{" else "}"))
        yield from passes(stream, self.call_end)
        yield from passes(stream, self.end)

    def _read_value(self, stream: Stream, tell: Tell, tool: Tool, key: str) -> Reading:
        is_text = tool.is_text(key)
        if self.kinds is None:
            if self.value_end[0].startswith("\n"):
                yield from drop_newline(stream)
        elif (yield from takes(stream, self.kinds[0])):
            is_text = True
        elif (yield from takes(stream, self.kinds[1])):
            tell(CallArguments(_as_json((yield from _json_until(stream, self.value_end)))))
            return
        else:
            raise MalformedError
        if not is_text:
            read = text_until if tool.takes_text(key) else _json_until
            text = yield from read(stream, self.value_end)
            tell(CallArguments(tool.value_of(key, text, self.words)))
            return
        tell(CallArguments('"'))
        marker = None
        while marker is None:
            before, marker = stream.take_until(self.value_end)
            if before:
                tell(CallArguments(json.dumps(before, ensure_ascii=False)[1:-1]))
            if marker is None:
                if stream.has_ended:
                    raise MalformedError
                yield
        tell(CallArguments('"'))


def _json_until(stream: Stream, markers: Sequence[str]) -> Generator[None, None, str]:
    """What stands before the first of ``markers`` that is not in one of JSON's strings."""
    value, pieces = JsonValue(), []
    while True:
        before, marker = stream.take_until(markers)
        pieces.append(before)
        if marker is not None:
            value.scan("".join(pieces).lstrip(WHITE)[value.num_scanned :])
            if not value.is_in_string:
                return "".join(pieces)
            pieces.append(marker)
        elif stream.has_ended:
            raise MalformedError
        else:
            yield


def _as_json(text: str) -> str:
    """The text of a value as JSON; what is none is a string."""
    try:
        decoded(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    return text.strip(WHITE)

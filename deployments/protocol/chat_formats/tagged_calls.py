"""Calls whose name and parameters stand between tags."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from deployments.protocol.chat_formats.events import CallArguments, CallStart
from deployments.protocol.chat_formats.form import (
    IsString,
    MalformedError,
    Reading,
    Tell,
    drop_newline,
    expect,
    passes,
    takes,
    text_until,
)
from deployments.protocol.chat_formats.json_value import JsonValue, decoded
from deployments.protocol.chat_formats.stream import WHITE, Stream


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
    """What follows a key where the value is a string, and where it is JSON; values are then just
    what stands there. None: the tool's schema tells, and a new line may stand before a value."""

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

    def read(self, stream: Stream, tell: Tell, is_string: IsString) -> Reading:
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
            yield from self._read_value(stream, tell, is_string(name, key))
            before = ", "
        tell(CallArguments("{}" if before == "{" else "}"))
        yield from passes(stream, self.call_end)
        yield from passes(stream, self.end)

    def _read_value(self, stream: Stream, tell: Tell, is_string: bool | None) -> Reading:
        if self.kinds is None:
            yield from drop_newline(stream)
        elif (yield from takes(stream, self.kinds[0])):
            is_string = True
        elif (yield from takes(stream, self.kinds[1])):
            is_string = False
        else:
            raise MalformedError
        if not is_string:
            text = yield from _json_until(stream, self.value_end)
            tell(CallArguments(_as_json(text, may_be_string=is_string is None)))
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


def _as_json(text: str, *, may_be_string: bool) -> str:
    """The text of a value as JSON; what is none is a string."""
    try:
        value = decoded(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    if may_be_string and isinstance(value, str):
        return json.dumps(text, ensure_ascii=False)
    return text.strip(WHITE)

"""The forms of tool calls, each read from a stream as far as it has come.

A reader is a generator that yields whenever it needs more text. Until the name is known nothing is
told, so that what only looked like a call can still be text; from then on a call is a call, and
what follows is told as it comes, well formed or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from deployments.protocol.chat_formats.events import CallArguments, CallStart, Event
from deployments.protocol.chat_formats.json_value import JsonValue
from deployments.protocol.chat_formats.stream import WHITE, Stream

Reading = Generator[None, None, None]
Tell = Callable[[Event], None]
IsString = Callable[[str, str], bool | None]
"""Whether a tool (by name) takes a string for a parameter (by name); None: nobody knows."""


class MalformedError(Exception):
    """What came is no call, or is one no longer."""


class CallForm(Protocol):
    """How calls are written behind ``start``, up to ``end``, which may be empty."""

    @property
    def start(self) -> str: ...

    @property
    def end(self) -> str: ...

    def read(self, stream: Stream, tell: Tell, is_string: IsString) -> Reading:
        """What stands behind ``start``. Raises ``MalformedError`` where it is no call after all,
        or no longer one, which may be in the middle."""
        ...


@dataclass(frozen=True)
class JsonCalls:
    """``{"name": "f", "arguments": {…}}``, or a list of these."""

    start: str
    end: str = ""

    def read(self, stream: Stream, tell: Tell, is_string: IsString) -> Reading:
        is_list = (yield from _peek(stream)) == "["
        if is_list:
            stream.take(1)
        yield from _read_object(stream, tell)
        while is_list:
            mark = yield from _peek(stream)
            if mark not in ",]":
                raise MalformedError
            stream.take(1)
            is_list = mark == ","
            if is_list:
                yield from _read_object(stream, tell)
        yield from passes(stream, self.end)


@dataclass(frozen=True)
class NamedCalls:
    """The name, ``separator``, the arguments in JSON."""

    start: str
    separator: str
    end: str = ""
    kind: str = ""
    """What stands before the name, if anything, with the separator behind it."""
    fence: tuple[str, str] = ("", "")
    """What stands around the arguments."""
    prefix: str = ""
    """Of the name."""
    is_numbered: bool = False
    """Whether a colon and the call's number follow the name."""

    def read(self, stream: Stream, tell: Tell, is_string: IsString) -> Reading:
        if self.kind:
            yield from _expect(stream, self.kind)
        name = (yield from _text_until(stream, (self.separator,))).strip()
        name = name.removeprefix(self.prefix)
        if self.is_numbered:
            name = name.partition(":")[0]
        if not name:
            raise MalformedError
        yield from _expect(stream, self.fence[0])
        yield from _peek(stream)
        tell(CallStart(name))
        yield from _tell_value(stream, tell)
        yield from passes(stream, self.fence[1])
        yield from passes(stream, self.end)


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

    def read(self, stream: Stream, tell: Tell, is_string: IsString) -> Reading:
        yield from _expect(stream, self.name_start)
        name = (yield from _text_until(stream, self.name_end, leave=True)).strip()
        if not name:
            raise MalformedError
        yield from passes(stream, self.name_end[0])
        tell(CallStart(name))
        before = "{"
        while (yield from _takes(stream, self.key_start)):
            key = (yield from _text_until(stream, (self.key_end,))).strip()
            yield from passes(stream, self.value_start)
            tell(CallArguments(f"{before}{json.dumps(key, ensure_ascii=False)}: "))
            yield from self._read_value(stream, tell, is_string(name, key))
            before = ", "
        tell(CallArguments("{}" if before == "{" else "}"))
        yield from passes(stream, self.call_end)
        yield from passes(stream, self.end)

    def _read_value(self, stream: Stream, tell: Tell, is_string: bool | None) -> Reading:
        yield from _drop_newline(stream)
        if not is_string:
            text = yield from _text_until(stream, self.value_end)
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


def _as_json(text: str, *, may_be_string: bool) -> str:
    """The text of a value as JSON; what is none is a string."""
    try:
        value = json.loads(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    if may_be_string and isinstance(value, str):
        return json.dumps(text, ensure_ascii=False)
    return text.strip(WHITE)


def _read_object(stream: Stream, tell: Tell) -> Reading:
    """A call's object, or one in it that has the same members."""
    call = _Call(tell)
    yield from _read_members(stream, call)
    call.end()


class _Call:
    """The members of a call's object, whatever their order."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.has_begun = False
        self._has_arguments = False
        self._waiting: str | None = None

    def name(self, name: object) -> None:
        if not isinstance(name, str) or not name:
            raise MalformedError
        self.has_begun = True
        self.tell(CallStart(name))
        if self._waiting is not None:
            self.arguments(self._waiting)

    def arguments(self, text: str) -> None:
        """Told whole: they came before the name, or are a string or null."""
        if not self.has_begun:
            self._waiting = text
            return
        value = _decoded(text)
        self.begin_arguments()
        if value is None:
            text = "{}"
        self.tell(CallArguments(value if isinstance(value, str) else text))

    def begin_arguments(self) -> None:
        if self._has_arguments:
            raise MalformedError
        self._has_arguments = True

    def end(self) -> None:
        if not self.has_begun:
            raise MalformedError
        if not self._has_arguments:
            self.tell(CallArguments("{}"))


def _read_members(stream: Stream, call: _Call) -> Reading:
    yield from _expect(stream, "{")
    while True:
        mark = yield from _peek(stream)
        if mark in ",}":
            stream.take(1)
            if mark == "}":
                return
            continue
        key = _decoded((yield from _value(stream)))
        yield from _expect(stream, ":")
        first = yield from _peek(stream)
        if key == "name":
            call.name(_decoded((yield from _value(stream))))
        elif key == "function" and first == "{":
            yield from _read_members(stream, call)
        elif key in ("arguments", "parameters"):
            if call.has_begun and first == "{":
                call.begin_arguments()
                yield from _tell_value(stream, call.tell)
            else:
                call.arguments((yield from _value(stream)))
        else:
            yield from _value(stream)


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise MalformedError from error


def _value(stream: Stream) -> Generator[None, None, str]:
    """A whole JSON value."""
    pieces: list[str] = []
    yield from _scan(stream, pieces.append)
    return "".join(pieces)


def _tell_value(stream: Stream, tell: Tell) -> Reading:
    yield from _scan(stream, lambda piece: tell(CallArguments(piece)))


def _scan(stream: Stream, take: Callable[[str], None]) -> Reading:
    yield from _peek(stream)
    value = JsonValue()
    while not value.has_ended:
        if value.is_malformed:
            raise MalformedError
        if text := stream.text:
            take(stream.take(value.scan(text)))
        elif stream.has_ended:
            raise MalformedError
        else:
            yield


def _peek(stream: Stream) -> Generator[None, None, str]:
    """The next character that is not white, left where it is."""
    while True:
        stream.skip_white()
        if stream.text:
            return stream.text[0]
        if stream.has_ended:
            raise MalformedError
        yield


def _expect(stream: Stream, text: str) -> Reading:
    if text and not (yield from _takes(stream, text)):
        raise MalformedError


def passes(stream: Stream, text: str) -> Reading:
    """``text``, if it is there."""
    if text:
        yield from _takes(stream, text)


def _takes(stream: Stream, text: str) -> Generator[None, None, bool]:
    """Whether ``text`` comes next, behind white space; then both are taken."""
    text = text.strip(WHITE)
    while True:
        rest = stream.text.lstrip(WHITE)
        if rest.startswith(text):
            stream.skip_white()
            stream.take(len(text))
            return True
        if stream.has_ended or not text.startswith(rest):
            return False
        yield


def _text_until(
    stream: Stream, markers: Sequence[str], *, leave: bool = False
) -> Generator[None, None, str]:
    pieces = []
    while True:
        before, marker = stream.take_until(markers, leave=leave)
        pieces.append(before)
        if marker is not None:
            return "".join(pieces)
        if stream.has_ended:
            raise MalformedError
        yield


def _drop_newline(stream: Stream) -> Reading:
    while not stream.text and not stream.has_ended:
        yield
    if stream.text.startswith("\n"):
        stream.take(1)

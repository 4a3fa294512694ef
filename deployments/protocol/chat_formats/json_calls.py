"""Calls whose arguments are JSON."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from deployments.protocol.chat_formats.events import CallArguments, CallStart
from deployments.protocol.chat_formats.form import (
    MalformedError,
    Reading,
    Tell,
    Tools,
    expect,
    passes,
    peek,
    text_until,
)
from deployments.protocol.chat_formats.json_value import JsonValue, decoded, has_halves
from deployments.protocol.chat_formats.stream import Stream


@dataclass(frozen=True)
class JsonCalls:
    """``{"name": "f", "arguments": {…}}``, or a list of these."""

    start: str
    end: str = ""
    is_list: bool = False
    """Whether models write one; it is read in any case."""
    arguments: str = "arguments"
    """The name of that member; others are read, too."""
    has_ids: bool = False
    """Whether models give calls identifiers, which mean nothing to the server."""
    is_bare: bool = False
    """Whether an answer may be a call without ``start``. Then a name with arguments behind it is
    what tells a call from any other JSON."""

    @property
    def markers(self) -> tuple[str, ...]:
        return self.start, self.end

    @property
    def group(self) -> tuple[str, str, str] | None:
        return ("[", ", ", "]") if self.is_list else None

    @property
    def opening(self) -> str:
        return "{" if self.is_bare else ""

    def read(self, stream: Stream, tell: Tell, tools: Tools) -> Reading:
        is_list = (yield from peek(stream)) == "["
        if is_list:
            stream.take(1)
        yield from read_object(stream, tell, is_bare=self.is_bare)
        while is_list:
            mark = yield from peek(stream)
            if mark not in ",]":
                raise MalformedError
            stream.take(1)
            is_list = mark == ","
            if is_list:
                yield from read_object(stream, tell, is_bare=self.is_bare)
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

    opening = ""
    group = None

    @property
    def markers(self) -> tuple[str, ...]:
        return self.start, self.end, self.kind, self.separator

    def read(self, stream: Stream, tell: Tell, tools: Tools) -> Reading:
        yield from expect(stream, self.kind)
        name = (yield from text_until(stream, (self.separator,))).strip()
        name = name.removeprefix(self.prefix)
        if self.is_numbered:
            name = name.partition(":")[0]
        if not name:
            raise MalformedError
        yield from expect(stream, self.fence[0])
        yield from peek(stream)
        tell(CallStart(name))
        yield from _tell_value(stream, tell)
        yield from passes(stream, self.fence[1])
        yield from passes(stream, self.end)


def read_object(stream: Stream, tell: Tell, *, is_bare: bool = False) -> Reading:
    """A call's object, or one in it that has the same members."""
    call = _Call(tell, is_bare)
    yield from _read_members(stream, call)
    call.end()


class _Call:
    """The members of a call's object, whatever their order; if it ``is_bare``, the name goes before
    the arguments, and nothing between them."""

    def __init__(self, tell: Tell, is_bare: bool) -> None:
        self.tell = tell
        self.is_bare = is_bare
        self.has_name = False
        self._name = ""
        self._has_arguments = False
        self._waiting: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether other members than its own may come."""
        return not self.is_bare or self._has_arguments

    def name(self, name: object) -> None:
        if not isinstance(name, str) or not name or has_halves(name) or self.has_name:
            raise MalformedError
        self.has_name = True
        self._name = name
        if not self.is_bare:
            self.tell(CallStart(name))
        if self._waiting is not None:
            self.arguments(self._waiting)

    def arguments(self, text: str) -> None:
        """Told whole: they came before the name, or are a string or null."""
        if not self.has_name:
            if self.is_bare:
                raise MalformedError
            self._waiting = text
            return
        value = _decoded(text)
        self.begin_arguments()
        if value is None:
            text = "{}"
        if isinstance(value, str):
            # In JSON halves of characters can be written, as escapes.
            text = value.encode(errors="backslashreplace").decode()
        self.tell(CallArguments(text))

    def begin_arguments(self) -> None:
        if self._has_arguments:
            raise MalformedError
        self._has_arguments = True
        if self.is_bare:
            self.tell(CallStart(self._name))

    def end(self) -> None:
        if not self.has_name or (self.is_bare and not self._has_arguments):
            raise MalformedError
        if not self._has_arguments:
            self.tell(CallArguments("{}"))


def _read_members(stream: Stream, call: _Call) -> Reading:
    yield from expect(stream, "{")
    while True:
        mark = yield from peek(stream)
        if mark in ",}":
            stream.take(1)
            if mark == "}":
                return
            continue
        key = _decoded((yield from _value(stream)))
        yield from expect(stream, ":")
        first = yield from peek(stream)
        if key == "name":
            call.name(_decoded((yield from _value(stream))))
        elif key in ("arguments", "parameters"):
            if call.has_name and first == "{":
                call.begin_arguments()
                yield from _tell_value(stream, call.tell)
            else:
                call.arguments((yield from _value(stream)))
        elif not call.is_open and key != "type":
            raise MalformedError
        elif key == "function" and first == "{":
            yield from _read_members(stream, call)
        else:
            yield from _value(stream)


def _decoded(text: str) -> object:
    try:
        return decoded(text)
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
    yield from peek(stream)
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

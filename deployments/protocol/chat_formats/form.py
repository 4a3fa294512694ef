"""What a form of tool calls is, and what all of them are read with.

A reader is a generator that yields whenever it needs more text. Until the name is known nothing is
told, so that what only looked like a call can still be text; from then on a call is a call, and
what follows is told as it comes, well formed or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

from deployments.protocol.chat_formats.events import Event
from deployments.protocol.chat_formats.stream import WHITE, Stream
from deployments.protocol.chat_formats.tool import Tool

Reading = Generator[None, None, None]
Tell = Callable[[Event], None]
Tools = Mapping[str, Tool]
"""By name; values of others are read by what they look like."""

NAME = re.compile(r"[\w.:-]*")
KEY = re.compile(r"[\w.$-]*")
"""Of a parameter, where no quotes are needed."""
MAX_NAME_CHARS = 256


class MalformedError(Exception):
    """What came is no call, or is one no longer."""


class CallForm(Protocol):
    """How calls are written behind ``start``, up to ``end``, which may be empty."""

    @property
    def start(self) -> str: ...

    @property
    def end(self) -> str: ...

    @property
    def markers(self) -> tuple[str, ...]:
        """All that may be special tokens."""
        ...

    @property
    def group(self) -> tuple[str, str, str] | None:
        """What stands before, between and behind calls that share a start and an end; None: each
        has its own. Anything is read."""
        ...

    @property
    def opening(self) -> str:
        """The character that an answer begins with which is calls without ``start``; empty: there
        is none such."""
        ...

    def read(self, stream: Stream, tell: Tell, tools: Tools) -> Reading:
        """What stands behind ``start``. Raises ``MalformedError`` where it is no call after all,
        or no longer one, which may be in the middle."""
        ...


def peek(stream: Stream) -> Generator[None, None, str]:
    """The next character that is not white, left where it is."""
    while True:
        stream.skip_white()
        if stream.text:
            return stream.text[0]
        if stream.has_ended:
            raise MalformedError
        yield


def expect(stream: Stream, text: str) -> Reading:
    if text and not (yield from takes(stream, text)):
        raise MalformedError


def passes(stream: Stream, text: str) -> Reading:
    """``text``, if it is there."""
    if text:
        yield from takes(stream, text)


def takes(stream: Stream, text: str) -> Generator[None, None, bool]:
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


def name(stream: Stream, pattern: re.Pattern[str] = NAME) -> Generator[None, None, str]:
    """One of letters, digits, and what else ``pattern`` lets them have, behind white space."""
    yield from peek(stream)
    while True:
        match = pattern.match(stream.text)
        length = match.end() if match else 0
        if length > MAX_NAME_CHARS or (not length and stream.text):
            raise MalformedError
        if length < len(stream.text) or stream.has_ended:
            return stream.take(length)
        yield


def text_until(
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


def drop_newline(stream: Stream) -> Reading:
    while not stream.text and not stream.has_ended:
        yield
    if stream.text.startswith("\n"):
        stream.take(1)

"""Values in a language's own notation, read as they come and told as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from deployments.protocol.chat_formats.form import (
    KEY,
    MalformedError,
    Reading,
    expect,
    name,
    passes,
    peek,
    takes,
)
from deployments.protocol.chat_formats.json_value import as_string, decoded
from deployments.protocol.chat_formats.stream import WHITE, Stream

MAX_DEPTH = 64
BARE_KEY = re.compile(r'[^\s\x00-\x1f:{}\[\],"<][^\x00-\x1f:{}\[\],"<]{0,254}')
"""Of Gemma's: whatever it has is written without quotes."""
MAX_WORD_CHARS = 4096
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_DIGITS = {"x": 2, "u": 4, "U": 8}

Write = Callable[[str], None]


@dataclass(frozen=True)
class Notation:
    quotes: tuple[str, ...]
    """What stands around strings, the longer before what it begins with. In those of punctuation
    alone a backslash escapes what follows."""
    words: Mapping[str, str]
    """Words that are not JSON's own, in JSON."""
    keys: re.Pattern[str] = KEY
    """Of members whose names need no quotes."""
    is_sorted: bool = False
    """Whether templates write members in the order of the alphabet."""


PYTHON = Notation(('"""', "'''", '"', "'"), {"True": "true", "False": "false", "None": "null"})


def read_fields(
    stream: Stream, write: Write, notation: Notation, separator: str, closer: str, depth: int = 0
) -> Reading:
    """Names and values up to ``closer``, which is taken, as an object."""
    before = "{"
    while not (yield from takes(stream, closer)):
        key = yield from _key(stream, notation)
        yield from expect(stream, separator)
        write(f"{before}{as_string(key)}: ")
        yield from _read_value(stream, write, notation, closer, depth)
        yield from passes(stream, ",")
        before = ", "
    write("{}" if before == "{" else "}")


def _read_value(
    stream: Stream, write: Write, notation: Notation, closer: str, depth: int
) -> Reading:
    if depth > MAX_DEPTH:
        raise MalformedError
    for quote in notation.quotes:
        if (yield from takes(stream, quote)):
            write('"')
            yield from _read_string(stream, _quoted(write), quote)
            write('"')
            return
    first = yield from peek(stream)
    if first not in _CLOSERS:
        write(_word((yield from _text_of_word(stream, closer)), notation))
        return
    stream.take(1)
    if first == "{":
        yield from read_fields(stream, write, notation, ":", "}", depth + 1)
        return
    before = "["
    while not (yield from takes(stream, _CLOSERS[first])):
        write(before)
        yield from _read_value(stream, write, notation, _CLOSERS[first], depth + 1)
        yield from passes(stream, ",")
        before = ", "
    write("[]" if before == "[" else "]")


def _key(stream: Stream, notation: Notation) -> Generator[None, None, str]:
    for quote in notation.quotes:
        if (yield from takes(stream, quote)):
            pieces: list[str] = []
            yield from _read_string(stream, pieces.append, quote)
            return "".join(pieces)
    return (yield from name(stream, notation.keys))


def _read_string(stream: Stream, write: Write, quote: str) -> Reading:
    """What stands before ``quote``, which is taken."""
    ends = (quote, "\\") if quote[0] in "\"'" else (quote,)
    marker: str | None = None
    while marker != quote:
        before, marker = stream.take_until(ends)
        if before:
            write(before)
        if marker == "\\":
            write((yield from _escaped(stream)))
        elif marker is None:
            if stream.has_ended:
                raise MalformedError
            yield


def _escaped(stream: Stream) -> Generator[None, None, str]:
    """What stands for the characters behind a backslash."""
    while True:
        text = stream.text
        digits = _DIGITS.get(text[:1], 0)
        if len(text) > digits:
            break
        if stream.has_ended:
            raise MalformedError
        yield
    code = text[1 : 1 + digits]
    stream.take(1)
    if digits and all(one in "0123456789abcdefABCDEF" for one in code):
        stream.take(digits)
        return chr(min(int(code, 16), 0x10FFFF))
    if text[0] == "\n":
        return ""
    # As JSON and Python have it, and otherwise what stands there.
    return _ESCAPES.get(text[0], text[0] if text[0] in "\"'\\/" else f"\\{text[0]}")


def _text_of_word(stream: Stream, closer: str) -> Generator[None, None, str]:
    """Up to a comma or ``closer``, which are left."""
    pieces: list[str] = []
    marker = None
    while marker is None:
        before, marker = stream.take_until((",", closer), leave=True)
        pieces.append(before)
        if sum(map(len, pieces)) > MAX_WORD_CHARS or (marker is None and stream.has_ended):
            raise MalformedError
        if marker is None:
            yield
    return "".join(pieces).strip(WHITE)


def _word(text: str, notation: Notation) -> str:
    if text in notation.words:
        return notation.words[text]
    try:
        decoded(text)
    except ValueError:
        return _number(text) or as_string(text)
    return text


def _number(text: str) -> str:
    """One that is Python's and not JSON's, in JSON; empty: it is none."""
    try:
        value = float(text)
    except ValueError:
        return ""
    return json.dumps(value) if math.isfinite(value) else ""


def _quoted(write: Write) -> Write:
    """Writes text as it stands in JSON's strings."""
    return lambda text: write(as_string(text)[1:-1])

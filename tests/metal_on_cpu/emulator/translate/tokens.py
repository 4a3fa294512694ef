"""Finding one's way in preprocessed C++ (no comments, `#line` directives kept)."""

import re
from collections.abc import Iterator

from ..errors import CompileError

_LINE = re.compile(r'^#line (\d+)(?: "([^"]*)")?[^\n]*$', re.MULTILINE)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def past_match(source: str, start: int, opening: str, closing: str) -> int:
    """The offset just past the bracket that closes the one at `start`."""
    depth = 0
    i = start
    while i < len(source):
        character = source[i]
        if character == '"':
            string = _STRING.match(source, i)
            if string is None:
                raise error(source, i, "unterminated string")
            i = string.end()
            continue
        if character == opening:
            depth += 1
        elif character == closing:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    raise error(source, start, f"no {closing!r} matches")


def split_commas(text: str) -> list[str]:
    """The parts of `text` between commas outside of brackets."""
    parts: list[str] = []
    depth = 0
    current = ""
    for character in text:
        if character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current] if current.strip() else parts


def blank(text: str) -> str:
    """Nothing but the line breaks of `text`, so that later lines keep their numbers."""
    return "\n" * text.count("\n")


def location(source: str, offset: int) -> tuple[str, int]:
    """File name (without folders) and line of `offset`."""
    file, line, start = "source", 1, 0
    for directive in _LINE.finditer(source, 0, offset):
        line = int(directive[1])
        file = directive[2] or file
        start = directive.end() + 1
    return file.rsplit("/", 1)[-1], line + source.count("\n", start, offset)


def error(source: str, offset: int, message: str) -> CompileError:
    file, line = location(source, offset)
    return CompileError(f"{file}:{line}: error: {message}")


def scopes(source: str) -> Iterator[tuple[int, int, str]]:
    """Every `{ ... }`: where it begins and ends, and the text before it that says what it is."""
    stack: list[tuple[int, int]] = []
    statement = 0
    i = 0
    while i < len(source):
        character = source[i]
        if character == '"':
            string = _STRING.match(source, i)
            i = string.end() if string else i + 1
            continue
        if character == "#":
            end = source.find("\n", i)
            i = statement = end if end >= 0 else len(source)
            continue
        if character == "{":
            stack.append((i, statement))
        elif character == "}" and stack:
            begin, head = stack.pop()
            yield begin, i + 1, source[head:begin]
        if character in ";{}":
            statement = i + 1
        i += 1

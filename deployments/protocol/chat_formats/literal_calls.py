"""Calls as a programming language writes them, or nearly: ``f(a="x", n=1)``, ``call:f{a:…}``."""

from __future__ import annotations

from dataclasses import dataclass

from deployments.protocol.chat_formats.events import CallArguments, CallStart
from deployments.protocol.chat_formats.form import (
    Reading,
    Tell,
    Tools,
    expect,
    name,
    passes,
    peek,
    takes,
)
from deployments.protocol.chat_formats.json_calls import read_object
from deployments.protocol.chat_formats.literal import PYTHON, Notation, read_fields
from deployments.protocol.chat_formats.stream import Stream


@dataclass(frozen=True)
class LiteralCalls:
    """A name and its arguments between brackets; several of them in a list, or one below the
    other."""

    start: str
    end: str
    notation: Notation = PYTHON
    brackets: tuple[str, str] = ("(", ")")
    separator: str = "="
    """Between a parameter and its value."""
    prefix: str = ""
    """Of the name."""
    group: tuple[str, str, str] | None = ("[", ", ", "]")
    is_bare: bool = False
    """Whether an answer may be calls in a list without ``start``."""

    @property
    def markers(self) -> tuple[str, ...]:
        return self.start, self.end, *self.notation.quotes

    @property
    def opening(self) -> str:
        return "[" if self.is_bare else ""

    def read(self, stream: Stream, tell: Tell, tools: Tools) -> Reading:
        closer = "]" if (yield from takes(stream, "[")) else self.end
        yield from self._read_call(stream, tell)
        while not (yield from takes(stream, closer)):
            yield from passes(stream, ",")
            yield from self._read_call(stream, tell)
        if closer != self.end:
            yield from passes(stream, self.end)

    def _read_call(self, stream: Stream, tell: Tell) -> Reading:
        if (yield from peek(stream)) == "{":
            # Some checkpoints' templates show JSON between the same marks.
            yield from read_object(stream, tell)
            return
        yield from expect(stream, self.prefix)
        function = yield from name(stream)
        yield from expect(stream, self.brackets[0])
        has_begun = False

        def write(arguments: str) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                tell(CallStart(function))
            tell(CallArguments(arguments))

        yield from read_fields(stream, write, self.notation, self.separator, self.brackets[1])

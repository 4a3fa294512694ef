"""Answers that are messages, each with a header that says what it is: Harmony.

https://github.com/openai/harmony. The prompt ends in the middle of a header, behind
``<|start|>assistant``, so an answer begins with the rest of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

from deployments.protocol.chat_formats.events import CallArguments, CallStart, Reasoning, Text
from deployments.protocol.chat_formats.form import Reading, Tell
from deployments.protocol.chat_formats.stream import WHITE, Stream

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
ENDS = (END, RETURN, CALL)
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
THOUGHT = (f"{CHANNEL}analysis{MESSAGE}", END)
"""What stands before and behind a message that is one."""
RECIPIENT = "to="
TOOLS = "functions."
"""What the names of tools begin with where a header says who the recipient is."""

_OPENINGS = (START, CHANNEL, CONSTRAIN, MESSAGE, RECIPIENT)
_WORDS = ("assistant", "analysis", "commentary", "final", "json", "code", RECIPIENT)
_MARKS = re.compile("|".join(map(re.escape, MARKERS)))
_TOOL = re.compile(rf"{RECIPIENT}{re.escape(TOOLS)}([^\s<]+)")
_THOUGHT = re.compile(rf"{re.escape(CHANNEL)}\s*analysis")


def read_messages(stream: Stream, tell: Tell, *, reads_calls: bool) -> Reading:
    """A whole answer. Without ``reads_calls`` what goes to a tool is for whom its channel says."""
    lines = {Text: _Lines(lambda text: tell(Text(text))), Reasoning: _Lines(_thinker(tell))}
    while (yield from _comes_more(stream)):
        header = ""
        if (yield from _begins_header(stream)):
            header, is_whole = yield from _header(stream)
            if not is_whole:
                lines[Text].say(_strange(header))
                continue
        tool = _TOOL.search(header)
        if tool and reads_calls:
            yield from _read_call(stream, tell, tool[1])
            continue
        kind = lines[Reasoning if _THOUGHT.search(header) else Text]
        kind.begin()
        yield from _read_body(stream, kind.say)


class _Lines:
    """What several messages say, each on a line of its own."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._has_said = self._begins = False

    def begin(self) -> None:
        self._begins = self._has_said

    def say(self, text: str) -> None:
        if text:
            self._say(f"\n{text}" if self._begins else text)
            self._has_said, self._begins = True, False


def _thinker(tell: Tell) -> Callable[[str], None]:
    return lambda text: tell(Reasoning(text))


def _comes_more(stream: Stream) -> Generator[None, None, bool]:
    while not stream.text:
        if stream.has_ended:
            return False
        yield
    return True


def _begins_header(stream: Stream) -> Generator[None, None, bool]:
    while True:
        rest = stream.text.lstrip(WHITE)
        if rest.startswith(_OPENINGS):
            return True
        if stream.has_ended or not any(one.startswith(rest) for one in _OPENINGS):
            return False
        yield


def _header(stream: Stream) -> Generator[None, None, tuple[str, bool]]:
    """A header, and whether a message follows it."""
    pieces = []
    while True:
        before, marker = stream.take_until((MESSAGE, *ENDS))
        pieces.append(before)
        if marker is not None or stream.has_ended:
            return "".join(pieces), marker == MESSAGE
        yield


def _strange(header: str) -> str:
    """What is in it that is no part of a header, or could not become one."""
    words = _MARKS.sub(" ", header).split()
    known = all(word.startswith(_WORDS) for word in words[:-1]) and (
        not words
        or any(word.startswith(words[-1]) for word in _WORDS)
        or (words[-1].startswith(_WORDS))
    )
    return "" if known else _MARKS.sub("", header)


def _read_call(stream: Stream, tell: Tell, tool: str) -> Reading:
    tell(CallStart(tool))
    has_arguments = False

    def say(text: str) -> None:
        nonlocal has_arguments
        has_arguments = has_arguments or bool(text)
        tell(CallArguments(text))

    yield from _read_body(stream, say)
    if not has_arguments:
        tell(CallArguments("{}"))


def _read_body(stream: Stream, say: Callable[[str], None]) -> Reading:
    """Up to its end, which is taken, or to another message's header."""
    while True:
        before, marker = stream.take_until((*ENDS, START, CHANNEL), leave=True)
        say(before)
        if marker is not None:
            stream.take(len(marker) if marker in ENDS else 0)
            return
        if stream.has_ended:
            return
        yield

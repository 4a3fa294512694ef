"""From an answer's text, as it comes, to what it is made of."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from deployments.protocol.chat_formats.events import (
    CallArguments,
    CallStart,
    Event,
    Reasoning,
    Text,
)
from deployments.protocol.chat_formats.form import (
    CallForm,
    MalformedError,
    Reading,
    Tools,
    passes,
    peek,
    takes,
)
from deployments.protocol.chat_formats.messages import read_messages
from deployments.protocol.chat_formats.stream import WHITE, Stream


@dataclass(frozen=True)
class ChatFormat:
    """How a family of models writes what is no plain text."""

    name: str
    calls: tuple[CallForm, ...] = ()
    thinking: tuple[str, str] | None = None
    """What stands before and behind what a model thinks."""
    wrappers: tuple[str, ...] = ()
    """What may stand around calls, and means nothing."""
    answer: tuple[str, str] | None = None
    """What may stand around the answer behind a thought, and means nothing."""
    has_messages: bool = False
    """Whether an answer is messages with headers instead, as in ``messages.py``."""
    call_ids: Literal["plain", "short", "numbered"] = "plain"
    """What a template may take as the name of a call."""

    @property
    def calls_tools(self) -> bool:
        return bool(self.calls) or self.has_messages

    @property
    def first_marker(self) -> str:
        """What calls begin with; empty: nothing."""
        starts = (*self.wrappers[:1], *(form.start for form in self.calls))
        return next(iter(starts), "")


class AnswerReader:
    """Reads one answer. The same text gives the same events however it is cut into pieces, but for
    where the texts of neighbouring events of one kind are cut.

    What may still become a marker is held back, as is white space that may stand before a call.
    What begins like a call and is none is text. No text is lost but markers and the white space
    around them.
    """

    def __init__(
        self,
        chat_format: ChatFormat,
        *,
        tools: Tools = MappingProxyType({}),
        reads_calls: bool = True,
        thinks: bool = False,
        calls_end_thoughts: bool = True,
    ) -> None:
        """``reads_calls``: whether there are any; ``thinks``: whether the prompt has begun a
        thought; ``calls_end_thoughts``: whether a call that begins in one ends it."""
        self._format = chat_format
        self._reads_calls = reads_calls
        self._forms = {form.start: form for form in chat_format.calls if reads_calls}
        self._thinking = chat_format.thinking
        self._markers: Sequence[str] = (
            *self._forms,
            *(chat_format.wrappers if reads_calls else ()),
            *(self._thinking or ())[:1],
        )
        self._tools = tools
        self._in_thoughts: Sequence[str] = (
            (*self._forms, *chat_format.wrappers[:1]) if reads_calls and calls_end_thoughts else ()
        )
        self._stream = Stream()
        self._events: list[Event] = []
        self._white = ""
        """Behind what was told; told, too, if text follows."""
        self._drops_white = False
        """Until text follows: a marker stood before."""
        self._has_said = False
        self._has_thought = False
        self._thought_white = ""
        """As ``_white``, of a thought."""
        self._has_answer_marks = False
        self._has_begun_call = False
        self._has_arguments = False
        self._reading = self._answer(thinks)
        next(self._reading)

    def feed(self, text: str) -> list[Event]:
        """What has become certain with ``text``."""
        self._stream.add(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """What is left when no more text comes. Call it once."""
        self._stream.has_ended = True
        return self._advance()

    def _advance(self) -> list[Event]:
        next(self._reading, None)
        events, self._events = self._events, []
        return _joined(events)

    def _answer(self, thinks: bool) -> Reading:
        # The first text is waited for: nothing can be told of none.
        yield
        if self._format.has_messages:
            yield from read_messages(self._stream, self._tell, reads_calls=self._reads_calls)
            return
        if thinks:
            yield from self._think()
        while True:
            yield from self._bare_calls()
            marker = yield from self._say_until(self._markers)
            if marker is None:
                if not self._drops_white:
                    self._tell(Text(self._white))
                return
            if self._thinking and marker == self._thinking[0]:
                yield from self._think()
            elif form := self._forms.get(marker):
                yield from self._call(form)
            else:
                self._pass_marker()

    def _say_until(self, markers: Sequence[str]) -> Generator[None, None, str | None]:
        """Tell text up to the first of ``markers``, which is returned; None at the end."""
        while True:
            before, marker = (
                self._stream.take_until(markers)
                if markers
                else (
                    self._stream.take(len(self._stream.text)),
                    None,
                )
            )
            self._say(before)
            if marker is not None or (self._stream.has_ended and not self._stream.text):
                return marker
            yield

    def _say(self, text: str) -> None:
        told = (self._white + text).rstrip(WHITE)
        self._white = (self._white + text)[len(told) :]
        if self._drops_white:
            told = told.lstrip(WHITE)
        if told:
            self._drops_white = False
            self._has_said = True
            self._tell(Text(told))

    def _pass_marker(self) -> None:
        """White space around it means nothing."""
        self._white, self._drops_white = "", True

    def _think(self) -> Reading:
        assert self._thinking is not None
        end = self._thinking[1]
        self._pass_marker()
        self._has_thought, self._thought_white = False, ""
        marker = None
        while marker is None and not (self._stream.has_ended and not self._stream.text):
            before, marker = self._stream.take_until((end, *self._in_thoughts))
            self._tell_thought(before)
            if marker is None:
                yield
            elif marker != end and not (yield from self._call_in_thought(marker)):
                self._tell_thought(marker)
                marker = None
        if self._format.answer and not self._has_answer_marks:
            self._has_answer_marks = True
            self._markers = (*self._markers, *self._format.answer)

    def _tell_thought(self, text: str) -> None:
        text = self._thought_white + text
        thought = text.rstrip(WHITE)
        self._thought_white = text[len(thought) :]
        if not self._has_thought:
            thought = thought.lstrip(WHITE)
        if thought:
            self._has_thought = True
            self._tell(Reasoning(thought))

    def _call_in_thought(self, marker: str) -> Generator[None, None, bool]:
        """Whether a call follows ``marker``, which is read then."""
        self._stream.keep()
        self._has_begun_call = False
        (form,) = self._forms.values()
        if marker == form.start or (yield from takes(self._stream, form.start)):
            yield from self._read_call(form)
        if not self._has_begun_call:
            self._stream.rewind()
        return self._has_begun_call

    def _bare_calls(self) -> Reading:
        """Calls without a start, if nothing was said before."""
        forms = [form for form in self._forms.values() if form.opening]
        while forms and not self._has_said:
            self._stream.keep()
            self._has_begun_call = False
            try:
                first = yield from peek(self._stream)
            except MalformedError:
                first = ""
            form = next((form for form in forms if form.opening == first), None)
            if form is not None:
                yield from self._read_call(form)
            if not self._has_begun_call:
                self._stream.rewind()
                return

    def _call(self, form: CallForm) -> Reading:
        self._stream.keep()
        self._has_begun_call = False
        yield from self._read_call(form)
        if not self._has_begun_call:
            self._stream.rewind()
            self._say(form.start)

    def _read_call(self, form: CallForm) -> Reading:
        self._has_arguments = False
        try:
            yield from form.read(self._stream, self._tell, self._tools)
        except MalformedError:
            if not self._has_begun_call:
                return
            if not self._stream.has_ended:
                # What was not told is text, unless it is what the end cut off.
                self._stream.rewind()
            if not self._has_arguments:
                self._tell(CallArguments("{}"))
            yield from passes(self._stream, form.end)
        self._stream.release()
        self._pass_marker()

    def _tell(self, event: Event) -> None:
        if isinstance(event, CallStart):
            self._has_begun_call = True
            self._has_arguments = False
        if isinstance(event, (CallStart, CallArguments)):
            self._has_arguments |= isinstance(event, CallArguments)
            self._stream.keep()
        self._events.append(event)


def _joined(events: Sequence[Event]) -> list[Event]:
    """With neighbours of one kind in one piece, and nothing empty."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        match event, last:
            case Text(""), _:
                pass
            case Text(text), Text(before):
                joined[-1] = Text(before + text)
            case Reasoning(text), Reasoning(before):
                joined[-1] = Reasoning(before + text)
            case CallArguments(text), CallArguments(before):
                joined[-1] = CallArguments(before + text)
            case _:
                joined.append(event)
    return joined

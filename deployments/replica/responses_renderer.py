"""``response`` and its events: item by item, each with what it is made of, then the whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

from deployments.backend import Delta, SamplingParams
from deployments.http import sse
from deployments.protocol.responses.request import ResponsesRequest
from deployments.replica.answer_json import elements
from deployments.replica.chat_answer import Added, ChatAnswer, ChatAnswers, Part, TextPart
from deployments.replica.fold import Usage
from deployments.replica.logprobs import chat_logprobs
from deployments.replica.responses_object import ResponseObject, Status
from deployments.replica.responses_output import (
    Event,
    ItemOutput,
    ItemStatus,
    MessageOutput,
    item_of,
)
from deployments.wire.envelope import Envelope


class ResponsesRenderer:
    """Ids follow from the answer's, so that another replica goes on with those that this one would
    have given; the numbers of its events go on behind those that the client has."""

    def __init__(
        self,
        asked: ResponsesRequest,
        envelope: Envelope,
        answers: ChatAnswers,
        sampling: SamplingParams,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._answer_id = envelope.answer_id
        self._answers = answers
        self._object = ResponseObject(asked, envelope, sampling)
        self._has_logprobs = asked.has_logprobs
        self._has_carried_thoughts = asked.has_carried_thoughts
        self._held_logprobs: list[str] = []
        """Of tokens whose text has not come yet: JSON of arrays, without brackets."""
        self._tools = {one.name: one for one in asked.callables}
        self._items: list[ItemOutput] = []
        self._num_told = envelope.num_events
        self._now = now

    def chunks(self, choice: int, delta: Delta) -> bytes:
        return "".join(map(self._written, self._events(delta))).encode()

    def replay(self, choice: int, delta: Delta) -> None:
        for _ in self._events(delta):
            pass

    def end(self, usage: Usage) -> bytes:
        events = [*self._last_item_ends(self._status), self._ends(usage)]
        return "".join(map(self._written, events)).encode() + sse.DONE

    def add(self, choice: int, delta: Delta) -> None:
        for _ in self._events(delta):
            pass

    def whole(self, usage: Usage) -> bytes:
        for _ in self._last_item_ends(self._status):
            pass
        return self._json(self._status, usage).encode()

    @property
    def _answer(self) -> ChatAnswer:
        """The only one, which can't be read before its prompt's end is known."""
        return self._answers[0]

    def _events(self, delta: Delta) -> Iterator[Event]:
        if not self._num_told:
            for name in ("created", "in_progress"):
                yield name, lambda: f'"response":{self._object.json("in_progress")}'
        told = self._answer.add(delta)
        logprobs = self._logprobs_of(delta, told)
        for added in told:
            if added.begins:
                yield from self._last_item_ends("completed")
                index = len(self._items)
                self._items.append(self._item(added.part, index))
                yield from self._items[-1].begin()
            took = logprobs if isinstance(added.part, TextPart) else []
            yield from self._items[-1].add(added.text, took)
            logprobs = [] if took else logprobs
        if logprobs and self._items and isinstance(self._items[-1], MessageOutput):
            yield from self._items[-1].add("", logprobs)

    def _logprobs_of(self, delta: Delta, told: Sequence[Added]) -> list[str]:
        """Those that go with the text that is told, once there is some."""
        if self._has_logprobs and not delta.replayed:
            # Those of tokens that were replayed are unknown.
            more = elements(chat_logprobs(delta.logprobs)["content"]).decode()
            self._held_logprobs += [more] if more else []
        if not (told or delta.finish_reason):
            return []
        held, self._held_logprobs = self._held_logprobs, []
        return held

    def _last_item_ends(self, status: ItemStatus) -> Iterator[Event]:
        if self._items:
            yield from self._items[-1].end(status)

    @property
    def _status(self) -> Status:
        return "incomplete" if self._answer.finish_reason == "length" else "completed"

    def _ends(self, usage: Usage) -> Event:
        return self._status, lambda: f'"response":{self._json(self._status, usage)}'

    def _json(self, status: Status, usage: Usage) -> str:
        before = (item.json("completed") for item in self._items[:-1])
        last = (item.json(status) for item in self._items[-1:])
        return self._object.json(status, [*before, *last], usage, int(self._now()))

    def _item(self, part: Part, index: int) -> ItemOutput:
        item_id = blake2b(f"{self._answer_id}/{index}".encode(), digest_size=24).hexdigest()
        carried = self._has_carried_thoughts
        return item_of(part, item_id, index, self._tools, has_carried_thoughts=carried)

    def _written(self, event: Event) -> str:
        name, members = event
        number, self._num_told = self._num_told, self._num_told + 1
        return (
            f'event: response.{name}\ndata: {{"type":"response.{name}",'
            f'"sequence_number":{number},{members()}}}\n\n'
        )

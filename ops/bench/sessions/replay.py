"""Replaying a recording through a fleet, in simulated time.

People in different places work at once; the sessions of one place follow each other. A request is
sent when its client has all answers that it had when it sent it, and as long after the last of them
as it took it then.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import httpx

from ops.bench.sessions.fleet import MODEL, Fleet
from ops.bench.sessions.recording import RecordedRequest, Recording, Session

PAUSE_S = 60.0
"""Between two sessions of one place."""
STAGGER_S = 7.0
"""Between the beginnings of work in two places."""
CLIENT_TIMEOUT_S = 600.0

Event = tuple[float, int, Callable[[], Awaitable[None]]]


@dataclass
class _Running:
    session: Session
    ended: dict[int, float] = field(default_factory=dict)
    """When each answer that has ended did."""
    sent: set[int] = field(default_factory=set)

    @property
    def first_s(self) -> float:
        return min(one.arrived_s for one in self.session)


def without_marks(request: RecordedRequest) -> RecordedRequest:
    """The same of a client that nobody knows: its session has no name, and its billing line is one
    of the prompt's like any other."""
    first, *others = request.body["system"]
    body = {**request.body, "system": [{**first, "text": f"- {first['text']}"}, *others]}
    body.pop("metadata", None)
    headers = {name: value for name, value in request.headers.items() if "session-id" not in name}
    return RecordedRequest(request.arrived_s, request.answered_s, headers, body)


class Replay:
    """One at a time; ``answer_s``: from a request to the end of its answer."""

    def __init__(self, fleet: Fleet, client: httpx.AsyncClient, answer_s: float) -> None:
        self._fleet = fleet
        self._client = client
        self._answer_s = answer_s
        self._events: list[Event] = []
        self._order = count()

    async def run(self, recording: Recording) -> None:
        """Raises ``httpx.HTTPStatusError`` for a request that is refused."""
        for number, sessions in enumerate(recording.values()):
            self._at(number * STAGGER_S, partial(self._begin, iter(sessions)))
        while self._events:
            self._fleet.clock.time, _, event = heapq.heappop(self._events)
            await event()

    def _at(self, time: float, event: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    async def _begin(self, sessions: Iterator[Session]) -> None:
        with suppress(StopIteration):
            self._send_next(_Running(next(sessions)), sessions, self._fleet.clock.time)

    def _send_next(self, running: _Running, later: Iterator[Session], began: float) -> None:
        """All requests that wait for no more answers."""
        for index, request in enumerate(running.session):
            answers = [
                other
                for other, one in enumerate(running.session)
                if one.answered_s <= request.arrived_s
            ]
            if index in running.sent or not running.ended.keys() >= set(answers):
                continue
            # Of those that a session begins with, the first is sent at once.
            before = (running.ended[other] for other in answers)
            start = max(before, default=began)
            known_s = (running.session[other].answered_s for other in answers)
            start += request.arrived_s - max(known_s, default=running.first_s)
            running.sent.add(index)
            self._at(start, partial(self._send, running, index, later, began))

    async def _send(
        self, running: _Running, index: int, later: Iterator[Session], began: float
    ) -> None:
        request = running.session[index]
        answer = asyncio.create_task(self._ask(request.body, request.headers))
        held = asyncio.create_task(self._fleet.held.answers.get())
        await asyncio.wait((answer, held), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            held.cancel()
            await answer
            raise RuntimeError("an answer ended that was to be held back")

        async def end() -> None:
            held.result().set()
            await answer
            running.ended[index] = self._fleet.clock.time
            self._send_next(running, later, began)
            if len(running.ended) == len(running.session):
                self._at(self._fleet.clock.time + PAUSE_S, partial(self._begin, later))

        self._at(self._fleet.clock.time + self._answer_s, end)

    async def _ask(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        answer = await self._client.post(
            f"{self._fleet.url}/v1/messages?beta=true",
            json={**body, "model": MODEL},
            headers=dict(headers),
        )
        if answer.is_error or "event: error" in answer.text:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)

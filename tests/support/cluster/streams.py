"""Answers as a client sees them: what they say, when, and how they end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.cluster.requests import Request
from tests.support.cluster.said import Part, Said, Saying

MOST_CUTS = 5
"""That a client puts up with."""
RESUMABLE_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=15)
"""A host that lost its power tells nobody; streams that are well carry keep-alives."""


@dataclass
class Stream:
    """One request's answer, as far as it has come. Times are ``time.monotonic``'s."""

    number: int
    """Of its request."""
    request: Request
    saying: Saying = field(default_factory=Saying)
    sent_at: float = field(default_factory=time.monotonic)
    token_times: list[float] = field(default_factory=list)
    token_parts: list[Part] = field(default_factory=list)
    """What the token of each of these times is of."""
    failure: str | None = None
    done: bool = False
    """The last event has come, and nothing after it."""
    last_event_id: str = ""
    """Of a resumable stream."""
    num_cuts: int = 0
    """How often its client has come back for the rest."""
    _fields: dict[str, str] = field(default_factory=dict)
    """Of an event that is not whole."""

    @property
    def body(self) -> dict[str, Any]:
        salt = {"cache_salt": str(self.sent_at)} if self.request.uncached else {}
        return self.request.body | salt

    @property
    def said(self) -> Said:
        return self.saying.said

    @property
    def is_running(self) -> bool:
        has_begun = bool(self.token_times) or not self.request.body["stream"]
        return has_begun and not self.done and self.failure is None

    def begins_after(self, moment: float) -> bool:
        return bool(self.token_times) and self.sent_at > moment

    def longest_silence_s(self) -> float:
        """Between two tokens."""
        later = self.token_times[1:]
        return max((b - a for a, b in zip(self.token_times, later, strict=False)), default=0.0)

    def take(self, line: str) -> None:
        """A line of the response. Raises ``ValueError`` for what no stream should hold."""
        if line:
            name, _, self._fields[name] = line.partition(": ")
            return
        event, self._fields = self._fields, {}
        if "data" in event:
            self._take_data(event["data"])
            self.last_event_id = event.get("id", "")

    def cut(self) -> None:
        """What has come of an event that is not whole will come again."""
        self.num_cuts += 1
        self._fields = {}

    def _take_data(self, data: str) -> None:
        if self.done:
            raise ValueError(f"after the end: {data}")
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if event.get("error"):
            raise ValueError(data)
        before = self.saying.num_pieces
        self.done = self.saying.take(self.request.path, event)
        self._note_time(before)

    def take_whole(self, answer: dict[str, Any]) -> None:
        """The response to a request that asked for no stream."""
        before = self.saying.num_pieces
        self.saying.take_whole(answer)
        self._note_time(before)
        self.done = True

    def _note_time(self, before: Mapping[Part, int]) -> None:
        """``before``: the pieces that there were."""
        for part, number in self.saying.num_pieces.items():
            if number > before[part]:
                self.token_times.append(time.monotonic())
                self.token_parts.append(part)

    def part_at(self, moment: float) -> Part | None:
        """What was under way then; None: nothing was, or it had just ended."""
        for time_, part, following in zip(
            self.token_times, self.token_parts, self.token_times[1:], strict=False
        ):
            if time_ <= moment < following:
                return part
        return None


async def run_stream(session: aiohttp.ClientSession, url: str, stream: Stream) -> None:
    """Whatever goes wrong is told in ``stream.failure``."""
    while True:
        cut = await _run(session, url, stream)
        if cut is None:
            return
        # A client that has had nothing yet begins anew.
        goes_on = stream.request.resumable and (stream.last_event_id or not stream.token_times)
        if not goes_on or stream.num_cuts == MOST_CUTS:
            stream.failure = cut
            return
        stream.cut()


async def _run(session: aiohttp.ClientSession, url: str, stream: Stream) -> str | None:
    """Why the connection ended before its time, if it did."""
    headers = {}
    if stream.request.resumable:
        headers["X-Pomona-Resumable"] = "1"
    if stream.last_event_id:
        headers["Last-Event-ID"] = stream.last_event_id
    try:
        async with session.post(
            url + stream.request.path,
            json=stream.body,
            headers=headers,
            timeout=RESUMABLE_TIMEOUT if stream.request.resumable else session.timeout,
        ) as response:
            if response.status != 200:
                stream.failure = f"{response.status}: {(await response.text()).strip()}"
                return None
            if not stream.request.body["stream"]:
                stream.take_whole(await response.json())
                return None
            async for line in response.content:
                stream.take(line.decode().rstrip("\r\n"))
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    except ValueError as error:
        stream.failure = f"{type(error).__name__}: {error}"
        return None
    return None if stream.done else "the stream ended before it was done"

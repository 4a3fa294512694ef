"""Answers as a client sees them: what they say, when, and how they end."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.cluster.requests import Request

MOST_CUTS = 5
"""That a client puts up with."""
RESUMABLE_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=15)
"""A host that lost its power tells nobody; streams that are well carry keep-alives."""


@dataclass(frozen=True)
class Said:
    """All of an answer that must not depend on what happens to the cluster meanwhile."""

    text: str
    tokens: tuple[str, ...]
    """Of a request that asks for logprobs."""
    finish_reasons: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int


@dataclass
class Stream:
    """One request's answer, as far as it has come. Times are ``time.monotonic``'s."""

    number: int
    """Of its request."""
    request: Request
    text: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    sent_at: float = field(default_factory=time.monotonic)
    token_times: list[float] = field(default_factory=list)
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
    def said(self) -> Said:
        return Said(
            "".join(self.text),
            tuple(self.tokens),
            tuple(self.finish_reasons),
            self.usage.get("prompt_tokens", 0),
            self.usage.get("completion_tokens", 0),
        )

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
        match self.request.path:
            case "/v1/responses":
                self._take_responses(event)
            case "/v1/messages":
                self._take_messages(event)
            case _:
                self.usage = event.get("usage") or self.usage
                for choice in event["choices"]:
                    self._take_choice(choice)

    def _take_responses(self, event: dict[str, Any]) -> None:
        if event["type"] == "response.output_text.delta":
            self._take_text(event["delta"])
        if event["type"] in ("response.completed", "response.incomplete"):
            self._take_end(event["response"]["status"], event["response"]["usage"])

    def _take_messages(self, event: dict[str, Any]) -> None:
        if event["type"] == "content_block_delta":
            self._take_text(event["delta"]["text"])
        if event["type"] == "message_delta":
            self._take_end(event["delta"]["stop_reason"], event["usage"])
        self.done = event["type"] == "message_stop"

    def _take_text(self, text: str) -> None:
        self.text.append(text)
        self.token_times.append(time.monotonic())

    def _take_end(self, reason: str, usage: dict[str, Any]) -> None:
        self.finish_reasons.append(reason)
        # Anthropic's leaves out what was cached, which losses change.
        num_cached = usage.get("cache_read_input_tokens", 0)
        self.usage = {
            "prompt_tokens": usage["input_tokens"] + num_cached,
            "completion_tokens": usage["output_tokens"],
        }

    def take_whole(self, answer: dict[str, Any]) -> None:
        """The response to a request that asked for no stream."""
        self.usage = answer["usage"]
        for choice in answer["choices"]:
            self._take_choice({"delta": choice.get("message", {}), **choice})
        self.done = True

    def _take_choice(self, choice: dict[str, Any]) -> None:
        if text := choice.get("text") or choice.get("delta", {}).get("content"):
            self._take_text(text)
        if reason := choice["finish_reason"]:
            self.finish_reasons.append(reason)
        logprobs = choice.get("logprobs") or {}
        self.tokens += logprobs.get("tokens") or []
        self.tokens += [one["token"] for one in logprobs.get("content") or []]


async def run_stream(session: aiohttp.ClientSession, url: str, stream: Stream) -> None:
    """Whatever goes wrong is told in ``stream.failure``."""
    while True:
        cut = await _run(session, url, stream)
        if cut is None:
            return
        if not stream.last_event_id or stream.num_cuts == MOST_CUTS:
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
            json=stream.request.body,
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

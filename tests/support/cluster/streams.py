"""Answers as a client sees them: what they say, when, and how they end."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.cluster.requests import Request


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
    """``[DONE]`` has come, and nothing after it."""

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
        if not line or line.startswith(":"):
            return
        if self.done:
            raise ValueError(f"after the end: {line}")
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            raise ValueError(data)
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            self._take_choice(choice)

    def take_whole(self, answer: dict[str, Any]) -> None:
        """The response to a request that asked for no stream."""
        self.usage = answer["usage"]
        for choice in answer["choices"]:
            self._take_choice({"delta": choice.get("message", {}), **choice})
        self.done = True

    def _take_choice(self, choice: dict[str, Any]) -> None:
        if text := choice.get("text") or choice.get("delta", {}).get("content"):
            self.text.append(text)
            self.token_times.append(time.monotonic())
        if reason := choice["finish_reason"]:
            self.finish_reasons.append(reason)
        logprobs = choice.get("logprobs") or {}
        self.tokens += logprobs.get("tokens") or []
        self.tokens += [one["token"] for one in logprobs.get("content") or []]


async def run_stream(session: aiohttp.ClientSession, url: str, stream: Stream) -> None:
    """Whatever goes wrong is told in ``stream.failure``."""
    try:
        async with session.post(url + stream.request.path, json=stream.request.body) as response:
            if response.status != 200:
                stream.failure = f"{response.status}: {(await response.text()).strip()}"
                return
            if not stream.request.body["stream"]:
                stream.take_whole(await response.json())
                return
            async for line in response.content:
                stream.take(line.decode().rstrip("\r\n"))
        if not stream.done:
            stream.failure = "the stream ended before it was done"
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        stream.failure = f"{type(error).__name__}: {error}"

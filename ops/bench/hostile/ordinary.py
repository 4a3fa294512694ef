"""Ordinary streams and a probe of ``/ready``, and what they meet in some seconds."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from ops.bench.hostile.agent import APIS, Agent, Api
from ops.bench.overload.client import Exchange, Outcome
from ops.bench.timing import quantile_of

NUM_STREAMS = 9
"""Three by each API."""
PROBE_INTERVAL_S = 0.05
PATIENCE_S = 30.0
"""For the streams that run when the time is over, and for a probe."""


@dataclass
class Met:
    """``gaps`` between two tokens of a stream, and times of ``ready``, in seconds; infinite for
    an answer that was not 200."""

    seconds: float = 0.0
    tokens: Counter[str] = field(default_factory=Counter)
    """By the API's name."""
    gaps: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def __add__(self, other: Met) -> Met:
        """What was met in both."""
        return Met(
            self.seconds + other.seconds,
            self.tokens + other.tokens,
            self.gaps + other.gaps,
            self.ready + other.ready,
            self.outcomes + other.outcomes,
        )

    @property
    def num_tokens(self) -> int:
        return self.tokens.total()

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def num_failed(self) -> int:
        return sum(not one.whole for one in self.outcomes)

    def gap(self, quantile: float) -> float:
        return quantile_of(self.gaps, quantile) if self.gaps else math.inf

    def ready_within(self, quantile: float) -> float:
        return quantile_of(self.ready, quantile) if self.ready else math.inf


@dataclass
class _Watched(Exchange):
    met: Met = field(kw_only=True)
    api: Api = field(kw_only=True)
    until: float = field(kw_only=True)
    _last: float = 0.0
    _has_ended: bool = False

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        # A chunk that two reads share is in neither: one in thousands.
        if num_chunks := data.count(self.api.chunk):
            if self._last:
                self.met.gaps.append(now - self._last)
            self._last = now
            self.met.tokens[self.api.name] += num_chunks * (now < self.until)
        recent = self.tail + data
        self._has_ended = self._has_ended or any(end in recent for end in self.api.ends)
        super().data_received(data)

    def is_whole(self) -> bool:
        return self._has_ended

    def connection_lost(self, exc: Exception | None) -> None:
        if self._last and not self.is_whole():
            # It stood still until somebody lost patience.
            self.met.gaps.append(time.perf_counter() - self._last)
        super().connection_lost(exc)


async def watch(url: str, model: str, key: str, seconds: float) -> Met:
    """Keep ordinary streams going for so long."""
    met, until = Met(seconds), time.perf_counter() + seconds

    async def ask_again(api: Api) -> None:
        exchange = partial(_Watched, met=met, api=api, until=until)
        client = Agent(url, model, key, exchange, api=api)
        while time.perf_counter() < until:
            asked = asyncio.create_task(client.ask())
            left_s = until - time.perf_counter() + PATIENCE_S
            done, _ = await asyncio.wait([asked], timeout=left_s)
            asked.cancel()
            met.outcomes.append(await asked if done else Outcome(0.0))
            if not met.outcomes[-1].whole:
                await asyncio.sleep(PROBE_INTERVAL_S)

    probing = asyncio.create_task(_probe(url, met, until))
    await asyncio.gather(*(ask_again(APIS[number % len(APIS)]) for number in range(NUM_STREAMS)))
    await probing
    return met


async def _probe(url: str, met: Met, until: float) -> None:
    """By the clock, whether or not earlier ones have been answered."""
    asked, due = [], time.perf_counter()
    while (due := due + PROBE_INTERVAL_S) < until:
        await asyncio.sleep(due - time.perf_counter())
        asked.append(asyncio.create_task(_ready_in(url)))
    met.ready += await asyncio.gather(*asked)


async def _ready_in(url: str) -> float:
    place, start = urlsplit(url), time.perf_counter()
    request = f"GET /ready HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            try:
                writer.write(request.encode())
                status = await reader.readuntil(b"\r\n")
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError):
        return math.inf
    return time.perf_counter() - start if b" 200 " in status else math.inf

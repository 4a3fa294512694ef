"""A client of streams that costs little beside what it measures."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

EVENT = b'data: {"object":"chat.completion.chunk"'
DONE = b"data: [DONE]\n\n"


@dataclass
class Load:
    """What came of some streams."""

    num_chunks: int = 0
    seconds: float = 0.0
    first_chunk_s: list[float] = field(default_factory=list)
    """One a stream: from its request to its first chunk."""
    server_cpu_s: float = 0.0
    """Processor time of the server meanwhile."""

    @property
    def chunks_per_second(self) -> float:
        return self.num_chunks / self.seconds


class _Stream(asyncio.Protocol):
    """One request and the chunks of its answer."""

    def __init__(self, request: bytes, load: Load) -> None:
        self._request = request
        self._load = load
        self._held = b""
        self._first = True
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sent_at = time.perf_counter()
        # uvloop's transports are no asyncio.Transport, but have all of its methods.
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._held + data
        num_chunks = data.count(EVENT)
        self._load.num_chunks += num_chunks
        if num_chunks and self._first:
            self._first = False
            self._load.first_chunk_s.append(time.perf_counter() - self._sent_at)
        if DONE in data and not self.done.done():
            self.done.set_result(None)
        # The longest end that can begin an event without being one.
        self._held = data[data.rfind(b"\n\n") :][-len(EVENT) + 1 :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the stream broke: {self._held!r}"))


async def run_load(
    url: str, secret: str, model: str, *, streams: int, rounds: int, tokens: int, stagger_s: float
) -> Load:
    """``streams`` clients that ask ``rounds`` times each for ``tokens`` tokens, one after another.

    ``stagger_s``: each waits up to this long before each request, so that they don't march in step.
    """
    place = urlsplit(url)
    host, port = str(place.hostname), int(place.port or 80)
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "a question of about eight tokens"}],
            "max_tokens": tokens,
            "stream": True,
        }
    ).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Authorization: Bearer {secret}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    load = Load()
    pauses = random.Random(1)
    loop = asyncio.get_running_loop()

    async def client() -> None:
        for _ in range(rounds):
            await asyncio.sleep(pauses.random() * stagger_s)
            transport, stream = await loop.create_connection(
                lambda: _Stream(request, load), host, port
            )
            try:
                await stream.done
            finally:
                transport.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(streams)))
    load.seconds = time.perf_counter() - start
    if load.num_chunks != streams * rounds * (tokens + 2):
        raise RuntimeError(f"{load.num_chunks} chunks came, not {streams * rounds * (tokens + 2)}")
    return load

"""Clients of an overloaded server, which cost little beside it, and what each request met."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

DONE = b"data: [DONE]\n\n"
FINISHED = b'"finish_reason":"length"'
WORDS = ("apple", "pear", "quince", "grows", "ripens", "keeps", "in", "the", "old", "orchard")
MAX_TOKENS = 64


@dataclass
class Outcome:
    """One request, times by ``time.perf_counter``. ``status`` 0: the connection broke."""

    due: float
    sent: float = 0.0
    status: int = 0
    retry_after: str = ""
    first: float = 0.0
    last: float = 0.0
    whole: bool = False
    """Whether all of its tokens came."""

    @property
    def time_to_first_token(self) -> float:
        return self.first - self.sent

    @property
    def time_per_output_token(self) -> float:
        return (self.last - self.first) / (MAX_TOKENS - 1)


@dataclass
class Exchange(asyncio.Protocol):
    """A request and its answer on a connection of their own."""

    request: bytes
    outcome: Outcome
    done: asyncio.Future[None]
    head: bytes = b""
    tail: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.outcome.sent = time.perf_counter()
        # uvloop's transports are no asyncio.Transport, but have all of its methods.
        cast(asyncio.Transport, transport).write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.outcome.status:
            self.head += data
            if b"\r\n\r\n" not in self.head:
                return
            self._read_head()
            data = self.head.partition(b"\r\n\r\n")[2]
        if b"data: " in data:
            self.outcome.first = self.outcome.first or now
            self.outcome.last = now
        self.tail = (self.tail + data)[-4096:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.outcome.whole = self.is_whole()
        if not self.done.done():
            self.done.set_result(None)

    def is_whole(self) -> bool:
        return DONE in self.tail and FINISHED in self.tail

    def _read_head(self) -> None:
        lines = self.head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        self.outcome.status = int(lines[0].split()[1])
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        self.outcome.retry_after = headers.get("retry-after", "")


@dataclass
class Client:
    """Sends chat requests, each with a prompt that no other has; ``exchange`` follows one."""

    url: str
    model: str
    key: str = ""
    exchange: Callable[[bytes, Outcome, asyncio.Future[None]], Exchange] = Exchange
    _prompts: Iterator[str] = field(default_factory=lambda: _prompts(random.Random(1)))

    async def ask(self, due: float | None = None) -> Outcome:
        """``due``: when it was to be sent; now by default."""
        outcome = Outcome(time.perf_counter() if due is None else due)
        loop = asyncio.get_running_loop()
        exchange = self.exchange(self._request(), outcome, loop.create_future())
        place = urlsplit(self.url)
        try:
            transport, _ = await loop.create_connection(
                lambda: exchange, str(place.hostname), int(place.port or 80)
            )
        except ConnectionError:
            # An outcome as well, and one that the report counts as a failure.
            return outcome
        try:
            await exchange.done
        finally:
            transport.close()
        return outcome

    def _request(self) -> bytes:
        body = json.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": next(self._prompts)}],
                "max_tokens": MAX_TOKENS,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\n"
            f"Authorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def one_by_one(client: Client, num_requests: int) -> list[Outcome]:
    return [await client.ask() for _ in range(num_requests)]


async def closed_loop(client: Client, num_clients: int, seconds: float) -> list[Outcome]:
    """``num_clients`` that ask again as soon as they are answered."""
    start = time.perf_counter()

    async def again() -> list[Outcome]:
        outcomes = []
        while time.perf_counter() < start + seconds:
            outcomes.append(await client.ask())
        return outcomes

    clients = await asyncio.gather(*(again() for _ in range(num_clients)))
    return [outcome for of_one in clients for outcome in of_one]


async def open_loop(client: Client, rate: float, seconds: float) -> list[Outcome]:
    """Requests at Poisson arrivals, ``rate`` a second, whatever becomes of them."""
    clock = random.Random(2)
    start = due = time.perf_counter()
    asked = []
    while (due := due + clock.expovariate(rate)) < start + seconds:
        await asyncio.sleep(due - time.perf_counter())
        asked.append(asyncio.create_task(client.ask(due)))
    return await asyncio.gather(*asked)


def _prompts(dice: random.Random) -> Iterator[str]:
    for number in itertools.count():
        yield f"{number} {' '.join(dice.choices(WORDS, k=dice.randint(10, 40)))}"

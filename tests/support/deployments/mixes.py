"""Clients that stream or not, leave at some point, send several requests at once, or come back."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.access.rate_limits import RateLimits
from tests.support.clock import Clock
from tests.support.deployments.raw_client import Raw, connected

REQUESTS_IN_MIX = 6
STEP_S = 0.2
CLOSE = {"Connection": "close"}


class Mix:
    """What the clients of one key do, which has a limit of tokens."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.key = f"key-{number}"
        self.per_minute = self.random.choice((40, 150, 600, 1500))
        self.began_at: float | None = None

    @property
    def api_key(self) -> ApiKey:
        return ApiKey.of(self.key, self.key, limits=RateLimits(tokens_per_minute=self.per_minute))

    def allowed(self, clock: Clock) -> float:
        """Tokens so far."""
        elapsed_s = 0.0 if self.began_at is None else clock.time - self.began_at
        return self.per_minute * (1 + elapsed_s / 60)

    async def run(self, url: str, clock: Clock) -> None:
        await asyncio.gather(*(self._client(url, clock) for _ in range(2)))

    async def _client(self, url: str, clock: Clock) -> None:
        for _ in range(REQUESTS_IN_MIX // 2):
            clock.time += self.random.random() * STEP_S
            self.began_at = self.began_at or clock.time
            await self._visit(url)

    async def _visit(self, url: str) -> None:
        is_resumable = self.random.random() < 0.3
        body = self._body(is_resumable)
        head = {"X-Pomona-Resumable": "1"} if is_resumable else {}
        async with connected(url) as client:
            for _ in range(self.random.choice((0, 0, 0, 2))):
                client.writer.write(self._request(body, head))
            client.writer.write(self._request(body, head | CLOSE))
            told = await self._read(client)
        seen = re.findall(rb"\nid: (\S+)", told)
        if seen and self.random.random() < 0.7:
            async with connected(url) as client:
                again = {**head, "Last-Event-ID": self.random.choice(seen).decode()}
                client.writer.write(self._request(body, again | CLOSE))
                await self._read(client)

    async def _read(self, client: Raw) -> bytes:
        """Up to some point, slowly or as it comes."""
        told, most = b"", self.random.choice((0, 400, 2000, 1 << 20, 1 << 20))
        for _ in range(self.random.choice((0, 3, 20)) if not most else 0):
            await asyncio.sleep(0)
        while len(told) < most and (chunk := await client.reader.read(1024)):
            told += chunk
        if self.random.random() < 0.5:
            client.writer.transport.abort()
        return told

    def _body(self, is_resumable: bool) -> bytes:
        words = " ".join(f"w{index}" for index in range(self.random.choice((1, 4, 30))))
        body: dict[str, Any] = {
            "model": "demo",
            "n": self.random.choice((1, 1, 2, 4)),
            "ignore_eos": self.random.random() < 0.7,
            "stream": is_resumable or self.random.random() < 0.5,
        }
        if self.random.random() < 0.6:
            body["max_tokens"] = self.random.choice((1, 10, 60, 500, 8000))
        if self.random.random() < 0.2:
            body["logprobs"] = True
        if self.random.random() < 0.5:
            body["messages"] = [{"role": "user", "content": words}]
        else:
            body["prompt"] = [words] * self.random.choice((1, 1, 3))
            if "logprobs" in body:
                body["logprobs"] = 2
        return json.dumps(body).encode()

    def _request(self, body: bytes, headers: dict[str, str]) -> bytes:
        path = "/v1/chat/completions" if b'"messages"' in body else "/v1/completions"
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {self.key}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "\r\n"]).encode() + body

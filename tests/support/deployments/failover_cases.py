"""Streams that are cut at every place where they can be, and what must come of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATHS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}


@dataclass
class Cut:
    """A replica's app that may die in the middle of one response."""

    app: ASGIApp
    after_bytes: int | None = None
    """Of a response's body; None: it lives."""
    hangs: bool = False
    """Whether it falls silent instead of closing the connection."""
    writes: list[bytes] = field(default_factory=list)
    """Bodies of the latest response."""
    num_requests: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        self.num_requests += 1
        self.writes = []
        left, self.after_bytes = self.after_bytes, None

        async def send_some(message: Message) -> None:
            nonlocal left
            body = message.get("body", b"")
            if message["type"] == "http.response.body":
                self.writes.append(body)
            if left is None:
                await send(message)
                return
            last = not message.get("more_body", True)
            if len(body) < left or (message["type"] == "http.response.start"):
                left -= len(body)
                if not last:
                    await send(message)
                    return
            elif left:
                await send({"type": "http.response.body", "body": body[:left], "more_body": True})
            if self.hangs:
                await asyncio.Event().wait()
            raise ConnectionAbortedError("cut off")

        await self.app(scope, receive, send_some)


def places(writes: list[bytes]) -> Iterator[int]:
    """Lengths at which a stream can break: around every event and inside every checkpoint."""
    start = 0
    for write in writes:
        yield start
        for end in (at + 2 for at in range(len(write)) if write[at : at + 2] == b"\n\n"):
            yield start + end - 3
            yield start + end
        start += len(write)


@dataclass(frozen=True)
class Seen:
    """What a client makes of an answer, however its events were cut into chunks."""

    choices: dict[int, list[dict[str, Any]]]
    """Of each choice, the parts in order."""
    others: list[dict[str, Any]]
    """Chunks without a choice: the usage."""


def seen(response: httpx.Response, *, stream: bool) -> Seen:
    """Raises ``AssertionError`` for an answer that isn't one whole success."""
    assert response.status_code == 200, response.text
    if stream:
        *events, done = [e for e in response.text.split("\n\n")[:-1] if not e.startswith(":")]
        assert done == "data: [DONE]", response.text
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    else:
        chunks = [response.json()]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    seen = Seen({}, [])
    for chunk in chunks:
        if not chunk["choices"] or not stream:
            seen.others.append(chunk["usage"])
        for choice in chunk["choices"]:
            # What a choice has so far is its own affair.
            running = {"usage": chunk["usage"]} if stream and chunk.get("usage") else {}
            seen.choices.setdefault(choice["index"], []).append(choice | running)
    return seen


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Seen:
    path = next(path for name, path in PATHS.items() if name in body)
    response = await client.post(path, json=body)
    return seen(response, stream=body.get("stream", False))

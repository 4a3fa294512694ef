"""One beat: a streamed completion, and what it came to."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Literal, get_args

import httpx

Outcome = Literal["success", "refused", "error", "cut", "unreachable", "timeout"]
"""``refused``: 429, the fleet is full. ``error``: another status, or an error within the stream.
``cut``: it broke off, or ended without its last event."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
PROMPT = "The heart beats:"
MAX_TOKENS = 2


@dataclass(frozen=True)
class Beat:
    outcome: Outcome
    duration_s: float
    first_token_s: float | None
    """None if there was none."""


@dataclass
class _Stream:
    """How far one has come."""

    has_begun: bool = False
    first_token_at: float | None = None


async def beat(
    http: httpx.AsyncClient, url: str, model: str, *, api_key: str | None, timeout_s: float
) -> Beat:
    start = time.perf_counter()
    stream = _Stream()
    try:
        async with asyncio.timeout(timeout_s):
            outcome = await _complete(http, url, model, api_key, stream)
    except TimeoutError:
        outcome = "timeout"
    except httpx.TransportError:
        outcome = "cut" if stream.has_begun else "unreachable"
    first_token = stream.first_token_at
    return Beat(
        outcome, time.perf_counter() - start, None if first_token is None else first_token - start
    )


async def _complete(
    http: httpx.AsyncClient, url: str, model: str, api_key: str | None, stream: _Stream
) -> Outcome:
    body = {"model": model, "prompt": PROMPT, "max_tokens": MAX_TOKENS, "stream": True}
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = http.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=None)
    async with request as response:
        stream.has_begun = True
        if response.status_code != 200:
            return "refused" if response.status_code == 429 else "error"
        async for line in response.aiter_lines():
            name, _, data = line.partition(": ")
            if name != "data":
                continue
            if data == "[DONE]":
                return "success"
            if "error" in json.loads(data):
                return "error"
            stream.first_token_at = stream.first_token_at or time.perf_counter()
    return "cut"

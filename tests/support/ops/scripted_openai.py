"""A server of OpenAI's streams without a model, which knows what it sent and when, and can be
wrong in every way that a client has to notice."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ops.bench.serve import SERVERS, Api, Target
from tests.support.deployments.gateway_harness import serving

Wrong = Literal[
    "",
    "cut",
    "error_event",
    "no_done",
    "beyond_done",
    "no_json",
    "two_ends",
    "no_end",
    "no_usage",
    "usage_too_low",
    "usage_of_prompt",
    "too_short",
    "too_long",
    "stops",
    "other_tokens",
    "no_ids",
    "silent",
    "429",
    "500",
]
VOCAB_SIZE = 1000
PROMPT_TOKENS_OF_A_CHAT = 7


@dataclass
class Exchange:
    """One request and what was sent for it."""

    body: dict[str, Any]
    authorization: str
    arrived: float
    token_ids: list[int] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    """When each token's event was handed over, by ``time.perf_counter``."""


@dataclass
class ScriptedServer:
    """``wrong``: what is, with each ``wrong_every``-th request. ``step_s`` between tokens, of which
    an event has ``tokens_an_event``. Nobody is answered before ``waits_for`` requests have come.
    ``miscounted`` is added to its own count of tokens."""

    wrong: Wrong = ""
    wrong_every: int = 1
    step_s: float = 0.0
    tokens_an_event: int = 1
    waits_for: int = 0
    miscounted: int = 0
    exchanges: list[Exchange] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0
    counts: dict[str, float] = field(default_factory=dict)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/completions", self._generate, methods=["POST"]),
                Route("/v1/chat/completions", self._generate, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/targets", self._targets),
                Route("/metrics", self._metrics),
            ]
        )

    async def _generate(self, request: Request) -> Response:
        exchange = Exchange(
            await request.json(), request.headers.get("authorization", ""), time.perf_counter()
        )
        self.exchanges.append(exchange)
        wrong = self.wrong if len(self.exchanges) % self.wrong_every == 0 else ""
        if wrong == "429":
            return Response(status_code=429, headers={"Retry-After": "3"})
        if wrong == "500":
            return JSONResponse({"error": {"message": "out of order"}}, 500)
        stream = self._stream(exchange, wrong, is_chat="chat" in request.url.path)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _stream(
        self, exchange: Exchange, wrong: Wrong, *, is_chat: bool
    ) -> AsyncIterator[bytes]:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            while len(self.exchanges) < self.waits_for:
                await asyncio.sleep(0.005)
            async for event in self._events(exchange, wrong, is_chat=is_chat):
                yield event
        finally:
            self.num_running -= 1

    async def _events(
        self, exchange: Exchange, wrong: Wrong, *, is_chat: bool
    ) -> AsyncIterator[bytes]:
        body = exchange.body
        most = body["max_tokens"]
        count = {"too_short": most - 1, "stops": most - 1, "too_long": most + 1}.get(wrong, most)
        said = body["messages"] if is_chat else body["prompt"]
        first = zlib.crc32(json.dumps(said).encode())
        first += len(self.exchanges) * (wrong == "other_tokens")
        ids = [(first + step) % VOCAB_SIZE for step in range(count)]
        prompt_tokens = len(said) if isinstance(said, list) and not is_chat else 0
        prompt_tokens = prompt_tokens or PROMPT_TOKENS_OF_A_CHAT
        yield b": a comment\n\n"
        if is_chat:
            yield _event({"delta": {"role": "assistant", "content": ""}, "token_ids": []}, is_chat)
        for at in range(0, count, self.tokens_an_event):
            await asyncio.sleep(self.step_s)
            if at and wrong == "silent":
                await asyncio.sleep(30)
            if at and wrong == "error_event":
                yield b'data: {"error": {"message": "the engine is gone"}}\n\n'
                return
            if at and wrong == "cut":
                raise ConnectionAbortedError("cut, as a lost host cuts it")
            added = ids[at : at + self.tokens_an_event]
            text = "".join(f" {one}" for one in added)
            choice: dict[str, Any] = {"delta": {"content": text}} if is_chat else {"text": text}
            if body.get("return_token_ids") and wrong != "no_ids":
                choice["token_ids"] = added
            exchange.token_ids += added
            exchange.sent.append(time.perf_counter())
            yield _event(choice, is_chat)
        end: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
        end["finish_reason"] = "stop" if wrong == "stops" else "length"
        for _ in range({"two_ends": 2, "no_end": 0}.get(wrong, 1)):
            yield _event(end, is_chat)
        usage = {
            "prompt_tokens": prompt_tokens + (wrong == "usage_of_prompt"),
            "completion_tokens": count - (wrong == "usage_too_low"),
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        if wrong != "no_usage":
            yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        if wrong == "no_json":
            yield b"data: {\n\n"
        self._count(exchange, prompt_tokens)
        if wrong != "no_done":
            yield b"data: [DONE]\n\n"
        if wrong == "beyond_done":
            yield _event(end, is_chat)

    def _count(self, exchange: Exchange, prompt_tokens: int) -> None:
        times = exchange.sent
        added = {
            'pomona_request_success_total{model="m"}': 1,
            'pomona_prompt_tokens_total{model="m"}': prompt_tokens,
            'pomona_generation_tokens_total{model="m"}': len(exchange.token_ids) + self.miscounted,
            'pomona_generation_tokens_total{model="another"}': 99,
        }
        for name, stage, sum_, count in (
            ("time_to_first_token", "engine", times[0] - exchange.arrived, 1),
            ("time_to_first_token", "gateway", times[0] - exchange.arrived, 1),
            ("inter_token_latency", "engine", times[-1] - times[0], len(exchange.token_ids) - 1),
            ("e2e_request_latency", "engine", times[-1] - exchange.arrived, 1),
        ):
            for part, value in (("sum", sum_), ("count", count)):
                added[f'pomona_{name}_seconds_{part}{{model="m",stage="{stage}"}}'] = value
        for sample, value in added.items():
            self.counts[sample] = self.counts.get(sample, 0) + value

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "m", "owned_by": "pomona"}]})

    async def _targets(self, request: Request) -> Response:
        labels = {"__metrics_path__": "/metrics", "model": "m"}
        others = {**labels, "model": "another"}
        address = urlsplit(str(request.url)).netloc
        return JSONResponse(
            [{"targets": [address], "labels": labels}, {"targets": ["gone:1"], "labels": others}]
        )

    async def _metrics(self, request: Request) -> Response:
        assert "authorization" not in request.headers
        lines = [f"{sample} {value}" for sample, value in sorted(self.counts.items())]
        return PlainTextResponse("\n".join([*lines, ""]))


def _event(choice: dict[str, Any], is_chat: bool) -> bytes:
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    event = {"object": kind, "choices": [{"index": 0, "finish_reason": None, **choice}]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


@asynccontextmanager
async def scripted(
    server: ScriptedServer, *, api: Api = "completions", known_as: str = "pomona"
) -> AsyncIterator[Target]:
    async with serving(server.app()) as url:
        yield Target(url, "m", api, SERVERS[known_as], api_key="a key")

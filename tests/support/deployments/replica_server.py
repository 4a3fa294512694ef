"""A replica's app over the fake backend, called in memory or through a real server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from prometheus_client import CollectorRegistry, Counter
from starlette.applications import Starlette
from starlette.types import ASGIApp

from deployments.backend import AttentionStatus, EngineConfig
from deployments.replica.app import build_replica_app
from tests.support.deployments.fake_backend import FakeBackend

MODEL = "echo"
SECRET = "the-deployment's-secret"
AUTHORIZED = {"Authorization": f"Bearer {SECRET}"}
MAX_BODY_BYTES = 1024 * 1024
MAX_MODEL_LEN = 200


async def build(
    *,
    keep_alive_interval_s: float = 60.0,
    options: dict[str, Any] | None = None,
    attention_status: AttentionStatus | None = None,
    **engine: Any,
) -> tuple[Starlette, FakeBackend]:
    backend = FakeBackend()
    backend.attention = attention_status
    config = {"backend": "fake", "model": MODEL, "max_model_len": MAX_MODEL_LEN, **engine}
    model = await backend.start(EngineConfig(options=options or {}, **config))
    registry = CollectorRegistry()
    Counter("pomona_steps", "Steps.", registry=registry).inc(3)
    app = build_replica_app(
        backend=backend,
        model=model,
        secret=SECRET,
        registry=registry,
        on_failure=lambda error_type: None,
        max_body_bytes=MAX_BODY_BYTES,
        keep_alive_interval_s=keep_alive_interval_s,
    )
    return app, backend


def in_memory(app: ASGIApp) -> httpx.AsyncClient:
    """Whole responses only; a fault of the app is answered as a server would."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://replica", headers=AUTHORIZED)


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """The URL of a real server on a free port, which has stopped when the block is left."""
    # With the protocol named, asyncio turns Nagle's algorithm off: 40 ms a response otherwise.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    config = uvicorn.Config(app, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def client_of(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a real server."""
    async with (
        served(app) as url,
        httpx.AsyncClient(base_url=url, headers=AUTHORIZED, timeout=30) as client,
    ):
        yield client


def chat(content: str = "one two three", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def completion(prompt: Any = "one two three", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, **fields}


def events_of(text: str) -> list[Any]:
    """The data of each event, decoded, with ``[DONE]`` and comments as they came."""
    events = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        data = event.removeprefix("data: ")
        events.append(json.loads(data) if data.startswith("{") else data)
    return events

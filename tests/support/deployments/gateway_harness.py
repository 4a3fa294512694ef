"""A gateway and its replicas as real HTTP servers in one event loop, without Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.backend import EngineConfig
from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.fleet.targets import GatewayAddress
from deployments.gateway.access.api_keys import ApiKey, KeyRing, Keys
from deployments.gateway.access.rate_limits import RateLimiter
from deployments.gateway.app import GatewayParts, build_gateway_app
from deployments.gateway.body_budget import BodyBudget
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.responses.shared import SharedStore
from deployments.gateway.responses.store import ResponseStore
from deployments.gateway.routing import LeastOutstandingTokens, Router
from deployments.gateway.watch.watch import FleetWatch
from deployments.http.bounded_protocol import ClientTimeouts
from deployments.http.server import HttpServer
from deployments.observe.metrics import EngineMetrics, GatewayMetrics, Identity
from deployments.observe.tracing import NoOpTracer, Tracer
from deployments.replica.app import build_replica_app
from deployments.settings import GatewaySettings
from deployments.wire.failure import FAILURE_HEADER, FailureKind
from tests.support.deployments.fake_backend import FakeBackend

SECRET = "the-deployments-secret"
RESUMPTION_KEY = b"the-applications-key"
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "one two three"}]}


@dataclass
class Running:
    """``replicas`` are in the directory in the order in which the router would take turns."""

    app: Starlette
    client: httpx.AsyncClient
    directory: ReplicaDirectory
    table: ReplicaTable
    metrics: GatewayMetrics
    url: str
    bodies: BodyBudget


@asynccontextmanager
async def gateway(
    replicas: Sequence[Replica],
    *,
    keys: Sequence[str] | Keys = (),
    limiter: RateLimiter | None = None,
    now: Callable[[], float] = time.monotonic,
    router: Router | None = None,
    session_header: Sequence[str] = (),
    tracer: Tracer | None = None,
    timeouts: ClientTimeouts | None = None,
    resumption_key: bytes = RESUMPTION_KEY,
    responses: ResponseStore | None = None,
    watches: bool = False,
    **settings: Any,
) -> AsyncIterator[Running]:
    directory = ReplicaDirectory(replicas)
    table = ReplicaTable(directory, load_half_life_s=10.0, now=now)
    metrics = GatewayMetrics(replica="gateway-1", node="10.0.0.1")
    async with AsyncExitStack() as stack:
        connections = stack.enter_context(closing(ReplicaConnections()))

        async def gateways() -> list[GatewayAddress]:
            return [GatewayAddress("gateway-1", "10.0.0.1", "http://10.0.0.1:9000")]

        watch = None
        if watches:
            watch = FleetWatch(
                table, connections, gateways, gateway="gateway-1", version="1", now=now
            )
            watching = asyncio.create_task(watch.run_for_ever())
        parts = GatewayParts(
            settings=GatewaySettings.model_validate(settings),
            keys=_key_ring(keys) if isinstance(keys, Sequence) else keys,
            limiter=limiter or RateLimiter(),
            replicas=table,
            router=router or LeastOutstandingTokens(),
            metrics=metrics,
            connections=connections,
            gateways=gateways,
            resumption_key=resumption_key,
            session_header=session_header,
            tracer=tracer or NoOpTracer(),
            responses=SharedStore(responses, metrics.stored_responses) if responses else None,
            watch=watch,
        )
        app = build_gateway_app(parts)
        url = await stack.enter_async_context(serving(app, timeouts=timeouts))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30))
        try:
            yield Running(app, client, directory, table, metrics, url, parts.bodies)
        finally:
            if watches:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
    table.check_integrity()
    assert all(one.is_idle for one in table.serving("demo"))


def _key_ring(keys: Sequence[str]) -> KeyRing:
    return KeyRing(ApiKey.of(f"key-{number}", key) for number, key in enumerate(keys))


def failures(running: Running) -> dict[tuple[str, str], float]:
    """(model, error type) to what the gateway has counted of it."""
    return {
        (sample.labels["model"], sample.labels["error_type"]): sample.value
        for family in running.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "pomona_request_failure_total" and sample.value
    }


async def outcomes(running: Running) -> dict[tuple[str, str], float]:
    """(model, outcome) to how many requests the gateway has counted as it."""
    # A request is counted after its last byte: a round trip later it has been.
    await running.client.get("/health")
    return counted_outcomes(running)


def counted_outcomes(running: Running) -> dict[tuple[str, str], float]:
    """Of those requests whose last byte was sent some time ago."""
    return {
        (sample.labels["model"], sample.labels["outcome"]): sample.value
        for family in running.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "pomona_gateway_requests_total" and sample.value
    }


@asynccontextmanager
async def serving(app: ASGIApp, *, timeouts: ClientTimeouts | None = None) -> AsyncIterator[str]:
    server = HttpServer(app, host="127.0.0.1", port=0, timeouts=timeouts)
    url = await server.start()
    try:
        yield url
    finally:
        await server.stop()


@asynccontextmanager
async def fake_replica(
    backend: FakeBackend | None = None, *, name: str = "replica-1", **config: Any
) -> AsyncIterator[Replica]:
    """The shipped replica server over the fake backend."""
    backend = backend or FakeBackend()
    async with serving(await replica_app(backend, name=name, **config)) as url:
        yield replica_at(url, name=name)
        await backend.stop()


async def replica_app(
    backend: FakeBackend, *, name: str = "replica-1", tracer: Tracer | None = None, **config: Any
) -> Starlette:
    engine = EngineConfig.model_validate({"model": "demo", **config})
    model = await backend.start(engine)
    metrics = EngineMetrics(backend.stats, Identity("demo", name, "10.0.0.2"))
    return build_replica_app(
        tracer=tracer,
        backend=backend,
        model=model,
        secret=SECRET,
        registry=metrics.registry,
        on_failure=metrics.failed,
        max_body_bytes=1 << 20,
        keep_alive_interval_s=0.05,
        max_num_seqs=engine.max_num_seqs,
    )


def nowhere(name: str = "one") -> Replica:
    """A replica that nobody asks."""
    return replica_at("http://nowhere", name=name)


def replica_at(
    url: str, *, name: str = "replica-1", model: str = "demo", longest_token: int = 0
) -> Replica:
    return Replica(
        replica_id=name,
        node="10.0.0.2",
        url=url,
        model=model,
        max_model_len=4096,
        secret=SECRET,
        longest_token=longest_token,
    )


@dataclass
class ScriptedReplica:
    """Answers every request with the same status, headers and chunks; then may just vanish.
    ``failure``: what it calls this answer."""

    status: int = 200
    headers: list[tuple[bytes, bytes]] = field(
        default_factory=lambda: [
            (b"content-type", b"text/event-stream"),
            (b"x-pomona-checkpoints", b"1"),
        ]
    )
    chunks: Sequence[bytes] = ()
    failure: FailureKind | None = None
    then: str = "end"
    """`end`, `vanish` (closes the connection mid-response) or `hang`."""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        names = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append((names, body))
        headers = list(self.headers)
        if self.failure is not None:
            headers.append((FAILURE_HEADER.encode(), self.failure.encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for chunk in self.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            # A turn of the loop, so that chunks are usually sent one by one.
            await asyncio.sleep(0)
        if self.then == "vanish":
            raise ConnectionAbortedError("the scripted replica vanishes")
        if self.then == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.closed.set()
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def scripted(replica: ScriptedReplica, *, name: str = "replica-1") -> AsyncIterator[Replica]:
    async with serving(replica) as url:
        yield replica_at(url, name=name)

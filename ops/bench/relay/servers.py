"""A replica without a model and a gateway in front of it, each a process of its own.

Both are the apps that are shipped; only the engine is replaced, by one that has every token ready.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psutil
import uvloop
from prometheus_client import CollectorRegistry

from deployments.backend import (
    BackendStats,
    Delta,
    EngineConfig,
    GenerationRequest,
    Histogram,
    ModelInfo,
    Pooled,
    PoolingRequest,
    SpelledToken,
)
from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.fleet.targets import GatewayAddress
from deployments.gateway.access.api_keys import KeyRing
from deployments.gateway.app import GatewayParts, build_gateway_app
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.routing import build_router
from deployments.gateway.watch.watch import FleetWatch
from deployments.http.server import HttpServer
from deployments.observe.metrics import GatewayMetrics
from deployments.replica.app import build_replica_app
from deployments.serve.garbage_collection import spare_what_is_there
from deployments.settings import GatewaySettings, RoutingSettings

HOST = "127.0.0.1"
SECRET = "of-the-benchmark"
MAX_MODEL_LEN = 1 << 20
START_TIMEOUT_S = 300.0

Server = Callable[..., Coroutine[Any, Any, Any]]


class ReadyBackend:
    """Says the same word at every step; every ``step_s`` seconds all its sequences make one."""

    def __init__(self, name: str, step_s: float) -> None:
        self.name = name
        self.step_s = step_s
        self._num_running = 0
        self._has_work = asyncio.Event()
        self._stepped = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None

    def check(self, config: EngineConfig) -> None: ...

    async def start(self, config: EngineConfig) -> ModelInfo:
        self._stepping = asyncio.create_task(self._step())
        return ModelInfo(self.name, MAX_MODEL_LEN)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        assert request.sampling.max_tokens is not None
        one = Delta(0, " token", (31_337,), num_prompt_tokens=8, num_cached_tokens=0)
        last = Delta(
            0, ".", (13,), num_prompt_tokens=8, num_cached_tokens=0, finish_reason="length"
        )
        self._num_running += 1
        self._has_work.set()
        try:
            yield one
            for _ in range(request.sampling.max_tokens - 2):
                await self._stepped.wait()
                yield one
            yield last
        finally:
            self._num_running -= 1

    async def tokenize(
        self, request: GenerationRequest, *, add_special_tokens: bool = True
    ) -> list[int]:
        raise NotImplementedError

    async def detokenize(self, token_ids: Sequence[int], *, tenant: str = "") -> str:
        raise NotImplementedError

    async def spell(self, token_ids: Sequence[int], *, tenant: str = "") -> list[SpelledToken]:
        raise NotImplementedError

    async def pool(self, request: PoolingRequest) -> AsyncGenerator[Pooled, None]:
        raise NotImplementedError
        yield

    async def _step(self) -> None:
        while True:
            if not self._num_running:
                # One that has nothing to do must not take time from the others.
                self._has_work.clear()
                await self._has_work.wait()
            await asyncio.sleep(self.step_s)
            self._stepped.set()
            self._stepped = asyncio.Event()

    def stats(self) -> BackendStats:
        none = Histogram((), (0,), 0.0)
        return BackendStats(
            *(0, 0, 1, 1, 0), {}, {}, *(0, 0, 0, 0, 0, 0), {}, *(none, none, none, none, none, none)
        )

    async def check_health(self) -> None: ...

    async def drain(self) -> None: ...

    async def stop(self) -> None: ...


async def serve_replicas(step_s_of_model: dict[str, float]) -> list[Replica]:
    """One replica for each model, all in this process."""
    return [
        await serve_replica(ReadyBackend(name, step_s)) for name, step_s in step_s_of_model.items()
    ]


async def serve_replica(backend: ReadyBackend) -> Replica:
    model = await backend.start(EngineConfig())
    app = build_replica_app(
        backend=backend,
        model=model,
        secret=SECRET,
        registry=CollectorRegistry(),
        on_failure=lambda error_type: None,
        max_body_bytes=1 << 20,
        keep_alive_interval_s=5.0,
    )
    url = await HttpServer(app, host=HOST, port=0).start()
    return Replica(model.name, HOST, url, model.name, model.max_model_len, SECRET)


async def serve_gateway(replicas: list[Replica]) -> str:
    async def gateways() -> list[GatewayAddress]:
        return []

    routing = RoutingSettings()
    directory = ReplicaDirectory(replicas)
    table = ReplicaTable(directory, load_half_life_s=routing.load_half_life_s)
    connections = ReplicaConnections()
    watch = FleetWatch(table, connections, gateways, gateway="gateway", version="")
    app = build_gateway_app(
        GatewayParts(
            settings=GatewaySettings(),
            keys=KeyRing([]),
            replicas=table,
            router=build_router(routing),
            metrics=GatewayMetrics(replica="gateway", node=HOST),
            connections=connections,
            gateways=gateways,
            watch=watch,
        )
    )
    app.state.watching = asyncio.create_task(watch.run_for_ever())
    return await HttpServer(app, host=HOST, port=0).start()


class Running(NamedTuple):
    place: Any
    """What the server returned: where it is."""
    process: psutil.Process


@contextmanager
def process(server: Server, *arguments: Any) -> Iterator[Running]:
    """``server`` in a process of its own for as long as the block runs. Raises ``RuntimeError`` if
    it ends instead of starting, which its own traceback explains, or takes too long."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    running = context.Process(target=_run, args=(theirs, server, *arguments), daemon=True)
    running.start()
    # So that the other process has the only one, and its end is told at once.
    theirs.close()
    try:
        if not ours.poll(START_TIMEOUT_S):
            raise RuntimeError(f"{server.__name__} did not start in {START_TIMEOUT_S:.0f} s")
        try:
            place = ours.recv()
        except EOFError:
            raise RuntimeError(f"{server.__name__} failed to start") from None
        yield Running(place, psutil.Process(running.pid))
    finally:
        running.kill()
        running.join()


def _run(connection: Connection, server: Server, *arguments: Any) -> None:
    async def run() -> None:
        place = await server(*arguments)
        spare_what_is_there()
        connection.send(place)
        await asyncio.Event().wait()

    # The event loop of Ray's workers.
    uvloop.run(run())

"""A gateway and its replicas in one process: all of it is what is shipped, but for the time.

The gateway reads a simulated clock, and a replica holds the end of each answer back until it is
told to let it go: so an answer takes as long as a replay says, however fast this machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
from backend_metal.backend import MlxBackend  # isort: skip

from backend_metal.engine.engine import Engine, Output
from deployments.backend import Delta, EngineConfig, GenerationRequest, Prefill
from deployments.fleet.directory import Replica, ReplicaDirectory
from deployments.fleet.targets import GatewayAddress
from deployments.gateway.access.api_keys import KeyRing
from deployments.gateway.app import GatewayParts, build_gateway_app
from deployments.gateway.relay.connections import ReplicaConnections
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.routing import Router
from deployments.http.server import HttpServer
from deployments.observe.metrics import EngineMetrics, GatewayMetrics, Identity
from deployments.replica.app import build_replica_app
from deployments.settings import GatewaySettings, RoutingSettings

HOST = "127.0.0.1"
MODEL = "recorded"
SECRET = "of-the-benchmark"
BLOCK_SIZE = 16
BATCHED_TOKENS = 2048
MAX_BODY_BYTES = 16 << 20
PATIENCE_S = 600.0
"""Nothing here is lost, however slow this machine is."""


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


@dataclass
class Held:
    """What replicas hold back, and what they were asked."""

    answers: asyncio.Queue[asyncio.Event] = field(default_factory=asyncio.Queue)
    """Set one, and its answer ends."""
    prompts: list[list[int]] = field(default_factory=list)
    """As token ids, in the order in which they came."""
    cached_tokens: int = 0
    """Of them all."""
    found_nothing: int = 0
    """Prompts of which nothing was cached."""


class HoldingBackend(MlxBackend):
    """Its answers have one token, whatever a gateway reckons with. ``held`` is another one after
    each ``forget``."""

    held = Held()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Prefill, None]:
        held = self.held
        held.prompts.append(await self.tokenize(request))
        sampling = replace(request.sampling, max_tokens=1)
        async for item in super().generate(replace(request, sampling=sampling)):
            if isinstance(item, Delta) and item.finish_reason is not None:
                held.cached_tokens += item.num_cached_tokens
                held.found_nothing += item.num_cached_tokens == 0
                released = asyncio.Event()
                held.answers.put_nowait(released)
                await released.wait()
            yield item

    async def forget(self, held: Held) -> None:
        """Whatever is cached."""
        self.held = held
        loop, *_ = self._started()
        done, running = asyncio.Event(), asyncio.get_running_loop()

        def reset(engine: Engine) -> list[Output]:
            engine.reset_prefix_cache()
            running.call_soon_threadsafe(done.set)
            return []

        loop.submit(reset)
        await done.wait()


@dataclass(frozen=True)
class Replicas:
    backends: Sequence[HoldingBackend]
    listed: Sequence[Replica]


@dataclass(frozen=True)
class Fleet:
    url: str
    clock: Clock
    held: Held
    metrics: GatewayMetrics

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.held.prompts))

    @property
    def computed_tokens(self) -> int:
        """Of prompts."""
        return self.prompt_tokens - self.held.cached_tokens

    def placements(self, known: str) -> int:
        """Requests of whose prompt so much was ``known`` to the gateway."""
        return sum(
            int(sample.value)
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "pomona_prefix_placements_total" and sample.labels["known"] == known
        )


@asynccontextmanager
async def replicas(model: Path, number: int, *, cache_tokens: int) -> AsyncIterator[Replicas]:
    """Of the checkpoint ``model``; ``cache_tokens``: what the KV cache of each holds."""
    config = EngineConfig(
        model=str(model),
        served_model_name=MODEL,
        device="cpu",
        num_kv_blocks=cache_tokens // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=BATCHED_TOKENS,
    )
    async with AsyncExitStack() as stack:
        backends = [HoldingBackend() for _ in range(number)]
        listed = [
            await _replica(backend, config, f"replica-{index}", stack)
            for index, backend in enumerate(backends, 1)
        ]
        yield Replicas(backends, listed)


@asynccontextmanager
async def fleet(behind: Replicas, router: Router) -> AsyncIterator[Fleet]:
    """A new gateway before replicas that have nothing cached."""
    held, clock = Held(), Clock()
    for backend in behind.backends:
        await backend.forget(held)
    metrics = GatewayMetrics(replica="gateway", node=HOST)

    async def gateways() -> list[GatewayAddress]:
        return []

    routing = RoutingSettings()
    async with AsyncExitStack() as stack:
        connections = ReplicaConnections()
        stack.callback(connections.close)
        app = build_gateway_app(
            GatewayParts(
                settings=GatewaySettings(stall_timeout_s=PATIENCE_S),
                keys=KeyRing([]),
                replicas=ReplicaTable(
                    ReplicaDirectory(behind.listed),
                    load_half_life_s=routing.load_half_life_s,
                    now=clock,
                ),
                router=router,
                metrics=metrics,
                connections=connections,
                gateways=gateways,
                session_header=routing.session_header,
            )
        )
        server = HttpServer(app, host=HOST, port=0)
        url = await server.start()
        stack.push_async_callback(server.stop)
        yield Fleet(url, clock, held, metrics)


async def _replica(
    backend: MlxBackend, config: EngineConfig, name: str, stack: AsyncExitStack
) -> Replica:
    info = await backend.start(config)
    stack.push_async_callback(backend.stop)
    metrics = EngineMetrics(backend.stats, Identity(MODEL, name, HOST))
    app = build_replica_app(
        backend=backend,
        model=info,
        secret=SECRET,
        registry=metrics.registry,
        on_failure=metrics.failed,
        max_body_bytes=MAX_BODY_BYTES,
        keep_alive_interval_s=5.0,
    )
    server = HttpServer(app, host=HOST, port=0)
    url = await server.start()
    stack.push_async_callback(server.stop)
    return Replica(name, HOST, url, MODEL, info.max_model_len, SECRET)

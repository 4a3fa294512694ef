"""Routing over real engines: replicas with a tiny model and two gateways, all in one process."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backend_metal.backend import MlxBackend  # isort: skip
from deployments.backend import EngineConfig
from deployments.fleet.directory import Replica
from deployments.gateway.routing import LeastOutstandingTokens, PrefixAffinity, Router
from deployments.observe.metrics import EngineMetrics, Identity
from deployments.replica.app import build_replica_app
from deployments.settings import RoutingSettings
from tests.support.backend_metal import tiny_models
from tests.support.deployments.gateway_harness import SECRET, gateway, replica_at, serving

NUM_REPLICAS = 4
NUM_PREFIXES = 16
REPEATS = 5
PREFIX_TOKENS = 512
BLOCKS_OF_A_REPLICA = 256
"""Half of what all prefixes need."""


@dataclass
class Engines:
    replicas: list[Replica]
    backends: list[MlxBackend]

    def total(self, name: str) -> int:
        return sum(self.each(name))

    def each(self, name: str) -> list[int]:
        return [getattr(backend.stats(), name) for backend in self.backends]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_models.save("llama", directory)
    return directory


@asynccontextmanager
async def engines(model: Path) -> AsyncIterator[Engines]:
    async with AsyncExitStack() as stack:
        found = Engines([], [])
        for number in range(NUM_REPLICAS):
            name = f"replica-{number}"
            backend = MlxBackend()
            info = await backend.start(
                EngineConfig(
                    model=str(model),
                    served_model_name="demo",
                    device="cpu",
                    num_kv_blocks=BLOCKS_OF_A_REPLICA,
                )
            )
            stack.push_async_callback(backend.stop)
            metrics = EngineMetrics(backend.stats, Identity("demo", name, "10.0.0.2"))
            app = build_replica_app(
                backend=backend,
                model=info,
                secret=SECRET,
                registry=metrics.registry,
                on_failure=metrics.failed,
                max_body_bytes=1 << 20,
                keep_alive_interval_s=5.0,
            )
            url = await stack.enter_async_context(serving(app))
            found.backends.append(backend)
            found.replicas.append(replica_at(url, name=name))
        yield found


def frozen() -> float:
    """A clock by which nothing fades, so that how fast the machine is changes nothing."""
    return 0.0


def affinity() -> Router:
    settings = RoutingSettings(free_tokens=0, weigh_capacity=False)
    return PrefixAffinity(settings)


def least_outstanding() -> Router:
    return LeastOutstandingTokens()


def prompts() -> list[str]:
    """One byte is one token of this model."""
    rng = random.Random(0)
    prefixes = [rng.randbytes(PREFIX_TOKENS // 2).hex() for _ in range(NUM_PREFIXES)]
    whole = [prefix + rng.randbytes(20).hex() for prefix in prefixes * REPEATS]
    rng.shuffle(whole)
    return whole


async def ask(
    found: Engines,
    make_router: Callable[[], Router],
    bodies: Sequence[dict[str, Any]],
    **headers: str,
) -> None:
    """Every body through one of two gateways, in turn."""
    async with (
        gateway(
            found.replicas, router=make_router(), now=frozen, session_header=("X-Session-Id",)
        ) as first,
        gateway(
            found.replicas, router=make_router(), now=frozen, session_header=("X-Session-Id",)
        ) as second,
    ):
        for number, body in enumerate(bodies):
            client = (first, second)[number % 2].client
            answer = await client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text


async def test_shared_prefixes_are_computed_about_once(model: Path) -> None:
    bodies = [{"model": "demo", "prompt": prompt, "max_tokens": 2} for prompt in prompts()]
    ideal = NUM_PREFIXES * (REPEATS - 1) * PREFIX_TOKENS
    async with engines(model) as found:
        await ask(found, affinity, bodies)
        hit_tokens = found.total("prefix_cache_hit_tokens")
        loads = found.each("prompt_tokens")
    assert sum(loads) >= len(bodies) * (PREFIX_TOKENS + 40)
    assert hit_tokens >= 0.9 * ideal
    assert max(loads) <= 1.3 * sum(loads) / NUM_REPLICAS
    async with engines(model) as found:
        await ask(found, least_outstanding, bodies)
        assert found.total("prefix_cache_hit_tokens") < 0.5 * ideal


async def test_a_session_stays_on_its_replica_whatever_it_asks(model: Path) -> None:
    bodies = [{"model": "demo", "prompt": prompt, "max_tokens": 1} for prompt in prompts()[:6]]
    async with engines(model) as found:
        settings = RoutingSettings(weigh_capacity=False)
        await ask(found, lambda: PrefixAffinity(settings), bodies, **{"X-Session-Id": "mine"})
        assert sorted(found.each("steps"))[:3] == [0, 0, 0]

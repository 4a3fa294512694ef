"""Fail-over between real engines: gateway, replicas and a tiny model, all in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from backend_metal.backend import MlxBackend  # isort: skip
from prometheus_client import CollectorRegistry

from deployments.backend import EngineConfig
from deployments.fleet.directory import Replica
from deployments.replica.app import build_replica_app
from deployments.wire.envelope import Envelope
from tests.support.backend_metal import tiny_models
from tests.support.deployments import resumable_streams
from tests.support.deployments.failover_cases import Cut, Seen, ask, places
from tests.support.deployments.gateway_harness import SECRET, Running, gateway, replica_at, serving
from tests.support.deployments.resumable_streams import by_choice
from tests.support.fuzzing import EVERY_EXAMPLE

PLACES = 200 if EVERY_EXAMPLE else 8
"""At which a stream is cut; ``tests/deployments/test_failover.py`` has them all."""


@dataclass
class Engines:
    running: Running
    cut: Cut
    replicas: list[Replica]
    backends: list[MlxBackend]
    num_asked: int = 0

    async def ask(self, body: dict[str, Any], after_bytes: int | None = None) -> Seen:
        self.num_asked += 1
        self.running.directory.replace(
            [replace(one, replica_id=f"{one.replica_id}-{self.num_asked}") for one in self.replicas]
        )
        self.cut.after_bytes = after_bytes
        return await ask(self.running.client, body)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_models.save("qwen3", directory)
    return directory


@pytest.fixture
async def engines(model: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engines]:
    # The gateway's own seed, too, is the same in every run.
    def seal(**fields: Any) -> Envelope:
        return Envelope("0" * 32, 4_000_000_000, 42, **fields)

    monkeypatch.setattr(Envelope, "seal", seal)
    async with AsyncExitStack() as stack:
        apps, backends = [], []
        for _ in range(2):
            backend = MlxBackend()
            info = await backend.start(
                EngineConfig(
                    model=str(model), served_model_name="demo", device="cpu", num_kv_blocks=64
                )
            )
            stack.push_async_callback(backend.stop)
            backends.append(backend)
            apps.append(
                Cut(
                    build_replica_app(
                        backend=backend,
                        model=info,
                        secret=SECRET,
                        registry=CollectorRegistry(),
                        on_failure=lambda error_type: None,
                        max_body_bytes=1 << 20,
                        keep_alive_interval_s=5.0,
                    )
                )
            )
        urls = [await stack.enter_async_context(serving(app)) for app in apps]
        replicas = [replica_at(url, name=name) for url, name in zip(urls, "ab", strict=True)]
        running = await stack.enter_async_context(gateway([]))
        yield Engines(running, apps[0], replicas, backends)


COMMON = {
    "model": "demo",
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
    "max_tokens": 8,
}
CHAT = {**COMMON, "messages": [{"role": "user", "content": "Tell me about apples."}]}
COMPLETION = {**COMMON, "prompt": ["Apples are", "Pears and quinces grow"]}
TWO_LETTERS = {"logit_bias": {"65": 12.0, "66": 12.0}}
BODIES: dict[str, dict[str, Any]] = {
    "greedy": CHAT | {"temperature": 0},
    "the gateway's seed": COMPLETION | {"n": 2},
    "the client's seed": CHAT | {"seed": -5, "top_p": 0.8, "n": 2},
    "logprobs": CHAT | {"logprobs": True, "top_logprobs": 3},
    "completion logprobs": COMPLETION | {"logprobs": 2, "seed": 9},
    "penalties": CHAT
    | {"repetition_penalty": 1.4, "presence_penalty": 1, "frequency_penalty": 0.5, "top_k": 30},
    "stop": COMPLETION | TWO_LETTERS | {"stop": ["ABAA", "BBA"], "n": 3, "max_tokens": 16},
    "not streamed": {k: v for k, v in CHAT.items() if "stream" not in k} | {"n": 2},
}


def spread(found: list[int], number: int) -> list[int]:
    """``number`` of ``found``, evenly, with the first and the last."""
    last = len(found) - 1
    return [found[i] for i in sorted({last * i // (number - 1) for i in range(number)})]


def check_same(one: Any, other: Any) -> None:
    """All but the last bits of logprobs: a prompt is summed up in another order than its tokens."""
    if isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-5)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            check_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            check_same(mine, theirs)
    else:
        assert one == other


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_the_other_engine_goes_on_exactly(engines: Engines, body: dict[str, Any]) -> None:
    for after_bytes in (0, None, None):
        undisturbed = await engines.ask(body, after_bytes)
    writes = engines.cut.writes
    generated = engines.backends[1].stats().generation_tokens
    for place in spread(sorted({*places(writes)}), PLACES):
        got = await engines.ask(body, after_bytes=place)
        check_same(got.choices, undisturbed.choices)
        assert got.others == undisturbed.others, place
    assert engines.backends[1].stats().generation_tokens > generated
    for backend in engines.backends:
        while backend.stats().requests_running:
            await asyncio.sleep(0.001)
        assert backend.stats().kv_cache_blocks_free == 64


@pytest.mark.parametrize("name", ["the gateway's seed", "the client's seed", "stop"])
async def test_a_client_that_comes_back_gets_the_rest(engines: Engines, name: str) -> None:
    """Of the engine that had the stream, and of another one, which makes it again."""
    client, body = engines.running.client, BODIES[name]
    # What is cached of a prompt is told, too, and of one that had not begun by whoever begins it.
    for replica in engines.replicas[::-1]:
        engines.running.directory.replace([replica])
        await resumable_streams.ask(client, body)
    undisturbed = await resumable_streams.ask(client, body)
    for replica in engines.replicas:
        engines.running.directory.replace([replica])
        for place in range(1, len(undisturbed), 3):
            rest = await resumable_streams.ask(client, body, undisturbed[place - 1])
            whole = undisturbed[:place] + rest
            assert by_choice(whole) == by_choice(undisturbed), (replica.replica_id, place)

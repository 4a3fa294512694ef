"""More requests than two real engines have room for, through one gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend_metal.engine.text.prompt import PromptEncoder

from backend_metal.backend import MlxBackend  # isort: skip
from prometheus_client import CollectorRegistry

from deployments.backend import EngineConfig
from deployments.replica.app import build_replica_app
from tests.support.backend_metal import tiny_models
from tests.support.deployments.answers import error_of
from tests.support.deployments.gateway_harness import SECRET, Running, gateway, replica_at, serving

NUM_REPLICAS = 2
SLOTS, QUEUE = 2, 3
NUM_ACCEPTED = NUM_REPLICAS * (SLOTS + QUEUE)
NUM_SURPLUS = 7
NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_models.save("qwen3", directory)
    return directory


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set no request gets past the tokenizer, and so none ends."""
    encode, opened = PromptEncoder.encode, threading.Event()

    def held(*arguments: Any) -> list[int]:
        opened.wait()
        return encode(*arguments)

    monkeypatch.setattr(PromptEncoder, "encode", held)
    yield opened
    opened.set()


@pytest.fixture
async def backends(model: Path) -> AsyncIterator[list[MlxBackend]]:
    found = [MlxBackend() for _ in range(NUM_REPLICAS)]
    yield found
    for backend in found:
        await backend.stop()


@pytest.fixture
async def running(backends: list[MlxBackend], model: Path) -> AsyncIterator[Running]:
    config = EngineConfig(
        model=str(model),
        served_model_name="demo",
        device="cpu",
        num_kv_blocks=NUM_BLOCKS,
        max_num_seqs=SLOTS,
        max_queued_requests=QUEUE,
    )
    async with AsyncExitStack() as stack:
        replicas = []
        for number, backend in enumerate(backends):
            app = build_replica_app(
                backend=backend,
                model=await backend.start(config),
                secret=SECRET,
                registry=CollectorRegistry(),
                on_failure=lambda error_type: None,
                max_body_bytes=1 << 20,
                keep_alive_interval_s=5.0,
            )
            url = await stack.enter_async_context(serving(app))
            replicas.append(replica_at(url, name=f"replica-{number}"))
        yield await stack.enter_async_context(gateway(replicas))


async def ask(running: Running, number: int, stream: bool) -> httpx.Response:
    body = {
        "model": "demo",
        "prompt": f"{number} apples",
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    return await running.client.post("/v1/completions", json=body)


def events(response: httpx.Response) -> list[str]:
    """Of a stream, what each holds but for its answer's own id and time."""
    return [line.partition('"choices"')[2] for line in response.text.split("\n\n")]


@pytest.mark.parametrize("stream", [True, False])
async def test_just_the_surplus_is_refused_and_the_rest_is_served_as_ever(
    running: Running, backends: list[MlxBackend], gate: threading.Event, stream: bool
) -> None:
    asked = [
        asyncio.create_task(ask(running, number, stream))
        for number in range(NUM_ACCEPTED + NUM_SURPLUS)
    ]
    while sum(task.done() for task in asked) < NUM_SURPLUS:
        await asyncio.sleep(0.01)
    refused = [task.result() for task in asked if task.done()]
    accepted = {number: task for number, task in enumerate(asked) if not task.done()}
    for response in refused:
        assert response.status_code == 429
        error = error_of(response)
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert int(response.headers["retry-after"]) >= 1
    impatient = list(accepted)[::4]
    for number in impatient:
        accepted.pop(number).cancel()
    gate.set()
    assert len(accepted) == NUM_ACCEPTED - len(impatient)
    for number, task in accepted.items():
        response = await task
        assert response.status_code == 200
        alone = await ask(running, number, stream)
        assert events(response) == events(alone)
    for backend in backends:
        while backend.stats().requests_running or backend.stats().requests_waiting:
            await asyncio.sleep(0.01)
        assert backend.stats().kv_cache_blocks_free == NUM_BLOCKS

"""A checkpoint that makes vectors alone, over HTTP: of a thousand texts few are held at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from backend_metal.backend import MOST_INPUTS_AT_ONCE, MlxBackend  # isort: skip
import httpx
import mlx.core as mx
import numpy as np
import pytest
import pytest_asyncio

from deployments.backend import EngineConfig, Pooled, PoolingRequest, Prefill
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.pooling_files import write_pooling_files
from tests.support.deployments.answers import error_of
from tests.support.deployments.gateway_harness import Running
from tests.support.e2e.shaped_model import engine_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
EMBEDDINGS = "/v1/embeddings"
MAX_NUM_SEQS = 4
NUM_BLOCKS = 64
TEXTS = [f"text number {number}" * (number % 5 + 1) for number in range(1000)]


class Watched(MlxBackend):
    """Counts the inputs that have been let in and are not made yet."""

    def __init__(self) -> None:
        super().__init__()
        self.most_held = 0
        self.most_running = 0
        self.num_made = 0

    def pool(self, request: PoolingRequest) -> Any:
        held: set[int] = set()

        def made(index: int, item: Pooled | Prefill) -> None:
            if isinstance(item, Pooled):
                held.remove(index)
                self.num_made += 1
            else:
                held.add(index)
            self.most_held = max(self.most_held, len(held))
            self.most_running = max(self.most_running, self.stats().requests_running)
            before(index, item)

        before = request.on_made
        object.__setattr__(request, "on_made", made)
        return super().pool(request)


def save_headless(directory: Path) -> None:
    """As embedding models come: names begin below ``model``, and there is no head."""
    tiny_models.save("llama", directory)
    path = directory / "model.safetensors"
    weights = {
        name.removeprefix("model."): weight
        for name, weight in mx.load(str(path)).items()
        if not name.startswith("lm_head")
    }
    mx.save_safetensors(str(path), weights, {"format": "pt"})
    write_pooling_files(directory, "mean")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Running, Watched]]:
    directory = tmp_path_factory.mktemp("headless")
    save_headless(directory)
    backend = Watched()
    config = EngineConfig(
        model=str(directory),
        served_model_name="demo",
        device="cpu",
        max_model_len=256,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=256,
        num_kv_blocks=NUM_BLOCKS,
    )
    async with engine_gateway(backend, config) as running:
        yield running, backend


async def vectors(client: httpx.AsyncClient, value: Any) -> np.ndarray:
    answer = await client.post(EMBEDDINGS, json={"model": "demo", "input": value}, timeout=120)
    assert answer.status_code == 200, answer.text
    told = json.loads(answer.text)
    assert [one["index"] for one in told["data"]] == [*range(len(told["data"]))]
    return np.array([one["embedding"] for one in told["data"]], np.float32)


async def test_a_thousand_texts_are_those_of_single_requests_and_few_are_held(
    served: tuple[Running, Watched],
) -> None:
    running, backend = served
    together = await vectors(running.client, TEXTS)
    assert together.shape == (1000, 64)
    assert backend.num_made == 1000
    assert 1 < backend.most_held <= MOST_INPUTS_AT_ONCE * MAX_NUM_SEQS < 100
    assert 1 <= backend.most_running <= MAX_NUM_SEQS
    for number in range(0, 1000, 41):
        (alone,) = await vectors(running.client, TEXTS[number])
        np.testing.assert_allclose(together[number], alone, rtol=2e-4, atol=2e-5)
    assert len(np.unique(together.round(4), axis=0)) > 900
    stats = backend.stats()
    assert stats.kv_cache_blocks_free == stats.kv_cache_blocks_total == NUM_BLOCKS


async def test_it_answers_nothing_else(served: tuple[Running, Watched]) -> None:
    running, _ = served
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
    answer = await running.client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, error_of(answer)["type"]) == (400, "invalid_request_error")
    assert "makes vectors alone" in str(error_of(answer)["message"])
    assert len(await vectors(running.client, "still well")) == 1

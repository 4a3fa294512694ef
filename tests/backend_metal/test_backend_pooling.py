"""Pooling requests through the backend: let in together, computed a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import LLM
from backend_metal.backend import MOST_INPUTS_AT_ONCE, MlxBackend
from deployments.backend import (
    ChatPrompt,
    ContextLengthError,
    EngineConfig,
    EngineStoppedError,
    GenerationRequest,
    InvalidRequestError,
    Pooled,
    PoolingInfo,
    PoolingInput,
    PoolingRequest,
    Prefill,
    PromptTooLongError,
    QueueFullError,
    SamplingParams,
    UnavailableError,
)
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.pooling_files import write_pooling_files, write_score_files

MAX_NUM_SEQS = 4
TEXTS = [f"text number {number}" * (number % 5 + 1) for number in range(200)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", directory)
    write_pooling_files(directory, "mean", prompts={"query": "Q: "})
    return directory


def settings(checkpoint: Path) -> dict[str, Any]:
    return {
        "model": str(checkpoint),
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": 64,
        "num_kv_blocks": 64,
        "device": "cpu",
    }


@pytest.fixture
async def backend(checkpoint: Path) -> AsyncIterator[MlxBackend]:
    backend = MlxBackend()
    config = EngineConfig(max_queued_requests=2, max_model_len=256, **settings(checkpoint))
    info = await backend.start(config)
    assert info.pooling == PoolingInfo(
        64, is_normalized=True, prompts={"query": "Q: "}, ranks_by="cosine"
    )
    yield backend
    await backend.stop()


def request(texts: list[str], request_id: str = "r", **fields: Any) -> PoolingRequest:
    inputs = tuple(PoolingInput(text, f"input[{index}]") for index, text in enumerate(texts))
    return PoolingRequest(request_id, inputs, **fields)


async def collect(backend: MlxBackend, asked: PoolingRequest) -> list[Pooled]:
    return [item async for item in backend.pool(asked) if isinstance(item, Pooled)]


async def drained(items: AsyncIterator[Pooled | Prefill]) -> None:
    async for _ in items:
        pass


async def idle(backend: MlxBackend) -> None:
    while backend.stats().requests_running or backend.stats().requests_waiting:
        await asyncio.sleep(0.001)
    stats = backend.stats()
    assert stats.kv_cache_blocks_free == stats.kv_cache_blocks_total


async def test_many_texts_are_let_in_together_and_never_many_at_once(
    backend: MlxBackend, checkpoint: Path
) -> None:
    in_engine: set[int] = set()
    most = 0

    def made(index: int, item: Pooled | Prefill) -> None:
        nonlocal most
        if isinstance(item, Pooled):
            in_engine.remove(index)
        else:
            in_engine.add(index)
        most = max(most, len(in_engine))

    pooled = await collect(backend, request(TEXTS, on_made=made))
    assert sorted(one.index for one in pooled) == [*range(len(TEXTS))]
    assert 1 < most <= MOST_INPUTS_AT_ONCE * MAX_NUM_SEQS
    offline = LLM(**settings(checkpoint)).embed(TEXTS)
    for one in pooled:
        np.testing.assert_allclose(one.values, offline[one.index], rtol=2e-4, atol=2e-5)
        assert one.num_prompt_tokens == len(TEXTS[one.index].encode())
    await idle(backend)


async def test_those_that_nobody_reads_wait(backend: MlxBackend) -> None:
    made: list[int] = []

    def count(index: int, item: Pooled | Prefill) -> None:
        if isinstance(item, Pooled):
            made.append(index)

    items = backend.pool(request(TEXTS, on_made=count))
    await anext(items)
    await idle(backend)
    assert len(made) <= MOST_INPUTS_AT_ONCE * MAX_NUM_SEQS
    await items.aclose()


async def test_closing_the_iterator_frees_everything(backend: MlxBackend) -> None:
    items = backend.pool(request(TEXTS))
    async for item in items:
        if isinstance(item, Pooled):
            break
    await items.aclose()
    await idle(backend)
    # Requests have ids of their own: the engine may still tell of the one that was closed.
    assert len(await collect(backend, request(TEXTS[:3], "another"))) == 3
    await asyncio.wait_for(backend.drain(), 10)


async def test_an_input_at_fault_is_named_and_nobody_else_is_hurt(backend: MlxBackend) -> None:
    other = asyncio.create_task(collect(backend, request(TEXTS, "other")))
    with pytest.raises(ContextLengthError, match="256 tokens") as too_long:
        await collect(backend, request(["a", "b" * 257]))
    assert too_long.value.param == "input[1]"
    inputs = (PoolingInput("a", "input[0]"), PoolingInput((1, 288), "input[1]"))
    with pytest.raises(InvalidRequestError, match="token id 288") as unknown:
        await collect(backend, PoolingRequest("s", inputs))
    assert unknown.value.param == "input[1]"
    with pytest.raises(PromptTooLongError, match="leaves 3 tokens"):
        await collect(backend, PoolingRequest("t", (PoolingInput("abcd", "input", 3),)))
    assert len(await other) == len(TEXTS)
    await idle(backend)


async def test_a_queue_that_is_full_takes_no_group(backend: MlxBackend) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)

    async def generate(request_id: str) -> None:
        async for _ in backend.generate(GenerationRequest(request_id, "hello", greedy)):
            pass

    async with asyncio.TaskGroup() as group:
        for number in range(MAX_NUM_SEQS + 2):
            group.create_task(generate(str(number)))
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await collect(backend, request(TEXTS))
    assert len(await collect(backend, request(TEXTS[:2]))) == 2


async def test_a_generation_beside_a_thousand_texts_has_its_share(backend: MlxBackend) -> None:
    """Whoever asks for much waits, not others."""
    ended: list[str] = []

    async def many() -> None:
        await collect(backend, request(TEXTS * 5, "many"))
        ended.append("many")

    async def one() -> None:
        greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        async for _ in backend.generate(GenerationRequest("one", "hello", greedy)):
            pass
        ended.append("one")

    async with asyncio.TaskGroup() as group:
        group.create_task(many())
        await asyncio.sleep(0.02)
        group.create_task(one())
    assert ended == ["one", "many"]


async def test_stop_ends_it_with_an_error(backend: MlxBackend) -> None:
    items = backend.pool(request(TEXTS))
    await anext(items)
    await backend.stop()
    with pytest.raises((EngineStoppedError, UnavailableError)):
        await drained(items)
    with pytest.raises(UnavailableError):
        await collect(backend, request(TEXTS))


async def test_an_id_in_use_is_refused(backend: MlxBackend) -> None:
    items = backend.pool(request(TEXTS))
    await anext(items)
    with pytest.raises(InvalidRequestError, match="already in use"):
        await collect(backend, request(TEXTS[:1]))
    await items.aclose()


TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}relevant: {% endif %}"
)


async def test_a_query_and_a_document_are_scored_behind_the_models_own_words(
    tmp_path: Path,
) -> None:
    tiny_models.save("qwen3", tmp_path)
    write_score_files(tmp_path, ord("y"), ord("n"))
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    backend = MlxBackend()
    config = EngineConfig(chat_template=str(template), **settings(tmp_path))
    info = await backend.start(config)
    assert info.pooling is not None
    assert info.pooling.ranks_by == "score"
    documents = ["an apple", "<|eos|> a day"]
    pairs = [
        ChatPrompt(({"role": "query", "content": "fruit"}, {"role": "document", "content": one}))
        for one in documents
    ]
    inputs = tuple(PoolingInput(pair, "documents[0]") for pair in pairs)
    made = await collect(backend, PoolingRequest("r", inputs, task="score"))
    network, _ = tiny_models.build("qwen3")
    for one in made:
        text = f"<query>fruit<document>{documents[one.index]}relevant: "
        logits = np.array(network(mx.array([[*text.encode()]]))[0, -1])
        np.testing.assert_allclose(
            one.values, [logits[ord("y")] - logits[ord("n")]], rtol=2e-3, atol=2e-3
        )
    await backend.stop()

"""What others get beside one client that asks for everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend_metal import LLM  # isort: skip
from backend_metal.engine.engine import Engine
from deployments.backend import Delta, GenerationRequest, SamplingParams
from tests.support.backend_metal import tiny_models

TOKENS = 24
STREAMS = [
    GenerationRequest(
        f"stream {number}",
        (number + 1, 2, 3),
        SamplingParams(temperature=1.0, seed=number, max_tokens=TOKENS, ignore_eos=True),
        tenant="modest",
    )
    for number in range(8)
]
CROWD = [
    GenerationRequest(
        f"crowd-{prompt}",
        (9, prompt),
        SamplingParams(temperature=1.0, seed=prompt, max_tokens=60, ignore_eos=True),
        n=16,
        tenant="greedy",
        group="crowd",
    )
    for prompt in range(2)
]
Tokens = dict[tuple[str, int], list[int]]
"""By request and index."""


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path: Path = tmp_path_factory.mktemp("qwen3")
    tiny_models.save("qwen3", path)
    return LLM(str(path), num_kv_blocks=512, max_num_seqs=32, max_num_batched_tokens=64)


def add(engine: Engine, requests: list[GenerationRequest]) -> None:
    for request in requests:
        assert isinstance(request.prompt, tuple)
        engine.add_request(request, list(request.prompt))


def step(engine: Engine, tokens: Tokens) -> None:
    for output in engine.step():
        if isinstance(output.item, Delta):
            drawn = tokens.setdefault((output.request_id, output.item.index), [])
            drawn += output.item.token_ids
    engine.check_integrity()


def finished(engine: Engine, requests: list[GenerationRequest]) -> Tokens:
    tokens: Tokens = {}
    add(engine, requests)
    while engine.has_work:
        step(engine, tokens)
    return tokens


@pytest.mark.parametrize("tenant", ["greedy", "modest"], ids=["the same key", "another key"])
def test_streams_go_on_beside_two_prompts_of_sixteen(llm: LLM, tenant: str) -> None:
    engine = llm.engine
    streams = [replace(stream, tenant=tenant) for stream in STREAMS]
    alone, crowd_alone = finished(engine, streams), finished(engine, CROWD)
    llm.reset_prefix_cache()
    tokens: Tokens = {}
    add(engine, CROWD)
    for _ in range(4):
        step(engine, tokens)
    assert len(engine.scheduler.running) == 32
    add(engine, streams)
    # The first of them was under way before the streams came.
    for _ in range(1 + TOKENS):
        step(engine, tokens)
    assert {name: drawn for name, drawn in tokens.items() if name in alone} == alone
    while engine.has_work:
        step(engine, tokens)
    assert tokens == alone | crowd_alone

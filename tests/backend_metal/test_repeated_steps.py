"""Decode steps whose graph is repeated: the answers of those that are built each time."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backend_metal import LLM, SamplingParams  # isort: skip
import mlx.core as mx

from backend_metal.attention.operators import attention_launches
from backend_metal.engine.recorded import repeated
from backend_metal.engine.recorded.repeated import RepeatedModel
from backend_metal.models.paged_model import ModelOutput, PagedModel
from tests.support.backend_metal import tiny_models
from tests.support.instantiations import marked

PROMPTS = [[*range(first, first + 3 * first + 1)] for first in range(6)]
FAMILIES = [
    "qwen3",
    "qwen3_moe",
    # Windows, chunks, latents, layers that attend over another one's cache.
    "gemma3_text",
    "llama4",
    "deepseek_v3",
    "gemma4_text",
    # Recurrent states, alone and beside attention; one that asks where sequences begin.
    "mamba2",
    "qwen3_5",
    "recurrent_gemma",
]
USUAL = ("qwen3", "gemma4_text", "deepseek_v3", "recurrent_gemma")


def load(path: Path, **settings: Any) -> LLM:
    wanted = {"max_num_seqs": 6, "num_kv_blocks": 60, "block_size": 8}
    return LLM(str(path), **(wanted | settings))


def runner_of(llm: LLM) -> Any:
    return llm.engine._pipeline.runner


def answers(llm: LLM, max_tokens: int = 24) -> list[tuple[int, ...]]:
    # Sequences end one after another, so that steps have several shapes.
    params = [
        SamplingParams(max_tokens=max_tokens + 3 * index, ignore_eos=True, seed=3)
        for index in range(len(PROMPTS))
    ]
    completions = llm.generate(PROMPTS, params, show_progress=False)
    return [completion.token_ids for completion in completions]


class Counted:
    """How often models were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        call = PagedModel.__call__

        def counting(*args: Any, **kwargs: Any) -> ModelOutput:
            self.calls += 1
            return call(*args, **kwargs)

        monkeypatch.setattr(PagedModel, "__call__", counting)


@pytest.mark.parametrize(
    "family", marked(((family,) for family in FAMILIES), lambda family: family in USUAL)
)
def test_answers_and_launches_are_those_of_graphs_that_are_built(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save(family, tmp_path)
    counted = Counted(monkeypatch)
    found: dict[bool, Any] = {}
    for repeats in (False, True):
        llm = load(tmp_path)
        assert isinstance(runner_of(llm)._repeated, RepeatedModel)
        if not repeats:
            runner_of(llm)._repeated = None
        counted.calls, before = 0, attention_launches()["cpu"]
        found[repeats] = answers(llm), attention_launches()["cpu"] - before
        steps = llm.stats().steps
        assert counted.calls < steps // 2 if repeats else counted.calls == steps
        llm.engine.check_integrity()
    assert found[True] == found[False]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_models.save("qwen3", tmp_path)
    return tmp_path


def test_a_graph_is_built_once_a_shape(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    llm = load(model)
    answers(llm)
    llm.reset_prefix_cache()
    counted.calls, before = 0, llm.stats().steps
    answers(llm)
    # Those that have prompts in them.
    assert counted.calls <= 3 < llm.stats().steps - before


def test_memory_stays_what_it_is(model: Path) -> None:
    llm = load(model)
    answers(llm)
    used = []
    for _ in range(3):
        llm.reset_prefix_cache()
        answers(llm)
        used.append(mx.get_active_memory())
    assert max(used) - min(used) < 1000


def test_no_more_graphs_are_kept_than_that(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "MOST_GRAPHS", 2)
    llm = load(model)
    expected = answers(llm)
    assert len(runner_of(llm)._repeated._graphs) == 2
    llm.reset_prefix_cache()
    assert answers(llm) == expected


def test_graphs_are_forgotten_with_the_caches(model: Path) -> None:
    llm = load(model)
    expected = answers(llm)
    llm.reset_prefix_cache()
    runner_of(llm).reset()
    assert not runner_of(llm)._repeated._graphs
    assert answers(llm) == expected


def test_a_model_that_looks_at_its_inputs_is_built_each_time(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    llm = load(model)
    expected = answers(llm)
    call = PagedModel.__call__

    def looking(self: PagedModel, token_ids: mx.array, *args: Any) -> ModelOutput:
        token_ids.tolist()
        return call(self, token_ids, *args)

    monkeypatch.setattr(PagedModel, "__call__", looking)
    llm = load(model)
    with caplog.at_level(logging.WARNING):
        assert answers(llm) == expected
    assert len([one for one in caplog.records if "built each time" in one.message]) == 1


def test_any_thread_may_step(model: Path) -> None:
    llm = load(model)
    expected = answers(llm)
    for _ in range(2):
        llm.reset_prefix_cache()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(answers, llm).result() == expected


def test_the_reference_is_built_each_time(model: Path) -> None:
    """What its operators do depends on how wide a table is."""
    assert runner_of(load(model, attention="reference"))._repeated is None

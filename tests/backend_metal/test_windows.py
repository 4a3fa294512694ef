"""Models whose layers see windows: their tokens are mlx-lm's, however few blocks windows have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.engine import build
from backend_metal.engine.schedule.block_group import most_blocks_held
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.mlx_lm_greedy import greedy_tokens
from tests.support.backend_metal.rerun import DEVICE, recording_device

# With sinks, with two rotations, and with layers that attend over another one's cache;
# ``test_engine_families`` has all.
FAMILIES = ("gpt_oss", "gemma3_text", "gemma4_text")
OTHER_FAMILIES = ("cohere2", "olmo3", "llama-sliding", "step3p5")
BLOCK_SIZE = 8
LEAST = most_blocks_held(tiny_models.WINDOW, BLOCK_SIZE)
NUM_TOKENS = 40
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPT_LENGTHS = (1, 15, 16, 17, 70, 150)


@dataclass(frozen=True)
class Checkpoint:
    path: str
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(
    scope="module",
    params=[
        *FAMILIES,
        *(pytest.param(family, marks=pytest.mark.exhaustive) for family in OTHER_FAMILIES),
    ],
)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    return save(request.param, tmp_path_factory.mktemp(request.param))


def save(family: str, path: Path) -> Checkpoint:
    tiny_models.save(family, path)
    model, _ = tiny_models.build(family)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 256, length).tolist() for length in PROMPT_LENGTHS]
    llm = LLM(str(path), max_num_seqs=6, num_kv_blocks=200, block_size=BLOCK_SIZE)
    answers = llm.generate(prompts, GREEDY, show_progress=False)
    expected = [
        greedy_tokens(model, prompt, NUM_TOKENS, answer.token_ids)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return Checkpoint(str(path), prompts, expected)


Load = Callable[..., LLM]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    def load(path: str, blocks: tuple[int, int], **settings: Any) -> LLM:
        """``blocks``: of layers that see all tokens, and of the others."""
        monkeypatch.setattr(build, "num_kv_blocks", lambda groups, demand, **_: blocks)
        settings = {"max_num_batched_tokens": 64, **settings}
        return LLM(path, max_num_seqs=6, block_size=BLOCK_SIZE, **settings)

    return load


def tokens(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    completions = llm.generate(prompts, GREEDY, show_progress=False)
    llm.engine.check_integrity()
    return [list(completion.token_ids) for completion in completions]


@pytest.mark.parametrize("blocks", [(200, 200), (200, LEAST), (28, 20)])
def test_tokens_are_those_of_mlx_lm(
    checkpoint: Checkpoint, load: Load, blocks: tuple[int, int]
) -> None:
    llm = load(checkpoint.path, blocks)
    for _ in range(2):
        assert tokens(llm, checkpoint.prompts) == checkpoint.expected
    assert (llm.stats().preemptions > 0) == (blocks != (200, 200))


def test_a_long_answer_holds_a_window_of_blocks(checkpoint: Checkpoint, load: Load) -> None:
    llm = load(checkpoint.path, (200, LEAST))
    _, windows = llm.engine.scheduler.groups
    llm._add("request", checkpoint.prompts[-1], GREEDY)
    held = set()
    while llm.engine.has_work:
        llm.engine.step()
        held.add(windows.pool.num_blocks - windows.pool.num_free)
    assert max(held) <= LEAST
    assert min(held) == 0


@pytest.mark.parametrize("attention", ["auto", "reference"])
def test_nobody_reads_a_block_that_was_given_up(
    checkpoint: Checkpoint, load: Load, attention: str
) -> None:
    """Whatever is free holds NaN, in every layer, before each step."""
    llm = load(checkpoint.path, (60, 30), attention=attention)
    runner: Any = llm.engine._pipeline.runner
    drawn: dict[int, list[int]] = {}
    for number, prompt in enumerate(checkpoint.prompts):
        llm._add(str(number), prompt, GREEDY)
    most_poisoned = [0, 0]
    while llm.engine.has_work:
        llm.reset_prefix_cache()
        for index, group in enumerate(llm.engine.scheduler.groups):
            free = [block for block in range(group.pool.num_blocks) if group.pool.is_free(block)]
            most_poisoned[index] = max(most_poisoned[index], len(free))
            poison(runner.pool, index, free)
        for output in llm.engine.step():
            ids = getattr(output.item, "token_ids", ())
            drawn.setdefault(int(output.request_id), []).extend(ids)
    assert min(most_poisoned) > 0
    assert [drawn[number] for number in range(len(drawn))] == checkpoint.expected


def poison(pool: KVCachePool, group: int, blocks: list[int]) -> None:
    if not blocks:
        return
    arrays = pool.evaluation_roots()
    num_layers = pool.num_layers
    for layer in pool.groups[group].layers:
        for number in (layer, num_layers + layer):
            arrays[number][mx.array(blocks)] = mx.nan
    mx.eval(arrays)
    pool.rebind(arrays)


def test_recorded_steps_have_a_table_for_each_group(checkpoint: Checkpoint, load: Load) -> None:
    with recording_device():
        llm = load(checkpoint.path, (120, 40), device=DEVICE)
        assert tokens(llm, checkpoint.prompts) == checkpoint.expected
        runner: Any = llm.engine._pipeline.runner
        shapes = list(runner._recorded._kept.shapes)
    assert shapes
    assert all(len(shape.max_blocks) == 2 for shape in shapes)


@pytest.mark.parametrize("checkpoint", ["gpt_oss"], indirect=True)
@pytest.mark.parametrize(("num_windows", "num_first"), [(200, 96), (12, 0)])
def test_prefixes_are_found_at_the_end_of_prompts_and_where_prompts_part(
    checkpoint: Checkpoint, load: Load, num_windows: int, num_first: int
) -> None:
    """Behind a shared beginning of several windows: at once if the first prompt's blocks are still
    there, or once another prompt has parted from it."""
    llm = load(checkpoint.path, (200, num_windows), max_num_batched_tokens=16)
    shared = checkpoint.prompts[-1][:100]
    hits = []
    for number in range(4):
        prompt = [*shared, number, *range(40)]
        completion = llm.generate([prompt], GREEDY, show_progress=False)[0]
        hits.append(completion.num_cached_tokens)
        again = llm.generate([prompt], GREEDY, show_progress=False)[0]
        assert again.token_ids == completion.token_ids
        assert again.num_cached_tokens == (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert hits == [0, num_first, 96, 96]

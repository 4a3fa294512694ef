from __future__ import annotations

import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from backend_metal import LLM, SamplingParams
from backend_metal.device import CPU
from backend_metal.models.paged_model import PagedModel
from deployments.backend import InvalidRequestError, StepError
from tests.support.backend_metal import tiny_models

PROMPTS = ["Hello", "How are you today?", "x" * 90]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("llama")
    tiny_models.save("llama", path)
    return str(path)


@pytest.fixture(scope="module")
def llm(checkpoint: str) -> LLM:
    return LLM(checkpoint, num_kv_blocks=128)


def sampled(seed: int | None = 7, **params: object) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": 24, "temperature": 1.0, "seed": seed, "ignore_eos": True, **params}
    )


def tokens(llm: LLM, prompts: list[str], params: SamplingParams | list[SamplingParams]) -> list:
    completions = llm.generate(prompts, params, show_progress=False)
    return [completion.token_ids for completion in completions]


@pytest.mark.parametrize(
    ("settings", "budget"),
    [
        ({}, CPU.step_tokens),
        ({"max_num_seqs": CPU.step_tokens + 8}, CPU.step_tokens + 8),
        ({"max_num_batched_tokens": 48}, 48),
    ],
    ids=["by device", "more sequences than that", "as set"],
)
def test_the_budget_of_a_step_is_the_devices_unless_it_is_set(
    checkpoint: str, settings: dict[str, Any], budget: int
) -> None:
    made = LLM(checkpoint, num_kv_blocks=8, device="cpu", **settings)
    assert made.engine.scheduler.max_num_batched_tokens == budget


def test_a_seed_gives_the_same_tokens_in_any_company(llm: LLM) -> None:
    together = tokens(llm, PROMPTS, [sampled(seed) for seed in range(3)])
    alone = [tokens(llm, [prompt], sampled(seed))[0] for seed, prompt in enumerate(PROMPTS)]
    assert together == alone
    assert together != tokens(llm, PROMPTS, [sampled(seed) for seed in range(3, 6)])


def test_a_seed_gives_the_same_tokens_after_preemption(llm: LLM, checkpoint: str) -> None:
    small = LLM(checkpoint, num_kv_blocks=11, max_num_batched_tokens=64)
    params = [sampled(seed, max_tokens=60) for seed in range(3)]
    assert tokens(small, PROMPTS, params) == tokens(llm, PROMPTS, params)
    assert small.stats().preemptions > 0


def test_a_request_resumed_from_its_tokens_so_far_continues_them(llm: LLM) -> None:
    prompt = [72, 101, 108, 108, 111]
    (whole,) = llm.generate([prompt], sampled(max_tokens=20), show_progress=False)
    for cut in (1, 7, 19):
        (rest,) = llm.generate(
            [prompt + whole.token_ids[:cut]], sampled(max_tokens=20 - cut), show_progress=False
        )
        assert whole.token_ids[:cut] + rest.token_ids == whole.token_ids


def test_without_a_seed_answers_differ(llm: LLM) -> None:
    first, second = (tokens(llm, PROMPTS[:1], sampled(None, max_tokens=40)) for _ in range(2))
    assert first != second


def test_logprobs_are_those_of_the_dense_model(llm: LLM) -> None:
    model, _ = tiny_models.build("llama")
    prompt = list(b"Hello")
    (completion,) = llm.generate([prompt], sampled(logprobs=3), show_progress=False)
    logits = np.array(model(mx.array([prompt + completion.token_ids]))[0], np.float64)
    reference = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for offset, entry in enumerate(completion.logprobs):
        row = reference[len(prompt) - 1 + offset]
        assert entry.token_id == completion.token_ids[offset]
        assert math.isclose(entry.logprob, row[entry.token_id], abs_tol=1e-4)
        assert [top.token_id for top in entry.top] == np.argsort(-row)[:3].tolist()
        assert all(math.isclose(t.logprob, row[t.token_id], abs_tol=1e-4) for t in entry.top)


def test_the_prefix_cache_can_be_emptied(checkpoint: str) -> None:
    llm = LLM(checkpoint, num_kv_blocks=64)
    params = SamplingParams(temperature=0.0, max_tokens=1)
    cached = []
    for _ in range(2):
        cached += [llm.generate([PROMPTS[2]], params, show_progress=False)[0].num_cached_tokens]
    llm.reset_prefix_cache()
    cached += [llm.generate([PROMPTS[2]], params, show_progress=False)[0].num_cached_tokens]
    assert cached == [0, 80, 0]


def test_one_sampling_params_or_one_for_each_prompt(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"as many as there are prompts \(3\), not 2"):
        llm.generate(PROMPTS, [sampled(), sampled()], show_progress=False)


def test_a_refused_prompt_leaves_nothing_running(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="9000 in the messages"):
        llm.generate(["fine", "x" * 9000], sampled(), show_progress=False)
    llm.engine.check_integrity()
    assert not llm.engine.has_work


def test_a_step_that_fails_in_the_model_is_reported_and_recovered_from(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens(llm, PROMPTS, sampled())
    with monkeypatch.context() as patch:

        def fail(*arguments: object) -> mx.array:
            raise RuntimeError("out of memory")

        patch.setattr(PagedModel, "__call__", fail)
        with pytest.raises(StepError, match="out of memory"):
            llm.generate(PROMPTS, sampled(), show_progress=False)
    llm.engine.check_integrity()
    assert tokens(llm, PROMPTS, sampled()) == expected


def active_bytes() -> int:
    """What is held once nothing is under way: an answer may end before its last step does."""
    mx.synchronize()
    gc.collect()
    return mx.get_active_memory()


def test_a_step_that_wants_no_logits_does_not_compute_the_head(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MLX fails there on a CUDA device, where the head is quantized.
    evaluated: list[mx.array] = []

    def watch(run: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*trees: Any) -> Any:
            evaluated.extend(array for _, array in tree_flatten(list(trees)))
            return run(*trees)

        return watching

    llm = LLM(checkpoint, num_kv_blocks=16, max_num_batched_tokens=32)
    monkeypatch.setattr(mx, "async_eval", watch(mx.async_eval))
    monkeypatch.setattr(mx, "eval", watch(mx.eval))
    llm.generate([PROMPTS[2]], sampled(max_tokens=2), show_progress=False)
    assert evaluated
    assert not [array.shape for array in evaluated if array.size == 0]


def test_memory_stays_flat(llm: LLM) -> None:
    tokens(llm, PROMPTS, sampled())
    before = active_bytes()
    for seed in range(3):
        tokens(llm, PROMPTS, sampled(seed))
    assert active_bytes() <= before * 1.01


def test_a_stream_has_what_is_generated_and_leaves_nothing_running(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=12)
    [expected] = llm.generate(PROMPTS[:1], greedy, show_progress=False)
    deltas = list(llm.stream(PROMPTS[0], greedy))
    assert len(deltas) > 1
    assert [token for delta in deltas for token in delta.token_ids] == expected.token_ids
    stream = llm.stream(PROMPTS[0], greedy)
    next(stream)
    stream.close()
    assert not llm.engine.has_work

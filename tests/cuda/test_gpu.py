"""Beside an NVIDIA GPU: the kernels that no other device has agree with float64, and the engine
captures CUDA graphs and is deterministic with them. ``tests/backend_metal/test_gpu.py`` has the
others."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM, SamplingParams
from backend_metal.cuda.device import OPERATORS
from backend_metal.device import select_device
from tests.support.backend_metal import (
    few_rows_product_cases,
    native_cases,
    quantized_product_cases,
    tiny_models,
)
from tests.support.backend_metal.native_cases import options, short_spans
from tests.support.fuzzing import fuzz

# MLX reads it with its first float32 matmul: TensorFloat-32 is less exact than these tests ask.
os.environ["MLX_ENABLE_TF32"] = "0"

if OPERATORS is None:
    pytest.skip("needs an NVIDIA GPU and MLX for CUDA", allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def native_cases_run_on_the_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_cases, "native", OPERATORS)
        select_device("cuda")
        yield


@fuzz(200)
@given(**options, spans=short_spans, skipped_slots=st.booleans())
def test_any_step_in_one_kernel_matches_float64(**arguments: Any) -> None:
    native_cases.check(native_cases.make_case(**arguments, one_kernel=True))


def test_short_prompts_of_latents_are_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_models.save("deepseek_v3", tmp_path)
    llm = LLM(str(tmp_path), attention="cuda", max_num_seqs=4)
    prompts = [[*range(first, first + 9)] for first in range(4)]
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with caplog.at_level(logging.INFO):
        completions = llm.generate(prompts, greedy, show_progress=False)
    assert [len(one.token_ids) for one in completions] == [4] * 4
    said = [record.getMessage() for record in caplog.records]
    assert any("recorded a step of 5 sequences, 64 tokens" in line for line in said)
    assert not any("not recorded" in line for line in said)


@fuzz(200)
@given(case=few_rows_product_cases.cases())
def test_any_products_of_few_rows_match_float64(case: few_rows_product_cases.Case) -> None:
    few_rows_product_cases.check(OPERATORS.few_rows_product, case)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("any_rows", [False, True])
@pytest.mark.parametrize("rows", [1, 12, 32, 40])
@pytest.mark.parametrize(("outputs", "depth"), [(4096, 4096), (17408, 1800)])
def test_products_with_deep_matrices_match_float64(
    outputs: int, depth: int, rows: int, any_rows: bool, dtype: mx.Dtype
) -> None:
    product = partial(OPERATORS.few_rows_product, any_rows=any_rows)
    few_rows_product_cases.check(product, few_rows_product_cases.Case(rows, outputs, depth, dtype))


@fuzz(200)
@given(case=quantized_product_cases.cases())
def test_any_quantized_products_match_float64(case: quantized_product_cases.Case) -> None:
    quantized_product_cases.check(OPERATORS.quantized_product, case)


@pytest.mark.parametrize("num_kv_blocks", [200, 20])
@pytest.mark.parametrize("budget", [1024, 13])
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_a_deterministic_engine_answers_alike_in_any_company(
    family: str, budget: int, num_kv_blocks: int, tmp_path: Path
) -> None:
    tiny_models.save(family, tmp_path)

    def load(**given: Any) -> LLM:
        return LLM(str(tmp_path), dtype="bfloat16", deterministic=True, max_num_seqs=12, **given)

    def answers(
        llm: LLM, prompts: list[list[int]], temperatures: list[float]
    ) -> list[tuple[list[int], list[float]]]:
        sampling = [
            SamplingParams(
                temperature=temperature, seed=5, max_tokens=30, ignore_eos=True, logprobs=0
            )
            for temperature in temperatures
        ]
        return [
            (answer.token_ids, [one.logprob for one in answer.logprobs])
            for answer in llm.generate(prompts, sampling, show_progress=False)
        ]

    random = np.random.default_rng(3)
    prompts = [random.integers(0, 256, int(random.integers(1, 90))).tolist() for _ in range(11)]
    # Found in the cache, but for the last token.
    prompts.append(prompts[0])
    temperatures = [float(number % 2) for number in range(len(prompts))]
    alone = load(num_kv_blocks=200, prefix_caching=False)
    expected = [
        answers(alone, [prompt], [temperature])[0]
        for prompt, temperature in zip(prompts, temperatures, strict=True)
    ]
    crowd = load(num_kv_blocks=num_kv_blocks, max_num_batched_tokens=budget)
    # Again with what the first round has left in the cache.
    for _ in range(2):
        assert answers(crowd, prompts, temperatures) == expected
    assert (crowd.stats().preemptions > 0) == (num_kv_blocks == 20)


@fuzz(100)
@given(case=few_rows_product_cases.cases(most_rows=600), data=st.data())
def test_any_row_gets_the_bits_that_it_gets_alone(
    case: few_rows_product_cases.Case, data: st.DataObject
) -> None:
    product = partial(OPERATORS.few_rows_product, any_rows=True)
    few_rows_product_cases.check(product, case)
    x, weights = case.x(), case.weights()
    together = product(x, weights)
    row = data.draw(st.integers(0, case.rows - 1))
    for rows in (slice(row, row + 1), slice(row, row + 40)):
        assert mx.array_equal(product(x[rows], weights), together[rows])

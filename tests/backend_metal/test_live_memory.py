"""What MLX holds between requests does not grow with the steps that were made: Metal allows half a
million buffers at once, however small."""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random

import mlx.core as mx
import pytest

from backend_metal.llm import LLM
from deployments.backend import GenerationRequest, SamplingParams
from tests.support.backend_metal import tiny_models
from tests.support.fuzzing import EVERY_EXAMPLE

STEPS = 100_000 if EVERY_EXAMPLE else 300
PERIODS = 4
SLACK = 64
"""Bytes: MLX's thread may still own small arrays of the last step. One of a number a request would
be more."""


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "qwen3_next"])
def test_nothing_is_left_of_steps_and_of_requests_that_were_given_up(
    family: str, tmp_path: Path
) -> None:
    """All layers alike, with windows, with recurrent state."""
    tiny_models.save(family, tmp_path)
    llm = LLM(str(tmp_path), num_kv_blocks=256, max_num_seqs=4, device="cpu")
    engine, random = llm.engine, Random(0)
    held, number, steps, given_up = [], 0, 0, 0
    for _ in range(PERIODS):
        until = steps + STEPS // PERIODS
        while steps < until:
            while engine.population[0] < 6:
                prompt = [random.randrange(100) for _ in range(random.randrange(1, 40))]
                sampling = SamplingParams(max_tokens=random.randrange(1, 60), ignore_eos=True)
                number += 1
                request = GenerationRequest(str(number), tuple(prompt), sampling)
                engine.add_request(request, prompt)
            if steps % 25 == 0:
                engine.abort(str(random.randrange(number - 5, number + 1)))
                given_up += 1
            engine.step()
            steps += 1
        engine.abort_all()
        # The engine keeps arrays of its last step, so every period ends with the same step.
        llm.generate(
            [[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True), show_progress=False
        )
        engine.reset_prefix_cache()
        engine.check_integrity()
        gc.collect()
        held.append(mx.get_active_memory())
    assert given_up >= STEPS // 25
    assert min(held[2:]) <= max(held[:2]) + SLACK, held

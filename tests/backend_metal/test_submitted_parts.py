"""What a device has of a step while the host still builds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend_metal import LLM, SamplingParams  # isort: skip
import mlx.core as mx

from backend_metal.engine import runner as runner_module
from backend_metal.engine.runner import ModelRunner
from tests.support.backend_metal import tiny_models

NUM_LAYERS = 16
PROMPTS = [[*range(first, first + 9)] for first in range(5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        deep = tiny_models.FAMILY_CONFIGS["qwen3"] | {"num_hidden_layers": NUM_LAYERS}
        patch.setitem(tiny_models.FAMILY_CONFIGS, "qwen3", deep)
        tiny_models.save("qwen3", path)
    return str(path)


@pytest.mark.parametrize(("holds_up", "is_long"), [(True, True), (False, True), (False, False)])
def test_first_layers_of_a_long_step_are_submitted_while_the_others_are_built(
    model: str, monkeypatch: pytest.MonkeyPatch, holds_up: bool, is_long: bool
) -> None:
    submitted: list[int | None] = []
    submit = ModelRunner.submit

    def noted(runner: ModelRunner, *arrays: mx.array, num_layers: int | None = None) -> None:
        submitted.append(num_layers)
        submit(runner, *arrays, num_layers=num_layers)

    monkeypatch.setattr(ModelRunner, "submit", noted)
    num_tokens = sum(map(len, PROMPTS))
    monkeypatch.setattr(runner_module, "LONG_STEP", num_tokens + (not is_long))
    sampling = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    plain, llm = (
        LLM(model, device="cpu", num_kv_blocks=64, prefix_caching=False) for _ in range(2)
    )
    expected = [one.token_ids for one in plain.generate(PROMPTS, sampling, show_progress=False)]
    runner: Any = llm.engine._pipeline.runner
    runner.holds_up = holds_up
    submitted.clear()
    found = [one.token_ids for one in llm.generate(PROMPTS, sampling, show_progress=False)]
    assert found == expected
    half = NUM_LAYERS // 2
    parts = [half]
    if is_long and not holds_up:
        parts = [half // 4, half // 2, half * 3 // 4, half]
    assert submitted == [*parts, None, *[half, None] * 2]
    llm.engine.check_integrity()

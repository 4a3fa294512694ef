"""Steps whose evaluation fails, more of them than MLX bears by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend_metal import LLM, SamplingParams, native
from backend_metal.engine.batch import Batch
from deployments.backend import StepError
from tests.support.backend_metal import tiny_models

NUM_FAILURES = 30
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture(autouse=True)
def no_lost_tasks() -> None:
    """In the place of what forgets them between tests: here the engine has to."""


def without_blocks(batch: Batch) -> Batch:
    groups = (replace(group, block_tables=group.block_tables - 1) for group in batch.groups)
    return replace(batch, groups=tuple(groups))


def test_an_engine_serves_after_any_number_of_failed_steps(tmp_path: Path) -> None:
    tiny_models.save("qwen3", tmp_path)
    llm = LLM(str(tmp_path), num_kv_blocks=8, max_num_seqs=2)
    runner: Any = llm.engine._pipeline.runner
    (expected,) = llm.generate([[1, 2, 3]], GREEDY, show_progress=False)
    build = runner._batches.build
    for _ in range(NUM_FAILURES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner._batches, "build", lambda step: without_blocks(build(step)))
            with pytest.raises(StepError, match="block_tables must lie between"):
                llm.generate([[1, 2, 3]], GREEDY, show_progress=False)
        (answer,) = llm.generate([[1, 2, 3]], GREEDY, show_progress=False)
        assert answer.token_ids == expected.token_ids
    assert native.forget_lost_tasks() == 0

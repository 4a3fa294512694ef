"""Who makes the arrays of what a step is told: the device's path, but for what the host reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest

from backend_metal import LLM, SamplingParams  # isort: skip
import mlx.core as mx

from backend_metal.device import CPU, registered
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.changed_device import changed

PROMPTS = [[*range(first, first + 9)] for first in range(4)]


@pytest.mark.parametrize(
    ("family", "is_asked"),
    [
        ("qwen3", True),
        ("gpt_oss", True),
        ("mamba2", True),
        # Tokens are divided among ways to attend to latents, by how long sequences are.
        ("deepseek_v3", False),
    ],
)
def test_the_path_makes_what_the_host_does_not_read(
    family: str, is_asked: bool, tmp_path: Path
) -> None:
    made = []

    def counted(values: npt.NDArray[Any]) -> mx.array:
        made.append(values.dtype)
        return mx.array(values)

    tiny_models.save(family, tmp_path)
    params = SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.0)
    own = LLM(str(tmp_path), max_num_seqs=4).generate(PROMPTS, params, show_progress=False)
    with registered(changed(CPU, name="makes", make_array=counted, draw_tokens=None)):
        llm = LLM(str(tmp_path), device="makes", max_num_seqs=4)
        found = llm.generate(PROMPTS, params, show_progress=False)
    assert [one.token_ids for one in found] == [one.token_ids for one in own]
    assert bool(made) == is_asked
    assert all(dtype.kind in "iu" and dtype.itemsize == 4 for dtype in made)

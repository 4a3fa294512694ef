"""How long a context config.json gives a model; the cases are published configs."""

from __future__ import annotations

from typing import Any

import pytest

from backend_metal.models.load.account.length import context_length, stated_length

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0],
    "long_factor": [2.0],
    "original_max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 40960, "rope_scaling": None}, 40960),
        ({"max_position_embeddings": 131072, "rope_scaling": LLAMA3}, 131072),
        # Qwen 2.5 counts before the stretch, gpt-oss after it.
        ({"max_position_embeddings": 32768, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": 8192, "rope_parameters": YARN | {"type": "default"}}, 8192),
        ({"max_position_embeddings": 1000, "rope_scaling": {"type": "yarn", "factor": 2}}, 2000),
        (
            {"max_position_embeddings": 8192, "rope_parameters": {"full_attention": YARN}},
            131072,
        ),
        # InternLM 2 and 3: plain up to there.
        (
            {"max_position_embeddings": 32768, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            32768,
        ),
        ({"max_position_embeddings": 131072, "rope_scaling": LONGROPE}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": LONGROPE}, 4096),
        ({"n_positions": 1024}, 1024),
        # Kimi Linear, OpenELM, Qwen, lille.
        ({"model_max_length": 1048576}, 1048576),
        ({"max_context_length": 2048}, 2048),
        ({"seq_length": 8192}, 8192),
        ({"block_size": 512}, 512),
        # Gemma 3 4B and larger.
        ({"model_type": "gemma3", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}, 131072),
    ],
)
def test_context_length(config: dict[str, Any], expected: int) -> None:
    stated = stated_length(config)
    assert stated is not None
    assert context_length(config, stated) == (expected, False)


def test_no_context_length() -> None:
    assert stated_length({"hidden_size": 64, "max_position_embeddings": None}) is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(None, (4096, False)), (1, (4096, False)), (4096, (4096, False)), (4097, (131072, True))],
)
def test_longrope_is_short_or_long(wanted: int | None, expected: tuple[int, bool]) -> None:
    config = {"max_position_embeddings": 131072, "rope_scaling": LONGROPE}
    assert context_length(config, 131072, wanted) == expected

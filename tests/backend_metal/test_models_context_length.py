"""How long a context config.json gives a model; the cases are published configs."""

from __future__ import annotations

from typing import Any

import pytest

from backend_metal.models.context_length import context_length

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


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
        ({"n_positions": 1024}, 1024),
        ({"hidden_size": 64}, None),
    ],
)
def test_context_length(config: dict[str, Any], expected: int | None) -> None:
    assert context_length(config) == expected

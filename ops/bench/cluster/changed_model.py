"""Another model under the same name: the demo model with noise on its embeddings."""

from __future__ import annotations

import shutil
from pathlib import Path

from backend_metal.models.checkpoint import DEMO_DIRECTORY  # isort: skip
import mlx.core as mx

EMBEDDINGS = "model.embed_tokens.weight"
NOISE = 0.3
"""Times what is there."""


def changed_model(directory: Path) -> Path:
    shutil.copytree(DEMO_DIRECTORY, directory)
    file = str(directory / "model.safetensors")
    weights = mx.load(file)
    assert isinstance(weights, dict)
    embeddings = weights[EMBEDDINGS]
    noise = mx.random.normal(embeddings.shape, key=mx.random.key(0))
    weights[EMBEDDINGS] = embeddings * (1 + NOISE * noise).astype(embeddings.dtype)
    mx.save_safetensors(file, weights, metadata={"format": "pt"})
    return directory

"""``python -m tests.support.cluster.changed_model DIRECTORY`` saves the demo model with noise.

A program of its own: importing the engine lowers how many files a process may open.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from backend_metal.models.load.find import DEMO_DIRECTORY  # isort: skip
import mlx.core as mx

EMBEDDINGS = "model.embed_tokens.weight"
NOISE = 0.3
"""Times what is there."""


def save_changed_model(directory: Path) -> None:
    shutil.copytree(DEMO_DIRECTORY, directory)
    file = str(directory / "model.safetensors")
    weights = mx.load(file)
    assert isinstance(weights, dict)
    embeddings = weights[EMBEDDINGS]
    noise = mx.random.normal(embeddings.shape, key=mx.random.key(0))
    weights[EMBEDDINGS] = embeddings * (1 + NOISE * noise).astype(embeddings.dtype)
    mx.save_safetensors(file, weights, metadata={"format": "pt"})


if __name__ == "__main__":
    save_changed_model(Path(sys.argv[1]))

"""Checkpoints of a model without the class around it that generates, as embedding models have them:
names of weights begin below ``model``, and there may be no head."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import _get_classes

Classes = tuple[type[nn.Module], type]


def is_bare(checkpoint: Path) -> bool:
    return any(name.startswith("layers.") for name in _weight_names(checkpoint))


def lacks_head(config: Mapping[str, Any]) -> bool:
    """Of a bare checkpoint: whether the head is not the input's embedding either."""
    return not config.get("tie_word_embeddings", False)


def classes_of_bare(config: dict[str, Any]) -> Classes:
    """mlx-lm's, which take the names of a bare checkpoint."""
    model_class, arguments = _get_classes(config)

    class Named(model_class):  # type: ignore[misc,valid-type]
        def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            named = {f"model.{name}": weight for name, weight in weights.items()}
            sanitize: Callable[[dict[str, mx.array]], dict[str, mx.array]] | None
            sanitize = getattr(super(), "sanitize", None)
            return named if sanitize is None else sanitize(named)

    return Named, arguments


def _weight_names(checkpoint: Path) -> set[str]:
    names: set[str] = set()
    for path in checkpoint.glob("model*.safetensors"):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            names.update(json.loads(file.read(size)))
    return names

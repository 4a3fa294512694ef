"""The model types that the seam serves, each proved against mlx-lm's dense model by the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn

from backend_metal.models import gemma2


@dataclass(frozen=True)
class Family:
    backbone: str = "model"
    """Where the module is whose output the head turns into logits."""
    adapt: Callable[[nn.Module, Mapping[str, Any]], None] | None = None
    """What unmodified mlx-lm code can't do by itself."""


FAMILIES: Mapping[str, Family] = {
    "gemma2": Family(adapt=gemma2.adapt),
    "gemma3": Family(backbone="language_model.model"),
    "gemma3_text": Family(),
    "gpt_oss": Family(),
    "granite": Family(),
    "llama": Family(),
    "mistral": Family(),
    "olmo2": Family(),
    "phi3": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_moe": Family(),
}


def family_of(config: Mapping[str, Any]) -> Family:
    """Raises ``ValueError`` naming ``model_type`` and those that work."""
    model_type = config.get("model_type", "")
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type {model_type!r} is not supported; these are: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[model_type]

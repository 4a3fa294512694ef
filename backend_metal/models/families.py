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
    **dict.fromkeys(
        (
            "apertus",
            "bailing_moe",
            "cohere",
            "cohere2",
            "dots1",
            "ernie4_5",
            "ernie4_5_moe",
            "exaone4",
            "gemma",
            "gemma3_text",
            "glm",
            "glm4",
            "glm4_moe",
            "gpt_neox",
            "gpt_oss",
            "granite",
            "granitemoe",
            "helium",
            "hunyuan_v1_dense",
            "internlm2",
            "llama",
            "mimo",
            "ministral3",
            "mistral",
            "mixtral",
            "nemotron",
            "olmo2",
            "olmo3",
            "olmoe",
            "phi",
            "phi3",
            "phimoe",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_moe",
            "seed_oss",
            "smollm3",
            "stablelm",
            "starcoder2",
        ),
        Family(),
    ),
    "exaone": Family(backbone="transformer"),
    "gemma2": Family(adapt=gemma2.adapt),
    "gemma3": Family(backbone="language_model.model"),
    "mistral3": Family(backbone="language_model.model"),
}


def family_of(config: Mapping[str, Any]) -> Family:
    """Raises ``ValueError`` naming ``model_type`` and those that work."""
    model_type = config.get("model_type", "")
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type {model_type!r} is not supported; these are: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[model_type]

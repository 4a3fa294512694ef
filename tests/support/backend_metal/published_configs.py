"""Configs as they are published, scaled down: what is odd about each, and what it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.tiny_configs import WINDOW

UNBOUNDED = 2**20
LEFT_OUT = object()


@dataclass(frozen=True)
class Published:
    family: str
    changed: dict[str, Any] = field(default_factory=dict)
    """Of the tiny config, ``LEFT_OUT`` what the published one lacks."""
    context: int | None = 4096
    """In tokens; None: ``engine.max_model_len`` must be given."""

    @property
    def config(self) -> dict[str, Any]:
        config = tiny_models.config_of(self.family)
        for part in (config, config.get("text_config", {})):
            part |= self.changed
            for name in [name for name, value in part.items() if value is LEFT_OUT]:
                del part[name]
        return config


NO_LENGTH = {"max_position_embeddings": LEFT_OUT}
OLD_THETA = {"rope_theta": LEFT_OUT}
PUBLISHED: dict[str, Published] = {
    "Gemma 3 4B": Published("gemma3", NO_LENGTH | {"num_key_value_heads": 2}, 131072),
    "Gemma 3n E4B": Published("gemma3n", {"intermediate_size": [96] * 4}),
    "Falcon Mamba": Published("mamba", NO_LENGTH, UNBOUNDED),
    "Mamba 2": Published("mamba2", NO_LENGTH, UNBOUNDED),
    "RWKV 7": Published("rwkv7", NO_LENGTH, UNBOUNDED),
    "RecurrentGemma": Published("recurrent_gemma", NO_LENGTH, UNBOUNDED),
    "Kimi Linear": Published("kimi_linear", NO_LENGTH | {"model_max_length": 1048576}, 1048576),
    "OpenELM": Published("openelm", NO_LENGTH | {"max_context_length": 2048}, 2048),
    "lille": Published("lille-130m", NO_LENGTH | {"block_size": 512}, 512),
    "AFM": Published("afm7", NO_LENGTH, None),
    "Qwen": Published("qwen", NO_LENGTH | {"seq_length": 8192}, 8192),
    "Hunyuan A13B": Published("hunyuan", {"moe_intermediate_size": [96] * 4, "moe_topk": [2] * 4}),
    "Mistral 7B v0.2": Published("mistral", {"sliding_window": None}),
    "Qwen 2.5": Published(
        "qwen2", {"use_sliding_window": False, "sliding_window": WINDOW, "max_window_layers": 2}
    ),
    "Llama 2": Published("llama", {"num_key_value_heads": 2, "pretraining_tp": 1}),
    "InternLM 2.5": Published("internlm2", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "InternLM 3": Published("internlm3", {"rope_scaling": {"rope_type": "dynamic", "factor": 6.0}}),
    "Command R": Published("cohere", {"model_max_length": 131072}),
    "DeepSeek V3": Published(
        "deepseek_v3", {"scoring_func": "sigmoid", "ep_size": 1, "aux_loss_alpha": 0.001}
    ),
    "OLMo 2 of transformers 5": Published(
        "olmo2", OLD_THETA | {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    ),
    "Granite of transformers 5": Published(
        "granite", OLD_THETA | {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    ),
    "GLM 4.5 of transformers 5": Published(
        "glm4_moe",
        OLD_THETA
        | {"partial_rotary_factor": LEFT_OUT, "rope_scaling": LEFT_OUT}
        | {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    ),
    "Qwen 3 MoE of transformers 5": Published(
        "qwen3_moe", {"num_experts": LEFT_OUT, "num_local_experts": 8}
    ),
    "Gemma 3 of transformers 5": Published(
        "gemma3_text",
        OLD_THETA
        | {
            "rope_parameters": {
                "full_attention": {"rope_theta": 10000.0, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
            "sliding_window_pattern": LEFT_OUT,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "EXAONE 4 of transformers 5": Published("exaone4", {"sliding_window_pattern": 2}),
    "OLMo 3": Published("olmo3", {"num_key_value_heads": 2, "attention_bias": False}),
}

"""What widely used checkpoints keep of a token and of a sequence, as published."""

from __future__ import annotations

from dataclasses import dataclass

from backend_metal.attention.kv_cache import LayerAttention, LayerCacheSpec


@dataclass(frozen=True)
class PublishedModel:
    name: str
    model_type: str
    parameters: float
    context: int
    """Tokens."""
    layers: tuple[LayerAttention, ...]
    state_bytes: float = 0.0
    """Of all recurrent layers, of one sequence."""


def _layers(count: int, heads: int, dim: int, window: int | None = None) -> list[LayerAttention]:
    return [LayerAttention(LayerCacheSpec(heads, dim, dim), heads, 1.0, window)] * count


def _latent(count: int) -> tuple[LayerAttention, ...]:
    spec = LayerCacheSpec(1, 576, 512, values_in_keys=True)
    return (LayerAttention(spec, 1, 1.0),) * count


def _indexed(count: int) -> tuple[LayerAttention, ...]:
    """Latents, and an index for each layer of them."""
    spec = LayerCacheSpec(1, 128, 128, values_in_keys=True)
    return (*_latent(count), *[LayerAttention(spec, 64, 1.0, top_k=2048)] * count)


MODELS = (
    PublishedModel(
        "Qwen3.5/3.6/3.8-27B", "qwen3_5", 27e9, 262144, (*_layers(16, 4, 256),), 153.9e6
    ),
    PublishedModel(
        "Qwen3.5/3.6-35B-A3B", "qwen3_5_moe", 35e9, 262144, (*_layers(10, 2, 256),), 64.4e6
    ),
    PublishedModel("Qwen3.5-9B", "qwen3_5", 9e9, 262144, (*_layers(8, 4, 256),), 51.5e6),
    PublishedModel("Qwen3.5-4B", "qwen3_5", 4e9, 262144, (*_layers(8, 4, 256),), 51.5e6),
    PublishedModel(
        "Qwen3-Next-80B, Qwen3-Coder-Next",
        "qwen3_next",
        80e9,
        262144,
        (*_layers(12, 2, 256),),
        77.3e6,
    ),
    PublishedModel(
        "Gemma 4 12B",
        "gemma4",
        12e9,
        131072,
        (*_layers(8, 1, 512), *_layers(40, 8, 256, 1024)),
    ),
    PublishedModel(
        "Gemma 4 26B-A4B",
        "gemma4",
        26e9,
        262144,
        (*_layers(5, 2, 512), *_layers(25, 8, 256, 1024)),
    ),
    PublishedModel(
        "Gemma 4 31B",
        "gemma4",
        31e9,
        262144,
        (*_layers(10, 4, 512), *_layers(50, 16, 256, 1024)),
    ),
    PublishedModel(
        "gpt-oss-20b", "gpt_oss", 20.9e9, 131072, (*_layers(12, 8, 64), *_layers(12, 8, 64, 128))
    ),
    PublishedModel(
        "gpt-oss-120b", "gpt_oss", 116.8e9, 131072, (*_layers(18, 8, 64), *_layers(18, 8, 64, 128))
    ),
    PublishedModel("Qwen3-8B", "qwen3", 8.2e9, 131072, (*_layers(36, 8, 128),)),
    PublishedModel(
        "Qwen3-30B-A3B, Qwen3-Coder-30B", "qwen3_moe", 30.5e9, 262144, (*_layers(48, 4, 128),)
    ),
    PublishedModel("Qwen2.5-Coder-7B", "qwen2", 7.6e9, 32768, (*_layers(28, 4, 128),)),
    PublishedModel("Llama 3.1 8B", "llama", 8e9, 131072, (*_layers(32, 8, 128),)),
    PublishedModel("Llama 3.3 70B", "llama", 70.6e9, 131072, (*_layers(80, 8, 128),)),
    PublishedModel("MiniMax M2", "minimax_m2", 230e9, 196608, (*_layers(62, 8, 128),)),
    PublishedModel("GLM-4.7-Flash", "glm4_moe_lite", 30e9, 202752, _latent(47)),
    PublishedModel("DeepSeek V3, R1", "deepseek_v3", 671e9, 163840, _latent(61)),
    PublishedModel("DeepSeek V3.2", "deepseek_v32", 671e9, 163840, _indexed(61)),
    PublishedModel("GLM-5", "glm_moe_dsa", 744e9, 202752, _indexed(78)),
    PublishedModel("Kimi K2", "kimi_k2", 1040e9, 262144, _latent(61)),
    PublishedModel(
        "Nemotron-3-Nano-30B-A3B", "nemotron_h", 31.6e9, 262144, (*_layers(6, 2, 128),), 49.1e6
    ),
)
"""The most downloaded first of each maker."""

"""A tiny model of every supported family, with deterministic weights that make attention matter.

``build(family)`` gives mlx-lm's own model and its config; ``save(family, directory)`` a checkpoint
with a byte-level tokenizer, as a loader finds it.
"""

from __future__ import annotations

import importlib
import json
import zlib
from copy import deepcopy
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import MODEL_REMAPPING
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 288
WINDOW = 16
BOS, EOS, END_OF_TURN = "<|bos|>", "<|eos|>", "<|end|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
# Families whose head dim is always hidden_size / num_attention_heads.
DERIVED = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED_EXPERTS = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
LOCAL_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
ALTERNATING = ["sliding_attention", "full_attention"]
GRANITE = {
    "logits_scaling": 2.0,
    "attention_multiplier": 0.1,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
}
GEMMA3 = {"sliding_window": WINDOW, "sliding_window_pattern": 2, "query_pre_attn_scalar": 64}

FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "apertus": DERIVED | {"post_norm": False, "qk_norm": True},
    "bailing_moe": DERIVED
    | EXPERTS
    | {"num_shared_experts": 1, "norm_topk_prob": True, "first_k_dense_replace": 1},
    "cohere": DERIVED | {"use_qk_norm": True},
    "cohere2": DERIVED | {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    "dots1": EXPERTS | SHARED_EXPERTS | {"n_group": 1, "topk_group": 1},
    "ernie4_5": {"use_bias": True},
    "ernie4_5_moe": EXPERTS
    | {"use_bias": False, "moe_num_experts": 8, "moe_capacity": [], "moe_k": 2}
    | {"moe_layer_start_index": 1, "moe_num_shared_experts": 1},
    "exaone": DERIVED | {"num_layers": 2, "layer_norm_epsilon": 1e-5},
    "exaone4": {"sliding_window": WINDOW, "sliding_window_pattern": "LG", "rope_scaling": None},
    "gemma": {},
    "gemma2": {"sliding_window": WINDOW, "query_pre_attn_scalar": 64},
    "gemma3": {"text_config": BASE | GEMMA3 | {"model_type": "gemma3_text"}},
    "gemma3_text": GEMMA3,
    "glm": {},
    "glm4": {"partial_rotary_factor": 0.5},
    "glm4_moe": EXPERTS
    | SHARED_EXPERTS
    | {"n_group": 1, "topk_group": 1, "rope_scaling": None, "use_qk_norm": True}
    | {"partial_rotary_factor": 0.5},
    "gpt_neox": DERIVED | {"layer_norm_eps": 1e-5, "rotary_emb_base": 10000, "rotary_pct": 0.25},
    "gpt_oss": LOCAL_EXPERTS | {"sliding_window": WINDOW, "layer_types": ALTERNATING},
    "granite": DERIVED | GRANITE,
    "granitemoe": DERIVED | GRANITE | LOCAL_EXPERTS,
    "helium": DERIVED,
    "hunyuan_v1_dense": {},
    "internlm2": DERIVED,
    "llama": {},
    "mimo": DERIVED,
    "ministral3": {
        "layer_types": ALTERNATING,
        "sliding_window": WINDOW,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral": {},
    "mistral3": {"text_config": BASE | {"model_type": "llama"}},
    "mixtral": DERIVED | LOCAL_EXPERTS,
    "nemotron": {"hidden_act": "relu2", "norm_eps": 1e-5},
    "olmo2": {},
    "olmo3": {"layer_types": ALTERNATING, "sliding_window": WINDOW},
    "olmoe": EXPERTS | {"intermediate_size": 32},
    "phi": DERIVED | {"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5},
    "phi3": DERIVED,
    "phimoe": DERIVED | LOCAL_EXPERTS,
    "qwen2": DERIVED,
    "qwen2_moe": DERIVED | EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": EXPERTS
    | {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
    "seed_oss": {"attention_bias": True, "attention_out_bias": False},
    "smollm3": {"num_hidden_layers": 4},
    "stablelm": DERIVED
    | {"use_qkv_bias": True, "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
    "starcoder2": DERIVED | {"norm_epsilon": 1e-5},
}

# Variants of a family that take another way through the seam.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama-sliding": {"layer_types": ALTERNATING, "sliding_window": WINDOW},
    "llama-llama3-rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "qwen3-yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "phi3-longrope": DERIVED
    | {
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 24,
            "long_factor": [1.0 + i / 8 for i in range(24)],
        },
    },
    "gemma2-dense": {"query_pre_attn_scalar": 64},
    "llama-16": {"head_dim": 16},
    "qwen3-32": {"head_dim": 32},
    "llama-48": {"head_dim": 48},
    "qwen3-512": {"head_dim": 512},
}
WITHOUT_KERNELS = ("llama-16", "qwen3-32", "llama-48")
"""Those whose head dims only the reference takes."""


def config_of(family: str) -> dict[str, Any]:
    """The family's config.json; ``family`` may be the name of a variant."""
    model_type = family.split("-")[0]
    own = FAMILY_CONFIGS[family] if family in FAMILY_CONFIGS else VARIANTS[family]
    return deepcopy(BASE | {"eos_token_id": 257} | own | {"model_type": model_type})


def build(family: str) -> tuple[nn.Module, dict[str, Any]]:
    """mlx-lm's model in float32, the same for every call, and its config."""
    config = config_of(family)
    model_type = config["model_type"]
    module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(model_type, model_type)}")
    model = module.Model(module.ModelArgs.from_dict(deepcopy(config)))
    if model_type.startswith("gemma3"):
        text = getattr(model, "language_model", model)
        text.tie_word_embeddings = True
        text.pop("lm_head")
    rng = np.random.default_rng(zlib.crc32(family.encode()))
    weights = [
        (name, mx.array(_weight(rng, name, array.shape)))
        for name, array in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(weights))
    mx.eval(model.parameters())
    model.eval()
    return model, config


def save(family: str, directory: Path) -> None:
    """Write a checkpoint: config, weights and tokenizer."""
    model, config = build(family)
    weights = dict(tree_flatten(model.parameters()))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    save_tokenizer(directory)


def save_tokenizer(directory: Path) -> None:
    """Token ``i`` is the byte ``i``; 256, 257 and 258 are BOS, EOS and the end of a turn."""
    # ByteLevel maps each byte to a printable character: the printable ones to themselves.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    vocab = {character: byte for byte, character in characters.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS, END_OF_TURN])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def _weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = rng.standard_normal(shape).astype(np.float32)
    if len(shape) > 1:
        # Wide enough that attention is peaked and a wrong key shows.
        return noise * (0.1 if "embed" in name else 1.5 / shape[-1] ** 0.5)
    is_norm = name.endswith("norm.weight") or "layernorm.weight" in name
    return 1.0 + 0.1 * noise if is_norm else 0.5 * noise

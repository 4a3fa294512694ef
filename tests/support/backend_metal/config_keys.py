"""What the installed releases of mlx-lm and transformers make of the keys of a config.json.

``python -m tests.support.backend_metal.config_keys`` writes the product's ``families.json`` anew.
A key that then is new in ``fixed`` is one that mlx-lm leaves out: look whether mlx-lm computes as
if it had the value that is written there.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
from functools import cache
from types import ModuleType
from typing import Any

from mlx_lm.utils import MODEL_REMAPPING
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from backend_metal.models.families.table import ALIASES, FAMILIES
from backend_metal.models.load.account.families import PATH
from backend_metal.models.load.account.keys import reason_of
from backend_metal.models.load.account.length import LENGTH_KEYS

DEFAULTS = ("rope_theta", "partial_rotary_factor")
OTHER_MODELS = ("bailing_hybrid", "minimax", "pixtral")
"""Types by whose name transformers has another model than mlx-lm."""
SILU = (
    *("Klear", "afm7", "baichuan_m1", "bailing_moe", "bailing_moe_linear", "bailing_moe_v3"),
    *(
        "deepseek",
        "gear",
        "hunyuan",
        "internlm2",
        "iquestloopcoder",
        "joyai_llm_flash",
        "kimi_k2",
        "kimi_vl",
    ),
    *("mimo", "minicpm", "minimax", "nanbeige", "nemotron-nas", "plamo", "plamo2", "qwen"),
    *("telechat3", "xverse", "youtu_llm"),
)
"""Types that transformers lacks, whose activation mlx-lm has fixed."""
SIGMOID = (
    *("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "joyai_llm_flash"),
    *("kimi_k2", "kimi_k25", "kimi_vl", "mimo_v2_flash", "mistral4"),
)
"""Types whose experts' scores mlx-lm has fixed."""
COMPUTED: dict[str, dict[str, Any]] = {
    "apertus": {"post_norm": False, "qk_norm": True},
    "bailing_moe": {"norm_softmax": False},
    "deepseek": {"norm_topk_prob": False, "scoring_func": "softmax"},
    "deepseek_v2": {"scoring_func": "softmax"},
    "exaone": {"activation_function": "silu"},
    "falcon_h1": {"mamba_use_mlp": True},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh"},
    "glm_moe_dsa": {"rope_interleave": True},
    "gptj": {"rotary": True, "scale_attn_weights": True},
    "granitemoehybrid": {"normalization_function": "rmsnorm"},
    "hunyuan": {
        **{"group_limited_greedy": False, "moe_drop_tokens": False, "moe_layer_num_skipped": 0},
        **{"norm_type": "rms", "position_embedding_xdrope": False, "routed_scaling_factor": 1.0},
        **{"use_mla": False, "use_rotary_pos_emb": True},
    },
    "kimi_k3": {"topk_method": "noaux_tc", "use_grouped_topk": True},
    "lfm2": {"block_use_swiglu": True, "use_pos_enc": True},
    "llama": {"rope_interleaved": False},
    "llama4": {"nope_layer_interval": 4},
    "longcat_flash": {"attention_method": "MLA"},
    "mamba": {"rms_norm": True},
    "mamba2": {"rms_norm": True},
    "openelm": {
        **{"activation_fn_name": "swish", "ffn_with_glu": True},
        "normalization_layer_name": "rms_norm",
    },
    "phi3": {"full_attn_mod": 1, "interpolate_factor": 1},
    "qwen": {"scale_attn_weights": True},
    "qwen3_moe": {"use_qk_norm": True},
    "starcoder2": {"mlp_type": "default", "norm_type": "layer_norm"},
    **{name: {"use_mrope": False} for name in ("mimo", "qwen2")},
    **{name: {"attn_output_gate": True} for name in ("qwen3_5", "qwen3_5_moe")},
    **{
        name: {"attn_type_list": 1, "qk_norm_type": "per_layer", "scoring_func": "sigmoid"}
        for name in ("minimax", "minimax_m2")
    },
}
"""Where mlx-lm computes as if there were another value than transformers' default."""
ABSENT: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {"time_step_limit": [0.0, float("inf")]},
    "minicpm3": {"tie_word_embeddings": True},
}
"""What published configs leave out, and mlx-lm has another default for than transformers."""
NESTED = ("llama", "mistral")
"""Types of a ``text_config`` that is published as what differs from its class."""
NESTED_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "rms_norm_eps", "vocab_size"),
)
UNUSED: dict[str, tuple[str, ...]] = {
    "afmoe": ("num_expert_groups", "num_limited_groups", "use_grouped_mm"),
    # Named a second time, of which the published code reads the other name.
    "gemma2": ("sliding_window_size",),
    "gpt_oss": ("experts_per_token",),
    "lfm2": (
        *("block_norm_eps", "block_use_xavier_init", "conv_dim", "conv_dim_out"),
        *("conv_use_xavier_init", "num_heads"),
    ),
    "mamba": ("n_layer", "pad_vocab_size_multiple"),
    "nemotron_h": ("norm_eps", "rms_norm_eps"),
    "gpt2": ("n_special", "predict_special_tokens"),
    "gpt_bigcode": (
        *("inference_runner", "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input"),
    ),
    # Its experts are ours, and the rest is of images, classes and tokens.
    "hunyuan": (
        *("norm_topk_prob", "add_classification_head", "class_num", "dense_list", "pool_type"),
        *("skip_cls_token", "moe_random_routing_dropped_token", "num_media_embeds", "pad_id"),
        *("im_start_id", "im_end_id", "im_newline_id", "text_start_id", "text_end_id"),
        "mask_init_id",
    ),
    "llama": ("is_llama_config",),
    # Of temperatures, which bound the context, and of experts, that it has none of.
    "llama4_text": (
        *("attn_scale", "attn_temperature_tuning", "floor_scale", "num_experts_per_tok"),
    ),
    # The published code norms behind the gate, whatever it says.
    "mamba2": ("norm_before_gate",),
    "minicpm": ("mup_denominator",),
    # It differs less than bfloat16 shows.
    "nanochat": ("rms_norm_eps",),
    "openelm": ("num_gqa_groups", "qkv_multipliers", "rope_max_length"),
    # Of sequences longer than seq_length, which bounds the context.
    "qwen": ("bf16", "fp16", "fp32", "use_dynamic_ntk", "use_logn_attn"),
    "starcoder2": ("activation_function", "layer_norm_epsilon", "scale_attn_weights"),
    # The root of the head dim, which it scales by.
    "step3p5": ("query_pre_attn_scalar",),
    "xverse": ("max_tokenizer_truncation",),
}
"""Keys that change nothing for a type."""


def families() -> dict[str, dict[str, Any]]:
    return {name: family(name) for name in sorted({*FAMILIES, *ALIASES})}


def family(name: str) -> dict[str, Any]:
    reads = _reads(importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(name, name)}"))
    config = None if name in OTHER_MODELS else transformers_config(name)
    keys = {} if config is None else {**config.to_dict(), **config.get_text_config().to_dict()}
    keys |= {
        **({"hidden_act": "silu"} if name in SILU else {}),
        **({"scoring_func": "sigmoid"} if name in SIGMOID else {}),
        **COMPUTED.get(name, {}),
    }
    found: dict[str, Any] = {"reads": sorted({*reads, *UNUSED.get(name, ())})}
    found["saved"] = {} if config is None else _saved(config) | _saved(config.get_text_config())
    found["saved"] = {key: real for key, real in found["saved"].items() if key in reads}
    found["fixed"] = {
        key: value
        for key, value in sorted(keys.items())
        if key not in {*found["reads"], *found["saved"].values()} and reason_of(key) is None
    }
    rope = keys.get("rope_parameters") or {}
    rope = rope.get("full_attention") or rope
    found["defaults"] = {key: rope[key] for key in DEFAULTS if rope.get(key) is not None} | {
        key: keys[key] for key in LENGTH_KEYS if keys.get(key) is not None
    }
    if name in ABSENT:
        found["absent"] = ABSENT[name]
    if name in NESTED:
        sizes = {key: getattr(type(config), key) for key in NESTED_SIZES}
        found["nested"] = {key: value for key, value in sizes.items() if value is not None}
    return found


def _saved(config: PreTrainedConfig) -> dict[str, str]:
    return {key: real for key, real in config.attribute_map.items() if key != real}


def transformers_config(name: str, **changed: Any) -> PreTrainedConfig | None:
    return CONFIG_MAPPING[name](**changed) if name in CONFIG_MAPPING else None


def _reads(module: ModuleType) -> set[str]:
    """The fields of its dataclasses that its code, or what it is made of, ever looks at."""
    parts = [_looked_at(name) for name in _made_of(module.__name__)]
    return set().union(*(fields for fields, _ in parts)) & set().union(*(keys for _, keys in parts))


@cache
def _looked_at(name: str) -> tuple[set[str], set[str]]:
    """The fields of a module's dataclasses, and all attributes and texts in its code."""
    module = importlib.import_module(name)
    classes = [cls for _, cls in inspect.getmembers(module, dataclasses.is_dataclass)]
    found = re.findall(r"\.(\w+)|[\"'](\w+)[\"']", _source(name))
    return {field.name for cls in classes for field in dataclasses.fields(cls)}, {
        word for words in found for word in words
    }


@cache
def _made_of(name: str) -> set[str]:
    """The module and those of mlx-lm's that it imports, with theirs."""
    found = {name}
    for module, parts in re.findall(r"^from \.(\w*) import (.+)$", _source(name), re.MULTILINE):
        for part in [module] if module else parts.split(", "):
            found |= _made_of(f"mlx_lm.models.{part}")
    return found


@cache
def _source(name: str) -> str:
    return inspect.getsource(importlib.import_module(name))


def written() -> str:
    """A line a type."""
    lines = (f"{json.dumps(name)}: {json.dumps(found)}" for name, found in families().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(written(), encoding="utf-8")

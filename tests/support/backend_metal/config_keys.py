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

from backend_metal.models.account.families import PATH
from backend_metal.models.account.keys import reason_of
from backend_metal.models.account.length import LENGTH_KEYS
from backend_metal.models.families import ALIASES, FAMILIES

DEFAULTS = ("rope_theta", "partial_rotary_factor")
OTHER_MODELS = ("bailing_hybrid", "minimax", "pixtral")
"""Types by whose name transformers has another model than mlx-lm."""
SILU = (
    *("Klear", "afm7", "baichuan_m1", "bailing_moe", "bailing_moe_linear", "bailing_moe_v3"),
    *("gear", "hunyuan", "internlm2", "iquestloopcoder", "mimo", "minimax"),
    *("minicpm", "nanbeige", "nemotron-nas", "plamo", "plamo2", "qwen", "telechat3"),
)
"""Types that transformers lacks, whose activation mlx-lm has fixed."""
SIGMOID = (
    *("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "joyai_llm_flash"),
    *("kimi_k2", "kimi_k25", "kimi_vl", "mimo_v2_flash", "mistral4"),
)
"""Types whose experts' scores mlx-lm has fixed."""
GATED = {"attn_output_gate": True}
COMPUTED: dict[str, dict[str, Any]] = {
    "apertus": {"post_norm": False, "qk_norm": True},
    "deepseek": {"hidden_act": "silu", "scoring_func": "softmax"},
    "deepseek_v2": {"scoring_func": "softmax"},
    "granitemoehybrid": {"normalization_function": "rmsnorm"},
    "longcat_flash": {"attention_method": "MLA"},
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), GATED),
    "starcoder2": {"mlp_type": "default", "norm_type": "layer_norm"},
    **{name: {"scoring_func": "sigmoid"} for name in SIGMOID},
    **{name: {"hidden_act": "silu"} for name in SILU},
}
"""Where mlx-lm computes as if there were another value than transformers' default."""
UNUSED: dict[str, tuple[str, ...]] = {
    # Of temperatures, which bound the context, and of experts, that it has none of.
    "llama4_text": (
        *("attn_scale", "attn_temperature_tuning", "floor_scale", "num_experts_per_tok"),
    ),
    # It differs less than bfloat16 shows.
    "nanochat": ("rms_norm_eps",),
    # The root of the head dim, which it scales by.
    "step3p5": ("query_pre_attn_scalar",),
}
"""Keys that change nothing for a type."""


def families() -> dict[str, dict[str, Any]]:
    return {name: family(name) for name in sorted({*FAMILIES, *ALIASES})}


def family(name: str) -> dict[str, Any]:
    reads = _reads(importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(name, name)}"))
    config = None if name in OTHER_MODELS else transformers_config(name)
    keys = {} if config is None else {**config.to_dict(), **config.get_text_config().to_dict()}
    keys |= COMPUTED.get(name, {})
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

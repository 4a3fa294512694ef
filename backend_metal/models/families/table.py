"""The model types that the seam serves, each proved against mlx-lm's dense model by the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import mlx.nn as nn
import mlx_lm
from mlx_lm.utils import MODEL_REMAPPING

from backend_metal.models.families import (
    afm7,
    baichuan_m1,
    bailing,
    gear,
    gemma2,
    gpt_bigcode,
    hunyuan,
    kimi_k3,
    llama4,
    longcat,
    plamo2,
    prism,
)
from backend_metal.models.layers import griffin, mla, selective_scan


@dataclass(frozen=True)
class Family:
    backbone: str = "model"
    """Where the module is whose output the head turns into logits."""
    last: str | None = None
    """Where the head is in that module, the name of what it calls last before the head."""
    adapt: Callable[[nn.Module, Mapping[str, Any]], None] | None = None
    """What unmodified mlx-lm code can't do by itself."""
    recurrent: str | None = None
    """What layers call the modules that carry state from token to token, or the list of them."""


FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        (
            "afmoe",
            "apertus",
            "bailing_moe",
            "bitnet",
            "cohere",
            "cohere2",
            "deepseek",
            "deepseek_v2",
            "dots1",
            "ernie4_5",
            "ernie4_5_moe",
            "exaone4",
            "exaone_moe",
            "gemma",
            "gemma3_text",
            "gemma4_text",
            "glm",
            "glm4",
            "glm4_moe",
            "gpt2",
            "gpt_neox",
            "gpt_oss",
            "gptj",
            "granite",
            "granitemoe",
            "helium",
            "hunyuan_v1_dense",
            "internlm2",
            "internlm3",
            "iquestloopcoder",
            "Klear",
            "laguna",
            "llama",
            "llama4_text",
            "mellum",
            "mimo",
            "mimo_v2_flash",
            "minicpm",
            "minicpm3",
            "minimax",
            "ministral3",
            "mistral",
            "mixtral",
            "muse_glimmer",
            "nanbeige",
            "nemotron",
            "nemotron-nas",
            "olmo2",
            "olmo3",
            "olmoe",
            "phi",
            "phi3",
            "phimoe",
            "plamo",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_moe",
            "seed_oss",
            "smollm3",
            "solar_open",
            "spark2_5",
            "stablelm",
            "starcoder2",
            "step3p5",
            "talkie",
            "telechat3",
            "youtu_llm",
        ),
        Family(),
    ),
    **dict.fromkeys(
        ("dbrx", "exaone", "lille-130m", "nanochat", "openelm", "phixtral", "qwen"),
        Family(backbone="transformer"),
    ),
    **dict.fromkeys(
        ("gemma3", "gemma4", "mistral3", "pixtral", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe"),
        Family(backbone="language_model.model"),
    ),
    "afm7": Family(adapt=afm7.adapt),
    "gemma2": Family(adapt=gemma2.adapt),
    "hunyuan": Family(adapt=hunyuan.adapt),
    "gpt_bigcode": Family(backbone="transformer", adapt=gpt_bigcode.adapt),
    "llama4": Family(backbone="language_model.model", adapt=llama4.adapt),
    "gemma3n": Family(backbone="model.language_model", last="norm"),
    "baichuan_m1": Family(adapt=baichuan_m1.adapt, recurrent="self_attn"),
    "bailing_hybrid": Family(adapt=bailing.adapt, recurrent="attention"),
    "bailing_moe_linear": Family(adapt=bailing.adapt, recurrent="attention"),
    "bailing_moe_v3": Family(adapt=mla.adapt, recurrent="attention"),
    "falcon_h1": Family(recurrent="mamba"),
    "gear": Family(adapt=gear.adapt, recurrent="local_mixer"),
    "granitemoehybrid": Family(recurrent="mamba"),
    "jamba": Family(adapt=selective_scan.adapt, recurrent="mamba"),
    "kimi_k3": Family(backbone="language_model.model", adapt=kimi_k3.adapt, recurrent="self_attn"),
    "kimi_linear": Family(adapt=mla.adapt, recurrent="self_attn"),
    "lfm2": Family(recurrent="conv"),
    "lfm2-vl": Family(backbone="language_model.model", recurrent="conv"),
    "lfm2_moe": Family(recurrent="conv"),
    "longcat_flash_ngram": Family(adapt=longcat.adapt, recurrent="ngram_embeddings"),
    "mamba": Family(backbone="backbone", adapt=selective_scan.adapt, recurrent="mixer"),
    "mamba2": Family(backbone="backbone", recurrent="mixer"),
    "nemotron_h": Family(backbone="backbone", recurrent="mixer"),
    "olmo_hybrid": Family(recurrent="linear_attn"),
    "plamo2": Family(adapt=plamo2.adapt, recurrent="mixer"),
    "prism_hadamard_qwen35": Family(
        backbone="language_model.model", adapt=prism.adapt, recurrent="linear_attn"
    ),
    "qwen3_5": Family(backbone="language_model.model", recurrent="linear_attn"),
    "qwen3_5_moe": Family(backbone="language_model.model", recurrent="linear_attn"),
    "qwen3_next": Family(recurrent="linear_attn"),
    "recurrent_gemma": Family(adapt=griffin.adapt, recurrent="temporal_block"),
    "rwkv7": Family(recurrent="layers"),
    **dict.fromkeys(
        (
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "longcat_flash",
            "mistral4",
        ),
        Family(adapt=mla.adapt),
    ),
    **dict.fromkeys(
        ("kimi_k25", "kimi_vl"), Family(backbone="language_model.model", adapt=mla.adapt)
    ),
}


ALIASES: Mapping[str, str] = {
    alias: name
    for alias, name in MODEL_REMAPPING.items()
    if name in FAMILIES and alias not in FAMILIES
}
"""Other names of these, as mlx-lm has them."""

REFUSED: Mapping[str, str] = {
    "deepseek_v41": "it keeps keys that sum up several tokens each, and pages keep them one by one",
    "minimax_m3_vl": "its tokens choose blocks of keys by an index, and the kernels attend to all",
    "muse_spark": "mlx-lm computes it by kernels that it has for Metal alone, where no test holds "
    "it to mlx-lm",
    "olmo": "mlx-lm needs the package ai2-olmo for it, and ends the process that lacks it; OLMo 2 "
    "and later are served",
    "phi3small": "its block-sparse layers mask keys by the length of a whole sequence, and packed "
    "tokens are of several",
    "plamo3": "mlx-lm gives it a window of one token more than it keeps, so its answers depend on "
    "how a prompt is cut",
}
"""Model types that mlx-lm has and that can't be served as they are there, and why."""


ELSEWHERE: Mapping[str, str] = dict.fromkeys(
    ("deepseek_v4", "glm5_next", "hy_v4", "inkling", "qwen4_exp"), "mlx-vlm"
)
"""Packages that have a model type that mlx-lm lacks."""


def family_of(config: Mapping[str, Any]) -> Family:
    """Raises ``ValueError`` naming ``model_type``, and why it can't be served."""
    model_type = config.get("model_type", "")
    name = model_type
    if name not in FAMILIES:
        name = MODEL_REMAPPING.get(name, name)
    if name in FAMILIES:
        return FAMILIES[name]
    if name in REFUSED:
        why = REFUSED[name]
    elif name in ELSEWHERE:
        why = f"mlx-lm {mlx_lm.__version__}, by which models are built here, lacks it, and " + (
            f"{ELSEWHERE[name]} has it"
        )
    else:
        near = get_close_matches(str(name), [*FAMILIES, *ALIASES], n=3)
        why = f"mlx-lm {mlx_lm.__version__}, by which models are built here, lacks it; " + (
            f"near ones are {', '.join(near)}; " if near else ""
        )
        why += f"backend_metal/README.md lists the {len({*FAMILIES, *ALIASES})} that are served"
    raise ValueError(f"model_type {model_type!r} is not supported: {why}")

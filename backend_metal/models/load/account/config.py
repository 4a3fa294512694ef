"""A config.json in the spelling that mlx-lm's classes read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend_metal.models.load.account.families import family_of_config
from backend_metal.models.load.account.rope import (
    FULL,
    LOCAL_BASES,
    NESTED,
    PARAMETERS,
    SCALING,
    SLIDING,
    Rope,
    ropes_of,
    text_part,
)

LAYER_KINDS = {"granitemoehybrid": {"linear_attention": "mamba", FULL: "attention"}}
"""mlx-lm's names of kinds of layers, by transformers'."""
NO_SCALING: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": {"type": "yarn", "factor": 1.0},
    "hunyuan": {"type": "dynamic", "factor": 1.0, "alpha": 1.0},
    "minicpm3": {"type": "default"},
}
"""Values that mean no scaling, for classes that require a ``rope_scaling``."""


def normalized(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with its rotary embeddings in both spellings, and with what its nulls mean.
    Raises what ``ropes_of`` does."""
    text, nested = text_part(config), config.get("text_config")
    family, inner = family_of_config(text), nested if isinstance(nested, Mapping) else {}
    absent = {**family.absent, **family_of_config(inner).nested}
    absent |= {key: text[real] for key, real in family.saved.items() if real in text}
    changed = {key: value for key, value in absent.items() if key not in text}
    text |= changed
    ropes = ropes_of(text)
    changed |= _sizes(text) | _layer_types(text)
    if (rope := ropes.get(FULL)) is not None:
        changed |= _spelled(text, rope, ropes)
    if inner is not nested:
        return {**config, **changed}
    # Classes around a language model say for it whether its head is the embedding.
    shared = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**config, "text_config": {**shared, **inner, **changed}}


def _sizes(text: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve sizes that are null to their documented defaults."""
    sizes: dict[str, Any] = {}
    heads, hidden = text.get("num_attention_heads"), text.get("hidden_size")
    if heads and text.get("num_key_value_heads", 0) is None:
        sizes["num_key_value_heads"] = heads
    if heads and hidden and text.get("head_dim", 0) is None:
        sizes["head_dim"] = hidden // heads
    return sizes


def _layer_types(text: Mapping[str, Any]) -> dict[str, Any]:
    """Kinds of layers by mlx-lm's names, or by its pattern."""
    kinds, reads = text.get("layer_types"), family_of_config(text).reads
    if not kinds:
        return {}
    if renamed := LAYER_KINDS.get(text.get("model_type", "")):
        return {"layer_types": [renamed.get(kind, kind) for kind in kinds]}
    if "layer_types" in reads or "sliding_window_pattern" not in reads or FULL not in kinds:
        return {}
    if text.get("model_type") == "exaone4":
        return {"sliding_window_pattern": "".join("LG"[kind == FULL] for kind in kinds)}
    return {"sliding_window_pattern": kinds.index(FULL) + 1}


def _spelled(
    text: Mapping[str, Any], rope: Rope, ropes: Mapping[str, Rope | None]
) -> dict[str, Any]:
    model_type = text.get("model_type", "")
    spelled: dict[str, Any] = {}
    if rope.base is not None and not isinstance(text.get("rope_theta"), list):
        spelled["rope_theta"] = rope.base
        if "attn_config" in text:
            spelled["attn_config"] = {"rope_theta": rope.base, **text["attn_config"]}
        if model_type == "gpt_neox":
            spelled["rotary_emb_base"] = rope.base
    if rope.fraction is not None:
        spelled |= {"partial_rotary_factor": rope.fraction, "rotary_pct": rope.fraction}
    # Scaled ones take the place of the network's, but these change what else it computes.
    is_read = "mscale_all_dim" in rope.values or "alpha" in rope.values
    kind = rope.kind if is_read else "default"
    scaling = {"factor": 1.0, **rope.values, "type": kind, "rope_type": kind}
    spelled[SCALING] = scaling if is_read else NO_SCALING.get(model_type)
    if (local := ropes.get(SLIDING)) is not None and local.base is not None:
        spelled |= dict.fromkeys(LOCAL_BASES, local.base)
    given = text.get(PARAMETERS) or {}
    if any(isinstance(own, Mapping) for own in given.values()):
        spelled[PARAMETERS] = {
            kind: own and {**own, "rope_theta": own.get("rope_theta") or rope.base}
            for kind, own in given.items()
        }
    elif model_type not in NESTED:
        shared = ("rope_theta", "partial_rotary_factor")
        spelled[PARAMETERS] = scaling | {key: spelled[key] for key in shared if key in spelled}
    return spelled

"""The rotary embeddings that a config.json asks for, in the spelling of any release.

``rope_theta`` and ``rope_scaling`` are the old spelling, ``rope_parameters`` that of transformers
5, flat or one for each kind of layer. The formulas are those of transformers' rotary functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from backend_metal.models.load.account.families import family_of_config

FULL, SLIDING = "full_attention", "sliding_attention"
PARAMETERS, SCALING = "rope_parameters", "rope_scaling"
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
ALIASES = {"su": "longrope", "mrope": "default", "deepseek_yarn": "yarn", "telechat3-yarn": "yarn"}
NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
NUMBERS = frozenset(
    {"rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor", "alpha"}
    | {"attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"}
)
BASES = ("rope_theta", "rotary_emb_base", "rope_freq_constant")
FRACTIONS = ("partial_rotary_factor", "rotary_pct")
LOCAL_BASES = ("rope_local_base_freq", "swa_rope_theta")
PUBLISHED_LOCAL_BASE = dict.fromkeys(("gemma3", "gemma3_text", "gemma3n", "gear"), 10000.0)
"""Of sliding layers, where a config leaves it out."""
UNSCALED_SLIDING = ("olmo3",)
"""Types whose sliding layers are never scaled."""
NESTED = ("gemma4", "gemma4_text", "gemma4_unified", "laguna", "mellum", "spark2_5")
"""Types whose ``rope_parameters`` are of each kind of layer, and have defaults of their own."""
NULL_IS_NONE = ("olmo_hybrid",)
"""Types without positions where ``rope_theta`` is null, and not left out."""
ONE_WAY = ("gptj", "phixtral", "plamo2", "plamo3")
"""Types whose published code rotates in one way, whatever its config says."""

UNWEIGHTED = ("minicpm3", "youtu_llm")
"""Types with latent attention for which mlx-lm leaves out that YaRN weighs the scores, too."""


@dataclass(frozen=True)
class Rope:
    """What a config says of the rotary embeddings of one kind of layer."""

    kind: str
    base: float | None
    """None: the network's own."""
    fraction: float | None
    """Of a head's dims, those that are rotated; None: the network's own."""
    values: Mapping[str, Any]
    """The other parameters, by their names in ``rope_parameters``."""
    context: int | None
    """``max_position_embeddings``"""

    @property
    def original(self) -> int | None:
        """Tokens of context before it is scaled."""
        original: int | None = self.values.get("original_max_position_embeddings", self.context)
        return original

    @property
    def factor(self) -> float:
        factor = self.values.get("factor")
        if factor is None and self.context and self.original:
            factor = self.context / self.original
        return 1.0 if factor is None else float(factor)


@dataclass(frozen=True)
class Rotation:
    """``inverse_frequencies``: radians a token, float64 ``[dims / 2]``; what is rotated is
    multiplied by ``scale``."""

    inverse_frequencies: np.ndarray
    scale: float = 1.0


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of the language model."""
    text = config.get("text_config")
    # The network is of the outer type.
    own = {**text, "model_type": config.get("model_type")} if isinstance(text, Mapping) else {}
    return {**config, **own}


def ropes_of(text: Mapping[str, Any]) -> dict[str, Rope | None]:
    """By kind of layer, or one for ``full_attention`` that all share. None: such layers rotate
    nothing. Raises ``ValueError`` naming the key of a kind or value that is unknown."""
    model_type = text.get("model_type", "")
    parameters, scaling = text.get(PARAMETERS) or {}, text.get(SCALING) or {}
    for key, value in ((PARAMETERS, parameters), (SCALING, scaling)):
        if not isinstance(value, Mapping):
            raise ValueError(f"config.json: {key} must be an object, not {value!r}")
    if any(isinstance(value, Mapping) for value in parameters.values()):
        nested = {kind: _rope(text, own, kind) for kind, own in parameters.items()}
        if scaling and FULL in nested:
            nested[FULL] = _rope(text, {**(parameters[FULL] or {}), **scaling}, FULL)
        return nested
    if model_type in NESTED and not (parameters or scaling):
        return {}
    if model_type in NULL_IS_NONE and {**text, **parameters}.get("rope_theta", 0) is None:
        return {FULL: None}
    full = _rope(text, {**parameters, **scaling})
    local = _first(text, LOCAL_BASES, PUBLISHED_LOCAL_BASE.get(model_type))
    plain = replace(full, kind="default", values={})
    if local is not None:
        return {FULL: full, SLIDING: replace(plain, base=local)}
    return {FULL: full, SLIDING: plain} if model_type in UNSCALED_SLIDING else {FULL: full}


def rope_of_layer(text: Mapping[str, Any], layer: int, is_sliding: bool | None) -> Rope | None:
    """``is_sliding``: whether the network gives the layer a window; None: it does not say."""
    ropes = ropes_of(text)
    layer_types = text.get("layer_types") or [
        SLIDING if slides else FULL for slides in text.get("hybrid_layer_pattern") or ()
    ]
    kind = layer_types[layer] if layer < len(layer_types) else SLIDING if is_sliding else FULL
    rope = ropes.get(kind, ropes.get(FULL))
    if rope is None:
        return None
    # Lists of one value a layer.
    if isinstance(bases := text.get("rope_theta"), list):
        rope = replace(rope, base=bases[layer])
    if layer < len(fractions := text.get("partial_rotary_factors") or ()):
        rope = replace(rope, fraction=fractions[layer])
    if (scaled := text.get("yarn_only_types")) and kind not in scaled:
        rope = replace(rope, kind="default", values={})
    return rope


def rotation_of(rope: Rope, dims: int, base: float, *, long: bool) -> Rotation:
    """``dims``: how many of a head's are rotated; ``base``: where the config leaves it out;
    ``long``: of ``longrope``, the factors for more than the original context."""
    base = base if rope.base is None else rope.base
    values, factor = rope.values, rope.factor
    if (alpha := values.get("alpha")) is not None and rope.kind == "dynamic":
        base *= alpha ** (dims / (dims - 2))
    plain = base ** -(np.arange(0, dims, 2) / dims)
    match rope.kind:
        case "linear":
            return Rotation(plain / factor)
        case "proportional":
            rotated = int(values.get("partial_rotary_factor", 1.0) * dims // 2)
            return Rotation(np.where(np.arange(dims // 2) < rotated, plain, 0.0) / factor)
        case "llama3":
            return Rotation(_llama3(rope, plain))
        case "yarn":
            return _yarn(rope, plain, base, dims)
        case "longrope":
            return _longrope(rope, plain, long)
    # `dynamic` is the plain one within the context before it is scaled, and that alone is served.
    return Rotation(plain)


def _llama3(rope: Rope, plain: np.ndarray) -> np.ndarray:
    low, high = (float(rope.values[f"{end}_freq_factor"]) for end in ("low", "high"))
    turns = (rope.original or 8192) * plain / (2 * math.pi)
    # Llama 4 Scout has one value for both.
    kept = np.clip((turns - low) / max(high - low, 1e-9), 0, 1)
    scaled: np.ndarray = plain * (kept + (1 - kept) / rope.factor)
    return scaled


def _yarn(rope: Rope, plain: np.ndarray, base: float, dims: int) -> Rotation:
    values, factor = rope.values, rope.factor

    def dim_of(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    original = rope.original or 4096
    first = dim_of(values.get("beta_fast") or 32)
    last = dim_of(values.get("beta_slow") or 1)
    if values.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    ramp = np.arange(dims // 2) - first
    interpolated = np.clip(ramp / (last - first if last != first else 0.001), 0, 1)
    scale = values.get("attention_factor")
    if scale is None:
        over, under = values.get("mscale"), values.get("mscale_all_dim")
        scale = magnitude(over) / magnitude(under) if over and under else magnitude(1)
    return Rotation(plain * (1 - interpolated) + plain / factor * interpolated, scale)


def _longrope(rope: Rope, plain: np.ndarray, long: bool) -> Rotation:
    values, factor, length = rope.values, rope.factor, "long" if long else "short"
    scale = values.get(f"{length}_mscale") or values.get("attention_factor")
    if scale is None:
        grown = math.log(factor) / math.log(rope.original or 4096) if factor > 1 else 0.0
        scale = math.sqrt(1 + grown)
    factors = np.array(values[f"{length}_factor"], float)
    if factors.size not in (1, plain.size):
        raise ValueError(
            f"config.json: {length}_factor must have {plain.size} numbers, one for two of the dims "
            f"that are rotated, not {factors.size}"
        )
    return Rotation(plain / factors, scale)


def _rope(text: Mapping[str, Any], own: Any, layers: str | None = None) -> Any:
    """None for the None of layers that rotate nothing."""
    if own is None:
        return None
    where = PARAMETERS if layers or not text.get(SCALING) else SCALING
    values = {key: value for key, value in own.items() if value is not None}
    named = values.pop("rope_type", None) or values.pop("type", None) or "default"
    values.pop("type", None)
    # Phi-3's first configs say "yarn".
    kind = "longrope" if "long_factor" in values else ALIASES.get(named, named)
    if kind not in KINDS:
        raise ValueError(
            f"config.json: {where} has the type {named!r}, which is unknown here; those served are "
            f"{', '.join(KINDS)}"
        )
    for key, value in values.items():
        if key in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"config.json: {where}.{key} must be a number, not {value!r}")
    base = values.pop("rope_theta", None)
    if base is None and not isinstance(base := _first(text, BASES), int | float):
        attention = text.get("attn_config") or {}
        base = attention.get("rope_theta", family_of_config(text).defaults.get("rope_theta"))
    by_default = None if layers else family_of_config(text).defaults.get("partial_rotary_factor")
    fraction = _first({**text, **values}, FRACTIONS, by_default)
    values.pop("partial_rotary_factor", None)
    if kind == "proportional":
        # Of all dims, those with a frequency of their own.
        values["partial_rotary_factor"], fraction = fraction or 1.0, None
    if (original := text.get("original_max_position_embeddings")) is not None:
        values["original_max_position_embeddings"] = original
    if "alpha" in values:
        values.setdefault("factor", 1.0)
    if lacking := [key for key in NEEDED.get(kind, ()) if key not in values]:
        raise ValueError(
            f"config.json: {where} of the type {named!r} must have {', '.join(lacking)}"
        )
    weight, is_scaled = values.get("mscale_all_dim"), values.get("factor", 1.0) > 1
    if text.get("model_type") in UNWEIGHTED and kind != "default" and weight and is_scaled:
        raise ValueError(
            f"config.json: {where}.mscale_all_dim is {weight!r}, and models of the type "
            f"{text['model_type']!r} are computed as if it were 0: this one can't be served"
        )
    return Rope(kind, base, fraction, values, text.get("max_position_embeddings"))


def _first(text: Mapping[str, Any], keys: tuple[str, ...], default: Any = None) -> Any:
    return next((text[key] for key in keys if text.get(key) is not None), default)

"""A network as mlx-lm builds it, made to compute what its config.json asks for."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import RotatingKVCache

from backend_metal.models.checks.cache_kinds import AttentionKind, cache_kinds, single_kinds
from backend_metal.models.load.account.families import family_of_config
from backend_metal.models.load.account.length import LENGTH_KEYS, context_length, stated_length
from backend_metal.models.load.account.rope import SLIDING, text_part
from backend_metal.models.load.account.rotary import settle_rotary

logger = logging.getLogger(__name__)

BUILD_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError)
"""Exceptions that mlx-lm raises for missing or malformed keys."""
UNBOUNDED = 2**20
"""Tokens of context of a model that keeps states and windows alone, and has no length."""
SLIDING_LAYERS = ("mistral", "mixtral", "phi3", "phimoe", "qwen3_moe", "starcoder2")
"""Types all of whose layers have the window that a config gives."""
PLAIN_WITHIN = {"llama4_text": ("attention_chunk_size", "floor_scale")}
"""Keys of the distance in tokens within which layers are those that mlx-lm has."""
ADAPTED = ("gemma2",)
"""Types whose windows this package adds."""


@dataclass(frozen=True)
class Settled:
    context: int
    """In tokens."""
    long: bool
    """Whether keys are rotated for more than the context before it was scaled."""


def settle(
    path: Path, network: nn.Module, config: Mapping[str, Any], max_model_len: int | None
) -> Settled:
    """Give ``network`` the windows and rotary embeddings that ``config`` asks for, and tell the
    context that it then has. ``max_model_len``: the context that is wanted, in tokens.

    Raises ``ValueError`` naming the key that asks for what the network can't do.
    """
    text = text_part(config)
    stated = stated_length(text) or _length_without(path, network, max_model_len)
    context, long = context_length(text, stated, max_model_len)
    if context < stated and max_model_len is None:
        logger.warning(
            "%s: the context is %d tokens, the most that rope_scaling's short_factor is for; set "
            "engine.max_model_len to %d to %d for long_factor, which then rotates shorter "
            "sequences too",
            path / "config.json",
            context,
            context + 1,
            stated,
        )
    context = min(context, _settle_windows(path, network, text, context))
    settle_rotary(path, network, text, context, long=long)
    return Settled(context, long)


def cause_of(error: Exception, config: Mapping[str, Any]) -> str:
    """What ``error``, one of ``BUILD_ERRORS``, says of ``config``."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if missing := re.findall(r"'(\w+)'", str(error)) if "required positional" in str(error) else []:
        return f"it lacks {', '.join(missing)}"
    text = text_part(config)
    nulls = [key for key in sorted(family_of_config(text).reads) if text.get(key, 0) is None]
    if nulls and ("NoneType" in str(error) or isinstance(error, AssertionError)):
        return f"it has null for {', '.join(nulls)}"
    if isinstance(error, AssertionError) and not str(error):
        return f"it does not hold that {extract_tb(error.__traceback__)[-1].line}"
    return f"{type(error).__name__}: {error}"


def _length_without(path: Path, network: nn.Module, max_model_len: int | None) -> int:
    """Tokens, where neither the config nor its family tells."""
    kinds = single_kinds(cache_kinds(network))
    if not any(isinstance(kind, AttentionKind) and kind.window is None for kind in kinds):
        return UNBOUNDED
    inner = getattr(network, "language_model", network)
    lengths = [getattr(getattr(inner, "args", None), key, None) for key in LENGTH_KEYS]
    length = next((length for length in lengths if length), max_model_len)
    if length is None:
        raise ValueError(
            f"{path / 'config.json'} does not say how long a context the model has, by none of "
            f"{', '.join(LENGTH_KEYS)}; set engine.max_model_len"
        )
    return int(length)


def _settle_windows(path: Path, network: nn.Module, text: Mapping[str, Any], context: int) -> int:
    """The tokens within which layers see what ``text`` says that they do."""
    kinds = cache_kinds(network)
    windows = [kind.window for kind in kinds if isinstance(kind, AttentionKind)]
    wanted = [kind == SLIDING for kind in text.get("layer_types") or ()]
    if any(windows) or ("sliding_window" in family_of_config(text).reads and any(wanted)):
        if len(windows) == len(wanted) and [bool(window) for window in windows] != wanted:
            raise ValueError(
                f"{path / 'config.json'}: layer_types gives a window to other layers than mlx-lm "
                f"has one for in models of the type {text.get('model_type')!r}"
            )
        return context
    limits = [text[key] for key in PLAIN_WITHIN.get(text.get("model_type", ""), ()) if key in text]
    if text.get("use_dynamic_ntk") or text.get("use_logn_attn"):
        limits.append(text.get("seq_length", context))
    window = _ignored_window(text)
    slides = [_slides(text, layer) for layer in range(len(kinds))]
    if window is not None and window < context and all(slides):
        network.make_cache = lambda: [RotatingKVCache(window) for _ in kinds]
    elif window is not None and any(slides):
        limits.append(window)
    if min(limits, default=context) >= context:
        return context
    logger.warning(
        "%s: the context is %d tokens, since mlx-lm has no layers of type %r that see less, or "
        "weigh otherwise, what is farther away",
        path / "config.json",
        min(limits),
        text.get("model_type"),
    )
    return int(min(limits))


def _ignored_window(text: Mapping[str, Any]) -> int | None:
    """In tokens; None: there is none, or mlx-lm reads it."""
    reads = family_of_config(text).reads
    if text.get("model_type") in ADAPTED or not text.get("use_sliding_window", True):
        return None
    if "sliding_window" in reads and ("layer_types" not in reads or text.get("layer_types")):
        return None
    window: int | None = text.get("sliding_window")
    return window


def _slides(text: Mapping[str, Any], layer: int) -> bool:
    if layer_types := text.get("layer_types"):
        return bool(layer_types[layer] == SLIDING)
    if text.get("model_type") in SLIDING_LAYERS:
        return True
    # As the classes of Qwen 2 and 3 count.
    return "use_sliding_window" in text and layer >= (text.get("max_window_layers") or 0)

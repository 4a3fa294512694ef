"""The sizes in a config.json: a model is built from them before its weights are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend_metal.models.context_length import LENGTH_KEYS

MOST: Mapping[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "num_layers"), 4096),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 4096),
    **dict.fromkeys(("head_dim", "hidden_size"), 2**20),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), 2**22),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 2**16),
    "vocab_size": 2**24,
    **dict.fromkeys(LENGTH_KEYS, 2**31 - 1),
}
"""Far beyond any published model; what is larger would exhaust memory before it is refused."""


def check_sizes(config: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` naming the first size that no model has; those left out are fine."""
    _check(config, "")
    if isinstance(text_config := config.get("text_config"), Mapping):
        _check(text_config, "text_config.")


def _check(config: Mapping[str, Any], prefix: str) -> None:
    for key, most in MOST.items():
        size = config.get(key)
        if size is None:
            continue
        is_integer = isinstance(size, int) and not isinstance(size, bool)
        if not (is_integer and 1 <= size <= most):
            raise ValueError(
                f"config.json: {prefix}{key} must be an integer from 1 to {most}, not {size!r}"
            )

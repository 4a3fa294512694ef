"""How long a sequence a model was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LENGTH_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


def context_length(config: Mapping[str, Any]) -> int | None:
    """Tokens of context by a config.json's own account; None when it gives none.

    ``max_position_embeddings`` already counts the stretch of every published rotary scaling but
    YaRN, where it may still be the length before the stretch.
    """
    length = next((config[key] for key in LENGTH_KEYS if config.get(key)), None)
    if length is None:
        return None
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if (scaling.get("rope_type") or scaling.get("type")) != "yarn":
        return int(length)
    original = scaling.get("original_max_position_embeddings") or length
    return max(int(length), int(original * scaling.get("factor", 1)))

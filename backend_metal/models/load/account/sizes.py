"""The sizes in a config.json: a model is built from them before its weights are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend_metal.models.load.account.length import LENGTH_KEYS

RANGES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("num_hidden_layers", "num_layers"), (1, 4096)),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), (1, 4096)),
    **dict.fromkeys(("head_dim", "hidden_size"), (1, 2**20)),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), (0, 2**22)),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), (0, 2**16)),
    "vocab_size": (1, 2**24),
    **dict.fromkeys(LENGTH_KEYS, (1, 2**31 - 1)),
}
"""Far beyond any published model; what is larger would exhaust memory before it is refused. Some
models have one size a layer, and no experts, or no dense layers, have the size 0."""


def check_sizes(path: Path, config: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` naming the first size that no model has; those left out are fine."""
    parts = {"": config, "text_config.": config.get("text_config")}
    for prefix, part in parts.items():
        if not isinstance(part, Mapping):
            continue
        for key, (least, most) in RANGES.items():
            sizes = part.get(key)
            for size in sizes if isinstance(sizes, list) else [sizes]:
                is_integer = isinstance(size, int) and not isinstance(size, bool)
                if size is not None and not (is_integer and least <= size <= most):
                    raise ValueError(
                        f"{path / 'config.json'}: {prefix}{key} must be an integer from {least} to "
                        f"{most}, not {size!r}"
                    )

"""The models that are served, as Anthropic's API tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


def anthropics_models(models: Sequence[tuple[str, int]], created: int) -> dict[str, Any]:
    """All on one page. ``models``: names, and the longest sequences in tokens; ``created``: in
    seconds, as Unix counts them."""
    names = [name for name, _ in models]
    return {
        "data": [anthropics_model(*model, created) for model in models],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


def anthropics_model(name: str, max_model_len: int, created: int) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": max_model_len,
        "max_tokens": max_model_len,
    }

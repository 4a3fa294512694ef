"""The models that are served, as Anthropic's API tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


def anthropics_models(models: Sequence[tuple[str, int, bool]], created: int) -> dict[str, Any]:
    """All on one page. ``models``: names, the longest sequences in tokens, and whether they think;
    ``created``: in seconds, as Unix counts them."""
    names = [name for name, *_ in models]
    return {
        "data": [anthropics_model(*model, created) for model in models],
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


def anthropics_model(name: str, max_model_len: int, thinks: bool, created: int) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": max_model_len,
        "max_tokens": max_model_len,
        "capabilities": _capabilities(thinks),
    }


def _capabilities(thinks: bool) -> dict[str, Any]:
    """What requests may have, for an answer that heeds it."""
    no, yes, if_it_thinks = ({"supported": supported} for supported in (False, True, thinks))
    efforts = dict.fromkeys(("low", "medium", "high", "xhigh", "max"), if_it_thinks)
    types = dict.fromkeys(("adaptive", "between_tools", "disabled"), yes)
    return {
        "batch": no,
        "citations": no,
        "code_execution": no,
        "context_management": no,
        "effort": {**if_it_thinks, **efforts},
        "image_input": no,
        "pdf_input": no,
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": yes,
        "thinking": {**if_it_thinks, "types": {**types, "enabled": if_it_thinks}},
    }
